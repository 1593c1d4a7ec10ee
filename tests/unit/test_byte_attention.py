"""Attention of quantised integers as one operator: the bits of its operators one after the other, on every machine."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from compiled import Library
from lowered import MACHINES, make_site, run_lowered, run_site
from tenon.machine.algorithms.integers import product_tiles
from tenon.machine.kernels.byte_attention import blocks_of
from tenon.machine.kernels.integer_matmul_words import Words
from tenon.machine.kernels.machine import Machine
from tenon.machine.targets import find
from tenon.network.graph.evaluate import evaluate
from tenon.network.graph.graph import Graph, Value
from tenon.network.graph.types import DType, TensorType
from tenon.network.ops.base import Case, Site
from tenon.network.ops.byte_attention import ByteAttention
from tenon.network.ops.integer_lookup import Lookup
from tenon.network.passes.byte_attention import byte_attention

CASES = {case.label: case for case in ByteAttention.cases()}
ABLE = ("lanes16", "lanes8")


@pytest.mark.parametrize("machine", ABLE)
@pytest.mark.parametrize("label", CASES)
def test_kernels_are_proved_and_have_the_bits_of_the_reference(label: str, machine: str) -> None:
    case = CASES[label]
    (got,) = run_lowered(case.op, case.arrays(), MACHINES[machine], case.constant)
    (expected,) = case.op.evaluate(case.arrays())
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("flags", [("-O1",), ("-O3", "-march=native", "-ffp-contract=fast")])
def test_compiled_kernels_have_the_bits_of_the_reference(flags: tuple[str, ...], tmp_path: Path) -> None:
    """Machines look up 16 or 64 bytes at once, and multiply bytes with or without a sign."""
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("needs gcc")
    named = ("x86-64-avx512-vbmi", "aarch64-dotprod", "x86-64-avx2")
    machines = [find(name).machine for name in named]
    library, places = Library(), []
    for case in CASES.values():
        for machine in machines:
            if case.op.supported(_bare(case, machine)):
                continue
            site = make_site(case.op, case.arrays(), machine, case.constant)
            for step in case.op.lower(site):
                library.add(step.kernel)
            places.append((case, site))
    assert len(places) >= 2 * len(CASES)
    library.build(tmp_path, [gcc, *flags])
    for case, site in places:
        (got,) = run_site(case.op, site, case.arrays(), execute=library)
        (expected,) = case.op.evaluate(case.arrays())
        assert got.tobytes() == expected.tobytes()


def _bare(case: Case, machine: Machine) -> Site:
    arrays = case.arrays()
    types = [TensorType(DType.of(a.dtype), a.shape) for a in arrays if a is not None]
    constants = tuple(a if i in case.constant else None for i, a in enumerate(arrays))
    outputs = tuple(case.op.infer([Value(f"x{i}", t) for i, t in enumerate(types)]))
    return Site(tuple(types), outputs, constants, machine)


def test_blocks_are_shared_by_threads_and_fit_the_cache() -> None:
    op, machine = CASES["u8_130x205"].op, MACHINES["lanes16"]
    assert isinstance(op, ByteAttention)
    long = [TensorType(DType.U8, dims) for dims in ((8, 2048, 64), (8, 64, 2048), (8, 2048, 64))]
    s = op.described(long)
    tiles = tuple(product_tiles(Words(each, machine).conv, machine, 1)[0] for each in (s.scores, s.values))
    blocks = blocks_of(s, machine, (tiles[0], tiles[1]))
    assert blocks.rows * blocks.width <= 1 << 18
    assert blocks.rows < 2048


def attention(length: int, *, table: bool = False, read_twice: bool = False, heads: int = 4) -> Graph:
    """Queries, keys and values of bytes as inputs, and the operators one after the other."""
    op = CASES["u8_130x205"].op
    assert isinstance(op, ByteAttention)
    graph = Graph("attention")
    shapes = {"q": (heads, length, 16), "k": (heads, 16, length), "v": (heads, length, 16)}
    q, k, v = (graph.add_input(name, TensorType(DType.U8, dims)) for name, dims in shapes.items())
    scores = graph.add(op.scores, [q, k], ["scores"]).output
    given = scores
    if table:
        steps = graph.constant("table", (np.arange(256) // 2 + 60).astype(np.uint8))
        given = graph.add(Lookup(0.03, 0), [scores, steps], ["scaled"]).output
    shares = graph.add(op.softmax, [given], ["shares"]).output
    y = graph.add(op.values, [shares, v], ["y"]).output
    graph.outputs = [y, shares] if read_twice else [y]
    return graph


def names(graph: Graph) -> list[str]:
    return [node.op.name for node in graph]


@pytest.mark.parametrize("table", [False, True])
def test_operators_are_joined_where_scores_leave_the_cache(table: bool) -> None:
    graph = attention(300, table=table)
    rng = np.random.default_rng(0)
    feeds = {v.name: rng.integers(0, 256, v.type.dims).astype(np.uint8) for v in graph.inputs}
    before = evaluate(graph, feeds)["y"]
    assert byte_attention(find("x86-64-avx512-vbmi").machine).run(graph, lambda _: None) == 1
    assert names(graph) == ["ByteAttention"]
    np.testing.assert_array_equal(next(iter(evaluate(graph, feeds).values())), before)


@pytest.mark.parametrize(
    ("target", "length", "twice"),
    [
        ("x86-64-avx512-vbmi", 100, False),  # whose scores stay in the cache
        ("x86-64-avx512-vbmi", 300, True),
        ("cuda", 300, False),
        ("riscv64", 300, False),
    ],
)
def test_other_operators_stay(target: str, length: int, twice: bool) -> None:
    graph = attention(length, read_twice=twice)
    kinds = names(graph)
    byte_attention(find(target).machine).run(graph, lambda _: None)
    assert names(graph) == kinds
