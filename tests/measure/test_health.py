"""The platform's judgement: on made-up counters for the rules, and on this machine for the readings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace

import psutil
import pytest

from qwen3lab.measure import health, machine
from qwen3lab.measure.health import Snapshot, judge
from qwen3lab.measure.nvml import GpuReading

CORES = psutil.cpu_count() or 1
ME, IDLE = 11, 12
GPU = GpuReading(0, "card", "595", 80 << 30, 1900, 1980, (), 0, 50, 300.0, (11,))


def snapshots(seconds=10.0, foreign=0.0, mine=None, idle=0.0, steal=0.0, throttled=0.0, gpu=None):
    """Before and after `seconds` in which the running arm took `mine` CPU seconds (all cores), and so on."""
    mine = CORES * seconds if mine is None else mine
    gpus = () if gpu is None else (gpu,)
    before = Snapshot(100.0, 1000.0, 5.0, 1.0, 0.5, 2000.0, {ME: 50.0, IDLE: 40.0}, gpus)
    after = replace(
        before,
        at_s=100.0 + seconds,
        busy_s=1000.0 + mine + idle + foreign,
        steal_s=5.0 + steal,
        throttled_s=1.0 + throttled,
        own_cpu_s={ME: 50.0 + mine, IDLE: 40.0 + idle},
    )
    return before, after


def status(threads=CORES, running=ME, **changes):
    return judge(*snapshots(**changes), running=running, threads=threads)


def test_an_arm_alone_on_its_cores_passes():
    found = status()
    assert (found.status, found.reasons) == ("pass", ())
    assert found.readings["foreign_cores"] == 0.0


@pytest.mark.parametrize(
    ("changes", "expected", "reason"),
    [
        ({"foreign": 3.0}, "flag", "crowded by 0.30 cores"),
        ({"foreign": 9.0}, "reject", "crowded by 0.90 cores"),
        ({"idle": 9.0}, "reject", "idle processes 0.90"),
        ({"steal": 0.5}, "flag", "stole 0.05"),
        ({"steal": 5.0}, "reject", "stole 0.50"),
        ({"throttled": 0.2}, "flag", "quota held us back for 0.200 s"),
        ({"throttled": 5.0}, "reject", "quota"),
        ({"gpu": replace(GPU, throttle_reasons=("hardware thermal",))}, "reject", "held back by hardware thermal"),
        ({"gpu": replace(GPU, throttle_reasons=("power cap",))}, "flag", "power cap"),
        ({"gpu": replace(GPU, ecc_uncorrected=2)}, "reject", "2 uncorrected"),
        ({"gpu": replace(GPU, sm_clock_mhz=900)}, "flag", "900 of 1980 MHz"),
        ({"gpu": GPU}, "pass", ""),
        ({"foreign": 9.0, "throttled": 0.2}, "reject", "quota"),
    ],
)
def test_what_disturbs_is_named_and_the_gravest_counts(changes, expected, reason):
    found = status(**changes)
    assert found.status == expected
    assert reason in "; ".join(found.reasons)


def test_neighbours_on_spare_cores_do_not_crowd():
    assert status(threads=CORES - 1, mine=(CORES - 1) * 10.0, foreign=9.0).status == "pass"


def test_a_slow_clock_at_rest_is_no_fault():
    before, after = snapshots(mine=0.0, gpu=replace(GPU, sm_clock_mhz=300, throttle_reasons=("idle",)))
    assert judge(before, after, running=None, threads=CORES).status == "pass"


def test_a_process_that_comes_to_the_card_is_seen():
    before, after = snapshots(gpu=GPU)
    after = replace(after, gpus=(replace(GPU, pids=(11, 99)),))
    found = judge(before, after, running=ME, threads=CORES)
    assert found.status == "flag" and "1 more processes came" in found.reasons[0]


def test_one_tick_of_a_coarse_counter_is_not_a_neighbour():
    assert status(seconds=0.05, foreign=0.01 * CORES).status == "pass"


def test_a_real_neighbour_is_seen_and_named():
    """One busy process per core, against a watch of half a second."""
    spin = "import time\nend = time.time() + 30\nwhile time.time() < end: pass"
    busy = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(CORES)]
    try:
        found = health.at_rest([os.getpid()], threads=CORES, seconds=0.6)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert found.status == "reject"
    (named,) = [reason for reason in found.reasons if reason.startswith("busiest: ")]
    assert "not visible" not in named


def test_waiting_is_bounded():
    spin = "import time\nend = time.time() + 30\nwhile time.time() < end: pass"
    busy = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(CORES)]
    try:
        found, waited_s = health.wait_until_fit([os.getpid()], CORES, patience_s=0.5)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert found.status == "reject" and 0.4 < waited_s < 20


def test_our_own_work_is_not_a_neighbour():
    before = health.snapshot([os.getpid()])
    sum(i * i for i in range(3_000_000))
    after = health.snapshot([os.getpid()])
    spent = after.own_cpu_s[os.getpid()] - before.own_cpu_s[os.getpid()]
    assert spent > 0.05
    assert judge(before, after, os.getpid(), 1).readings["idle_cores"] == 0.0


def test_facts_are_plain_and_name_nobody():
    facts = machine.facts()
    text = json.dumps([facts, machine.libraries(), health.at_rest(seconds=0.05).to_dict()])
    assert facts["usable_cores"] >= 1 and facts["memory_bytes"] > 2**28 and facts["python"]
    assert machine.libraries()["torch"]
    for private in (os.uname().nodename, os.path.expanduser("~")):
        if len(private) > 3:
            assert private not in text


def test_a_cpu_quota_bounds_the_cores(monkeypatch, tmp_path):
    """Version 2 of the cgroup files, with a limit above the process's own group."""
    inner = tmp_path / "slice" / "unit"
    inner.mkdir(parents=True)
    (inner / "cpu.max").write_text("max 100000\n")
    (tmp_path / "slice" / "cpu.max").write_text("150000 100000\n")
    (inner / "cpu.stat").write_text("usage_usec 5\nnr_throttled 2\nthrottled_usec 2500000\n")
    (inner / "memory.max").write_text("1048576\n")
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    real = machine._read
    monkeypatch.setattr(
        machine, "_read", lambda path: "0::/slice/unit\n" if str(path) == "/proc/self/cgroup" else real(path)
    )
    assert machine.cpu_quota_cores() == 1.5
    assert machine.usable_cores() == 1
    assert machine.throttled_s() == 2.5
    assert machine.memory_limit_bytes() == 1048576


def test_an_arm_that_works_is_not_counted_for_its_parent_too():
    """The parent is watched beside its arms: the running arm's time must not come back as an idle process's."""
    burn = "import time; end = time.process_time() + 0.6\nwhile time.process_time() < end: pass"
    with subprocess.Popen([sys.executable, "-c", burn]) as child:
        watched = [child.pid, os.getpid()]
        before = health.snapshot(watched)
        time.sleep(0.4)
        after = health.snapshot(watched)
    used = {pid: after.own_cpu_s[pid] - before.own_cpu_s[pid] for pid in watched}
    assert used[child.pid] > 0.1
    assert used[os.getpid()] < used[child.pid] / 2
