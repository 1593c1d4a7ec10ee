"""ATen's operators and the functions that import them as ONNX's.

Definitions: the core ATen operators of the PyTorch documentation, and those above them that keep their shape here.
"""

from __future__ import annotations

from collections.abc import Callable

from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import Outputs
from tenon.formats.importers.pytorch import arithmetic as a
from tenon.formats.importers.pytorch import composites as c
from tenon.formats.importers.pytorch import data_movement as m
from tenon.formats.importers.pytorch import layers as n
from tenon.formats.importers.pytorch.formulas import FORMULAS
from tenon.formats.importers.pytorch.node import PytorchNode, kept, simple
from tenon.network.graph.graph import Value

Conversion = Callable[[PytorchNode], Outputs]
"""The ONNX operators for one operator of PyTorch."""


def _same(node: PytorchNode) -> Value:
    return node.x


def _dropout(node: PytorchNode) -> Outputs:
    if node.flag("train") and node.number("p"):
        raise RefusedError("it drops elements", "call eval() on the module before exporting")
    return [node.x] if node.name == "native_dropout" else node.x


def _all(function: Conversion, names: str) -> dict[str, Conversion]:
    return dict.fromkeys(names.split(), function)


LAYERS: dict[str, Conversion] = {
    **_all(n.convolution, "convolution conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d"),
    "linear": n.linear,
    "addmm": n.addmm,
    "baddbmm": n.affine_product("batch1", "batch2"),
    "addmv": n.affine_product("mat", "vec"),
    **_all(n.product, "mm bmm matmul mv dot"),
    "embedding": n.embedding,
    **_all(n.batch_norm, "batch_norm _native_batch_norm_legit_no_training"),
    "rms_norm": n.rms_norm,
    **_all(n.layer_norm, "layer_norm native_layer_norm"),
    **_all(n.groups_norm, "group_norm native_group_norm"),
    "instance_norm": n.instance_norm,
    "scaled_dot_product_attention": n.attention,
    **_all(n.max_pool, "max_pool1d max_pool2d max_pool3d max_pool2d_with_indices max_pool3d_with_indices"),
    **_all(n.average_pool, "avg_pool1d avg_pool2d avg_pool3d"),
    **_all(
        n.adaptive,
        "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d "
        "_adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d",
    ),
    **_all(n.upsample("nearest"), "upsample_nearest1d upsample_nearest2d upsample_nearest3d"),
    **_all(n.upsample("nearest", "round_prefer_ceil"), "_upsample_nearest_exact1d _upsample_nearest_exact2d"),
    **_all(n.upsample("linear"), "upsample_linear1d upsample_bilinear2d upsample_trilinear3d _upsample_bilinear2d_aa"),
    **_all(n.upsample("cubic"), "upsample_bicubic2d _upsample_bicubic2d_aa"),
    **_all(n.grid_sample, "grid_sampler grid_sampler_2d grid_sampler_3d"),
    "col2im": n.col2im,
    "pixel_shuffle": lambda node: node.add(
        "DepthToSpace", node.x, blocksize=node.integer("upscale_factor"), mode="CRD"
    ),
    "pixel_unshuffle": n.pixel_unshuffle,
    "channel_shuffle": lambda node: node.channel_shuffle(node.x, node.integer("groups")),
    "lstm": n.recurrent("LSTM"),
    "gru": n.recurrent("GRU"),
    "rnn_tanh": n.recurrent("RNN"),
    "rnn_relu": n.recurrent("RNN", "Relu"),
}

