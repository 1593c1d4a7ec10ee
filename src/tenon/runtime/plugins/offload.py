"""Networks of which devices run parts, in one bundle: a part is a call of its device between compiled kernels.

The bundle has one more input for each device, of which ``runtime/c/include/tenon_device.h`` tells; what runs the bundle
fills it.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tenon.atomic_write import scratch
from tenon.errors import DeviceError, InputError
from tenon.formats.exporters.onnx import to_onnx
from tenon.machine.targets.registry import rows
from tenon.network.graph.evaluate import evaluate
from tenon.network.graph.graph import Array, Graph, Node, Value
from tenon.network.graph.types import DType, TensorType
from tenon.network.ops.base import Site
from tenon.network.ops.c_source import Source, SourceOperator
from tenon.network.passes.bodies import with_usable_bodies
from tenon.pipeline import load
from tenon.runtime.bundle.container import MAGIC
from tenon.runtime.bundle.manifest import DEVICE_INPUT
from tenon.runtime.engine import open_bundle
from tenon.runtime.engine.library_device import LibraryDevice
from tenon.runtime.engine.part_devices import Device, is_registered
from tenon.runtime.plugins.cost_split import SplitCosts
from tenon.runtime.plugins.device import StoringDevice
from tenon.runtime.plugins.measured_costs import measured_costs
from tenon.runtime.plugins.partition import Section, extracted, partition
from tenon.runtime.plugins.placement import DeviceRule, PlacedGraph, placed
from tenon.runtime.plugins.target_device import TargetDevice, costs_of, device_of

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


def offloaded(
    graph: Graph, *devices: Device, rules: Sequence[DeviceRule] = (), costs: SplitCosts | None = None
) -> Graph:
    """A copy of a bound graph in which each part that one of ``devices`` runs is one node that calls it.

    ``rules`` assign nodes to devices (``DeviceRule``); ``costs`` states the speed of the processor, by default that of
    the first GPU's costs.  Nodes that a device refuses run on the processor; the copy's ``placement`` says so.  Raises
    InputError for rules that do not fit.
    """
    graph = with_usable_bodies(graph, short=False)
    places, sections, models = _accepted(graph, devices, rules, costs or costs_of(devices))
    new = Graph(graph.name, graph.source, graph.incomplete)
    values = {value.name: new.add_input(value.name, value.type) for value in graph.inputs}
    parts = Counter(section.device.name for section in sections if section.device is not None)
    tables = {
        name: new.add_input(DEVICE_INPUT + name, TensorType(DType.U64, (2 + count,))) for name, count in parts.items()
    }
    numbers = {name: itertools.count() for name in parts}
    for section, model in zip(sections, models, strict=True):
        if section.device is not None:
            name = section.device.name
            _add_part(new, section, model, next(numbers[name]), tables[name], values)
        else:
            _add_nodes(new, section, values)
    new.outputs = [value.twin() if value.constant else values[value.name] for value in graph.outputs]
    new.describe_like(graph)
    new.placement = places.described()
    return new


def offload_to(
    names: Sequence[str], rules: Sequence[str] = (), gpu: Mapping[str, Any] | None = None
) -> Callable[[Graph], Graph]:
    """A function for ``tenon.compile(rewrite=...)`` that gives parts of a network to devices.

    A device is a GPU target, a plug-in ("PATH=ARGUMENT") or the name of one that is registered; ``rules`` assign layers
    to them ("LAYER=DEVICE"), and ``gpu`` are the options of GPUs (``tenon.open``).  Raises InputError for what is none
    of these.
    """
    devices: list[Device] = [_device(name, gpu) for name in names]
    parsed = [DeviceRule.parse(rule) for rule in rules]
    return lambda graph: offloaded(graph, *devices, rules=parsed)


def _device(name: str, gpu: Mapping[str, Any] | None) -> Device:
    path, _, argument = name.partition("=")
    if path in rows() and argument:
        if argument != "measured":
            raise InputError(f"'{name}': {path} takes no argument but 'measured', for costs that are measured here")
        return TargetDevice(path, measured_costs(path), gpu)
    return device_of(name, gpu) if name in rows() or is_registered(name) else LibraryDevice(path, argument)


def _accepted(
    graph: Graph, devices: Sequence[Device], rules: Sequence[DeviceRule], costs: SplitCosts | None
) -> tuple[PlacedGraph, list[Section], list[bytes]]:
    """The places of nodes whose devices take all their parts, the sections, and what is kept of each that a device
    runs (b"" of others)."""
    refused: dict[tuple[str, Node], str] = {}
    while True:
        places = placed(graph, devices, rules, costs, refused)
        sections, before = partition(places), len(refused)
        models = [_kept(graph, section, refused) for section in sections]
        if len(refused) == before:
            return places, sections, models


def _kept(graph: Graph, section: Section, refused: dict[tuple[str, Node], str]) -> bytes:
    """The content of a section in a bundle.  If the device refuses it, its nodes are added to those that are refused:
    the ones that it refuses by themselves, else all."""
    device = section.device
    if device is None:
        return b""
    try:
        return _prepared(section.graph, device)
    except DeviceError as error:
        alone = {(device.name, node): _objection(graph, node, device) for node in section.nodes}
        only = {key: why for key, why in alone.items() if why}
        refused.update(only or dict.fromkeys(alone, _reason(error, device)))
        return b""


def _prepared(part: Graph, device: Device) -> bytes:
    """Raises DeviceError if the device refuses the part."""
    model = bytes(to_onnx(part).SerializeToString())
    if isinstance(device, StoringDevice):
        return device.stored(model)
    device.prerun(model).postrun()
    return model


def _objection(graph: Graph, node: Node, device: Device) -> str:
    """Why a device refuses a part of this node alone; "" if it takes it."""
    try:
        _prepared(extracted(graph, [node], 0), device)
    except DeviceError as error:
        return _reason(error, device)
    return ""


def _reason(error: DeviceError, device: Device) -> str:
    return str(error).removeprefix(f"device {device.name} ")


def _add_part(new: Graph, section: Section, model: bytes, number: int, table: Value, values: dict[str, Value]) -> None:
    part = section.graph
    stored = new.constant(f"{part.name}_model", np.frombuffer(model, np.uint8))
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
