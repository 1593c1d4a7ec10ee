"""The targets to test, taken from their rows, so that new targets are tested automatically."""

from __future__ import annotations

import pytest

from tenon.targets import find, targets
from tenon.targets.host import missing

COMPILED = [name for name, row in targets().items() if row.object != "none"]
"""All that have machine code."""

HOSTS = [name for name in COMPILED if targets()[name].host]
"""Those whose code Python loads."""

EMULATED = [name for name in COMPILED if targets()[name].runner]
"""Those whose programs run on machines that are not their own."""

X86 = [name for name in HOSTS if name.startswith("x86-64")]

ONE_OF_EACH_MACHINE = list({targets()[name].machine: name for name in reversed(COMPILED)}.values())[::-1]
"""Targets for which generators print different kernels."""


def skip_without_device(target: str) -> None:
    """Skips the test if nothing here can run the target's programs."""
    if why := missing(find(target)):
        pytest.skip(why)
