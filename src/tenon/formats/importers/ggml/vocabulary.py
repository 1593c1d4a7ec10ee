"""Whisper's tokens: the texts that a file lists, and the special ones behind them, which it does not.

Source: A. Radford et al., Robust Speech Recognition via Large-Scale Weak Supervision (2022), and the tokenizer that the
authors published with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from tenon.errors import FormatError
from tenon.network.graph.byte_signs import signs_of
from tenon.network.graph.text_model import TextModel, Tokenizer

MULTILINGUAL = 51865
"""Tokens of the smallest vocabulary of several languages; that of English has one less."""

_TASKS = ("translate", "transcribe", "startoflm", "startofprev", "nospeech", "notimestamps")
"""Special tokens behind those of the languages."""

_TIMES = 1501
"""Tokens of times, from 0 to 30 seconds."""

_CODES = (
    "en zh de es ru ko fr ja pt tr pl ca nl ar sv it id hi fi vi he uk el ms cs ro da hu ta no th ur hr bg lt la mi ml "
    "cy sk te fa lv bn sr az sl kn et mk br eu is hy ne mn bs kk sq sw gl mr pa si km sn yo so af oc ka be tg sd gu am "
    "yi lo uz fo ht ps tk nn mt sa lb my bo tl mg as tt haw ln ha ba jw su yue"
)
LANGUAGES = _CODES.split()
"""Codes of languages in the order of their tokens."""

_GROUPS = "<< >> <<< >>> -- --- -( -[ (' (\" (( )) ((( ))) [[ ]] {{ }} ♪♪ ♪♪♪"
_SIGNS = (*'"#()*+/:;<=>@[\\]^_`{|}~「」『』', *_GROUPS.split())
_MUSIC = "♩♪♫♬♭♮♯"
"""Texts that are written down, and not said; of those of music the first token is enough."""


def special_tokens(vocabulary: int) -> dict[str, int]:
    """The numbers of special tokens by their names.  Raises FormatError for a vocabulary without room for them."""
    languages = vocabulary - MULTILINGUAL + 99 if vocabulary >= MULTILINGUAL else 99
    names = ["endoftext", "startoftranscript", *LANGUAGES[:languages], *_TASKS]
    names += [f"{place / 50:.2f}" for place in range(_TIMES)]
    first = vocabulary - len(names)
    if first < 0 or languages > len(LANGUAGES):
        raise FormatError(f"a vocabulary of {vocabulary} tokens is none of Whisper")
    return {f"<|{name}|>": first + number for number, name in enumerate(names)}


def text_model(vocabulary: int, tokens: Sequence[bytes]) -> TextModel:
    """The settings of texts of a model with so many tokens, of which the file lists the first.

    What is not said, such as brackets and signs of music, is not written down, as the authors' program does by default.
    Raises FormatError as ``special_tokens`` does.
    """
    special = special_tokens(vocabulary)
    end = special["<|endoftext|>"]
    texts = {text: number for number, text in reversed(list(enumerate(tokens[:end])))}
    space = texts.get(b" ")
    return TextModel(
        kind="encoder-decoder",
        architecture="whisper",
        tokenizer=Tokenizer("tokenizer.json", _definition(tokens[:end], special)),
        eos=(end,),
        start=(special["<|startoftranscript|>"],),
        suppressed=tuple(sorted(_unspoken(texts))),
        suppressed_first=(end,) if space is None else (space, end),
    )


def _unspoken(texts: Mapping[bytes, int]) -> set[int]:
    """The tokens of signs that nobody says."""
    both = [start + sign.encode() for sign in _SIGNS for start in (b"", b" ")]
    whole = {texts[text] for text in both if text in texts}
    music = [start + sign.encode() for sign in _MUSIC for start in (b"", b" ")]
    firsts = (next((text[:n] for n in range(len(text), 0, -1) if text[:n] in texts), b"") for text in music)
    return whole | {texts[text] for text in (*firsts, b" -", b" '") if text in texts and text.strip()}


def _definition(tokens: Sequence[bytes], special: Mapping[str, int]) -> bytes:
    """The content of a ``tokenizer.json``, which turns tokens into texts; it has no rules for the other direction."""
    names, known = dict[str, int](), set(special)
    for number, token in enumerate(tokens):
        name = signs_of(token)
        name = name if name and name not in known else f"[unused{number}]"
        known.add(name)
        names[name] = number
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    added = [{"id": number, "content": name, "special": True, **flags} for name, number in special.items()]
    definition = {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": level,
        "decoder": level,
        "model": {"type": "BPE", "ignore_merges": True, "vocab": {**names, **special}, "merges": []},
    }
    return json.dumps(definition, ensure_ascii=False, separators=(",", ":")).encode()
