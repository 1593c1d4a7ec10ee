"""Caches of decoders in fewer bits: new keys and values are rounded where they are written, and read as they lie.

Caches of f16 and bf16 hold the nearest numbers.  Of bytes, each key and each value of a head has a scale, its largest
magnitude over 127, in a cache of its own: ``RowQuantize``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tenon.errors import InputError
from tenon.network.graph.graph import Graph, Node, Value
from tenon.network.graph.types import F32, DType, TensorType
from tenon.network.graph.writer import Names
from tenon.network.ops.append import Append
from tenon.network.ops.cached_attention import CachedAttention
from tenon.network.ops.convert import Cast
from tenon.network.ops.row_quantize import RowQuantize
from tenon.options import CacheType

TYPES: Mapping[str, DType] = {"fp16": DType.F16, "bf16": DType.BF16, "int8": DType.I8}
SCALE = ".scale"
"""The ending of the names of caches of scales."""


def with_cache_type(graph: Graph, cache_type: CacheType) -> Graph:
    """The graph, or a copy whose caches are stored so.  Raises InputError for one without caches that attention reads
    in one operator."""
    if cache_type == "fp32":
        return graph
    new, changed = graph.copy(), False
    for node in new:
        if isinstance(node.op, CachedAttention) and not any(node.inputs[4:6]):
            writers = [_writer(new, node, value) for value in node.inputs[1:3]]
            if None not in writers:
                scales = [_narrowed(new, writer, TYPES[cache_type]) for writer in writers if writer is not None]
                if None not in scales:
                    new.rewire(node, (*node.inputs[:4], *scales, *node.inputs[6:]))
                new.infer(node)
                changed = True
    if not changed:
        raise InputError(
            f"{graph.source or graph.name}: it has no cache of keys and values that one operator reads: leave out "
            f"cache_type={cache_type} (--cache-type), which decoders of GGUF and safetensors take"
        )
    return new


def _writer(graph: Graph, reader: Node, present: Value | None) -> Node | None:
    """The node that writes rows into a cache of f32 that nothing but attention reads."""
    node = present.producer if present is not None else None
    if node is None or present is None or not isinstance(node.op, Append) or present.type.dtype is not F32:
        return None
    cache = node.inputs[0]
    own = cache in graph.inputs and cache is not None and cache.uses == [node] and present.uses == [reader]
    return node if own and graph.is_output(present) else None


def _narrowed(graph: Graph, writer: Node, dtype: DType) -> Value | None:
    """Let a node write rows of ``dtype``; the scales of all rows if they have any."""
    cache, rows, *places = writer.inputs
    (present,) = writer.outputs
    assert cache is not None
    names = Names(graph)
    kinds = (present.name, "scale") if dtype is DType.I8 else (present.name,)
    op = RowQuantize() if dtype is DType.I8 else Cast(dtype.value)
    rounded = graph.add(op, [rows], [names.fresh(f"{n}_rows") for n in kinds], writer.origin, before=writer).outputs
    cache.type = replace(cache.type, dtype=dtype)
    graph.rewire(writer, (cache, rounded[0], *places))
    graph.infer(writer)
    if dtype is not DType.I8:
        return None
    scales = graph.add_input(f"{cache.name}{SCALE}", TensorType(F32, (*cache.type.dims[:-1], 1)))
    inputs = (scales, rounded[1], *places)
    (after,) = graph.add(writer.op, inputs, [f"{present.name}{SCALE}"], writer.origin, before=writer).outputs
    graph.outputs.append(after)
    for old, value in ((cache, scales), (present, after)):
        if old.name in graph.extents:
            graph.extents[value.name] = graph.extents[old.name]
    return after
