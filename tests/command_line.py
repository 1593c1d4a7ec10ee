"""Runs the command line in the test process."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest


def run_main(main: Callable[[], object], arguments: list[str]) -> int:
    """The exit status of the command line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["tenon", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
    return int(ended.value.code or 0)
