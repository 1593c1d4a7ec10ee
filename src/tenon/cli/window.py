"""The window of OpenCV in which ``tenon run --show`` shows frames."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from tenon.errors import InputError
from tenon.runtime.engine.video import open_cv

if TYPE_CHECKING:
    from PIL.Image import Image as Photo

_NAME = "tenon"
_ESCAPE = 27
_TRIAL = "import cv2; cv2.namedWindow('tenon'); cv2.destroyAllWindows()"


@contextmanager
def window(wanted: bool) -> Iterator[Callable[[Photo], bool]]:
    """Yields a function that shows an image and returns whether to go on: not after "q" or Escape, nor when the window
    was closed.  If no window is ``wanted``, it shows nothing and goes on.

    Raises InputError if OpenCV is not installed or cannot open a window.
    """
    if not wanted:
        yield lambda photo: True
        return
    cv2 = open_cv()
    _try()

    def show(photo: Photo) -> bool:
        cv2.imshow(_NAME, np.asarray(photo)[:, :, ::-1])
        key = cv2.waitKey(1) & 0xFF
        return key not in (ord("q"), _ESCAPE) and _is_open(cv2)

    try:
        yield show
    finally:
        with suppress(cv2.error):
            cv2.destroyAllWindows()


def _is_open(cv2: Any) -> bool:
    try:
        return bool(cv2.getWindowProperty(_NAME, cv2.WND_PROP_VISIBLE) >= 1)
    except cv2.error:  # with Qt there is nothing to ask after its last window was closed
        return False


def _try() -> None:
    """Open a window in another process: without a display, OpenCV's Qt ends its process instead of raising an error."""
    done = subprocess.run([sys.executable, "-c", _TRIAL], capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        # the exception is on the last line, what Qt says before it ends the process on the first
        why = (lines[-1] if done.returncode > 0 else lines[0]) if lines else f"exit status {done.returncode}"
        raise InputError(
            f"--show: this OpenCV cannot open a window here ({why}): it takes a screen (DISPLAY, or ssh -X) and "
            "opencv-python, not opencv-python-headless; or write the frames with --draw out.avi"
        )
