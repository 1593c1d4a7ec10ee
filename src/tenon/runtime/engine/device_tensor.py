"""Tensors on a GPU, given and taken by DLPack without a copy."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import numpy as np

from tenon.errors import InputError
from tenon.network.graph.dtype import DType
from tenon.runtime.bundle.manifest import BundleTensor

CUDA = 2
"""The number of CUDA among the kinds of devices (kDLCUDA)."""

DEFAULT_STREAM = 1
"""The legacy default stream of CUDA."""

_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}
_BFLOAT = 4
_NAME, _USED = b"dltensor", b"used_dltensor"


class _DLDevice(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("number", ctypes.c_int32))


class _DLDataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _DLDevice),
        ("rank", ctypes.c_int32),
        ("type", _DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    )


class _DLManagedTensor(ctypes.Structure):
    """The form without a version."""


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_DLManagedTensor))
_DLManagedTensor._fields_ = (("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))
_Destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

_python = ctypes.PyDLL(None)
_dying = ctypes.PyDLL(None)
"""The same functions for a capsule that is being destroyed, of which there may be no new reference."""
_dying.PyCapsule_IsValid.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
_dying.PyCapsule_GetPointer.restype = ctypes.c_void_p
_dying.PyCapsule_GetPointer.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
_python.PyCapsule_New.restype = ctypes.py_object
_python.PyCapsule_New.argtypes = (ctypes.c_void_p, ctypes.c_char_p, _Destructor)
_python.PyCapsule_GetPointer.restype = ctypes.c_void_p
_python.PyCapsule_GetPointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
_python.PyCapsule_SetName.argtypes = (ctypes.py_object, ctypes.c_char_p)
_python.PyCapsule_IsValid.argtypes = (ctypes.py_object, ctypes.c_char_p)


class OnDevice(Protocol):
    """An array of any library that offers DLPack."""

    def __dlpack_device__(self) -> tuple[int, int]: ...

    def __dlpack__(self, *, stream: int | None = None) -> Any: ...


def device_of(value: object) -> tuple[int, int] | None:
    """The kind and number of the device of an array that offers DLPack; None for other values."""
    ask = getattr(value, "__dlpack_device__", None)
    if ask is None:
        return None
    kind, number = ask()
    return int(kind), int(number)


_lent: dict[int, tuple[object, ...]] = {}
"""Objects that live as long as another library holds a tensor, by the address of the tensor's description."""


def _take_back(managed: Any) -> None:
    _lent.pop(ctypes.addressof(managed.contents), None)


def _take_back_unused(capsule: int) -> None:
    """A capsule that nobody took gives back what it holds."""
    if _dying.PyCapsule_IsValid(capsule, _NAME):
        _lent.pop(_dying.PyCapsule_GetPointer(capsule, _NAME), None)


_returned, _unused = _Deleter(_take_back), _Destructor(_take_back_unused)


class DeviceTensor:
    """A tensor in the memory of an engine on a GPU, for ``torch.from_dlpack``, ``cupy.from_dlpack`` and so on.

    The next run overwrites it.  ``owner`` keeps the memory; ``wait`` makes a stream wait until the contents are there.
    """

    def __init__(
        self,
        address: int,
        shape: tuple[int, ...],
        dtype: DType,
        device: int,
        owner: object,
        wait: Callable[[int], None],
    ) -> None:
        self.address, self.shape, self.dtype, self.device = address, shape, dtype, device
        self._owner, self._wait = owner, wait

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self.device

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """A capsule of the form without a version, which every consumer takes.

        ``stream`` is that of the consumer: None is the legacy default stream, -1 needs no waiting.  Raises BufferError
        for another device and for a copy.
        """
        del max_version
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError(f"{self!r} is given where it lies: copy it with the library that takes it")
        if stream != -1:
            self._wait(stream or DEFAULT_STREAM)
        shape = (ctypes.c_int64 * max(1, len(self.shape)))(*self.shape)
        tensor = _DLTensor(
            self.address, _DLDevice(CUDA, self.device), len(self.shape), _type_of(self.dtype), shape, None, 0
        )
        managed = _DLManagedTensor(tensor, None, _returned)
        _lent[ctypes.addressof(managed)] = (managed, shape, self._owner)
        return _python.PyCapsule_New(ctypes.addressof(managed), _NAME, _unused)

    def __repr__(self) -> str:
        return f"DeviceTensor({self.dtype}{list(self.shape)} on cuda:{self.device})"