ARITHMETIC: dict[str, Conversion] = {
    **{
        name: simple(type)
        for name, type in (
            ("relu", "Relu"),
            ("sigmoid", "Sigmoid"),
            ("tanh", "Tanh"),
            ("silu", "Swish"),
            ("mish", "Mish"),
            ("hardswish", "HardSwish"),
            ("exp", "Exp"),
            ("log", "Log"),
            ("sqrt", "Sqrt"),
            ("abs", "Abs"),
            ("neg", "Neg"),
            ("erf", "Erf"),
            ("sin", "Sin"),
            ("cos", "Cos"),
            ("tan", "Tan"),
            ("asin", "Asin"),
            ("acos", "Acos"),
            ("atan", "Atan"),
            ("sinh", "Sinh"),
            ("cosh", "Cosh"),
            ("asinh", "Asinh"),
            ("acosh", "Acosh"),
            ("atanh", "Atanh"),
            ("reciprocal", "Reciprocal"),
            ("softsign", "Softsign"),
            ("sign", "Sign"),
            ("selu", "Selu"),
        )
    },
    "floor": a.whole("Floor"),
    "ceil": a.whole("Ceil"),
    "trunc": a.whole(""),
    "round": a.rounded,
    "isnan": kept("IsNaN"),
    "isinf": kept("IsInf"),
    "logical_not": a.logical_not,
    "log2": a.logarithm(2),
    "log10": a.logarithm(10),
    "log1p": a.log1p,
    "expm1": a.expm1,
    "softplus": a.softplus,
    "rsqrt": lambda node: node.chain(node.cast(node.x), "Sqrt", "Reciprocal"),
    "hardsigmoid": simple("HardSigmoid", alpha=1 / 6, beta=0.5),
    "relu6": lambda node: node.add("Clip", node.x, node.full(0), node.full(6)),
    "gelu": lambda node: node.add("Gelu", node.x, approximate=str(node.get("approximate", "none"))),
    "leaky_relu": lambda node: node.add("LeakyRelu", node.x, alpha=node.number("negative_slope", 0.01)),
    "elu": lambda node: node.add("Elu", node.x, alpha=node.number("alpha", 1)),
    "celu": lambda node: node.add("Celu", node.x, alpha=node.number("alpha", 1)),
    **_all(a.prelu, "prelu _prelu_kernel"),
    **_all(a.clamp, "clamp hardtanh clamp_min clamp_max"),
    "add": a.binary("Add"),
    "sub": a.binary("Sub"),
    "mul": a.binary("Mul"),
    "maximum": a.binary("Max"),
    "minimum": a.binary("Min"),
    "rsub": a.reverse_subtraction,
    **_all(a.division, "div floor_divide"),
    "fmod": lambda node: node.add("Mod", node.operand("self"), node.operand("other"), fmod=1),
    "remainder": a.remainder,
    "pow": a.power,
    "atan2": a.atan2,
    "eq": a.compare("Equal"),
    "ne": a.compare("Equal", True),
    "gt": a.compare("Greater"),
    "ge": a.compare("GreaterOrEqual"),
    "lt": a.compare("Less"),
    "le": a.compare("LessOrEqual"),
    "logical_and": a.logical("And"),
    "logical_or": a.logical("Or"),
    "logical_xor": a.logical("Xor"),
    "bitwise_not": a.bitwise("BitwiseNot", "Not"),
    "bitwise_and": a.bitwise("BitwiseAnd", "And"),
    "bitwise_or": a.bitwise("BitwiseOr", "Or"),
    "bitwise_xor": a.bitwise("BitwiseXor", "Xor"),
    "where": a.where,
    "masked_fill": a.masked_fill,
    "mean": a.reduce("ReduceMean"),
    "sum": a.reduce("ReduceSum"),
    "amax": a.reduce("ReduceMax"),
    "amin": a.reduce("ReduceMin"),
    "prod": a.reduce("ReduceProd"),
    "logsumexp": a.reduce("ReduceLogSumExp"),
    "max": a.extreme("ReduceMax", "ArgMax"),
    "min": a.extreme("ReduceMin", "ArgMin"),
    "any": a.any_of("ReduceMax"),
    "all": a.any_of("ReduceMin"),
    "var": a.variance,
    "var_mean": a.variance_and_mean,
    "exp2": a.power_of_two,
    "hypot": a.hypotenuse,
    "erfc": lambda node: node.add("Sub", node.full(1), node.add("Erf", node.cast(node.x))),
    **_all(a.ranked, "kthvalue median"),
    "linalg_vector_norm": a.vector_norm,
    **_all(a.distances, "cdist _cdist_forward _euclidean_dist"),
    **_all(a.softmax("Softmax"), "softmax _softmax"),
    **_all(a.softmax("LogSoftmax"), "log_softmax _log_softmax"),
    "argmax": a.arg("ArgMax"),
    "argmin": a.arg("ArgMin"),
    "cumsum": a.running("CumSum"),
    "cumprod": a.running("CumProd"),
    **_all(a.sort, "sort topk"),
    **_all(
        a.filled,
        "full full_like fill zeros zeros_like ones ones_like empty empty_like scalar_tensor "
        "new_full new_zeros new_ones new_empty",
    ),
    "arange": a.arange,
    "eye": a.eye,
    **_all(a.quantize, "quantized_decomposed.quantize_per_tensor quantized_decomposed.quantize_per_channel"),
    **_all(a.dequantize, "quantized_decomposed.dequantize_per_tensor quantized_decomposed.dequantize_per_channel"),
}

MOVEMENT: dict[str, Conversion] = {
    **_all(m.view, "view _unsafe_view reshape flatten unflatten unsqueeze squeeze"),
    "permute": m.permute,
    **_all(m.transpose, "transpose t"),
    "slice": m.slices,
    "select": m.select,
    "unbind": m.unbind,
    **_all(m.split, "split split_with_sizes chunk"),
    "cat": m.concat,
    "stack": m.stack,
    "expand": m.expand,
    "copy": m.copied,
    "repeat": m.repeat,
    "flip": m.flip,
    "roll": m.roll,
    **_all(
        m.pad,
        "pad constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d "
        "replication_pad2d replication_pad3d",
    ),
    "triu": m.triangle(1),
    "tril": m.triangle(0),
    "as_strided": m.strided,
    "diagonal": m.diagonal,
    "unfold": m.unfold,
    "index_select": m.index_select,
    "gather": m.gather,
    **_all(m.scatter, "scatter scatter_add scatter_reduce"),
    "slice_scatter": m.slice_scatter,
    "select_scatter": m.select_scatter,
    "index": m.index,
    "index_put": m.index_put,
    **_all(lambda node: node.cast(node.x), "_to_copy to type_as _to_dtype"),
    **_all(_same, "clone alias detach contiguous lift_fresh_copy"),
    **_all(_dropout, "dropout feature_dropout alpha_dropout native_dropout"),
}

COMPOSITES: dict[str, Conversion] = {
    "einsum": c.einsum,
    "tensordot": c.tensordot,
    **_all(c.outer, "outer ger"),
    "lstm_cell": c.cell("LSTM"),
    "gru_cell": c.cell("GRU"),
    "rnn_tanh_cell": c.cell("RNN"),
    "rnn_relu_cell": c.cell("RNN", "Relu"),
    "im2col": c.im2col,
    "take": c.take,
    "take_along_dim": c.take_along_dim,
    **_all(c.index_write, "index_add index_copy index_fill"),
    **FORMULAS,
}

OPERATORS = {**LAYERS, **ARITHMETIC, **MOVEMENT, **COMPOSITES}
