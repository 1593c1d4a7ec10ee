"""Parentheses around the text of an expression."""

from __future__ import annotations


def bare(text: str) -> str:
    """An expression without the parentheses around all of it."""
    depth = 0
    for i, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0 and i < len(text) - 1:
            return text
    return bare(text[1:-1]) if text.startswith("(") else text


def factor(text: str) -> str:
    """The text of an index as the left operand of a division: a product needs no parentheses."""
    return f"({text})" if " + " in text or " - " in text else text
