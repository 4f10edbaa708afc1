"""Every backend against attention written out in fp64, over pages that hold NaN wherever nothing was stored."""

from __future__ import annotations

import random

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from qwen3lab.attention import choose, flash_providers
from qwen3lab.attention.base import AttentionBackend, LayerCache
from qwen3lab.attention.flash import FlashAttention
from qwen3lab.attention.paged import SPECIFICATION, PagedAttention
from qwen3lab.attention.store import store
from qwen3lab.attention.torch_ref import TorchAttention
from qwen3lab.config import EngineConfig
from qwen3lab.engine import batch as batches
from qwen3lab.engine.request import Request, SamplingParams
from qwen3lab.engine.scheduler import Row, StepPlan
from qwen3lab.step import StepKind

CPU = torch.device("cpu")
PREFILLS = [[(0, 1)], [(0, 7), (0, 1)], [(9, 1), (0, 5), (16, 1)], [(5, 6), (31, 2)]]  # (stored, new) of each row
DECODES = [[(0, 1)], [(15, 1)], [(16, 1), (3, 1), (33, 1)]]


def written_out(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """softmax(q·kᵀ/√D)·v in fp64 for one row; the last query sees every key."""
    t, heads, dim = q.shape
    n, kv_heads, _ = k.shape
    out = torch.empty(t, heads, dim, dtype=torch.float64)
    for i in range(t):
        for h in range(heads):
            kv = h // (heads // kv_heads)
            seen = n - t + i + 1
            scores = (k[:seen, kv].double() @ q[i, h].double()) / dim**0.5
            out[i, h] = torch.softmax(scores, -1) @ v[:seen, kv].double()
    return out


def specification(*args: object) -> PagedAttention:
    """paged-attn as it runs where Triton has no device."""
    backend = PagedAttention(*args)
    backend._runs = None
    return backend


def chosen(*args: object, **options: str | None) -> AttentionBackend:
    return choose.choose(EngineConfig(**options), *args)


BACKENDS = {
    "torch": lambda *args: TorchAttention(),
    "paged-attn": PagedAttention,
    "paged-attn by its specification": specification,
    "hybrid": lambda *args: chosen(*args, attn_backend="hybrid"),
    "hybrid without its view": lambda *args: chosen(*args, attn_backend="hybrid", ablate="kv-view"),
    "hybrid without its route": lambda *args: chosen(*args, attn_backend="hybrid", ablate="host-route"),
}


def assert_right(make, kind, rows, heads, dim, page_size, scattered):
    num_heads, kv_heads = heads
    pages = 80
    torch.manual_seed(0)
    rng = random.Random(0)
    order = list(range(1, pages))
    if scattered:
        rng.shuffle(order)
    cache = LayerCache(*(torch.empty(pages, page_size, kv_heads, dim) for _ in "kv"))  # poisoned
    histories, plan_rows = [], []
    for i, (start, new) in enumerate(rows):
        request = Request(i, list(range(start + new)), SamplingParams(), 0, 0.0)
        request.pages = [order.pop(0) for _ in range(-(-(start + new) // page_size))]
        history = [torch.randn(start + new, kv_heads, dim) for _ in "kv"]
        for t in range(start):
            for stored, kept in zip(cache, history, strict=True):
                stored[request.pages[t // page_size], t % page_size] = kept[t]
        histories.append(history)
        plan_rows.append(Row(request, start, new))
    batch = batches.build(StepPlan(kind, tuple(plan_rows)), page_size, CPU)
    q = torch.randn(batch.num_tokens, num_heads, dim)
    k, v = (torch.cat([h[j][start:] for h, (start, _) in zip(histories, rows, strict=True)]) for j in (0, 1))

    backend = make((num_heads, kv_heads, dim), page_size, torch.float32, CPU)
    store(k, v, cache, batch.slot_mapping)
    backend.prepare(batch)
    out = backend.attend(q, cache, batch)

    expected = torch.cat(
        [written_out(part, *h) for part, h in zip(q.split([new for _, new in rows]), histories, strict=True)]
    )
    assert not torch.isnan(out).any(), "a page that nobody wrote was read"
    torch.testing.assert_close(out.double(), expected, rtol=2e-6, atol=2e-6)
    assert torch.isnan(cache.k[0]).all(), "the padding page was written by a real row"


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (8, 1)], ids=str)
@pytest.mark.parametrize("page_size", [1, 3, 16])
@pytest.mark.parametrize("scattered", [False, True], ids=["in a run", "scattered"])
@pytest.mark.parametrize("rows", PREFILLS, ids=str)
def test_torch_takes_pages_and_heads_of_any_size(heads, page_size, scattered, rows):
    assert_right(BACKENDS["torch"], StepKind.PREFILL, rows, heads, 8, page_size, scattered)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("heads", [(4, 4), (4, 2)], ids=str)
@pytest.mark.parametrize(
    ("kind", "rows"), [(StepKind.PREFILL, rows) for rows in PREFILLS] + [(StepKind.DECODE, rows) for rows in DECODES]
)
def test_every_backend_reads_the_same_pages_right(name, heads, kind, rows):
    assert_right(BACKENDS[name], kind, rows, heads, 64, 16, scattered=True)


def test_each_kind_has_its_provider():
    heads = (4, 2, 64)
    hybrid = chosen(heads, 16, torch.float32, CPU, attn_backend="hybrid")
    assert hybrid.provider(StepKind.PREFILL) == "torch.nn.functional.scaled_dot_product_attention"
    assert hybrid.provider(StepKind.DECODE) == "qwen3lab_kernels.paged_decode (Triton interpreter)"
    paged = chosen(heads, 16, torch.float32, CPU, attn_backend="paged-attn")
    assert paged.provider(StepKind.PREFILL) == "qwen3lab_kernels.paged_prefill (Triton interpreter)"
    assert specification(heads, 16, torch.float32, CPU).provider(StepKind.DECODE) == SPECIFICATION
    flash = chosen(heads, 16, torch.float32, CPU, attn_backend="flash-attn")
    assert flash.name == "flash-attn" and flash.provider(StepKind.DECODE) == hybrid.provider(StepKind.PREFILL)


def recorded_provider(multiple=16, plan=None):
    calls = []

    def attend(q, k, v, *args, **kwargs):
        calls.append((q, k, v, args, kwargs))
        return q

    return calls, flash_providers.Provider("recorded", multiple, attend, plan)


def test_what_is_ablated_is_told():
    args = ((4, 2, 64), 16, torch.float32, CPU)
    copied = BACKENDS["hybrid without its view"](*args)
    asked = BACKENDS["hybrid without its route"](*args)
    assert copied.provider(StepKind.DECODE).endswith("(Triton interpreter), over a copy of the pages")
    assert asked.provider(StepKind.PREFILL).endswith(", its route asked of the device")


@pytest.mark.parametrize("planned", [False, True])
def test_flash_attention_is_handed_the_pages_where_they_lie(planned):
    asked = []

    def plan(*args, **kwargs):
        asked.append((args, kwargs))
        return "the plan"

    calls, provider = recorded_provider(plan=plan if planned else None)
    backend = FlashAttention(provider, (4, 2, 64), 16, torch.bfloat16)
    request = Request(0, list(range(20)), SamplingParams(), 0, 0.0)
    request.pages = [3, 1]
    batch = batches.build(StepPlan(StepKind.PREFILL, (Row(request, 2, 18),)), 16, CPU)
    both = torch.zeros(4, 2, 16, 2, 64, dtype=torch.bfloat16)  # k and v in one tensor, as some engines keep them
    cache = LayerCache(both[:, 0], both[:, 1])
    backend.prepare(batch)
    for _ in range(3):
        backend.attend(torch.zeros(18, 4, 64), cache, batch)
    for _, k, v, args, kwargs in calls:
        assert (k.data_ptr(), k.stride()) == (cache.k.data_ptr(), cache.k.stride()), "no copy, no second cache"
        assert (v.data_ptr(), v.stride()) == (cache.v.data_ptr(), cache.v.stride())
        assert args == (batch.cu_seqlens_q, batch.seq_lens, batch.block_table)
        assert kwargs == {"max_query_len": 18, "max_len": 20} | ({"plan": "the plan"} if planned else {})
    assert len(asked) == planned, "a step is planned once for all layers"


@pytest.mark.parametrize(
    ("dtype", "page_size", "told"),
    [
        (torch.float32, 16, "FlashAttention takes bfloat16 and float16; set dtype, or attn_backend='paged-attn'"),
        (torch.bfloat16, 24, "block_size=24: recorded reads pages of a multiple of 16; set block_size"),
    ],
)
def test_what_flash_attention_does_not_take_is_said_at_start_up(dtype, page_size, told):
    with pytest.raises(ValueError, match=told):
        FlashAttention(recorded_provider()[1], (4, 2, 64), page_size, dtype)


@pytest.mark.parametrize(
    ("options", "heads", "page_size", "told"),
    [
        (
            {"attn_backend": "torch", "flash_provider": "flash_attn"},
            (4, 2, 64),
            16,
            "only 'flash-attn' and 'hybrid' use",
        ),
        (
            {"attn_backend": "flash-attn", "flash_provider": "flash_attn"},
            (4, 2, 64),
            16,
            "runs on CUDA devices; this is",
        ),
        ({"attn_backend": "hybrid"}, (4, 2, 32), 16, r"head_dim=32, supported \(64, 128\); use attn_backend='torch'"),
        ({"attn_backend": "paged-attn"}, (4, 2, 64), 24, "page_size=24, supported .*; set block_size to one of these"),
        ({"attn_backend": "flex"}, (4, 2, 64), 16, "attn_backend='flex', allowed: None, 'torch', 'flash-attn'"),
        ({"ablate": "kv-view"}, (4, 2, 64), 16, "ablate='kv-view' takes from attn_backend='hybrid', not"),
        (
            {"attn_backend": "hybrid", "ablate": "x"},
            (4, 2, 64),
            16,
            "ablate='x', allowed: None, 'kv-view', 'host-route'",
        ),
    ],
)
def test_a_backend_that_cannot_run_says_why(options, heads, page_size, told):
    with pytest.raises(ValueError, match=told):
        chosen(heads, page_size, torch.float32, CPU, **options)


def plan_of_two() -> StepPlan:
    request = Request(0, [5, 6, 7, 8, 9], SamplingParams(), 0, 0.0)
    request.pages = [3, 1]
    other = Request(1, [4], SamplingParams(), 0, 0.0, token_ids=[2, 8])
    other.pages = [2]
    return StepPlan(StepKind.PREFILL, (Row(request, 2, 3), Row(other, 2, 1)))


def tensors(batch) -> list[torch.Tensor]:
    return [value for value in vars(batch).values() if isinstance(value, torch.Tensor)]


def test_the_batch_is_one_packed_buffer():
    batch = batches.build(plan_of_two(), page_size=4, device=CPU)
    assert batch.token_ids.tolist() == [7, 8, 9, 8]
    assert batch.positions.tolist() == [2, 3, 4, 2]
    assert batch.slot_mapping.tolist() == [14, 15, 4, 10]
    assert batch.cu_seqlens_q.tolist() == [0, 3, 4]
    assert batch.seq_lens.tolist() == [5, 3]
    assert batch.logits_rows.tolist() == [2, 3]
    assert batch.block_table[:, :2].tolist() == [[3, 1], [2, 0]]
    assert not batch.block_table[:, 2:].any(), "the padding page fills a row"
    assert len(tensors(batch)) == 7
    assert len({t.untyped_storage().data_ptr() for t in tensors(batch)}) == 1
    assert all(t.data_ptr() % 16 == 0 and t.is_contiguous() for t in tensors(batch)), "one alignment, one kernel"
    assert batch.block_table.stride(0) % 16 == 0


class Crossings(TorchDispatchMode):
    """Counts what moves a tensor from one device to another."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        devices = {x.device for x in (*args, result) if isinstance(x, torch.Tensor)}
        self.count += len(devices) > 1
        return result


def test_a_step_s_metadata_crosses_to_the_device_once():
    with Crossings() as crossings:
        batch = batches.build(plan_of_two(), page_size=4, device=torch.device("meta"))
    assert crossings.count == 1
    assert all(t.device.type == "meta" for t in tensors(batch))
