"""The lines of ``tenon benchmark``: a median for each network, and where the runs lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tenon.cli.console import console, duration
from tenon.cli.model_source import Threads
from tenon.cli.text_table import shortened
from tenon.runtime.engine.timing import Times

_NUMBERS = 54
"""Columns of the times behind a name."""

_LEAST = 12
"""Columns that a name has on the narrowest terminal."""


@dataclass(frozen=True)
class TimingSettings:
    """How networks are timed."""

    rounds: int
    warmup: int
    threads: Threads
    streams: int | None = None

    def __str__(self) -> str:
        warm = f" after {self.warmup} warm-up {_runs(self.warmup)}" if self.warmup else ""
        count = self.threads.count
        text = f"{self.rounds} {_runs(self.rounds)}{warm}, {count} thread{'s' if count > 1 else ''}"
        return f"{text}, in each of {self.streams} streams" if self.streams else text


def _runs(count: int) -> str:
    return "run" if count == 1 else "runs"


class NetworkRows:
    """A line per network, printed when its times are there."""

    def __init__(self, names: Sequence[str], width: int | None, settings: TimingSettings) -> None:
        self.settings = settings
        self._shown = names if width is None else shortened(names, max(_LEAST, width - _NUMBERS))
        self._longest = max(map(len, self._shown))
        self._timed = False

    def begin(self) -> None:
        """Nothing comes before the times."""

    def print(self, number: int, facts: Mapping[str, Any], times: Times | None) -> None:
        """The times, else an error's first line or a count of instructions."""
        self._timed |= times is not None
        text = without_times(facts) if times is None else line(times)
        console.print(f"{self._shown[number]:<{self._longest}}  {text}", markup=False, soft_wrap=True)
        if "sizes" in facts:
            sizes = sizes_text(facts["sizes"])
            console.print(f"{'':<{self._longest}}  a run of {sizes}", markup=False, soft_wrap=True)
        if "text" in facts:
            console.print(f"{'':<{self._longest}}  {tokens_per_second(facts['text'])}", markup=False, soft_wrap=True)
        if "inputs_per_second" in facts:
            console.print(f"{'':<{self._longest}}  {facts['inputs_per_second']:10.1f} inputs/s", markup=False)
        if "upload" in facts:
            console.print(f"{'':<{self._longest}}  {on_device(facts)}", markup=False, soft_wrap=True)

    def end(self) -> None:
        """How the times were measured."""
        if self._timed:
            console.print(f"median of {self.settings}", markup=False)


def line(times: Times) -> str:
    """The median, the extremes and the standard deviation."""
    return (
        f"{duration(times.median):>10}  (min {duration(times.min)}, max {duration(times.max)}, "
        f"std {duration(times.std)})"
    )


def sizes_text(sizes: Mapping[str, int]) -> str:
    """The sizes of a run, as --shape takes them."""
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def tokens_per_second(text: Mapping[str, Any]) -> str:
    """The rates at which a language model reads a prompt in empty caches, and generates tokens behind it."""
    return (
        f"prompt of {text['prompt_tokens']} tokens: {text['prompt_per_second']:.1f} tokens/s; "
        f"{text['generated_tokens']} generated: {text['generated_per_second']:.1f} tokens/s"
    )


def on_device(facts: Mapping[str, Any]) -> str:
    """The parts of a run on a device, by its clock, and how long it takes to create the network there."""
    upload, kernels, download, create = (duration(facts[k]) for k in ("upload", "kernels", "download", "create"))
    device = facts.get("device", {})
    return (
        f"{device.get('name', 'device')}, driver {device.get('driver', '')}: inputs {upload}, kernels {kernels}, "
        f"outputs {download}; created in {create}"
    )


def without_times(facts: Mapping[str, Any]) -> str:
    """The first line of an error, or a count of instructions."""
    if "error" in facts:
        return f"failed: {facts['error'].splitlines()[0]}"
    return f"{facts['instructions']:,} instructions on {facts['runner']}"
