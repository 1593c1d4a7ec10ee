"""Writes single MXNet symbols with inputs and outputs; run by a Python with MXNet 1.9 (NumPy 1.23), not by the tests.

    python mxnet_symbols.py FOLDER      # FOLDER/NAME/{net-symbol.json,net-0000.params,io.npz}

A row is an operator (its path below ``mxnet.sym``), its options in several settings, and the shapes of its inputs or
the inputs themselves.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

RNG = np.random.RandomState(3)
Row = tuple[str, Sequence[Mapping[str, Any]], Mapping[str, Any]]

PLAIN: Sequence[Mapping[str, Any]] = ({},)
IMAGE = {"data": (2, 6, 9, 8)}
CUBE = {"data": (2, 3, 4)}
PAIR = {"data": (2, 3, 4), "y": (1, 3, 1)}
WHOLE = RNG.randint(0, 4, (2, 3)).astype(np.float32)
LENGTHS = np.array([2, 4, 1], np.float32)
REGIONS = np.array([[0, 2, 2, 12, 10], [0, 0, 4, 6, 14], [0, 4, 0, 14, 14]], np.float32)
CORNERS = np.sort(RNG.uniform(0, 1, (1, 12, 2, 2)), 2).reshape(1, 12, 4).astype(np.float32)
FOUND = np.concatenate([RNG.randint(0, 2, (1, 12, 1)), RNG.uniform(0, 1, (1, 12, 1)), CORNERS], 2).astype(np.float32)
REDUCED: Sequence[Mapping[str, Any]] = (
    {},
    {"axis": 1},
    {"axis": (0, 2), "keepdims": True},
    {"axis": 1, "exclude": True},
)
PLACES = np.array([[0, 3, 1], [2, 4, 0]], np.float32)
MAP = {"data": (1, 3, 6, 7)}


def between(low: float, high: float, *shape: int) -> np.ndarray[Any, Any]:
    return RNG.uniform(low, high, shape).astype(np.float32)


LAYERS: list[Row] = [
    (
        "Convolution",
        [
            {"kernel": (3, 3), "num_filter": 4},
            {"kernel": (1, 1), "num_filter": 3},
            {
                "kernel": (3, 3),
                "num_filter": 6,
                "stride": (2, 2),
                "pad": (1, 1),
                "dilate": (2, 2),
                "num_group": 2,
                "no_bias": True,
            },
        ],
        IMAGE,
    ),
    ("Convolution", [{"kernel": (3,), "num_filter": 4, "pad": (1,)}], {"data": (2, 3, 9)}),
    (
        "Deconvolution",
        [
            {"kernel": (3, 3), "num_filter": 4, "stride": (2, 2), "pad": (1, 1), "adj": (1, 1)},
            {"kernel": (4, 4), "num_filter": 6, "stride": (2, 2), "pad": (1, 1), "num_group": 2, "no_bias": True},
            {"kernel": (3, 3), "num_filter": 4, "stride": (2, 2), "target_shape": (18, 16)},
        ],
        IMAGE,
    ),
    ("FullyConnected", [{"num_hidden": 5}, {"num_hidden": 5, "flatten": False, "no_bias": True}], IMAGE),
    ("BatchNorm", [{"fix_gamma": False, "eps": 1e-3}, {"fix_gamma": True}, {"fix_gamma": False, "axis": 3}], IMAGE),
    (
        "Pooling",
        [
            {"kernel": (3, 3), "pool_type": "max", "stride": (2, 2)},
            {"kernel": (3, 3), "pool_type": "avg", "stride": (2, 2), "pad": (1, 1)},
            {"kernel": (3, 3), "pool_type": "avg", "stride": (2, 2), "pad": (1, 1), "count_include_pad": False},
            {"kernel": (3, 3), "pool_type": "max", "stride": (2, 2), "pooling_convention": "full"},
            {"kernel": (2, 2), "pool_type": "avg", "stride": (2, 2), "pooling_convention": "full"},
            {"kernel": (3, 3), "pool_type": "avg", "stride": (2, 2), "pad": (1, 1), "pooling_convention": "full"},
            {"kernel": (1, 1), "global_pool": True, "pool_type": "avg"},
            {"kernel": (2, 2), "global_pool": True, "pool_type": "max"},
            {"kernel": (3, 3), "pool_type": "sum", "stride": (2, 2)},
            {"kernel": (3, 3), "pool_type": "lp", "p_value": 2, "stride": (2, 2)},
        ],
        IMAGE,
    ),
    ("Activation", [{"act_type": a} for a in ("relu", "sigmoid", "tanh", "softrelu", "softsign")], IMAGE),
    ("LeakyReLU", [{"act_type": a, "slope": 0.3} for a in ("leaky", "elu", "selu", "gelu", "prelu")], IMAGE),
    ("L2Normalization", [{}, {"mode": "channel"}, {"mode": "spatial"}], IMAGE),
    ("InstanceNorm", [{"eps": 1e-3}], IMAGE),
    ("LayerNorm", [{"axis": -1}, {"axis": 1}], IMAGE),
    ("LRN", [{"nsize": 3, "alpha": 1e-2, "beta": 0.6, "knorm": 1.5}], IMAGE),
    ("GroupNorm", [{"num_groups": 3}], IMAGE),
    (
        "UpSampling",
        [{"scale": 2, "sample_type": "nearest"}, {"scale": 2, "sample_type": "bilinear", "num_filter": 6}],
        IMAGE,
    ),
    ("contrib.AdaptiveAvgPooling2D", [{}, {"output_size": (3, 5)}], IMAGE),
    (
        "contrib.BilinearResize2D",
        [
            {"height": 5, "width": 13},
            {"scale_height": 2.0, "scale_width": 1.5},
            {"height": 5, "width": 13, "align_corners": False},
        ],
        IMAGE,
    ),
    ("im2col", [{"kernel": (3, 3), "stride": (2, 2), "pad": (1, 1)}], IMAGE),
    (
        "contrib.DeformableConvolution",
        [{"kernel": (3, 3), "num_filter": 4, "pad": (1, 1)}],
        {**MAP, "y": (1, 18, 6, 7)},
    ),
    (
        "contrib.ModulatedDeformableConvolution",
        [{"kernel": (3, 3), "num_filter": 4, "pad": (1, 1)}],
        {**MAP, "y": (1, 18, 6, 7), "z": (1, 9, 6, 7)},
    ),
    ("GridGenerator", [{"transform_type": "affine", "target_shape": (4, 5)}], {"data": (2, 6)}),
    ("GridGenerator", [{"transform_type": "warp"}], {"data": (2, 2, 4, 5)}),
    ("BilinearSampler", PLAIN, {"data": (2, 3, 6, 7), "y": (2, 2, 4, 5)}),
    (
        "SpatialTransformer",
        [{"transform_type": "affine", "sampler_type": "bilinear", "target_shape": (4, 5)}],
        {"data": (2, 3, 6, 7), "y": (2, 6)},
    ),
    *(
        (
            "RNN",
            [{"mode": mode, "state_size": 4, "num_layers": 2, "bidirectional": sides == 2, "state_outputs": True}],
            {
                "data": (5, 2, 3),
                "state": np.zeros((2 * sides, 2, 4), np.float32),
                **({"state_cell": np.zeros((2 * sides, 2, 4), np.float32)} if mode == "lstm" else {}),
            },
        )
        for mode in ("lstm", "gru", "rnn_tanh", "rnn_relu")
        for sides in (1, 2)
    ),
    ("Embedding", [{"input_dim": 5, "output_dim": 3}], {"data": WHOLE}),
    ("contrib.div_sqrt_dim", PLAIN, CUBE),
    ("contrib.interleaved_matmul_selfatt_qk", [{"heads": 2}], {"data": (5, 2, 24)}),
    ("contrib.interleaved_matmul_selfatt_valatt", [{"heads": 2}], {"data": (5, 2, 24), "y": (4, 5, 5)}),
]

BROADCAST = """
    add sub mul div maximum minimum equal not_equal greater greater_equal lesser lesser_equal logical_and logical_or
    logical_xor mod hypot
