"""Tuning of a network of two small convolutions, and the tuning table."""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tenon
from tenon.cli.bench_op import graph_of, select
from tenon.compilation import resolved
from tenon.errors import TenonWarning
from tenon.machine.kernel_ir.text import show
from tenon.machine.plan.lower import plan
from tenon.machine.plan.lowering_context import Setting, key, operator, site
from tenon.machine.plan.program import Program
from tenon.machine.targets import find
from tenon.network.graph.graph import Graph
from tenon.network.graph.types import F32, tensor
from tenon.network.ops.conv import Conv
from tenon.options import Options
from tenon.pipeline import find_target, tune
from tenon.runtime.bundle import Bundle, read_manifest
from tenon.tools.tune import table
from tenon.tools.tune.search import Bench, Job, LayerTimes, in_turn, jobs
from tenon.tools.tune.table import Kind, TimesTable, generator_version


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


def test_measured_times_are_stored_and_used(graph: Graph, tmp_path: Path) -> None:
    path = tmp_path / "table.sqlite"
    (tuned,) = tune(graph, tuning=path)
    assert tuned.count == 2  # equal layers are measured once
    assert len(tuned.seconds) > 5
    assert {name.split()[0] for name in tuned.seconds} <= {"direct", "winograd", "strassen"}
    assert {"direct", "winograd"} <= {name.split()[0] for name in tuned.seconds}
    assert tuned.excess >= 1
    (again,) = tune(graph, tuning=path)
    assert again.seconds == tuned.seconds
    # The compiled candidate is the fastest one of the table: make each the fastest in turn.
    with sqlite3.connect(path) as db:
        slow = next(name for name in tuned.seconds if name.startswith("direct "))
        db.execute("update measured set seconds = 1e-9 where candidate = ?", (slow,))
    db.close()
    kernels = {c.kernel.name for c in tenon.compile(graph, tuning=path).program.calls}
    assert any(name.startswith("conv3x3") for name in kernels)
    with sqlite3.connect(path) as db:
        fast = next(name for name in tuned.seconds if name.startswith("winograd "))
        db.execute("update measured set seconds = 1e-10 where candidate = ?", (fast,))
    db.close()
    kernels = {c.kernel.name for c in tenon.compile(graph, tuning=path).program.calls}
    assert any(name.startswith("winograd") for name in kernels)


def test_tiles_of_integers_are_measured_and_used(tmp_path: Path) -> None:
    case = select("IntegerConv_1x512x14x14_k1")[0]
    small = replace(case, inputs=((1, 512, 3, 3), *case.inputs[1:]))
    path = tmp_path / "table.sqlite"
    (tuned,) = tune(graph_of(small), tuning=path)
    assert {name.split()[0] for name in tuned.seconds} == {"integer"}
    for tile in list(tuned.seconds)[:2]:
        with closing(sqlite3.connect(path)) as db, db:
            db.execute("update measured set seconds = 1 where seconds < 1")
            db.execute("update measured set seconds = 1e-9 where candidate = ?", (tile,))
        (node,) = (n for n in tenon.compile(graph_of(small), tuning=path).program.calls if n.op == "IntegerConv")
        cols, vecs = (int(part.split("=")[1]) for part in tile.split()[2:])
        assert f"1x{cols}x{vecs}v" in show(node.kernel)


def test_every_candidate_gives_the_same_result(graph: Graph, tmp_path: Path) -> None:
    path = tmp_path / "table.sqlite"
    (tuned,) = tune(graph, tuning=path)
    x = np.random.default_rng(1).standard_normal((1, 16, 12, 12)).astype(np.float32)
    answers = []
    for name in tuned.seconds:
        with sqlite3.connect(path) as db:
            db.execute("update measured set seconds = case candidate when ? then 1e-9 else 1 end", (name,))
        db.close()
        with tenon.open(tenon.compile(graph, tuning=path)) as engine:
            answers.append(engine.run(x)["y1"])
    scale = float(np.abs(answers[0]).max())
    for answer in answers:
        # F(4, 3) loses about four bits in the transforms; two such layers are well within this.
        np.testing.assert_allclose(answer, answers[0], atol=2e-5 * scale, rtol=0)


