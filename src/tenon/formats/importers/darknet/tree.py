"""Darknet's trees of classes: a text file with a line "name parent" for every class, -1 for a root.

Classes with the same parent, one after the other, share a softmax.  Definitions: src/tree.c, softmax_tree of Darknet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.darknet.node import DarknetLayer
from tenon.network.graph.graph import Value


@dataclass(frozen=True)
class Tree:
    """The parent of every class, which stands before it, and how many classes each softmax has."""

    parents: tuple[int, ...]
    groups: tuple[int, ...]

    @property
    def depth(self) -> int:
        levels: list[int] = []
        for parent in self.parents:
            levels.append(1 if parent < 0 else levels[parent] + 1)
        return max(levels)


def tree(layer: DarknetLayer) -> Tree | None:
    """The tree that a section names; None if it names none, or for a shape without weights.  Raises RefusedError."""
    path = layer.text("tree")
    data = layer.sibling_file(path) if path else None
    if data is None:
        if path and layer.parameters.given:
            raise RefusedError(f"its tree of classes '{path}' was not found", "put that file beside the .cfg")
        return None
    try:
        parents = tuple(int(line.split()[1]) for line in data.decode("utf-8", "replace").splitlines() if line.strip())
    except (IndexError, ValueError):
        raise RefusedError(f"'{path}' is no tree: its lines are a name and the number of a parent") from None
    if not parents or any(not -1 <= parent < i for i, parent in enumerate(parents)):
        raise RefusedError(f"'{path}' is no tree: a parent does not stand before its classes")
    return Tree(parents, tuple(len(list(same)) for _, same in groupby(parents)))


def softmax(layer: DarknetLayer, x: Value, tree: Tree, axis: int) -> Value:
    """The probability of each class once its parent is certain."""
    classes = layer.builder.dims(x)[axis]
    if classes != len(tree.parents):
        raise RefusedError(f"its tree has {len(tree.parents)} classes, and it reads {classes}")
    parts: Sequence[Value] = [x] if len(tree.groups) == 1 else layer.split(x, axis, tree.groups)
    outputs = [layer.add("Softmax", part, axis=axis) for part in parts]
    return outputs[0] if len(outputs) == 1 else layer.add("Concat", *outputs, axis=axis)


def whole(layer: DarknetLayer, x: Value, tree: Tree, axis: int) -> Value:
    """The product of the probabilities from a root down to each class."""
    dims, total = layer.builder.dims(x), x
    one = np.ones([1 if i == axis else n for i, n in enumerate(dims)], np.float32)
    above = layer.ints(*(len(tree.parents) if parent < 0 else parent for parent in tree.parents))
    for _ in range(tree.depth - 1):
        total = layer.add("Mul", x, layer.add("Gather", layer.add("Concat", total, one, axis=axis), above, axis=axis))
    return total
