"""The corpus as arrays of pieces, so that a fresh sample is a few numpy look-ups away.

A piece is what the tokenizer never merges across (a word, a run of punctuation, a line end). Every distinct piece is
numbered once and its tokens are kept once; files and functions are arrays of piece numbers. Renaming is then mapping
piece numbers, and tokenising is `Pieces.tokens`. `prepare` writes all that training needs into one folder, which may
travel to another machine: tokenizer, arrays, held-out tasks, and a manifest with their hashes.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from qwen3lab.nano.tasks import BETWEEN_BLOCKS, IDENTIFIER, KEYWORDS, Corpus, CountTokens, Task, make_edit, make_quote

Ints = npt.NDArray[np.int32]
FIXED, NAME, NUMBER = 0, 1, 2  # what a piece is: untouched, an identifier, a number
RANDOM_NAMES = 100_000
# (code tokens of an edit, prompt tokens of a quote), by which the evaluation groups its tasks.
EVALUATION_SIZES = {"small": (110, 240), "medium": (300, 800), "large": (480, 1500)}


@dataclass(frozen=True)
class Ragged:
    """Many arrays end to end: row i is flat[offsets[i]:offsets[i + 1]]."""

    flat: Ints
    offsets: npt.NDArray[np.int64]

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> Ragged:
        sizes = np.fromiter((len(r) for r in rows), np.int64, len(rows))
        flat = np.fromiter((v for r in rows for v in r), np.int32, int(sizes.sum()))
        return cls(flat, np.concatenate([[0], np.cumsum(sizes)]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> Ints:
        return self.flat[self.offsets[i] : self.offsets[i + 1]]

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        return np.diff(self.offsets)

    def gather(self, rows: Ints) -> Ints:
        """Rows in the order given, end to end."""
        starts, sizes = self.offsets[rows], self.offsets[rows + 1] - self.offsets[rows]
        ends = np.cumsum(sizes)
        total = int(ends[-1]) if len(ends) else 0
        return self.flat[np.repeat(starts - (ends - sizes), sizes) + np.arange(total)]


@dataclass(frozen=True)
class Pieces:
    """The training corpus. `spelling[p]` are piece p's tokens; blocks and files are rows of piece numbers."""

    spelling: Ragged
    kind: npt.NDArray[np.int8]  # FIXED, NAME or NUMBER, per piece
    is_line_end: npt.NDArray[np.bool_]
    blocks: Ragged  # functions, neighbours in a file being neighbours here
    block_names: Ints  # the piece that names each
    files: Ragged
    random_names: Ints  # pieces spelt at random, found nowhere in the corpus
    between_blocks: Ints
    rename_words: tuple[Ints, Ints]  # the pieces of "rename " and of " to "

    def tokens(self, pieces: Ints) -> Ints:
        return self.spelling.gather(pieces)

    @classmethod
    def load(cls, folder: Path) -> Pieces:
        with np.load(folder / "corpus.npz", allow_pickle=False) as z:
            pair = lambda name: Ragged(z[name], z[f"{name}_offsets"])  # noqa: E731
            return cls(
                pair("spelling"), z["kind"], z["is_line_end"], pair("blocks"), z["block_names"], pair("files"),
                z["random_names"], z["between_blocks"], (z["rename"], z["to"]),
            )  # fmt: skip


class _Numbering:
    """Text to piece numbers, learning new pieces as they come."""

    def __init__(self) -> None:
        from qwen3lab.nano.tokenizer import piece_splitter

        self._splitter = piece_splitter()
        self.numbers: dict[str, int] = {}

    def __call__(self, text: str) -> list[int]:
        numbers = self.numbers
        return [numbers.setdefault(piece, len(numbers)) for piece, _ in self._splitter.pre_tokenize_str(text)]


