"""Implementation of the subcommands about ``.tenon`` files and encrypted files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tenon.atomic_write import write, write_all
from tenon.cli.console import console, print_json, size
from tenon.errors import InputError
from tenon.formats.wire.encryption import Key, key_of_digits
from tenon.options import variable
from tenon.runtime.bundle.container import Container
from tenon.runtime.bundle.encrypted_files import decrypt, decrypt_folder, encrypt, encrypt_folder, is_bundle
from tenon.runtime.bundle.sbom import sbom
from tenon.runtime.bundle.signature import check_signature, sign, signed_version, signer


def chosen_key(key_file: Path | None, key_env: str | None) -> Key:
    """The key that --key-file or --key-env names.  Raises InputError if neither or both are given."""
    if (key_file is None) == (key_env is None):
        raise InputError("name the key by --key-file or --key-env: 'openssl rand -hex 32' makes one")
    return key_file if key_file is not None else key_of_digits(variable(key_env or ""), f"${key_env}")


def encrypt_to(source: Path, out: Path, key: Key, *, as_json: bool) -> None:
    if source.is_dir() and not is_bundle(source):
        return _write_folder(out, encrypt_folder(source, key), as_json=as_json)
    return written(out, encrypt(source, key), as_json=as_json)


def decrypt_to(source: Path, out: Path, key: Key, *, as_json: bool) -> None:
    if source.is_dir():
        return _write_folder(out, decrypt_folder(source, key), as_json=as_json)
    return written(out, decrypt(source, key), as_json=as_json)


def _write_folder(out: Path, files: Mapping[str, bytes], *, as_json: bool) -> None:
    write_all({out / name: content for name, content in files.items()}, "-o")
    if as_json:
        return print_json({"folder": str(out), "files": {name: len(content) for name, content in files.items()}})
    return console.print(f"{out}/, {len(files)} file(s), {size(sum(map(len, files.values())))}", markup=False)


def written(out: Path, content: bytes, *, as_json: bool) -> None:
    """Write a file, and print its name and size."""
    write(out, content, "-o")
    if as_json:
        return print_json({"file": str(out), "bytes": len(content)})
    return console.print(f"{out}, {size(len(content))}", markup=False)


def sign_to(bundle: Path, out: Path, private: Path, version: int, *, as_json: bool) -> None:
    return written(out, sign(Container(str(bundle)), private, version), as_json=as_json)


def verify_signature(bundle: Path, public: Path, minimum_version: int, *, as_json: bool) -> None:
    file = Container(str(bundle))
    check_signature(file, public, minimum_version)
    by, version = (signer(file) or b"").hex(), signed_version(file)
    if as_json:
        return print_json({"file": str(bundle), "signed_by": by, "version": version})
    return console.print(f"{bundle} was signed by {by} as version {version}, and not changed since", markup=False)


def write_sbom(bundle: Path, out: Path | None, key_file: Path | None, key_env: str | None, *, as_json: bool) -> None:
    key = chosen_key(key_file, key_env) if key_file or key_env else None
    text = sbom(bundle, key)
    if out is None:
        return print(text, end="")
    return written(out, text.encode(), as_json=as_json)
