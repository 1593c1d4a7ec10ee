"""The entry points of language models: of a decoder, one token at a time, and a piece of a text at once, over the same
caches; of an encoder, a text."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tenon.errors import InputError
from tenon.network.graph.bind import GivenShapes
from tenon.network.graph.graph import Graph
from tenon.network.graph.size_range import Size, read_shapes
from tenon.network.graph.types import LARGEST_BUFFER

CONTEXT, CHUNK = 2048, 64
"""Tokens that the caches have room for, and tokens of a run at most, where nothing else is said."""
LONGEST_TEXT = 512
"""Tokens of a text that is embedded, where nothing else is said: memory of attention grows with their square."""
_FEW_THREADS = 8


def is_open_decoder(graph: Graph) -> bool:
    """Whether a graph predicts tokens, and the user has not bound its dimensions yet."""
    decodes = graph.text is not None and graph.text.kind == "decoder"
    return decodes and (graph.default_sizes or not all(value.type.bound for value in graph.inputs))


def is_open_text_model(graph: Graph) -> bool:
    """Whether ``entry_points`` binds the dimensions of a graph where the user has not."""
    return is_open_decoder(graph) or bool(encoder_shapes(graph))


def tokens_of_run(threads: int, *, threaded: bool, widened: bool = False) -> int:
    """The most tokens of a run of a bundle for so many threads; ``threaded``: its target has threads at all;
    ``widened``: products are of 16 bits, to which unpacking weights takes longer.

    Weights are read and unpacked once for the tokens of a run, which threads share; where many do, a short run is
    over before they have gained what waiting for each other costs.
    """
    tokens = CHUNK if not threaded else 2 * CHUNK if threads <= _FEW_THREADS else 4 * CHUNK
    return 2 * tokens if widened else tokens


def entry_points(
    graph: Graph, shapes: Sequence[GivenShapes | None], context: int | None, chunk: int, sequences: int
) -> Sequence[GivenShapes]:
    """The shapes of the entry points of a language model: those of ``decoder_shapes`` or ``encoder_shapes`` if its
    dimensions are open, else the given ones and, of a decoder, a token alone.  Empty where no entry point is added to
    those given: there are several, or it is for a fixed number of tokens.

    Raises InputError where ``context`` or ``sequences`` are asked of a network without caches.
    """
    text = graph.text
    if text is None or (text.kind == "encoder" and "tokens" in text.ports):  # other encoders are parts of decoders
        name = graph.source or graph.name
        if context is not None:
            longer = "" if text is None else ", and give the length of its texts with --shape"
            raise InputError(f"{name}: it has no caches: leave out context={context} (--context){longer}")
        if sequences > 1:
            raise InputError(f"{name}: it has no caches: leave out sequences={sequences} (--sequences)")
    if not any(shapes):
        return decoder_shapes(graph, context, chunk, sequences) if is_open_decoder(graph) else encoder_shapes(graph)
    given = shapes[0]
    alone = one_token(graph, given) if given and len(shapes) == 1 and sequences == 1 else {}
    return (given, alone) if given and alone else ()


def check_writes(graph: Graph, grammar: str) -> None:
    """Raises InputError where texts are to follow a ``grammar``, and the network writes none."""
    if grammar and (graph.text is None or graph.text.kind == "encoder"):
        raise InputError(f"{graph.source or graph.name}: it writes no text: leave out the grammar (--grammar)")


def one_token(graph: Graph, shapes: GivenShapes) -> GivenShapes:
    """The shapes of a run of one token over the caches of a decoder with these shapes; empty unless its runs have a
    range of tokens from 1 on, in front of which the caches have a range of tokens."""
    text = graph.text
    if text is None or text.kind != "decoder":
        return {}
    length = dict(graph.extents.get(text.ports["tokens"], ())).get(1, "")
    past = text.ports.get("past") or next(
        (size for name, axes in graph.extents.items() if name.startswith("past") for _, size in axes if size != length),
        "",
    )
    if length not in graph.sizes or past not in graph.sizes:
        return {}
    tokens, cached = graph.sizes[length], graph.sizes[past]
    if tokens.least != 1 or tokens.most == 1 or tokens.step != 1 or cached.step != 1:
        return {}
    own = {length: Size(length, 1, 1), past: Size(past, cached.least, cached.most + tokens.most - 1)}

    def bound(dimension: int | Size) -> int | Size:
        return own.get(dimension.name, dimension) if isinstance(dimension, Size) else dimension

    read = read_shapes(shapes)
    stated = {d.name for given in read.values() for d in _dimensions_of(given) if isinstance(d, Size)}
    return {
        **{
            name: bound(given) if isinstance(given, int | Size) else tuple(bound(d) for d in given)
            for name, given in read.items()
        },
        **{name: size for name, size in own.items() if name not in stated},
    }


def _dimensions_of(given: int | Size | Sequence[int | Size]) -> Sequence[int | Size]:
    return (given,) if isinstance(given, int | Size) else given


def encoder_shapes(graph: Graph) -> list[GivenShapes]:
    """One text of any length that the model was trained for, up to ``LONGEST_TEXT`` tokens, for an encoder whose inputs
    have open dimensions for texts and tokens and no others; else empty."""
    text = graph.text
    if text is None or text.kind != "encoder" or "tokens" not in text.ports:
        return []
    open_dims = {dim for value in graph.inputs for dim in value.type.shape if isinstance(dim, str)}
    shape = next((value.type.shape for value in graph.inputs if value.name == text.ports["tokens"]), ())
    length = shape[-1] if len(shape) == 2 else 0
    if not isinstance(length, str) or not all(dim.isidentifier() for dim in open_dims) or open_dims - {*shape}:
        return []
    most = min(text.context or LONGEST_TEXT, LONGEST_TEXT)
    return [{**dict.fromkeys(open_dims, 1), length: f"1..{most}"}]


def decoder_shapes(
    graph: Graph, context: int | None = None, chunk: int | None = None, sequences: int = 1
) -> list[dict[str, str | int]]:
    """The shapes of both entry points, for a graph whose dimensions are not bound yet: of a token first.

    ``context`` is the room of the caches; None: that of the model, at most ``CONTEXT``.  With several ``sequences`` the
    first one is of a token of each.  Raises InputError for a graph that has no dimensions for tokens and caches, or has
    one sequence only, and for too small numbers.
    """
    text = graph.text
    if text is None or text.kind != "decoder":
        raise InputError(f"{graph.source or graph.name}: it is no language model that predicts tokens")
    room = context or min(text.context or CONTEXT, CONTEXT)
    together = text.image.together if text.image is not None else 0
    # beside the rows of an image, which one run takes, there is a token of each other sequence
    longest = max(chunk or CHUNK, together + sequences - 1 if together else 0)
    most = min(longest, max(room // 2, 1))
    if room < 2 or most < 1:
        raise InputError(f"context={room}: the caches need room for two tokens at least")
    _check_addressable(graph, room)
    names = _dimensions(graph, text.ports["tokens"])
    if sequences > 1:
        if not graph.default_sizes:
            raise InputError(
                f"{graph.source or graph.name}: its caches have one sequence: leave out sequences={sequences} "
                "(--sequences), which decoders of GGUF and safetensors take"
            )
        counts: dict[str, str | int] = {"sequences": sequences, "answers": f"1..{sequences}"}
        lengths = dict.fromkeys((min(sequences, room), max(most, min(sequences, room))))
        return [{**counts, names.length: f"1..{n}", names.past: f"0..{room - n}"} for n in lengths]
    batch = {names.batch: 1} if names.batch else {}
    masks = dict.fromkeys(names.masks, f"1..{room}")
    return [{**batch, **masks, names.length: f"1..{n}", names.past: f"0..{room - n}"} for n in (1, most)]


def _check_addressable(graph: Graph, room: int) -> None:
    """Raise InputError where a cache with room for so many tokens is too large to be addressed."""
    token = 1  # bytes of a token in the largest cache, whose last axis but one is that of tokens
    for cache in (value.type for value in graph.inputs if value.name.startswith("past") and value.type.rank > 1):
        others = (*cache.shape[:-2], cache.shape[-1])
        token = max(token, cache.dtype.bytes * prod(dim for dim in others if isinstance(dim, int)))
    if room * token >= LARGEST_BUFFER:
        raise InputError(
            f"context={room}: a cache would take {room * token} bytes, and has less than {LARGEST_BUFFER}: "
            f"at most context={(LARGEST_BUFFER - 1) // token} (--context)"
        )


class _Dimensions:
    """The names of the dimensions of a decoder's inputs."""

    def __init__(self, batch: str, length: str, past: str, masks: list[str]) -> None:
        self.batch, self.length, self.past, self.masks = batch, length, past, masks


def _dimensions(graph: Graph, tokens: str) -> _Dimensions:
    if graph.default_sizes and graph.text is not None:
        return _Dimensions("", graph.text.ports["length"], graph.text.ports["past"], [])
    shapes = {value.name: value.type.shape for value in graph.inputs}
    first, *rest = shapes[tokens]
    batch = first if isinstance(first, str) else ""
    caches = [shape for name, shape in shapes.items() if name.startswith("past")]
    own = {dim for shape in caches for dim in shape if isinstance(dim, str)} - {batch}
    if len(rest) != 1 or not isinstance(rest[0], str) or len(own) != 1:
        raise InputError(
            f"{graph.source or graph.name}: its tokens or caches have no dimension of their own name: give the shapes "
            "of both entry points (--shape)"
        )
    length, past = rest[0], own.pop()
    others = {dim for shape in shapes.values() for dim in shape if isinstance(dim, str)} - {batch, length, past}
    return _Dimensions(batch, length, past, sorted(dim for dim in others if dim.isidentifier()))
