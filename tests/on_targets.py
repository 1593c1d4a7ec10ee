"""The targets to test, taken from their rows, so that new targets are tested automatically."""

from __future__ import annotations

from typing import Any

import pytest

from tenon.errors import ToolchainError
from tenon.machine.targets import find, targets
from tenon.machine.targets.host import missing
from tenon.runtime.bundle import Bundle
from tenon.runtime.engine.device import RemoteBundle
from tenon.runtime.engine.verify import verify

COMPILED = [name for name, row in targets().items() if row.object != "none" and row.backend == "c"]
"""All whose kernels are machine code; ``e2e/test_opencl.py`` tests the target whose kernels a driver compiles."""

OTHER_SYSTEMS = [name for name in COMPILED if targets()[name].object in ("macho", "coff")]
"""The targets of macOS, iOS and Windows."""

HOSTS = [name for name in COMPILED if (host := targets()[name].host) and host.system == "linux" and not host.tuned]
"""The targets whose code Python loads, and that "host" may be."""


EMULATED = [name for name in COMPILED if targets()[name].runner]
"""The targets whose programs run on machines that are not their own."""


def selected(names: list[str]) -> list[Any]:
    """For ``pytest.mark.parametrize``: those of tier 2 only with ``-m slow``."""
    return [name if find(name).tier == 1 else pytest.param(name, marks=pytest.mark.slow) for name in names]


SECOND_TIER = [name for name in EMULATED if find(name).tier == 2]
"""The targets that the usual run of the tests only samples."""

X86 = [name for name in HOSTS if name.startswith("x86-64")]

ONE_OF_EACH_MACHINE = list({targets()[name].machine: name for name in reversed(COMPILED)}.values())[::-1]
"""Targets for which generators print different kernels."""


def skip_without_device(target: str) -> None:
    """Skips the test if nothing here can run the target's programs."""
    if why := missing(find(target)):
        pytest.skip(why)


def assert_stated_digest(bundle: Bundle) -> None:
    """The bundle gives the results that its manifest states, on its target's emulator; skips the test without one."""
    try:
        device = RemoteBundle(bundle)
    except ToolchainError as error:
        pytest.skip(str(error))
    verdict = verify(device.manifest._replace(answer=bundle.answer), lambda feeds: device.run([feeds])[0])
    assert verdict.expected
    assert verdict.digest == verdict.expected
