"""Kernel grids of attention over pages: decode and verify, prefill and chunk, and a decode step's whole attention.

Lengths are the same in every row of a batch, pages are shuffled, values are random. `ours`: options of our kernel by
the name of the arm, so that one case can try several cuts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from qwen3lab.attention import flash_providers
from qwen3lab.attention.torch_ref import attend_row
from qwen3lab.measure.kernel_grid import OURS, PLAIN, TORCH, Case, Options, dependent_too, relative_error
from qwen3lab.measure.kernel_timing import Call, copies
from qwen3lab.measure.projection_cases import Projection
from qwen3lab.model_config import ModelConfig
from qwen3lab_kernels import decode_attention, paged_decode, paged_prefill, rms_norm_rope

FLASH = "FlashAttention"
Arms = dict[str, list[Any]]


class Pages:
    """`sets` batches in one pool of shuffled pages: k, v [P, S, Hkv, D], tables [sets, B, N], lens [B]."""

    def __init__(
        self, shape: ModelConfig, batch: int, context: int, page_size: int, device: torch.device, dtype: torch.dtype
    ):
        a_page = 2 * page_size * shape.num_kv_heads * shape.head_dim * dtype.itemsize
        per_row = -(-context // page_size)
        # More sets than elsewhere: short sequences are small, and a model's layers hold more than the cache does.
        sets = copies(batch * per_row * a_page, device, most=512)
        count = sets * batch * per_row
        self.k, self.v = (
            torch.empty(count, page_size, shape.num_kv_heads, shape.head_dim, device=device, dtype=dtype).normal_()
            for _ in "kv"
        )
        self.tables = torch.randperm(count, device=device).int().view(sets, batch, per_row)
        self.lens = torch.full((batch,), context, dtype=torch.int32, device=device)
        self.context = context
        self.heads = shape.num_heads, shape.num_kv_heads, shape.head_dim

    def history(self, pages: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        """A batch's keys or values, gathered: [B, Hkv, n, D]."""
        return pages[table].flatten(1, 2)[:, : self.context].transpose(1, 2)

    def last_slots(self) -> torch.Tensor:
        """Where each row's newest token lies, int32 [sets, B]."""
        last, page_size = self.context - 1, self.k.shape[1]
        return self.tables[:, :, last // page_size] * page_size + last % page_size


def flash(
    pages: Pages, bounds: torch.Tensor, max_query_len: int, calls: Callable[[Callable[..., torch.Tensor]], list[Any]]
) -> tuple[Arms, dict[str, str]]:
    """FlashAttention's arms, and why there is none here. `calls` makes an arm's calls of an `attend`.

    Where the provider can plan a step ahead, as vLLM has it do once for all layers, that is an arm of its own.
    """
    page_size = pages.k.shape[1]
    try:
        provider = flash_providers.first(pages.k.device, page_size)
    except ImportError as error:
        return {}, {FLASH: str(error)}
    lengths: dict[str, Any] = {"max_query_len": max_query_len, "max_len": pages.context}
    name = f"{FLASH} ({provider.name.split('.')[0]})"
    arms = {name: calls(partial(provider.attend, **lengths))}
    if provider.plan is not None:
        plan = provider.plan(pages.heads, pages.k.dtype, page_size, bounds, pages.lens, **lengths)
        arms[f"{name}, planned"] = calls(partial(provider.attend, **lengths, plan=plan))
    return arms, {}


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
    hq, hkv, d = pages.heads
    q = torch.randn(len(pages.tables), batch, rows, hq, d, device=device).to(dtype)
    out = torch.empty_like(q)
    each = range(len(q))
    splits = paged_decode.choose_splits(batch, hkv, context, paged_decode.sm_count(device))
    shared = torch.empty(paged_decode.workspace_shape(batch, paged_decode.MAX_SPLITS, rows, hq, d), device=device)

    def mine(i: int, options: Any) -> Call:
        given = {"num_splits": splits, "workspace": shared, **options}
        return lambda: paged_decode.paged_decode(
            q[i], pages.k, pages.v, pages.tables[i], pages.lens, max_len=context, out=out[i], **given
        )

    arms: Arms = {name: [mine(i, options) for i in each] for name, options in ours.items()}
    bounds = torch.arange(0, batch * rows + 1, rows, dtype=torch.int32, device=device)

    def theirs(attend: Callable[..., torch.Tensor]) -> list[Any]:
        flat, into = q.flatten(1, 2), out.flatten(1, 2)
        return [
            lambda i=i: attend(
                flat[i], pages.k, pages.v, bounds, pages.lens, pages.tables[i], out=into[i]
            ).view(out[i].shape)
            for i in each
        ]  # fmt: skip

    flash_arms, missing = flash(pages, bounds, rows, theirs)
    arms |= flash_arms
    if reason := _fits(2 * 2 * batch * context * hkv * d * dtype.itemsize, device):
        missing[TORCH] = reason
    else:
        seen = torch.ones(rows, context, dtype=torch.bool, device=device).tril(context - rows) if rows > 1 else None
        arms[TORCH] = [
            lambda i=i: F.scaled_dot_product_attention(
                q[i].transpose(1, 2), pages.history(pages.k, pages.tables[i]), pages.history(pages.v, pages.tables[i]),
                attn_mask=seen, enable_gqa=True,
            ).transpose(1, 2)
            for i in each
        ]  # fmt: skip
    ends = [0, batch - 1]
    exact = paged_decode.reference(q[0, ends].double(), pages.k, pages.v, pages.tables[0, ends], pages.lens[ends])
    return Case(
        "decode" if rows == 1 else "verify", "paged_decode",
        {"batch": batch, "context": context, "page_size": page_size, "rows": rows},
        paged_decode.cost([context] * batch, rows, hq, hkv, d, page_size, dtype.itemsize), "read", dtype, device, arms,
        lambda result: relative_error((result[ends], exact)), missing,
    )  # fmt: skip


def prefill(
    shape: ModelConfig, tokens: int, context: int, page_size: int, device: torch.device,
    dtype: torch.dtype = torch.bfloat16, ours: Options = PLAIN,
) -> Case:  # fmt: skip
    """paged_prefill: the last `tokens` of a sequence of `context`, against FlashAttention, and torch."""
    pages = Pages(shape, 1, context, page_size, device, dtype)
    hq, hkv, d = pages.heads
    q = torch.randn(tokens, hq, d, device=device).to(dtype)
    out = torch.empty_like(q)
    bounds = torch.tensor([0, tokens], dtype=torch.int32, device=device)
    table = pages.tables[0]
    given = q, pages.k, pages.v, bounds, pages.lens, table
    arms: Arms = {
        name: [lambda o=o: paged_prefill.paged_prefill(*given, max_query_len=tokens, out=out, **o)]
        for name, o in ours.items()
    }
    flash_arms, missing = flash(pages, bounds, tokens, lambda attend: [lambda: attend(*given, out=out)])
    arms |= flash_arms
    arms[TORCH] = [lambda: attend_row(q, pages.history(pages.k, table), pages.history(pages.v, table))]
    checked = min(tokens, 64)  # the last ones, which see the most
    exact = paged_prefill.reference(
        q[-checked:].double(), pages.k, pages.v, torch.tensor([0, checked]), pages.lens, table
    )
    return Case(
        "prefill" if tokens == context else "chunk", "paged_prefill",
        {"tokens": tokens, "context": context, "page_size": page_size},
        paged_prefill.cost([tokens], [context], hq, hkv, d, page_size, dtype.itemsize), "product", dtype, device, arms,
        lambda result: relative_error((result[-checked:], exact)), missing,
    )  # fmt: skip


def step(
    shape: ModelConfig, batch: int, context: int, page_size: int, device: torch.device,
    dtype: torch.dtype = torch.bfloat16, ours: Options | None = None,
) -> Case:  # fmt: skip
    """decode_attention: from a step's qkv to its heads' results, against the chain of two kernels, and FlashAttention.

    FlashAttention's arm is rms_norm_rope with its store before it, which is more than vLLM fuses.
    """
    pages = Pages(shape, batch, context, page_size, device, dtype)
    hq, hkv, d = pages.heads
    made = Projection(shape, batch, context, device, dtype, sets=len(pages.tables))
    made.positions.fill_(context - 1)
    each, slots = range(made.sets), pages.last_slots()
    out = torch.empty(made.sets, batch, hq, d, device=device, dtype=dtype)
    most = paged_decode.workspace_shape(batch, paged_decode.MAX_SPLITS, 1, hq, d)
    shared = {"workspace": torch.empty(most, device=device), "max_len": context}
    count = decode_attention.counter(batch, hkv, device)

    def arguments(i: int) -> tuple[Any, ...]:
        return *made.arguments(i), pages.k, pages.v, slots[i], pages.tables[i], pages.lens

    def mine(i: int, options: Any) -> Call:
        return lambda: decode_attention.decode_attention(
            *arguments(i), **{**shared, "count": count, "out": out[i], **options}
        )

    def turned(i: int) -> Any:
        q, _ = rms_norm_rope.launch(*made.arguments(i), hkv, (pages.k, pages.v, slots[i]))
        return q

    def chained(i: int) -> Call:
        return lambda: paged_decode.paged_decode(
            turned(i)[:, None], pages.k, pages.v, pages.tables[i], pages.lens, out=out[i][:, None], **shared
        )[:, 0]

    ours = dependent_too(device) if ours is None else ours
    arms: Arms = {name: [mine(i, options) for i in each] for name, options in ours.items()}
    arms[f"{OURS} in two"] = [chained(i) for i in each]
    bounds = torch.arange(batch + 1, dtype=torch.int32, device=device)
    flash_arms, missing = flash(
        pages, bounds, 1, lambda attend: [
            lambda i=i: attend(turned(i), pages.k, pages.v, bounds, pages.lens, pages.tables[i], out=out[i])
            for i in each
        ],
    )  # fmt: skip
    arms |= {f"{name}, after rms_norm_rope": calls for name, calls in flash_arms.items()}
    qkv, *rest = arguments(0)
    exact = decode_attention.reference(qkv.double(), *rest)
    cost = decode_attention.cost([context] * batch, hq, hkv, d, page_size, dtype.itemsize)
    return Case(
        "step", "decode_attention", {"batch": batch, "context": context, "page_size": page_size}, cost, "read", dtype,
        device, arms, lambda result: relative_error((result, exact)), missing,
    )  # fmt: skip
