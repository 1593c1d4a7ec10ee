"""The command line: one subcommand is one function over the public API."""

from __future__ import annotations

import sys
import warnings
from typing import Any


def main() -> None:
    """Run ``tenon``.  Every TenonError is one message and exit status 2; ``-v`` adds the traceback.

    A TenonWarning is one message too, on standard error.
    """
    from tenon.cli.app import app
    from tenon.errors import TenonError, TenonWarning

    plain = warnings.showwarning

    def told(message: Warning | str, category: type[Warning], *rest: Any) -> None:
        if issubclass(category, TenonWarning):
            print(f"tenon: warning: {message}", file=sys.stderr)
        else:
            plain(message, category, *rest)

    verbose = {"-v", "--verbose"} & set(sys.argv[1:])
    try:
        with warnings.catch_warnings():
            warnings.showwarning = told  # type: ignore[assignment]  # passes on what it does not print
            app()
    except TenonError as error:
        if verbose:
            raise
        print(f"tenon: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("tenon: interrupted; nothing was left half-written", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
