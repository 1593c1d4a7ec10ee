"""Run a bundle on a machine that this one is not, for tests and for trust: qemu, wasmtime, or the host itself.

The network is linked with ``runtime/probe.c`` into a program without C library, its weights inside, that takes the
mutable region in and gives it back.  WebAssembly needs no probe: Python holds its memory.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tenon.bundle import Bundle
from tenon.bundle.link import link_freestanding, program_objects, runtime
from tenon.bundle.manifest import Tensor
from tenon.engine.io import Feeds, cropped, fill, named, strings, views
from tenon.errors import InternalError, ToolchainError
from tenon.ir.dtype import Array
from tenon.toolchain.compiler import Compiler
from tenon.writing import scratch

_SECONDS = 600  # far beyond any network that fits an emulator; a hang must end
_PAGE = 65536  # bytes of a WebAssembly page
_STATUS = {1: "the network failed", 2: "the input was cut short", 3: "the processor took a fault"}


def emulate(bundle: Bundle, feeds: Feeds) -> dict[str, Array]:
    """The outputs of one run on the bundle's target; ``feeds`` is as for ``Engine.run``."""
    return Emulator(bundle).run([feeds])[0]


class Emulator:
    """A bundle built for its target's emulator.

    Raises ToolchainError, naming the package to install, if the emulator is not there.
    """

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._inputs = bundle.manifest({}, compiled=False).inputs
        self._outputs = bundle.manifest({}, compiled=False).outputs
        self._runner = _runner(bundle.target.runner)
        self._execute = _wasm(bundle) if bundle.target.object == "wasm" else self._program()

    def run(self, feeds: Sequence[Feeds]) -> list[dict[str, Array]]:
        """One set of outputs for each set of feeds, in one start of the emulator."""
        size = self._bundle.program.memory.mutable
        regions = [self._region(each, size) for each in feeds]
        answers = self._execute(regions)
        if [len(answer) for answer in answers] != [size] * len(feeds):
            raise InternalError(f"the emulated '{self._bundle.name}' sent too few bytes")
        return [_outputs(answer, self._outputs) for answer in answers]

    def _region(self, feeds: Feeds, size: int) -> bytes:
        region = np.zeros(size, np.uint8)
        inputs = views(region, self._inputs)
        fill(inputs, named(inputs, feeds), region, strings(self._inputs))
        return region.tobytes()

    def _program(self) -> Callable[[list[bytes]], list[bytes]]:
        """A function that runs the executable on mutable regions."""
        content = _probe(self._bundle.compiler, self._bundle)
        freestanding = self._bundle.target.freestanding

        def execute(regions: list[bytes]) -> list[bytes]:
            with scratch() as folder:
                program = folder / "probe"
                program.write_bytes(content)
                program.chmod(0o700)
                (folder / "input.bin").write_bytes(b"".join(regions))
                output = self._start(program, b"" if freestanding else b"".join(regions))
                if freestanding:
                    output = (folder / "output.bin").read_bytes()
            size = self._bundle.program.memory.mutable
            return [output[at : at + size] for at in range(0, len(output), size)]

        return execute

    def _start(self, program: Path, stdin: bytes) -> bytes:
        command = (*self._runner, str(program))
        try:
            result = subprocess.run(
                command, input=stdin, cwd=program.parent, capture_output=True, timeout=_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            raise ToolchainError(f"{command[0]} did not end within {_SECONDS} s") from None
        if result.returncode:
            reason = _STATUS.get(result.returncode, f"exit status {result.returncode}")
            message = result.stderr.decode(errors="replace").strip()
            raise ToolchainError(f"'{self._bundle.name}' under {command[0]}: {reason}. {message}".strip())
        return result.stdout


def _outputs(region: bytes, tensors: tuple[Tensor, ...]) -> dict[str, Array]:
    whole = np.frombuffer(bytearray(region), np.uint8)
    return {name: array.copy() for name, array in cropped(views(whole, tensors), tensors).items()}


def _runner(command: tuple[str, ...]) -> tuple[str, ...]:
    """The command with its program found.  wasmtime is a Python package, imported where it is used."""
    if not command or command[0] == "wasmtime":
        return ()
    path = shutil.which(command[0])
    if path is None:
        package = "qemu-system-arm" if command[0].startswith("qemu-system") else "qemu-user"
        raise ToolchainError(f"there is no {command[0]}: install it with `apt-get install {package}`")
    return (path, *command[1:])


def _probe(compiler: Compiler, bundle: Bundle) -> bytes:
    target = bundle.target
    objects = program_objects(compiler, target, "probe.c", bundle.name, bundle.object, bundle.header, bundle.weights)
    if not target.freestanding:
        return link_freestanding(compiler, target, objects, ("-static",))
    files = {**objects, "mps2_an500.ld": runtime("mps2_an500.ld")}
    return link_freestanding(compiler, target, files, ("-static", "-T", "mps2_an500.ld"))


def _wasm(bundle: Bundle) -> Callable[[list[bytes]], list[bytes]]:
    """A function that runs the module on mutable regions: the three regions lie behind its own memory."""
    try:
        import wasmtime
    except ImportError:
        raise ToolchainError("there is no wasmtime: install it with `pip install wasmtime`") from None

    def execute(regions: list[bytes]) -> list[bytes]:
        store = wasmtime.Store()
        exports: Any = wasmtime.Instance(store, wasmtime.Module(store.engine, bundle.library), []).exports(store)
        memory, program = exports["memory"], bundle.program.memory
        constant = -(-exports["__heap_base"].value(store) // 64) * 64
        mutable = constant + -(-program.constant // 64) * 64
        activations = mutable + -(-program.mutable // 64) * 64
        end = activations + program.activations
        memory.grow(store, max(0, -(-end // _PAGE) - memory.size(store)))
        memory.write(store, bundle.weights, constant)
        answers = []
        for region in regions:
            memory.write(store, region, mutable)
            memory.write(store, b"\xff" * program.activations, activations)
            if status := exports[bundle.name](store, constant, mutable, activations):
                raise ToolchainError(f"'{bundle.name}' under wasmtime returned {status}")
            answers.append(bytes(memory.read(store, mutable, mutable + program.mutable)))
        return answers

    return execute
