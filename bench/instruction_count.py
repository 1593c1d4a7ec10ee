"""Instructions of bundles on emulated boards, for the scripts of this folder."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from tenon.runtime.bundle import Bundle
from tenon.runtime.engine.instruction_count import Counted
from tenon.runtime.engine.instruction_count import count as count_instructions
from tenon.runtime.engine.io import Feeds


def missing() -> str:
    """The program that this machine lacks; "" if instructions can be counted."""
    return "" if shutil.which("qemu-system-arm") else "there is no qemu-system-arm"


def count(bundle: Bundle, feeds: Sequence[Feeds], folder: Path) -> Counted:
    """Run ``bundle`` on ``feeds``; ``folder`` is not used."""
    del folder
    return count_instructions(bundle, feeds)
