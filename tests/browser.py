"""A headless browser, driven over the DevTools protocol through a pair of pipes."""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

PROGRAM = next((p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None)
_OPTIONS = (
    "--headless --remote-debugging-pipe --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run"
    " --disable-extensions --disable-background-networking --hide-scrollbars --window-size=1400,1000"
)
_PATIENCE = 60.0


class Browser:
    """A running browser with one page; keeps the requests that the page made and the errors that occurred."""

    def __init__(self, profile: Path) -> None:
        assert PROGRAM is not None
        commands, answers = os.pipe(), os.pipe()
        # under numbers above 3 and 4: the shell moves them to 3 and 4, where the browser expects them
        ends = [fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (commands[0], answers[1])]
        shell = 'reads=$1 writes=$2; shift 2; exec "$@" 3<&$reads 4>&$writes'
        options = [*_OPTIONS.split(), f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            ["bash", "-c", shell, "bash", *map(str, ends), PROGRAM, *options],
            pass_fds=ends,
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        for fd in (*ends, commands[0], answers[1]):
            os.close(fd)
        self._in, self._out, self._rest, self._count = commands[1], answers[0], b"", 0
        self._session: str | None = None
        self._loaded = 0
        self.requests: list[str] = []
        self.errors: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def close(self) -> None:
        """Ends the browser."""
        self._session = None
        self._write({"id": 0, "method": "Browser.close"})
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
        os.close(self._in)
        os.close(self._out)

    def _write(self, message: dict[str, Any]) -> None:
        os.write(self._in, json.dumps(message).encode() + b"\0")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a command of the protocol."""
        self._count += 1
        wanted = self._count
        message: dict[str, Any] = {"id": wanted, "method": method, "params": parameters}
        self._write(message | ({"sessionId": self._session} if self._session else {}))
        while True:
            found = self._read()
            if found.get("id") == wanted:
                assert "error" not in found, (method, found["error"])
                return dict(found["result"])

    def _read(self) -> dict[str, Any]:
        end = time.monotonic() + _PATIENCE
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._out], [], [], max(0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            more = os.read(self._out, 1 << 16)
            assert more, "the browser is gone"
            self._rest += more
        text, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, event: str, facts: dict[str, Any]) -> None:
        if event == "Page.loadEventFired":
            self._loaded += 1
        elif event == "Network.requestWillBeSent":
            self.requests.append(facts["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            self.errors.append(str(facts["exceptionDetails"]))
        elif event == "Log.entryAdded" and facts["entry"]["level"] in ("error", "warning"):
            self.errors.append(facts["entry"]["text"])
        elif event == "Runtime.consoleAPICalled":
            self.errors.append(str(facts["args"]))

    def open(self, path: Path) -> None:
        """Opens a file and waits until it has loaded."""
        self.requests.clear()
        self.errors.clear()
        before = self._loaded
        self.send("Page.navigate", url=path.resolve().as_uri())
        while self._loaded == before:
            self._read()

    def value(self, script: str) -> Any:
        """The value of a JavaScript expression; promises are awaited."""
        found = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, (script[:500], found["exceptionDetails"])
        return found["result"].get("value")

    def until(self, script: str) -> None:
        """Waits until an expression is true."""
        end = time.monotonic() + _PATIENCE
        while not self.value(script):
            assert time.monotonic() < end, script
            time.sleep(0.02)

    def point(self, x: float, y: float) -> None:
        """Moves the mouse."""
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, key: str) -> None:
        """Presses a key that is given by name."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        for kind in ("rawKeyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key])
