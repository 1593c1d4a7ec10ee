"""The file ``tokenizer.bin`` of Moonshine: the bytes of each token behind their number.

A number below 128 is one byte; else it is the first byte less 128, plus 128 times the second one.
Source: core/bin-tokenizer of the project Moonshine.
"""

from __future__ import annotations

from tenon.errors import FormatError

TOKEN_LIST = "tokenizer.bin"
"""The name of the file."""

_MAX_TOKENS = 1 << 20


def token_list(data: bytes, where: str) -> list[bytes]:
    """The bytes of each token, by its number.  Raises FormatError, naming ``where``, for a truncated file."""
    tokens: list[bytes] = []
    at = 0
    while at < len(data):
        size, at = data[at], at + 1
        if size >= 128:
            if at == len(data):
                raise FormatError(f"{where}: its last token has no length; the file is truncated or damaged")
            size, at = size - 128 + 128 * data[at], at + 1
        if size > len(data) - at or len(tokens) == _MAX_TOKENS:
            raise FormatError(f"{where}: token {len(tokens)} does not fit the file; it is truncated or damaged")
        tokens.append(data[at : at + size])
        at += size
    if not tokens:
        raise FormatError(f"{where}: it holds no tokens; copy or download it again")
    return tokens
