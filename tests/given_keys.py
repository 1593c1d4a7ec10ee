"""The forms in which users give a key of 32 bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

FORMS = ("file", "bytes", "function", "variable", "digits")
"""As a file, bytes, a function, TENON_KEY_FILE, TENON_KEY."""


def given_key(form: str, key: bytes, file: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The keyword arguments that give a key, which ``file`` holds, in a form; the last two set the environment."""
    if form == "variable":
        monkeypatch.setenv("TENON_KEY_FILE", str(file))
    if form == "digits":
        monkeypatch.setenv("TENON_KEY", key.hex())
    keys = {"file": file, "bytes": key, "function": lambda: key}
    return {"key": keys[form]} if form in keys else {}
