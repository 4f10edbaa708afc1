"""The parent's end of an arm: a resident process that is told to run one workload once, and what it answers, checked.

A worker that dies, hangs or answers garbage raises ArmFailed, which names the arm, its exit code and the end of its
stderr; its process group is killed with it. No worker outlives its parent (see worker.listen).
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import qwen3lab
from qwen3lab.measure.engines import ENGINES, PROTOCOL, RequestResult, Score
from qwen3lab.measure.machine import usable_cores
from qwen3lab.measure.process import Child, ChildFailed
from qwen3lab.measure.workloads import WorkloadRequest, file_sha256

BUILT_VLLM = Path(qwen3lab.__file__).parents[1] / ".venv-vllm/bin/python"
CARD_SHARE = 0.85  # of a card's memory, for all arms together
LOAD_TIMEOUT_S = 900.0
SILENCE_TIMEOUT_S = 600.0
"""How long a worker at work may say nothing. It beats once a second between engine steps, so this bounds one step."""


class ArmFailed(RuntimeError):
    """An arm that cannot give a measurement: which, and why."""


@dataclass(frozen=True)
class Arm:
    """One side of a comparison.

    name     as shown in charts and verdicts
    engine   one of engines.ENGINES
    model    checkpoint directory or hub id
    options  the driver's own keyword arguments
    python   interpreter to run it with; None: see `interpreter`
    env      added to the environment
    threads  CPU threads; None is every core this process may use
    """

    name: str
    engine: str
    model: str | Path
    options: Mapping[str, Any] = field(default_factory=dict)
    python: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise ValueError(f"arm {self.name!r}: engine={self.engine!r}, allowed: {', '.join(ENGINES)}")
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"arm {self.name!r}: threads={self.threads}, allowed: at least 1")


@dataclass(frozen=True)
class RunResult:
    """One run of a workload: results in the order of its requests, times in seconds since the run's start."""

    requests: tuple[RequestResult, ...]
    peak_rss_bytes: int


class ArmProcess:
    """An arm's process. As a context manager it is loaded on entry; leaving ends it and whatever it started.

    facts  what the worker reported of itself once it was loaded; empty before
    """

    def __init__(self, arm: Arm, silence_timeout_s: float = SILENCE_TIMEOUT_S) -> None:
        self.arm, self._silence_timeout_s = arm, silence_timeout_s
        self.facts: dict[str, Any] = {}
        self.threads = arm.threads or usable_cores()
        argv = [
            arm.python or interpreter(arm.engine), "-m", "qwen3lab.measure.worker",
            "--engine", arm.engine, "--model", str(arm.model),
            "--options", json.dumps(dict(arm.options)), "--threads", str(self.threads),
        ]  # fmt: skip
        try:
            self._child = Child(argv, _environment(arm, self.threads))
        except ChildFailed as error:
            raise ArmFailed(f"arm {arm.name!r} {error}") from None

    def wait_ready(self, timeout_s: float = LOAD_TIMEOUT_S) -> None:
        """Return when the arm is loaded; ArmFailed, with the process ended, where it cannot be."""
        try:
            ready = self._answer("ready", timeout_s)
            if ready.get("protocol") != PROTOCOL:
                raise self._failed(f"speaks protocol {ready.get('protocol')!r}, and this side {PROTOCOL}")
            self.facts = ready["facts"]
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._child.pid

    def run(self, requests: Sequence[WorkloadRequest], on_beat: Callable[[int], None] | None = None) -> RunResult:
        """Serve `requests` once. `on_beat` gets the number of engine steps so far, about once a second."""
        asked = [
            {"prompt_token_ids": r.prompt_token_ids, "max_tokens": r.max_tokens, "inject_at_step": r.inject_at_step}
            for r in requests
        ]
        answer = self._ask({"op": "run", "requests": asked}, "result", on_beat)
        try:
            results = tuple(_result(raw) for raw in answer["requests"])
            if len(results) != len(requests):
                raise ValueError(f"{len(results)} requests of {len(requests)}")
            return RunResult(results, int(answer["peak_rss_bytes"]))
        except (KeyError, TypeError, ValueError) as error:
            raise self._failed(f"answered a result that cannot be: {error!r}") from None

    def score(self, prompt: Sequence[int], continuation: Sequence[int]) -> list[Score]:
        """Teacher-forced logits of `continuation`; only an engine that is an engines.Oracle answers."""
        answer = self._ask({"op": "score", "prompt": list(prompt), "continuation": list(continuation)}, "scores")
        try:
            scores = [Score(*row) for row in answer["scores"]]
            if len(scores) != len(continuation):
                raise ValueError(f"{len(scores)} scores of {len(continuation)}")
        except (KeyError, TypeError, ValueError) as error:
            raise self._failed(f"answered scores that cannot be: {error!r}") from None
        return scores

    def close(self) -> None:
        """End the process and whatever it started. Safe to call twice."""
        self._child.close()

    def __enter__(self) -> ArmProcess:
        self.wait_ready()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _ask(
        self, command: dict[str, Any], wanted: str, on_beat: Callable[[int], None] | None = None
    ) -> dict[str, Any]:
        try:
            self._child.tell(command, self._silence_timeout_s)
        except ChildFailed as error:
            raise ArmFailed(f"arm {self.arm.name!r} {error}") from None
        return self._answer(wanted, self._silence_timeout_s, on_beat)

    def _answer(self, wanted: str, silence_s: float, on_beat: Callable[[int], None] | None = None) -> dict[str, Any]:
        """The next message of type `wanted`; a beat on the way renews the patience."""
        while True:
            try:
                message = self._child.hear(silence_s)
            except ChildFailed as error:
                raise ArmFailed(f"arm {self.arm.name!r} {error}") from None
            if message["type"] == wanted:
                return message
            if message["type"] == "error":
                raise self._failed(f"reports {message.get('error')}")
            if message["type"] != "beat":
                raise self._failed(f"answered {message['type']!r} where {wanted!r} was due")
            if on_beat is not None:
                on_beat(int(message["steps"]))

    def _failed(self, why: str) -> ArmFailed:
        return ArmFailed(f"arm {self.arm.name!r} {self._child.failed(why)}")


