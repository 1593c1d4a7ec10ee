"""Programs for Windows on Linux, by Wine: a runner."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tenon.machine.targets.base import Host
from tenon.machine.targets.host_cpu import fits
from tenon.machine.targets.runner import Folder, Local, Session


@dataclass(frozen=True)
class Wine(Local):
    """Windows programs that this processor executes itself, if it is like ``processor``: their times are real."""

    install: str = "apt-get install wine64"
    label: str = "Wine"
    processor: Host | None = None

    @property
    def emulates(self) -> bool:
        return False

    def missing(self) -> str:
        if self.processor and not fits(self.processor):
            return "Wine runs programs for processors like this machine's only, which lacks their instructions"
        return "" if _wine() else f"there is no wine64: install it with `{self.install}`"

    @contextmanager
    def session(self) -> Iterator[Session]:
        from tenon.atomic_write import scratch

        with scratch() as folder:
            yield Folder(("env", "WINEDEBUG=-all", _wine()), folder)


def _wine() -> str:
    """The path of wine64, which Debian puts into a folder of its own; "" if there is none."""
    import shutil

    return shutil.which("wine64") or shutil.which("/usr/lib/wine/wine64") or ""
