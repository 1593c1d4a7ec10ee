"""Declarations and conditions as C writes them; dialects of other languages write them in their own way."""

from __future__ import annotations


class Declarations:
    """A language like C."""

    def constant(self, type: str, name: str, value: str) -> str:
        """The declaration of a value that does not change."""
        return f"const {type} {name} = {value};"

    def conditional(self, test: str, value: str, other: str) -> str:
        """``value`` where the test holds, else ``other``."""
        return f"({test} ? {value} : {other})"

    def parameter(self, name: str, type: str) -> str:
        """The declaration of a function's parameter; ``type`` ends in what stands before a name."""
        return f"{type}{name}"

    def unused(self, name: str) -> str:
        """A line that uses a parameter, for compilers that warn of others."""
        return f"  (void){name};\n"
