"""The body of a helper function that has several forms, of which the preprocessor takes one."""

from __future__ import annotations

from collections.abc import Sequence


def first_of(native: Sequence[tuple[str, str]], portable: str) -> str:
    """The first body whose preprocessor condition holds, else the portable one."""
    text = "".join(f"#{'elif' if i else 'if'} {test}\n  {body}\n" for i, (test, body) in enumerate(native))
    return text + ("#else\n" if native else "") + "  " + portable + ("\n#endif" if native else "")
