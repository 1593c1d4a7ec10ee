"""Benchmarks of networks, of single operators, and of the machine's peak."""

from __future__ import annotations

import io
import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest

import handmade
import tenon
from onnx_models import model, node
from tenon.cli.bench_op import bench_operators, graph_of, select
from tenon.cli.benchmark import benchmark, models_in
from tenon.cli.benchmark_rows import TimingSettings
from tenon.cli.console import duration, time_unit
from tenon.cli.model_source import ALONE, ModelArgument
from tenon.cli.op_cases import cases
from tenon.cli.parse import parse_processors
from tenon.cli.tengine_times import line
from tenon.errors import FormatError, InputError
from tenon.machine.kernels.machine import Machine
from tenon.machine.proofs.bounds import prove
from tenon.machine.proofs.count import count
from tenon.network.graph.graph import Array
from tenon.runtime.engine import peak
from tenon.runtime.engine.streams import run_streams
from tenon.runtime.engine.timing import Times, fill_randomly, measure

LINE = re.compile(
    r" *\S+" + "".join(rf"  {word} = +\d+\.\d\d (ms|µs|us)" for word in ("min", "max", "avg", "std", "median"))
)


# ------------------------------------------------------------------------------------------ statistics
def test_statistics() -> None:
    times = Times((3.0, 1.0, 2.0, 2.0))
    assert times.summary() == {
        "rounds": 4,
        "first": 3.0,
        "last": 2.0,
        "min": 1.0,
        "max": 3.0,
        "avg": 2.0,
        "median": 2.0,
        "std": pytest.approx(0.5**0.5),
    }


def test_measure_counts_calls() -> None:
    calls: list[int] = []
    times = measure(lambda: calls.append(1), 7)
    assert len(calls) == len(times.samples) == 7
    assert min(times.samples) >= 0
    with pytest.raises(InputError, match="at least 1"):
        measure(lambda: None, 0)


def test_random_inputs_are_reproducible() -> None:
    first: dict[str, Array] = {"x": np.zeros((2, 3), np.float32), "n": np.zeros(50, np.int64)}
    second = {name: array.copy() for name, array in first.items()}
    fill_randomly(first)
    fill_randomly(second)
    np.testing.assert_array_equal(first["x"], second["x"])
    assert first["x"].std() > 0
    assert set(first["n"]) == {0, 1}


# ------------------------------------------------------------------------------------------ benchmark
def test_benchmark_prints_a_line_per_network() -> None:
    unit, _ = time_unit(0.5)
    numbers = f"min =    1.00 ms  max =    2.25 ms  avg =    1.62 ms  std =  625.00 {unit}  median =    1.62 ms"
    assert line("net", Times((1.0, 2.25))) == f"{'net':>20}  {numbers}"


def test_time_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    assert [duration(t) for t in (0.0831, 0.9999, 1.0, 12.345)] == ["83.10 µs", "999.90 µs", "1.00 ms", "12.35 ms"]
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert duration(0.0831) == "83.10 us"


def test_benchmark_of_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "b.onnx").write_bytes(model([node("Relu", ["x"], ["y"])], {"x": [1, 8]}, ["y"]).SerializeToString())
    handmade.bundle().save(tmp_path / "a")
    (tmp_path / "readme.txt").write_text("no model")
    assert [Path(p).name for p in models_in(tmp_path)] == ["a", "b.onnx"]
    sources = [ModelArgument(p) for p in models_in(tmp_path)]
    benchmark(sources, {}, TimingSettings(3, 1, ALONE), as_json=False)
    *timed, how = capsys.readouterr().out.splitlines()
    number = r"[\d.]+ (ms|.s)"
    for text, name in zip(timed, "ab", strict=True):
        assert re.fullmatch(rf"{name} +{number}  \(min {number}, max {number}, std {number}\)", text)
    assert how == "median of 3 runs after 1 warm-up run, 1 thread"
    benchmark(sources, {}, TimingSettings(3, 1, ALONE), format="tengine", as_json=False)
    head, lines, last = (printed := capsys.readouterr().out.splitlines())[:4], printed[4:-1], printed[-1]
    assert head == ["loop_counts = 3", "warm_up     = 1", "num_threads = 1", "power       = all"]
    assert len(lines) == 2
    assert all(LINE.fullmatch(text) for text in lines)
    assert last == "ALL TEST DONE"
    benchmark(sources[:1], {}, TimingSettings(3, 1, ALONE, streams=2), as_json=False)
    _, rate, how = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r" +[\d.]+ inputs/s", rate)
    assert how == "median of 3 runs after 1 warm-up run, 1 thread, in each of 2 streams"
    (empty := tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no bundle and no model"):
        models_in(empty)
    with pytest.raises(InputError, match="cannot be read"):
        models_in(tmp_path / "absent")


def test_streams_share_weights_and_give_the_same_answers(tmp_path: Path) -> None:
    with tenon.open(handmade.bundle().save(tmp_path / "net")) as engine, engine.fork((0,)) as twin:
        assert np.shares_memory(engine._weights, twin._weights)
        fill_randomly(engine.inputs)
        answers, others = engine.run(dict(engine.inputs)), twin.run(dict(engine.inputs))
        assert all(np.array_equal(answers[name], others[name]) for name in answers)
        measured = run_streams(engine, 3, 4, 1, affinity=(0,))
        assert len(measured.times.samples) == 12
        assert 0 < measured.inputs_per_second < 3e3 / measured.times.min
        with pytest.raises(InputError, match="at least 1"):
            run_streams(engine, 0, 4, 1)


def test_a_stream_that_fails_ends_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tenon.open(handmade.bundle().save(tmp_path / "net")) as engine:
        calls = itertools.count()

        def failing(self: tenon.Engine, feeds: object = None, *, copy: bool = True) -> dict[str, Array]:
            if next(calls) == 1:
                raise InputError("the second run fails")
            return {}

        monkeypatch.setattr(tenon.Engine, "run", failing)
        with pytest.raises(InputError, match="the second run fails"):
            run_streams(engine, 3, 2, 1)


def test_json_with_a_failing_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"\x08")
    good = handmade.bundle().save(tmp_path / "good")
    with pytest.raises(FormatError):
        benchmark([ModelArgument(str(broken)), ModelArgument(str(good))], {}, TimingSettings(2, 0, ALONE), as_json=True)
    data = json.loads(capsys.readouterr().out)
    assert set(data) == {"rounds", "warmup", "threads", "affinity", "cores", "unit", "networks"}
    first, second = data["networks"]
    assert set(first) == {"model", "error"}
    assert set(second) == {"model", "target", "rounds", "first", "last", "min", "max", "avg", "median", "std"}
    with pytest.raises(InputError, match="no networks"):
        benchmark([], {}, TimingSettings(1, 0, ALONE), as_json=False)


