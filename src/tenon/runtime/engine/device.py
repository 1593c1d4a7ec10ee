"""Run a bundle on another machine by its target's runner: an emulator, or the machine itself.

The network is linked with its weights and ``runtime/c/probe.c`` into a program without C library. It reads mutable
regions from a file, and writes the regions after the runs, or timestamps of the runs, to another.  WebAssembly is run
by ``runtime/wasm_probe.py``, which does the same.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Literal, Protocol, Self, runtime_checkable

import numpy as np

from tenon.errors import InputError, InternalError, ToolchainError
from tenon.machine.codegen.backend import find as find_backend
from tenon.machine.targets import Target
from tenon.machine.targets.host import missing, runner_of
from tenon.machine.targets.runner import Runner, Session
from tenon.machine.toolchain.compiler import Compiler
from tenon.network.graph.dtype import Array, swapped
from tenon.runtime.bundle import Bundle
from tenon.runtime.bundle.link import link_freestanding, program_objects
from tenon.runtime.bundle.manifest import Manifest, size_ranges
from tenon.runtime.engine.io import Feeds, cropped, fill, named, strings, views
from tenon.runtime.engine.sizes import placed
from tenon.runtime.engine.timing import Times, fill_randomly, value_ranges

_INPUT, _OUTPUT = "input.bin", "output.bin"
_STATUS = {
    1: "the network failed",
    2: "the input was cut short",
    3: "the processor took a fault",
    4: "it has no clock of nanoseconds",
}
_EVICTED = 8 << 20  # bytes that evict a layer's data from a second-level cache

_Kind = Literal["run", "time", "time_cold", "profile"]
"""The kinds of probe programs: run on regions, time whole runs (with cold caches), or time every step."""


class Linkable(Protocol):
    """A bundle whose parts can be linked into a program: in memory (``Bundle``), or on disk (``SavedBundle``)."""

    @property
    def name(self) -> str: ...

    @property
    def target(self) -> Target: ...

    @property
    def compiler(self) -> Compiler: ...

    @property
    def interface(self) -> Manifest:
        """Inputs, outputs, memory and steps."""

    @property
    def object(self) -> bytes: ...

    @property
    def header(self) -> str: ...

    @property
    def weights(self) -> bytes: ...

    @property
    def library(self) -> bytes: ...


@runtime_checkable
class ResidentNetwork(Protocol):
    """A runner that has the network already, and to which no program is pushed."""

    def regions(self, manifest: Manifest, weights: bytes, given: Sequence[bytes]) -> list[bytes]:
        """The mutable regions after a run from each of ``given``.  Raises ToolchainError."""

    def microseconds(self, manifest: Manifest, weights: bytes, given: bytes, rounds: int, warmup: int) -> list[int]:
        """The time of each of ``rounds`` runs on a region.  Raises ToolchainError."""


def run_on_device(bundle: Bundle, feeds: Feeds) -> dict[str, Array]:
    """The outputs of one run on the bundle's target; ``feeds`` is as for ``Engine.run``."""
    return RemoteBundle(bundle).run([feeds])[0]


