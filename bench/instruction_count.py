"""Count the instructions that a bundle executes on the emulated board of its target, by a plug-in of QEMU.

Needs qemu-system-arm, whose plug-ins are C compiled here (``instruction_count.c``).  Counts are exact and the same on
every machine; they are not cycles.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tenon.bundle import Bundle
from tenon.engine.device import Device
from tenon.engine.io import Feeds
from tenon.ir.dtype import Array
from tenon.targets.runner import Finished, Local, Session

SOURCE = Path(__file__).with_suffix(".c")
_COUNTS = "counts.txt"


@dataclass(frozen=True)
class Counted:
    """``instructions`` of each run; those of the first by function; ``stack`` bytes of the first."""

    outputs: list[dict[str, Array]]
    instructions: list[int]
    functions: dict[str, int]
    stack: int


def missing() -> str:
    """What there is not on this machine; "" if instructions can be counted."""
    return next((f"there is no {name}" for name in ("cc", "qemu-system-arm") if not shutil.which(name)), "")


def plugin(folder: Path) -> Path:
    """The plug-in, compiled into ``folder``."""
    made = folder / "libinstruction_count.so"
    if not made.exists():
        flags = ("-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden")
        subprocess.run(["cc", *flags, str(SOURCE), "-o", str(made)], check=True)
    return made


def count(bundle: Bundle, feeds: Sequence[Feeds], folder: Path) -> Counted:
    """Run ``bundle`` on ``feeds``; ``folder`` keeps the plug-in.

    Raises ToolchainError if the program fails.  Only targets that run under qemu-system-arm.
    """
    runner = bundle.target.runner
    assert isinstance(runner, Local)
    emulator, *rest = runner.command
    options = f"{plugin(folder).resolve()},out={_COUNTS},stack={_stack(bundle)}"
    counting = _Counting(replace(runner, command=(emulator, "-plugin", options, *rest)))
    outputs = Device(bundle, counting).run(feeds)
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


def _stack(bundle: Bundle) -> str:
    """The stack's range of addresses, from the linker script."""
    (line,) = (line for line in bundle.target.linker_script.splitlines() if line.strip().startswith("STACK (rw)"))
    origin, length = (int(word.split("=")[1], 16) for word in line.split(":")[1].split(","))
    return f"{origin:#x}:{origin + length:#x}"


class _Counting:
    """A runner that keeps what the plug-in wrote."""

    def __init__(self, runner: Local) -> None:
        self._runner, self.counts = runner, ""
        self.name = runner.name

    def missing(self) -> str:
        return self._runner.missing()

    @contextmanager
    def session(self) -> Iterator[Session]:
        with self._runner.session() as session:
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
