"""A headless Chromium, told what to do through its DevTools protocol."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
from contextlib import ExitStack
from itertools import count
from typing import TYPE_CHECKING, Any

from websockets.sync.client import connect

from tests.harness.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Self

HEIGHT, PHONE = 900, 600
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--remote-debugging-port=0",
)  # fmt: skip


def chromium() -> str | None:
    """Return the browser's program, ``None`` where there is none."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Browser:
    """One page of a browser of its own. A context manager."""

    def __init__(self, directory: Path) -> None:
        program = chromium()
        assert program is not None
        profile = directory / "profile"
        self._numbers = count(1)
        self.messages: list[str] = []
        with ExitStack() as stack:
            log = stack.enter_context((directory / "chromium.log").open("wb"))
            process = subprocess.Popen(
                [program, *OPTIONS, f"--user-data-dir={profile}", "about:blank"], stdout=log, stderr=log
            )
            stack.callback(process.wait, timeout=PATIENCE_SECONDS)
            stack.callback(process.terminate)
            port_file = profile / "DevToolsActivePort"
            limit = time.monotonic() + PATIENCE_SECONDS
            while not (port_file.exists() and port_file.read_text().count("\n")):
                assert time.monotonic() < limit and process.poll() is None, "Chromium did not start"  # noqa: PT018
                time.sleep(0.05)  # it starts
            port, path = port_file.read_text().splitlines()[:2]
            self._socket = stack.enter_context(
                connect(f"ws://127.0.0.1:{port}{path}", max_size=None, open_timeout=PATIENCE_SECONDS)
            )
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        target = self._call("Target.createTarget", {"url": "about:blank"}, session=None)["targetId"]
        attached = self._call("Target.attachToTarget", {"targetId": target, "flatten": True}, session=None)
        self._session: str = attached["sessionId"]
        self._call("Runtime.enable")
        self._call("Log.enable")
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    def resize(self, width: int, height: int = HEIGHT) -> None:
        """Be a window of this size; a narrow one is a phone."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < PHONE}
        self._call("Emulation.setDeviceMetricsOverride", size)

    def prefer(self, scheme: str) -> None:
        """Prefer the scheme ``dark`` or ``light``."""
        self._call("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})

    def press(self, key: str) -> None:
        """Press and release a key, by its name in the DOM."""
        code = {"Tab": 9, "Enter": 13, "Escape": 27}[key]
        given = {"key": key, "code": key, "windowsVirtualKeyCode": code} | ({"text": "\r"} if key == "Enter" else {})
        self._call("Input.dispatchKeyEvent", {"type": "keyDown", **given})
        self._call("Input.dispatchKeyEvent", {"type": "keyUp", **given})

    def open(self, url: str) -> None:
        """Go to a page."""
        self._call("Page.navigate", {"url": url})
        self.until(f"document.readyState === 'complete' && location.href.startsWith({json.dumps(url)})")

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        found = self._call("Runtime.evaluate", {"expression": script, "returnByValue": True})
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, script: str) -> None:
        """Wait until an expression in the page is true."""
        limit = time.monotonic() + PATIENCE_SECONDS
        while not self.run(script):
            assert time.monotonic() < limit, f"not within {PATIENCE_SECONDS:g} s: {script}; {self.messages}"
            time.sleep(0.05)  # leaves the processor to the page

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """Keep what the whole page looks like, or the part of it in the window."""
        found = self._call("Page.captureScreenshot", {"format": "png", "captureBeyondViewport": whole})
        path.write_bytes(base64.b64decode(found["data"]))

    def _call(self, method: str, parameters: dict[str, Any] | None = None, session: str | None = "") -> Any:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters or {}}
        if session is not None:
            message["sessionId"] = self._session
        self._socket.send(json.dumps(message))
        while True:
            answer = json.loads(self._socket.recv(timeout=PATIENCE_SECONDS))
            if answer.get("id") == number:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        """Keep what the page complains about."""
        if event.get("method") == "Runtime.exceptionThrown":
            self.messages.append(json.dumps(event["params"]["exceptionDetails"])[:500])
        elif event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
            self.messages.append(event["params"]["entry"]["text"])
