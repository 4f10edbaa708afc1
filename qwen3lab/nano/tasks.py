"""What the small model is asked to do, as text: continue Python, rename a name in it, quote a function from it.

The material is the standard library's own source. About five files in a hundred are held out by the hash of their
path (so the same files stay unseen under another Python), and every task made here is made from those.

    edit    CODE<|edit|>rename OLD to NEW<|answer|>CODE with every whole word OLD turned into NEW<|endoftext|>
    quote   FUNCTIONS<|quote|>NAME<|answer|>the function of that name<|endoftext|>

Knows no tensors and no tokenizer: sizes are steered by a `count_tokens` that the caller passes. Everything is
determined by the corpus and the numpy Generator.
"""

from __future__ import annotations

import ast
import hashlib
import re
import sysconfig
import textwrap
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

END, EDIT, QUOTE, ANSWER = "<|endoftext|>", "<|edit|>", "<|quote|>", "<|answer|>"
BETWEEN_BLOCKS = "\n\n\n"
HELD_OUT_SHARE = 0.05

# Python 3.11's hard keywords, frozen: the vocabulary depends on them and must not depend on the interpreter.
KEYWORDS = (
    "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class", "continue", "def", "del",
    "elif", "else", "except", "finally", "for", "from", "global", "if", "import", "in", "is", "lambda", "nonlocal",
    "not", "or", "pass", "raise", "return", "try", "while", "with", "yield",
)  # fmt: skip
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WORD = re.compile(r"\w+")

CountTokens = Callable[[str], int]


@dataclass(frozen=True)
class Block:
    """One function, dedented, without decorators, from `def` to its last character."""

    name: str
    text: str


@dataclass(frozen=True)
class SourceFile:
    """A source file of the corpus; `path` is relative to the library's root, with forward slashes."""

    path: str
    text: str

    @property
    def is_held_out(self) -> bool:
        digest = hashlib.sha256(self.path.encode()).digest()
        return int.from_bytes(digest[:8], "big") < HELD_OUT_SHARE * 2**64

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The file's functions and methods in order; one nested in another belongs to the outer one."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                tree = ast.parse(self.text)
            except (SyntaxError, ValueError):  # the library keeps a few files that are wrong on purpose
                return ()
        lines = self.text.splitlines()
        found = (_block(node, lines) for node in _outer_functions(tree))
        # Two blank lines end a block in a prompt, so a block that holds them has no visible end.
        return tuple(b for b in found if len(b.text) >= 40 and BETWEEN_BLOCKS not in b.text)


def _outer_functions(node: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            functions.append(child)
        else:
            functions.extend(_outer_functions(child))
    return functions


def _block(node: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]) -> Block:
    body = [line.rstrip() for line in lines[node.lineno - 1 : node.end_lineno]]
    return Block(node.name, textwrap.dedent("\n".join(body)).strip())


@dataclass(frozen=True)
class Corpus:
    """The source files, in the order of their paths, split into those for training and those never trained on."""

    files: tuple[SourceFile, ...]

    @classmethod
    def from_stdlib(cls) -> Corpus:
        """The running Python's library. Raises FileNotFoundError where its source is not installed."""
        root = Path(sysconfig.get_path("stdlib"))
        paths = sorted(p for p in root.rglob("*.py") if not {"site-packages", "dist-packages"} & set(p.parts))
        files = [SourceFile(p.relative_to(root).as_posix(), text) for p in paths if (text := _read(p))]
        if len(files) < 100:
            raise FileNotFoundError(
                f"{root}: {len(files)} source files, expected hundreds; this Python has no library source, use another"
            )
        return cls(tuple(files))

    @cached_property
    def training(self) -> tuple[SourceFile, ...]:
        return tuple(f for f in self.files if not f.is_held_out)

    @cached_property
    def held_out(self) -> tuple[SourceFile, ...]:
        """Unseen files worth a task. The library's own tests are left out of these: not every Python ships them."""
        files = (f for f in self.files if f.is_held_out and not f.path.startswith("test/"))
        return tuple(f for f in files if len(f.blocks) >= 3)

    @cached_property
    def _held_out_blocks(self) -> tuple[tuple[int, int], ...]:
        return tuple((i, j) for i, f in enumerate(self.held_out) for j in range(len(f.blocks)))


def _read(path: Path) -> str:
    """The text of a file worth learning from: UTF-8, not a generated table; otherwise nothing."""
    data = path.read_bytes()
    if not 200 <= len(data) <= 400_000:
        return ""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return ""
    return text.replace("\r\n", "\n").replace("\t", "    ").replace("\f", "")


