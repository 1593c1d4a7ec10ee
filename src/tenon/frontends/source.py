"""Where a model comes from: bytes in memory, a local file, or an http(s) address with a cache beside it."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from tenon.errors import FormatError, InputError

Progress = Callable[[int, int | None], None]
"""Called with the bytes received so far and, if the server tells, the bytes in all."""

CHUNK = 1 << 20
TIMEOUT_SECONDS = 60
MOST_MATCHES = 32


@dataclass(frozen=True)
class ModelFile:
    """A model as read.  ``folder`` is where files that belong to it may lie; None for bytes and downloads.

    ``weights`` is the second file, or the folder of parameters, where the user named it.  A model or its weights
    given as a folder has no data: ``is_folder`` is set and ``folder`` is the folder itself.
    """

    name: str
    data: bytes
    folder: Path | None = None
    weights: ModelFile | None = None
    is_folder: bool = False

    @property
    def stem(self) -> str:
        return Path(self.name).stem or "model"

    @property
    def suffix(self) -> str:
        return Path(self.name).suffix.lower()

    def matching(self, pattern: str) -> list[ModelFile]:
        """Other files of the folder whose names match a glob, sorted; ``{stem}`` in it is this file's own stem.

        Raises InputError when so many match that reading them all to look for one would be folly.
        """
        if self.folder is None:
            return []
        name = pattern.replace("{stem}", escape(self.stem))
        found = sorted(p for p in self.folder.glob(name) if p.is_file() and p.name != self.name)
        if len(found) > MOST_MATCHES:
            raise InputError(f"{self.folder}: {len(found)} files are called {name}; name the one that is meant")
        return [read_file(p) for p in found]

    def partner(self, what: str, *patterns: str, fits: Fits = lambda file: True) -> ModelFile:
        """The second file of the model: the one the user named, else the one beside this file.

        ``patterns`` are globs, the likeliest first: ``"{stem}.bin"``, ``"params"``, ``"*.bin"``; the first that has
        matches decides.  ``fits`` refuses files that match by name alone.  ``what`` says what is missing ("its
        weights").  Raises FormatError when there is none, more than one, or the user's does not fit.
        """
        found = self.find_partner(what, *patterns, fits=fits)
        if found is not None:
            return found
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
            found = [file for file in self.matching(pattern) if fits(file)]
            if len(found) > 1:
                names = ", ".join(file.name for file in found)
                raise FormatError(f"{self.name}: {what} could be any of {names}; name one with --weights")
            if found:
                return found[0]
        return None


Fits = Callable[[ModelFile], bool]


def read(
    source: str | os.PathLike[str] | bytes,
    sha256: str | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> ModelFile:
    """The model at ``source``, its SHA-256 checked when one is given; a folder is not read.

    Raises InputError when there is nothing to read and FormatError when the checksum differs.
    """
    if isinstance(source, bytes):
        check(source, sha256, "the bytes given")
        return ModelFile("model", source)
    text = os.fspath(source)
    scheme = urlsplit(text).scheme.lower()
    if scheme in ("http", "https"):
        path = download(text, sha256, cache, progress)
        return ModelFile(Path(urlsplit(text).path).name or "model", path.read_bytes())
    if "://" in text:
        raise InputError(f"{text}: models are fetched over http and https only, not {scheme}")
    path = Path(text)
    if path.is_dir():
        if sha256:
            raise InputError(f"{path}: a folder has no SHA-256; give the model's file")
        return ModelFile(path.resolve().name, b"", path, is_folder=True)
    file = read_file(path)
    check(file.data, sha256, str(path))
    return file


def read_file(path: Path) -> ModelFile:
    """The local file at ``path``.  Raises InputError."""
    try:
        return ModelFile(path.name, path.read_bytes(), path.parent)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise InputError(f"{str(path)!r} is not the name of a file: {error}") from error


def check(data: bytes, sha256: str | None, where: str) -> None:
    """Raise FormatError naming both sums if the SHA-256 of ``data`` is not the one given."""
    _compare(hashlib.sha256(data).hexdigest() if sha256 else "", sha256, where)


def _compare(found: str, sha256: str | None, where: str) -> None:
    if sha256 and found != sha256.strip().lower():
        raise FormatError(
            f"{where}: the SHA-256 is {found}, expected {sha256.strip().lower()}; "
            "the file is damaged or is another version"
        )


def download(url: str, sha256: str | None, cache: Path | None, progress: Progress | None) -> Path:
    """The local copy of ``url``, fetched unless a good one is in the cache; never a partial file."""
    from tenon.options import default_cache

    folder = cache or default_cache() / "models"
    name = Path(urlsplit(url).path).name or "model"
    target = folder / f"{hashlib.sha256(url.encode()).hexdigest()[:16]}-{name}"
    if target.is_file() and (not sha256 or _sum_of(target) == sha256.strip().lower()):
        return target
    folder.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=".part-")
    try:
        with os.fdopen(handle, "wb") as out:
            _compare(_fetch(url, out, progress), sha256, url)
        Path(temporary).replace(target)
    finally:
        Path(temporary).unlink(missing_ok=True)
    return target


def _sum_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fetch(url: str, out: IO[bytes], progress: Progress | None) -> str:
    """Write what ``url`` holds; returns its SHA-256.  Raises InputError when the network or the server fails."""
    from http.client import HTTPException
    from urllib.request import urlopen

    total, received, digest = None, 0, hashlib.sha256()
    try:
        with urlopen(url, timeout=TIMEOUT_SECONDS) as response:
            length = response.headers.get("Content-Length", "")
            total = int(length) if length.isdigit() else None
            while chunk := response.read(CHUNK):
                out.write(chunk)
                digest.update(chunk)
                received += len(chunk)
                if progress is not None:
                    progress(received, total)
    except (OSError, HTTPException) as error:
        raise InputError(f"{url}: cannot be fetched: {error}") from error
    if total is not None and received != total:
        raise InputError(f"{url}: the connection ended after {received} of {total} bytes; try again")
    return digest.hexdigest()
