"""Commands on the workers of a scheduler, one of which is killed while it computes: results are one machine's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import run_main
from onnx_models import model, node
from real import ROOT
from tenon.cli import main

distributed = pytest.importorskip("distributed", reason="Dask is an optional dependency: pip install distributed")
pytestmark = pytest.mark.slow


class DiesOnce(distributed.WorkerPlugin):  # type: ignore[misc, name-defined]  # of an optional package
    """Kills the first worker that executes an item, as long as ``marker`` is not there."""

    def __init__(self, marker: str) -> None:
        self.marker = marker

    def transition(self, key: str, start: str, finish: str, **more: Any) -> None:
        if finish == "executing" and not Path(self.marker).exists():
            Path(self.marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    with distributed.LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=True,
        dashboard_address="127.0.0.1:0",
        host="127.0.0.1",
        memory_limit=0,
    ) as cluster:
        yield cluster.scheduler_address


@contextmanager
def a_worker_dies(scheduler: str, folder: Path) -> Iterator[None]:
    """Within it the first item ends its worker."""
    marker = folder / "killed"
    with distributed.Client(scheduler) as client:
        client.register_plugin(DiesOnce(str(marker)), name="dies-once")
        yield
        client.unregister_worker_plugin("dies-once")
    assert marker.exists(), "no worker was killed"


def network(folder: Path) -> str:
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((8, 4, 3, 3), np.float32), "v": rng.standard_normal((8, 8, 1, 1), np.float32)}
    nodes = [node("Conv", ["x", "w"], ["h"], pads=[1, 1, 1, 1]), node("Conv", ["h", "v"], ["y"])]
    (folder / "net.onnx").write_bytes(model(nodes, {"x": [1, 4, 6, 6]}, ["y"], weights).SerializeToString())
    np.savez(folder / "data.npz", x=rng.standard_normal((40, 1, 4, 6, 6), np.float32), y=rng.integers(0, 288, 40))
    return str(folder / "net.onnx")


def test_evaluation(scheduler: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["evaluate", network(tmp_path), "--data", str(tmp_path / "data.npz"), "--json"]
    assert run_main(main, words) == 0
    here = json.loads(capsys.readouterr().out)
    with a_worker_dies(scheduler, tmp_path):
        assert run_main(main, [*words, "--cluster", scheduler]) == 0
    assert json.loads(capsys.readouterr().out) == here


def test_an_error_of_a_metric_at_a_scheduler(
    scheduler: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plug.py").write_text("def score(outputs, number):\n    return outputs['none']\n")
    words = ["evaluate", network(tmp_path), "--data", str(tmp_path / "data.npz"), "--cluster", scheduler]
    assert run_main(main, [*words, "--metric", f"{tmp_path}/plug.py:score"]) == 2
    assert "KeyError: 'none' (plug.py, line 2)" in capsys.readouterr().err


def test_quantisation(scheduler: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(1).standard_normal((40, 1, 4, 6, 6), np.float32))
    words = ["quantize", network(tmp_path), "--data", str(tmp_path / "x.npy"), "--method", "entropy"]
    assert run_main(main, [*words, "-o", str(tmp_path / "here.onnx")]) == 0
    with a_worker_dies(scheduler, tmp_path):
        assert run_main(main, [*words, "-o", str(tmp_path / "there.onnx"), "--cluster", scheduler]) == 0
    assert (tmp_path / "there.onnx").read_bytes() == (tmp_path / "here.onnx").read_bytes()


def test_tuning(scheduler: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Times are measured, so that only the layers and their candidates are those of one machine."""
    tables = []
    for name, more in (("here", []), ("there", ["--cluster", scheduler])):
        words = ["tune", network(tmp_path), "--table", str(tmp_path / f"{name}.sqlite"), "--json", *more]
        if more:
            with a_worker_dies(scheduler, tmp_path):
                assert run_main(main, words) == 0
        else:
            assert run_main(main, words) == 0
        tables.append(json.loads(capsys.readouterr().out)["models"])
    here, there = map(_without_times, tables)
    assert here == there


def _without_times(content: Any) -> Any:
    if isinstance(content, dict):
        return {name: _without_times(each) for name, each in content.items()}
    return (
        [_without_times(each) for each in content]
        if isinstance(content, list)
        else isinstance(content, float) or content
    )


def test_fuzzing(scheduler: str, tmp_path: Path) -> None:
    def report(*words: str) -> Any:
        command = ["scripts/fuzz", "--graphs", "60", "--seed", "30", "--compiler", "zig", "--json", *words]
        return json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)

    with a_worker_dies(scheduler, tmp_path):
        there = report("--cluster", scheduler)
    assert there == report()
