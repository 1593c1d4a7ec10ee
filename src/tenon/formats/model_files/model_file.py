"""Where a model comes from: bytes in memory, a local file, or an http(s) address."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, cast

from tenon.errors import FormatError, InputError
from tenon.formats.wire.encryption import MAGIC as SEALED
from tenon.formats.wire.stored_files import is_plain, plain_content
from tenon.input_file import is_regular, map_regular, matching_names, printable, read_regular
from tenon.network.graph.graph import Array

if TYPE_CHECKING:
    from tenon.formats.model_files.download import Progress

MAX_MATCHES = 32

MAPPED = {".gguf": b"GGUF", ".safetensors": b""}
"""Endings and beginnings of files whose importers take views of what they need; large ones are mapped, not read."""

_LARGE = 1 << 24


@dataclass(frozen=True)
class ModelFile:
    """A model as read.  ``folder`` is where files that belong to it may lie; None for bytes and downloads.

    ``weights`` is the second file, or the folder of parameters, where the user named it.  A model or its weights
    given as a folder has no data: ``is_folder`` is set and ``folder`` is the folder itself.  ``disk_name`` is the name
    in the folder where that is not text, and ``name`` not the same.  ``values`` are what the user fixed inputs of the
    model to, and ``limits`` the largest numbers that values of the model can be in any run.
    """

    name: str
    data: bytes
    folder: Path | None = None
    weights: ModelFile | None = None
    is_folder: bool = False
    disk_name: str = ""
    values: Mapping[str, Array] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)

    @property
    def stem(self) -> str:
        return Path(self.name).stem or "model"

    @property
    def suffix(self) -> str:
        return Path(self.name).suffix.lower()

    def matching(self, pattern: str) -> list[ModelFile]:
        """Other files of the folder whose names match a glob, sorted; ``{stem}`` in it is this file's own stem.

        Raises InputError when so many match that reading them all to look for one would take too long.
        """
        if self.folder is None:
            return []
        own = self.disk_name or self.name
        name = pattern.replace("{stem}", escape(Path(own).stem))
        names = (other for other in matching_names(self.folder, name) if other != own)
        paths = [path for path in (self.folder / other for other in names) if is_regular(path)]
        if len(paths) > MAX_MATCHES:
            raise InputError(f"{self.folder}: {len(paths)} files are called {name}; give the file's own name")
        return [read_file(p) for p in paths]

    def partner(self, what: str, *patterns: str, fits: Fits = lambda file: True) -> ModelFile:
        """The second file of the model: the one the user named, else the one beside this file.

        ``patterns`` are globs, the likeliest first: ``"{stem}.bin"``, ``"params"``, ``"*.bin"``; the first that has
        matches decides.  ``fits`` refuses files that match by name alone.  ``what`` says what is missing ("its
        weights").  Raises FormatError when there is none, more than one, or the user's does not fit.
        """
        partner_file = self.find_partner(what, *patterns, fits=fits)
        if partner_file is not None:
            return partner_file
        if self.folder is None:
            raise FormatError(f"{self.name}: {what} must be given too: name the file with --weights (weights=...)")
        looked = ", ".join(dict.fromkeys(p.replace("{stem}", self.stem) for p in patterns))
        raise FormatError(
            f"{self.name}: {what} were not found; looked for {looked} in '{self.folder}' (name the file with --weights)"
        )

    def find_partner(self, what: str, *patterns: str, fits: Fits = lambda file: True) -> ModelFile | None:
        """As ``partner``, but None when there is none."""
        if self.weights is not None:
            if not self.weights.is_folder and not fits(self.weights):
                raise FormatError(f"{self.weights.name}: named with --weights, but not {what} of {self.name}")
            return self.weights
        for pattern in patterns:
            files = [file for file in self.matching(pattern) if fits(file)]
            if len(files) > 1:
                names = ", ".join(file.name for file in files)
                raise FormatError(f"{self.name}: {what} could be any of {names}; name one with --weights")
            if files:
                return files[0]
        return None


Fits = Callable[[ModelFile], bool]


def read(
    source: str | os.PathLike[str] | bytes,
    sha256: str | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> ModelFile:
    """The model at ``source``, its SHA-256 checked when one is given (of an encrypted file, that of the encrypted one);
    a folder is not read.

    Raises InputError when there is nothing to read and FormatError when the checksum differs, and as ``plain_content``
    does for encrypted files.
    """
    if sha256 is not None and not sha256.strip():
        raise InputError("the SHA-256 is empty, and nothing would be checked: give it, or leave it out")
    if isinstance(source, bytes):
        check(source, sha256, "the bytes given")
        return ModelFile("model", plain_content(source, "the model given as bytes"))
    text = os.fspath(source)
    if not text:
        raise InputError("the name of the model's file is empty")
    if "://" in text:
        return _from_address(text, sha256, cache, progress)
    path = Path(text)
    if os.path.isdir(path):  # noqa: PTH112  # Path.is_dir raises OSError for a name that is too long
        if sha256:
            raise InputError(f"{path}: a folder has no SHA-256; give the model's file")
        return ModelFile(printable(path.resolve().name), b"", path, is_folder=True)
    return read_file(path, sha256)


def _from_address(url: str, sha256: str | None, cache: Path | None, progress: Progress | None) -> ModelFile:
    from tenon.formats.model_files import download  # what it imports takes longer than opening most models
    from tenon.options import default_cache

    scheme = download.scheme_of(url)
    if scheme not in ("http", "https"):
        what = f"models are fetched over http and https only, not {scheme}"
        raise InputError(f"{download.shown(url)}: {what}")
    data = download.fetched(url, sha256, cache or default_cache() / "models", progress)
    return ModelFile(download.file_name(url), plain_content(data, download.shown(url)))


def read_file(path: Path, sha256: str | None = None) -> ModelFile:
    """The local file at ``path``.  Raises as ``read`` does."""
    stored = _mapped(path) or read_regular(path)
    check(stored, sha256, str(path))
    return ModelFile(printable(path.name), plain_content(stored, printable(path)), path.parent, disk_name=path.name)


def _mapped(path: Path) -> bytes | None:
    """A large file of ``MAPPED``, of which slices are bytes as those of bytes are; None for others."""
    begin = MAPPED.get(path.suffix.lower())
    content = None if begin is None or not is_plain() else map_regular(path, _LARGE)
    usable = content is not None and content[:4].startswith(begin or b"") and content[: len(SEALED)] != SEALED
    return cast("bytes", content) if usable else None


def check(data: bytes, sha256: str | None, where: str) -> None:
    """Raise FormatError naming both sums if the SHA-256 of ``data`` is not the one given."""
    digest = hashlib.sha256(data).hexdigest() if sha256 else ""
    if sha256 and digest != sha256.strip().lower():
        raise FormatError(
            f"{where}: the SHA-256 is {digest}, expected {sha256.strip().lower()}; "
            "the file is damaged or is another version"
        )
