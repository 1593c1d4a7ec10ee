"""Find a C compiler and run it.

zig (the PyPI package ``ziglang``: clang and lld for every target) is the default and compiles for all targets.
A gcc or clang that the user names, or that there is where zig is missing, compiles for the machine it was built for.

Every run happens in an empty folder with relative file names, so the same text gives the same bytes wherever
and whenever it is compiled, and every result is kept in the cache.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from tenon.atomic_write import scratch
from tenon.errors import ToolchainError, warn
from tenon.machine.targets import Target
from tenon.machine.toolchain.cache import Cache, key, warn_unwritable
from tenon.machine.toolchain.children import Children
from tenon.options import child_environment
from tenon.private_files import is_private

BASE_FLAGS = (
    "-std=c99",
    "-O3",
    "-ffp-contract=fast",
    "-fno-math-errno",  # a square root is one instruction, not a call that may set errno
    "-fno-sanitize=undefined",  # zig turns it on without optimisation
    "-g0",
    "-fno-unwind-tables",
    "-fno-asynchronous-unwind-tables",
    "-Wall",
    "-Wextra",
    "-Werror",
)
_LEAST_ROOM = 1 << 20
"""Bytes: with less in the folder of temporary files, compilers fail for want of it."""
_NO_GUARDS = ("-fno-stack-protector", "-U_FORTIFY_SOURCE")
"""Some distributions' compilers guard arrays on the stack, and copies to arrays, by functions of the C library, which
bundles do without, and which other versions of that library lack."""
_SHOWN = 12  # lines of a compiler's complaint in a message
_ZIG_REMEDY = "install it with `pip install ziglang`, or name a gcc or clang with --compiler or TENON_CC"


@dataclass(frozen=True)
class Compiler:
    """A command that compiles and links.  ``triple`` is the machine a gcc or clang compiles for; zig's is "".
    ``in_place_of_zig``: nobody named it, zig is missing."""

    command: tuple[str, ...]
    version: str
    triple: str
    folder: Path
    in_place_of_zig: bool = False
    _running: Children = field(default_factory=Children, repr=False, compare=False)

    @property
    def zig(self) -> bool:
        return not self.triple

    def compile(self, files: Mapping[str, bytes], name: str, target: Target, extra: Sequence[str] = ()) -> bytes:
        """The object made from ``files[name]``; the other files are there to be included.

        Raises ToolchainError if the compiler cannot make code for the target or refuses the source.
        """
        position = () if target.freestanding else target.format.compile_flags
        flags = (*BASE_FLAGS, *self.machine_flags(target), *target.flags, *position, *extra)
        return self.run(files, (*flags, "-c", name), "out.o")

    def assembly(self, files: Mapping[str, bytes], name: str, target: Target, extra: Sequence[str] = ()) -> str:
        """The assembly of what ``compile`` makes, with the sizes of stack frames (``toolchain.assembly``); by zig."""
        flags = (
            *BASE_FLAGS,
            *self.machine_flags(target),
            *target.flags,
            *extra,
            "-fstack-size-section",
            "-Wno-unused-command-line-argument",
        )
        return self.run(files, (*flags, "-S", name), "out.s").decode()

    def link(self, objects: Mapping[str, bytes], target: Target, flags: Sequence[str], output: str = "out") -> bytes:
        """The linker's output for the objects (and for other files named in ``flags``).

        Linked for the plain target: zig would otherwise build its libraries once more for every CPU.
        """
        names = [name for name in objects if name.endswith(".o")]
        position = (f"-mcpu={target.cpu}",) if self.zig and (target.freestanding or target.below_baseline) else ()
        common = (*self.target_flags(target), *position, *target.format.link_flags)
        return self.run(objects, (*common, *names, *flags), output)

    def machine_flags(self, target: Target) -> tuple[str, ...]:
        """Flags that choose the target and its instructions."""
        if self.zig:
            return (*self.target_flags(target), f"-mcpu={target.cpu}")
        self.target_flags(target)
        return (*_NO_GUARDS, *(target.gcc or (f"-mcpu={target.cpu}",)))

    def target_flags(self, target: Target) -> tuple[str, ...]:
        if not target.format.compiled:
            raise ToolchainError(f"target {target.name} has no machine code: choose another with --target")
        if self.zig:
            return ("-target", target.triple)
        ours, theirs = self.triple.split("-")[0], target.triple.split("-")[0]
        if ours != theirs or target.freestanding:
            remedy = "leave out --compiler and TENON_CC to use zig, which compiles for all"
            if self.in_place_of_zig:
                remedy = "install zig, which compiles for all, with `pip install ziglang`"
            raise ToolchainError(
                f"{self.command[0]} compiles for {self.triple}, not for target {target.name} ({target.triple}): "
                f"{remedy}"
            )
        return ()

    def run(self, files: Mapping[str, bytes], arguments: Sequence[str], output: str, *, named_by: str = "-o") -> bytes:
        """Run the command among ``files`` and return the bytes of ``output``, from the cache if it has them.

        The option ``named_by`` tells the command the name of its output; "": the arguments do.
        """
        store = Cache(self.folder / "objects")
        parts = [self.version, self.triple, *arguments, output]
        name = key([*parts, *(part for file in sorted(files.items()) for part in file)])
        content = store.get(name)
        if content is None:
            named = (named_by, output) if named_by else ()
            content = self._run(files, (*arguments, *named), output)
            store.put(name, content)
        return content

    def archive(self, objects: Mapping[str, bytes]) -> bytes:
        """A static library with an index of its symbols, in which all times and owners are 0.

        The archiver is the one that comes with zig, which knows the objects of every target.
        """
        tool = self if self.zig else zig(self.folder)
        command = replace(tool, command=(tool.command[0], "ar"))
        return command.run(objects, ("rcsD", "out.a", *objects), "out.a", named_by="")

    def builds_c_library(self, target: Target) -> bool:
        """Whether the first executable for a target still has to be linked: its C library is then built, which takes a
        minute of a slow machine, and kept."""
        return self.zig and Cache(self.folder / "objects").get(self._c_library(target)) is None

    def keep_c_library(self, target: Target) -> None:
        """Note that an executable has been linked."""
        if self.builds_c_library(target):
            Cache(self.folder / "objects").put(self._c_library(target), b"")

    def _c_library(self, target: Target) -> str:
        return key(["C library", self.version, target.triple, target.cpu if target.below_baseline else ""])

    def stop(self) -> None:
        """End all that other threads are compiling; they raise ToolchainError."""
        self._running.stop()

    def _run(self, files: Mapping[str, bytes], arguments: Sequence[str], output: str) -> bytes:
        try:
            with scratch() as folder:
                for name, content in files.items():
                    (folder / name).parent.mkdir(exist_ok=True)
                    (folder / name).write_bytes(content)
                command = (*self.command, *arguments)
                libraries = _writable(self.folder / "zig")
                status, message = self._running.run(command, folder, _environment(folder, libraries))
                if status and libraries and b"NoSpaceLeft" in message:
                    warn_unwritable(libraries, "No space left on device")
                    status, message = self._running.run(command, folder, _environment(folder, None))
                if status or not (folder / output).exists():
                    if shutil.disk_usage(folder).free < _LEAST_ROOM:  # compilers end in various ways then
                        raise _no_room(folder.parent)
                    raise ToolchainError(_failure(command, status, message, self.zig))
                return (folder / output).read_bytes()
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise _no_room(Path(tempfile.gettempdir())) from error
            raise ToolchainError(f"cannot run the C compiler {self.command[0]}: {error}") from error


def _environment(folder: Path, libraries: Path | None) -> dict[str, str]:
    """zig keeps the C libraries that it makes in ``libraries``, or no longer than the ``folder`` in which it runs; what
    it made of our own files is in our cache already."""
    return child_environment(
        LC_ALL="C",
        ZIG_GLOBAL_CACHE_DIR=str(libraries or folder / "zig-global"),
        ZIG_LOCAL_CACHE_DIR=str(folder / "zig-local"),
    )


SYSTEM_COMPILERS = ("gcc", "clang")
"""Compilers where zig is missing: the first that is on the path."""


class CompilerOptions(Protocol):
    """The fields of ``Options`` and ``Compilation`` that choose a compiler."""

    @property
    def compiler(self) -> str | None: ...

    @property
    def cache(self) -> Path: ...


def find(options: CompilerOptions) -> Compiler:
    """The compiler that the options ask for; without zig the one of this system, with a TenonWarning.  Raises
    ToolchainError if it is not installed."""
    compiler = chosen(options)
    if compiler.in_place_of_zig:
        other = Path(compiler.command[0]).name
        warn(f"the C compiler zig is not installed (`pip install ziglang`): {other} compiles instead")
    return compiler


def chosen(options: CompilerOptions) -> Compiler:
    """The same without a warning, for those who only ask."""
    if options.compiler:
        return named(options.compiler, options.cache)
    other = next((name for name in SYSTEM_COMPILERS if shutil.which(name)), None)
    if other is None or _zig() is not None:
        return zig(options.cache)
    return replace(named(other, options.cache), in_place_of_zig=True)


def _zig() -> str | None:
    """The path of zig, if it is installed."""
    spec = importlib.util.find_spec("ziglang")
    places = list(spec.submodule_search_locations or ()) if spec else []
    return next((str(path) for place in places if (path := Path(place) / "zig").is_file()), None)


def zig(folder: Path) -> Compiler:
    """The zig that comes with Tenon; it keeps what it makes in ``folder``."""
    program = _zig()
    if program is None:
        raise ToolchainError(f"the C compiler zig is not installed: {_ZIG_REMEDY}")
    version = _answer(program, "version")
    return Compiler((program, "cc"), f"zig {version}", "", folder.absolute())


def named(program: str, folder: Path) -> Compiler:
    """A gcc or clang by name or path."""
    path = shutil.which(program)
    if path is None:
        raise ToolchainError(
            f"there is no C compiler '{program}': install it, or leave out --compiler and TENON_CC to use zig"
        )
    triple = _answer(path, "-dumpmachine")
    return Compiler((path,), _answer(path, "--version").splitlines()[0], triple, folder.absolute())


@lru_cache(maxsize=16)
def _answer(*command: str) -> str:
    try:
        result = subprocess.run(command, capture_output=True, check=False, text=True)
    except OSError as error:
        raise ToolchainError(f"cannot run {command[0]}: {error}") from error
    if result.returncode or not result.stdout.strip():
        raise ToolchainError(f"{command[0]} is not a C compiler: `{shlex.join(command)}` says nothing")
    return result.stdout.strip()


def _writable(folder: Path) -> Path | None:
    """The folder, unless it cannot be written, or another user may change what is in it."""
    with contextlib.suppress(OSError):
        folder.mkdir(0o755, parents=True, exist_ok=True)
        if not is_private(folder):
            return None
        with tempfile.TemporaryFile(dir=folder):
            return folder
    return None


def _no_room(folder: Path) -> ToolchainError:
    return ToolchainError(
        f"the C compiler has no room for temporary files in {folder}: make room, or set TMPDIR to a folder with more"
    )


def _failure(command: Sequence[str], status: int, stderr: bytes, zig: bool) -> str:
    lines = stderr.decode(errors="replace").strip().splitlines() or ["(no message)"]
    more = [f"... {len(lines) - _SHOWN} more lines"] if len(lines) > _SHOWN else []
    remedy = (
        "please report this with the model; another compiler may do: --compiler gcc"
        if zig
        else "leave out --compiler and TENON_CC to use the compiler that comes with Tenon"
    )
    head = f"the C compiler failed with exit status {status}: {shlex.join(command)}"
    return "\n".join([head, *(f"  {line}" for line in [*lines[:_SHOWN], *more]), f"remedy: {remedy}"])
