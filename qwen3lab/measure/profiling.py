"""Where a step's time goes: its parts and its operations under torch.profiler, and the floor beside them.

The profiled run is not the timed one: a profiler makes every operation slower, and short ones most of all. So shares
come from the profiled steps, and the time that they are shares of from as many steps without a profiler before them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Literal

import pandas as pd
import torch
from torch.profiler import ProfilerActivity, record_function

from qwen3lab.engine import batch, runner
from qwen3lab.engine.llm import LLM
from qwen3lab.engine.request import SamplingParams
from qwen3lab.measure import machine
from qwen3lab.measure.kernel_timing import Ceilings
from qwen3lab.measure.workloads import Workload
from qwen3lab.model_config import ModelConfig
from qwen3lab.step import StepTrace
from qwen3lab_kernels.cost import Cost

Kind = Literal["prefill", "decode"]
STEP, FORWARD = "step", "forward"
# In order of a step. The last two are what is left of the forward and of the step once their parts are taken out.
PARTS = ("metadata", "products", "norm, rotation, store", "attention", "sampling")
REST_OF_FORWARD, REST_OF_STEP = "other operations", "scheduling, commit"


@dataclass(frozen=True)
class Profile:
    """Steps of one kind, taken apart. Times are µs a step.

    wall_us     median of the steps that ran without a profiler; profiled_us: mean of those that ran under it
    parts       part, calls, host_us and device_us (NaN without a card) under the profiler, share of profiled_us: the
                device's where there is one
    operations  name, calls, us, share: the profiler's own table, kernels on a card, torch's operations on a CPU
    busy_us     time in which the card computed something, under the profiler; None without one
    launches    kernels a step; on a CPU, operations
    floor_us    the least time for the bytes and products of these steps; `bound` says which of the two it is
    """

    kind: Kind
    steps: int
    wall_us: float
    profiled_us: float
    parts: pd.DataFrame
    operations: pd.DataFrame
    busy_us: float | None
    launches: float
    floor_us: float
    bound: str

    def to_dict(self) -> dict[str, Any]:
        """The numbers without the tables."""
        return {k: v for k, v in vars(self).items() if not isinstance(v, pd.DataFrame)}


def profile(llm: LLM, prompts: Sequence[Sequence[int]], kind: Kind, ceilings: Ceilings, steps: int = 8) -> Profile:
    """Take apart `steps` decode steps of all `prompts` together, or the steps that prefill them."""
    _steps(llm, prompts, kind, steps, nullcontext())  # the first of its sizes may compile or allocate
    plain = _steps(llm, prompts, kind, steps, nullcontext())
    on_card = llm.facts.device.startswith("cuda")
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * on_card
    profiler = torch.profiler.profile(activities=activities)
    with _marked(llm):
        traces = _steps(llm, prompts, kind, steps, profiler)
    count = len(traces)
    averages = list(profiler.key_averages())
    device = "device_time_total" if on_card else "cpu_time_total"
    totals = {e.key: (e.count, e.cpu_time_total / count, getattr(e, device) / count) for e in averages}
    profiled_us = sum(t.duration_s for t in traces) * 1e6 / count
    least = cost(llm.model_config, llm.facts.dtype, traces, prompts)
    by_bytes = least.bytes_moved / ceilings.read_gbps / 1e3
    by_products = least.flops / ceilings.product_tflops / 1e6
    return Profile(
        kind=kind,
        steps=count,
        wall_us=median(t.duration_s for t in plain) * 1e6,
        profiled_us=profiled_us,
        parts=_parts(totals, count, profiled_us, on_card),
        operations=_operations(averages, count, on_card),
        busy_us=_busy_us(profiler.events(), count) if on_card else None,
        launches=sum(e.count for e in averages if _is_operation(e, on_card)) / count,
        floor_us=max(by_bytes, by_products) / count,
        bound="bytes" if by_bytes > by_products else "products",
    )


def describe(llm: LLM, ceilings: Ceilings, workloads: Sequence[Workload]) -> dict[str, Any]:
    """What a round records beside the frames: plain JSON values."""
    return {
        "machine": machine.facts(),
        "libraries": machine.libraries(),
        "workloads": {w.id: w.sha256 for w in workloads},
        "arms": [{"label": "A", "name": "qwen3lab", **llm.facts.to_dict()}],
        "comparison": {"ceilings": asdict(ceilings)},
    }


def cost(config: ModelConfig, dtype: str, traces: Sequence[StepTrace], prompts: Sequence[Sequence[int]]) -> Cost:
    """The least that these steps must do: every weight once a step, each key and value once, the causal products.

    What activations move is left out: a layer's stay in cache, or could.
    """
    itemsize, kv_bytes = getattr(torch, dtype).itemsize, config.kv_bytes_per_token(dtype)
    head = config.vocab_size * config.hidden_size
    read = written = flops = 0
    for trace in traces:
        read += config.decode_params * itemsize + trace.kv_tokens * kv_bytes
        written += trace.tokens * kv_bytes
        pairs = trace.kv_tokens  # decode: a query a row, which sees all of the row's keys
        if trace.tokens > trace.rows:
            pairs = sum(n * (n + 1) // 2 for n in map(len, prompts)) * trace.tokens // sum(map(len, prompts))
        flops += 2 * (config.decode_params - head) * trace.tokens + 2 * head * trace.rows
        flops += 4 * config.num_layers * config.q_size * pairs
    return Cost(read, written, flops)


def _steps(
    llm: LLM,
    prompts: Sequence[Sequence[int]],
    kind: Kind,
    steps: int,
    watch: AbstractContextManager[Any],
) -> list[StepTrace]:
    """Run steps of `kind` over all prompts, and nothing else, within `watch`; their traces. No request is left."""
    if llm.has_unfinished:
        raise RuntimeError("profile: requests are in flight; bring them to their end first")
    params = SamplingParams(max_tokens=1 if kind == "prefill" else steps + 1, ignore_eos=True)
    ids = [llm.add_request(list(prompt), params) for prompt in prompts]
    if kind == "decode":
        while len(llm._requests) and not all(request.token_ids for request in llm._requests.values()):
            llm.step()
    traces: list[StepTrace] = []
    with watch:
        while llm.has_unfinished and (kind == "prefill" or len(traces) < steps):
            with record_function(STEP):
                llm.step()
            traces.append(llm.traces[-1])
    for request_id in ids:
        if request_id in llm._requests:
            llm.abort(request_id)
    return traces


@contextmanager
def _marked(llm: LLM) -> Iterator[None]:
    """Within, every part of a step is a named range of the profiler's."""
    model = llm._runner.model
    places = (
        (batch, "build", "metadata"),
        (model, "linear", "products"),
        (model.query_key, "apply", "norm, rotation, store"),
        (model.attention, "attend", "attention"),
        (runner, "sample", "sampling"),
        (model, "forward", FORWARD),
    )
    with ExitStack() as stack:
        for owner, name, part in places:
            _mark(stack, owner, name, part)
        yield