def test_processors() -> None:
    assert parse_processors(None) == ()
    assert parse_processors("0,2") == (0, 2)
    assert parse_processors("1-3") == (1, 2, 3)
    with pytest.raises(InputError, match="--affinity one"):
        parse_processors("one")


# ------------------------------------------------------------------------------------------- bench-op
def test_names_of_cases_are_unique() -> None:
    names = [case.label for case in cases()]
    assert len(names) == len(set(names)) > 40
    assert all(re.fullmatch(r"[A-Z][A-Za-z]+_\d+(x\d+)*(_[a-z0-9]+)*", name) for name in names)
    assert "Conv_1x64x56x56_k3" in names


def test_select() -> None:
    assert {case.op.name for case in select("Conv.*")} == {"Conv", "ConvTranspose"}
    with pytest.raises(InputError, match="no case"):
        select("Conv")
    with pytest.raises(InputError, match="not a regular expression"):
        select("(")


def test_every_case_compiles() -> None:
    for case in select(r"(?!Gemm_1x4096).*"):
        graph = graph_of(case)
        assert graph.outputs[0].type.bound, case.label


def test_bench_op(capsys: pytest.CaptureFixture[str]) -> None:
    bench_operators("Softmax_1x1000|Conv_1x96x14x14_k5_dw", {}, 0, listing=False, as_json=True)
    data = json.loads(capsys.readouterr().out)
    assert data["peak_gmacps"] > 0
    conv, softmax = data["cases"]
    assert set(conv) == {
        "name",
        "ms",
        "avg_ms",
        "iterations",
        "macs",
        "gmacps",
        "percent_of_peak",
        "bytes",
        "input_mb_per_s",
        "gigabytes_per_s",
        "percent_of_read_bandwidth",
    }
    assert conv["macs"] == 96 * 14 * 14 * 25
    assert softmax["bytes"] == 2 * 4 * 1000
    assert conv["gmacps"] == pytest.approx(conv["macs"] / conv["ms"] / 1e6)
    bench_operators("IntegerConv_1x512x14x14_k1", {}, 0, listing=False, as_json=True)
    (integers,) = json.loads(capsys.readouterr().out)["cases"]
    assert integers["macs"] == 512 * 512 * 14 * 14
    assert integers["bytes"] < 512 * 512 * 2  # one each
    bench_operators("Softmax_1x1000", {}, 0, listing=False, as_json=False)
    head, _, row = capsys.readouterr().out.splitlines()
    assert head.split()[:5] == ["Benchmark", "Time(ns)", "Iterations", "Input(MB/s)", "GMACPS"]
    assert row.split()[0] == "Softmax_1x1000"
    assert len(head) == len(row)


# ----------------------------------------------------------------------------------------- the machine
@pytest.mark.parametrize("machine", [Machine(), Machine(lanes=8, block=8), Machine(lanes=16, registers=32, block=16)])
def test_peak_kernels_compute_and_count_as_stated(machine: Machine) -> None:
    kernel, chains = peak._multiply_adds(machine)
    assert prove(kernel) > 0
    assert count(kernel).macs == chains * machine.lanes * peak._STEPS * peak._ITERATIONS
    reads = peak._reads(machine, 10, 7, 1)
    assert prove(reads) > 0
    assert count(reads).loaded >= 7 * 10 * peak._UNROLL * machine.lanes * 4


def test_measured_peak_is_plausible() -> None:
    """Bounds that hold for all current machines, by a wide margin."""
    assert 1e8 < peak.peak_macs() < 1e13
    assert 1e8 < peak.read_bandwidth(16 << 10) < 1e14
