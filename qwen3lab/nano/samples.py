"""Fresh training samples, made from pieces by numpy: no two alike, and a step's number makes its batch again.

A function is disguised before it is used (names and numbers replaced at random, sometimes many names by few, sometimes
with its lines shuffled), so that the only way to answer is to read the prompt. Rows are filled end to end with whole
tasks; what is left of a row continues a file, so no token is padding.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from qwen3lab.nano.pieces import FIXED, NAME, NUMBER, Ints, Pieces
from qwen3lab.nano.tokenizer import ANSWER_ID, EDIT_ID, END_ID, QUOTE_ID

# What a token is to the loss.
PROMPT, EDIT_ANSWER, QUOTE_ANSWER, CONTINUATION = 0, 1, 2, 3
KIND_NAMES = ("prompt", "edit", "quote", "continuation")

Sample = tuple[Ints, npt.NDArray[np.int8]]
_mark = lambda token: np.array([token], np.int32)  # noqa: E731


@dataclass
class Sampler:
    """Samples from `pieces`. `continuation_rows` is the share of rows that only continue code."""

    pieces: Pieces
    row_tokens: int = 2049
    continuation_rows: float = 0.05
    _names: Ints = field(init=False)
    _numbers: Ints = field(init=False)
    _line_ends: Ints = field(init=False)
    _block_tokens: npt.NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        p = self.pieces
        in_corpus = np.unique(p.blocks.flat)
        self._names = in_corpus[p.kind[in_corpus] == NAME]
        self._numbers = in_corpus[p.kind[in_corpus] == NUMBER]
        self._line_ends = in_corpus[p.is_line_end[in_corpus]]
        ends = np.concatenate([[0], np.cumsum(p.spelling.sizes[p.blocks.flat])])
        self._block_tokens = np.diff(ends[p.blocks.offsets])

    def batch(self, seed: int, step: int, rows: int) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.int8]]:
        """Step `step`'s tokens and their kinds, both [rows, row_tokens]; the same for the same numbers, always."""
        rng = np.random.default_rng((seed, step))
        made = [self.row(rng) for _ in range(rows)]
        return np.stack([r[0] for r in made]).astype(np.int16), np.stack([r[1] for r in made])

    def row(self, rng: np.random.Generator) -> Sample:
        parts: list[Sample] = []
        room = self.row_tokens
        tasks_only = rng.random() >= self.continuation_rows
        while tasks_only and room >= 160:
            # Log-uniform sizes: many small tasks, some that fill the row.
            size = min(room, int(np.exp(rng.uniform(np.log(120), np.log(self.row_tokens + 200)))))
            sample = (self.edit if rng.random() < 0.5 else self.quote)(rng, size)
            if sample is None or len(sample[0]) > room:
                if room < 600:
                    break
                continue
            parts.append(sample)
            room -= len(sample[0])
        if room:
            parts.append(self.continuation(rng, room))
        return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])

    def edit(self, rng: np.random.Generator, size: int) -> Sample | None:
        """CODE<|edit|>rename OLD to NEW<|answer|>CODE'<|endoftext|>, about `size` tokens or fewer."""
        p = self.pieces
        if rng.random() < 0.1:
            code = self._noise(rng, size // 4)
        else:
            blocks = self._pick(rng, size // 2 - 20)
            if not len(blocks):
                return None
            code = self._disguise(rng, self._join([p.blocks[b] for b in blocks]))
        words, counts = np.unique(code[p.kind[code] == NAME], return_counts=True)
        if not len(words):
            return None
        often = words[counts >= 3] if rng.random() < 0.7 else words
        old = rng.choice(often if len(often) else words)
        new = self._fresh(rng, 1)[0]
        if new in words:
            return None
        edited = np.where(code == old, new, code)
        rename, to = p.rename_words
        request = np.concatenate([rename, [old], to, [new]]).astype(np.int32)
        prompt = [p.tokens(code), _mark(EDIT_ID), p.tokens(request), _mark(ANSWER_ID)]
        return _sample(prompt, [p.tokens(edited), _mark(END_ID)], EDIT_ANSWER)

    def quote(self, rng: np.random.Generator, size: int) -> Sample | None:
        """FUNCTIONS<|quote|>NAME<|answer|>FUNCTION<|endoftext|>, then more questions of the same functions."""
        p = self.pieces
        blocks = self._pick(rng, int(size * rng.uniform(0.35, 0.75)))
        if len(blocks) < 2:
            return None
        code = self._join([p.blocks[b] for b in blocks])
        names = p.block_names[blocks]
        shown = self._disguise(rng, np.concatenate([code, names]))
        code, names = shown[: len(code)], shown[len(code) :]
        sizes = p.blocks.sizes[blocks]
        starts = np.cumsum(sizes + len(p.between_blocks)) - sizes - len(p.between_blocks)
        context = p.tokens(code)
        parts: list[Sample] = [(context, np.full(len(context), PROMPT, np.int8))]
        room = size - len(context)
        asked = 0
        for i in rng.permutation(len(blocks)):
            if np.count_nonzero(names == names[i]) > 1:
                continue
            answer = p.tokens(code[starts[i] : starts[i] + sizes[i]])
            ask = [_mark(QUOTE_ID), p.tokens(names[i : i + 1]), _mark(ANSWER_ID)]
            more = _sample(ask, [answer, _mark(END_ID)], QUOTE_ANSWER)
            if len(more[0]) > room:
                continue
            parts.append(more)
            room -= len(more[0])
            asked += 1
            if asked == 8:
                break
        if not asked:
            return None
        return np.concatenate([x[0] for x in parts]), np.concatenate([x[1] for x in parts])

    def continuation(self, rng: np.random.Generator, size: int) -> Sample:
        """`size` tokens of a file from a random piece on, half of the time under other names."""
        p = self.pieces
        taken = np.zeros(0, np.int32)
        while len(taken) < size:
            row = p.files[int(rng.integers(len(p.files)))]
            start = int(rng.integers(max(1, len(row) - 50)))
            part = row[start : start + size]
            part = self._disguise(rng, part) if rng.random() < 0.5 else part
            taken = np.concatenate([taken, p.tokens(part), _mark(END_ID)])
        return taken[:size], np.full(size, CONTINUATION, np.int8)

    def _pick(self, rng: np.random.Generator, budget: int) -> npt.NDArray[np.int64]:
        """Functions that fit `budget` tokens together: neighbours mostly, now and then from anywhere."""
        anywhere = rng.random() < 0.25
        for _ in range(8):
            if anywhere:
                order = rng.integers(len(self._block_tokens), size=24)
            else:
                first = int(rng.integers(len(self._block_tokens)))
                order = np.arange(first, min(first + 24, len(self._block_tokens)))
            fit = int(np.searchsorted(np.cumsum(self._block_tokens[order] + 1), budget, side="right"))
            if fit:
                return order[:fit]
        return np.zeros(0, np.int64)

    def _join(self, rows: list[Ints]) -> Ints:
        return np.concatenate([x for row in rows for x in (row, self.pieces.between_blocks)][:-1])

    def _disguise(self, rng: np.random.Generator, code: Ints) -> Ints:
        """`code` under other names, the same name everywhere the same; piece count and structure stay."""
        mode = rng.random()
        if mode < 0.15:
            return code
        found, where = np.unique(code, return_inverse=True)
        kind = self.pieces.kind[found]
        share = 1.0 if mode > 0.5 else rng.random()
        changed = (kind != FIXED) & (rng.random(len(found)) < share)
        count = int(np.count_nonzero(changed))
        if mode > 0.85:  # few names for many: a phrase no longer says where it stands
            fresh = rng.choice(self._fresh(rng, int(rng.integers(4, 40))), count)
        else:
            fresh = self._fresh(rng, count)
        numbers = rng.choice(self._numbers, count)
        renamed = found.copy()
        renamed[changed] = np.where(kind[changed] == NAME, fresh, numbers)
        return renamed[where]

    def _fresh(self, rng: np.random.Generator, n: int) -> Ints:
        real = rng.choice(self._names, n)
        return np.where(rng.random(n) < 0.5, real, rng.choice(self.pieces.random_names, n))

    def _noise(self, rng: np.random.Generator, n_pieces: int) -> Ints:
        """Lines of a few pieces over and over, in no order: copying it needs a long memory of what came before."""
        some = rng.choice(self.pieces.blocks.flat, int(rng.integers(4, 60)))
        some = np.concatenate([some, self._fresh(rng, 3)])
        body = rng.choice(some, max(n_pieces, 8))
        ends = self.pieces.is_line_end[body]
        body[~ends & (rng.random(len(body)) < 0.08)] = rng.choice(self._line_ends)
        return body


def _sample(prompt: list[Ints], answer: list[Ints], kind: int) -> Sample:
    """Join, and say which tokens the answer is."""
    tokens = np.concatenate([*prompt, *answer])
    kinds = np.full(len(tokens), PROMPT, np.int8)
    kinds[-sum(map(len, answer)) :] = kind
    return tokens, kinds
