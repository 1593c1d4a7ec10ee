"""The parts of a bundle that devices run: its code calls back through an input for each device.

The C side of this is in ``runtime/c/include/tenon_device.h``; libtenon's ``device_parts.c`` does the same for C.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from tenon.errors import DeviceError, TenonError
from tenon.machine.targets.registry import rows
from tenon.network.graph.dtype import Array
from tenon.runtime.bundle.container import MAGIC
from tenon.runtime.bundle.manifest import DEVICE_INPUT, Binding
from tenon.runtime.engine.io import views
from tenon.runtime.engine.library_device import load_device_plugins
from tenon.runtime.engine.part_devices import Device, Part, find_device

_POINTERS = ctypes.POINTER(ctypes.c_void_p)
_RUN = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, _POINTERS, _POINTERS)


class _Calls(ctypes.Structure):
    """``TenonDeviceCalls``."""

    _fields_ = (("run", _RUN), ("context", ctypes.c_void_p))


class PreparedPart:
    """A part that a device has prepared, and the shapes and types of its inputs and outputs."""

    def __init__(
        self, part: Part, inputs: Sequence[tuple[tuple[int, ...], Any]], outputs: Sequence[tuple[tuple[int, ...], Any]]
    ) -> None:
        self.part, self.inputs, self.outputs = part, inputs, outputs

    def run(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Run on arrays at these addresses.  Raises what the device raises."""
        results = self.part.run([_array(at, *port) for at, port in zip(inputs, self.inputs, strict=True)])
        for at, port, result in zip(outputs, self.outputs, results, strict=True):
            _array(at, *port)[...] = result


class RunnablePart(Protocol):
    """The part of ``engine.Engine`` by which parts of other networks are run."""

    inputs: dict[str, Array]
    outputs: dict[str, Array]

    def prepare(self) -> None: ...

    def run(self, feeds: dict[str, Array]) -> dict[str, Array]: ...

    def close(self) -> None: ...


OpenPart = Callable[[str, str], RunnablePart]
"""Opens the file of a part that was compiled for a GPU target, which is named."""


def prepared(name: str, stored: bytes, open_part: OpenPart) -> PreparedPart:
    """A part as a bundle keeps it: in ONNX for a registered device, or a ``.tenon`` file for a GPU target.  Raises
    TenonError."""
    if stored[: len(MAGIC)] == MAGIC:
        return _bundle_part(name, stored, open_part)
    from onnx import load_from_string

    graph = load_from_string(stored).graph
    constants = {tensor.name for tensor in graph.initializer}
    inputs = [_port(value) for value in graph.input if value.name not in constants]
    return PreparedPart(device_named(name).prerun(stored), inputs, [_port(value) for value in graph.output])


def device_named(name: str) -> Device:
    """A registered device, or one of the plug-ins of TENON_DEVICE_PLUGINS.  Raises InputError if there is none."""
    load_device_plugins(name)
    return find_device(name)


def _bundle_part(name: str, stored: bytes, open_part: OpenPart) -> PreparedPart:
    from tenon.atomic_write import scratch

    with scratch() as folder:
        (folder / "part.tenon").write_bytes(stored)
        part = EnginePart(open_part(str(folder / "part.tenon"), name))
    engine = part.engine
    engine.prepare()
    ports = ([(array.shape, array.dtype) for array in arrays.values()] for arrays in (engine.inputs, engine.outputs))
    return PreparedPart(part, *ports)


class EnginePart:
    """A part of a network that an engine runs."""

    def __init__(self, engine: RunnablePart) -> None:
        self.engine = engine

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """The outputs in the order of the part's model."""
        return list(self.engine.run(dict(zip(self.engine.inputs, inputs, strict=True))).values())

    def postrun(self) -> None:
        """Close the engine."""
        self.engine.close()


def _port(value: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    from onnx.helper import tensor_dtype_to_np_dtype

    type = value.type.tensor_type
    return tuple(d.dim_value for d in type.shape.dim), tensor_dtype_to_np_dtype(type.elem_type)


def _array(address: int, shape: tuple[int, ...], dtype: Any) -> Array:
    """The array at an address."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype).reshape(shape)


class DeviceCalls:
    """The calls of one device by the code of one binding of an engine."""

    def __init__(self, name: str, table: Array, open_part: OpenPart) -> None:
        self._name, self._table, self._open_part = name, table, open_part
        self._parts: dict[int, PreparedPart] = {}
        self._error: TenonError | None = None
        self._run = _RUN(self._called)
        self._calls = _Calls(self._run, None)

    def begin(self) -> None:
        """Tell the code where to call, before a run."""
        address = ctypes.addressof(self._calls)
        self._table[:2] = (address, ~np.uint64(address))
        self._error = None

    def finish(self) -> None:
        """Raises the error of the run, if there was one."""
        if self._error is not None:
            raise self._error

    def _called(self, context: int, number: int, model: int, size: int, inputs: Any, outputs: Any) -> None:
        """Called by the code, which cannot take exceptions: they are kept."""
        try:
            if number not in self._parts:
                self._parts[number] = prepared(self._name, ctypes.string_at(model, size), self._open_part)
            part = self._parts[number]
            part.run([inputs[i] for i in range(len(part.inputs))], [outputs[i] for i in range(len(part.outputs))])
        except TenonError as error:
            self._error = self._error or error
        except Exception as error:  # a device in Python may raise anything
            self._error = self._error or DeviceError(f"device {self._name} failed: {type(error).__name__}: {error}")

    def end(self) -> None:
        """Give back what the parts hold."""
        for part in self._parts.values():
            part.part.postrun()
        self._parts = {}


def device_calls(binding: Binding, mutable: Array, open_part: OpenPart) -> list[DeviceCalls]:
    """The calls of all devices of a binding, whose inputs lie in the ``mutable`` region.  Raises InputError if there is
    no such device."""
    tables = views(mutable, tuple(tensor for tensor in binding.inputs if tensor.calls_device))
    devices = {input.removeprefix(DEVICE_INPUT): table for input, table in tables.items()}
    for name in devices:
        if name not in rows():
            device_named(name)
    return [DeviceCalls(name, table, open_part) for name, table in devices.items()]
