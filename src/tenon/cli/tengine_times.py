"""Times of networks as Tengine's ``tm_benchmark`` prints them (``tenon benchmark --format tengine``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tenon.cli.benchmark_rows import TimingSettings, without_times
from tenon.cli.console import console, duration, time_unit
from tenon.cli.text_table import shortened
from tenon.runtime.engine.timing import Times

_NUMBERS = ("min", "max", "avg", "std", "median")
_CELL = 11  # characters of a number and its unit, in a table


class TengineRows:
    """The rows of networks by number: one self-contained line each, or, where the terminal is narrower than that, a
    table with a heading and shortened names."""

    def __init__(self, names: Sequence[str], width: int | None, settings: TimingSettings) -> None:
        self.settings = settings
        self._narrow = width is not None and width < len(line("", Times((1.0,))))
        self._shown = shortened(names, max(12, (width or 0) - _CELL * len(_NUMBERS))) if self._narrow else names
        self._longest = max(map(len, self._shown))

    def begin(self) -> None:
        """The settings, and the heading of the table for narrow terminals."""
        threads, cores = self.settings.threads, list(self.settings.threads.affinity)
        console.print(f"loop_counts = {self.settings.rounds}\nwarm_up     = {self.settings.warmup}", markup=False)
        console.print(f"num_threads = {threads.count}\npower       = {threads.cores}{f' {cores}' if cores else ''}")
        if self._narrow:
            console.print(row("", _NUMBERS, self._longest), markup=False, soft_wrap=True)

    def print(self, number: int, facts: Mapping[str, Any], times: Times | None) -> None:
        """The times, else an error's first line or a count of instructions."""
        name = self._shown[number]
        if times is None:
            text = f"{name:>20s}  {without_times(facts)}"
        elif self._narrow:
            text = row(name, [duration(float(facts[statistic])) for statistic in _NUMBERS], self._longest)
        else:
            text = line(name, times)
        console.print(text, markup=False, soft_wrap=not self._narrow)

    def end(self) -> None:
        console.print("ALL TEST DONE")


def line(name: str, times: Times) -> str:
    """One network's line."""
    cells = []
    for statistic in _NUMBERS:
        unit, scale = time_unit(number := float(times.summary()[statistic]))
        cells.append(f"  {statistic} = {scale * number:7.2f} {unit}")
    return f"{name:>20s}" + "".join(cells)


def row(name: str, cells: Sequence[str], width: int) -> str:
    """A row of the table for narrow terminals."""
    return f"{name:<{width}}" + "".join(f"{cell:>{_CELL}}" for cell in cells)
