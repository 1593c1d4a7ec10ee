"""Loading plug-ins: operators and devices in Python files, devices in shared libraries."""

from __future__ import annotations

import os
from pathlib import Path
from runpy import run_path

from tenon.errors import InputError
from tenon.runtime.engine.library_device import LibraryDevice, load_device
from tenon.runtime.engine.part_devices import Device

__all__ = ["LibraryDevice", "load_plugin"]

_MISTAKES = (ArithmeticError, AttributeError, ImportError, LookupError, NameError, SyntaxError, TypeError, ValueError)
"""Exceptions that a faulty Python file raises."""


def load_plugin(path: str | os.PathLike[str], argument: str = "") -> Device | None:
    """Load a plug-in: a Python file is executed, and registers operators and devices; a shared library's device is
    registered and returned.

    Code of a plug-in runs with all rights of the program.  Raises InputError if it is not there or is no plug-in.
    """
    if not Path(path).is_file():
        raise InputError(f"there is no plug-in {os.fspath(path)}")
    if Path(path).suffix == ".py":
        try:
            run_path(str(path))
        except _MISTAKES as error:
            raise InputError(f"the plug-in {os.fspath(path)} fails: {type(error).__name__}: {error}") from error
        return None
    return load_device(path, argument)
