"""The characters by which byte-pair encodings of bytes write the bytes of tokens: each byte has one that prints.

Source: A. Radford et al., Language Models are Unsupervised Multitask Learners (2019), of whose encoder these are.
"""

from __future__ import annotations

from functools import cache


@cache
def byte_of_sign() -> dict[str, int]:
    """The byte for which each character of a token stands: printable ones stand for themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


def signs_of(data: bytes) -> str:
    """The characters of bytes."""
    return data.decode("latin-1").translate(_signs())


@cache
def _signs() -> dict[int, str]:
    return {byte: sign for sign, byte in byte_of_sign().items()}
