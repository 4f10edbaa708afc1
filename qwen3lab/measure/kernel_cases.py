"""What the kernel grids are made of: each operation at one size, by our kernel and by what else could do it there.

Lengths are the same in every row of a batch, pages are shuffled, values are random. `ours`: options of our kernel by
the name of the arm, so that one case can try several cuts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F

from qwen3lab.attention import flash_providers
from qwen3lab.attention.torch_ref import attend_row
from qwen3lab.measure.kernel_grid import Case, relative_error
from qwen3lab.measure.kernel_timing import copies
from qwen3lab.model_config import ModelConfig
from qwen3lab_kernels import paged_decode, paged_prefill, rms_norm_rope

OURS = "qwen3lab"
TORCH = "torch"
Options = Mapping[str, Mapping[str, Any]]
PLAIN: Options = {OURS: {}}


class Pages:
    """`sets` batches in one pool of shuffled pages: k, v [P, S, Hkv, D], tables [sets, B, N], lens [B]."""

    def __init__(
        self, shape: ModelConfig, batch: int, context: int, page_size: int, device: torch.device, dtype: torch.dtype
    ):
        a_page = 2 * page_size * shape.num_kv_heads * shape.head_dim * dtype.itemsize
        per_row = -(-context // page_size)
        sets = copies(batch * per_row * a_page, device, most=512)
        count = sets * batch * per_row
        self.k, self.v = (
            torch.empty(count, page_size, shape.num_kv_heads, shape.head_dim, device=device, dtype=dtype).normal_()
            for _ in "kv"
        )
        self.tables = torch.randperm(count, device=device).int().view(sets, batch, per_row)
        self.lens = torch.full((batch,), context, dtype=torch.int32, device=device)
        self.context = context

    def history(self, pages: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        """A batch's keys or values, gathered: [B, Hkv, n, D]."""
        return pages[table].flatten(1, 2)[:, : self.context].transpose(1, 2)

    def exact(self, q: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        """fp64 attention of one sequence's last t queries [t, Hq, D], a head at a time."""
        keys, values = (self.history(x, table[None])[0] for x in (self.k, self.v))
        group, t = q.shape[1] // keys.shape[0], q.shape[0]
        hidden = torch.ones(t, self.context, dtype=torch.bool, device=q.device).triu(self.context - t + 1)
        heads = []
        for h in range(q.shape[1]):
            scores = q[:, h].double() @ keys[h // group].double().T * q.shape[2] ** -0.5
            heads.append(scores.masked_fill_(hidden, -float("inf")).softmax(-1) @ values[h // group].double())
        return torch.stack(heads, 1)


def flash(page_size: int, device: torch.device) -> tuple[flash_providers.Provider | None, str]:
    """(provider, "") of FlashAttention over pages of this size, or (None, why there is none here)."""
    try:
        return flash_providers.first(device, page_size), ""
    except ImportError as error:
        return None, str(error)


def _fits(wanted_bytes: int, device: torch.device) -> str:
    """Why so many more bytes do not fit, or an empty string."""
    if device.type != "cuda" or wanted_bytes < 0.9 * torch.cuda.mem_get_info(device)[0]:
        return ""
    return f"{wanted_bytes / 2**30:.0f} GiB of gathered keys and values beside the pages do not fit"


def decode(
    shape: ModelConfig, batch: int, context: int, page_size: int, rows: int, device: torch.device,
    dtype: torch.dtype = torch.bfloat16, ours: Options = PLAIN,
) -> Case:  # fmt: skip
    """paged_decode: `rows` queries a sequence, against FlashAttention, and against torch with gathered pages."""
    pages = Pages(shape, batch, context, page_size, device, dtype)
    hq, hkv, d = shape.num_heads, shape.num_kv_heads, shape.head_dim
    q = torch.randn(len(pages.tables), batch, rows, hq, d, device=device).to(dtype)
    out = torch.empty_like(q)
    splits = paged_decode.choose_splits(batch, hkv, context, paged_decode.sm_count(device))
    shared = torch.empty(paged_decode.workspace_shape(batch, 128, rows, hq, d), device=device)

    def mine(i: int, options: Mapping[str, Any]) -> Callable[[], torch.Tensor]:
        given = {"num_splits": splits, "workspace": shared, **options}
        return lambda: paged_decode.paged_decode(
            q[i], pages.k, pages.v, pages.tables[i], pages.lens, max_len=context, out=out[i], **given
        )

    arms: dict[str, list[Any]] = {name: [mine(i, o) for i in range(len(q))] for name, o in ours.items()}
    missing = {}
    provider, why = flash(page_size, device)
    if provider is None:
        missing["FlashAttention"] = why
    else:
        bounds = torch.arange(0, batch * rows + 1, rows, dtype=torch.int32, device=device)
        arms[f"FlashAttention ({provider.name})"] = [
            lambda i=i: provider.attend(
                q[i].flatten(0, 1), pages.k, pages.v, bounds, pages.lens, pages.tables[i],
                max_query_len=rows, max_len=context, out=out[i].flatten(0, 1),
            ).view(out[i].shape)
            for i in range(len(q))
        ]  # fmt: skip
    if reason := _fits(2 * 2 * batch * context * hkv * d * dtype.itemsize, device):
        missing[TORCH] = reason
    else:
        seen = torch.ones(rows, context, dtype=torch.bool, device=device).tril(context - rows) if rows > 1 else None
        arms[TORCH] = [
            lambda i=i: F.scaled_dot_product_attention(
                q[i].transpose(1, 2), pages.history(pages.k, pages.tables[i]), pages.history(pages.v, pages.tables[i]),
                attn_mask=seen, enable_gqa=True,
            ).transpose(1, 2)
            for i in range(len(q))
        ]  # fmt: skip
    ends = {0, batch - 1}
    exact = {b: pages.exact(q[0, b], pages.tables[0, b]) for b in ends}
    return Case(
        "paged_decode", {"batch": batch, "context": context, "page_size": page_size, "rows": rows},
        paged_decode.cost([context] * batch, rows, hq, hkv, d, page_size, dtype.itemsize), "read", dtype, device, arms,
        lambda result: max(relative_error(result[b], exact[b]) for b in ends), missing,
    )  # fmt: skip


def prefill(
    shape: ModelConfig, tokens: int, context: int, page_size: int, device: torch.device,
    dtype: torch.dtype = torch.bfloat16, ours: Options = PLAIN,
) -> Case:  # fmt: skip
    """paged_prefill: the last `tokens` of a sequence of `context`, against FlashAttention, and torch."""
    pages = Pages(shape, 1, context, page_size, device, dtype)
    hq, hkv, d = shape.num_heads, shape.num_kv_heads, shape.head_dim
    q = torch.randn(tokens, hq, d, device=device).to(dtype)
    out = torch.empty_like(q)
    bounds = torch.tensor([0, tokens], dtype=torch.int32, device=device)
    table = pages.tables[0]
    arms: dict[str, list[Any]] = {
        name: [
            lambda o=o: paged_prefill.paged_prefill(
                q, pages.k, pages.v, bounds, pages.lens, table, max_query_len=tokens, out=out, **o
            )
        ]
        for name, o in ours.items()
    }
    provider, why = flash(page_size, device)
    if provider is not None:
        arms[f"FlashAttention ({provider.name})"] = [
            lambda: provider.attend(
                q, pages.k, pages.v, bounds, pages.lens, table, max_query_len=tokens, max_len=context, out=out
            )
        ]
    arms[TORCH] = [lambda: attend_row(q, pages.history(pages.k, table), pages.history(pages.v, table))]
    some = slice(max(0, tokens - 64), tokens)
    exact = pages.exact(q[some], table[0])
    return Case(
        "paged_prefill", {"tokens": tokens, "context": context, "page_size": page_size},
        paged_prefill.cost([tokens], [context], hq, hkv, d, page_size, dtype.itemsize), "product", dtype, device, arms,
        lambda result: relative_error(result[some], exact),
        {"FlashAttention": why} if provider is None else {},
    )  # fmt: skip


@lru_cache(maxsize=1)
def _compiled_chain() -> Callable[..., Any]:
    return torch.compile(rms_norm_rope.unfused, dynamic=False)


class Projection:
    """Sets of qkv [sets, T, (Hq + 2·Hkv)·D] and what turns it: norm weights, the table of angles, positions."""

    def __init__(self, shape: ModelConfig, tokens: int, positions: int, device: torch.device, dtype: torch.dtype):
        d = shape.head_dim
        width = (shape.num_heads + 2 * shape.num_kv_heads) * d
        self.sets = copies(2 * tokens * width * dtype.itemsize, device)
        self.qkv = torch.randn(self.sets, tokens, width, device=device).to(dtype)
        self.q_weight, self.k_weight = ((1 + 0.1 * torch.randn(d, device=device)).to(dtype) for _ in "qk")
        angles = torch.arange(positions, device=device)[:, None] / 1e6 ** (torch.arange(0, d, 2, device=device) / d)
        self.cos_sin = torch.cat((angles.cos(), angles.sin()), -1).float()
        self.positions = torch.randint(0, positions, (tokens,), dtype=torch.int32, device=device)

    def arguments(self, i: int) -> tuple[Any, ...]:
        return self.qkv[i], self.q_weight, self.k_weight, 1e-6, self.positions, self.cos_sin

    def exact_arguments(self) -> tuple[Any, ...]:
        floats = (self.qkv[0], self.q_weight, self.k_weight)
        return *(x.double() for x in floats), 1e-6, self.positions, self.cos_sin


def rope(
    shape: ModelConfig, tokens: int, device: torch.device, dtype: torch.dtype = torch.bfloat16, ours: Options = PLAIN
) -> Case:
    """rms_norm_rope without a store, against the unfused chain of torch, and that chain by torch.compile."""
    made = Projection(shape, tokens, 32768, device, dtype)
    hkv = shape.num_kv_heads
    arms: dict[str, list[Any]] = {
        name: [lambda i=i, o=o: rms_norm_rope.launch(*made.arguments(i), hkv, **o) for i in range(made.sets)]
        for name, o in ours.items()
    }
    arms[TORCH] = [lambda i=i: rms_norm_rope.unfused(*made.arguments(i), hkv) for i in range(made.sets)]
    if device.type == "cuda":
        arms["torch.compile"] = [lambda i=i: _compiled_chain()(*made.arguments(i), hkv) for i in range(made.sets)]
    exact = rms_norm_rope.reference(*made.exact_arguments(), hkv)
    return Case(
        "rms_norm_rope", {"tokens": tokens},
        rms_norm_rope.cost(tokens, shape.num_heads, hkv, shape.head_dim, dtype.itemsize), "copy", dtype, device, arms,
        lambda result: max(relative_error(mine, truth) for mine, truth in zip(result, exact, strict=True)),
    )  # fmt: skip
