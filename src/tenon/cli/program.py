"""Parts that all commands have in common: plug-ins, messages for errors and warnings, signals, exit statuses."""

from __future__ import annotations

import io
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType
from typing import Any

import tenon
from tenon.cli.translation import translated, translated_message
from tenon.errors import SYSTEM_ERRORS, TenonError, TenonWarning, explained

PACKAGES = {"PIL": "Pillow", "yaml": "PyYAML"}
"""Packages by the names of their modules, where these differ."""

CLOSED_PIPE, INTERRUPTED = 141, 130
"""Exit statuses as shells give them for SIGPIPE and SIGINT."""


def run_command(name: str, command: Callable[[], int | None], *, verbose: bool = False) -> int:
    """Run ``command`` and return the exit status: its own, 2 for a TenonError, a system error or a package that is not
    installed (one message on standard error; raised if ``verbose``), 130 for Ctrl-C, 141 for a closed pipe.

    Plug-ins of TENON_PLUGINS are loaded first.  A TenonWarning is printed as one message on standard error.  SIGTERM
    and SIGHUP end the program like Ctrl-C: temporary files are removed first.
    """
    for stream in (sys.stdout, sys.stderr):  # names may contain characters that the terminal cannot show
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        with _exit_on_signals(), warnings.catch_warnings():
            _print_warnings(name)
            _load_plugins()
            return command() or 0
    except BrokenPipeError:
        sys.stderr.close()
        return CLOSED_PIPE
    except (TenonError, *SYSTEM_ERRORS) as error:
        if verbose:
            raise
        print(f"{name}: {translated_message(explained(error))}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:  # images that only run bundles leave out what the compiler needs
        if verbose or error.name is None or error.name.partition(".")[0] == "tenon":
            raise
        package = PACKAGES.get(error.name, error.name)
        text = translated_message(f"the Python package {package} is not installed here: pip install {package}")
        print(f"{name}: {text}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{name}: {translated('interrupted; nothing was left half-written')}", file=sys.stderr)
        return INTERRUPTED


def version() -> str:
    """The name and version of the program."""
    return f"tenon {tenon.__version__}"


def _print_warnings(name: str) -> None:
    """Print each TenonWarning as one message; others as Python does."""
    show_other = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *rest: Any) -> None:
        if issubclass(category, TenonWarning):
            print(f"{name}: {translated('warning')}: {translated_message(str(message))}", file=sys.stderr)
        else:
            show_other(message, category, *rest)

    warnings.showwarning = show  # type: ignore[assignment]  # forwards other warnings


def _load_plugins() -> None:
    """Load the plug-ins that TENON_PLUGINS names."""
    from tenon.options import plugins

    if paths := plugins():
        from tenon.runtime.plugins import load_plugin

        for path in paths:
            load_plugin(path)


@contextmanager
def _exit_on_signals() -> Iterator[None]:
    """Let the program remove its temporary files when a signal terminates it, and wait for its children.

    A process that goes on afterwards has its own handling of signals again: children that it forks could otherwise
    miss a signal that arrives just before they wait.
    """
    if current_thread() is not main_thread():
        yield
        return
    if hasattr(signal, "SIGCHLD") and signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:  # inherited from a daemon
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    numbers = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, _exit)
    try:
        yield
    finally:
        for number in numbers:
            if signal.getsignal(number) is _exit:  # it is ignored after the first one
                signal.signal(number, signal.SIG_DFL)


def _exit(number: int, frame: FrameType | None) -> None:
    """Exit once; further signals are ignored, so that the removal of files is not interrupted."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)