def interpreter(engine: str) -> str:
    """The Python that runs an engine where its arm names none: this one; vLLM's own where there is one.

    That is QWEN3LAB_VLLM_PYTHON, else what `make vllm-cpu` built.
    """
    if engine != "vllm":
        return sys.executable
    return os.environ.get("QWEN3LAB_VLLM_PYTHON") or (str(BUILT_VLLM) if BUILT_VLLM.exists() else sys.executable)


def sharing(arms: Mapping[str, Arm], cards: int) -> dict[str, Arm]:
    """The arms, each with its part of a card's memory where they would stay loaded side by side on one.

    An arm that says gpu_memory_utilization itself keeps it; transformers takes what a batch needs.
    """
    if not cards:
        return dict(arms)
    part = {"gpu_memory_utilization": round(CARD_SHARE / len(arms), 2)}
    return {
        label: arm if arm.engine == "transformers" else replace(arm, options={**part, **arm.options})
        for label, arm in arms.items()
    }


def strongest_rival() -> str:
    """The engine to be ahead of: vLLM where an interpreter here has it, else transformers."""
    command = [interpreter("vllm"), "-c", "import sys, importlib.util as u; sys.exit(u.find_spec('vllm') is None)"]
    return "vllm" if subprocess.run(command, capture_output=True).returncode == 0 else "transformers"


def checkpoint_identity(model: str | Path) -> dict[str, Any]:
    """A checkpoint without its path: its name, and for a directory the sha256 of its config and of each weight file."""
    path = Path(model)
    if not path.is_dir():
        return {"name": str(model)}
    files = [path / "config.json", *sorted(path.glob("*.safetensors"))]
    return {"name": path.resolve().name, "sha256": {f.name: file_sha256(f) for f in files if f.exists()}}


def _result(raw: Mapping[str, Any]) -> RequestResult:
    """A request's answer, refused where times run backwards or do not belong to the ids."""
    token_ids = tuple(raw["token_ids"])
    times = tuple(float(t) for t in raw["token_times_s"])
    arrival = float(raw["arrival_s"])
    if not all(isinstance(i, int) for i in token_ids):
        raise ValueError("token ids that are not whole numbers")
    if len(times) != len(token_ids):
        raise ValueError(f"{len(times)} times for {len(token_ids)} tokens")
    if not all(map(math.isfinite, (arrival, *times))) or list(times) != sorted(times) or (times and times[0] < arrival):
        raise ValueError("times that run backwards")
    return RequestResult(token_ids, arrival, times)


def _environment(arm: Arm, threads: int) -> dict[str, str]:
    """This environment with the threads fixed, the package importable, and the network off for a local model."""
    source = Path(qwen3lab.__file__).resolve().parents[1]
    path = [str(source), str(source / "kernels"), os.environ.get("PYTHONPATH", "")]
    fixed = {
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
    }
    if Path(arm.model).is_dir():
        fixed |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    return {**os.environ, **fixed, **arm.env}
