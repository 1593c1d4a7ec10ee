"""Random quantised graphs give the references' integers on machines of several kinds: a few of ``scripts/fuzz
--quantised``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fuzzing.quantised import ARITHMETICS, KINDS, judge_quantised, quantised, union
from tenon.machine.targets import find
from tenon.machine.targets.host import missing
from tenon.network import passes
from tenon.network.graph.evaluate import evaluate
from tenon.network.graph.graph import Array
from tenon.network.graph.verify import verify
from tenon.network.ops.fused import Fused
from tenon.network.ops.integer_conv import IntegerConv
from tenon.network.ops.integer_gemm import IntegerGemm
from tenon.network.ops.integer_product import IntegerProduct

SEEDS = range(12)


@pytest.mark.parametrize("target", ["host", "cortex-m4", "wasm32"])
def test_random_quantised_graphs(target: str, tmp_path: Path) -> None:
    if why := missing(find(target)):
        pytest.skip(why)
    report = judge_quantised(SEEDS, [target], tmp_path)
    assert report.findings == []
    assert report.programs == len(SEEDS)


def test_most_graphs_are_integers_in_every_kind_and_arithmetic() -> None:
    samples = [quantised(seed) for seed in range(270)]
    assert {(s.kind, s.arithmetic) for s in samples} == {(kind, a) for kind in KINDS for a in ARITHMETICS}
    assert sum(s.exact for s in samples) > 180  # with zero points known at run time sums are scaled in floats
    made = {node.op.name for s in samples for node in s.graph}
    assert made >= {
        f"Integer{name}"
        for name in (
            "Add",
            "AveragePool",
            "Conv",
            "Div",
            "Gemm",
            "L2Normalization",
            "LogSoftmax",
            "Mul",
            "ResizeLinear",
            "Softmax",
        )
    }
    assert made >= {"Lookup", "LookupLogSoftmax", "LookupSoftmax"}


def test_zero_points_known_at_run_time_are_among_them() -> None:
    graphs = [passes.optimize(quantised(seed).graph) for seed in range(100)]
    ops = [node.op.base if isinstance(node.op, Fused) else node.op for graph in graphs for node in graph]
    kinds = {type(op) for op in ops if isinstance(op, IntegerProduct) and op.rounding == "none"}
    assert kinds == {IntegerConv, IntegerGemm}


def test_graphs_side_by_side_compute_what_they_do_alone() -> None:
    samples = [quantised(seed) for seed in range(9)]
    whole = union(samples)
    verify(whole)
    given = {f"s{s.seed}_{name}": a for s in samples for name, a in s.feeds[0].items()}
    results = evaluate(whole, given)
    for s in samples:
        for name, expected in evaluate(s.graph, s.feeds[0]).items():
            np.testing.assert_array_equal(results[f"s{s.seed}_{name}"], expected)


def test_a_wrong_integer_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = IntegerGemm.reference

    def off_by_one(self: IntegerGemm, x: Array, *rest: Array) -> Array:
        result = plain(self, x, *rest).copy()
        result.reshape(-1)[0] ^= 1
        return result

    monkeypatch.setattr(IntegerGemm, "reference", off_by_one)
    seed = next(s for s in SEEDS if any(isinstance(node.op, IntegerGemm) for node in quantised(s).graph))
    (finding,) = judge_quantised([seed], ["host"], tmp_path).findings
    assert finding.kind == "wrong"
    assert finding.command == f"scripts/fuzz --quantised --seed {seed} --graphs 1 --target host"