def _mark(stack: ExitStack, owner: Any, name: str, part: str) -> None:
    inner, own = getattr(owner, name), name in vars(owner)

    def call(*args: Any, **kwargs: Any) -> Any:
        with record_function(part):
            return inner(*args, **kwargs)

    setattr(owner, name, call)
    stack.callback(lambda: setattr(owner, name, inner) if own else delattr(owner, name))


def _parts(totals: dict[str, tuple[int, float, float]], steps: int, profiled_us: float, on_card: bool) -> pd.DataFrame:
    def of(name: str) -> tuple[float, float, float]:
        count, host_us, device_us = totals.get(name, (0, 0.0, 0.0))
        return count / steps, host_us, device_us

    def less(whole: str, *parts: str) -> tuple[float, float, float]:
        host_us, device_us = (of(whole)[i] - sum(of(part)[i] for part in parts) for i in (1, 2))
        return 1.0, host_us, device_us

    inside = PARTS[1:-1]
    rows = [(part, *of(part)) for part in PARTS]
    rows.append((REST_OF_FORWARD, *less(FORWARD, *inside)))
    rows.append((REST_OF_STEP, *less(STEP, FORWARD, PARTS[0], PARTS[-1])))
    frame = pd.DataFrame(rows, columns=["part", "calls", "host_us", "device_us"])
    if not on_card:
        frame["device_us"] = float("nan")
    return frame.assign(share=frame["device_us" if on_card else "host_us"] / profiled_us)


def _is_operation(event: Any, on_card: bool) -> bool:
    """Whether a row of the profiler's table computes something itself: a kernel on a card, an operation on a CPU."""
    if event.key in (*PARTS, FORWARD, STEP):
        return False
    if on_card:
        return str(event.device_type).endswith("CUDA")
    return bool(event.key.startswith(("aten::", "qwen3lab::", "mkldnn::")))


def _operations(averages: Sequence[Any], steps: int, on_card: bool) -> pd.DataFrame:
    times = [
        (e.key, e.count / steps, (e.self_device_time_total if on_card else e.self_cpu_time_total) / steps)
        for e in averages
        if _is_operation(e, on_card)
    ]
    frame = pd.DataFrame(times, columns=["name", "calls", "us"]).sort_values("us", ascending=False, ignore_index=True)
    return frame.assign(share=frame["us"] / frame["us"].sum())


def _busy_us(events: Sequence[Any], steps: int) -> float:
    """µs a step in which at least one kernel or copy ran on the card."""
    spans = sorted(
        (e.time_range.start, e.time_range.end)
        for e in events
        if str(e.device_type).endswith("CUDA") and e.name not in PARTS
    )
    busy, until = 0.0, float("-inf")
    for start, end in spans:
        busy += max(0.0, end - max(start, until))
        until = max(until, end)
    return busy / steps
