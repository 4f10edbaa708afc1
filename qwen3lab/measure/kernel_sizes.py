"""Which sizes of which operations a kernel notebook measures, profile by profile: kinds of cases, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import torch

from qwen3lab.measure import attention_cases, projection_cases
from qwen3lab.measure.kernel_grid import Case
from qwen3lab.measure.projection_cases import LINEARS
from qwen3lab.model_config import ModelConfig
from qwen3lab.nano.shapes import SHAPES

Sizes = Literal["smoke", "full"]

# What each kind is made of: positional arguments after the shape. "smoke" is what the interpreter does in seconds;
# "full" is for a card.
_CONTEXTS = (128, 1024, 4096, 16384, 65536)
_DECODE = tuple(product((1, 8, 16, 64, 256), _CONTEXTS, (16, 256)))
_KINDS: Mapping[str, tuple[Callable[..., Case], Mapping[Sizes, Iterable[tuple[Any, ...]]]]] = MappingProxyType(
    {
        "decode": (
            attention_cases.decode,
            {"smoke": [(1, 17, 16, 1), (2, 130, 16, 1), (1, 300, 256, 1)], "full": [(*size, 1) for size in _DECODE]},
        ),
        "verify": (
            attention_cases.decode,
            {"smoke": [(1, 17, 16, 5), (2, 130, 16, 5)], "full": [(*size, 5) for size in _DECODE]},
        ),
        "prefill": (
            attention_cases.prefill,
            {"smoke": [(40, 40, 16)], "full": [(n, n, page) for n, page in product((512, 2048, 8192), (16, 256))]},
        ),
        "chunk": (
            attention_cases.prefill,
            {"smoke": [(17, 100, 16)], "full": [(512, 4096, 16), (512, 16384, 16), (2048, 16384, 16)]},
        ),
        "step": (
            attention_cases.step,
            {
                "smoke": [(1, 40, 16), (2, 130, 16)],
                "full": list(product((1, 8, 64), (128, 256, 1024, 4096), (16,))),
            },
        ),
        "rope": (projection_cases.rope, {"smoke": [(1,), (8,)], "full": [(1,), (8,), (64,), (8192,)]}),
        "linear": (
            projection_cases.linear,
            {"smoke": [("qkv", 1), ("o", 1), ("o", 4)], "full": list(product(LINEARS, (1, 4, 8, 16)))},
        ),
    }
)
KINDS = tuple(_KINDS)


def shape(model: str) -> ModelConfig:
    """Heads and widths of a named shape (nano.shapes.SHAPES) or of a checkpoint's folder; ValueError for neither."""
    if model in SHAPES:
        return SHAPES[model]
    if not Path(model).is_dir():
        raise ValueError(f"model {model!r} is neither a checkpoint's folder nor a shape; shapes: {', '.join(SHAPES)}")
    return ModelConfig.from_dir(model)


def count(kind: str, sizes: Sizes) -> int:
    """How many cases that kind has."""
    return len(list(_KINDS[kind][1][sizes]))


def cases(
    kinds: Iterable[str], sizes: Sizes, shape: ModelConfig, device: torch.device, dtype: torch.dtype
) -> Iterator[Case]:
    """Every case of `kinds`, each made when its turn comes. ValueError: an unknown kind, or "full" without a card."""
    chosen = list(kinds)
    for kind in chosen:
        if kind not in _KINDS:
            raise ValueError(f"kind {kind!r}; known: {', '.join(KINDS)}")
    if sizes == "full" and device.type != "cuda":
        raise ValueError(f"full grids need a CUDA device, and this is {device}; take profile 'smoke'")
    return (_KINDS[kind][0](shape, *size, device, dtype) for kind in chosen for size in _KINDS[kind][1][sizes])
