"""Kernels in the C of the host program."""

from __future__ import annotations

import json
from collections.abc import Sequence


def quoted_text(text: str, groups: Sequence[int] = ()) -> str:
    """A text of all kernels in C, in which each says the threads of its work groups."""
    quoted = "\n".join(f"  {json.dumps(line + chr(10))}," for line in text.splitlines())
    return f"static const char *device_text[] = {{\n{quoted}\n}};"
