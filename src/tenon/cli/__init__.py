"""The command line: one subcommand is one function over the public API."""

from __future__ import annotations

import io
import signal
import sys
import warnings
from threading import current_thread, main_thread
from types import FrameType
from typing import Any


def main() -> None:
    """Run ``tenon``.  Every TenonError is one message and exit status 2; ``-v`` adds the traceback.

    A TenonWarning is printed as one message on standard error.  SIGTERM and SIGHUP end the program like Ctrl-C:
    temporary files are removed first.
    """
    from tenon.cli.app import app
    from tenon.errors import SYSTEM_ERRORS, TenonError, TenonWarning, explained

    show_other = warnings.showwarning

    def show_warning(message: Warning | str, category: type[Warning], *rest: Any) -> None:
        if issubclass(category, TenonWarning):
            print(f"tenon: warning: {message}", file=sys.stderr)
        else:
            show_other(message, category, *rest)

    _exit_on_signals()
    verbose = {"-v", "--verbose"} & set(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):  # names may contain characters that the terminal cannot show
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        with warnings.catch_warnings():
            warnings.showwarning = show_warning  # type: ignore[assignment]  # forwards other warnings
            _load_plugins()
            app()
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
    except (TenonError, *SYSTEM_ERRORS) as error:
        if verbose:
            raise
        print(f"tenon: {explained(error)}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("tenon: interrupted; nothing was left half-written", file=sys.stderr)
        sys.exit(130)


def _load_plugins() -> None:
    """Those of TENON_PLUGINS."""
    from tenon.options import plugins

    if paths := plugins():
        from tenon.plugins import load_plugin

        for path in paths:
            load_plugin(path)


def _exit_on_signals() -> None:
    """Let the program remove its temporary files when a signal terminates it."""
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    for number in numbers if current_thread() is main_thread() else ():
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _exit)


def _exit(number: int, frame: FrameType | None) -> None:
    """Exit once; further signals are ignored, so that the removal of files is not interrupted."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)
