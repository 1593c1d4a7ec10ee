"""Sizes that a run chooses: read off the arrays that are given, and where these lie in the largest inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tenon.errors import InputError
from tenon.network.graph.dtype import Array
from tenon.network.graph.size_range import SizeRange
from tenon.runtime.bundle.manifest import BundleTensor, size_ranges, typed_text

Shape = tuple[int, ...]


def given_sizes(
    tensors: Sequence[BundleTensor], shapes: Mapping[str, Shape], stated: Mapping[str, int]
) -> dict[str, int]:
    """The sizes of a run with inputs of these ``shapes``, by name; ``stated`` are those that are given themselves.

    An array may have the largest extent where a size is stated: only the part of that size is valid then.  Raises
    InputError for a shape that the input cannot have, for different sizes of one name, for a size that is out of its
    range or does not follow from any shape.  A size that is a state stays as it is if neither has it.
    """
    ranges = size_ranges(tensors)
    sizes, source = dict(stated), dict.fromkeys(stated, "")
    for tensor in tensors:
        if not tensor.extents or tensor.name not in shapes:
            continue
        shape = shapes[tensor.name]
        _check_shape(tensor, shape, ranges)
        for axis, name in tensor.extents:
            if name in stated and shape[axis] == tensor.shape[axis]:
                continue
            if sizes.setdefault(name, shape[axis]) != shape[axis]:
                raise InputError(
                    f"size '{name}' is {sizes[name]}{_of(source[name])} and {shape[axis]}{_of(tensor.name)}: it is the "
                    "same in all inputs"
                )
            source.setdefault(name, tensor.name)
    for name, size in sizes.items():
        check_size(name, size, ranges[name], source[name])
    kept = {tensor.name for tensor in tensors if tensor.state}
    if missing := [name for name in ranges if name not in sizes and name not in kept]:
        raise InputError(f"size '{missing[0]}' is missing, and is no extent of an input: give it by its name")
    return sizes


def check_size(name: str, size: int, range: SizeRange, source: str = "") -> None:
    """Raise InputError if a size is out of its range; ``source`` is the input that has it."""
    if size not in range:
        raise InputError(f"size '{name}' is {size}{_of(source)}, and the network was compiled for {range}")


def _of(source: str) -> str:
    return f" in '{source}'" if source else ""


def _check_shape(tensor: BundleTensor, shape: Shape, ranges: Mapping[str, SizeRange]) -> None:
    wanted = tensor.shape[:-1] if tensor.string and len(shape) < len(tensor.shape) else tensor.shape
    changing = {axis for axis, _ in tensor.extents}
    fixed = [(n, wanted[axis]) for axis, n in enumerate(shape[: len(wanted)]) if axis not in changing]
    if len(shape) != len(wanted) or any(n != most for n, most in fixed):
        raise InputError(
            f"input '{tensor.name}' has shape [{','.join(map(str, shape))}] and the network takes "
            f"{typed_text(tensor, ranges)}"
        )


def placed(
    inputs: Mapping[str, Array], tensors: Sequence[BundleTensor], given: Mapping[str, Array]
) -> tuple[dict[str, Array], dict[str, int]]:
    """The parts of ``inputs`` that the ``given`` arrays fill, and the sizes of the run.  Raises InputError as
    ``given_sizes`` does."""
    ranges = size_ranges(tensors)
    stated = {name: _number(name, given[name]) for name in ranges if name in given}
    sizes = given_sizes(tensors, {name: array.shape for name, array in given.items()}, stated)
    targets = dict(inputs)
    for tensor in tensors:
        if tensor.extents and tensor.name in given:
            shape = given[tensor.name].shape
            counts = [n for n, _ in zip(shape, tensor.shape, strict=False)]
            targets[tensor.name] = inputs[tensor.name][tuple(slice(0, n) for n in counts)]
    return targets, sizes


def _number(name: str, array: Array) -> int:
    if array.size != 1 or array.dtype.kind not in "iu":
        raise InputError(f"size '{name}' is {array.dtype}{list(array.shape)}: give a whole number")
    return int(array.item())


def largest(tensors: Sequence[BundleTensor]) -> dict[str, Array]:
    """The largest sizes, as the inputs that hold them."""
    return {name: np.array(range.most) for name, range in size_ranges(tensors).items()}
