"""Softmax of 8-bit integers to 8 bits: near that of exact exponentials, and the same bits on every machine."""

from __future__ import annotations

import shutil
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tenon
from compiled import Library
from interpret import interpret
from lowered import MACHINES, make_site, run_lowered, run_site
from on_targets import assert_stated_digest
from tenon.errors import ShapeError
from tenon.machine.kernel_ir.work_groups import work_groups
from tenon.machine.kernels.byte_softmax import byte_softmax, planes
from tenon.machine.proofs.bounds import prove
from tenon.machine.targets import find
from tenon.machine.targets.host import missing
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import DType, TensorType
from tenon.network.ops.byte_softmax import LONGEST, ByteSoftmax, exponentials


def random(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> Array:
    kind = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(kind.min, kind.max + 1, shape).astype(dtype)


@pytest.mark.parametrize("scale", [0.002, 0.05, 1.5])
@pytest.mark.parametrize("n", [1, 40, 513, 5000])
def test_results_are_within_a_step_of_exact_ones(n: int, scale: float) -> None:
    x = random((20, n), np.uint8, n)
    got = ByteSoftmax(scale, 1 / 255).reference(x).astype(int)
    e = np.exp((x.astype(np.float64) - x.max(-1, keepdims=True).astype(np.float64)) * scale)
    expected = np.rint(255 * e / e.sum(-1, keepdims=True))
    assert np.abs(got - expected).max() <= 1
    assert (got != expected).mean() < 0.02


def test_exponentials_keep_their_order_and_fit() -> None:
    for n in (1, 512, 513, 1 << 14, LONGEST):
        table = exponentials(0.03, n).astype(np.int64)
        assert (np.diff(table) <= 0).all()
        assert table[0] * n < 2**31
        parts = planes(table).astype(np.int64)
        assert (parts < 128).all()
        np.testing.assert_array_equal(sum(part << (7 * i) for i, part in enumerate(parts)), table)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_rows_of_extreme_numbers(dtype: Any) -> None:
    kind = np.iinfo(dtype)
    x = np.array([[kind.min, kind.max], [kind.min, kind.min], [kind.max, kind.max]], dtype)
    for machine in MACHINES.values():
        (got,) = run_lowered(ByteSoftmax(1.0), [x], machine)
        np.testing.assert_array_equal(got, [[0, 255], [128, 128], [128, 128]])


@pytest.mark.parametrize("n", [32, 77, 1000])
def test_work_groups_give_the_bits_of_one_thread(n: int) -> None:
    machine, x = find("cuda").machine, random((3, n), np.uint8, n)
    op = ByteSoftmax(0.02)
    kernel = byte_softmax(op.described(TensorType(DType.U8, (3, n))), machine)
    assert work_groups(kernel) is not None
    assert prove(kernel) > 0
    y = np.full((3, n), 77, np.uint8)
    interpret(kernel, [x, exponentials(0.02, n), y])
    np.testing.assert_array_equal(y, op.reference(x))


@pytest.mark.parametrize("flags", [("-O1",), ("-O3", "-march=native", "-ffp-contract=fast")])
def test_compiled_kernels_give_the_bits_of_the_reference(flags: tuple[str, ...], tmp_path: Path) -> None:
    """Kernels have 1 to 16 lanes, one element or many bytes looked up at once."""
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("needs gcc")
    machines = [*MACHINES.values(), *(find(name).machine for name in ("x86-64-avx512-vbmi", "aarch64-dotprod"))]
    library, places = Library(), []
    for machine, dtype, shape in product(machines, (np.int8, np.uint8), ((3, 6), (2, 203), (1, 17), (2, 1300))):
        op, x = ByteSoftmax(0.04 if shape[0] > 2 else 0.3, 1 / 255), random(shape, dtype)
        site = make_site(op, [x], machine)
        for step in op.lower(site):
            library.add(step.kernel)
        places.append((op, site, x))
    library.build(tmp_path, [gcc, *flags])
    for op, site, x in places:
        (got,) = run_site(op, site, [x], execute=library)
        assert got.tobytes() == op.reference(x).tobytes()


def test_other_inputs_are_refused() -> None:
    for kind, about in ((TensorType(DType.I16, (4,)), "8-bit"), (TensorType(DType.U8, (LONGEST + 1,)), "too long")):
        with pytest.raises(ShapeError, match=about):
            ByteSoftmax().infer([Value("x", kind)])


TARGETS = ("host", "x86-64", "x86-64-avx2", "aarch64", "cortex-a55", "cortex-m0plus", "riscv64-v", "s390x", "wasm32")
"""Targets that look up one byte at a time, 16 and 64, little and big endian, with floats in software."""


def test_all_targets_give_the_same_bytes() -> None:
    numbers = {"s": np.float32(0.03), "z": np.uint8(120), "t": np.float32(1 / 255), "low": np.uint8(0)}
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "s", "z"], ["1"]),
        helper.make_node("Softmax", ["1"], ["2"]),
        helper.make_node("QuantizeLinear", ["2", "t", "low"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.UINT8, [5, 150]) for name in "xy"]
    constants = [numpy_helper.from_array(np.asarray(value), name) for name, value in numbers.items()]
    graph = helper.make_graph(nodes, "softmax", ends[:1], ends[1:], constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model = tenon.load(made.SerializeToString())
    bundles = {target: tenon.compile(model, target=target) for target in TARGETS}
    assert len({bundle.answer for bundle in bundles.values()}) == 1
    assert bundles["host"].answer
    for target, bundle in bundles.items():
        if not missing(find(target)):
            assert_stated_digest(bundle)
