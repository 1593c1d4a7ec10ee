"""Devices in shared libraries (``runtime/c/include/tenon_device.h``)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tenon.errors import DeviceError, InputError
from tenon.network.graph.graph import Array, Node, Value
from tenon.options import device_plugins
from tenon.runtime.engine.part_devices import is_registered, register_device

_ABI = 1
_TEXT, _POINTER, _NUMBER = ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int


class _Node(ctypes.Structure):
    _fields_ = (
        ("op", _TEXT),
        ("name", _TEXT),
        ("input_count", ctypes.c_int32),
        ("output_count", ctypes.c_int32),
        ("types", ctypes.POINTER(_TEXT)),
        ("ranks", ctypes.POINTER(ctypes.c_int32)),
        ("shapes", ctypes.POINTER(ctypes.POINTER(ctypes.c_int64))),
    )


_DIMS = ctypes.POINTER(ctypes.c_int64)
_POINTERS = ctypes.POINTER(_POINTER)


class _Device(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("abi", ctypes.c_int32),
        ("name", _TEXT),
        ("self", _POINTER),
        ("describe", ctypes.CFUNCTYPE(_TEXT, _POINTER)),
        ("supports", ctypes.CFUNCTYPE(_NUMBER, _POINTER, ctypes.POINTER(_Node))),
        ("prerun", ctypes.CFUNCTYPE(_NUMBER, _POINTER, _POINTER, ctypes.c_size_t, _POINTERS)),
        ("run", ctypes.CFUNCTYPE(_NUMBER, _POINTER, _POINTERS, _POINTERS)),
        ("postrun", ctypes.CFUNCTYPE(None, _POINTER)),
        ("release", ctypes.CFUNCTYPE(None, _POINTER)),
        ("error", ctypes.CFUNCTYPE(_TEXT, _POINTER)),
        ("seconds", ctypes.CFUNCTYPE(ctypes.c_double, _POINTER, ctypes.POINTER(_Node))),
        ("copy_seconds", ctypes.CFUNCTYPE(ctypes.c_double, _POINTER, ctypes.c_uint64)),
        ("refusal", ctypes.CFUNCTYPE(_TEXT, _POINTER, ctypes.POINTER(_Node))),
    )


def _described(node: Node) -> _Node:
    values = [*node.inputs, *node.outputs]
    dims = [() if value is None else value.type.dims for value in values]
    shapes = [(ctypes.c_int64 * max(1, len(d)))(*d) for d in dims]
    types = [b"" if value is None else str(value.type.dtype).encode() for value in values]
    return _Node(
        node.op.name.encode(),
        node.outputs[0].name.encode(),
        len(node.inputs),
        len(node.outputs),
        (_TEXT * len(values))(*types),
        (ctypes.c_int32 * len(values))(*map(len, dims)),
        (_DIMS * len(values))(*(ctypes.cast(shape, _DIMS) for shape in shapes)),
    )


class LibraryDevice:
    """A device in a shared library.  ``argument`` is what the plug-in asks for beside its path.

    Raises InputError if it is no plug-in of this version, or its device cannot be used.
    """

    def __init__(self, path: str | os.PathLike[str], argument: str = "") -> None:
        self._path = os.fspath(path)
        try:
            self._library = ctypes.CDLL(str(Path(path).resolve()))
            entry = self._library.tenon_plugin_device
        except (OSError, AttributeError) as error:
            raise InputError(f"{self._path} is no plug-in with a device: {error}") from error
        entry.restype, message = ctypes.POINTER(_Device), _TEXT()
        self._argument = _TEXT(argument.encode())  # plug-ins may keep it
        device = entry(self._argument, ctypes.byref(message))
        if not device:
            raise InputError(f"{self._path}: {(message.value or b'the device cannot be used').decode()}")
        self._device = device.contents
        if self._device.abi != _ABI or self._device.struct_size < _Device.seconds.offset:
            raise InputError(f"{self._path} was built for version {self._device.abi} of tenon_device.h, not {_ABI}")

    @property
    def name(self) -> str:
        """The device's name."""
        return (self._device.name or b"").decode()

    def describe(self) -> str:
        """Product and version, in a line."""
        return (self._device.describe(self._device.self) or b"").decode()

    def supports(self, node: Node) -> bool:
        """Whether the device takes a node, which must not be a loop or a branch."""
        return not node.bodies and bool(self._device.supports(self._device.self, ctypes.byref(_described(node))))

    def refusal(self, node: Node) -> str:
        """Why it does not take a node; "" if it does."""
        if self.supports(node):
            return ""
        refusal = self._optional("refusal")
        text = refusal(self._device.self, ctypes.byref(_described(node))) if refusal else None
        return text.decode() if text else f"does not support {node.op.name}"

    def seconds(self, node: Node) -> float:
        """The estimated seconds of a node that it takes; 0 if the plug-in gives none, so that it gets all of them."""
        seconds = self._optional("seconds")
        return float(seconds(self._device.self, ctypes.byref(_described(node)))) if seconds else 0.0

    def copy_seconds(self, value: Value) -> float:
        """The estimated seconds of a copy of a tensor to the device, or back; 0 if the plug-in gives none."""
        seconds = self._optional("copy_seconds")
        return float(seconds(self._device.self, value.type.nbytes)) if seconds else 0.0

    def _optional(self, name: str) -> Any:
        """A function that plug-ins need not have; None if this one has not."""
        known = self._device.struct_size >= ctypes.sizeof(_Device)
        return (getattr(self._device, name) or None) if known else None

    def prerun(self, model: bytes) -> LibraryPart:
        """Prepare a part, given as an ONNX model with fixed shapes.  Raises DeviceError if the device refuses it."""
        handle = _POINTER()
        if self._device.prerun(
            self._device.self, ctypes.cast(ctypes.c_char_p(model), _POINTER), len(model), ctypes.byref(handle)
        ):
            raise DeviceError(f"device {self.name} refuses a part of the network: {self._error()}")
        return LibraryPart(self, handle, model)

    def release(self) -> None:
        """Tell the device that it is used no longer."""
        if self._device.release:
            self._device.release(self._device.self)

    def _error(self) -> str:
        return (self._device.error(self._device.self) or b"it gives no reason").decode()

    def run(self, part: ctypes.c_void_p, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Run a part once, from ``inputs`` to ``outputs``, C-contiguous arrays of the model's types and shapes.

        Raises DeviceError if the device fails.
        """
        ins, outs = ((_POINTER * max(1, len(a)))(*(x.ctypes.data for x in a)) for a in (inputs, outputs))
        if self._device.run(part, ins, outs):
            raise DeviceError(f"device {self.name} failed: {self._error()}")

    def postrun(self, part: ctypes.c_void_p) -> None:
        """End what ``prerun`` began for a part."""
        self._device.postrun(part)


class LibraryPart:
    """A part of a network on such a device."""

    def __init__(self, device: LibraryDevice, handle: ctypes.c_void_p, model: bytes) -> None:
        from onnx import load_from_string
        from onnx.helper import tensor_dtype_to_np_dtype

        self._device, self._handle, self._ports = device, handle, list[tuple[tuple[int, ...], np.dtype[Any]]]()
        for output in load_from_string(model).graph.output:
            type = output.type.tensor_type
            self._ports.append((tuple(d.dim_value for d in type.shape.dim), tensor_dtype_to_np_dtype(type.elem_type)))

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        outputs = [np.empty(shape, dtype) for shape, dtype in self._ports]
        self._device.run(self._handle, [np.ascontiguousarray(array) for array in inputs], outputs)
        return outputs

    def postrun(self) -> None:
        self._device.postrun(self._handle)


def load_device(path: str | os.PathLike[str], argument: str = "") -> LibraryDevice:
    """Register the device of a shared library.  Raises InputError if it is no plug-in, or its name is taken."""
    device = LibraryDevice(path, argument)
    register_device(device)
    return device


def load_device_plugins(name: str) -> None:
    """Load the plug-ins that TENON_DEVICE_PLUGINS lists, one after the other, until there is a device of that name.
    Raises InputError for what is no plug-in."""
    for path, argument in device_plugins():
        if is_registered(name):
            return
        device = LibraryDevice(path, argument)
        if not is_registered(device.name):
            register_device(device)
