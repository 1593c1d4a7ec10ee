"""The search on a network of two small convolutions."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest

import tenon
from tenon.errors import InputError
from tenon.ir.graph import Graph
from tenon.ir.types import F32, tensor
from tenon.ops.conv import Conv
from tenon.pipeline import tune
from tenon.tune.table import Kind, Table


@pytest.fixture
def graph() -> Graph:
    rng = np.random.default_rng(0)
    g = Graph("two")
    x = g.add_input("x", tensor(F32, 1, 16, 12, 12))
    for i in range(2):
        w = g.constant(f"w{i}", rng.standard_normal((16, 16, 3, 3)).astype(np.float32))
        x = g.add(Conv(pads=(1, 1, 1, 1)), [x, w], [f"y{i}"]).output
    g.outputs = [x]
    return g


def test_search_is_remembered_and_used(graph: Graph, tmp_path: Path) -> None:
    path = tmp_path / "table.sqlite"
    (found,) = tune(graph, tuning=path)
    assert found.count == 2  # equal layers are measured once
    assert len(found.seconds) > 5
    assert {name.split("(")[0] for name in found.seconds} == {"Tile", "Blocking"}
    assert found.excess >= 1
    (again,) = tune(graph, tuning=path)
    assert again.seconds == found.seconds
    # What the table says is what is compiled: make one candidate the fastest.
    with sqlite3.connect(path) as db:
        slow = next(name for name in found.seconds if name.startswith("Tile"))
        db.execute("update candidates set seconds = 1e-9 where candidate = ?", (slow,))
    db.close()
    kernels = {c.kernel.name for c in tenon.compile(graph, tuning=path).program.calls}
    assert any(name.startswith("conv3x3") for name in kernels)
    with sqlite3.connect(path) as db:
        fast = next(name for name in found.seconds if name.startswith("Blocking"))
        db.execute("update candidates set seconds = 1e-10 where candidate = ?", (fast,))
    db.close()
    kernels = {c.kernel.name for c in tenon.compile(graph, tuning=path).program.calls}
    assert any(name.startswith("winograd") for name in kernels)


def test_every_choice_gives_the_same_answer(graph: Graph, tmp_path: Path) -> None:
    path = tmp_path / "table.sqlite"
    (found,) = tune(graph, tuning=path)
    x = np.random.default_rng(1).standard_normal((1, 16, 12, 12)).astype(np.float32)
    answers = []
    for name in found.seconds:
        with sqlite3.connect(path) as db:
            db.execute("update candidates set seconds = case candidate when ? then 1e-9 else 1 end", (name,))
        db.close()
        with tenon.open(tenon.compile(graph, tuning=path)) as engine:
            answers.append(engine.run(x)["y1"])
    scale = float(np.abs(answers[0]).max())
    for answer in answers:
        # F(4, 3) loses about four bits to the transforms; two layers of it stay far inside this.
        np.testing.assert_allclose(answer, answers[0], atol=2e-5 * scale, rtol=0)


def test_a_table_that_is_no_table(graph: Graph, tmp_path: Path) -> None:
    path = tmp_path / "table.sqlite"
    path.write_text("not a database, but long enough to be taken for one" * 40)
    with pytest.raises(InputError, match="not a usable tuning table"):
        tenon.compile(graph, tuning=path)


def test_kinds_do_not_mix(tmp_path: Path) -> None:
    table = Table(tmp_path / "t.sqlite")
    assert table.times(Kind("a", "zig", 1)) == {}
    table.put(Kind("a", "zig", 1), "layer", {"fast": 1.0})
    table.put(Kind("a", "zig", 2), "layer", {"fast": 0.5})
    assert table.times(Kind("a", "zig", 1)) == {"layer": {"fast": 1.0}}
    assert table.times(Kind("a", "zig", 2)) == {"layer": {"fast": 0.5}}
