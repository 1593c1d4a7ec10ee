"""Count the instructions that a bundle executes on the emulator of its target.

QEMU counts by a plug-in (``runtime/instruction_count.c``, compiled for this machine on first use), wasmtime by its
fuel: one for each WebAssembly instruction but a few that take no time.  Counts are the same on every machine; they are
not cycles.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tenon.errors import ToolchainError
from tenon.machine.targets import Target, find
from tenon.machine.targets.host import missing as missing_runner
from tenon.machine.targets.host import runner_of
from tenon.machine.targets.runner import Finished, Local, Session
from tenon.machine.toolchain.compiler import Compiler, zig
from tenon.network.graph.dtype import Array
from tenon.runtime.bundle.link import runtime
from tenon.runtime.engine.device import Linkable, RemoteBundle
from tenon.runtime.engine.io import Feeds

_COUNTS = "counts.txt"
_PLUGIN = "libinstruction_count.so"


@dataclass(frozen=True)
class Counted:
    """``instructions`` of each run; those of the first by function; ``stack`` bytes of the first, on a board."""

    outputs: list[dict[str, Array]]
    instructions: list[int]
    functions: dict[str, int]
    stack: int


def missing(target: Target) -> str:
    """Why instructions cannot be counted for a target; "" if they can."""
    if why := missing_runner(target):
        return why
    runner = runner_of(target)
    if target.format.module or (isinstance(runner, Local) and runner.command[:1] and "qemu" in runner.command[0]):
        return ""
    return f"instructions are counted on emulators, and {target.name} runs on this machine itself"


def count(bundle: Linkable, feeds: Sequence[Feeds]) -> Counted:
    """Run ``bundle`` on ``feeds``.  Raises ToolchainError if the program fails, or no emulator runs it."""
    if why := missing(bundle.target):
        raise ToolchainError(why)
    if bundle.target.format.module:
        device = RemoteBundle(bundle)
        return Counted(device.run(feeds), device.fuel(feeds), {}, 0)
    runner = runner_of(bundle.target)
    assert isinstance(runner, Local)
    emulator, *rest = runner.words
    options = f"./{_PLUGIN},out={_COUNTS}{_stack(bundle.target)}"
    command = (emulator, "-plugin", options, *rest)
    counting = _Counting(replace(runner, command=command, newer=(), label=runner.name), plugin(bundle.compiler))
    return _read(counting, RemoteBundle(bundle, counting).run(feeds))


def _read(counting: _Counting, outputs: list[dict[str, Array]]) -> Counted:
    """The counts that the plug-in wrote."""
    runs, functions, stack = list[int](), dict[str, int](), 0
    for line in counting.counts.splitlines():
        match line.split():
            case ["run", number]:
                runs.append(int(number))
            case ["stack", number]:
                stack = int(number)
            case ["function", name, number]:
                functions[name] = int(number)
    return Counted(outputs, runs, functions, stack)


def plugin(compiler: Compiler) -> bytes:
    """The plug-in, by zig where ``compiler`` does not compile for this machine; it uses the C library of the process
    that loads it."""
    host, source = find("host"), {"instruction_count.c": runtime("instruction_count.c")}
    if not compiler.zig and compiler.triple.partition("-")[0] != host.triple.partition("-")[0]:
        compiler = zig(compiler.folder)
    flags = ("-fvisibility=hidden", "-std=gnu99")
    made = compiler.compile(source, "instruction_count.c", host, flags)
    return compiler.link({"plugin.o": made}, host, ("-shared", "-nostdlib", "-fPIC"), _PLUGIN)


def _stack(target: Target) -> str:
    """The option with the stack's range of addresses, from the linker script; empty for programs of a system."""
    region = re.search(r"STACK .*ORIGIN = (\w+), LENGTH = (\w+)", target.linker_script)
    if region is None:
        return ""
    origin, length = (int(text, 16) for text in region.groups())
    return f",stack={origin:#x}:{origin + length:#x}"


class _Counting:
    """A runner that brings the plug-in, and keeps what it wrote."""

    emulates = True

    def __init__(self, runner: Local, plugin: bytes) -> None:
        self.runner, self.plugin, self.counts = runner, plugin, ""
        self.name = runner.name

    def missing(self) -> str:
        return self.runner.missing()

    @contextmanager
    def session(self) -> Iterator[Session]:
        with self.runner.session() as session:
            session.push({_PLUGIN: self.plugin})
            yield _Session(session, self)


class _Session:
    def __init__(self, session: Session, owner: _Counting) -> None:
        self._session, self._owner = session, owner

    def push(self, files: Mapping[str, bytes]) -> None:
        self._session.push(files)

    def run(self, program: str, arguments: Sequence[str] = ()) -> Finished:
        done = self._session.run(program, arguments)
        if not done.status:
            self._owner.counts = self._session.pull(_COUNTS).decode()
        return done

    def pull(self, name: str) -> bytes:
        return self._session.pull(name)
