"""Tokens of decoders that write down speech: with which a text begins, which are never written, languages and times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tenon.network.graph.text_model import TextModel
from tenon.runtime.text.token_bytes import token_bytes, vocabulary
from tenon.runtime.text.tokenizer import damage

_TRANSCRIBE, _TRANSLATE, _NO_TIMES = "<|transcribe|>", "<|translate|>", "<|notimestamps|>"
"""Whisper's names of the tokens that say what the decoder is to write."""

_FIRST_LANGUAGE, _FIRST_TIME = "<|en|>", "<|0.00|>"
"""The names of the first language and of the time 0, behind which those of later times follow."""

_NONE = 0xFFFFFFFF


@dataclass(frozen=True)
class SpeechTokens:
    """The tokens of a model that writes down speech; None stands for those that it does not have.

    ``start`` are the tokens that a text begins with; ``never`` are never generated, and ``never_first`` not as the
    first token.  ``languages`` are Whisper's tokens by name ("en"), ``transcribe`` the task behind them.  ``no_times``
    says that there are to be no tokens of times, which are those from ``first_time`` on; ``end`` is the first token
    that ends a text; ``count`` is the number of all tokens.
    """

    start: Sequence[int]
    never: Sequence[int]
    never_first: Sequence[int]
    languages: Mapping[str, int]
    transcribe: int | None
    no_times: int | None
    first_time: int | None
    end: int
    count: int

    @classmethod
    def of(cls, model: TextModel, definition: Mapping[str, Any]) -> SpeechTokens:
        """The tokens of a model whose tokenizer.json is ``definition``.  Raises FormatError for a damaged one."""
        with damage("the settings of the tokenizer"):
            added = list(definition.get("added_tokens") or ())
            names = {str(each["content"]): int(each["id"]) for each in added}
            special = {int(each["id"]) for each in added if each.get("special")}
            numbers = vocabulary(definition["model"]) | names
            count = len(token_bytes(definition))
        end = min(model.eos, default=0)
        first_time = numbers.get(_FIRST_TIME)
        if first_time is not None and not (model.eos and end < first_time):
            first_time = None
        times = range(count if first_time is None else first_time, count)
        never = {*model.suppressed, *(special - set(model.eos))}
        return cls(
            start=tuple(model.start),
            never=sorted(never - set(times)),
            never_first=tuple(model.suppressed_first),
            languages=_languages(names),
            transcribe=numbers.get(_TRANSCRIBE),
            no_times=numbers.get(_NO_TIMES),
            first_time=first_time,
            end=end,
            count=count,
        )

    @property
    def times(self) -> range:
        """The tokens of times."""
        return range(self.count if self.first_time is None else self.first_time, self.count)

    @property
    def table(self) -> list[int]:
        """The table that ``runtime/c/speech_tokens.c`` reads."""
        lists = (self.start, self.never, self.never_first, list(self.languages.values()))
        single = (self.transcribe, self.no_times, self.first_time, self.end)
        numbers = [*map(len, lists), *(_NONE if each is None else each for each in single)]
        return [*numbers, *(token for each in lists for token in each)]


def _languages(names: Mapping[str, int]) -> dict[str, int]:
    """Whisper's tokens of languages, which lie in front of those of tasks."""
    first, task = names.get(_FIRST_LANGUAGE), names.get(_TRANSCRIBE)
    if first is None or task is None:
        return {}
    between = range(first, names.get(_TRANSLATE) or task)
    return {name[2:-2]: number for name, number in names.items() if number in between}
