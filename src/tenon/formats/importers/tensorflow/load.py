"""TensorFlow graphs, frozen or in a SavedModel, without TensorFlow.

The graph is evaluated on demand from its outputs.  Loops whose number of steps is known when compiling are unrolled:
their counters fold to constants, and tensor arrays are lists that exist while importing only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tenon.errors import FormatError
from tenon.formats.decompositions.channels_last import ChannelsLast
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.tensorflow.importer import TensorflowImporter, TensorflowOperators
from tenon.formats.importers.tensorflow.schema import SCHEMA
from tenon.formats.model_files.model_file import ModelFile
from tenon.formats.wire.protobuf import DamagedError, raw_fields
from tenon.network.graph.bind import Shapes
from tenon.network.graph.graph import Graph

_OP_NAME = re.compile(rb"[A-Za-z_][A-Za-z0-9_>]*\Z")


def recognise(file: ModelFile) -> bool:
    """A GraphDef, whose first field is a node, or a SavedModel."""
    return _is_saved_model(file) or _is_graph(file.data)


def _is_saved_model(file: ModelFile) -> bool:
    return file.name == "saved_model.pb" and file.data[:1] in (b"\x08", b"\x12")


def _is_graph(data: bytes) -> bool:
    try:
        for number, wire, node in raw_fields(memoryview(data)):
            if (number, wire) in ((3, 0), (4, 2)):
                continue
            if (number, wire) != (1, 2) or isinstance(node, int):
                return False
            inner = {n: bytes(v) for n, w, v in raw_fields(node) if w == 2 and n in (1, 2) and not isinstance(v, int)}
            return len(inner) == 2 and _OP_NAME.match(inner[2]) is not None
    except DamagedError:
        pass
    return False


def load(file: ModelFile, shapes: Shapes, inputs: Sequence[str] | None, outputs: Sequence[str] | None) -> Graph:
    """The graph of a TensorFlow model.  See ``importers.load`` for errors."""
    from tenon.formats.importers.tensorflow.conditionals import predicate
    from tenon.formats.importers.tensorflow.loops import CONTROL, entries
    from tenon.formats.importers.tensorflow.ops import OPERATORS

    inputs, outputs = ([name.removesuffix(":0") for name in names] if names else None for names in (inputs, outputs))
    shapes = {name.removesuffix(":0"): value for name, value in shapes.items()}
    try:
        if _is_saved_model(file):
            from tenon.formats.importers.tensorflow.saved_model import read

            graph, wanted, variables = read(file)
        else:
            graph = SCHEMA.parse("GraphDef", file.data, file.name)
            wanted = {}
            variables = {}
        builder = ChannelsLast(file, "", shapes, inputs, outputs)
        operators = TensorflowOperators(OPERATORS, CONTROL, entries, predicate)
        return TensorflowImporter(builder, graph, variables, operators).run(inputs or (), wanted)
    except RefusedError as error:
        raise FormatError(f"{file.name}: {error.what}") from error
    except RecursionError as error:
        raise FormatError(f"{file.name}: functions or loops are nested too deep") from error
