"""The bindings of a bundle: entry points for different input shapes that share memory."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from math import prod

from tenon.errors import InputError
from tenon.gpu_options import GpuOptions
from tenon.network.graph.dtype import Array
from tenon.runtime.bundle.manifest import Binding, BundleTensor, size_ranges, typed_text
from tenon.runtime.engine.device_queue import DeviceQueue, has_queue
from tenon.runtime.engine.io import Given, cropped, fill, strings, views
from tenon.runtime.engine.sizes import check_size, placed
from tenon.runtime.engine.thread_pool import ThreadPool


class ShapeBinding:
    """A binding in an engine: its inputs and outputs as arrays, and what runs it."""

    def __init__(
        self,
        binding: Binding,
        mutable: Array,
        library: ctypes.CDLL,
        threads: int,
        processors: frozenset[int],
        gpu: GpuOptions,
    ) -> None:
        """``mutable`` is the region; the binding uses its beginning."""
        self.binding, self.region = binding, mutable
        self.inputs = views(mutable, tuple(tensor for tensor in binding.inputs if not tensor.calls_device))
        self.outputs = views(mutable, binding.outputs)
        self.strings = strings(binding.inputs)
        self.sizes = size_ranges(binding.inputs)
        self.states = frozenset(tensor.name for tensor in binding.inputs if tensor.state)
        self.optional = frozenset((*self.sizes, *self.states))
        own = (tensor for tensor in binding.inputs if not tensor.calls_device)
        self._fed = tuple(tensor for tensor in own if tensor.size is None)
        self._reset = getattr(library, f"{binding.entry}_reset") if self.states else None
        self.starts_at_zero = not any(any(t.initial or ()) for t in binding.inputs if t.state)
        self._whole = not any(t.string or t.extents for t in binding.outputs)
        self.pool: ThreadPool | DeviceQueue
        if has_queue(library, binding.entry):
            self.pool = DeviceQueue(library, binding.entry, processors, gpu)
        else:
            self.pool = ThreadPool(library, binding.entry, threads, processors)

    def check_sizes(self) -> None:
        """Raise InputError if a size that the inputs hold is out of its range."""
        for name, size in self.sizes.items():
            check_size(name, int(self.inputs[name].item()), size)

    def set_largest(self) -> None:
        """Set all sizes to the largest, except states."""
        for name, size in self.sizes.items():
            if name not in self.states:
                self.inputs[name][...] = size.most

    def fill(self, given: Given) -> None:
        """Copy every feed into the input of its name, and set the sizes that follow from their shapes.  Raises
        InputError for feeds that do not fit; nothing is written then."""
        targets, sizes = self.inputs, dict[str, int]()
        if self.sizes:
            arrays = {name: array for name, (array, _) in given.items()}
            targets, sizes = placed(self.inputs, self.binding.inputs, arrays)
        fill(targets, given, self.region, self.strings, sizes)

    @property
    def kept(self) -> list[tuple[str, int, str]]:
        """Name, place and type of each state: bindings with the same ones share their content."""
        return [(t.name, t.offset, t.type) for t in self.binding.inputs if t.state]

    def reset(self) -> None:
        """Give the states their initial content."""
        if self._reset is not None:
            self._reset.restype = None
            self._reset(ctypes.c_void_p(self.region.ctypes.data))

    def results(self) -> dict[str, Array]:
        """The outputs, cropped to their valid extents and with strings decoded."""
        return dict(self.outputs) if self._whole else cropped(self.outputs, self.inputs, self.binding.outputs)

    def fits(self, given: Given) -> bool:
        """Whether the given arrays have the shapes of the inputs."""
        return all(self._takes(t, given[t.name][0].shape) for t in self._fed if t.name in given)

    def most_elements(self, given: Given) -> int:
        """The number of elements of the largest arrays that the given inputs take."""
        return sum(prod(t.shape) for t in self._fed if t.name in given)

    def _takes(self, tensor: BundleTensor, shape: tuple[int, ...]) -> bool:
        """Whether an input takes an array of that shape."""
        wanted = tensor.shape[:-1] if tensor.string else tensor.shape
        sizes = {axis: self.sizes[name] for axis, name in tensor.extents}
        return len(shape) == len(wanted) and all(
            n in sizes[axis] if axis in sizes else n == most
            for axis, (n, most) in enumerate(zip(shape, wanted, strict=True))
        )

    def __str__(self) -> str:
        return ", ".join(t.name + typed_text(t, self.sizes).removeprefix(t.dtype) for t in self._fed if not t.state)


def fitting(bindings: Sequence[ShapeBinding], given: Given) -> int:
    """The number of the binding for arrays of these shapes: of several that fit, the first of those whose largest
    arrays are smallest.  Raises InputError if none of several bindings fits; a single binding is always returned, since
    ``io.fill`` reports mismatches in detail.
    """
    if len(bindings) == 1:
        return 0
    fit = [i for i, bound in enumerate(bindings) if bound.fits(given)]
    if not fit:
        shapes = ", ".join(f"{name}{list(array.shape)}" for name, (array, _) in given.items())
        listed = "; ".join(map(str, bindings))
        raise InputError(
            f"no binding takes {shapes}: this bundle was compiled for {listed}: compile it with one more --shape"
        )
    return min(fit, key=lambda i: bindings[i].most_elements(given))
