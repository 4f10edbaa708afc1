"""How an engine is driven: open it once, run a workload's requests as often as asked, say what ran.

A driver lives in a worker process (`worker`), which may belong to another interpreter; this file and the drivers
import nothing of measuring but the workload's dataclass. qwen3lab's own driver is here; `reference` holds transformers,
`rival_vllm` vLLM.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from qwen3lab.measure.workloads import WorkloadRequest

ENGINES = ("qwen3lab", "transformers", "vllm")
PROTOCOL = 1
"""Of the messages between arms.py and worker.py, which documents them; a worker of another version is refused."""

Beat = Callable[[], None]
"""Called after every engine step: evidence of progress for the parent. Cheap; it writes at most once a second."""


class EngineError(RuntimeError):
    """A request that the engine would not serve, or served otherwise than asked."""


@dataclass(frozen=True)
class RequestResult:
    """One request as it came back. Times: time.perf_counter of the driver's process, at which the host had them."""

    token_ids: tuple[int, ...]
    arrival_s: float
    token_times_s: tuple[float, ...]


@dataclass(frozen=True)
class Score:
    """One position of a given continuation under teacher forcing: the logit of the id that was given, the largest
    logit with its id, and the second largest (all in float32)."""

    chosen: float
    best: float
    second: float
    best_id: int


class Driver(Protocol):
    """An engine, loaded."""

    def run(self, requests: Sequence[WorkloadRequest], beat: Beat) -> list[RequestResult]:
        """Serve all requests, greedy, each to exactly max_tokens; results in the order of `requests`."""
        ...

    def describe(self) -> dict[str, Any]:
        """What runs: versions, dtype, device, attention, threads, options; plain JSON values, no paths."""
        ...


@runtime_checkable
class Oracle(Protocol):
    """A driver that can also judge: teacher-forced logits."""

    def score(self, prompt: Sequence[int], continuation: Sequence[int]) -> list[Score]:
        """One Score per id of `continuation`, given `prompt` and the ids before it."""
        ...


def open_driver(engine: str, model: str, options: Mapping[str, Any]) -> Driver:
    """Load `model` in `engine`. ValueError for an unknown engine; an unknown option raises what the engine raises."""
    if engine == "qwen3lab":
        return Qwen3labDriver(model, options)
    if engine == "transformers":
        from qwen3lab.measure.reference import TransformersDriver

        return TransformersDriver(model, **options)
    if engine == "vllm":
        from qwen3lab.measure.rival_vllm import VllmDriver

        return VllmDriver(model, options)
    raise ValueError(f"engine {engine!r} is not known, allowed: {', '.join(ENGINES)}")


class Qwen3labDriver:
    """This project's engine, a step at a time, so that a request can arrive at a given step."""

    def __init__(self, model: str, options: Mapping[str, Any]) -> None:
        from qwen3lab.engine.llm import LLM

        self._options = dict(options)
        self._llm = LLM(model, **self._options)

    def run(self, requests: Sequence[WorkloadRequest], beat: Beat) -> list[RequestResult]:
        """A request arrives before the step numbered inject_at_step (from 0), or as soon as all the others are done."""
        from qwen3lab.engine.request import Completion, SamplingParams

        llm, steps = self._llm, 0
        waiting = sorted(range(len(requests)), key=lambda i: requests[i].inject_at_step)
        index: dict[int, int] = {}
        done: dict[int, Completion] = {}
        while waiting or llm.has_unfinished:
            while waiting and (requests[waiting[0]].inject_at_step <= steps or not llm.has_unfinished):
                i = waiting.pop(0)
                params = SamplingParams(max_tokens=requests[i].max_tokens, temperature=0.0, ignore_eos=True)
                index[llm.add_request(requests[i].prompt_token_ids, params)] = i
            for completion in llm.step():
                done[index[completion.request_id]] = completion
            steps += 1
            beat()
        for i, completion in sorted(done.items()):
            if completion.error is not None:
                raise EngineError(f"request {i}: {completion.error}")
        return [
            RequestResult(done[i].token_ids, done[i].metrics.arrived_s, done[i].metrics.token_times_s)
            for i in range(len(requests))
        ]

    def describe(self) -> dict[str, Any]:
        facts, config = self._llm.facts.to_dict(), self._llm.config.to_dict()
        return {
            "engine": "qwen3lab",
            "versions": versions("qwen3lab", "torch", "triton"),
            "dtype": facts["dtype"],
            "device": facts["device"],
            "attention": "; ".join(f"{kind}: {provider}" for kind, provider in facts["attn_providers"].items()),
            "batching": "continuous: a request joins at the next step",
            "setup": {
                "graphs": facts["mode"],
                "kv_tokens": (facts["num_pages"] - 1) * facts["page_size"],
                "block_size": facts["page_size"],
                "max_num_seqs": config["max_num_seqs"],
                "max_num_batched_tokens": config["max_num_batched_tokens"],
                "max_model_len": facts["max_model_len"],
                "prefix_caching": config["enable_prefix_caching"],
                "chunked_prefill": False,
                "speculation": "off",
            },
            "facts": facts,
            "config": config,
            "options": self._options,
        }


def versions(*packages: str) -> dict[str, str]:
    """Installed versions; a package that is not installed is left out."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def now_s() -> float:
    """The clock of every measured time."""
    return time.perf_counter()
