"""Opens pages in a headless browser, offline: the resulting document of a page, or a session that uses the page."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import re
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
TIMEOUT = 60.0  # s


def browser() -> str:
    """The installed browser; skips the test if there is none."""
    program = next((path for name in NAMES if (path := shutil.which(name))), None)
    if program is None:
        pytest.skip("no browser: scripts/install --emulators installs Debian's chromium")
    return program


def _flags(folder: Path) -> list[str]:
    return [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1400,900",
        "--proxy-server=127.0.0.1:9",
        f"--user-data-dir={folder / 'browser'}",
    ]


class ProtocolError(Exception):
    """A method that the browser answered with an error."""


class Session:
    """A page in a browser, driven by the DevTools protocol over pipes."""

    def __init__(self, commands: int, answers: int) -> None:
        self.commands, self.answers, self.numbers = commands, answers, itertools.count(1)
        self.received, self.session, self.errors = b"", "", list[str]()
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "DOM", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a method of the protocol."""
        number = next(self.numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        while (answer := self._message()).get("id") != number:
            kind, about = answer.get("method"), answer.get("params", {})
            if kind == "Runtime.exceptionThrown" or (kind == "Log.entryAdded" and about["entry"]["level"] == "error"):
                self.errors.append(json.dumps(about))
        if "error" in answer:
            raise ProtocolError(answer)
        result: dict[str, Any] = answer["result"]
        return result

    def open(self, address: str) -> None:
        self.call("Page.navigate", url=address)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def evaluate(self, expression: str) -> Any:
        """The value of an expression of JavaScript, of a promise its result."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, condition: str) -> None:
        """Wait until an expression is true.  While another page is opened, the browser may refuse to evaluate it."""
        end, reasons = time.monotonic() + TIMEOUT, self.errors
        while True:
            try:
                if self.evaluate(condition):
                    return
            except ProtocolError as error:
                reasons = [*self.errors, str(error)]
            assert time.monotonic() < end, f"never true: {condition}; {reasons}"
            time.sleep(0.02)

    def phone(self, width: int = 420, height: int = 800) -> None:
        """Show the page as a phone does."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=True)

    def choose(self, selector: str, *files: Path) -> None:
        """Choose files for a file input."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(file.resolve()) for file in files])

    def draw(self, points: list[tuple[float, float]]) -> None:
        """Draw a line with the mouse, from point to point of the window."""
        for kind, at in (("mousePressed", points[:1]), ("mouseMoved", points), ("mouseReleased", points[-1:])):
            for x, y in at:
                self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self.received:
            ready, _, _ = select.select([self.answers], [], [], TIMEOUT)
            part = os.read(self.answers, 1 << 20) if ready else b""
            assert part, "the browser does not answer"
            self.received += part
        text, _, self.received = self.received.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message


@contextlib.contextmanager
def session(folder: Path, *flags: str) -> Iterator[Session]:
    """A browser with a folder for its data, offline; skips the test if none is installed."""
    program = browser()
    (their_commands, commands), (answers, their_answers) = os.pipe(), os.pipe()
    shell = f'exec "$@" 3<&{their_commands} 4>&{their_answers}'
    command = ["bash", "-c", shell, "-", program, *_flags(folder), "--remote-debugging-pipe", *flags]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, pass_fds=(their_commands, their_answers), stdout=quiet, stderr=quiet)
    os.close(their_commands)
    os.close(their_answers)
    try:
        running = Session(commands, answers)
        yield running
        running.session = ""
        running.call("Browser.close")
        process.wait(TIMEOUT)
    finally:
        process.kill()
        process.wait()
        os.close(commands)
        os.close(answers)


def opened(page: Path, script: str = "", fragment: str = "") -> str:
    """The document of a page after its scripts, and ``script``, have run; skips the test if no browser is installed."""
    program = browser()
    tested = page.with_name(f"{page.stem}-tested.html")
    watch = "<script>window.onerror = text => { document.body.dataset.error = text; };</script>"
    text = page.read_text(encoding="utf-8").replace("<style>", f"{watch}<style>", 1)
    tested.write_text(text + (f"<script>{script}</script>" if script else ""), encoding="utf-8")
    command = [
        program,
        *_flags(page.parent),
        "--virtual-time-budget=3000",
        "--dump-dom",
        f"{tested.as_uri()}{fragment}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def results(path: Path, *expressions: str) -> list[Any]:
    """The values of expressions of JavaScript, evaluated in order in the page, which must not have an error."""
    values = ", ".join(f"({each})" for each in expressions)
    done = opened(path, f"document.body.dataset.result = JSON.stringify([{values}]);")
    assert "data-error" not in done
    match = re.search(r'data-result="(.*?)"', done)
    assert match
    values_found: list[Any] = json.loads(unescape(match[1]))
    return values_found
