"""Ranges and integers that training leaves in models of Keras and TensorFlow: found after optimisation, and kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tenon
from evaluate import evaluate
from keras_models import archive, h5, sequential
from tenon.errors import UnsupportedError
from tenon.network.graph.graph import Array, Graph
from tenon.tools.quantization.range_files import write_ranges
from tenon.tools.quantization.scheme import named_scheme
from tenon.tools.quantization.trained import grid_ranges
from tensorflow_models import const, graph, node, placeholder

RNG = np.random.default_rng(0)
KERNEL = RNG.uniform(-1, 1, (3, 3, 2, 4)).astype(np.float32)
DENSE = RNG.uniform(-1, 1, (4, 3)).astype(np.float32)
BIAS = np.array([0.5, -0.25, 0.0], np.float32)
NORMS = [RNG.uniform(0.5, 1, 4).astype(np.float32) for _ in range(4)]
STEP = np.array(7, np.int32)
IMAGES = np.random.default_rng(1).uniform(-1, 1, (4, 1, 6, 6, 2)).astype(np.float32)


def scalar(number: float) -> Array:
    return np.array(number, np.float32)


def wrapped(name: str, kind: str, config: Mapping[str, Any], quantize: Mapping[str, Any]) -> dict[str, Any]:
    """A QuantizeWrapperV2; ``quantize`` is the config of its QuantizeConfig."""
    inner = {"class_name": kind, "config": {"name": name, **config}}
    chosen = {"class_name": "Default8BitQuantizeConfig", "config": quantize}
    return {
        "class_name": "QuantizeWrapperV2",
        "config": {"name": f"quant_{name}", "layer": inner, "quantize_config": chosen},
    }


NO_ACTIVATION = {"class_name": "QuantizeAwareActivation", "config": {"activation": {"class_name": "NoOpActivation"}}}
NOTHING = {"weight_attrs": [], "activation_attrs": [], "quantize_output": False}
MODEL = sequential(
    {"class_name": "InputLayer", "config": {"name": "x", "batch_input_shape": [None, 6, 6, 2]}},
    # the second model of a session, whose variables are called after the layer
    {"class_name": "QuantizeLayer", "config": {"name": "quantize_layer_1", "quantizer": {"config": {"num_bits": 8}}}},
    wrapped(
        "conv",
        "Conv2D",
        {"filters": 4, "kernel_size": [3, 3], "use_bias": False, "activation": NO_ACTIVATION},
        {**NOTHING, "weight_attrs": ["kernel"], "activation_attrs": ["activation"]},
    ),
    wrapped("bn", "BatchNormalization", {"axis": [3], "epsilon": 1e-3}, NOTHING),
    wrapped("relu", "ReLU", {"max_value": 6.0}, {**NOTHING, "quantize_output": True}),
    wrapped("pool", "GlobalAveragePooling2D", {}, {**NOTHING, "quantize_output": True}),
    wrapped(
        "dense",
        "Dense",
        {"units": 3, "activation": "linear"},
        {**NOTHING, "weight_attrs": ["kernel"], "activation_attrs": ["activation"]},
    ),
)
LIMITS = np.abs(KERNEL).max((0, 1, 2))
KEPT = {"input": (-1.0, 1.0), "relu": (0.0, 3.0), "pool": (0.0, 1.5), "dense": (-2.0, 2.0)}
NAMED = {
    "quantize_layer_1": {"quantize_layer_1_min": scalar(-1), "quantize_layer_1_max": scalar(1), "step": STEP},
    "quant_conv": {
        "conv/kernel": KERNEL,
        "quant_conv/optimizer_step": STEP,
        "quant_conv/kernel_min": -LIMITS,
        "quant_conv/kernel_max": LIMITS,
    },
    "quant_bn": {
        **{
            f"bn/{name}": array
            for name, array in zip(("gamma", "beta", "moving_mean", "moving_variance"), NORMS, strict=True)
        },
        "quant_bn/optimizer_step": STEP,
    },
    "quant_relu": {"step": STEP, "quant_relu/output_min": scalar(0), "quant_relu/output_max": scalar(3)},
    "quant_pool": {"step": STEP, "quant_pool/output_min": scalar(0), "quant_pool/output_max": scalar(1.5)},
    "quant_dense": {
        "dense/kernel": DENSE,
        "dense/bias": BIAS,
        "step": STEP,
        "quant_dense/kernel_min": scalar(-1),
        "quant_dense/kernel_max": scalar(1),
        "quant_dense/post_activation_min": scalar(-2),
        "quant_dense/post_activation_max": scalar(2),
    },
}
NUMBERED = {
    "quantize_layer": [scalar(-1), scalar(1), STEP],
    "quantize_wrapper_v2": [KERNEL, KERNEL, STEP, -LIMITS, LIMITS],
    "quantize_wrapper_v2_1": [*NORMS[:2], STEP],
    "quantize_wrapper_v2_1/layer": NORMS,
    "quantize_wrapper_v2_2": [STEP, scalar(0), scalar(3)],
    "quantize_wrapper_v2_3": [STEP, scalar(0), scalar(1.5)],
    "quantize_wrapper_v2_4": [DENSE, BIAS, DENSE, STEP, scalar(-1), scalar(1), scalar(-2), scalar(2)],
    "quantize_wrapper_v2_4/layer": [BIAS],
}


def answers(graph: Graph) -> Array:
    return np.concatenate([next(iter(evaluate(graph, {graph.inputs[0].name: each}).values())) for each in IMAGES])


def weights_of(made: tenon.Quantized, shape: tuple[int, ...]) -> Array:
    """The integers of the weights of this shape."""
    return next(
        v.data
        for v in made.graph.constants()
        if v.data is not None and v.data.shape == shape and v.data.dtype == np.int8
    )


@pytest.mark.parametrize("data", [h5(MODEL, NAMED), archive(MODEL, NUMBERED)], ids=["h5", "keras"])
def test_a_keras_model_needs_no_samples(data: bytes, tmp_path: Path) -> None:
    """Transpositions of channels-last layers change the names of tensors, and their ranges are found all the same."""
    (tmp_path / "model").write_bytes(data)
    trained = tenon.load(tmp_path / "model")
    assert sum(n.op.name == "QuantizeLinear" for n in trained) == len(KEPT)
    made = tenon.quantize(tmp_path / "model")
    ranges = sorted(grid_ranges(made.graph).values())
    assert ranges == [pytest.approx(pair, abs=0.01) for pair in sorted(KEPT.values())]
    np.testing.assert_array_equal(weights_of(made, DENSE.shape), np.rint(DENSE * 127))
    ours, theirs = answers(made.graph), answers(trained)
    assert np.abs(ours - theirs).max() <= 1.01 * 4 / 255  # one step of the output


def test_variables_without_a_meaning_are_an_error(tmp_path: Path) -> None:
    """.keras files have no names of variables, and a QuantizeConfig of one's own does not say which there are."""
    own = wrapped("dense", "Dense", {"units": 3, "activation": "linear"}, {"mine": 1})
    model = sequential({"class_name": "InputLayer", "config": {"name": "x", "batch_input_shape": [None, 4]}}, own)
    (tmp_path / "model.keras").write_bytes(
        archive(model, {"quantize_wrapper_v2": [DENSE, BIAS, STEP, scalar(-1), scalar(1)]})
    )
    with pytest.raises(UnsupportedError, match=r"does not say what the 2 variables .* save the model as \.h5"):
        tenon.load(tmp_path / "model.keras")


