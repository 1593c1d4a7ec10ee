"""Encryption with AES-256-GCM of ``.tenon`` files and of the files of models, and their keys.

A sealed text is a nonce of 12 bytes, the encrypted text and a tag of 16 bytes, with the file's name authenticated.  The
nonce is derived from key, name and text (as in SIV, RFC 5297), so that the same file and key give the same bytes and no
nonce serves two texts.  The package ``cryptography`` is needed only here.

Of ``.tenon`` files the parts are sealed (``bundle.container``).  Any other encrypted file is one sealed text; numbers
are little-endian:

    8 bytes    "TENONENC"
    u32        1, the version of this form
    28 bytes   a sealed empty text with the name "key-check", which tells a wrong key from damage
    ...        the sealed content, with the name "model-file": the file may be renamed

``runtime/c/libtenon/key.c`` checks the key of such a file.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tenon.errors import BundleError, InputError
from tenon.options import opening

try:
    from _blake2 import blake2b  # hashlib's own, without loading OpenSSL
except ImportError:
    from hashlib import blake2b

KEY_BYTES = 32
KEY_CHECK = "key-check"
"""The part of an encrypted file that is a sealed empty text: it tells a wrong key from damage."""

MAGIC = b"TENONENC"
_VERSION = 1
_HEAD = struct.Struct("<8sI")
_NONCE, _TAG = 12, 16
_CONTENT = "model-file"

Key = bytes | str | os.PathLike[str] | Callable[[], bytes]
"""32 bytes, the path of a file with them or with 64 hexadecimal digits, or a function that gives the bytes."""


class WrongKeyError(BundleError):
    """A bundle or model file is encrypted, and there is no key or that of another one; or there is a key, and a bundle
    is not encrypted."""

    def __init__(self, name: str, *, missing: bool = False, unneeded: bool = False) -> None:
        ways = "key=..., --key-file, TENON_KEY_FILE or TENON_KEY"
        if missing:
            message = f"{name} is encrypted: give its key ({ways})"
        elif unneeded:
            message = f"{name} is not encrypted, which a key demands: encrypt it (tenon encrypt), or leave out {ways}"
        else:
            message = f"{name}: the key is not that with which it was encrypted"
        super().__init__(message)


def seal(key: bytes, name: str, text: bytes) -> bytes:
    """The sealed text.  Raises InputError if ``cryptography`` is not installed."""
    nonce = blake2b(name.encode() + b"\0" + text, digest_size=_NONCE, key=key, person=b"tenon nonce").digest()
    return nonce + bytes(_cipher(key).encrypt(nonce, text, name.encode()))


def unseal(key: bytes, name: str, sealed: bytes) -> bytes | None:
    """The text; None if key, name or sealed text are others than when it was sealed."""
    cipher = _cipher(key)
    from cryptography.exceptions import InvalidTag

    if len(sealed) < _NONCE + _TAG:
        return None
    try:
        return bytes(cipher.decrypt(sealed[:_NONCE], sealed[_NONCE:], name.encode()))
    except InvalidTag:
        return None


def encrypt_content(key: bytes, content: bytes) -> bytes:
    """A file that is not a ``.tenon`` file, encrypted.  Raises InputError if ``cryptography`` is not installed."""
    return _HEAD.pack(MAGIC, _VERSION) + seal(key, KEY_CHECK, b"") + seal(key, _CONTENT, content)


def decrypt_content(key: bytes, content: bytes, name: str) -> bytes:
    """The inverse; ``name`` is for messages.  Raises WrongKeyError, and BundleError for a file that is damaged."""
    check = _HEAD.size + _NONCE + _TAG
    version = _HEAD.unpack_from(content)[1] if len(content) >= check else 0
    if version > _VERSION:
        raise BundleError(
            f"{name} has form {version} of encrypted files and this Tenon reads {_VERSION}: install a newer Tenon"
        )
    if version != _VERSION or not content.startswith(MAGIC):
        raise BundleError(f"{name} is damaged: it is incomplete: encrypt the file again")
    if unseal(key, KEY_CHECK, content[_HEAD.size : check]) is None:
        raise WrongKeyError(name)
    text = unseal(key, _CONTENT, content[check:])
    if text is None:
        raise BundleError(f"{name} is damaged: it was changed after it was encrypted: encrypt the file again")
    return text


def find_key(key: Key | None = None) -> bytes | None:
    """The key that is given, else that of TENON_KEY or TENON_KEY_FILE, if there is one.  Raises InputError for what is
    no key."""
    if key is not None:
        return read_key(key)
    _, digits, key_file = opening()
    if digits:
        return key_of_digits(digits, "TENON_KEY")
    return read_key(key_file) if key_file else None


def read_key(key: Key) -> bytes:
    """The bytes of a key.  Raises InputError if there is no such file, or it holds no key."""
    if isinstance(key, str | os.PathLike):
        return _key_in_file(Path(key))
    content = key() if callable(key) else key
    if len(content) != KEY_BYTES:
        raise InputError(f"the key has {len(content)} bytes: {KEY_BYTES} are needed")
    return bytes(content)


def key_of_digits(text: str, where: str) -> bytes:
    """The key that 64 hexadecimal digits state; ``where`` they are is for messages.  Raises InputError."""
    try:
        content = bytes.fromhex(text.strip())
    except ValueError:
        content = b""
    if len(content) != KEY_BYTES:
        raise InputError(
            f"{where} does not hold a key, {KEY_BYTES} bytes or {2 * KEY_BYTES} hexadecimal digits: make one with "
            "'openssl rand -hex 32'"
        )
    return content


def _key_in_file(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read the key {path}: {error.strerror or error}") from None
    return content if len(content) == KEY_BYTES else key_of_digits(content.decode("ascii", "replace"), str(path))


def _cipher(key: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise InputError("encrypted bundles need the package cryptography: pip install cryptography") from None
    return AESGCM(key)