class RemoteBundle:
    """A bundle built for a machine, and the ``runner`` that reaches that machine (the target's unless given).

    As a context manager it keeps its program on the machine until the end; otherwise every call pushes it.  One
    thread runs the network.  Raises ToolchainError, naming the package to install, if nothing runs programs for the
    target.
    """

    threads = 1

    def __init__(self, bundle: Linkable, runner: Runner | None = None) -> None:
        if find_backend(bundle.target.backend).launch == "grid":
            raise ToolchainError(
                f"no program of its own runs a bundle for target {bundle.target.name}: open the bundle on the machine "
                "that has the device"
            )
        if devices := bundle.interface.part_devices:
            raise ToolchainError(
                f"parts of '{bundle.name}' run on {', '.join(devices)}: open the bundle on the machine that has it"
            )
        chosen = runner or runner_of(bundle.target)
        if why := runner.missing() if runner else missing(bundle.target):
            raise ToolchainError(why)
        assert chosen is not None
        self._bundle, self._runner = bundle, chosen
        self.manifest: Manifest = bundle.interface
        self._stack = ExitStack()
        self._session: Session | None = None
        self._pushed: set[str] = set()

    def __enter__(self) -> Self:
        if not isinstance(self._runner, ResidentNetwork):
            self._session = self._stack.enter_context(self._runner.session())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session = None
        self._pushed.clear()
        self._stack.close()

    def run(self, feeds: Sequence[Feeds]) -> list[dict[str, Array]]:
        """One set of outputs for each set of feeds, by one execution of the program.

        States that are not fed have their initial content in every run: to go on, feed what the run before gave."""
        if isinstance(self._runner, ResidentNetwork):
            regions = [self._region(each) for each in feeds]
            return [self._outputs(r) for r in self._runner.regions(self.manifest, self._bundle.weights, regions)]
        size = self.manifest.memory.mutable
        answer = self._execute("run", b"".join(self._region(each) for each in feeds))
        if len(answer) != size * len(feeds):
            raise InternalError(f"{self._where} sent {len(answer)} bytes of {size * len(feeds)}")
        return [self._outputs(answer[at : at + size]) for at in range(0, len(answer), size)]

    def time(self, rounds: int, warmup: int = 0, *, cold: bool = False) -> Times:
        """The times of ``rounds`` runs on random input, by that machine's clock; with ``cold``, the weights are not in
        its caches.
        """
        if isinstance(self._runner, ResidentNetwork):
            given = self._random_region(rounds)
            times = self._runner.microseconds(self.manifest, self._bundle.weights, given, rounds, warmup)
            return Times(tuple(n / 1e3 for n in times))
        stamps = self._stamps("time_cold" if cold else "time", rounds, warmup, 2)
        return Times(tuple(float(t) for t in (stamps[:, 1] - stamps[:, 0]) / 1e6))

    def timestamps(self, rounds: int, warmup: int = 0) -> Array:
        """Nanoseconds, [rounds, kernel calls + 1]: before the first kernel call of each run and after every one.

        Raises InputError if the bundle was compiled without ``profile``, or is WebAssembly, whose steps have no entry
        points.
        """
        if not self.manifest.options.get("profile"):
            raise InputError(
                f"the kernels of '{self.manifest.name}' cannot be timed: compile the model again with --profile "
                "(profile=True)"
            )
        if self._bundle.target.format.module:
            raise InputError(f"{self._where} can only be timed as a whole")
        return self._stamps("profile", rounds, warmup, len(self.manifest.nodes) + 1)

    def fuel(self, feeds: Sequence[Feeds]) -> list[int]:
        """Instructions of a WebAssembly module for each set of feeds, as wasmtime counts them."""
        answer = self._execute("run", b"".join(self._region(each) for each in feeds), ("count",))
        return [int(n) for n in np.frombuffer(answer, "<u8")]

    @property
    def name(self) -> str:
        """The network's."""
        return self.manifest.name

    @property
    def inputs(self) -> dict[str, Array]:
        """Arrays of the inputs' types and shapes."""
        return views(np.zeros(self.manifest.memory.mutable, np.uint8), self.manifest.inputs)

    @property
    def where(self) -> str:
        """A description of what runs the program."""
        return self._runner.name

    @property
    def runner(self) -> Runner:
        """The runner that reaches the machine."""
        return self._runner

    @property
    def emulated(self) -> bool:
        """Whether that is an emulator, whose times say nothing of a real machine."""
        return self._runner.emulates

    @property
    def bundle(self) -> Linkable:
        """The bundle that was built."""
        return self._bundle

    @property
    def _where(self) -> str:
        return f"'{self.manifest.name}' on {self._runner.name}"

    def _stamps(self, kind: _Kind, rounds: int, warmup: int, count: int) -> Array:
        given = self._random_region(rounds)
        stamps = self._ordered(np.frombuffer(self._execute(kind, given, (rounds, warmup)), np.uint64))
        if stamps.size != rounds * count:
            raise InternalError(f"{self._where} sent {stamps.size} of {rounds * count} times")
        return stamps.reshape(rounds, count).astype(np.int64)

    def _random_region(self, rounds: int) -> bytes:
        """A mutable region with random inputs.  Raises InputError if there are no rounds to use it."""
        if rounds < 1:
            raise InputError(f"{rounds} rounds: at least 1 is needed")
        region = np.zeros(self.manifest.memory.mutable, np.uint8)
        inputs = views(region, self.manifest.inputs)
        fill_randomly(inputs, value_ranges(self.manifest.inputs))
        for array in inputs.values():
            array[...] = self._ordered(array)
        return region.tobytes()

    def _region(self, feeds: Feeds) -> bytes:
        region = np.zeros(self.manifest.memory.mutable, np.uint8)
        inputs = views(region, self.manifest.inputs)
        states = {t.name: t.initial or (0,) for t in self.manifest.inputs if t.state}
        for name, initial in states.items():
            inputs[name].reshape(-1)[...] = initial
        ranges = size_ranges(self.manifest.inputs)
        given = named(inputs, feeds, {*ranges, *states})
        arrays = {name: array for name, (array, _) in given.items()}
        targets, sizes = placed(inputs, self.manifest.inputs, arrays) if ranges else (inputs, {})
        fill(targets, given, region, strings(self.manifest.inputs), sizes)
        for array in inputs.values():
            array[...] = self._ordered(array)
        return region.tobytes()

    @property
    def _order(self) -> Literal["little", "big"]:
        return self._bundle.target.byte_order

    def _ordered(self, array: Array) -> Array:
        """The array in the target's byte order, or back from it."""
        return array if self._order == sys.byteorder else swapped(array)

    def _outputs(self, region: bytes) -> dict[str, Array]:
        inputs, outputs = (
            {name: self._ordered(a) for name, a in views(np.frombuffer(region, np.uint8), tensors).items()}
            for tensors in (self.manifest.inputs, self.manifest.outputs)
        )
        return {name: array.copy() for name, array in cropped(outputs, inputs, self.manifest.outputs).items()}

    def _execute(self, kind: _Kind, given: bytes, counts: tuple[int | str, ...] = ()) -> bytes:
        """The output of a program for its input; ``counts`` are rounds and warm-up runs, for programs that measure
        time, or "count" for the module that counts instructions.
        """
        wasm, memory = self._bundle.target.format.module, self.manifest.memory
        program = "network.wasm" if wasm else f"probe_{kind}"
        sizes = (memory.constant, memory.mutable, memory.activations)
        arguments = (self.manifest.name, *map(str, (*sizes, *counts))) if wasm else ()
        with self._opened() as session:
            if program not in self._pushed:
                session.push({program: _probe(self._bundle, kind)} if not wasm else self._module(program))
                self._pushed.add(program)
            session.push({_INPUT: given if wasm else b"".join(int(n).to_bytes(4, self._order) for n in counts) + given})
            done = session.run(program, arguments)
            if done.status:
                reason = _STATUS.get(done.status, f"exit status {done.status}")
                raise ToolchainError(f"{self._where}: {reason}. {done.message}".strip())
            return session.pull(_OUTPUT)

    def _module(self, name: str) -> dict[str, bytes]:
        return {name: self._bundle.library, "weights.bin": self._bundle.weights}

    @contextmanager
    def _opened(self) -> Iterator[Session]:
        if self._session:
            yield self._session
            return
        try:
            with self._runner.session() as session:
                yield session
        finally:
            self._pushed.clear()


def _probe(bundle: Linkable, kind: _Kind) -> bytes:
    """A program without C library; also without operating system, if the target has none."""
    target, compiler = bundle.target, bundle.compiler
    steps = len(bundle.interface.nodes) if kind == "profile" else 0
    flags = () if kind == "run" else (f"-DTENON_STEPS={steps}",)
    if kind == "time_cold" and not target.freestanding:
        flags = (*flags, f"-DTENON_EVICTED={_EVICTED}")
    parts = bundle.name, bundle.object, bundle.header, bundle.weights
    objects = program_objects(compiler, target, "probe.c", *parts, flags=flags)
    if target.format.windows:
        return link_freestanding(compiler, target, objects, ("-static", "-Wl,-e,tenon_probe", "-lkernel32"))
    if not target.linker_script:
        return link_freestanding(compiler, target, objects, ("-static",))
    files = {**objects, "target.ld": target.linker_script.encode()}
    return link_freestanding(compiler, target, files, ("-static", "-T", "target.ld"))
