"""A GPU target as a device that runs parts of networks beside compiled code of the processor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tenon.atomic_write import scratch
from tenon.errors import InputError
from tenon.gpu_options import GpuOptions
from tenon.machine.codegen.backend import find as find_backend
from tenon.machine.targets import find
from tenon.machine.targets.registry import rows
from tenon.network.graph.graph import Node, Value
from tenon.network.ops.base import Operator
from tenon.network.ops.scan import Scan
from tenon.options import Options
from tenon.pipeline import compile
from tenon.runtime.bundle.writer import Bundle, save_container
from tenon.runtime.engine import open_bundle
from tenon.runtime.engine.device_here import device_here
from tenon.runtime.engine.device_parts import EnginePart
from tenon.runtime.engine.part_devices import Device, find_device
from tenon.runtime.plugins.cost_split import SplitCosts, inner_nodes


def device_of(name: str, gpu: Mapping[str, Any] | None = None) -> Device:
    """The device that is registered by that name, or the GPU target, whose parts have the options ``gpu``.  Raises
    InputError if there is neither, and for targets of processors."""
    return TargetDevice(name, gpu=gpu) if name in rows() else find_device(name)


def takes_parts(device: str, target: str) -> bool:
    """Whether a device can run parts of a bundle for a target: code for GPUs is made for this machine, plug-ins are
    there or not."""
    name = device.partition("=")[0]
    return name not in rows() or find(name).triple == find(target).triple


def costs_of(devices: Sequence[Device]) -> SplitCosts | None:
    """The costs that the first GPU states, which are the processor's as well; None if there is no GPU."""
    return next((device.costs for device in devices if isinstance(device, TargetDevice)), None)


class TargetDevice:
    """The device that a GPU ``target`` ("opencl", "cuda") runs on; ``costs`` say what is worth a copy to it, and
    ``gpu`` how parts run there (``tenon.open``).

    Raises InputError for a target of processors, and for options that do not fit.
    """

    def __init__(self, target: str, costs: SplitCosts | None = None, gpu: Mapping[str, Any] | None = None) -> None:
        if find_backend(find(target).backend).launch != "grid":
            raise InputError(f"{target} is a target of processors: a device is a GPU target (opencl, cuda)")
        self.name, self.costs, self.gpu = target, costs or SplitCosts(), dict(gpu or {})
        GpuOptions.read(self.gpu)

    def describe(self) -> str:
        """The device of this machine."""
        return str(device_here(find(self.name)) or f"no device of {self.name} here")

    def supports(self, node: Node) -> bool:
        """Whether its kernels can express a node."""
        return not self.refusal(node)

    def refusal(self, node: Node) -> str:
        """Why they cannot: operators in C run on the processor, and loops and branches with some of them; loops, too,
        whose stacked results have an extent that a run decides."""
        for each in (node, *inner_nodes(node)):
            if isinstance(each.op, Scan) and each.op.counted and len(each.outputs) > each.op.states:
                return "does not stack results of a loop whose number of iterations a run decides"
            if not (isinstance(each.op, Operator) and each.op.on_devices):
                return f"does not run {each.op.name}, which is an operator in C"
        return ""

    def seconds(self, node: Node) -> float:
        """The estimated seconds of a node."""
        return self.costs.on_device(node)

    def copy_seconds(self, value: Value) -> float:
        """The estimated seconds of a copy of a tensor to the device, or back."""
        return self.costs.copied(value)

    def prerun(self, model: bytes) -> EnginePart:
        """Prepare a part, given as an ONNX model with fixed shapes.  Raises ResourceError if there is no device, or if
        it refuses the part."""
        engine = open_bundle(self._compiled(model, self.name))
        try:
            engine.prepare()
        except BaseException:
            engine.close()
            raise
        return EnginePart(engine)

    def stored(self, model: bytes) -> bytes:
        """The part as a ``.tenon`` file, for the device, and for processors where there is none."""
        host = find(self.name).host
        targets = (self.name, host.family) if host else (self.name,)
        with scratch() as folder:
            return save_container(folder / "part.tenon", [self._compiled(model, name) for name in targets]).read_bytes()

    def _compiled(self, model: bytes, target: str) -> Bundle:
        gpu = self.gpu if target == self.name else {}
        return compile(model, Options.from_environment(target=target, name="part", threads=1, gpu=gpu))

    def release(self) -> None:
        """Nothing is held."""
