"""Regular expressions as automata, compared with Python's ``re``."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest

from tenon.formats.decompositions.strings import regex
from tenon.formats.decompositions.strings.regex_syntax import PatternError

PATTERNS = (
    "",
    "^$",
    "a*b+c?",
    "(ab|cd)*e{2,3}",
    "[^a-c]x.",
    r"\d{3}-\d{4}",
    "(?i)abc|x",
    "(?i:a)b",
    r"a\Bb",
    r"\bab\b|\b",
    "(a|b)*abb",
    "é[λ-ω]+",
    "(?:a|)b",
    "[]a]+",
    "[a-]b",
    "[^]]",
    "x{0,2}(a{2}){2}",
    "a{,2}",
    "a{1",
    "(?s).a",
    ".a|\n",
    "(?m)^a$\n^b$",
    r"[\w.]+@\w+\.(com|de)",
    r"\x61\x{e9}",
    "(?P<n>a)+?b",
    r"(\W|^)[\w.\-]{0,5}@(y|g)(\W|$)",
    r"[[:alpha:]]+[[:^digit:]]",
    r"\S\s\D",
    "日|本+",
    "[\U0001f600-\U0001f64f]",
    r"a\.b\\c",
)


def python(pattern: str) -> re.Pattern[str]:
    """The pattern in Python's syntax, if that differs."""
    for ours, theirs in (
        ("[[:alpha:]]", "[A-Za-z]"),
        ("[[:^digit:]]", "[^0-9]"),
        (r"\x{e9}", "é"),
        ("a{,2}", "a\\{,2}"),
    ):
        pattern = pattern.replace(ours, theirs)
    return re.compile(pattern, re.ASCII)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_matches_equal_those_of_python(pattern: str) -> None:
    automaton, expected, rng = regex.compile(pattern), python(pattern), random.Random(0)
    letters = "ab1 @.\n" + "".join(set(pattern) - set("\0")) + "éω日\U0001f600"
    for _ in range(1500):
        text = "".join(rng.choice(letters) for _ in range(rng.randrange(7)))
        if "$" in pattern and text.endswith("\n") and "(?m)" not in pattern:
            continue  # RE2's $ matches at the end of the text only
        assert automaton.matches(text) == bool(expected.fullmatch(text)), text


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(a", "not closed"),
        ("a)", "closing"),
        ("[a", "ends within"),
        ("*a", "nothing that"),
        ("a**", "repetition of a"),
        ("(?=a)", r"\(\?= is not supported"),
        (r"\1", r"\\1 is not supported"),
        ("[b-a]", "before it begins"),
        ("a{2000}", "more than 1000"),
        ("[[:nothing:]]", "no class"),
        (r"\p{L}", "not supported"),
        ("a\\", "ends within"),
        ("(a|b)*a(a|b){12}", "more than 2000 states"),
        ("((a{900}){900}){900}", "too large"),
        ("(" * 200, "too deep"),
    ],
)
def test_refusals(pattern: str, message: str) -> None:
    with pytest.raises(PatternError, match=message):
        regex.compile(pattern)


def test_zeros_change_no_state() -> None:
    automaton = regex.compile("ab?")
    assert automaton.classes[0] == 0
    assert (automaton.table[:, 0] == np.arange(len(automaton.table))).all()


@pytest.mark.parametrize("word", ["-", "--", "aba", "aab", "abab"])
def test_literal_matches_str_split(word: str) -> None:
    automaton, rng = regex.literal(word.encode()), random.Random(1)
    for _ in range(300):
        text = "".join(rng.choice("ab-") for _ in range(rng.randrange(12)))
        state, ends = 0, []
        for i, byte in enumerate(text.encode()):
            state = int(automaton.table[state, automaton.classes[byte]])
            if automaton.accepted[state]:
                ends.append(i + 1)
        assert len(ends) == len(text.split(word)) - 1
        assert ends == [m.end() for m in re.finditer(re.escape(word), text)]
