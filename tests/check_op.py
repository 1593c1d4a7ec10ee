"""Runs every case of operators through all that executes kernels: ``scripts/check-op NAME...``.

The cases run with 16, 8, 4 and 1 lanes: in the interpreter, compared with the operator's reference, and both proofs; as
C by gcc and by zig, compared with the interpreter; and as C under AddressSanitizer and UndefinedBehaviorSanitizer.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from operator_cases import BY_OPERATOR

TESTS = Path(__file__).parent
FILES = (
    "unit/test_lowering.py",
    "unit/test_traits.py",
    "unit/test_check_kernels.py",
    "unit/test_c_dialect.py",
    "e2e/test_sanitizers.py",
)


def unknown(name: str) -> str:
    """The error message for a name that no operator has."""
    close = difflib.get_close_matches(name, BY_OPERATOR, 3, 0.5)
    known = f"did you mean {' or '.join(close)}?" if close else "operators are listed in docs/reference/operators.md"
    return f"check-op: there is no operator '{name}': {known}"


def arguments(names: Sequence[str], options: Sequence[str]) -> list[str]:
    """The arguments of pytest that select the tests of these operators, slow ones too."""
    selected = " or ".join(f"[{name}{end}" for name in names for end in ("-", "]"))
    workers = os.environ.get("TENON_TEST_JOBS") or str(os.cpu_count() or 1)
    how = ["-q", "-rs", "-n", workers, "-m", "slow or not slow", "-k", selected]
    return [*how, *options, *(str(TESTS / file) for file in FILES)]


def main(words: Sequence[str]) -> int:
    """Operators are named first; what follows from the first word with a hyphen on are options of pytest."""
    end = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    names, options = words[:end], words[end:]
    if not names:
        print("usage: scripts/check-op NAME... [pytest options]", file=sys.stderr)
        return 2
    if wrong := [name for name in names if name not in BY_OPERATOR]:
        print("\n".join(map(unknown, wrong)), file=sys.stderr)
        return 2
    return int(pytest.main(arguments(names, options)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
