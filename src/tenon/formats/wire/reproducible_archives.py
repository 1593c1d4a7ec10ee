"""Archives of files with the same bytes whenever they are written."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from collections.abc import Mapping


def zip_archive(files: Mapping[str, bytes]) -> bytes:
    """Files by their paths, in order of these, dated 1980-01-01."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in sorted(files.items()):
            entry = zipfile.ZipInfo(path)
            entry.external_attr, entry.compress_type = 0o644 << 16, zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    return stream.getvalue()


def tar_archive(files: Mapping[str, bytes]) -> bytes:
    """The same as .tar.gz, with times and owners of 0."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path, content in sorted(files.items()):
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    return gzip.compress(stream.getvalue(), mtime=0)
