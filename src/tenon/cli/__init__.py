"""The command line: one subcommand is one function over the public API."""

from __future__ import annotations

import sys


def main() -> None:
    """Run ``tenon``.  Every TenonError is one message and exit status 2; ``-v`` adds the traceback."""
    from tenon.cli.program import run_command

    sys.exit(run_command("tenon", _run, verbose=bool({"-v", "--verbose"} & set(sys.argv[1:]))))


def _run() -> None:
    from tenon.cli.program import INTERRUPTED, version

    if sys.argv[1:] == ["--version"]:  # without importing all commands
        return print(version())
    from tenon.cli.app import app, only_command

    try:
        only_command(app, sys.argv[1:])()
    except SystemExit as ended:
        if ended.code == INTERRUPTED:  # typer ends so on Ctrl-C, without a message
            raise KeyboardInterrupt from None
        if isinstance(ended.__context__, BrokenPipeError):  # typer ends with status 1, like errors of other programs
            raise ended.__context__ from None
        raise
