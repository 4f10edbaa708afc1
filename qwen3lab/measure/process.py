"""A child process spoken to in JSON lines over two pipes of its own, with a limit on every silence.

Knows processes, bytes and time; what the messages mean is arms.py's business. The child gets the descriptors as
`--read-fd` and `--write-fd`; its stdout and stderr go to a file of which the end is shown when something fails.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

STDERR_TAIL_CHARS = 2000
MAX_LINE_BYTES = 256 * 2**20
EXIT_GRACE_S = 2.0


class ChildFailed(RuntimeError):
    """The child died, went silent or answered something that is not the protocol."""


class Child:
    """One child and everything it starts: a process group, ended as a whole by `close`."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        """Start it. ChildFailed where there is no such program."""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (close() closes it)
        self._buffer = bytearray()
        self._ended = False
        child_reads, self._commands = os.pipe()
        self._answers, child_writes = os.pipe()
        try:
            self._process = subprocess.Popen(
                [*argv, "--read-fd", str(child_reads), "--write-fd", str(child_writes)],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=(child_reads, child_writes),
                start_new_session=True,  # one group to end; and Ctrl-C reaches the parent alone, which then closes
            )
        except OSError as error:
            os.close(self._commands)
            os.close(self._answers)
            raise ChildFailed(f"{argv[0]} cannot be started ({error.strerror})") from None
        finally:
            os.close(child_reads)
            os.close(child_writes)
        os.set_blocking(self._commands, False)
        os.set_blocking(self._answers, False)

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, message: Mapping[str, Any], timeout_s: float) -> None:
        """Send one message; a child that does not read it within `timeout_s` has failed."""
        rest = memoryview(json.dumps(message, allow_nan=False).encode() + b"\n")
        deadline_s = time.monotonic() + timeout_s
        while rest:
            self._wait(self._commands, selectors.EVENT_WRITE, deadline_s, f"has not listened for {timeout_s:.0f} s")
            try:
                rest = rest[os.write(self._commands, rest) :]
            except BrokenPipeError:
                raise self.failed("has closed its pipe") from None

    def hear(self, timeout_s: float) -> dict[str, Any]:
        """The child's next message; one with a "type". Silence for `timeout_s` is a failure."""
        deadline_s = time.monotonic() + timeout_s
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > MAX_LINE_BYTES:
                raise self.failed(f"answered over {MAX_LINE_BYTES} bytes without an end")
            self._wait(self._answers, selectors.EVENT_READ, deadline_s, f"has said nothing for {timeout_s:.0f} s")
            chunk = os.read(self._answers, 1 << 20)
            if not chunk:
                raise self.failed("has closed its pipe")
            self._buffer += chunk
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        try:
            message = json.loads(line, parse_constant=_refuse_constant)
            if not isinstance(message, dict) or not isinstance(message.get("type"), str):
                raise ValueError("not a message")
        except ValueError:
            raise self.failed(f"answered garbage: {line[:80]!r}") from None
        return message

    def failed(self, why: str) -> ChildFailed:
        """The error to raise: `why`, the exit code if it has one, the end of its stderr. The group is killed first."""
        with suppress(subprocess.TimeoutExpired):  # a pipe that closed is usually a process about to be gone
            self._process.wait(EXIT_GRACE_S if "closed" in why else 0)
        code = self._process.poll()
        self._kill()
        self._log.seek(0)
        tail = self._log.read().decode(errors="replace").strip()[-STDERR_TAIL_CHARS:]
        state = "still running, killed" if code is None else f"exit code {code}"
        return ChildFailed(f"{why} ({state}). Its stderr ends: {tail or 'empty'}")

    def close(self) -> None:
        """End the whole group. Safe to call twice."""
        self._kill()
        for name in ("_commands", "_answers"):
            if (fd := getattr(self, name)) >= 0:
                os.close(fd)
                setattr(self, name, -1)
        self._log.close()

    def _kill(self) -> None:
        if self._ended:  # its number may be another's by now
            return
        with suppress(ProcessLookupError, PermissionError):  # macOS: EPERM for a group of zombies
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._ended = True

    def _wait(self, fd: int, event: int, deadline_s: float, why: str) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(fd, event)
            if not selector.select(max(0.0, deadline_s - time.monotonic())):
                raise self.failed(why)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
