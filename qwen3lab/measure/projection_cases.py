"""Kernel grids of what surrounds attention: the projections of a decode step, and qkv's norm and rotation.

`ours`: options of our kernel by the name of the arm, so that one case can try several cuts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F

from qwen3lab.measure.kernel_grid import PLAIN, TORCH, Case, Options, dependent_too, relative_error
from qwen3lab.measure.kernel_timing import copies
from qwen3lab.model.rope import RotaryEmbedding
from qwen3lab.model_config import ModelConfig
from qwen3lab_kernels import linear_residual, lm_head_argmax, norm_gate_up_silu, norm_linear, rms_norm_rope
from qwen3lab_kernels.cost import Cost

EPS = 1e-6
LINEARS = ("qkv", "o", "gate_up", "down", "lm_head")


@lru_cache(maxsize=1)
def _compiled_chain() -> Callable[..., Any]:
    return torch.compile(rms_norm_rope.unfused, dynamic=False)


class Projection:
    """Sets of qkv [sets, T, (Hq + 2·Hkv)·D] and what turns it: norm weights, the table of angles, positions."""

    def __init__(
        self, shape: ModelConfig, tokens: int, positions: int, device: torch.device, dtype: torch.dtype,
        sets: int | None = None,
    ):  # fmt: skip
        d = shape.head_dim
        width = (shape.num_heads + 2 * shape.num_kv_heads) * d
        self.sets = sets or copies(2 * tokens * width * dtype.itemsize, device)
        self.qkv = torch.randn(self.sets, tokens, width, device=device).to(dtype)
        self.q_weight, self.k_weight = ((1 + 0.1 * torch.randn(d, device=device)).to(dtype) for _ in "qk")
        angles = RotaryEmbedding(shape.rope, d, positions, device)
        self.cos_sin = torch.cat((angles.cos, angles.sin), -1)
        self.positions = torch.randint(0, positions, (tokens,), dtype=torch.int32, device=device)

    def arguments(self, i: int) -> tuple[Any, ...]:
        return self.qkv[i], self.q_weight, self.k_weight, EPS, self.positions, self.cos_sin


def rope(
    shape: ModelConfig, tokens: int, device: torch.device, dtype: torch.dtype = torch.bfloat16, ours: Options = PLAIN
) -> Case:
    """rms_norm_rope without a store, against the unfused chain of torch, and that chain by torch.compile."""
    made = Projection(shape, tokens, 32768, device, dtype)
    hkv = shape.num_kv_heads
    each = range(made.sets)
    arms: dict[str, list[Any]] = {
        name: [lambda i=i, o=o: rms_norm_rope.launch(*made.arguments(i), hkv, **o) for i in each]
        for name, o in ours.items()
    }
    arms[TORCH] = [lambda i=i: rms_norm_rope.unfused(*made.arguments(i), hkv) for i in each]
    if device.type == "cuda":
        arms["torch.compile"] = [lambda i=i: _compiled_chain()(*made.arguments(i), hkv) for i in each]
    qkv, *rest = made.arguments(0)
    exact = rms_norm_rope.reference(qkv.double(), *rest, hkv)
    return Case(
        "rope", "rms_norm_rope", {"tokens": tokens},
        rms_norm_rope.cost(tokens, shape.num_heads, hkv, shape.head_dim, dtype.itemsize), "copy", dtype, device, arms,
        lambda result: relative_error(*zip(result, exact, strict=True)),
    )  # fmt: skip


def linear(
    shape: ModelConfig, name: str, rows: int, device: torch.device, dtype: torch.dtype = torch.bfloat16,
    ours: Options | None = None,
) -> Case:  # fmt: skip
    """A decode step's projection `name`, one of LINEARS, with what our kernel does beside it, against torch's chain.

    Torch's products are cuBLAS's on a card. lm_head's result, a token, is held against fp64 by the logit it chose.
    """
    if name not in LINEARS:
        raise ValueError(f"linear {name!r}; known: {', '.join(LINEARS)}")
    options = dependent_too(device) if ours is None else ours
    hidden, size, vocab = shape.hidden_size, shape.intermediate_size, shape.vocab_size
    heads, kv_heads = (count * shape.head_dim for count in (shape.num_heads, shape.num_kv_heads))
    n, k = {
        "qkv": (heads + 2 * kv_heads, hidden),
        "o": (hidden, heads),
        "gate_up": (2 * size, hidden),
        "down": (hidden, size),
        "lm_head": (vocab, hidden),
    }[name]
    sets = copies(n * k * dtype.itemsize, device)
    w = torch.empty(sets, n, k, device=device, dtype=dtype).normal_(std=k**-0.5)
    x = torch.randn(rows, k, device=device).to(dtype)
    wide = x.double()
    norm = (1 + 0.1 * torch.randn(k, device=device)).to(dtype)

    def case(mine: Callable[..., Any], theirs: Callable[[int], Any], cost: Cost, error: Callable[[Any], float]) -> Case:
        arms: dict[str, list[Any]] = {
            arm: [lambda i=i, o=o: mine(i, **o) for i in range(sets)] for arm, o in options.items()
        }
        arms[TORCH] = [lambda i=i: theirs(i) for i in range(sets)]
        return Case("linear", name, {"rows": rows, "n": n, "k": k}, cost, "read", dtype, device, arms, error)

    def close_to(exact: torch.Tensor) -> Callable[[torch.Tensor], float]:
        return lambda result: relative_error((result, exact))

    def normed() -> torch.Tensor:
        return F.rms_norm(x, (k,), norm, EPS)

    if name == "qkv":
        return case(
            lambda i, **o: norm_linear.norm_linear(x, norm, w[i], EPS, **o),
            lambda i: F.linear(normed(), w[i]),
            norm_linear.cost(rows, n, k, dtype.itemsize),
            close_to(norm_linear.reference(wide, norm, w[0], EPS)),
        )
    if name == "gate_up":

        def gated(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
            return F.silu(gate) * up

        return case(
            lambda i, **o: norm_gate_up_silu.norm_gate_up_silu(x, norm, w[i], EPS, **o),
            lambda i: gated(*F.linear(normed(), w[i]).chunk(2, -1)),
            norm_gate_up_silu.cost(rows, size, k, dtype.itemsize),
            close_to(norm_gate_up_silu.reference(wide, norm, w[0], EPS)),
        )
    if name == "lm_head":
        logits = norm_linear.reference(wide, norm, w[0], EPS)
        best = logits.amax(-1)
        return case(
            lambda i, **o: lm_head_argmax.lm_head_argmax(x, norm, w[i], EPS, **o),
            lambda i: F.linear(normed(), w[i]).argmax(-1),
            lm_head_argmax.cost(rows, vocab, k, dtype.itemsize),
            lambda ids: relative_error((logits.gather(1, ids[:, None])[:, 0], best)),
        )
    residual = torch.randn(rows, n, device=device).to(dtype)
    # Our kernel adds in place, so an arm's own copy is what its first call, the one that is checked, adds to.
    options = {arm: {**given, "residual": residual.clone()} for arm, given in options.items()}
    return case(
        lambda i, **o: linear_residual.linear_residual(x, w[i], **o),
        lambda i: torch.addmm(residual, x, w[i].t()),
        linear_residual.cost(rows, n, k, dtype.itemsize),
        close_to(linear_residual.reference(wide, w[0], residual)),
    )