def test_candidates_in_turn_compute_what_each_computes_alone(tmp_path: Path) -> None:
    """The last candidate of a program leaves its results; constants of the others lie beside its own."""
    options = Options(cache=tmp_path)
    compilation = resolved(options, find_target(options))
    graph = Graph("one")
    w = graph.constant("w", np.random.default_rng(0).standard_normal((16, 16, 3, 3)).astype(np.float32))
    graph.outputs = [
        graph.add(Conv(pads=(1, 1, 1, 1)), [graph.add_input("x", tensor(F32, 1, 16, 12, 12)), w], ["y"]).output
    ]
    (node,) = graph
    candidates = [each.key for each in operator(node).candidates(site(node, compilation.setting))]
    names = [next(name for name in candidates if name.startswith(kind)) for kind in ("direct ", "winograd ")]
    programs = [plan(graph, replace(compilation.setting, algorithms={key(node): name}), "layer") for name in names]
    x = np.random.default_rng(1).standard_normal((1, 16, 12, 12)).astype(np.float32)

    def answer(*some: Program) -> np.ndarray[Any, Any]:
        with tenon.open(Bundle.of(in_turn(some), compilation)) as engine:
            return next(iter(engine.run({"x": x}).values()))

    direct, winograd = map(answer, programs)
    assert (direct != winograd).any()
    np.testing.assert_array_equal(answer(*programs), winograd)
    np.testing.assert_array_equal(answer(*reversed(programs)), direct)


def _damaged(path: Path) -> None:
    path.write_text("not a database, but long enough to be taken for one" * 40)


def _damaged_inside(path: Path) -> None:
    """A valid table in which the pages after the first are overwritten."""
    for i in range(200):
        TimesTable(path).put(Kind("a", "zig"), f"layer {i}", {"fast": 1.0})
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\x5a" * (len(whole) - 4096))


