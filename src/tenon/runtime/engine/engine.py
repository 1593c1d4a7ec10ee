"""Run a bundle on this machine, on NumPy arrays, by the entry point that C programs call."""

from __future__ import annotations

import ctypes
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tenon.errors import BundleError, InputError, ResourceError, guarded, warn
from tenon.gpu_options import GpuOptions
from tenon.machine.targets.host_cpu import runs_here
from tenon.network.graph.dtype import Array, DType
from tenon.runtime.bundle.manifest import Binding, Manifest, MemoryUse
from tenon.runtime.engine import files
from tenon.runtime.engine.bindings import ShapeBinding, fitting
from tenon.runtime.engine.device_queue import DeviceProperties, DeviceQueue
from tenon.runtime.engine.device_tensor import DEFAULT_STREAM, DeviceTensor, borrowed
from tenon.runtime.engine.io import Feeds, fill_plain, named
from tenon.runtime.engine.locks import Locked
from tenon.runtime.engine.processors import Cores, choose
from tenon.runtime.engine.thread_pool import check_status

if TYPE_CHECKING:
    from tenon.formats.wire.encryption import Key
    from tenon.network.graph.text_model import TextModel
    from tenon.runtime.bundle import Bundle
    from tenon.runtime.bundle.signature import PublicKey
    from tenon.runtime.engine.device_parts import DeviceCalls
    from tenon.runtime.engine.timestamps import StampedThreadPool


@guarded
def open_bundle(
    bundle: Bundle | str | os.PathLike[str],
    *,
    threads: int = 1,
    affinity: Sequence[int] = (),
    cores: Cores = "all",
    verify: bool = False,
    target: str = "",
    key: Key | None = None,
    public_key: PublicKey | None = None,
    transform: Callable[[bytes], bytes] | None = None,
    minimum_version: int = 0,
    gpu: Mapping[str, Any] | None = None,
) -> Engine:
    """An engine for a bundle: a folder or ``.tenon`` file written by ``Bundle.save`` or ``tenon compile``, or a bundle
    in memory.

    It runs with ``threads`` threads, on the processors in ``affinity`` or on the ``cores`` of one kind ("all", "big" or
    "little", or 0, 1, 2); ``verify`` also verifies the SHA-256 of code and weights.  See ``Engine``.

    ``target`` chooses the code in a ``.tenon`` file, by default the best for this machine's processor; of several,
    separated by commas ("opencl,host"), the first whose device there is and takes the network, with a TenonWarning for
    each that cannot be used; ``key``
    decrypts it (32 bytes, a file with them or with 64 hexadecimal digits, or a function that gives them), and where
    there is one, a bundle that is not encrypted is refused; ``public_key`` (a PEM file, or 32 bytes) is the required
    signer's key, with ``minimum_version`` the oldest accepted version; ``transform`` decodes the stored bundle (for
    example decrypts it).  ``gpu`` are options of a bundle that runs on a GPU, with others than the bundle was made
    with: cache, binary, reuse, queue_window, kernel_time, performance, priority (docs/reference/gpu.md); bundles that
    run on processors have no use for them.
    Raises BundleError for a damaged bundle, one made for another machine, a wrong key or signature, InputError for more
    threads than the bundle supports and for processors that are not there.
    """
    if isinstance(bundle, str | os.PathLike):
        from tenon.options import opening

        def engine(name: str) -> Engine:
            how = files.Opening(name, key, public_key, transform, minimum_version)
            return Engine(bundle, threads=threads, affinity=affinity, cores=cores, verify=verify, opening=how, gpu=gpu)

        return first_usable((target or opening()[0]).split(","), engine)
    if not hasattr(bundle, "interface"):
        raise InputError(f"{type(bundle).__name__} is no bundle: give a path, or what tenon.compile returns")
    _check_machine(bundle.interface, bundle.name)
    from tenon.atomic_write import scratch

    with scratch() as place:
        folder = bundle.save(place / bundle.name, ("library", "weights"))
        return Engine(folder, threads=threads, affinity=affinity, cores=cores, opening=files.OWN, gpu=gpu)


