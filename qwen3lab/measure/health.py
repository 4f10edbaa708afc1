"""Was the platform fit to measure on? Read-only checks at rest and over each trial: pass, flag or reject, and why.

On a CPU what disturbs is other work: `crowding` is the cores that others took beyond those that were spare, measured
from the system's own counters over the very interval, so that a neighbour who came and went is seen. On a card it is
clocks held back by heat or hardware, memory errors, and other processes.

flag    the trial counts; readers see that something was going on
reject  the trial's block is measured again, a bounded number of times; then it counts, flagged
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import psutil

from qwen3lab.measure import machine, nvml

Status = Literal["pass", "flag", "reject"]


@dataclass(frozen=True)
class Limits:
    """From where on a reading is flagged or rejected. Cores are cores' worth of CPU time; shares are of one core."""

    crowding_flag_cores: float = 0.15
    crowding_reject_cores: float = 0.5
    steal_flag_share: float = 0.02
    steal_reject_share: float = 0.15
    throttled_reject_share: float = 0.1
    slow_clock_share: float = 0.8


@dataclass(frozen=True)
class Snapshot:
    """Counters at one moment. CPU times are seconds summed over all cores since boot."""

    at_s: float
    busy_s: float
    steal_s: float
    throttled_s: float | None
    load_1min: float
    frequency_mhz: float | None
    own_cpu_s: dict[int, float]
    gpus: tuple[nvml.GpuReading, ...]


@dataclass(frozen=True)
class Health:
    """A judgement with its reasons and the readings it rests on."""

    status: Status
    reasons: tuple[str, ...] = ()
    readings: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {"status": self.status, "reasons": list(self.reasons), "readings": self.readings}


def snapshot(pids: Sequence[int]) -> Snapshot:
    """Counters now; `pids` are this measurement's own processes, whose children are counted with them."""
    cpu = psutil.cpu_times()
    frequency = psutil.cpu_freq() if hasattr(psutil, "cpu_freq") else None
    return Snapshot(
        at_s=time.perf_counter(),
        busy_s=cpu.user + cpu.system + getattr(cpu, "irq", 0.0) + getattr(cpu, "softirq", 0.0) + cpu.nice,
        steal_s=getattr(cpu, "steal", 0.0),
        throttled_s=machine.throttled_s(),
        load_1min=psutil.getloadavg()[0],
        frequency_mhz=round(frequency.current, 1) if frequency else None,
        own_cpu_s=_own_cpu_s(pids),
        gpus=nvml.read(),
    )


def judge(before: Snapshot, after: Snapshot, running: int | None, threads: int, limits: Limits = Limits()) -> Health:
    """The interval between two snapshots of the same pids.

    running  the pid that was meant to work, on `threads` cores; None: nobody was, the arms were at rest
    """
    wall_s = max(after.at_s - before.at_s, 1e-6)
    own_s = {pid: after.own_cpu_s[pid] - before.own_cpu_s[pid] for pid in before.own_cpu_s}
    foreign_cores = max(0.0, after.busy_s - before.busy_s - sum(own_s.values())) / wall_s
    idle_cores = sum(s for pid, s in own_s.items() if pid != running) / wall_s
    spare_cores = (psutil.cpu_count() or 1) - threads
    crowding = max(0.0, foreign_cores + idle_cores - spare_cores)
    steal = (after.steal_s - before.steal_s) / wall_s
    throttled = (after.throttled_s or 0.0) - (before.throttled_s or 0.0)
    found: list[tuple[Status, str]] = []
    # The counters tick at 10 ms: over a short interval one tick is not a neighbour.
    tick_cores = 0.02 * (psutil.cpu_count() or 1) / wall_s
    if crowding > limits.crowding_flag_cores + tick_cores:
        status: Status = "reject" if crowding > limits.crowding_reject_cores + tick_cores else "flag"
        who = f"others {foreign_cores:.2f}, this measurement's idle processes {idle_cores:.2f}"
        found.append((status, f"crowded by {crowding:.2f} cores ({who}; {spare_cores} spare)"))
    if steal > limits.steal_flag_share + tick_cores:
        status = "reject" if steal > limits.steal_reject_share + tick_cores else "flag"
        found.append((status, f"the hypervisor stole {steal:.2f} cores"))
    if throttled > 0:
        status = "reject" if throttled / wall_s > limits.throttled_reject_share else "flag"
        found.append((status, f"the cgroup's CPU quota held us back for {throttled:.3f} s"))
    found += [finding for gpu in after.gpus for finding in _judge_gpu(gpu, running, limits)]
    for was, now in zip(before.gpus, after.gpus, strict=True):
        # A container sees foreign ids for its own processes, so only who came during the interval can be told apart.
        if joined := set(now.pids) - set(was.pids):
            found.append(("flag", f"GPU {now.index}: {len(joined)} more processes came"))
    status = max((s for s, _ in found), key=("pass", "flag", "reject").index, default="pass")
    readings = {
        "wall_s": round(wall_s, 4),
        "foreign_cores": round(foreign_cores, 3),
        "idle_cores": round(idle_cores, 3),
        "steal_cores": round(steal, 3),
        "throttled_s": round(throttled, 4) if after.throttled_s is not None else None,
        "load_1min": round(after.load_1min, 2),
        "frequency_mhz": after.frequency_mhz,
        "gpus": [gpu.to_dict() for gpu in after.gpus],
    }
    return Health(status, tuple(reason for _, reason in found), readings)