def _type_of(dtype: DType) -> _DLDataType:
    numpy = np.dtype(dtype.numpy)
    code = _CODES.get(numpy.kind, _BFLOAT)
    return _DLDataType(code, 8 * numpy.itemsize, 1)


class Borrowed:
    """A tensor of another library, while it is used."""

    def __init__(self, value: OnDevice, stream: int) -> None:
        self._capsule = value.__dlpack__(stream=stream)
        if not _python.PyCapsule_IsValid(self._capsule, _NAME):
            raise InputError("an array on a GPU gives no DLPack tensor of the form without a version")
        self._managed = _DLManagedTensor.from_address(_python.PyCapsule_GetPointer(self._capsule, _NAME))
        _python.PyCapsule_SetName(self._capsule, _USED)

    def address(self, name: str, shape: tuple[int, ...], dtype: DType) -> int:
        """Where its elements lie.  Raises InputError unless it has that shape and type, one element after the other."""
        tensor = self._managed.tensor
        given = tuple(tensor.shape[: tensor.rank])
        wanted = _type_of(dtype)
        if given != shape or bytes(tensor.type) != bytes(wanted):
            bits = f"{tensor.type.bits} bits (DLPack's code {tensor.type.code})"
            raise InputError(f"input '{name}' is {dtype}{list(shape)}, and the array has shape {list(given)} of {bits}")
        if tensor.strides and not _follow_each_other(given, tensor.strides[: tensor.rank]):
            raise InputError(f"input '{name}': the elements of the array do not follow each other: copy it first")
        return int(tensor.data or 0) + int(tensor.offset)

    def close(self) -> None:
        if self._managed.deleter:
            self._managed.deleter(ctypes.byref(self._managed))


@contextmanager
def borrowed(inputs: Sequence[BundleTensor], feeds: Mapping[str, Any] | Any | None, stream: int) -> Iterator[list[int]]:
    """The addresses of the inputs, 0 for those that the network's memory has, while the feeds are used on a stream.

    Raises InputError for feeds that do not fit, or are not on the device.
    """
    given = _by_name([t.name for t in inputs], feeds)
    with ExitStack() as taken:
        yield [taken.enter_context(_address(t, given[t.name], stream)) if t.name in given else 0 for t in inputs]


@contextmanager
def _address(tensor: BundleTensor, value: Any, stream: int) -> Iterator[int]:
    if device_of(value) != (CUDA, 0):
        raise InputError(f"input '{tensor.name}' is no array on the CUDA device 0: run() takes others")
    held = Borrowed(value, stream)
    try:
        yield held.address(tensor.name, tensor.shape, DType(tensor.dtype))
    finally:
        held.close()


def _by_name(names: Sequence[str], feeds: Mapping[str, Any] | Any | None) -> Mapping[str, Any]:
    if feeds is None:
        return {}
    if not isinstance(feeds, Mapping):
        if len(names) != 1:
            raise InputError(f"give a dict of arrays: this network has inputs {', '.join(names)}")
        return {names[0]: feeds}
    if wrong := sorted(feeds.keys() ^ set(names)):
        raise InputError(f"give an array for each input, not for others ({wrong[0]}): inputs are {', '.join(names)}")
    return feeds


def _follow_each_other(shape: tuple[int, ...], strides: list[int]) -> bool:
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size > 1 and stride != step:
            return False
        step *= size
    return True
