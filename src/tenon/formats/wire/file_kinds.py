"""Types of files, recognised by their first bytes: for messages about files that are not what they should be."""

from __future__ import annotations

from typing import NamedTuple


class FileKind(NamedTuple):
    """The kind of a file ("a JPEG image"), and what to do where a model is wanted."""

    what: str
    remedy: str = ""


_PICTURE = "give it behind the model, as the input"
_PROGRAM = "give the model that it was made from"
_DOWNLOAD = "download the file itself, not the page that shows it"

_BEGINNINGS: tuple[tuple[int, bytes, FileKind], ...] = (
    (0, b"\xff\xd8\xff", FileKind("a JPEG image", _PICTURE)),
    (0, b"\x89PNG\r\n", FileKind("a PNG image", _PICTURE)),
    (0, b"GIF8", FileKind("a GIF image", _PICTURE)),
    (8, b"WEBP", FileKind("a WebP image", _PICTURE)),
    (8, b"WAVE", FileKind("a sound file (WAV)")),
    (0, b"%PDF", FileKind("a PDF document")),
    (0, b"\x7fELF", FileKind("a program or library (ELF)", _PROGRAM)),
    (0, b"\xcf\xfa\xed\xfe", FileKind("a program or library (Mach-O)", _PROGRAM)),
    (0, b"\x93NUMPY", FileKind("an array of NumPy", "give it with --input NAME=FILE")),
    (0, b"version https://git-lfs", FileKind("a pointer of Git LFS", "fetch the file with 'git lfs pull'")),
    (0, b"\x1f\x8b", FileKind("compressed by gzip", "unpack it first")),
    (0, b"BZh", FileKind("compressed by bzip2", "unpack it first")),
    (0, b"\xfd7zXZ", FileKind("compressed by xz", "unpack it first")),
    (0, b"7z\xbc\xaf", FileKind("a 7-Zip archive", "unpack it first")),
    (0, b"Rar!", FileKind("a RAR archive", "unpack it first")),
    (0, b"SQLite format 3", FileKind("an SQLite database")),
)
"""Files that are no models, of any format: position and bytes."""

_MODELS: tuple[tuple[int, bytes, FileKind], ...] = (
    (4, b"TFL3", FileKind("a TFLite model")),
    (0, b"GGUF", FileKind("a GGUF model")),
    (4, b"ORTM", FileKind("a model of ONNX Runtime (.ort)")),
    (0, b"\x89HDF\r\n", FileKind("an HDF5 file")),
    (0, b"PK\x03\x04", FileKind("a ZIP archive")),
)


def no_model(head: bytes) -> FileKind | None:
    """The kind of a file with these first bytes, if models of no format begin so."""
    if not head:
        return FileKind("empty", "copy or download it again")
    for place, beginning, kind in _BEGINNINGS:
        if head.startswith(beginning, place):
            return kind
    if head.lstrip()[:15].lower().startswith((b"<!doctype html", b"<html")):
        return FileKind("a web page (HTML)", _DOWNLOAD)
    return None


def told_kind(head: bytes) -> str:
    """The kind of a file with these first bytes, in words: "it is a JPEG image"; "" where they say nothing."""
    model = next((kind for place, beginning, kind in _MODELS if head.startswith(beginning, place)), None)
    if kind := no_model(head) or model:
        return f"it is {kind.what}"
    if head[:1] == b"\x08" and len(head) > 2 and head[1] < 32 and head[2] in (0x12, 0x3A, 0x42):
        return "it is an ONNX model"
    return "it is text" if _is_text(head) else ""


def _is_text(head: bytes) -> bool:
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.end < len(head) - 4:  # else a character that the end cuts
            return False
        text = head[: error.start].decode("utf-8")
    return all(character.isprintable() or character in "\t\r\n\f" for character in text)