def at_rest(pids: Sequence[int] = (), threads: int | None = None, seconds: float = 0.4) -> Health:
    """Watch for `seconds` while nothing of ours runs. The heaviest neighbours are named."""
    before, processes = snapshot(pids), _processes_cpu_s()
    time.sleep(seconds)
    after = snapshot(pids)
    health = judge(before, after, running=None, threads=threads or machine.usable_cores())
    if not any(reason.startswith("crowded") for reason in health.reasons):
        return health
    later = _processes_cpu_s()
    used = {key: later[key] - processes.get(key, 0.0) for key in later if key[0] not in pids}
    busiest = [
        f"{name} {s / seconds:.2f}" for (_, name), s in sorted(used.items(), key=lambda i: -i[1])[:3] if s > 0.01
    ]
    return Health(
        health.status, (*health.reasons, f"busiest: {', '.join(busiest) or 'not visible from here'}"), health.readings
    )


def wait_until_fit(pids: Sequence[int], threads: int, patience_s: float) -> tuple[Health, float]:
    """at_rest, again while it rejects and `patience_s` lasts; the last judgement and the seconds waited."""
    start_s = time.monotonic()
    while True:
        health = at_rest(pids, threads)
        waited_s = time.monotonic() - start_s
        if health.status != "reject" or waited_s >= patience_s:
            return health, waited_s
        time.sleep(min(1.0, patience_s))


def _judge_gpu(gpu: nvml.GpuReading, running: int | None, limits: Limits) -> list[tuple[Status, str]]:
    found: list[tuple[Status, str]] = []
    faults = nvml.FAULTS.intersection(gpu.throttle_reasons)
    if faults:
        found.append(("reject", f"GPU {gpu.index} held back by {', '.join(sorted(faults))}"))
    if "power cap" in gpu.throttle_reasons:
        found.append(("flag", f"GPU {gpu.index} at its power cap"))
    if gpu.ecc_uncorrected:
        found.append(("reject", f"GPU {gpu.index} has {gpu.ecc_uncorrected} uncorrected memory errors"))
    if (
        running is not None
        and gpu.sm_clock_mhz is not None
        and gpu.max_sm_clock_mhz
        and "idle" not in gpu.throttle_reasons
        and gpu.sm_clock_mhz < limits.slow_clock_share * gpu.max_sm_clock_mhz
    ):
        found.append(("flag", f"GPU {gpu.index} at {gpu.sm_clock_mhz} of {gpu.max_sm_clock_mhz} MHz"))
    return found


def _own_cpu_s(pids: Sequence[int]) -> dict[int, float]:
    """CPU seconds of each process and its living children; 0 for one that is gone.

    The parent of the arms is watched beside them: what belongs to another watched process is that one's alone.
    """
    trees = {pid: _tree(pid) for pid in pids}
    for pid, tree in trees.items():
        for other in pids:
            if other != pid and other in tree:
                for member in trees[other]:
                    tree.pop(member, None)
    return {pid: sum(tree.values()) for pid, tree in trees.items()}


def _tree(pid: int) -> dict[int, float]:
    """CPU seconds by pid, of a process and all its living descendants."""
    seconds: dict[int, float] = {}
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for member in (process, *process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                times = member.cpu_times()
                seconds[member.pid] = times.user + times.system
    return seconds


def _processes_cpu_s() -> dict[tuple[int, str], float]:
    seconds = {}
    for process in psutil.process_iter(["name", "cpu_times"]):
        times = process.info["cpu_times"]
        if times is not None:
            seconds[process.pid, process.info["name"]] = times.user + times.system
    return seconds
