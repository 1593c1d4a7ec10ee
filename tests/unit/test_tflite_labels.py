"""Class names in the archive that TFLite's metadata appends to a model."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping

import pytest

import tenon
from real import shared
from tflite_models import convolution


def with_files(files: Mapping[str, bytes], comment: bytes = b"") -> bytes:
    """A model with an archive at its end."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        for name, content in files.items():
            file.writestr(name, content)
        file.comment = comment
    return convolution() + archive.getvalue()


@pytest.mark.parametrize(
    ("data", "labels"),
    [
        (with_files({"labels.txt": "cat\ndog\nKühe\n".encode()}), ("cat", "dog", "Kühe")),
        (with_files({"labels.txt": b"cat\ndog"}, b"a comment"), ("cat", "dog")),
        (with_files({"labels.txt": b"cat", "other.txt": b"dog"}), ()),
        (with_files({"labels.txt": b"\xff\xfe"}), ()),
        (with_files({"scores.json": b"{}", "labels.txt": b"cat\ndog"}), ("cat", "dog")),
        (with_files({"labels.txt": b"cat\ndog"})[:-30], ()),
        (with_files({}), ()),
        (convolution(), ()),
        (convolution() + b"PK\x05\x06" + bytes(18), ()),
        (convolution() + b"PK\x05\x06" + b"\xff" * 18, ()),
    ],
)
def test_names_in_the_text_file(data: bytes, labels: tuple[str, ...]) -> None:
    assert tenon.load(data).labels == labels


def test_a_damaged_archive_is_no_reason_to_refuse_the_model() -> None:
    data = bytearray(with_files({"labels.txt": b"cat\ndog" * 50}))
    at = data.rindex(b"labels.txt")
    data[at - 30] ^= 0xFF
    assert tenon.load(bytes(data)).labels in ((), ("cat", "dogcat"))


def test_names_of_a_published_model() -> None:
    folder = shared("models/tflite_int8/coral_mobilenet")
    graph = tenon.load(folder / "mobilenet_v1_0.25_128_quant.tflite")
    assert len(graph.labels) == 1001
    assert graph.labels[286] == "Egyptian cat"