class Engine(Locked):
    """A bundle, loaded.

    ``inputs`` and ``outputs`` map names to arrays that are views of the network's memory: to avoid copies, write inputs
    there and call ``run()`` without feeds.  Weights are mapped read-only and shared; each engine has its own
    mutable and activations regions, so use one engine per thread (``fork``).  Using one engine in several threads is
    safe if results are copied: runs are serialised.  A forked process (``os.fork``, ``multiprocessing``) can use the
    engine too, even while other threads run it: it has its own memory and threads.

    Each run uses ``threads`` threads: the calling one, and workers that are kept until ``close``.  Results are
    bit-identical for any number of threads.  They run on the processors numbered in ``affinity``, or
    on those of one kind ("all", "big" or "little"); a thread that calls ``run`` stays on them until ``close``.

    The checksums of code and weights (``bundle.checksum``, with ``verify`` also SHA-256) are verified before use.  This
    detects damage; it does not make untrusted bundles safe, which contain native code.

    Raises BundleError if a file is missing or damaged or the bundle was made for another machine, InputError for more
    threads than the bundle was made for and for processors that are not there.
    """

    inputs: dict[str, Array]
    outputs: dict[str, Array]
    text: TextModel | None
    """The tokenizer and other settings of a language model; None of other networks."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        threads: int = 1,
        affinity: Sequence[int] = (),
        cores: Cores = "all",
        verify: bool = False,
        opening: files.Opening = files.USUAL,
        gpu: Mapping[str, Any] | None = None,
    ) -> None:
        options = GpuOptions.read(gpu or {})
        place = files.bundle_files(os.fspath(folder), opening)
        self.manifest = place.manifest()
        _check_machine(self.manifest, place.label(""))
        _check_threads(self.manifest, threads)
        processors = choose(affinity, cores)
        library, weights = files.library(self.manifest, place, verify), files.weights(self.manifest, place, verify)
        self._host_only = opening.target == "host"
        self.text = files.text(self.manifest, place)
        self._attach(library, weights, threads, processors, options)

    def _attach(
        self, library: ctypes.CDLL, weights: Array, threads: int, processors: frozenset[int], gpu: GpuOptions
    ) -> None:
        memory = self.manifest.memory
        self._library, self._weights, self._gpu = library, weights, gpu
        super().__init__()
        self._closed = False
        mutable = -(-memory.mutable // memory.alignment) * memory.alignment
        arena = _aligned(mutable + memory.activations, memory.alignment)
        region = arena[: memory.mutable]
        every = self.manifest.every_binding()
        self._bindings = [ShapeBinding(binding, region, library, threads, processors, gpu) for binding in every]
        self._calls = [self._device_calls(binding, region) for binding in every]
        self._number = 0
        self._select(0)
        self._bindings[0].set_largest()
        if not self._bindings[0].starts_at_zero:  # else new memory, of which nothing is touched, has the states
            self._bindings[0].reset()
        self._arena = arena
        self._stamped: StampedThreadPool | None = None
        base = arena.ctypes.data
        self._arguments = tuple(ctypes.c_void_p(address) for address in (weights.ctypes.data, base, base + mutable))

    def _device_calls(self, binding: Binding, region: Array) -> list[DeviceCalls]:
        """The calls of devices that run parts of a binding.  Raises InputError if there is no such device."""
        if not any(tensor.calls_device for tensor in binding.inputs):
            return []
        from tenon.runtime.engine.device_parts import device_calls

        return device_calls(binding, region, self._open_part)

    def _open_part(self, path: str, target: str) -> Engine:
        """An engine for a part of this bundle that was compiled for a GPU target: on the processor where there is no
        such device, and where this bundle was opened for the target "host"."""
        targets, gpu = ("host",) if self._host_only else (target, "host"), vars(self._gpu)
        return first_usable(targets, lambda name: Engine(path, opening=files.Opening(name, own=True), gpu=gpu))

    def _select(self, number: int) -> None:
        chosen = self._bindings[number]
        if chosen.states and chosen.kept != self._bindings[self._number].kept:
            chosen.reset()
        self._number = number
        self.inputs, self.outputs, self._pool = chosen.inputs, chosen.outputs, chosen.pool

    def select(self, number: int) -> None:
        """Let ``inputs``, ``outputs`` and ``run()`` without feeds be those of one of ``manifest.bindings``.

        Bindings share memory: the contents of the previous binding's inputs and outputs are lost, except those of
        states that both have.  Raises InputError for an invalid number, and if the engine is closed.
        """
        with self._lock:
            self.check_open()
            if not 0 <= number < len(self._bindings):
                raise InputError(f"'{self.name}' has no binding {number}: they are 0 to {len(self._bindings) - 1}")
            self._select(number)
            self._bindings[number].set_largest()

    def check_open(self) -> None:
        """Check that the engine can run.  Raises InputError if it is closed."""
        if self._closed:
            raise InputError(f"this engine of '{self.name}' is closed: open the bundle again")

    @property
    def name(self) -> str:
        """The network's name."""
        return self.manifest.name

    @property
    def threads(self) -> int:
        """Number of threads of a run."""
        return self._pool.threads

    @property
    def memory(self) -> MemoryUse:
        """Bytes of each region, the peak, and its lower bound."""
        return self.manifest.memory

    def touch(self) -> None:
        """Read the mutable and activations regions, so that they are in the caches as after previous layers of a
        network.
        """
        self._arena.sum()

    def run(self, feeds: Feeds | None = None, *, copy: bool = True) -> dict[str, Array]:
        """Run once and return the outputs by name.

        ``feeds`` maps every input's name to an array of exactly its shape and dtype (any strides), or is the array
        itself if there is one input; None runs on what ``inputs`` holds.  Arrays of other libraries (DLPack,
        ``__array__``, buffers) are accepted, and lists of numbers, which are converted to the input's dtype if they
        fit. Feeds are read before inputs are written, so they may be views of ``inputs`` and ``outputs``.
        A state need not be fed: it holds what the run before left in it, and after ``reset`` its initial content.

        With ``copy=False`` the result shares memory with ``outputs`` and the next run overwrites it.  Inputs and
        outputs of strings are arrays of Python's strings (in ``inputs`` and ``outputs``, of their bytes).  In a bundle
        for several shapes the feeds' shapes choose among them, and ``inputs`` and ``outputs`` become those of the
        chosen binding.  Other Python threads run meanwhile.  Raises InputError if a feed does not fit or the engine is
        closed.
        """
        with self._lock:
            self.check_open()
            states = self._bindings[self._number].states
            if feeds is not None and not (len(self._bindings) == 1 and fill_plain(self.inputs, feeds, states)):
                self._fill(feeds)
            self._bindings[self._number].check_sizes()
            self._begin_calls()
            check_status(self.name, self._pool.run(self._arguments))
            self._finish_calls()
            results = self._bindings[self._number].results()
            return {name: array.copy() for name, array in results.items()} if copy else results

    def reset(self) -> None:
        """Give the states of the network their initial content, as when the engine was opened: a new sequence begins.
        Does nothing for a network without states.  Raises InputError if the engine is closed."""
        with self._lock:
            self.check_open()
            self._bindings[self._number].reset()

    def _begin_calls(self) -> None:
        """Before a run: tells the code of the binding how to call its devices."""
        for device in self._calls[self._number]:
            device.begin()

    def _finish_calls(self) -> None:
        """After a run: raises what the devices raised."""
        for device in self._calls[self._number]:
            device.finish()

    def _fill(self, feeds: Feeds) -> None:
        """Select the binding that takes the feeds, and copy them to its inputs."""
        given = named(self.inputs, feeds, self._bindings[self._number].optional)
        self._select(fitting(self._bindings, given))
        self._bindings[self._number].fill(given)

    def timestamps(self) -> Array:
        """Run once on what ``inputs`` holds: the time in nanoseconds before the first kernel call and after each.

        Of a bundle for several shapes, the first binding runs.
        Threads synchronise after every call.  On a device, these are sums of the times of its steps, without the gaps
        between them.  Raises InputError if the bundle was compiled without ``profile``, but for those of devices.
        """
        from tenon.runtime.engine.timestamps import StampedThreadPool

        if self.on_device:
            spent = self.device_times()
            return np.cumsum(np.append(np.uint64(1), spent[2:]), dtype=np.uint64)
        if not self.manifest.options.get("profile"):
            raise InputError(
                f"the kernels of '{self.name}' cannot be timed: compile the model again with --profile (profile=True)"
            )
        with self._lock:
            self.check_open()
            self._select(0)
            if self._stamped is None:
                pool = self._pool
                calls = len(self.manifest.nodes)
                self._stamped = StampedThreadPool(
                    self._library, self.manifest.entry, calls, pool.threads, pool.processors
                )
            self._begin_calls()
            stamps = self._stamped.stamps(self._arguments)
            self._finish_calls()
            return stamps

    @property
    def on_device(self) -> bool:
        """Whether the bundle runs on a GPU, or another device that is no processor of this engine."""
        return bool(self._bindings) and isinstance(self._bindings[0].pool, DeviceQueue)

    @property
    def device(self) -> DeviceProperties | None:
        """The GPU, or other device, on which the bundle runs; None of a bundle that runs on processors, and where
        there is no device."""
        self.check_open()
        pool = self._bindings[0].pool
        return pool.properties() if isinstance(pool, DeviceQueue) else None

    def prepare(self) -> None:
        """Let a device load its kernels and weights now, instead of in the first run; of a bundle that runs on
        processors, nothing.  Raises ResourceError if there is no device, or if it refuses the network."""
        with self._lock:
            self.check_open()
            if isinstance(self._pool, DeviceQueue):
                self._pool.prepare(self._arguments)

    @property
    def device_inputs(self) -> dict[str, DeviceTensor]:
        """The inputs in the memory of a CUDA device, to be written there before ``run_on_device`` without feeds.

        Raises InputError if the bundle has no code for CUDA, ResourceError if there is no device.
        """
        with self._lock:
            return self._device_tensors(inputs=True)

    def run_on_device(self, feeds: Feeds | None = None, *, stream: int = DEFAULT_STREAM) -> dict[str, DeviceTensor]:
        """Queue a run on a CUDA stream, of arrays that lie on the device, and return the outputs there by name.

        ``feeds`` are arrays of other libraries that offer DLPack (or the only one, or None for what ``device_inputs``
        holds), of exactly the inputs' shapes and dtypes; they are copied on the device.  Outputs share the engine's
        memory until it is closed: the next run overwrites them.  ``stream`` is the handle of a stream
        (``torch.cuda.Stream.cuda_stream``), by default the legacy default stream.  The run is queued behind what the
        stream has, and not waited for: feeds must not be freed before it has ended.  Raises InputError if a feed does
        not fit or the bundle has no code for CUDA, ResourceError if the device fails.
        """
        with self._lock:
            outputs = self._device_tensors(inputs=False)
            assert isinstance(self._pool, DeviceQueue)
            inputs = self._bindings[self._number].binding.inputs
            with borrowed(inputs, feeds, stream or DEFAULT_STREAM) as addresses:
                self._pool.queue_run(self._arguments, addresses, stream or DEFAULT_STREAM)
            return outputs

    def _device_tensors(self, *, inputs: bool) -> dict[str, DeviceTensor]:
        """Inputs or outputs of the selected binding in the device's memory."""
        self.check_open()
        pool, binding = self._pool, self._bindings[self._number].binding
        if not isinstance(pool, DeviceQueue) or not pool.has_streams:
            made_for = self.manifest.target.name
            raise InputError(f"'{self.name}' was made for {made_for}: tensors on a GPU need a bundle for cuda")
        if self._bindings[self._number].states:
            raise InputError(
                f"'{self.name}' keeps states, which lie in the memory of the processor between runs: use run()"
            )
        base = pool.tensors(self._arguments)

        def wait(stream: int) -> None:
            with self._lock:
                pool.wait(stream)

        tensors = binding.inputs if inputs else binding.outputs
        return {t.name: DeviceTensor(base + t.offset, t.shape, DType(t.dtype), 0, pool, wait) for t in tensors}

    def device_times(self) -> Array:
        """Run once on what ``inputs`` holds, on a device: nanoseconds by its clock, of the copies of all inputs, of
        those of all outputs, and of each kernel call (its launches together).

        Of a bundle for several shapes, the first binding runs.  Raises InputError if the bundle runs on processors,
        ResourceError if the device fails.
        """
        with self._lock:
            self.check_open()
            self._select(0)
            if not isinstance(self._pool, DeviceQueue):
                raise InputError(f"'{self.name}' was made for {self.manifest.target.name}, which has no device to time")
            return self._pool.times(self._arguments, len(self.manifest.nodes))

    def fork(self, affinity: Sequence[int] = ()) -> Engine:
        """A second engine with the same code and weights, and its own memory; for use in another thread.

        It runs on the processors numbered in ``affinity``, by default on those of this engine.  Raises InputError if
        this engine is closed, and for processors that are not there.
        """
        self.check_open()
        processors = choose(affinity, "all") if affinity else self._pool.processors
        twin = object.__new__(Engine)
        twin.manifest, twin._host_only, twin.text = self.manifest, self._host_only, self.text
        twin._attach(self._library, self._weights, self._pool.threads, processors, self._gpu)
        return twin

    def close(self) -> None:
        """Stop the threads and release the memory.  Arrays that share it keep it alive."""
        with self._lock:
            self._closed = True
            for bound in self._bindings:
                bound.pool.stop()
            for device in itertools.chain.from_iterable(self._calls):
                device.end()
            if self._stamped:
                self._stamped.stop()
            self.inputs, self.outputs, self._bindings, self._calls = {}, {}, [], []
            self._arena = self._weights = np.empty(0, np.uint8)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self.manifest.target.name}: {self.manifest.ports()}"
        return f"Engine('{self.name}', {state})"

    def _repr_html_(self) -> str:
        return self.manifest.html("Closed engine" if self._closed else "Engine")


