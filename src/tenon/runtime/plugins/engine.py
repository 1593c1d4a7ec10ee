"""Runs a network of which devices take parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tenon.errors import InputError
from tenon.formats.exporters.onnx import to_onnx
from tenon.network.graph.bind import Shapes, bind
from tenon.network.graph.graph import Array, Graph
from tenon.network.passes.bodies import with_usable_bodies
from tenon.options import Options
from tenon.pipeline import Model, compile, load
from tenon.runtime.engine import Engine, open_bundle
from tenon.runtime.engine.part_devices import Device, Part
from tenon.runtime.plugins.cost_split import SplitCosts
from tenon.runtime.plugins.partition import Section, partition
from tenon.runtime.plugins.placement import DeviceRule, placed
from tenon.runtime.plugins.target_device import costs_of, device_of


class PartitionedEngine:
    """A model whose nodes run on devices where these support them, and as compiled code where not.

    ``sections`` says which: one after another, with the operators of each; ``placement`` says it for every node, with
    reasons.  A device is one, or the name of one that is registered, or of a GPU target ("opencl", "cuda"), which takes
    what makes the network fastest (``cost_split``); there may be several.  ``rules`` assign layers to devices
    ("conv1=cpu", see ``DeviceRule``); ``costs`` states the speed of the processor (by default that of the first GPU's
    costs).  Raises as ``tenon.load`` and ``tenon.compile`` do, InputError for rules that do not fit, and what a device
    raises in ``prerun``.
    """

    def __init__(
        self,
        model: Model | Graph,
        device: Device | str | Sequence[Device | str],
        options: Options | None = None,
        *,
        shapes: Shapes | None = None,
        rules: Sequence[str] = (),
        costs: SplitCosts | None = None,
    ) -> None:
        whole = model if isinstance(model, Graph) else load(model, shapes=shapes)
        graph = with_usable_bodies(bind(whole, shapes), short=False)
        given = [device] if isinstance(device, str) or not isinstance(device, Sequence) else device
        self.devices = tuple(device_of(each) if isinstance(each, str) else each for each in given)
        self.inputs = {value.name: value.type for value in graph.inputs}
        self.outputs = [value.name for value in graph.outputs]
        self.constants = {value.name: value.array for value in graph.outputs if value.data is not None}
        places = placed(
            graph, self.devices, [DeviceRule.parse(rule) for rule in rules], costs or costs_of(self.devices)
        )
        self.placement = places.described()
        self.sections = partition(places)
        self._runners: list[Engine | Part] = []
        try:
            for section in self.sections:
                self._runners.append(self._prepared(section, options))
        except BaseException:
            self.close()
            raise

    def _prepared(self, section: Section, options: Options | None) -> Engine | Part:
        if section.device is not None:
            return section.device.prerun(bytes(to_onnx(section.graph).SerializeToString()))
        return open_bundle(compile(section.graph, options))

    def run(self, feeds: dict[str, Array]) -> dict[str, Array]:
        """The outputs by name for an array for each input.  Raises InputError for a wrong name, shape or type."""
        values = self._checked(feeds)
        for section, runner in zip(self.sections, self._runners, strict=True):
            inputs = {value.name: values[value.name] for value in section.graph.inputs}
            if isinstance(runner, Engine):
                values.update({name: np.array(array) for name, array in runner.run(inputs).items()})
            else:
                names = [value.name for value in section.graph.outputs]
                values.update(zip(names, runner.run(list(inputs.values())), strict=True))
        return {name: values[name] for name in self.outputs}

    def _checked(self, feeds: dict[str, Array]) -> dict[str, Any]:
        if set(feeds) != set(self.inputs):
            raise InputError(f"the network has the inputs {', '.join(self.inputs)}, and {', '.join(feeds)} are given")
        values: dict[str, Any] = dict(self.constants)
        for name, type in self.inputs.items():
            array = np.ascontiguousarray(feeds[name])
            if array.shape != type.dims or array.dtype != type.dtype.numpy:
                raise InputError(f"input '{name}' is {type}, and {array.dtype}{list(array.shape)} is given")
            values[name] = array
        return values

    def close(self) -> None:
        """Give everything back; the engine cannot run any more."""
        for runner in self._runners:
            if isinstance(runner, Engine):
                runner.close()
            else:
                runner.postrun()
        self._runners = []

    def __enter__(self) -> PartitionedEngine:
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()
