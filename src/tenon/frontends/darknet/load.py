"""Darknet networks: a .cfg, and a .weights beside it.

The graph's input is ``data`` [1, C, H, W] (RGB, 0..1) or [1, N].  A layer's result bears the name of its section and
its number, ``convolutional_0``.  A network that ends in detection heads has the heads' own results as outputs
(``yolo_121``), then ``boxes`` [1, N, 4] and ``scores`` [1, N, classes] of all heads one after the other (see
``heads``).  Without weights the graph can be inspected, not compiled.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from glob import escape
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from tenon.errors import FormatError
from tenon.frontends.darknet.cfg import Parameters, Section, is_cfg, sections
from tenon.frontends.darknet.heads import HEADS, Detections
from tenon.frontends.darknet.layers import LAYERS, check
from tenon.frontends.darknet.recurrent import RECURRENT
from tenon.frontends.darknet.tree import softmax, tree
from tenon.frontends.net import MISSING_WEIGHTS, Net
from tenon.frontends.refused import RefusedError
from tenon.frontends.source import ModelFile
from tenon.ir.bind import Shapes
from tenon.ir.graph import Array, Graph, Value
from tenon.ir.picture import Fit, Heads, Picture
from tenon.ir.types import F32, tensor

_SOFTMAX = ("softmax", "soft")
_SILENT = frozenset({"cost", "dropout"})
"""Sections after which the result of the network is still the one before them."""


def recognise(file: ModelFile) -> bool:
    """A .cfg by its first section; a .weights by its version, and by a .cfg beside it."""
    return is_cfg(file.data) or (_is_weights(file) and _cfg_of(file) is not None)


def _is_weights(file: ModelFile) -> bool:
    if len(file.data) < 20 or (len(file.data) % 4):
        return False
    major, minor, revision = struct.unpack_from("<3i", file.data)
    return bool(major == 0 and 0 < minor < 10 and 0 <= revision < 100)


def _cfg_of(file: ModelFile) -> ModelFile | None:
    return file.find_partner("the .cfg", "{stem}.cfg", "*.cfg", fits=lambda other: is_cfg(other.data))


def load(file: ModelFile, shapes: Shapes, inputs: Sequence[str] | None, outputs: Sequence[str] | None) -> Graph:
    """The graph of a network given by either of its files.  See ``frontends.load`` for errors."""
    weights: ModelFile | None = file
    cfg = file
    if is_cfg(file.data):
        weights = file.find_partner("the weights", "{stem}.weights", "{stem}_*.weights", fits=_is_weights)
    else:
        cfg = file.partner("the .cfg", "{stem}.cfg", "*.cfg", fits=lambda other: is_cfg(other.data))
    try:
        parameters = Parameters(weights.data if weights else None)
        found = sections(cfg.data)
        net = Net(cfg, cfg.stem, shapes, inputs, outputs, len(weights.data) if weights else 1 << 20)
        return _Network(net, found, parameters).load()
    except FormatError as error:
        raise type(error)(str(error) if cfg.name in str(error) else f"{cfg.name}: {error}") from error


class _Network:
    """The walk over the sections.  It is also the layer that the functions of ``LAYERS`` see."""

    def __init__(self, net: Net, found: Sequence[Section], parameters: Parameters) -> None:
        self.net, self.options, self.layers, self.parameters = net, found[0], found[1:], parameters
        self.names = [f"{section.type}_{i}" for i, section in enumerate(self.layers)]
        self.section, self.index = found[0], 0
        self.found: list[tuple[str, Detections]] = []
        self.states: list[str] = []
        if not parameters.given:
            net.graph.incomplete = MISSING_WEIGHTS

    def load(self) -> Graph:
        _, self.picture = self.input()
        self.net.graph.pictures["data"] = self.pixels()
        if not self.layers:
            raise FormatError("it has no layers; the file is truncated")
        before = "data"
        for index, (name, section) in enumerate(zip(self.names, self.layers, strict=True)):
            self.index, self.section = index, section
            with self.net.layer(name, section.type, name):
                self.x = self.net[before]
                self.net[name] = self.made()
            before = name
        if not self.net.writer.problems:
            self.parameters.finish()
        return self.net.finish(self.outputs())

    def input(self) -> tuple[Value, tuple[int, int]]:
        """The input, and the height and width of pictures."""
        c, h, w = (self.options.integer(key) for key in ("channels", "height", "width"))
        size = self.options.integer("inputs", c * h * w)
        if min(c, h, w) > 0:
            value = self.net.input("data", tensor(F32, 1, c, h, w))
            h, w = value.type.dims[2:] if value.type.rank == 4 else (h, w)
            return value, (h, w)
        if size < 1:
            raise FormatError("[net] says neither height, width and channels nor inputs")
        return self.net.input("data", tensor(F32, 1, size)), (1, 1)

    def pixels(self) -> Picture:
        """Detectors see the whole picture, classifiers its middle; resized from single pixels, as Darknet does."""
        detects = any(section.type in HEADS for section in self.layers)
        whole: Fit = "letterbox" if self.options.integer("letter_box") else "stretch"
        return Picture(scale=(1 / 255,), fit=whole if detects else "crop", border=127, sampling="bilinear")

    def made(self) -> Value:
        """The result of the layer at hand.  Raises RefusedError."""
        kind = self.section.type
        if kind not in LAYERS and kind not in RECURRENT and kind not in HEADS:
            raise RefusedError(f"the layer [{kind}] is not supported", "the layers that are stand in the documentation")
        check(self.section)
        if not self.x.typed:
            return Value(self.names[self.index])
        if kind in HEADS:
            found = HEADS[kind](self, self.picture)
            self.found.append((self.names[self.index], found))
            return found.raw
        if kind in RECURRENT:
            if kind == "crnn" and self.x.type.rank == 2:
                self.x = self.add("Reshape", self.x, np.array([1, self.x.type.dims[1], 1, 1], np.int64))
            return RECURRENT[kind](self)
        if kind in _SOFTMAX and self.section.text("tree"):
            classes = tree(self)
            return softmax(self, self.x, classes, 1) if classes else self.x
        return LAYERS[kind](self)

    def outputs(self) -> list[str]:
        """Names of the graph's outputs."""
        heads = [name for name, _ in self.found]
        last = next((i for i in reversed(range(len(self.layers))) if self.layers[i].type not in _SILENT), 0)
        rest = [] if self.names[last] in heads else [self.names[last]]
        if not self.found:
            return [*rest, *self.states]
        with self.net.layer("detections", "detections", "boxes", "scores"):
            for name in heads:
                _ = self.net[name]
            for name, parts in (
                ("boxes", [f.boxes for _, f in self.found]),
                ("scores", [f.scores for _, f in self.found]),
            ):
                self.net[name] = parts[0] if len(parts) == 1 else self.add("Concat", *parts, axis=1)
        self.net.graph.heads = Heads("boxes", ("boxes", "scores"), pixels=False)
        return [*rest, *heads, "boxes", "scores", *self.states]

    # ------------------------------------------------------------------------------------ as one layer
    def add(self, type: str, *inputs: Value | Array | float | None, **attributes: Any) -> Value:
        return self.net.add(type, *map(self.value, inputs), **attributes)

    def value(self, given: Value | Array | float | None) -> Value | None:
        if isinstance(given, Value) or given is None:
            return given
        if isinstance(given, np.ndarray):
            return self.net.constant(given, "weights")
        return self.net.scalar(given)

    def split(self, x: Value, axis: int, sizes: Sequence[int]) -> Sequence[Value]:
        return self.net.adds("Split", len(sizes), x, self.net.ints(*sizes), axis=axis)

    def earlier(self, index: float) -> Value:
        at = int(index) + (self.index if index < 0 else 0)
        if not 0 <= at < self.index:
            raise RefusedError(f"it reads layer {at}, which does not come before it")
        value = self.net[self.names[at]]
        self.net.dims(value)
        return value

    def beside(self, path: str) -> bytes | None:
        name = PurePosixPath(path).name
        found = self.net.file.matching(escape(name)) if name else []
        return found[0].data if found else None

    def state(self, name: str, *dims: int) -> Value:
        return self.net.input(f"{self.names[self.index]}_{name}", tensor(F32, *dims))

    def next_state(self, name: str, value: Value) -> None:
        full = f"{self.names[self.index]}_{name}_out"
        self.net[full] = value
        self.states.append(full)
