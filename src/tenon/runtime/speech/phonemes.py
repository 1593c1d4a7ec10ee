"""Texts to phonemes by the program espeak-ng."""

from __future__ import annotations

import re
import subprocess
import unicodedata

from tenon.errors import InputError

_SECONDS = 60

_CLAUSE = re.compile(r"([^,;:.!?]+)([,;:.!?]*)")
"""Words, and the punctuation behind them, which voices know as phonemes."""


def phonemes_of(text: str, language: str) -> str:
    """IPA phonemes of a text with its punctuation.

    Raises InputError if espeak-ng is missing or refuses the language.
    """
    clauses = [(words.strip(), marks[:1]) for words, marks in _CLAUSE.findall(text) if words.strip()]
    spoken = [f"{_spoken(words, language)}{marks}" for words, marks in clauses]
    return unicodedata.normalize("NFD", " ".join(spoken))


def _spoken(words: str, language: str) -> str:
    command = ["espeak-ng", "-q", "--ipa", "-v", language, "--stdin"]
    try:
        done = subprocess.run(command, input=words.encode(), capture_output=True, timeout=_SECONDS, check=False)
    except FileNotFoundError:
        raise InputError("a text needs the program espeak-ng: install it, or give phonemes (--phonemes)") from None
    except subprocess.TimeoutExpired:
        raise InputError(f"espeak-ng did not end within {_SECONDS} seconds: give a shorter text") from None
    if done.returncode:
        raise InputError(f"espeak-ng refuses the text: {done.stderr.decode(errors='replace').strip() or 'it failed'}")
    return " ".join(re.sub(r"\(\w+\)", "", done.stdout.decode(errors="replace")).split())
