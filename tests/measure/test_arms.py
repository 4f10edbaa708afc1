"""An arm as a real worker process: it serves what it is told, says what ran, and whatever goes wrong names the arm."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

import checkpoints
from qwen3lab.measure.arms import Arm, ArmFailed, ArmProcess, checkpoint_identity, sharing
from qwen3lab.measure.engines import open_driver
from qwen3lab.measure.workloads import WorkloadRequest

FP32 = {"dtype": "float32"}
MIXED = [
    WorkloadRequest((5, 9, 2, 40, 7, 7, 301), 12),
    WorkloadRequest((17,), 5),
    WorkloadRequest(tuple(range(60, 90)), 9, inject_at_step=3),
]


@pytest.fixture(scope="module")
def ours(chaotic) -> Iterator[ArmProcess]:
    with ArmProcess(Arm("ours", "qwen3lab", chaotic, FP32, threads=1)) as process:
        yield process


def test_a_run_over_the_pipe_is_the_drivers_own(ours, chaotic):
    start = time.perf_counter()
    result = ours.run(MIXED)
    outside_s = time.perf_counter() - start
    here = open_driver("qwen3lab", str(chaotic), FP32 | {"num_kv_blocks": 512}).run(MIXED, lambda: None)
    assert [r.token_ids for r in result.requests] == [r.token_ids for r in here]
    assert [r.token_ids for r in ours.run(MIXED).requests] == [r.token_ids for r in here]
    assert max(r.token_times_s[-1] for r in result.requests) <= outside_s
    assert 50 * 2**20 < result.peak_rss_bytes < 4 * 2**30


def test_a_workers_peak_memory_is_its_own_not_its_parents():
    held = b"x" * (700 * 2**20)
    code = "from qwen3lab.measure.worker import peak_rss_bytes; print(peak_rss_bytes())"
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert 2**22 < int(told.stdout) < len(held)


def test_facts_say_what_ran(ours):
    facts = ours.facts
    assert (facts["engine"], facts["dtype"], facts["device"], facts["threads"]) == ("qwen3lab", "float32", "cpu", 1)
    assert facts["versions"]["torch"] and facts["attention"] and facts["batching"]
    assert os.sep + "tmp" not in str(facts) and os.path.expanduser("~") not in str(facts)


# ── what goes wrong ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_worker_killed_in_a_run_is_named(chaotic):
    with ArmProcess(Arm("victim", "qwen3lab", chaotic, FP32, threads=1)) as arm:
        threading.Timer(0.3, os.kill, (arm.pid, signal.SIGKILL)).start()
        with pytest.raises(ArmFailed, match=r"arm 'victim' has closed its pipe \(exit code -9\)"):
            arm.run([WorkloadRequest((1, 2, 3), 8000)])


def test_a_worker_that_hangs_is_ended(chaotic):
    with ArmProcess(Arm("sleeper", "qwen3lab", chaotic, FP32, threads=1), silence_timeout_s=2.0) as arm:
        threading.Timer(0.2, os.kill, (arm.pid, signal.SIGSTOP)).start()
        with pytest.raises(ArmFailed, match=r"arm 'sleeper' has said nothing for 2 s \(still running, killed\)"):
            arm.run([WorkloadRequest((1, 2, 3), 8000)])
        with pytest.raises(ProcessLookupError):
            os.kill(arm.pid, 0)


def test_a_worker_that_cannot_start_says_why(chaotic):
    with pytest.raises(ArmFailed, match=r"arm 'bad' reports TypeError: unknown option 'dtpye'"):
        ArmProcess(Arm("bad", "qwen3lab", chaotic, {"dtpye": "float32"}, threads=1)).wait_ready()


def test_arms_that_make_no_sense_are_refused_at_once(chaotic):
    with pytest.raises(ValueError, match=r"engine='ollama', allowed: qwen3lab, transformers"):
        Arm("x", "ollama", chaotic)
    with pytest.raises(ValueError, match="threads=0"):
        Arm("x", "qwen3lab", chaotic, threads=0)
    with pytest.raises(ArmFailed, match=r"arm 'x'.*cannot be started"):
        ArmProcess(Arm("x", "qwen3lab", chaotic, python="/nowhere/python"))


def test_a_checkpoint_is_known_by_its_content(tmp_path):
    one = checkpoint_identity(checkpoints.markov(tmp_path / "a" / "name"))
    again = checkpoint_identity(checkpoints.markov(tmp_path / "b" / "name"))
    other = checkpoint_identity(checkpoints.echo(tmp_path / "c" / "name"))
    assert one == again != other
    assert one["name"] == "name" and set(one["sha256"]) == {"config.json", "model.safetensors"}
    assert checkpoint_identity("Qwen/Qwen3-0.6B") == {"name": "Qwen/Qwen3-0.6B"}


def test_arms_on_one_card_share_its_memory_unless_they_say_otherwise():
    given = {
        "A": Arm("vllm", "vllm", "m", {"enforce_eager": True}),
        "B": Arm("qwen3lab", "qwen3lab", "m", {"gpu_memory_utilization": 0.3}),
    }
    assert sharing(given, cards=0) == given
    shared = sharing(given, cards=1)
    assert shared["A"].options == {"gpu_memory_utilization": 0.42, "enforce_eager": True}
    assert shared["B"].options == {"gpu_memory_utilization": 0.3}
    rival = {"A": Arm("transformers", "transformers", "m"), "B": given["B"]}
    assert sharing(rival, cards=1)["A"].options == {}
