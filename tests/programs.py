"""Programs that some tests need beside Python."""

from __future__ import annotations

import os
import shutil

import pytest

PATH = f"{os.environ['PATH']}{os.pathsep}/usr/lib/wine"
"""Where programs are looked for: Debian's wine64 is in a folder of its own."""


def needed(program: str) -> str:
    """The path of a program; skips the test if it is not installed."""
    path = shutil.which(program, path=PATH)
    if path is None:
        pytest.skip(f"{program} is not installed")
    return path
