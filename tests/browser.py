"""Headless Chromium over its debugging pipe: what a page shows, asks for and complains of. The network is off."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-extensions", "--hide-scrollbars",
    "--proxy-server=127.0.0.1:9", "--host-resolver-rules=MAP * ~NOTFOUND",
]  # fmt: skip
TIMEOUT_S = 60.0
# Chromium reads its pipe at descriptor 3 and writes at 4.
EXEC = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
os.dup2(ends[0], 3), os.dup2(ends[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """One page in one browser. `requests` are the addresses the page asked for, `complaints` what the console got."""

    def __init__(self) -> None:
        assert CHROMIUM, "no Chromium; install it, or leave the tests marked `browser` out"
        self._profile = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        their_read, self._write = os.pipe()
        self._read, their_write = os.pipe()
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={self._profile.name}", "--remote-debugging-pipe", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", EXEC, str(their_read), str(their_write), *command],
            pass_fds=(their_read, their_write),
            env={**os.environ, "TMPDIR": self._profile.name},  # what it leaves behind goes with the profile
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(their_read)
        os.close(their_write)
        self._buffer, self._ids, self._session = b"", itertools.count(1), None
        self.requests: list[str] = []
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def open(self, path: Path, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Load a local page at a width in px, and wait until it has loaded."""
        self.requests.clear()
        self.complaints.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=path.resolve().as_uri())
        self._until(lambda message: message.get("method") == "Page.loadEventFired")

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression in the page; a promise is awaited."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def screenshot(self, to: Path) -> Path:
        """The whole page, as PNG."""
        picture = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        to.write_bytes(base64.b64decode(picture))
        return to

    def close(self) -> None:
        self._session = None
        self.call("Browser.close")
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        os.close(self._write)
        self._profile.cleanup()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._ids)
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        answer = self._until(lambda found: found.get("id") == number)
        assert "error" not in answer, f"{method}: {answer['error']}"
        result: dict[str, Any] = answer["result"]
        return result

    def _until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first message that is wanted; events on the way are noted."""
        deadline_s = time.monotonic() + TIMEOUT_S
        while True:
            while b"\0" not in self._buffer:
                ready, _, _ = select.select([self._read], [], [], max(0.0, deadline_s - time.monotonic()))
                assert ready, f"Chromium said nothing for {TIMEOUT_S:.0f} s"
                chunk = os.read(self._read, 1 << 20)
                assert chunk, "Chromium ended"
                self._buffer += chunk
            line, self._buffer = self._buffer.split(b"\0", 1)
            message = json.loads(line)
            self._note(message.get("method"), message.get("params", {}))
            if wanted(message):
                return dict(message)

    def _note(self, method: str | None, params: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("warning", "error"):
            self.complaints.append(params["entry"]["text"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(params["exceptionDetails"]["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("warning", "error", "assert"):
            self.complaints.append(str([argument.get("value") for argument in params["args"]]))