def _a_folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("spoil", [_damaged, _damaged_inside, _a_folder])
def test_invalid_table_is_a_warning(
    graph: Graph, tmp_path: Path, spoil: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "table.sqlite"
    spoil(path)
    plain = tenon.compile(graph, no_tuning=True)
    with pytest.warns(TenonWarning, match=r"table\.sqlite: not a usable tuning table"):
        bundle = tenon.compile(graph, tuning=path)
    assert bundle.source == plain.source
    assert bundle.tuned is None
    monkeypatch.setattr("tenon.tools.tune.search.measure", _estimated)
    with pytest.warns(TenonWarning) as warnings:
        (tuned,) = tune(graph, tuning=path)
    assert tuned.seconds
    assert "the tuning table cannot be written" in str(warnings[-1].message)


def test_full_disk_is_a_warning(graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenon.tools.tune.search.measure", _estimated)

    class Full(sqlite3.Connection):
        def executemany(self, *arguments: Any) -> Any:
            raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr("tenon.tools.tune.table.sqlite3.connect", partial(sqlite3.connect, factory=Full))
    with pytest.warns(TenonWarning, match="cannot be written.*disk is full"):
        (tuned,) = tune(graph, tuning=tmp_path / "t.sqlite")
    assert tuned.seconds


def test_invalid_rows_are_ignored(tmp_path: Path) -> None:
    table, kind = TimesTable(tmp_path / "t.sqlite"), Kind("a", "zig")
    table.put(kind, "layer", {"fast": 1.0, "text": "soon", "never": float("inf"), "less": -1.0})  # type: ignore[dict-item]
    assert table.times(kind) == {"layer": {"fast": 1.0}}


def test_times_of_different_kinds_are_separate(tmp_path: Path) -> None:
    table = TimesTable(tmp_path / "t.sqlite")
    assert table.times(Kind("a", "zig", 1)) == {}
    table.put(Kind("a", "zig", 1), "layer", {"fast": 1.0})
    table.put(Kind("a", "zig", 2), "layer", {"fast": 0.5})
    assert table.times(Kind("a", "zig", 1)) == {"layer": {"fast": 1.0}}
    assert table.times(Kind("a", "zig", 2)) == {"layer": {"fast": 0.5}}
    assert table.times(Kind("a", "zig", 1, "another generator")) == {}
    assert table.nearest(Kind("a", "zig", 1, "another generator")) == {}


def test_times_of_the_nearest_number_of_threads(tmp_path: Path) -> None:
    table = TimesTable(tmp_path / "t.sqlite")
    for threads in (1, 2, 4):
        table.put(Kind("a", "zig", threads), "layer", {"fast": float(threads)})
    table.put(Kind("a", "zig", 4), "only with 4", {"fast": 4.0})
    assert table.nearest(Kind("a", "zig", 2)) == {"layer": {"fast": 2.0}, "only with 4": {"fast": 4.0}}
    assert table.nearest(Kind("a", "zig", 3))["layer"] == {"fast": 2.0}
    assert table.nearest(Kind("a", "zig", 8))["layer"] == {"fast": 4.0}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("made_for", [None, 1, 2])
def test_times_measured_with_other_thread_counts_are_used(
    graph: Graph, tmp_path: Path, threads: int, made_for: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenon.tools.tune.search.measure", _estimated)
    path = tmp_path / "t.sqlite"
    (tuned,) = tune(graph, tuning=path, threads=threads)
    bundle = tenon.compile(graph, tuning=path, threads=made_for)
    assert bundle.tuned is not None
    assert bundle.tuned.layers == 1
    assert min(tuned.seconds, key=tuned.seconds.__getitem__) != tuned.estimated
    assert bundle.source != tenon.compile(graph, no_tuning=True, threads=made_for).source


@pytest.mark.parametrize(
    ("options", "environment", "threads", "wanted"),
    [
        (None, "", None, 1),
        (None, "3", None, 3),
        (None, "3", 2, 2),
        (Options(threads=4), "3", None, 4),
        (Options(), "3", None, 1),
    ],
)
def test_threads_option_of_tune(
    graph: Graph,
    options: Options | None,
    environment: str,
    threads: int | None,
    wanted: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def searched(graph: Graph, bench: Bench, *rest: object, **more: object) -> Iterator[LayerTimes]:
        asked.append(bench.setting.threads)
        yield from ()

    monkeypatch.setattr("tenon.pipeline.search", searched)
    if environment:
        monkeypatch.setenv("TENON_THREADS", environment)
    assert list(tune(graph, options, threads=threads, tuning=tmp_path / "t.sqlite")) == []
    assert asked == [wanted]


def test_times_of_an_older_generator_are_ignored(graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenon.tools.tune.search.measure", _estimated)
    path = tmp_path / "t.sqlite"
    list(tune(graph, tuning=path))
    assert tenon.compile(graph, tuning=path).tuned is not None
    monkeypatch.setattr("tenon.tools.tune.search.generator_version", lambda: "of tomorrow")
    assert tenon.compile(graph, tuning=path).tuned is None


def test_the_generator_version_follows_its_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = generator_version.__wrapped__()
    assert now == generator_version()
    monkeypatch.setattr(table, "_PACKAGE", tmp_path / "tenon")
    shutil.copytree(Path(tenon.__file__).parent, tmp_path / "tenon", ignore=shutil.ignore_patterns("__pycache__"))
    assert generator_version.__wrapped__() == now
    with (tmp_path / "tenon" / "machine" / "kernels" / "conv.py").open("a") as file:
        file.write("\n")
    assert generator_version.__wrapped__() != now


def test_manifest_contains_the_tuned_algorithms(graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bundles compiled with different tables have different digests; without tuning, the table has no effect."""
    monkeypatch.setattr("tenon.tools.tune.search.measure", _estimated)
    path = tmp_path / "t.sqlite"
    plain = tenon.compile(graph, tuning=path)
    (layer,) = tune(graph, tuning=path)
    tuned = tenon.compile(graph, tuning=path)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("update measured set seconds = 1e-9 where candidate = ?", (layer.estimated,))
    other = tenon.compile(graph, tuning=path)
    assert plain.tuned is None
    assert tuned.tuned is not None
    assert other.tuned is not None
    assert tuned.tuned.sha256 != other.tuned.sha256
    assert other.tuned == tenon.compile(graph, tuning=shutil.copy(path, tmp_path / "copy")).tuned
    folders = [tenon.compile(graph, tuning=path, no_tuning=True).save(tmp_path / "a"), plain.save(tmp_path / "b")]
    contents = [{p.name: p.read_bytes() for p in folder.iterdir()} for folder in folders]
    assert contents[0] == contents[1]
    assert read_manifest(tuned.save(tmp_path / "c")).tuned == tuned.tuned
    assert read_manifest(folders[0]).tuned is None


def test_keys_are_plain_text(graph: Graph) -> None:
    setting = Setting(find("x86-64-avx2").machine)
    (job,) = jobs(graph, setting)
    assert key(job.node) == "Conv(pads=(1, 1, 1, 1))(f32[1, 16, 12, 12], f32[16, 16, 3, 3]c) -> f32[1, 16, 12, 12]"
    texts = [each.key for each in job.candidates]
    assert len(set(texts)) == len(texts)
    for text in texts:
        assert re.fullmatch(r"(direct|winograd|strassen)( [a-z_]+=\d+)+", text)


def _estimated(job: Job, *rest: Any) -> dict[str, float]:
    """Replaces measuring: the last candidate is the fastest."""
    return {each.key: 1.0 / n for n, each in enumerate(job.candidates, 1)}
