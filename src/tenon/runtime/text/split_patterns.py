"""Regular expressions that split text into words before byte pairs are merged, by the names that GGUF files use."""

from __future__ import annotations

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GAPS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_HAN = r"[\x{4e00}-\x{9fa5}\x{0800}-\x{4e00}\x{ac00}-\x{d7ff}]+"
_LETTERS = (
    r"\s?[A-Za-z\x{b5}\x{c0}-\x{d6}\x{d8}-\x{f6}\x{f8}-\x{1ba}\x{1bc}-\x{1bf}\x{1c4}-\x{293}\x{295}-\x{2af}"
    r"\x{370}-\x{373}\x{376}\x{377}\x{37b}-\x{37d}\x{37f}\x{386}\x{388}-\x{38a}\x{38c}\x{38e}-\x{3a1}\x{3a3}-\x{3f5}"
    r"\x{3f7}-\x{481}\x{48a}-\x{52f}\x{531}-\x{556}\x{10a0}-\x{10c5}\x{13a0}-\x{13f5}\x{13f8}-\x{13fd}"
    r"\x{1c90}-\x{1cba}\x{1cbd}-\x{1cbf}\x{1d00}-\x{1d2b}\x{1d6b}-\x{1d77}\x{1d79}-\x{1d9a}\x{1e00}-\x{1f15}"
    r"\x{1f18}-\x{1f1d}\x{1f20}-\x{1f45}\x{1f48}-\x{1f4d}\x{1f50}-\x{1f57}\x{1f59}\x{1f5b}\x{1f5d}\x{1f5f}-\x{1f7d}"
    r"\x{1f80}-\x{1fb4}\x{1fb6}-\x{1fbc}\x{1fbe}\x{1fc2}-\x{1fc4}\x{1fc6}-\x{1fcc}\x{1fd0}-\x{1fd3}\x{1fd6}-\x{1fdb}"
    r"\x{1fe0}-\x{1fec}\x{1ff2}-\x{1ff4}\x{1ff6}-\x{1ffc}\x{2102}\x{2107}\x{210a}-\x{2113}\x{2115}\x{2119}-\x{211d}"
    r"\x{2124}\x{2126}\x{2128}\x{212a}-\x{212d}\x{212f}-\x{2134}\x{2139}\x{213c}-\x{213f}\x{2145}-\x{2149}\x{214e}"
    r"\x{2183}\x{2184}\x{2c00}-\x{2c7b}\x{2c7e}-\x{2ce4}\x{2ceb}-\x{2cee}\x{2cf2}\x{2cf3}\x{a640}-\x{a66d}"
    r"\x{a680}-\x{a69b}\x{a722}-\x{a76f}\x{a771}-\x{a787}\x{a78b}-\x{a78e}\x{ab70}-\x{abbf}\x{fb00}-\x{fb06}"
    r"\x{fb13}-\x{fb17}\x{ff21}-\x{ff3a}\x{ff41}-\x{ff5a}\x{10400}-\x{1044f}\x{104b0}-\x{104d3}\x{104d8}-\x{104fb}"
    r"\x{10c80}-\x{10cb2}\x{10cc0}-\x{10cf2}\x{118a0}-\x{118df}\x{1e900}-\x{1e943}]+"
)
"""Letters of alphabets with upper and lower case."""
_PUNCTUATION = r"\s?[!-/:-~\x{ff01}-\x{ff0f}\x{ff1a}-\x{ff5e}\x{2018}-\x{201f}\x{3000}-\x{3002}]+"


def _byte_pairs(digits: str, punctuation: str = r"[\r\n]*") -> str:
    """The pattern of GPT-4's tokenizer, by the digits of a word and what follows punctuation."""
    letters, other = r"[^\r\n\p{L}\p{N}]?\p{L}+", rf" ?[^\s\p{{L}}\p{{N}}]+{punctuation}"
    return f"{_CONTRACTIONS}|{letters}|{digits}|{other}|{_GAPS}"


def _cased(digits: str, contractions: str = "") -> str:
    """The same, where a word ends before an upper-case letter."""
    begin, other = r"[^\r\n\p{L}\p{N}]?", r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
    words = f"{begin}{_UPPER}*{_LOWER}+{contractions}|{begin}{_UPPER}+{_LOWER}*{contractions}"
    return f"{words}|{digits}|{other}|{_GAPS}"


_LLAMA3 = (_byte_pairs(r"\p{N}{1,3}"),)
_QWEN2 = (_byte_pairs(r"\p{N}"),)
_DIGITS = (r"\p{N}", _GPT2)
_GPT4O = (_cased(r"\p{N}{1,3}", f"{_CONTRACTIONS}?"),)
_BLOOM = (r" ?[^(\s|.,!?\x{2026}\x{3002}\x{ff0c}\x{3001}\x{964}\x{6d4}\x{60c})]+",)
_GROUPS_OF_DIGITS = (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")

PATTERNS: dict[str, tuple[str, ...]] = {
    "default": _DEFAULT,
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "dbrx", "smaug-bpe"), _LLAMA3),
    **dict.fromkeys(("chatglm-bpe", "glm4"), _LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez"), _QWEN2),
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "roberta-bpe", "gigachat"), (_GPT2,)),
    **dict.fromkeys(("jina-es", "jina-de", "jina-v1-en", "jina-v2-es", "jina-v2-de", "jina-v2-code"), (_GPT2,)),
    **dict.fromkeys(("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b"), _DIGITS),
    **dict.fromkeys(("gpt-4o", "llama4"), _GPT4O),
    **dict.fromkeys(("bloom", "poro-chat", "gpt3-finnish"), _BLOOM),
    "viking": (*_BLOOM, r"\p{N}"),
    "falcon": _GROUPS_OF_DIGITS,
    "tekken": (_cased(r"\p{N}"),),
    "deepseek-llm": (r"[\r\n]", _LETTERS, _PUNCTUATION, r"\s+$", _HAN, r"\p{N}+"),
    "deepseek-coder": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN, r"\p{N}"),
    "deepseek-v3": (
        r"\p{N}{1,3}",
        r"[\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+",
        r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + _GAPS,
    ),
}
"""The patterns by which a text is cut, one after another, for the names of ``tokenizer.ggml.pre``."""

WHOLE_WORDS = {"llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "tekken", "gpt-4o", "llama4"}
"""The names whose tokenizers take a word that is a token as it is, before merging."""