def first_usable(targets: Sequence[str], engine: Callable[[str], Engine]) -> Engine:
    """The engine for the first of some targets whose device there is and takes the network; the last one as it is.

    ``engine`` opens one for a target.  Every target that cannot be used is a TenonWarning.
    """
    names = [name.strip() for name in targets]
    for name, next_one in itertools.pairwise(names):
        opened: Engine | None = None
        try:
            opened = engine(name)
            opened.prepare()
        except ResourceError as error:
            if opened is not None:
                opened.close()
            warn(f"{error}: {next_one} is used instead of {name}")
        else:
            return opened
    return engine(names[-1])


def _check_machine(manifest: Manifest, what: str) -> None:
    made_for = manifest.target
    if runs_here(made_for.name):
        return
    raise BundleError(
        f"{what} was made for {made_for.name}, whose code this machine does not execute: compile the model again with "
        "--target host"
    )


def _check_threads(manifest: Manifest, threads: int) -> None:
    if not 1 <= threads <= manifest.threads:
        raise InputError(
            f"threads={threads}: the bundle '{manifest.name}' was made for 1 to {manifest.threads}"
            + (f": compile the model again with threads={threads}" if threads > 1 else "")
        )


def _aligned(size: int, alignment: int) -> Array:
    """``size`` zero bytes that start at a multiple of ``alignment``."""
    whole = np.zeros(size + alignment, np.uint8)
    start = -whole.ctypes.data % alignment
    return whole[start : start + size]
