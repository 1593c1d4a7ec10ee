"""Detection outputs described by the user: named if they are decoded, else with decoding added to the graph.

Source of the decoding: Liu et al., SSD: Single Shot MultiBox Detector; priors by strides and sizes as in Linzaer's
Ultra-Light-Fast-Generic-Face-Detector-1MB and its relatives.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from tenon.errors import InputError
from tenon.network import ops
from tenon.network.graph.graph import Array, Graph, Origin, Value
from tenon.network.graph.preprocessing import Corners, Heads, planes
from tenon.network.graph.writer import Names
from tenon.validation import MisfitError, least, reader


class Described(NamedTuple):
    """How a detector's outputs list its detections, as given by ``Options.head``.

    ``kind="ssd"`` are raw outputs of SSD: offsets [.., n, 4] from prior boxes, in the output ``boxes``, and scores
    [.., n, classes] in ``scores``; both are detected by their shapes if not named.  The priors are given as
    ``priors``, an array [n, 4] (or the .npy file of one) of centres and sizes (x, y, width, height) relative to the
    image's size, or generated: a map for each of ``strides``, of ceil(size / stride) cells, and in each cell a square
    of each of its ``sizes``, in pixels.  ``variances`` multiply the offsets of centres and those of sizes;
    ``activation`` converts logits to scores.

    Other kinds are those of ``graph.preprocessing.Heads``, with its fields ``outputs`` and ``corners``.
    """

    kind: Literal["ssd", "rows", "lists", "boxes", "yolo", "columns"]
    boxes: str = ""
    scores: str = ""
    strides: tuple[Annotated[int, least(1)], ...] = ()
    sizes: tuple[tuple[float, ...], ...] = ()
    variances: tuple[float, ...] = (0.1, 0.2)
    activation: Literal["none", "softmax", "sigmoid"] = "none"
    outputs: tuple[str, ...] = ()
    corners: Corners = "xyxy"


_OUTPUTS = {"rows": (1,), "lists": (3, 4), "boxes": (2,), "yolo": (1,), "columns": (1,)}
"""The possible numbers of outputs of each kind."""


def with_head(graph: Graph, given: Mapping[str, Any]) -> Graph:
    """The graph itself if nothing is given, else a copy that lists detections as described.

    The shapes must be bound.  Raises InputError for a description that is invalid or does not fit the outputs.
    """
    if not given:
        return graph
    priors = given.get("priors")
    try:
        head: Described = reader(Described)({k: v for k, v in given.items() if k != "priors" and v is not None})
    except MisfitError as misfit:
        where = ".".join(map(str, misfit.where))
        raise InputError(f"--head: {where + ' ' if where else 'it '}{misfit.why}") from None
    new = graph.copy()
    if head.kind == "ssd":
        if graph.sizes:
            raise InputError(
                f"--head ssd: its prior boxes are those of one size, and runs choose {', '.join(graph.sizes)}: give "
                "numbers with --shape"
            )
        new.heads = _Ssd(new, head).decoded(priors)
        return new
    known = {v.name for v in new.outputs}
    wrong = [name for name in head.outputs if name not in known]
    if wrong or len(head.outputs) not in _OUTPUTS[head.kind]:
        count = " or ".join(map(str, _OUTPUTS[head.kind]))
        raise InputError(f"--head {head.kind}: name {count} of the outputs {', '.join(known)} with outputs=A,B")
    new.heads = Heads(head.kind, head.outputs, head.corners)
    return new


class _Ssd:
    """The operators that decode raw outputs to boxes, added to a graph."""

    def __init__(self, graph: Graph, head: Described) -> None:
        self.graph, self.head, self.names = graph, head, Names(graph)

    def decoded(self, priors: object) -> Heads:
        boxes, scores = self.ports()
        count = boxes.type.dims[-2]
        centres, sizes = np.split(self.priors(priors, count), 2, axis=1)
        if len(self.head.variances) != 2:
            raise InputError(f"--head: variances={self.head.variances}: give one for centres and one for sizes")
        spread, growth = self.head.variances
        x = self.add("Slice", boxes, *(np.array([n], np.int64) for n in (0, 2, -1)))
        x = self.add("Add", self.add("Mul", x, sizes * spread), centres)
        half = self.add("Slice", boxes, *(np.array([n], np.int64) for n in (2, 4, -1)))
        half = self.add("Mul", self.add("Exp", self.add("Mul", half, np.array([growth]))), sizes / 2)
        corners = self.add("Concat", self.add("Sub", x, half), self.add("Add", x, half), axis=-1)
        self.put(boxes, corners)
        if self.head.activation != "none":
            soft = {"axis": -1} if self.head.activation == "softmax" else {}
            self.put(scores, self.add(self.head.activation.capitalize(), scores, **soft))
        names = [v.name for v in self.graph.outputs]
        return Heads("boxes", (names[self.at[0]], names[self.at[1]]), pixels=False)

    def ports(self) -> tuple[Value, Value]:
        """The outputs of boxes and of scores."""
        outputs = {v.name: v for v in self.graph.outputs}
        shown = ", ".join(f"{v.name} {v.type}" for v in outputs.values())
        if unknown := [name for name in (self.head.boxes, self.head.scores) if name and name not in outputs]:
            raise InputError(f"--head: no output is called '{unknown[0]}'; the model has {shown}")
        lists = [v for v in outputs.values() if v.type.dtype.is_float and v.type.rank in (2, 3)]
        boxes = [v for v in lists if v.type.dims[-1] == 4 and v.name in (self.head.boxes or v.name, self.head.boxes)]
        if len(boxes) == 1:
            count = boxes[0].type.dims[-2]
            scores = [v for v in lists if v is not boxes[0] and v.type.dims[-2] == count]
            scores = [v for v in scores if not self.head.scores or v.name == self.head.scores]
            if len(scores) == 1:
                self.at = self.graph.outputs.index(boxes[0]), self.graph.outputs.index(scores[0])
                return boxes[0], scores[0]
        raise InputError(
            f"--head ssd: which outputs are boxes [.., n, 4] and scores [.., n, classes]? Name them with boxes=NAME "
            f"scores=NAME; the model has {shown}"
        )

    def priors(self, given: object, count: int) -> Array:
        """f32 [n, 4]: centres and sizes relative to the image's size."""
        boxes = self.by_strides() if given is None else _read(given)
        if boxes.shape != (count, 4):
            whence = "strides and sizes make" if given is None else "priors has"
            raise InputError(f"--head ssd: {whence} {len(boxes)} boxes, and the output of boxes has {count}")
        return boxes.astype(np.float32)

    def by_strides(self) -> Array:
        head = self.head
        images = [image for v in self.graph.inputs if (image := planes(v.type.dims))]
        if len(images) != 1 or not head.strides or len(head.strides) != len(head.sizes):
            raise InputError(
                "--head ssd: say where the prior boxes are: strides=8,16 sizes=10/16/24,32/48 (in pixels, for each "
                "stride some sizes), or priors=FILE.npy"
            )
        _, height, width, _ = images[0]
        maps: list[Array] = []
        for stride, sizes in zip(head.strides, head.sizes, strict=True):
            y, x = np.mgrid[: -(-height // stride), : -(-width // stride)].astype(np.float64) + 0.5
            centres = np.stack([x * stride / width, y * stride / height], -1).reshape(-1, 1, 2)
            sides = np.array([[s / width, s / height] for s in sizes]).reshape(1, -1, 2)
            shape = (len(centres), len(sizes), 2)
            both = np.concatenate([np.broadcast_to(centres, shape), np.broadcast_to(sides, shape)], -1)
            maps.append(both.reshape(-1, 4))
        return np.concatenate(maps)

    def put(self, old: Value, new: Value) -> None:
        """Replace the output ``old`` by ``new``, under the same name."""
        self.graph.outputs[self.graph.outputs.index(old)] = new
        old.name, new.name = self.names.fresh(f"{old.name}_raw"), old.name

    def add(self, type: str, *operands: Value | Array, **attributes: object) -> Value:
        name = self.names.fresh(f"head_{type.lower()}")
        values = [
            v if isinstance(v, Value) else self.graph.constant(self.names.fresh(f"{name}_constant"), _constant(v))
            for v in operands
        ]
        operator = ops.registry()[type](**attributes)
        return self.graph.add(operator, values, [name], Origin(layer=name, type=type)).output


def _constant(array: Array) -> Array:
    return array if array.dtype == np.int64 else array.astype(np.float32)


def _read(given: object) -> Array:
    """An array, or that of a .npy file."""
    try:
        array = np.load(given, allow_pickle=False) if isinstance(given, str | Path) else np.asarray(given)
        if array.dtype.kind not in "fiu":
            raise ValueError(f"numbers are needed, not {array.dtype}")
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"--head: priors={given}: no array of prior boxes ({error})") from None
    return array
