"""Channel shuffles fused with the concatenations and slices around them."""

from __future__ import annotations

import numpy as np
import pytest

from evaluate import evaluate, random_inputs
from tenon.network import passes
from tenon.network.graph.graph import Array, Graph, Value
from tenon.network.graph.types import F32, tensor
from tenon.network.ops.activation import Relu
from tenon.network.ops.move import Concat, Split
from tenon.network.ops.shuffle import ChannelShuffle
from tenon.network.ops.slice_gather import Slice
from tenon.network.passes.base import run
from tenon.network.passes.shuffle import SHUFFLE


def unit(*, split: bool = False, ranges: tuple[tuple[int, int], ...] = ((0, 6), (6, 12)), keep: bool = False) -> Graph:
    """Two groups of six channels, concatenated, shuffled and split; every part goes through Relu."""
    graph = Graph("unit")
    groups = [graph.add_input(name, tensor(F32, 1, 6, 3, 4)) for name in "ab"]
    joined = graph.add(Concat(axis=1), groups, ["joined"]).output
    shuffled = graph.add(ChannelShuffle(2), [joined], ["shuffled"]).output

    def numbers(*values: int) -> Value:
        return graph.constant(f"n{len(graph.constants())}_{values}", np.array(values, np.int64))

    if split:
        cuts = list(graph.add(Split(axis=1), [shuffled, numbers(*(b - a for a, b in ranges))], ["c0", "c1"]).outputs)
    else:
        cuts = [graph.add(Slice(), [shuffled, numbers(a), numbers(b), numbers(1)], [f"c{a}"]).output for a, b in ranges]
    graph.outputs = [graph.add(Relu(), [cut], [f"y{i}"]).output for i, cut in enumerate(cuts)]
    if keep:
        graph.outputs.append(shuffled)
    return graph


def same(a: dict[str, Array], b: dict[str, Array]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def names(graph: Graph) -> list[str]:
    return sorted(node.op.name for node in graph)


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("ranges", [((0, 6), (6, 12)), ((0, 5), (5, 12))])
def test_concat_shuffle_and_slices_become_one_node(split: bool, ranges: tuple[tuple[int, int], ...]) -> None:
    graph = unit(split=split, ranges=ranges)
    given = random_inputs(graph)
    before = evaluate(graph, given)
    passes.optimize(graph, verify=True)
    assert sum("ChannelShuffle" in name for name in names(graph)) == 1
    assert not {"Concat", "Slice", "Split"} & set(names(graph))
    assert same(evaluate(graph, given), before)


@pytest.mark.parametrize("graph", [unit(ranges=((0, 2), (2, 6), (6, 12))), unit(keep=True)], ids=["middle", "output"])
def test_slices_are_kept_if_the_shuffle_would_be_repeated(graph: Graph) -> None:
    given = random_inputs(graph)
    before = evaluate(graph, given)
    run(graph, SHUFFLE)
    assert names(graph).count("Slice") >= 2
    assert same(evaluate(graph, given), before)
