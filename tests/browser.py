"""Opens pages in a headless browser, offline, and returns the resulting document."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


def opened(page: Path, script: str = "", fragment: str = "") -> str:
    """The document of a page after its scripts, and ``script``, have run; skips the test if no browser is installed."""
    program = next((path for name in NAMES if (path := shutil.which(name))), None)
    if program is None:
        pytest.skip("no browser: scripts/install --emulators installs Debian's chromium")
    tested = page.with_name(f"{page.stem}-tested.html")
    watch = "<script>window.onerror = text => { document.body.dataset.error = text; };</script>"
    text = page.read_text(encoding="utf-8").replace("<style>", f"{watch}<style>", 1)
    tested.write_text(text + (f"<script>{script}</script>" if script else ""), encoding="utf-8")
    command = [
        program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1400,900",
        "--proxy-server=127.0.0.1:9", f"--user-data-dir={page.parent / 'browser'}", "--virtual-time-budget=3000",
        "--dump-dom", f"{tested.as_uri()}{fragment}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
