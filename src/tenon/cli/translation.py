"""Texts in the language of the user."""

from __future__ import annotations


def translated(text: str) -> str:
    """The text in the language of the user, where it has been translated."""
    return text
