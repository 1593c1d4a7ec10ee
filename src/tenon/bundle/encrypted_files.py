"""Encrypt and decrypt ``.tenon`` files, and put the bundle of a folder into one."""

from __future__ import annotations

from pathlib import Path

from tenon.bundle.container import ENCRYPTED, Container, container, container_of
from tenon.bundle.encryption import KEY_CHECK, Key, read_key, seal
from tenon.bundle.manifest import FILE, read_manifest
from tenon.bundle.signature import SIGNATURE
from tenon.errors import BundleError, InputError


def encrypt(bundle: str | Path, key: Key) -> bytes:
    """The content of an encrypted ``.tenon`` file with the bundle of a folder or a ``.tenon`` file.

    The files of all targets are sealed: manifest, code and weights.  Names of targets and files, and sizes, stay
    visible; a signature is left out, because it is that of another content.  Raises BundleError for a bundle that is
    damaged or encrypted already, InputError for what is no key.
    """
    secret, path = read_key(key), Path(bundle)
    parts = _parts_of_folder(path) if path.is_dir() else _parts_of_file(path)
    sealed = {name: seal(secret, name.partition("/")[2], content) for name, content in parts.items()}
    return container_of({**sealed, KEY_CHECK: seal(secret, KEY_CHECK, b"")}, ENCRYPTED)


def decrypt(bundle: str | Path, key: Key) -> bytes:
    """The content of a ``.tenon`` file that is not encrypted.  Raises WrongKeyError, and BundleError for a file that is
    not encrypted, or damaged."""
    file = Container(str(bundle))
    if not file.encrypted:
        raise BundleError(f"{bundle} is not encrypted: it can be used as it is")
    file.unlock(read_key(key))
    return container(
        {target: {n: file.part(target, n).tobytes() for n in file.files(target)} for target in file.targets}
    )


def _parts_of_file(path: Path) -> dict[str, bytes]:
    file = Container(str(path))
    if file.encrypted:
        raise BundleError(f"{path} is encrypted already: decrypt it first (tenon decrypt)")
    return {name: file.stored(name).tobytes() for name in file.parts if name != SIGNATURE}


def _parts_of_folder(folder: Path) -> dict[str, bytes]:
    """What a ``.tenon`` file has of the bundle: its library and weights."""
    manifest = read_manifest(folder)
    names = [n for n in manifest.files if n == f"{manifest.name}.weights.bin" or n.endswith((".so", ".dylib", ".dll"))]
    if len(names) < 2:
        raise InputError(
            f"{folder} was saved without library or weights: save it with both, or compile to a .tenon file"
        )
    files = {name: (folder / name).read_bytes() for name in names}
    kept = manifest._replace(files={name: manifest.files[name] for name in names})
    target = manifest.target.name
    return {f"{target}/{FILE}": kept.text().encode(), **{f"{target}/{n}": content for n, content in files.items()}}
