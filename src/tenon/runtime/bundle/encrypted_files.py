"""Encrypt and decrypt ``.tenon`` files and the files of models, and put the bundle of a folder into a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tenon.errors import BundleError, InputError
from tenon.formats.wire.encryption import KEY_CHECK, MAGIC, Key, decrypt_content, encrypt_content, read_key, seal
from tenon.input_file import read_regular
from tenon.runtime.bundle.container import (
    DIRECTORY,
    ENCRYPTED,
    SIGNATURE,
    Container,
    container,
    container_of,
    digest_of_sealed,
    is_container,
)
from tenon.runtime.bundle.manifest import FILE, read_manifest


def encrypt(source: str | Path, key: Key) -> bytes:
    """The content of an encrypted file: a ``.tenon`` file of a bundle (its folder, or a ``.tenon`` file), and of any
    other file, such as that of a model, its encrypted content.

    Of a bundle the files of all targets are sealed: manifest, code and weights.  Names of targets and files, and sizes,
    stay visible; a signature is left out, because it is that of another content.  Raises BundleError for a bundle that
    is damaged, InputError for what is encrypted already or cannot be read, and for what is no key.
    """
    secret, path = read_key(key), Path(source)
    if path.is_dir():
        return encrypted_container(_parts_of_folder(path), secret)
    if is_container(path):
        return encrypted_container(_parts_of_file(path), secret)
    content = read_regular(path)
    if content.startswith(MAGIC):
        raise _encrypted_already(path)
    return encrypt_content(secret, content)


def decrypt(source: str | Path, key: Key) -> bytes:
    """The content of the file that was encrypted; of an encrypted ``.tenon`` file, a ``.tenon`` file.  Raises
    WrongKeyError, and BundleError for a file that is not encrypted, or damaged."""
    path = Path(source)
    if is_container(path):
        return _decrypted_container(path, read_key(key))
    content = read_regular(path)
    if not content.startswith(MAGIC):
        raise _not_encrypted(path)
    return decrypt_content(read_key(key), content, str(path))


def encrypt_folder(folder: str | Path, key: Key) -> dict[str, bytes]:
    """The encrypted files of a model that is a folder, by their paths in it.  Raises InputError for symbolic links,
    which might lead out of the folder."""
    return {name: encrypt(path, key) for name, path in _files(Path(folder)).items()}


def decrypt_folder(folder: str | Path, key: Key) -> dict[str, bytes]:
    """The inverse of ``encrypt_folder``."""
    return {name: decrypt(path, key) for name, path in _files(Path(folder)).items()}


def is_bundle(folder: Path) -> bool:
    """Whether a folder is that of a bundle, and not of a model."""
    return (folder / FILE).is_file()


def encrypted_container(parts: Mapping[str, bytes], secret: bytes) -> bytes:
    """The content of an encrypted ``.tenon`` file with these parts."""
    sealed = {name: seal(secret, name.partition("/")[2], content) for name, content in parts.items()}
    sealed[KEY_CHECK] = seal(secret, KEY_CHECK, b"")
    sealed[DIRECTORY] = seal(secret, DIRECTORY, digest_of_sealed(sealed))
    return container_of(sealed, ENCRYPTED)


def _files(folder: Path) -> dict[str, Path]:
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            raise InputError(f"{path} is a symbolic link: put the file itself there")
        if not path.is_dir():
            files[path.relative_to(folder).as_posix()] = path
    if not files:
        raise InputError(f"{folder} has no files")
    return files


def _decrypted_container(path: Path, secret: bytes) -> bytes:
    file = Container(str(path))
    if not file.encrypted:
        raise _not_encrypted(path)
    file.unlock(secret)
    return container(
        {target: {n: file.part(target, n).tobytes() for n in file.files(target)} for target in file.targets}
    )


def _encrypted_already(path: Path) -> BundleError:
    return BundleError(f"{path} is encrypted already: decrypt it first (tenon decrypt)")


def _not_encrypted(path: Path) -> BundleError:
    return BundleError(f"{path} is not encrypted: it can be used as it is")


def _parts_of_file(path: Path) -> dict[str, bytes]:
    file = Container(str(path))
    if file.encrypted:
        raise _encrypted_already(path)
    return {name: file.stored(name).tobytes() for name in file.parts if name != SIGNATURE}


def _parts_of_folder(folder: Path) -> dict[str, bytes]:
    """The parts of the bundle that a ``.tenon`` file has: its library and weights."""
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