"""
WITH_SCALARS = """
    plus minus rminus mul div rpower maximum minimum mod equal not_equal greater greater_equal lesser lesser_equal
    hypot logical_and logical_or logical_xor
"""
ELEMENTWISE = """
    relu sigmoid tanh exp abs negative floor ceil round sin cos tan sinh cosh arcsinh arctan softsign sign erf
    square rint trunc fix expm1 degrees radians cbrt zeros_like ones_like logical_not shape_array size_array
"""
ARITHMETIC: list[Row] = [
    *((f"broadcast_{name}", PLAIN, PAIR) for name in BROADCAST.split()),
    ("broadcast_power", PLAIN, {"data": between(0.2, 2, 2, 3, 4), "y": between(-1, 1, 1, 3, 1)}),
    *((f"elemwise_{name}", PLAIN, {"data": (2, 3), "y": (2, 3)}) for name in ("add", "sub", "mul", "div")),
    *((f"_internal._{name}_scalar", [{"scalar": 0.4}], CUBE) for name in WITH_SCALARS.split()),
    *(
        (f"_internal._{name}_scalar", [{"scalar": 1.5}], {"data": between(0.5, 2, 2, 3)})
        for name in ("rdiv", "power", "rmod")
    ),
    *((name, PLAIN, {"data": between(-2, 2, 2, 3, 4)}) for name in ELEMENTWISE.split()),
    *(
        (name, PLAIN, {"data": between(0.2, 3, 2, 3, 4)})
        for name in ("log", "sqrt", "reciprocal", "rsqrt", "log1p", "log2", "log10", "rcbrt")
    ),
    *((name, PLAIN, {"data": between(-0.9, 0.9, 2, 3)}) for name in ("arcsin", "arccos", "arctanh")),
    ("arccosh", PLAIN, {"data": between(1.1, 3, 2, 3)}),
    *((name, REDUCED, CUBE) for name in ("mean", "sum", "max", "min", "prod")),
    ("norm", [{}, {"ord": 1, "axis": 1}, {"ord": 2, "axis": (1, 2), "keepdims": True}], CUBE),
    ("smooth_l1", [{"scalar": 2.0}], CUBE),
    ("hard_sigmoid", [{"alpha": 0.3, "beta": 0.4}], CUBE),
    ("clip", [{"a_min": -0.3, "a_max": 0.4}], CUBE),
    ("add_n", PLAIN, {"data": (2, 3), "y": (2, 3), "z": (2, 3)}),
    ("softmax", [{"axis": 1, "temperature": 2.0}], CUBE),
    ("log_softmax", [{"axis": -1}], CUBE),
    ("softmax", [{"axis": 1, "use_length": True}], {"data": (3, 5), "y": np.array([2, 5, 3], np.int32)}),
    ("softmin", [{"axis": 1}], CUBE),
    ("SoftmaxActivation", [{}, {"mode": "channel"}], IMAGE),
    ("argmax", [{"axis": 1}, {"axis": 1, "keepdims": True}, {}], CUBE),
    ("argmin", [{"axis": 1}], CUBE),
    ("dot", PLAIN, {"data": (3, 4), "y": (4, 5)}),
    ("dot", PLAIN, {"data": (2, 3, 4), "y": (4, 5)}),
    ("dot", [{"transpose_a": True, "transpose_b": True}], {"data": (4, 3), "y": (5, 4)}),
    ("batch_dot", [{"transpose_b": True}], {"data": (2, 3, 4), "y": (2, 5, 4)}),
    ("linalg.gemm2", [{"transpose_b": True, "alpha": 2.0}], {"data": (2, 3, 4), "y": (2, 5, 4)}),
    ("linalg.gemm", [{"alpha": 2.0, "beta": 0.5}], {"data": (2, 3, 4), "y": (2, 4, 5), "z": (2, 3, 5)}),
]

MOVEMENT: list[Row] = [
    (
        "Reshape",
        [{"shape": s} for s in ((0, -1), (-2,), (0, 0, -3), (-4, 1, 2, -2), (2, -1, 4), (-3, -3), (0, -4, -1, 3, -2))],
        {"data": (2, 6, 4, 5)},
    ),
    ("Reshape", [{"shape": (-1, 0), "reverse": True}], {"data": (2, 6, 4, 5)}),
    ("reshape_like", PLAIN, {"data": (2, 6), "y": (3, 4)}),
    ("repeat", [{"repeats": 2}, {"repeats": 2, "axis": 1}], CUBE),
    ("reverse", [{"axis": 1}], CUBE),
    ("flip", [{"axis": 2}], CUBE),
    ("tile", [{"reps": (2, 1, 3)}], {"data": (2, 3)}),
    ("tile", [{"reps": (2,)}], CUBE),
    ("slice_like", [{"axes": (0, 2)}], {"data": (3, 4, 5), "y": (2, 9, 3)}),
    ("broadcast_like", PLAIN, {"data": (1, 4, 1), "y": (3, 4, 5)}),
    ("broadcast_axis", [{"axis": (0, 2), "size": (3, 5)}], {"data": (1, 4, 1)}),
    ("broadcast_to", [{"shape": (3, 0, 5)}], {"data": (1, 4, 1)}),
    ("contrib.arange_like", [{}, {"axis": 1, "start": 2, "step": 3}], CUBE),
    ("SliceChannel", [{"num_outputs": 3, "axis": 1}, {"num_outputs": 6, "axis": 1, "squeeze_axis": True}], IMAGE),
    ("split_v2", [{"indices_or_sections": (1, 4), "axis": 1}, {"indices_or_sections": 3, "axis": 1}], IMAGE),
    ("slice_axis", [{"axis": 1, "begin": -3, "end": None}], IMAGE),
    (
        "slice",
        [
            {"begin": (None, 1, 2), "end": (None, 5, None), "step": (None, 2, 1)},
            {"begin": (None, 4), "end": (None, None), "step": (None, -1)},
            {"begin": (None, None), "end": (None, 1), "step": (1, -2)},
        ],
        IMAGE,
    ),
    ("transpose", [{}, {"axes": (0, 2, 3, 1)}], IMAGE),
    ("SwapAxis", [{"dim1": 1, "dim2": 3}], IMAGE),
    (
        "Pad",
        [
            {"mode": "constant", "pad_width": (0, 0, 0, 0, 1, 2, 3, 1), "constant_value": 2.0},
            {"mode": "edge", "pad_width": (0, 0, 0, 0, 1, 2, 3, 1)},
            {"mode": "reflect", "pad_width": (0, 0, 0, 0, 1, 2, 3, 1)},
        ],
        IMAGE,
    ),
    ("Crop", [{"offset": (1, 2)}], {"data": (2, 3, 9, 8), "y": (2, 3, 5, 4)}),
    ("Crop", [{"h_w": (5, 4), "center_crop": True, "num_args": 1}], IMAGE),
    ("expand_dims", [{"axis": 1}], CUBE),
    ("squeeze", [{}, {"axis": 1}], {"data": (2, 1, 3, 1)}),
    ("depth_to_space", [{"block_size": 2}], {"data": (1, 8, 3, 4)}),
    ("space_to_depth", [{"block_size": 2}], {"data": (1, 2, 6, 4)}),
    ("Cast", [{"dtype": "int32"}], CUBE),
    ("concat", [{"dim": 1}], {"data": (2, 3, 4), "y": (2, 5, 4)}),
    ("stack", [{"axis": 1}], {"data": (2, 3), "y": (2, 3)}),
    ("one_hot", [{"depth": 5, "on_value": 2, "off_value": -1}], {"data": WHOLE}),
    ("pick", [{"axis": 1}], {"data": (2, 5, 3), "y": WHOLE}),
    ("pick", [{"axis": -1, "keepdims": True}], {"data": (2, 3, 5), "y": WHOLE}),
    (
        "topk",
        [
            {"k": 2},
            {"k": 2, "ret_typ": "value"},
            {"k": 3, "ret_typ": "both", "is_ascend": True, "axis": 1},
            {"k": 2, "ret_typ": "mask"},
            {"k": 3, "axis": None},
        ],
        {"data": (2, 5, 4)},
    ),
    ("sort", [{"axis": 1, "is_ascend": False}], {"data": (2, 5)}),
    ("argsort", [{"axis": 1}, {"is_ascend": False}], {"data": (2, 5)}),
    ("gather_nd", PLAIN, {"data": (4, 5, 2), "y": PLACES}),
    ("scatter_nd", [{"shape": (4, 5)}], {"data": (3,), "y": PLACES}),
    ("take", [{"axis": 1}], {"data": (2, 5, 3), "y": WHOLE}),
    ("take", [{"mode": "wrap"}], {"data": (5, 3), "y": 3 * WHOLE - 4}),
    ("SequenceMask", [{"use_sequence_length": True, "value": -1.0}], {"data": (4, 3, 2), "y": LENGTHS}),
    ("SequenceMask", [{"use_sequence_length": True, "axis": 1}], {"data": (3, 4, 2), "y": LENGTHS}),
    ("SequenceReverse", [{"use_sequence_length": True}], {"data": (4, 3, 2), "y": LENGTHS}),
    ("SequenceLast", [{"use_sequence_length": True}], {"data": (4, 3, 2), "y": LENGTHS}),
    ("SequenceReverse", PLAIN, CUBE),
    ("SequenceLast", PLAIN, CUBE),
    ("where", PLAIN, {"data": (WHOLE > 1).astype(np.float32), "y": (2, 3), "z": (2, 3)}),
]

DETECTION: list[Row] = [
    (
        "contrib.MultiBoxPrior",
        [
            {"sizes": (0.2, 0.4), "ratios": (1, 2, 0.5), "clip": True},
            {"sizes": (0.3,), "ratios": (1, 2), "steps": (0.25, 0.2), "offsets": (0.3, 0.6)},
        ],
        {"data": (1, 3, 4, 5)},
    ),
    ("ROIPooling", [{"pooled_size": (2, 3), "spatial_scale": 0.5}], {"data": (1, 3, 8, 9), "y": REGIONS}),
    (
        "contrib.ROIAlign",
        [{"pooled_size": (2, 3), "spatial_scale": 0.5, "sample_ratio": 2}],
        {"data": (1, 3, 8, 9), "y": REGIONS},
    ),
    (
        "contrib.PSROIPooling",
        [{"spatial_scale": 0.5, "output_dim": 2, "pooled_size": 3}],
        {"data": (1, 18, 8, 9), "y": REGIONS},
    ),
    ("contrib.box_iou", PLAIN, {"data": CORNERS[0], "y": CORNERS[0, :5]}),
    (
        "contrib.box_nms",
        [
            {"overlap_thresh": 0.5, "valid_thresh": 0.1, "coord_start": 2, "score_index": 1, "id_index": 0},
            {
                "overlap_thresh": 0.3,
                "coord_start": 2,
                "score_index": 1,
                "id_index": 0,
                "force_suppress": True,
                "topk": 8,
            },
        ],
        {"data": FOUND},
    ),
    (
        "contrib.MultiBoxDetection",
        [{"nms_threshold": 0.5}],
        {"data": RNG.dirichlet(np.ones(4), (1, 12)).transpose(0, 2, 1).astype(np.float32), "y": (1, 48), "z": CORNERS},
    ),
    (
        "contrib.Proposal",
        [
            {
                "feature_stride": 8,
                "scales": (4, 8),
                "ratios": (0.5, 1),
                "rpn_pre_nms_top_n": 40,
                "rpn_post_nms_top_n": 10,
                "threshold": 0.7,
                "rpn_min_size": 4,
            }
        ],
        {
            "data": between(0, 1, 1, 8, 5, 6),
            "y": between(-0.2, 0.2, 1, 16, 5, 6),
            "z": np.array([[40, 48, 1]], np.float32),
        },
    ),
]

NETWORKS = {
    "resnet18_v1": 96,
    "resnet18_v2": 96,
    "mobilenet0_25": 96,
    "mobilenet_v2_0_25": 96,
    "densenet121": 224,
    "alexnet": 224,
}
"""Networks of Gluon's model zoo, with random weights, and the size of their pictures."""


