"""A GPU target as a device that runs parts of networks beside compiled code of the processor."""

from __future__ import annotations

from collections.abc import Sequence

from tenon.atomic_write import scratch
from tenon.errors import InputError
from tenon.machine.codegen.backend import find as find_backend
from tenon.machine.targets import find
from tenon.machine.targets.registry import rows
from tenon.network.graph.graph import Array, Graph, Node
from tenon.network.ops.base import Operator
from tenon.options import Options
from tenon.pipeline import compile
from tenon.runtime.bundle.writer import Bundle, save_container
from tenon.runtime.engine import Engine, open_bundle
from tenon.runtime.engine.device_here import device_here
from tenon.runtime.plugins.cost_split import SplitCosts, fastest_split
from tenon.runtime.plugins.device import Device, find_device


def device_of(name: str) -> Device:
    """The device that is registered by that name, or the GPU target.  Raises InputError if there is neither."""
    row = rows().get(name)
    is_target = row is not None and find_backend(row.backend).launch == "grid"
    return TargetDevice(name) if is_target else find_device(name)


class TargetDevice:
    """The device that a GPU ``target`` ("opencl", "cuda") runs on; ``costs`` say what is worth a copy to it.

    Raises InputError for a target of processors.
    """

    def __init__(self, target: str, costs: SplitCosts | None = None) -> None:
        if find_backend(find(target).backend).launch != "grid":
            raise InputError(f"{target} is a target of processors: a device is a GPU target (opencl, cuda)")
        self.name, self._costs = target, costs or SplitCosts()

    def describe(self) -> str:
        """The device of this machine."""
        return str(device_here(find(self.name)) or f"no device of {self.name} here")

    def supports(self, node: Node) -> bool:
        """Whether its kernels can express a node: not those of operators in C, nor loops and branches."""
        return isinstance(node.op, Operator) and node.op.on_devices and not node.bodies

    def chosen(self, graph: Graph) -> frozenset[Node]:
        """The nodes that it runs in the split of least time."""
        return fastest_split(graph, self._costs, self.supports)

    def prerun(self, model: bytes) -> TargetPart:
        """Raises ResourceError if there is no device, or if it refuses the part."""
        engine = open_bundle(self._compiled(model, self.name))
        try:
            engine.prepare()
        except BaseException:
            engine.close()
            raise
        return TargetPart(engine)

    def stored(self, model: bytes) -> bytes:
        """The part as a ``.tenon`` file, for the device, and for processors where there is none."""
        host = find(self.name).host
        targets = (self.name, host.family) if host else (self.name,)
        with scratch() as folder:
            return save_container(folder / "part.tenon", [self._compiled(model, name) for name in targets]).read_bytes()

    def _compiled(self, model: bytes, target: str) -> Bundle:
        return compile(model, Options.from_environment(target=target, name="part", threads=1))

    def release(self) -> None:
        """Nothing is held."""


class TargetPart:
    """A part of a network on the device."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """The outputs in the order of the part's model."""
        return list(self._engine.run(dict(zip(self._engine.inputs, inputs, strict=True))).values())

    def postrun(self) -> None:
        self._engine.close()
