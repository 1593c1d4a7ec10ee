"""Symbols and networks compared with MXNet: ``TENON_MXNET`` names a Python that has MXNet 1.9 and NumPy 1.23."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from evaluate import evaluate
from real import ROOT
from tenon.errors import ModelError
from tenon.formats import importers

PYTHON = os.environ.get("TENON_MXNET", "")


def difference(folder: Path) -> str:
    """The difference for one symbol; empty if the results match."""
    with np.load(folder / "io.npz") as arrays:
        inputs = {k[3:]: v for k, v in arrays.items() if k.startswith("in_")}
        expected = [v for k, v in arrays.items() if k.startswith("out_")]
    try:
        graph = importers.load(folder / "net-symbol.json", {k: v.shape for k, v in inputs.items()})
    except ModelError as error:
        return str(error)
    actual = list(evaluate(graph, {v.name: inputs[v.name].astype(v.type.dtype.numpy) for v in graph.inputs}).values())
    if [y.shape for y in actual] != [y.shape for y in expected]:
        return f"{[y.shape for y in actual]} in place of {[y.shape for y in expected]}"
    gaps = [
        np.abs(ours - theirs).max() / max(1, np.abs(theirs).max())
        for ours, theirs in zip(actual, expected, strict=True)
    ]
    return "" if max(gaps) < 1e-4 else f"differs by {max(gaps):.2g}"


@pytest.mark.skipif(not PYTHON, reason="TENON_MXNET names no Python that has MXNet")
def test_symbols_match_mxnet(tmp_path: Path) -> None:
    folder = tmp_path / "symbols"
    folder.mkdir()
    made = subprocess.run(
        [PYTHON, ROOT / "tests/peers/mxnet_symbols.py", folder],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": ""},
    )
    assert made.returncode == 0, made.stderr[-2000:]
    folders = sorted(folder.iterdir())
    assert len(folders) > 200
    assert {f.name: wrong for f in folders if (wrong := difference(f))} == {}
