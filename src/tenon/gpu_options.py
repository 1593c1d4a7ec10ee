"""Options of networks on GPUs, which the host program takes when it creates one (``runtime/c/device_options.c``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from tenon.errors import InputError
from tenon.validation import MisfitError, least, reader

_PATHS = ("cache", "binary", "parameters", "tune")
Hint = Literal["default", "low", "normal", "high"]


def _one_line(text: str) -> str:
    return "must be one line" if "\n" in text or "\r" in text else ""


@dataclass(frozen=True)
class GpuOptions:
    """How a network runs on a GPU.

    ``cache`` is a folder in which kernels are kept as the driver has compiled them, "" for none, and ``binary`` a file
    of such a folder that is only read.  ``reuse`` says whether kernels that another version of the driver has compiled
    for the same GPU are tried.  ``queue_window`` launches are queued before they are waited for (0: all).
    ``parameters`` is a file with the sizes of work groups, and ``tune`` one to which the first run adds those that it
    lacks, measured.  ``kernel_time`` is the longest time of a launch in milliseconds: longer ones are cut
    into several (0: none is; OpenCL only).  ``performance`` and ``priority`` are hints, for drivers that take them.
    ``images``: weights ("on"), or weights and activations ("all"), that are loaded by fours are read from images, where
    the device has such so large ("auto": what it is known to read faster so; OpenCL only).
    """

    cache: Annotated[str, _one_line] = ""
    binary: Annotated[str, _one_line] = ""
    reuse: Literal["same-driver", "same-gpu"] = "same-driver"
    queue_window: Annotated[int, least(0)] = 0
    kernel_time: Annotated[float, least(0)] = 0.0
    parameters: Annotated[str, _one_line] = ""
    tune: Annotated[str, _one_line] = ""
    performance: Hint = "default"
    priority: Hint = "default"
    images: Literal["auto", "off", "on", "all"] = "auto"

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> GpuOptions:
        """From values by name, numbers also as text.  Raises InputError for unknown names and values that do not
        fit."""
        kind: Any = cls
        names = [option.name for option in fields(cls)]
        values = {name: str(value) if name in _PATHS else value for name, value in given.items()}
        if unknown := sorted(values.keys() - set(names)):
            raise InputError(f"gpu: there is no option '{unknown[0]}': the options are {', '.join(names)}")
        try:
            options: GpuOptions = reader(kind, True)(values)
        except MisfitError as misfit:
            raise InputError(f"gpu: {'.'.join(map(str, misfit.where))} {misfit.why}") from None
        return options

    def lines(self) -> str:
        """The options that differ from the defaults, as the host program reads them: lines ``word: text``."""
        changed = {f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default}
        return "".join(f"{name}: {value}\n" for name, value in changed.items())


USUAL = GpuOptions()
"""The options of a network that has none."""
