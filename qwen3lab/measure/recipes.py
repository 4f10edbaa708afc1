"""How the workloads were made: seeded text from the small model's unseen files, and the sizes of each profile.

`write_all()` makes every file of data/workloads anew, byte for byte the same under the same Python version (its
standard library is the corpus) and the same tokenizer. Measuring never calls this: it reads (`workloads.load`).
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qwen3lab.measure.workloads import IDS, PROFILES, ROOT, SCHEMA, WorkloadRequest, file_sha256, identity, serialise
from qwen3lab.nano import tasks

SEED = 20_261_201
NANO = ROOT.parent / "nano"
CHARS_PER_TOKEN = 6
"""Characters of text kept per token wanted, so that a tokenizer with longer tokens can still be cut to the length."""
DISTINCT_IDS = 16
"""No two prompts of a workload begin with the same so many ids: a prefix cache must find nothing that is not meant."""

Encode = Callable[[str], list[int]]
Document = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """One workload in one profile, in tokens; a pair is a range drawn from, both ends included.

    inject   a last request that arrives later: (prompt tokens, output tokens, engine step), or None
    period   characters after which the text repeats (0: it does not)
    """

    requests: int
    prompt: tuple[int, int]
    output: tuple[int, int]
    inject: tuple[int, int, int] | None = None
    period: int = 0


SIZES: dict[str, dict[str, Sizes]] = {
    "full": {
        "w1_single_decode": Sizes(1, (128, 128), (256, 256)),
        "w2_long_prefill": Sizes(1, (8192, 8192), (32, 32)),
        "w3_batch_throughput": Sizes(16, (128, 1024), (256, 256)),
        "w4_repetitive_batch": Sizes(8, (512, 512), (256, 256), period=360),
        "w5_code_edit": Sizes(4, (1000, 1000), (1, 500)),
        "w6_decode_stall": Sizes(8, (256, 256), (512, 512), inject=(6500, 64, 64)),
        "w7_quote_extract": Sizes(4, (1500, 1500), (200, 400)),
        "w8_saturation": Sizes(256, (100, 1024), (100, 1024)),
    },
    "smoke": {
        "w1_single_decode": Sizes(1, (32, 32), (48, 48)),
        "w2_long_prefill": Sizes(1, (384, 384), (8, 8)),
        "w3_batch_throughput": Sizes(16, (16, 48), (20, 20)),
        "w4_repetitive_batch": Sizes(8, (48, 48), (24, 24), period=60),
        "w5_code_edit": Sizes(4, (80, 80), (1, 40)),
        "w6_decode_stall": Sizes(8, (24, 24), (32, 32), inject=(192, 8, 12)),
        "w7_quote_extract": Sizes(4, (120, 120), (20, 40)),
        "w8_saturation": Sizes(16, (8, 48), (8, 40)),
    },
}


def write_all(model_dir: Path = NANO, root: Path = ROOT, profiles: Sequence[str] = PROFILES) -> list[Path]:
    """Write every workload of `profiles` for the tokenizer of `model_dir`; the paths written."""
    from qwen3lab.model.tokenizer import Tokenizer

    encode = Tokenizer.from_dir(model_dir).encode
    tokenizer_sha256 = file_sha256(model_dir / "tokenizer.json")
    corpus = tasks.Corpus.from_stdlib()
    written = []
    for profile in profiles:
        (root / profile).mkdir(parents=True, exist_ok=True)
        for id in IDS:
            path = root / profile / f"{id}.json"
            partial = path.with_suffix(".partial")
            partial.write_bytes(serialise(make(id, profile, corpus, encode, tokenizer_sha256)))
            os.replace(partial, path)
            written.append(path)
    return written


def make(id: str, profile: str, corpus: tasks.Corpus, encode: Encode, tokenizer_sha256: str) -> Document:
    """One workload as the document that is stored."""
    rng = np.random.default_rng([SEED, PROFILES.index(profile), IDS.index(id)])
    draw = {"w5_code_edit": _edit, "w7_quote_extract": _quote}.get(id, _text)
    sizes = SIZES[profile][id]
    requests: list[Document] = []
    seen: set[tuple[int, ...]] = set()
    while len(requests) < sizes.requests:
        request = draw(sizes, corpus, rng, encode)
        start = tuple(request["prompt_token_ids"][:DISTINCT_IDS])
        if start not in seen:
            seen.add(start)
            requests.append(request)
    if sizes.inject is not None:
        prompt, output, step = sizes.inject
        late = _text(Sizes(1, (prompt, prompt), (output, output)), corpus, rng, encode)
        requests.append(late | {"inject_at_step": step})
    return {
        "schema": SCHEMA,
        "id": id,
        "profile": profile,
        "seed": SEED,
        "corpus": "unseen files of the Python standard library (PSF licence)",
        "python": platform.python_version(),
        "tokenizer_sha256": tokenizer_sha256,
        "requests": requests,
        "sha256": identity(
            [WorkloadRequest(tuple(r["prompt_token_ids"]), r["max_tokens"], r["inject_at_step"]) for r in requests]
        ),
    }


def _text(sizes: Sizes, corpus: tasks.Corpus, rng: np.random.Generator, encode: Encode) -> Document:
    """Plain source text, cut to the exact number of tokens."""
    prompt, output = _draw(rng, sizes.prompt), _draw(rng, sizes.output)
    while True:
        text = tasks.code_text(corpus, rng, sizes.period or prompt * CHARS_PER_TOKEN)
        if sizes.period:
            text = text.rstrip() + "\n"
            text *= -(-prompt * CHARS_PER_TOKEN // len(text))
        ids = encode(text)[:prompt]
        if len(ids) == prompt:
            return _request(text, None, ids, output)


def _edit(sizes: Sizes, corpus: tasks.Corpus, rng: np.random.Generator, encode: Encode) -> Document:
    """A rename; the output is the edited code as far as the size goes."""
    task = tasks.make_edit(corpus, rng, _draw(rng, sizes.prompt), lambda text: len(encode(text)))
    code, wish = task.prompt.removesuffix(tasks.ANSWER).split(tasks.EDIT)
    message = f"{_fenced(code)}In this code, {wish}. Answer with the whole changed code and nothing else."
    return _request(task.prompt, message, encode(task.prompt), min(sizes.output[1], len(encode(task.answer))))


def _quote(sizes: Sizes, corpus: tasks.Corpus, rng: np.random.Generator, encode: Encode) -> Document:
    """A function to be quoted; the output is as long as the function."""
    task = tasks.make_quote(corpus, rng, _draw(rng, sizes.prompt), lambda text: len(encode(text)), sizes.output)
    code, name = task.prompt.removesuffix(tasks.ANSWER).split(tasks.QUOTE)
    message = f"{_fenced(code)}Quote the function {name} from this code, word for word, and nothing else."
    return _request(task.prompt, message, encode(task.prompt), len(encode(task.answer)))


def _request(text: str, message: str | None, ids: list[int], output: int) -> Document:
    """`message` is the same task in words, for a model that does not know the small model's markers."""
    return {
        "text": text,
        "message": message,
        "prompt_token_ids": ids,
        "max_tokens": output,
        "inject_at_step": 0,
    }


def _fenced(code: str) -> str:
    return f"```python\n{code}\n```\n\n"


def _draw(rng: np.random.Generator, bounds: tuple[int, int]) -> int:
    return int(rng.integers(bounds[0], bounds[1] + 1))
