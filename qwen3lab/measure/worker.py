"""The child's end of an arm: `python -m qwen3lab.measure.worker --engine … --model …` loads once and serves runs.

Protocol, version 1. JSON lines over two inherited descriptors that nothing else uses (a library's print cannot corrupt
them); the child speaks first:

    child   {"type": "ready", "protocol": 1, "facts": {…}}
    parent  {"op": "run", "requests": [{"prompt_token_ids", "max_tokens", "inject_at_step"}, …]}
    child   {"type": "beat", "steps": n}                    at most once a second, from the engine's own loop
    child   {"type": "result", "requests": [{"token_ids", "arrival_s", "token_times_s"}, …], "peak_rss_bytes": n}
    parent  {"op": "score", "prompt": [ids], "continuation": [ids]}
    child   {"type": "scores", "scores": [[chosen, best, second, best_id], …]}
    child   {"type": "error", "error": "…"}                 instead of any answer

Times are seconds since the run's start, on time.perf_counter of this process. When the command pipe closes, because the
parent closed it or died, the whole process group ends at once, whatever it is doing.
"""

from __future__ import annotations

import gc
import json
import os
import queue
import resource
import signal
import sys
import threading
from argparse import ArgumentParser
from pathlib import Path
from typing import IO, Any

from qwen3lab.measure.engines import PROTOCOL, Driver, EngineError, Oracle, now_s, open_driver
from qwen3lab.measure.workloads import WorkloadRequest

BEAT_S = 1.0


class Channel:
    """JSON lines to the parent."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._steps, self._last_beat_s = 0, now_s()

    def say(self, type: str, **content: Any) -> None:
        self._file.write(json.dumps({"type": type, **content}, allow_nan=False) + "\n")
        self._file.flush()

    def beat(self) -> None:
        """One engine step has run. Between two writes it costs one reading of the clock."""
        self._steps += 1
        now = now_s()
        if now - self._last_beat_s >= BEAT_S:
            self._last_beat_s = now
            self.say("beat", steps=self._steps)


def answer(driver: Driver, command: dict[str, Any], channel: Channel) -> None:
    """Answer one command; one that fails is answered with its error."""
    try:
        if command["op"] == "run":
            channel.say("result", **run(driver, command["requests"], channel))
        elif command["op"] == "score":
            if not isinstance(driver, Oracle):
                raise EngineError(f"{driver.describe()['engine']} cannot score; the oracle is transformers")
            scores = driver.score(command["prompt"], command["continuation"])
            channel.say("scores", scores=[[s.chosen, s.best, s.second, s.best_id] for s in scores])
        else:
            raise EngineError(f"op {command['op']!r} is not known, allowed: run, score")
    except Exception as error:
        channel.say("error", error=f"{type(error).__name__}: {error}")


def run(driver: Driver, raw_requests: list[dict[str, Any]], channel: Channel) -> dict[str, Any]:
    requests = [
        WorkloadRequest(tuple(r["prompt_token_ids"]), r["max_tokens"], r["inject_at_step"]) for r in raw_requests
    ]
    gc.collect()  # what reading the command left behind is not the engine's to clean up
    start_s = now_s()
    results = driver.run(requests, channel.beat)
    return {
        "requests": [
            {
                "token_ids": r.token_ids,
                "arrival_s": r.arrival_s - start_s,
                "token_times_s": [t - start_s for t in r.token_times_s],
            }
            for r in results
        ],
        "peak_rss_bytes": peak_rss_bytes(),
    }


def peak_rss_bytes() -> int:
    """Most memory this process has held, in bytes.

    Linux hands ru_maxrss on from the process that started this one, through fork and exec: a worker would report its
    parent's peak. VmHWM (proc_pid_status(5), KiB) belongs to this program's own memory, so it is read there.
    """
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024  # macOS counts in bytes


def listen(file: IO[str], commands: queue.SimpleQueue[dict[str, Any]]) -> None:
    """Queue the parent's commands; at the end of the pipe, end the process group (the parent made this its leader)."""
    for line in file:
        commands.put(json.loads(line))
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(0)


def main() -> None:
    parser = ArgumentParser(prog="python -m qwen3lab.measure.worker", description="One arm; started by arms.py.")
    parser.add_argument("--engine", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--options", type=json.loads, default={})
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--read-fd", type=int, required=True)
    parser.add_argument("--write-fd", type=int, required=True)
    args = parser.parse_args()
    for fd in (args.read_fd, args.write_fd):
        os.set_inheritable(fd, False)  # an engine's own children must not keep the pipes open
    channel = Channel(os.fdopen(args.write_fd, "w", encoding="utf-8"))
    commands: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    listener = threading.Thread(target=listen, args=(os.fdopen(args.read_fd, encoding="utf-8"), commands), daemon=True)
    listener.start()
    try:
        import torch

        torch.set_num_threads(args.threads)
        driver = open_driver(args.engine, args.model, args.options)
        facts = driver.describe() | {
            "python": sys.version.split()[0],
            "threads": torch.get_num_threads(),
            "peak_rss_bytes_loaded": peak_rss_bytes(),
        }
    except Exception as error:
        channel.say("error", error=f"{type(error).__name__}: {error}")
        raise
    channel.say("ready", protocol=PROTOCOL, facts=facts)
    while True:
        answer(driver, commands.get(), channel)


if __name__ == "__main__":
    main()
