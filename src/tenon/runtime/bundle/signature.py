"""Signatures of ``.tenon`` files with Ed25519 (RFC 8032).

What is signed is a text that states the file's form, the version that its owner gave it and, for each other part in
the order of the directory, its name, size and BLAKE2b digest as stored; the part "signature" holds the public key
(32 bytes), the version (u64, little-endian) and the signature (64 bytes).
``runtime/c/libtenon/container.c`` verifies the same.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from tenon.errors import BundleError, InputError
from tenon.runtime.bundle.container import SIGNATURE, Container, container_of

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

try:
    from _blake2 import blake2b  # hashlib's own, without loading OpenSSL
except ImportError:
    from hashlib import blake2b

_PUBLIC, _VERSION, _SIGNED = 32, 8, 64
LARGEST_VERSION = 2**63 - 1
_MESSAGE = b"Tenon bundle\n"

PublicKey = bytes | str | os.PathLike[str]
"""32 bytes, or a file with them or with a public key in PEM."""


class SignatureError(BundleError):
    """A bundle is not signed, not by this key, was changed after it was signed, or is older than what is accepted."""


def sign(file: Container, private_key: str | os.PathLike[str], version: int = 0) -> bytes:
    """The content of the file with a signature by a private key (a PEM file of Ed25519, PKCS #8, without password).

    ``version`` (from 0 to 2**63 - 1) is signed as well: whoever opens the file may demand a newer one.  A signature
    that it had is replaced.  Raises InputError for a key or version that cannot be used.
    """
    if not 0 <= version <= LARGEST_VERSION:
        raise InputError(f"the version {version} is not between 0 and {LARGEST_VERSION}")
    key = _private(Path(private_key))
    parts = {name: file.stored(name).tobytes() for name in file.parts if name != SIGNATURE}
    number = struct.pack("<Q", version)
    signature = key.public_key().public_bytes_raw() + number + key.sign(_signed_text(file, number))
    return container_of({**parts, SIGNATURE: signature}, file.version)


def signer(file: Container) -> bytes | None:
    """The public key that the file says it was signed with; not verified.  None: it is not signed."""
    return file.stored(SIGNATURE)[:_PUBLIC].tobytes() if SIGNATURE in file.parts else None


def signed_version(file: Container) -> int | None:
    """The version that the file says it was signed as; not verified.  None: it is not signed."""
    if SIGNATURE not in file.parts:
        return None
    return int.from_bytes(file.stored(SIGNATURE)[_PUBLIC : _PUBLIC + _VERSION].tobytes(), "little")


def check_signature(file: Container, public_key: PublicKey, minimum_version: int = 0) -> None:
    """Raises SignatureError unless the file was signed by the owner of the key, as ``minimum_version`` or a later one,
    and not changed since; InputError for a key that cannot be used."""
    from cryptography.exceptions import InvalidSignature

    wanted = _public(public_key)
    if SIGNATURE not in file.parts:
        raise SignatureError(f"{file.path} is not signed: sign it (tenon sign), or get it from who made it")
    stored = file.stored(SIGNATURE).tobytes()
    if len(stored) != _PUBLIC + _VERSION + _SIGNED or stored[:_PUBLIC] != wanted.public_bytes_raw():
        raise SignatureError(f"{file.path} was signed with another key, {stored[:_PUBLIC].hex()[:16]}...")
    number = stored[_PUBLIC : _PUBLIC + _VERSION]
    try:
        wanted.verify(stored[_PUBLIC + _VERSION :], _signed_text(file, number))
    except InvalidSignature:
        raise SignatureError(f"{file.path} was changed after it was signed: get it again from who made it") from None
    if (version := int.from_bytes(number, "little")) < minimum_version:
        raise SignatureError(
            f"{file.path} was signed as version {version}, and {minimum_version} is the oldest that is accepted: get "
            "the newest from who made it"
        )


def _signed_text(file: Container, version: bytes) -> bytes:
    rows = []
    for name in file.parts:
        if name != SIGNATURE:
            content = file.stored(name)
            digest = blake2b(content.data, digest_size=32).digest()
            rows.append(struct.pack("<104sQ", name.encode(), content.size) + digest)
    return _MESSAGE + struct.pack("<I", file.version) + version + b"".join(rows)


def _private(path: Path) -> Ed25519PrivateKey:
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError:
        raise _missing() from None
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except OSError as error:
        raise InputError(f"cannot read the private key {path}: {error.strerror or error}") from None
    except (ValueError, TypeError) as error:
        raise InputError(f"{path} is no private key in PEM without password: {error}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise InputError(f"{path} is no key of Ed25519: make one with 'openssl genpkey -algorithm ed25519'")
    return key


def _public(key: PublicKey) -> Ed25519PublicKey:
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
    except ImportError:
        raise _missing() from None
    try:
        content = key if isinstance(key, bytes) else Path(key).read_bytes()
        if len(content) == _PUBLIC:
            return Ed25519PublicKey.from_public_bytes(content)
        loaded = load_pem_public_key(content)
    except OSError as error:
        raise InputError(f"cannot read the public key {key!s}: {error.strerror or error}") from None
    except ValueError as error:
        raise InputError(f"the public key has neither {_PUBLIC} bytes nor the form of PEM: {error}") from None
    if not isinstance(loaded, Ed25519PublicKey):
        raise InputError("the public key is none of Ed25519: 'openssl pkey -in private.pem -pubout' writes it")
    return loaded


def _missing() -> InputError:
    return InputError("signatures need the package cryptography: pip install cryptography")
