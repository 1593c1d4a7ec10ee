"""Networks of which a device runs parts, in one bundle: a part is a call of the device between compiled kernels.

The bundle has one more input, of which ``runtime/c/include/tenon_device.h`` tells; libtenon fills it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tenon.atomic_write import scratch
from tenon.formats.exporters.onnx import to_onnx
from tenon.network.graph.evaluate import evaluate
from tenon.network.graph.graph import Array, Graph, Value
from tenon.network.graph.types import DType, TensorType
from tenon.network.ops.base import Site
from tenon.network.ops.c_source import Source, SourceOperator
from tenon.network.ops.unroll import unrolled
from tenon.pipeline import load
from tenon.runtime.bundle.container import MAGIC
from tenon.runtime.engine import open_bundle
from tenon.runtime.plugins.device import ChoosingDevice, Device
from tenon.runtime.plugins.partition import Section, partition

DEVICE_INPUT = "tenon_device_"
"""The input's name begins so; the device's name follows."""

_C = """\
#include <stddef.h>
#include <stdint.h>

static inline void {name}(const uint64_t *device, const uint8_t *model, {parameters}, int64_t part, int64_t bytes) {{
  const struct {{
    void (*run)(void *, uint32_t, const void *, size_t, const void *const *, void *const *);
    void *context;
  }} *calls = (const void *)(uintptr_t)device[0];
  const void *const inputs[] = {{{inputs}}};
  void *const outputs[] = {{{outputs}}};
  if (calls != NULL && device[1] == ~device[0])
    calls->run(calls->context, (uint32_t)part, model, (size_t)bytes, inputs, outputs);
}}
"""


@dataclass(frozen=True)
class DevicePart(SourceOperator):
    """Part ``number`` of a network, which a device runs.

    Inputs: the input that tells how to call the device (u64[2 + parts]), the part as an ONNX model (u8), then what the
    model reads; ``results`` are the element types and shapes of its outputs.
    """

    number: int = 0
    results: tuple[tuple[str, tuple[int, ...]], ...] = ()
    arity: ClassVar[tuple[int, int]] = (2, 1 << 16)
    internal: ClassVar[bool] = True

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        """The types that the model states."""
        return tuple(TensorType(DType(dtype), shape) for dtype, shape in self.results)

    def reference(self, device: Array, model: Array, *inputs: Array) -> tuple[Array, ...]:
        """The model, by the definitions of its operators; of a bundle, what that gives."""
        if model[: len(MAGIC)].tobytes() == MAGIC:
            return _bundle_results(model, inputs)
        graph = load(model.tobytes())
        feeds = {value.name: array for value, array in zip(graph.inputs, inputs, strict=True)}
        return tuple(evaluate(graph, feeds).values())

    def source(self, site: Site) -> Source:
        """A call of the device with the addresses of all operands."""
        inputs = [f"x{i}" for i in range(len(site.inputs) - 2)]
        outputs = [f"y{i}" for i in range(len(site.outputs))]
        name = f"call_device_{len(inputs)}_{len(outputs)}"
        parameters = [*(f"const void *{x}" for x in inputs), *(f"void *{y}" for y in outputs)]
        text = _C.format(
            name=name, parameters=", ".join(parameters), inputs=", ".join(inputs), outputs=", ".join(outputs)
        )
        return Source(name, text, (self.number, site.input(1).size))


def _bundle_results(bundle: Array, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """The outputs of a ``.tenon`` file on this machine's processor."""
    with scratch() as folder:
        (folder / "part.tenon").write_bytes(bundle.tobytes())
        with open_bundle(folder / "part.tenon", target="host") as engine:
            return tuple(engine.run(dict(zip(engine.inputs, inputs, strict=True))).values())


def offloaded(graph: Graph, device: Device) -> Graph:
    """A copy of a bound graph in which each part that ``device`` supports is one node that calls it.

    If it supports nothing, the graph itself.  Raises what the device raises for a part that it refuses.
    """
    graph = unrolled(graph)
    sections = partition(graph, device)
    count = sum(section.on_device for section in sections)
    if count == 0:
        return graph
    new = Graph(graph.name, graph.source, graph.incomplete)
    values = {value.name: new.add_input(value.name, value.type) for value in graph.inputs}
    table = new.add_input(DEVICE_INPUT + device.name, TensorType(DType.U64, (2 + count,)))
    number = 0
    for section in sections:
        if section.on_device:
            _add_part(new, section, device, number, table, values)
            number += 1
        else:
            _add_nodes(new, section, values)
    new.outputs = [value.twin() if value.constant else values[value.name] for value in graph.outputs]
    new.describe_like(graph)
    return new


def _add_part(
    new: Graph, section: Section, device: Device, number: int, table: Value, values: dict[str, Value]
) -> None:
    part = section.graph
    model = bytes(to_onnx(part).SerializeToString())
    if isinstance(device, ChoosingDevice):
        kept = device.stored(model)
    else:
        kept = model
        device.prerun(model).postrun()  # a device that refuses it does so here
    stored = new.constant(f"{part.name}_model", np.frombuffer(kept, np.uint8))
    results = tuple((str(value.type.dtype), value.type.dims) for value in part.outputs)
    inputs = [table, stored, *(values[value.name] for value in part.inputs)]
    node = new.add(DevicePart(number, results), inputs, [value.name for value in part.outputs], part.nodes[0].origin)
    values.update({value.name: value for value in node.outputs})


def _add_nodes(new: Graph, section: Section, values: dict[str, Value]) -> None:
    twins = {value: values[value.name] for value in section.graph.inputs}
    for node in section.graph:
        inputs = [None if v is None else twins.setdefault(v, v.twin()) for v in node.inputs]
        added = new.add(node.op, inputs, [value.name for value in node.outputs], node.origin, bodies=node.bodies)
        twins.update(zip(node.outputs, added.outputs, strict=True))
        values.update({value.name: value for value in added.outputs})