def symbols(mx: Any) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """A name, a symbol and its inputs for each setting of each row."""
    number = 0
    for path, settings, given in (*LAYERS, *ARITHMETIC, *MOVEMENT, *DETECTION):
        made = mx.sym
        for part in path.split("."):
            made = getattr(made, part)
        for options in settings:
            inputs = {k: v if isinstance(v, np.ndarray) else between(-1, 1, *v) for k, v in given.items()}
            names = [k for k in inputs if not k.startswith("state")]
            named = {"state": mx.sym.Variable("state")} if "state" in inputs else {}
            named |= {"state_cell": mx.sym.Variable("state_cell")} if "state_cell" in inputs else {}
            unnamed = path in ("split_v2", "contrib.arange_like") or path.startswith("linalg")
            label = {} if unnamed else {"name": "layer"}
            yield f"{number:03}_{path}", made(*map(mx.sym.Variable, names), **named, **options, **label), inputs
            number += 1


def save(mx: Any, folder: Path, symbol: Any, inputs: Mapping[str, Any]) -> None:
    """The symbol with random parameters, its inputs, and MXNet's outputs."""
    shapes, _, others = symbol.infer_shape(**{k: v.shape for k, v in inputs.items()})
    given = {
        name: inputs.get(name, between(-0.5, 0.5, *shape))
        for name, shape in zip(symbol.list_arguments(), shapes, strict=True)
    }
    kept = {
        name: between(0.5, 1.5, *shape) if "var" in name else between(-0.3, 0.3, *shape)
        for name, shape in zip(symbol.list_auxiliary_states(), others, strict=True)
    }
    arrays, states = ({k: mx.nd.array(v, dtype=v.dtype) for k, v in named.items()} for named in (given, kept))
    bound = symbol.bind(mx.cpu(), arrays, aux_states=states, grad_req="null")
    outputs = [y.asnumpy() for y in bound.forward(is_train=False)]
    folder.mkdir(parents=True)
    symbol.save(str(folder / "net-symbol.json"))
    stored = {f"arg:{k}": v for k, v in arrays.items() if k not in inputs} | {f"aux:{k}": v for k, v in states.items()}
    mx.nd.save(str(folder / "net-0000.params"), stored or {"arg:none": mx.nd.zeros((1,))})
    record(folder, inputs, outputs)


def record(folder: Path, inputs: Mapping[str, Any], outputs: Sequence[Any]) -> None:
    arrays = {f"in_{k}": v for k, v in inputs.items()} | {f"out_{i}": y for i, y in enumerate(outputs)}
    np.savez(folder / "io.npz", **arrays)


def main(folder: Path) -> None:
    mx: Any = import_module("mxnet")
    for name, symbol, inputs in symbols(mx):
        try:
            save(mx, folder / name, symbol, inputs)
        except mx.base.MXNetError as error:
            print(f"{name}: MXNet cannot run it: {str(error).splitlines()[0]}")
    for name, size in NETWORKS.items():
        net = getattr(mx.gluon.model_zoo.vision, name)()
        net.initialize(mx.init.Xavier())
        net.hybridize()
        image = between(-1, 1, 1, 3, size, size)
        (folder / name).mkdir()
        output = net(mx.nd.array(image)).asnumpy()
        net.export(str(folder / name / "net"))
        record(folder / name, {"data": image}, [output])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
