"""Subcommands about ``.tenon`` files: encryption (also of models), signatures, bills of materials, and updates."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tenon.cli.groups import with_groups
from tenon.cli.option_groups import Json, SignatureOptions
from tenon.errors import InputError

Bundle = Annotated[Path, typer.Argument(help="A .tenon file, or the folder of a bundle.")]
Encrypted = Annotated[Path, typer.Argument(help="An encrypted .tenon file, or an encrypted file or folder of a model.")]
Plain = Annotated[Path, typer.Argument(help="A .tenon file, the folder of a bundle, or a file or folder of a model.")]
SingleFile = Annotated[Path, typer.Argument(help="A .tenon file.")]
Out = Annotated[Path, typer.Option("-o", "--out", "--output", help="The file to write.")]
FileOrFolder = Annotated[
    Path, typer.Option("-o", "--out", "--output", help="The file to write; for the folder of a model, a folder.")
]
KeyFile = Annotated[
    Path | None, typer.Option("--key-file", help="A file with the key: 32 bytes or 64 hexadecimal digits.")
]
KeyVariable = Annotated[
    str | None, typer.Option("--key-env", metavar="NAME", help="The environment variable with the key's 64 digits.")
]


def register(app: typer.Typer) -> None:
    """Add the subcommands."""
    app.command("encrypt")(encrypt_command)
    app.command("decrypt")(decrypt_command)
    app.command("sign")(sign_command)
    app.command("sbom")(sbom_command)
    app.command("delta")(delta_command)
    app.command("patch")(patch_command)


@with_groups
def encrypt_command(
    *,
    source: Plain,
    out: FileOrFolder,
    key_file: KeyFile = None,
    key_env: KeyVariable = None,
    signed: SignatureOptions,
    json: Json = False,
) -> None:
    """Encrypt a bundle's manifest, code and weights, or the files of a model, with AES-256-GCM."""
    from tenon.cli.protection import chosen_key, encrypt_to
    from tenon.runtime.engine.files import check_demanded_signature

    check_demanded_signature(source)
    encrypt_to(source, out, chosen_key(key_file, key_env), as_json=json)


@with_groups
def decrypt_command(
    *,
    source: Encrypted,
    out: FileOrFolder,
    key_file: KeyFile = None,
    key_env: KeyVariable = None,
    signed: SignatureOptions,
    json: Json = False,
) -> None:
    """Decrypt an encrypted bundle, or the encrypted files of a model."""
    from tenon.cli.protection import chosen_key, decrypt_to
    from tenon.runtime.engine.files import check_demanded_signature

    check_demanded_signature(source)
    decrypt_to(source, out, chosen_key(key_file, key_env), as_json=json)


def sign_command(
    bundle: SingleFile,
    out: Annotated[Path | None, typer.Option("-o", "--out", "--output", help="The file to write.")] = None,
    key_file: Annotated[
        Path | None, typer.Option("--key-file", help="The private key (Ed25519, PEM) to sign with.")
    ] = None,
    version: Annotated[
        int | None, typer.Option("--version", min=0, help="The version to sign, which --minimum-version compares.")
    ] = None,
    public_key: Annotated[
        Path | None, typer.Option("--public-key", help="Verify the signature with this key (PEM) instead.")
    ] = None,
    minimum_version: Annotated[
        int | None,
        typer.Option("--minimum-version", min=0, help="With --public-key: the oldest version that is accepted."),
    ] = None,
    json: Json = False,
) -> None:
    """Sign a .tenon file with Ed25519, or verify its signature."""
    from tenon.cli.protection import sign_to, verify_signature

    if (key_file is None) == (public_key is None):
        raise InputError("name a private key to sign with (--key-file) or a public key to verify with (--public-key)")
    if public_key is None:
        if minimum_version is not None:
            raise InputError("--minimum-version: it is for verifying (--public-key); --version is what is signed")
        assert key_file is not None
        return sign_to(bundle, out or bundle, key_file, version or 0, as_json=json)
    if out is not None or version is not None:
        raise InputError("--public-key only verifies: leave out -o and --version")
    return verify_signature(bundle, public_key, minimum_version or 0, as_json=json)


@with_groups
def sbom_command(
    *,
    bundle: Bundle,
    out: Annotated[Path | None, typer.Option("-o", "--out", "--output", help="The file to write.")] = None,
    key_file: KeyFile = None,
    key_env: KeyVariable = None,
    signed: SignatureOptions,
    json: Json = False,
) -> None:
    """Write the bill of materials of a bundle as CycloneDX JSON."""
    from tenon.cli.protection import write_sbom
    from tenon.runtime.engine.files import check_demanded_signature

    check_demanded_signature(bundle)
    write_sbom(bundle, out, key_file, key_env, as_json=json)


@with_groups
def delta_command(
    *,
    old: Annotated[Path, typer.Argument(help="The .tenon file that devices have.")],
    new: Annotated[Path, typer.Argument(help="The .tenon file that they shall have.")],
    out: Out,
    signed: SignatureOptions,
    json: Json = False,
) -> None:
    """Write what turns one .tenon file into another."""
    from tenon.cli.protection import written
    from tenon.runtime.bundle.delta import delta
    from tenon.runtime.engine.files import check_demanded_signature

    check_demanded_signature(new)
    written(out, delta(old, new), as_json=json)


@with_groups
def patch_command(
    *,
    old: Annotated[Path, typer.Argument(help="The .tenon file that the delta was made from.")],
    patch: Annotated[Path, typer.Argument(help="The delta.")],
    out: Out,
    signed: SignatureOptions,
    json: Json = False,
) -> None:
    """Apply a delta to a .tenon file; the digests of both files are verified."""
    from tenon.cli.protection import written
    from tenon.runtime.bundle.delta import apply

    written(out, apply(old, patch, signed.public_key, signed.minimum_version or 0), as_json=json)
