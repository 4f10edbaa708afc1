"""A step taken apart: every part counted, the whole accounted for, the engine left as it was."""

from __future__ import annotations

import pytest
import torch

from qwen3lab import LLM
from qwen3lab.engine import batch, runner
from qwen3lab.measure import profiling
from qwen3lab.measure.kernel_timing import Ceilings
from qwen3lab.step import StepKind, StepTrace

CEILINGS = Ceilings(read_gbps=50.0, copy_gbps=40.0, product_tflops=0.2)
PROMPTS = [[1, 2, 3], [4] * 20, [5, 6]]
LAYERS = 2


@pytest.fixture(scope="module")
def llm(request):
    return LLM(request.getfixturevalue("chaotic"), num_kv_blocks=8)


@pytest.mark.parametrize(("kind", "steps"), [("decode", 5), ("prefill", 1)])
def test_the_parts_are_counted_and_add_up_to_the_step(llm, kind, steps):
    found = profiling.profile(llm, PROMPTS, kind, CEILINGS, steps=5)
    assert (found.kind, found.steps, found.busy_us) == (kind, steps, None)
    calls = dict(zip(found.parts.part, found.parts.calls, strict=True))
    assert calls["products"] == 4 * LAYERS + 1
    assert calls["attention"] == calls["norm, rotation, store"] == LAYERS
    assert calls["metadata"] == calls["sampling"] == 1
    assert (found.parts.host_us > 0).all() and found.parts.device_us.isna().all()
    assert found.parts.share.sum() == pytest.approx(1.0, abs=0.25), "the profiler's clock and the trace's"
    assert {"aten::mm", "aten::embedding"} & set(found.operations.name)
    assert found.operations.share.sum() == pytest.approx(1.0)
    assert not set(found.operations.name) & {*profiling.PARTS, profiling.STEP, profiling.FORWARD}
    assert found.wall_us > 0 and found.launches > 0


def test_the_engine_is_left_as_it_was(llm):
    model, build, sample = llm._runner.model, batch.build, runner.sample
    before = dict(vars(model))
    profiling.profile(llm, PROMPTS, "decode", CEILINGS, steps=2)
    assert vars(model) == before and (batch.build, runner.sample) == (build, sample)
    assert "attend" not in vars(model.attention) and "apply" not in vars(model.query_key)
    assert not llm.has_unfinished
    llm._scheduler.check_integrity()


def test_requests_in_flight_are_not_profiled_away(llm):
    request_id = llm.add_request([1, 2])
    with pytest.raises(RuntimeError, match="requests are in flight"):
        profiling.profile(llm, PROMPTS, "decode", CEILINGS)
    llm.abort(request_id)


def trace(kind, rows, tokens, kv_tokens):
    return StepTrace(kind, rows, tokens, kv_tokens, 0.0, 1.0)


def test_the_floor_counts_weights_keys_and_causal_products(llm):
    c = llm.model_config
    head = c.vocab_size * c.hidden_size
    decode = profiling.cost(c, "float32", [trace(StepKind.DECODE, 3, 3, 30)], PROMPTS)
    assert decode.bytes_read == 4 * c.decode_params + 30 * c.kv_bytes_per_token("float32")
    assert decode.bytes_written == 3 * c.kv_bytes_per_token("float32")
    assert decode.flops == 2 * c.decode_params * 3 + 4 * c.num_layers * c.q_size * 30
    prefill = profiling.cost(c, "float32", [trace(StepKind.PREFILL, 3, 25, 25)], PROMPTS)
    pairs = 6 + 210 + 3
    assert prefill.flops == 2 * (c.decode_params - head) * 25 + 2 * head * 3 + 4 * c.num_layers * c.q_size * pairs


@pytest.mark.parametrize(("read_gbps", "bound"), [(1e-6, "bytes"), (1e9, "products")])
def test_the_floor_is_the_longer_of_two(llm, read_gbps, bound):
    found = profiling.profile(llm, PROMPTS, "decode", Ceilings(read_gbps, 1.0, 0.2), steps=2)
    assert found.bound == bound and found.floor_us > 0


def test_busy_time_counts_what_overlaps_once():
    class Event:
        device_type = torch._C._autograd.DeviceType.CUDA
        name = "kernel"

        def __init__(self, start, end):
            self.time_range = type("Range", (), {"start": start, "end": end})

    assert profiling._busy_us([Event(0, 10), Event(5, 12), Event(20, 25), Event(21, 22)], steps=1) == 17
