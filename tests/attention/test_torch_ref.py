"""The plain backend against attention written out in fp64, over pages that hold NaN wherever nothing was stored."""

from __future__ import annotations

import random

import pytest
import torch

from qwen3lab.attention.base import LayerCache
from qwen3lab.attention.torch_ref import TorchAttention
from qwen3lab.engine import batch as batches
from qwen3lab.engine.request import Request, SamplingParams
from qwen3lab.engine.scheduler import Row, StepPlan
from qwen3lab.step import StepKind


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


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (8, 1)], ids=str)
@pytest.mark.parametrize("page_size", [1, 3, 16])
@pytest.mark.parametrize("scattered", [False, True], ids=["in a run", "scattered"])
@pytest.mark.parametrize("rows", [[(0, 1)], [(0, 7), (0, 1)], [(9, 1), (0, 5), (16, 1)], [(5, 6), (31, 2)]], ids=str)
def test_attention_over_pages(heads, page_size, scattered, rows):
    (num_heads, kv_heads), dim, pages = heads, 8, 80
    torch.manual_seed(0)
    rng = random.Random(0)
    order = list(range(1, pages))
    if scattered:
        rng.shuffle(order)
    cache = LayerCache(*(torch.empty(pages, page_size, kv_heads, dim) for _ in "kv"))  # poisoned
    backend = TorchAttention()
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
    batch = batches.build(StepPlan(StepKind.PREFILL, tuple(plan_rows)), page_size, torch.device("cpu"))
    q = torch.randn(batch.num_tokens, num_heads, dim)
    k, v = (torch.cat([h[j][start:] for h, (start, _) in zip(histories, rows, strict=True)]) for j in (0, 1))

    backend.store(k, v, cache, batch)
    out = backend.attend(q, cache, batch)

    expected = torch.cat(
        [written_out(part, *h) for part, h in zip(q.split([new for _, new in rows]), histories, strict=True)]
    )
    assert not torch.isnan(out).any(), "a page that nobody wrote was read"
    torch.testing.assert_close(out.double(), expected, rtol=2e-6, atol=2e-6)
    assert torch.isnan(cache.k[0]).all(), "the padding page was written by a real row"


def test_the_batch_is_one_packed_buffer():
    request = Request(0, [5, 6, 7, 8, 9], SamplingParams(), 0, 0.0)
    request.pages = [3, 1]
    other = Request(1, [4], SamplingParams(), 0, 0.0, token_ids=[2, 8])
    other.pages = [2]
    batch = batches.build(
        StepPlan(StepKind.PREFILL, (Row(request, 2, 3), Row(other, 2, 1))), page_size=4, device=torch.device("cpu")
    )
    assert batch.token_ids.tolist() == [7, 8, 9, 8]
    assert batch.positions.tolist() == [2, 3, 4, 2]
    assert batch.slot_mapping.tolist() == [14, 15, 4, 10]
    assert batch.cu_seqlens_q.tolist() == [0, 3, 4]
    assert batch.seq_lens.tolist() == [5, 3]
    assert batch.logits_rows.tolist() == [2, 3]
    assert batch.block_table.tolist() == [[3, 1], [2, 0]]
    storages = {
        t.untyped_storage().data_ptr()
        for t in (batch.token_ids, batch.positions, batch.slot_mapping, batch.seq_lens, batch.block_table)
    }
    assert len(storages) == 1
