"""Printing: tables and progress for people, JSON for programs."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from tenon.cli.translation import translated_message

if TYPE_CHECKING:
    from tenon.machine.plan.program import Patches
    from tenon.runtime.bundle.manifest import PatchedLayers

console = Console(highlight=False)


def print_json(data: Any) -> None:
    sys.stdout.write(json.dumps(data, indent=1, ensure_ascii=False) + "\n")


@contextmanager
def stages(title: str) -> Iterator[Callable[[str], None]]:
    """A spinner on standard error with the current stage; nothing if standard error is not a terminal."""
    error = Console(stderr=True, highlight=False)
    if not error.is_terminal:
        yield lambda stage: None
        return
    with error.status(translated_message(title)) as status:
        yield lambda stage: status.update(translated_message(f"{title}: {stage}"))


@contextmanager
def steps(title: str) -> Iterator[Callable[[str, int, int | None], None]]:
    """A progress bar on standard error: called with the current step, how much of it is done, and of how much (None
    where that is not known).  Nothing if standard error is not a terminal."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    error = Console(stderr=True, highlight=False)
    if not error.is_terminal:
        yield lambda step, done, total: None
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=error, transient=True) as shown:
        task = shown.add_task(translated_message(title), total=None)
        yield lambda step, done, total: shown.update(
            task, description=translated_message(f"{title}: {step}"), completed=done, total=total
        )


def note(text: str) -> None:
    """A line for people on standard error."""
    Console(stderr=True, highlight=False).print(f"tenon: {translated_message(text)}", markup=False, soft_wrap=True)


def table(*columns: str, right: tuple[int, ...] = ()) -> Table:
    """A plain table; ``right`` are the columns of numbers."""
    result = Table(box=None, pad_edge=False, show_header=any(columns))
    for i, column in enumerate(columns):
        result.add_column(column, justify="right" if i in right else "left")
    return result


def terminal_width() -> int | None:
    """The width of the terminal, or COLUMNS; None for files and pipes."""
    return shutil.get_terminal_size((0, 0)).columns or None


def time_unit(milliseconds: float) -> tuple[str, float]:
    """The unit in which to show a time, and the factor from milliseconds."""
    if milliseconds >= 1:
        return "ms", 1.0
    return ("µs" if (sys.stdout.encoding or "").lower().startswith("utf") else "us"), 1e3


def duration(milliseconds: float) -> str:
    """A time as text: below one millisecond in microseconds."""
    unit, scale = time_unit(milliseconds)
    return f"{scale * milliseconds:.2f} {unit}"


def size(n: int | None) -> str:
    """A number of bytes as text."""
    if n is None:
        return "-"
    for unit, step in (("B", 1), ("KiB", 1024), ("MiB", 1024**2)):
        if n < 1024 * step or unit == "MiB":
            return f"{n / step:.1f} {unit}" if step > 1 else f"{n} B"
    return str(n)


def count(n: int) -> str:
    """A count as text: 1234567 is 1.23 M."""
    for unit, step in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if n >= step:
            return f"{n / step:.2f} {unit}"
    return str(n)


def patches_text(patches: Patches | PatchedLayers) -> str:
    """How the first layers are computed in patches, and what that costs."""
    first = f"the first {patches.layers} layers, to {patches.last}: {patches.number} of {patches.rows} rows"
    more = "more" if patches.extra_macs >= 0 else "fewer"  # rows that nothing reads are left out
    return f"{first}, {count(abs(patches.extra_macs))} MACs {more}"
