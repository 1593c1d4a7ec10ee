"""The command line: one subcommand is one function over the public API."""

from __future__ import annotations

import sys


def main() -> None:
    """Run ``tenon``.  Every TenonError is one message and exit status 2; ``-v`` adds the traceback."""
    from tenon.cli.app import app
    from tenon.errors import TenonError

    verbose = {"-v", "--verbose"} & set(sys.argv[1:])
    try:
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
