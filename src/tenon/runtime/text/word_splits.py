"""The rules by which a tokenizer cuts a text into words, for the tables in C."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from tenon.runtime.text.normal_steps import PREPEND_FIRST, PREPEND_ONCE, REPLACE, NormalStep, flattened, unsupported
from tenon.runtime.text.split_patterns import PATTERNS

ISOLATED, REMOVED, WITH_NEXT = range(3)
"""The use of a match: a word of its own, nothing, or the beginning of the next word."""
_BEHAVIOURS = {"Isolated": ISOLATED, "Removed": REMOVED, "MergedWithNext": WITH_NEXT}
_PUNCTUATION = r"[!-/:-@\[-`{-~\p{P}]"


class WordSplit(NamedTuple):
    """A regular expression, and what becomes of its matches."""

    pattern: str
    behaviour: int = ISOLATED


class WordRules(NamedTuple):
    """How a text becomes words: further steps, then one split after another.  ``bytes``: tokens consist of bytes."""

    steps: tuple[NormalStep, ...]
    splits: tuple[WordSplit, ...]
    bytes: bool


def word_rules(pre_tokenizer: Mapping[str, Any] | None) -> WordRules:
    """The rules of a tokenizer.json's pre_tokenizer.  Raises UnsupportedError for what the tables lack."""
    steps, splits, of_bytes = list[NormalStep](), list[WordSplit](), False
    for part in flattened(pre_tokenizer, "pretokenizers"):
        kind = part.get("type")
        if splits and (kind == "Metaspace" or (kind == "ByteLevel" and part.get("add_prefix_space", True))):
            raise unsupported(f"{kind} behind other splits")
        match kind:
            case "Split":
                splits.append(_split(part))
            case "ByteLevel":
                of_bytes = True
                steps += [NormalStep(PREPEND_ONCE, " ")] if part.get("add_prefix_space", True) else []
                splits += [WordSplit(PATTERNS["gpt-2"][0])] if part.get("use_regex", True) else []
            case "Digits":
                splits.append(WordSplit(r"\p{N}" if part.get("individual_digits") else r"\p{N}+"))
            case "WhitespaceSplit":
                splits.append(WordSplit(r"\s", REMOVED))
            case "BertPreTokenizer":
                splits += [WordSplit(r"\s", REMOVED), WordSplit(_PUNCTUATION)]
            case "Punctuation" if part.get("behavior", "Isolated") in ("Isolated", "Contiguous"):
                splits.append(WordSplit(_PUNCTUATION + ("+" if part.get("behavior") == "Contiguous" else "")))
            case "Metaspace":
                steps += _metaspace_steps(part)
                splits += [WordSplit(part["replacement"], WITH_NEXT)] if part.get("split", True) else []
            case _:
                raise unsupported(f"the pre-tokenizer {kind}")
    return WordRules(tuple(steps), tuple(splits), of_bytes)


def _split(part: Mapping[str, Any]) -> WordSplit:
    behaviour = part.get("behavior")
    if behaviour not in _BEHAVIOURS or part.get("invert"):
        raise unsupported(f"splits that are {behaviour}{' and inverted' if part.get('invert') else ''}")
    pattern = part["pattern"]
    return WordSplit(pattern.get("Regex") or re.escape(pattern["String"]), _BEHAVIOURS[behaviour])


def _metaspace_steps(part: Mapping[str, Any]) -> list[NormalStep]:
    sign = part["replacement"]
    scheme = part.get("prepend_scheme") or ("always" if part.get("add_prefix_space", True) else "never")
    kinds = {"always": [NormalStep(PREPEND_ONCE, sign)], "first": [NormalStep(PREPEND_FIRST, sign)], "never": []}
    return [NormalStep(REPLACE, " ", sign), *kinds[scheme]]
