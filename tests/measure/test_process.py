"""The wire: a child that dies, hangs or babbles is an error that says so, and none is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time

import psutil
import pytest

from qwen3lab.measure.process import Child, ChildFailed

READY = "say({'type': 'ready'})"


def child(body: str) -> Child:
    """A Python child that has `say(message)`, `hear()` and the descriptors `r` and `w`."""
    prelude = """
        import json, os, sys, time
        r, w = int(sys.argv[2]), int(sys.argv[4])
        lines = os.fdopen(r)
        def say(message): os.write(w, (json.dumps(message) + "\\n").encode())
        def hear(): return json.loads(lines.readline())
    """
    code = textwrap.dedent(prelude) + textwrap.dedent(body)
    return Child([sys.executable, "-c", code], dict(os.environ))


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def wait_until(condition, seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def test_messages_go_both_ways_however_long():
    c = child("while True: m = hear(); say({'type': 'echo', 'n': len(m['text']), 'text': m['text']})")
    try:
        for n in (1, 5_000_000):
            c.tell({"text": "x" * n}, 20)
            assert c.hear(20) == {"type": "echo", "n": n, "text": "x" * n}
    finally:
        c.close()


def test_what_a_library_prints_does_not_disturb():
    c = child("print('hello'); print('{\"type\": \"fake\"}', flush=True); say({'type': 'ready'}); time.sleep(60)")
    try:
        assert c.hear(20) == {"type": "ready"}
    finally:
        c.close()


def test_death_names_exit_code_and_the_end_of_stderr():
    c = child(f"{READY}; print('x' * 9000 + 'the reason', file=sys.stderr); sys.exit(7)")
    assert c.hear(20)["type"] == "ready"
    with pytest.raises(ChildFailed, match=r"closed its pipe \(exit code 7\).*the reason$") as caught:
        c.hear(20)
    assert len(str(caught.value)) < 3000
    c.close()


def test_silence_is_ended():
    c = child(f"{READY}; time.sleep(600)")
    assert c.hear(20)["type"] == "ready"
    start = time.monotonic()
    with pytest.raises(ChildFailed, match=r"said nothing for 0 s \(still running, killed\)"):
        c.hear(0.3)
    assert time.monotonic() - start < 5
    assert gone(c.pid)
    c.close()


def test_a_child_that_does_not_listen_is_ended():
    c = child(f"{READY}; time.sleep(600)")
    assert c.hear(20)["type"] == "ready"
    with pytest.raises(ChildFailed, match="not listened"):
        c.tell({"text": "x" * 1_000_000}, 0.3)
    c.close()


@pytest.mark.parametrize("line", ["hello", "[1]", "{}", '{"type": 3}', '{"type": "result", "t": NaN}', '{"type": "re'])
def test_garbage_is_named(line):
    c = child(f"os.write(w, {line!r}.encode() + b'\\n'); time.sleep(60)")
    with pytest.raises(ChildFailed, match="garbage"):
        c.hear(20)
    assert gone(c.pid)
    c.close()


def test_no_such_program():
    with pytest.raises(ChildFailed, match="cannot be started"):
        Child(["/nowhere/python"], {})


def test_closing_takes_the_grandchildren_along_and_can_be_done_twice():
    c = child(
        "import subprocess; p = subprocess.Popen(['sleep', '600']); say({'type': 'ready', 'pid': p.pid}); p.wait()"
    )
    grandchild = c.hear(20)["pid"]
    assert not gone(grandchild)
    c.close()
    c.close()
    assert wait_until(lambda: gone(grandchild)) and gone(c.pid)


def test_descriptors_do_not_pile_up():
    def once() -> None:
        c = child(READY)
        c.hear(20)
        c.close()

    once()
    before = psutil.Process().num_fds()
    for _ in range(3):
        once()
    with pytest.raises(ChildFailed):
        Child(["/nowhere/python"], {})
    assert psutil.Process().num_fds() == before


def test_a_worker_ends_with_its_parent_even_in_the_middle_of_a_run(markov):
    """The parent is killed with no chance to clean up, while its worker computes."""
    script = f"""
        import threading, time
        from qwen3lab.measure.arms import Arm, ArmProcess
        from qwen3lab.measure.workloads import WorkloadRequest
        with ArmProcess(Arm("a", "qwen3lab", {str(markov)!r}, threads=1)) as arm:
            print(arm.pid, flush=True)
            arm.run([WorkloadRequest((1, 2, 3), 8000)])
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True, env=os.environ.copy()
    ) as parent:
        worker = int(parent.stdout.readline())
        time.sleep(0.3)
        assert not gone(worker)
        parent.kill()
        parent.wait()
        assert wait_until(lambda: gone(worker)), "an orphan was left"
