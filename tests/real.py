"""Real models, photos and golden files beside the project; tests that need them are skipped if they are absent."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tenon.network.graph.graph import Array

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
DIGITS = ROOT / "examples" / "digits"


def shared(path: str) -> Path:
    """A file or folder beside the project; skips the test if it is absent."""
    target = SHARED / path
    if not target.exists():
        pytest.skip(f"no {target.relative_to(ROOT.parent)} beside the project")
    return target


def zoo_names() -> list[str]:
    return sorted(p.stem for p in (SHARED / "zoo").glob("*.onnx"))


def zoo_model(name: str, folder: Path) -> Path:
    """A graph of the zoo, filled with its fixed-seed weights, in ``folder``."""
    command = [sys.executable, str(shared("zoo/materialize.py")), str(folder), name]
    subprocess.run(command, check=True, capture_output=True)
    return folder / f"{name}.onnx"


@cache
def held_out_digits() -> tuple[Array, Array]:
    """(images [n, 1, 1, 8, 8] of 0..255, labels) of the test split of the digits example."""
    from PIL import Image

    labels = [list(map(int, line)) for line in (DIGITS / "held_out.txt").read_text().split()]
    with Image.open(DIGITS / "held_out.png") as sheet:
        pixels = np.asarray(sheet, np.float32)
    rows, columns = len(labels), len(labels[0])
    images = pixels.reshape(rows, 8, columns, 8).transpose(0, 2, 1, 3).reshape(-1, 1, 1, 8, 8)
    return np.ascontiguousarray(images), np.array(labels).reshape(-1)
