"""The result of onnxruntime for a graph."""

from __future__ import annotations

from collections.abc import Mapping

from tenon.errors import TenonError
from tenon.formats.exporters.onnx import to_onnx
from tenon.network.graph.graph import Array, Graph, Value


class Refused(Exception):  # noqa: N818  it is a verdict
    """onnxruntime cannot run the graph; the message has the reason."""


def model(graph: Graph) -> bytes:
    """The graph as an ONNX file.  Raises Refused if ONNX cannot express it."""
    try:
        return bytes(to_onnx(graph).SerializeToString())
    except TenonError as error:
        raise Refused(f"not ONNX: {str(error).splitlines()[-1]}") from None


def answer(graph: Graph, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs by name.  Raises Refused."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    content = model(graph)
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        results = session.run(None, {i.name: feeds[i.name] for i in session.get_inputs()})
    except Exception as error:
        raise Refused(str(error)) from None
    return {value.name: _typed(array, value) for value, array in zip(graph.outputs, results, strict=True)}


def _typed(array: Array, value: Value) -> Array:
    """Types that NumPy lacks are returned as integers with their bits."""
    dtype = value.type.dtype
    return array.view(dtype.numpy) if dtype.carrier is not dtype and array.dtype == dtype.carrier.numpy else array