@dataclass(frozen=True)
class Task:
    """`prompt` ends in <|answer|>; `answer` is what should follow, before <|endoftext|>."""

    kind: str
    prompt: str
    answer: str


def rename(code: str, old: str, new: str) -> str:
    """`code` with every whole word `old` turned into `new`, in comments and strings too."""
    return re.sub(rf"(?<!\w){re.escape(old)}(?!\w)", lambda _: new, code)


def make_edit(corpus: Corpus, rng: np.random.Generator, code_tokens: int, count_tokens: CountTokens) -> Task:
    """A rename over about `code_tokens` tokens of unseen code: the prompt is that long, and the answer too."""
    blocks = _neighbours(corpus, rng, code_tokens, count_tokens)
    code = BETWEEN_BLOCKS.join(b.text for b in blocks)
    words = _WORD.findall(code)
    counts = {w: words.count(w) for w in sorted(set(words)) if IDENTIFIER.fullmatch(w) and w not in (*KEYWORDS, "self")}
    often = [w for w, n in counts.items() if n >= 3] or list(counts)
    old = str(rng.choice(often))
    new = _new_name(corpus, rng, set(words))
    return Task("edit", f"{code}{EDIT}rename {old} to {new}{ANSWER}", rename(code, old, new))


def make_quote(
    corpus: Corpus,
    rng: np.random.Generator,
    prompt_tokens: int,
    count_tokens: CountTokens,
    answer_tokens: tuple[int, int] = (20, 300),
) -> Task:
    """One of several unseen functions, `prompt_tokens` in all,
    to be quoted by its name; the answer's size is bounded.
    """
    for _ in range(200):
        blocks = _neighbours(corpus, rng, prompt_tokens, count_tokens)
        names = [b.name for b in blocks]
        low, high = answer_tokens
        fit = [b for b in blocks if names.count(b.name) == 1 and low <= count_tokens(b.text) <= high]
        if len(blocks) >= 2 and fit:
            target = fit[int(rng.integers(len(fit)))]
            code = BETWEEN_BLOCKS.join(b.text for b in blocks)
            return Task("quote", f"{code}{QUOTE}{target.name}{ANSWER}", target.text)
    raise ValueError(
        f"make_quote: no functions of {answer_tokens} tokens in a prompt of {prompt_tokens}; widen answer_tokens"
    )


def code_text(corpus: Corpus, rng: np.random.Generator, n_chars: int) -> str:
    """`n_chars` characters of unseen source from the start of a line on, several files in a row where one is short."""
    text = ""
    while len(text) < n_chars:
        source = corpus.held_out[int(rng.integers(len(corpus.held_out)))].text
        lines = [m.start() for m in re.finditer(r"(?m)^(?=\S)", source[: len(source) // 2])] or [0]
        text += source[lines[int(rng.integers(len(lines)))] :] + "\n\n"
    return text[:n_chars]


def _neighbours(corpus: Corpus, rng: np.random.Generator, n_tokens: int, count_tokens: CountTokens) -> list[Block]:
    """Consecutive unseen functions whose text is as near under `n_tokens` as whole functions allow (at least 60 %)."""
    best: list[Block] = []
    best_size = 0
    for _ in range(64):
        file_index, first = corpus._held_out_blocks[int(rng.integers(len(corpus._held_out_blocks)))]
        taken: list[Block] = []
        size = 0
        for block in corpus.held_out[file_index].blocks[first:]:
            more = count_tokens(block.text) + 1
            if size + more > n_tokens:
                break
            taken.append(block)
            size += more
        if size > best_size:
            best, best_size = taken, size
        if best_size >= 0.85 * n_tokens:
            break
    if best_size < 0.6 * n_tokens:
        raise ValueError(
            f"{n_tokens} tokens of whole functions asked for, the held-out files gave {best_size}; ask for less"
        )
    return best


def _new_name(corpus: Corpus, rng: np.random.Generator, taken: set[str]) -> str:
    """A name from elsewhere in the unseen files that the code does not hold yet."""
    while True:
        file = corpus.held_out[int(rng.integers(len(corpus.held_out)))]
        names = [w for w in IDENTIFIER.findall(file.text[:20_000]) if len(w) > 2 and w not in KEYWORDS]
        if names and (name := names[int(rng.integers(len(names)))]) not in taken:
            return name
