"""auto_pad = SAME where strides are larger than windows, so that elements lie between the windows.

ONNX's formula gives negative padding then, and does not say where it leaves elements out.  This follows onnxruntime,
whose convolutions leave out one fewer at the front than its poolings.  Where onnxruntime refuses, as for MaxPool, the
first window starts at the first element, as in TensorFlow.
"""

from __future__ import annotations

from tenon.formats.decompositions.onnx.node import OnnxNode

_WEIGHTS = {"Conv": 1, "ConvInteger": 1, "QLinearConv": 3}
"""The input that holds a convolution's weights."""

_POOLS = {"AveragePool": 19, "LpPool": 1}
"""Poolings, and from which opset on onnxruntime takes them."""


def crop_between_windows(node: OnnxNode) -> None:
    """Replace auto_pad by a slice of the input and explicit padding where elements at the front are left out.

    Raises UntypedError while a shape is not known.
    """
    auto = str(node.attributes.get("auto_pad", "NOTSET"))
    crops = node.type in _WEIGHTS or (node.type in _POOLS and node.opset >= _POOLS[node.type])
    if not auto.startswith("SAME") or not crops:
        return
    kernel, strides, spans = _windows(node)
    if all(s <= span for s, span in zip(strides, spans, strict=False)):
        return
    if node.builder.changes(node.input(0)):  # the operator's own rule says what it takes
        return
    sizes = node.dims_of(0)[2:]
    if {len(strides), len(spans), len(sizes)} != {len(kernel)} or min(strides) < 1:
        return  # reported by the operator
    spare = int(node.type in _WEIGHTS)
    pairs = [_pads(auto, *numbers, spare) for numbers in zip(sizes, spans, strides, strict=True)]
    starts = [max(0, -before) for before, _ in pairs]
    if any(starts):
        bounds = [node.int_constant("starts", starts), node.int_constant("ends", sizes)]
        axes = node.int_constant("axes", range(2, 2 + len(sizes)))
        node.set_input(0, node.add("Slice", node.input(0), *bounds, axes))
        pads = [max(0, pair[i]) for i in (0, 1) for pair in pairs]
        node.attributes.update(auto_pad="NOTSET", pads=pads)


def _windows(node: OnnxNode) -> tuple[tuple[int, ...], tuple[int, ...], list[int]]:
    """The kernel, the strides, and the extents of windows with their dilations."""
    given = node.attributes.get("kernel_shape")
    kernel = tuple(given) if given else node.dims_of(_WEIGHTS.get(node.type, 0))[2:]
    ones = (1,) * len(kernel)
    dilations = node.attributes.get("dilations") or ones
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=False)]
    return kernel, tuple(node.attributes.get("strides") or ones), spans


def _pads(auto: str, size: int, span: int, stride: int, spare: int) -> tuple[int, int]:
    """Elements before and after an axis; negative ones are left out, ``spare`` fewer of them in all."""
    total = (-(-size // stride) - 1) * stride + span - size
    total = total if total >= 0 else min(0, total + spare)
    before = int((total + (auto == "SAME_LOWER")) / 2)  # rounded towards zero
    return before, total - before