def test_a_config_of_outputs_only_has_no_ranges_of_weights(tmp_path: Path) -> None:
    """As a layer before an annotated one has: OutputOnlyConfig around the QuantizeConfig of the layer."""
    inner = wrapped(
        "dense",
        "Dense",
        {"units": 3, "activation": "relu"},
        {**NOTHING, "weight_attrs": ["kernel"], "activation_attrs": ["activation"]},
    )
    own = inner["config"]["quantize_config"]
    inner["config"]["quantize_config"] = {"class_name": "OutputOnlyConfig", "config": {"quantize_config": own}}
    model = sequential({"class_name": "InputLayer", "config": {"name": "x", "batch_input_shape": [None, 4]}}, inner)
    (tmp_path / "model.keras").write_bytes(
        archive(
            model,
            {
                "quantize_wrapper_v2": [DENSE, BIAS, STEP, scalar(0), scalar(2)],
                "quantize_wrapper_v2/layer": [DENSE, BIAS],
            },
        )
    )
    loaded = tenon.load(tmp_path / "model.keras")
    assert [n.op.name for n in loaded] == ["Gemm", "Relu", "QuantizeLinear", "DequantizeLinear"]
    (output,) = evaluate(loaded, {"x": np.ones((1, 4), np.float32)}).values()
    np.testing.assert_allclose(output[0], np.maximum(DENSE.sum(0) + BIAS, 0).clip(0, 2), atol=0.004)


