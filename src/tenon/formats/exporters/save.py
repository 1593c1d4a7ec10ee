"""A graph in a file, of the format that the file's name says."""

from __future__ import annotations

import os
from pathlib import PurePath

from tenon.atomic_write import write
from tenon.errors import InputError
from tenon.network.graph.graph import Graph
from tenon.network.ops.unroll import unrolled

ENDINGS = (".onnx", ".tflite", ".tmfile")


def save(graph: Graph, path: str | os.PathLike[str], what: str = "") -> None:
    """Write a bound graph of ONNX's own operators as ONNX, TFLite or tmfile.

    Raises InputError for another ending, and UnsupportedError listing the layers that the format cannot express;
    ``what`` names the file in errors.
    """
    ending = PurePath(path).suffix.lower()
    if ending not in ENDINGS:
        raise InputError(f"{os.fspath(path)}: give a name that ends in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}")
    write(path, content(graph, ending), what)


def content(graph: Graph, ending: str) -> bytes:
    """The file of a bound graph in the format of one of ``ENDINGS``.  Raises as ``save`` does."""
    if ending == ".tflite":
        from tenon.formats.exporters.tflite.ops import to_tflite

        return to_tflite(unrolled(graph))
    if ending == ".tmfile":
        from tenon.formats.exporters.tengine.ops import to_tmfile

        return to_tmfile(graph)
    from tenon.formats.exporters.onnx import to_onnx

    return bytes(to_onnx(graph).SerializeToString())
