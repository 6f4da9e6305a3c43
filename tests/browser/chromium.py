"""Headless Chromium driven over a pipe: no port, no driver package, and every request and message is recorded."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Chromium reads commands from descriptor 3 and writes answers to 4.
_AS_3_AND_4 = (
    "import os,sys; os.dup2(int(sys.argv[1]),3); os.dup2(int(sys.argv[2]),4); os.execvp(sys.argv[3],sys.argv[3:])"
)
PATIENCE = 60.0


def chromium_path() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Chromium:
    """One page. `requests` are the addresses it asked for, `problems` its errors and warnings, since the last visit."""

    def __init__(self, program: str) -> None:
        self._folder = tempfile.mkdtemp(prefix="warp-browser-")
        to_read, self._to = (_high(fd) for fd in os.pipe())
        self._from, to_write = (_high(fd) for fd in os.pipe())
        options = [
            "--headless=new",
            "--remote-debugging-pipe",
            f"--user-data-dir={self._folder}",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--no-first-run",
            "--hide-scrollbars",
            "about:blank",
        ]
        command = [sys.executable, "-c", _AS_3_AND_4, str(to_read), str(to_write), program, *options]
        self._process = subprocess.Popen(
            command,
            pass_fds=(to_read, to_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_read)
        os.close(to_write)
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        self.requests: list[str] = []
        self.problems: list[str] = []
        self._loaded = False
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log", "Audits"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with contextlib.suppress(OSError, AssertionError):
            self._session = None
            self.call("Browser.close")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(10)
        os.close(self._to)
        os.close(self._from)
        shutil.rmtree(self._folder, ignore_errors=True)

    def visit(self, path: Path, *, width: int, height: int = 900) -> None:
        self.requests, self.problems, self._loaded = [], [], False
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.call("Page.navigate", url=path.as_uri())
        deadline = time.monotonic() + PATIENCE
        while not self._loaded:
            self._receive(deadline)
        self.value("new Promise(done => setTimeout(done, 200))")

    def value(self, expression: str) -> Any:
        """What JavaScript makes of it, outside the page's own content policy."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def screenshot(self, *, whole: bool = True) -> bytes:
        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"])

    def pdf(self) -> bytes:
        return base64.b64decode(self.call("Page.printToPDF", preferCSSPageSize=True, printBackground=True)["data"])

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
        deadline = time.monotonic() + PATIENCE
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return dict(answer["result"])

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], max(deadline - time.monotonic(), 0))
            assert ready, f"Chromium was silent for {PATIENCE:.0f} s"
            got = os.read(self._from, 1 << 20)
            assert got, "Chromium closed the connection"
            self._rest += got
        line, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(line)
        self._note(message.get("method", ""), message.get("params", {}))
        return dict(message)

    def _note(self, event: str, about: dict[str, Any]) -> None:
        if event == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])
        elif event == "Page.loadEventFired":
            self._loaded = True
        elif event == "Runtime.consoleAPICalled":
            self.problems.append(f"console {about['type']}")
        elif event == "Runtime.exceptionThrown":
            self.problems.append(about["exceptionDetails"]["text"])
        elif event == "Log.entryAdded":
            self.problems.append(about["entry"]["text"])
        elif event == "Audits.issueAdded":
            self.problems.append(about["issue"]["code"])


def _high(descriptor: int) -> int:
    """The same pipe under a number that is not 3 or 4."""
    found = fcntl.fcntl(descriptor, fcntl.F_DUPFD, 20)
    os.close(descriptor)
    return found
