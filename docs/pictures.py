"""Make the picture in README.md: ``python docs/pictures.py [FOLDER]``.

It is the top of the report page that ``tenon compile --report`` writes for the network in ``examples/digits``, as
headless Chromium shows it.  FOLDER is ``docs/_static`` unless it is given.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).parent
MODEL = DOCS.parent / "examples" / "digits" / "digits.onnx"
TARGET = "x86-64-avx2"
"""The target whose output README.md shows."""
SIZE = (1400, 740)  # width and height in pixels
NAMES = ("chromium", "chromium-browser", "google-chrome")


def report(folder: Path) -> Path:
    """The report page of the digits network."""
    page = folder / "report.html"
    command = [sys.executable, "-m", "tenon", "compile", str(MODEL), "-o", str(folder / "out")]
    subprocess.run(
        [*command, "--target", TARGET, "--no-tuning", "--report", str(page)], check=True, capture_output=True
    )
    return page


def screenshot(page: Path, picture: Path, browser: str) -> None:
    """Write the top of a page as PNG; the browser has no network."""
    width, height = SIZE
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
    flags += [f"--window-size={width},{height}", f"--user-data-dir={page.parent / 'browser'}"]
    offline = "--proxy-server=127.0.0.1:9"
    command = [browser, *flags, offline, f"--screenshot={picture}", page.as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=120)


def main(folder: Path) -> None:
    browser = next((path for name in NAMES if (path := shutil.which(name))), None)
    if browser is None:
        raise SystemExit("docs/pictures.py: no browser: apt-get install chromium")
    with tempfile.TemporaryDirectory() as made:
        screenshot(report(Path(made)), folder.resolve() / "report.png", browser)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS / "_static")