def tensorflow_net(path: Path, *, fake: bool) -> None:
    """A convolution of fake-quantised weights with bias and ReLU, as SavedModels of trained networks have it."""
    low, high = {"a": -1.0, "b": 1.0}, {"c": 0.0, "d": 3.0}
    limits = [const(name, value) for name, value in (low | high).items()]
    scales = [const("low", (-LIMITS).tolist()), const("high", LIMITS.tolist())]
    path.write_bytes(
        graph(
            placeholder("x", 1, 6, 6, 2),
            *limits,
            *scales,
            const("w", KERNEL.tolist()),
            const("shift", [0.1, 0.2, 0.3, 0.4]),
            node("xq", "FakeQuantWithMinMaxVars", "x", "a", "b", num_bits=8, narrow_range=False),
            node("wq", "FakeQuantWithMinMaxVarsPerChannel", "w", "low", "high", num_bits=8, narrow_range=True),
            node(
                "sum",
                "Conv2D",
                "xq" if fake else "x",
                "wq" if fake else "w",
                strides=[1, 1, 1, 1],
                padding="VALID",
                data_format="NHWC",
            ),
            node("biased", "BiasAdd", "sum", "shift"),
            node("relu", "Relu", "biased"),
            node("reluq", "FakeQuantWithMinMaxVars", "relu", "c", "d", num_bits=8, narrow_range=False),
            const("w2", KERNEL[:1, :1].repeat(2, 2).tolist()),
            node(
                "y",
                "Conv2D",
                "reluq" if fake else "relu",
                "w2",
                strides=[1, 1, 1, 1],
                padding="VALID",
                data_format="NHWC",
            ),
        )
    )


def test_fake_quantisation_of_tensorflow_keeps_the_integers_of_weights(tmp_path: Path) -> None:
    tensorflow_net(tmp_path / "net.pb", fake=True)
    made = tenon.quantize(tmp_path / "net.pb", ranges={"y": (-4.0, 4.0)})
    wanted = np.rint(KERNEL / (LIMITS / np.float32(127))).transpose(3, 2, 0, 1)
    np.testing.assert_array_equal(weights_of(made, (4, 2, 3, 3)), wanted)
    ranges = sorted(grid_ranges(made.graph).values())
    assert ranges == [pytest.approx(pair, abs=0.02) for pair in ((-4, 4), (-1, 1), (0, 3))]


def test_ranges_of_training_stay_beside_those_of_a_file(tmp_path: Path) -> None:
    """MACE's mixed usage: the file has ranges of all tensors, and fills in what training left out."""
    tensorflow_net(tmp_path / "net.pb", fake=True)
    made = tenon.quantize(tmp_path / "net.pb", ranges={"relu:0": (0.0, 50.0), "x": (-9.0, 9.0), "y": (-4.0, 4.0)})
    ranges = sorted(grid_ranges(made.graph).values())
    assert ranges == [pytest.approx(pair, abs=0.02) for pair in ((-4, 4), (-1, 1), (0, 3))]


def test_range_files_name_tensors_as_the_model_does(tmp_path: Path) -> None:
    """MACE's files have TensorFlow's names, with the number of the output; the compiler calls ``relu`` another way."""
    tensorflow_net(tmp_path / "net.pb", fake=False)
    ranges = {"x:0": (-1.0, 1.0), "relu:0": (0.0, 3.0), "y": (-4.0, 4.0)}
    write_ranges(tmp_path / "net.range", ranges, named_scheme("int8"))
    made = tenon.quantize(tmp_path / "net.pb", ranges=tmp_path / "net.range")
    assert sorted(grid_ranges(made.graph).values()) == [
        pytest.approx(pair, abs=0.04) for pair in sorted(ranges.values())
    ]