def prepare(
    out: Path, corpus: Corpus | None = None, vocab_size: int = 4096, seed: int = 0, tasks_per_size: int = 80
) -> dict[str, object]:
    """Write the folder that training reads, and return its manifest. Minutes of one CPU core for the whole library."""
    from qwen3lab.nano.tokenizer import save_tokenizer, train_tokenizer

    corpus = corpus or Corpus.from_stdlib()
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer((f.text for f in corpus.training), vocab_size)
    save_tokenizer(tokenizer, out)
    rng = np.random.default_rng(seed)

    number = _Numbering()
    blocks = [b for f in corpus.training for b in f.blocks]
    block_rows = [number(b.text) for b in blocks]
    block_names = [number(b.name)[0] for b in blocks]
    # The library's tests are rich in functions but poor reading: continuation is learnt from the rest.
    file_rows = [number(f.text) for f in corpus.training if not f.path.startswith("test/")]
    random_names = [number(name)[0] for name in _random_names(rng, RANDOM_NAMES) if name not in number.numbers]
    glue = {"between_blocks": number(BETWEEN_BLOCKS), "rename": number("rename "), "to": number(" to ")}

    texts = list(number.numbers)
    spelling = Ragged.of([e.ids for e in tokenizer.encode_batch_fast(texts)])
    arrays: dict[str, npt.NDArray[np.generic]] = {
        "kind": np.array([_kind(t) for t in texts], np.int8),
        "is_line_end": np.array(["\n" in t for t in texts], np.bool_),
        "block_names": np.array(block_names, np.int32),
        "random_names": np.array(random_names, np.int32),
    }
    arrays |= {name: np.array(row, np.int32) for name, row in glue.items()}
    for name, rows in (("spelling", spelling), ("blocks", Ragged.of(block_rows)), ("files", Ragged.of(file_rows))):
        arrays |= {name: rows.flat, f"{name}_offsets": rows.offsets}
    np.savez_compressed(out / "corpus.npz", **arrays)

    def ids(text: str) -> list[int]:
        return list(tokenizer.encode(text).ids)

    tasks = [
        {"size": size, "kind": t.kind, "prompt": ids(t.prompt), "answer": ids(t.answer)}
        for size, t in _evaluation_tasks(corpus, rng, lambda text: len(ids(text)), tasks_per_size)
    ]
    (out / "held_out.json").write_text(json.dumps(tasks, separators=(",", ":")), encoding="utf-8")
    manifest: dict[str, object] = {
        "source": "the Python standard library's source (PSF licence)",
        "python": platform.python_version(),
        "seed": seed,
        "vocab_size": tokenizer.get_vocab_size(),
        "training_files": len(corpus.training),
        "training_characters": sum(len(f.text) for f in corpus.training),
        "training_functions": len(blocks),
        "held_out_files": [f.path for f in corpus.held_out],
        "held_out_tasks": len(tasks),
        "sha256": {name: _sha256(out / name) for name in ("tokenizer.json", "corpus.npz", "held_out.json")},
        "corpus_sha256": hashlib.sha256("".join(f.path + f.text for f in corpus.files).encode()).hexdigest(),
    }
    (out / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    return manifest


def check(folder: Path) -> dict[str, object]:
    """The manifest of a prepared folder. Raises ValueError naming a file that is not as it was written."""
    manifest: dict[str, object] = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    hashes = manifest["sha256"]
    assert isinstance(hashes, dict)
    for name, digest in hashes.items():
        if _sha256(folder / name) != digest:
            raise ValueError(f"{folder / name}: not the file the manifest names; prepare the corpus again")
    return manifest


def _evaluation_tasks(
    corpus: Corpus, rng: np.random.Generator, count: CountTokens, n: int
) -> Iterable[tuple[str, Task]]:
    for size, (code_tokens, prompt_tokens) in EVALUATION_SIZES.items():
        for _ in range(n):
            yield size, make_edit(corpus, rng, code_tokens, count)
            yield size, make_quote(corpus, rng, prompt_tokens, count)


def _kind(piece: str) -> int:
    if IDENTIFIER.fullmatch(piece):
        return FIXED if piece in KEYWORDS else NAME
    return NUMBER if piece.isascii() and piece.isalnum() else FIXED


def _random_names(rng: np.random.Generator, n: int) -> list[str]:
    """Names no library has: syllables, letters, now and then an underscore, a capital or a digit."""
    onsets = [*"bcdfghjklmnprstvwxz", "st", "tr", "ch", "pl", "qu", ""]
    vowels = [*"aeiou", "ai", "ou", "ee"]
    alphabet = list("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")
    names = []
    for _ in range(n):
        if rng.random() < 0.3:
            name = "".join(rng.choice(alphabet, int(rng.integers(1, 9))))
        else:
            parts = [str(rng.choice(onsets)) + str(rng.choice(vowels)) for _ in range(int(rng.integers(1, 5)))]
            name = str(rng.choice(["", "_"], p=[0.8, 0.2])).join(parts)
            name = name.title() if rng.random() < 0.2 else name
        names.append(name + str(rng.integers(100)) if rng.random() < 0.15 else name)
    return [n for n in dict.fromkeys(names) if n not in KEYWORDS]


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
