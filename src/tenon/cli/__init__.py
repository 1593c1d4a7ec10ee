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

    A TenonWarning is one message too, on standard error.  SIGTERM and SIGHUP end it as Ctrl-C does: what was
    half-written is removed first.
    """
    from tenon.cli.app import app
    from tenon.errors import SYSTEM_ERRORS, TenonError, TenonWarning, explained

    plain = warnings.showwarning

    def told(message: Warning | str, category: type[Warning], *rest: Any) -> None:
        if issubclass(category, TenonWarning):
            print(f"tenon: warning: {message}", file=sys.stderr)
        else:
            plain(message, category, *rest)

    _end_in_order()
    verbose = {"-v", "--verbose"} & set(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):  # names of files and tensors may hold what the terminal cannot show
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        with warnings.catch_warnings():
            warnings.showwarning = told  # type: ignore[assignment]  # passes on what it does not print
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


def _end_in_order() -> None:
    """Signals that would end the program at once let it remove its temporary files first."""
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    for number in numbers if current_thread() is main_thread() else ():
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _ended)


def _ended(number: int, frame: FrameType | None) -> None:
    """End the program from where it is, once: what is being removed meanwhile is removed to the end."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)
