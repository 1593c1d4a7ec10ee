"""Post-training quantisation of small networks, with samples of random numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import exact_onnxruntime
import tenon
from evaluate import evaluate
from networks_to_quantise import built
from onnx_models import model, node
from quantised_networks import LAST, images, make
from quantised_networks import network as float_network
from real import DIGITS, held_out_digits
from tenon.errors import InputError, ModelError
from tenon.network.graph.graph import Array, Graph
from tenon.network.graph.types import DType
from tenon.network.passes import optimize
from tenon.tools.quantization.calibration import observed
from tenon.tools.quantization.insertion import products
from tenon.tools.quantization.placement import placement
from tenon.tools.quantization.range_search import expected_scores, searched
from tenon.tools.quantization.ranges import BINS, METHODS, Observed
from tenon.tools.quantization.samples import read_samples
from tenon.tools.quantization.scheme import SCHEMES, named_scheme
from tenon.tools.quantization.simulation import Simulation


def network(residual: bool = True) -> Graph:
    """conv, relu, depthwise conv, clip, (sum), max pool, concat of two convolutions, mean, gemm, softmax."""
    rng = np.random.default_rng(0)
    shapes = {
        "a": (8, 3, 3, 3),
        "ab": (8,),
        "d": (8, 1, 3, 3),
        "db": (8,),
        "e": (4, 8, 1, 1),
        "f": (4, 8, 1, 1),
        "g": (5, 8),
    }
    weights = {name: rng.normal(0, 0.4, shape).astype(np.float32) for name, shape in shapes.items()}
    weights |= {"low": np.array(0, np.float32), "high": np.array(6, np.float32)}
    nodes = [
        helper.make_node("Conv", ["x", "a", "ab"], ["1"], pads=[1] * 4, name="first"),
        helper.make_node("Relu", ["1"], ["2"]),
        helper.make_node("Conv", ["2", "d", "db"], ["3"], pads=[1] * 4, group=8, name="depthwise"),
        helper.make_node("Clip", ["3", "low", "high"], ["4"]),
        helper.make_node("Add", ["4", "2"], ["5"]) if residual else helper.make_node("Identity", ["4"], ["5"]),
        helper.make_node("MaxPool", ["5"], ["6"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["6", "e"], ["7"]),
        helper.make_node("Conv", ["6", "f"], ["8"]),
        helper.make_node("Concat", ["7", "8"], ["9"], axis=1),
        helper.make_node("GlobalAveragePool", ["9"], ["10"]),
        helper.make_node("Flatten", ["10"], ["11"]),
        helper.make_node("Gemm", ["11", "g"], ["12"], transB=1),
        helper.make_node("Softmax", ["12"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 5])],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )
    return tenon.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]).SerializeToString())


def samples(count: int = 16) -> list[Array]:
    rng = np.random.default_rng(1)
    return [rng.uniform(-1, 1, (1, 3, 8, 8)).astype(np.float32) for _ in range(count)]


# ------------------------------------------------------------------------------------------------ graphs
EIGHT_BITS = [name for name, each in SCHEMES.items() if each.activations in (DType.I8, DType.U8)]


@pytest.mark.parametrize("scheme", EIGHT_BITS)
def test_every_operator_is_computed_in_integers(scheme: str) -> None:
    """But for the softmax; the answers stay near those in floats."""
    graph = network()
    made = tenon.quantize(graph, samples(), scheme=scheme, method="min-max", bias_correction=False, range_search=False)
    description, _ = tenon.inspect(made.graph)
    assert description.compiled is not None
    assert {"IntegerConv", "IntegerGemm", "IntegerAveragePool"} <= description.compiled.keys()
    assert not {"Conv", "Gemm", "Add", "AveragePool", "GlobalAveragePool"} & description.compiled.keys()
    assert description.left_in_float == ()
    assert made.report.outputs[0].sqnr > (12 if "int4" in scheme else 20)


@pytest.mark.parametrize(
    ("scheme", "least"), [("int8-weights-only", 40), ("int4-weights-only", 18), ("fp16", 60), ("bf16", 40)]
)
def test_weights_alone_are_stored_in_fewer_bits(scheme: str, least: float, tmp_path: Path) -> None:
    """Without samples; the file is read as it was written, and its answers have this SQNR in dB at least."""
    graph = network()
    tenon.quantize(graph, scheme=scheme).save(tmp_path / "net.onnx")
    again = tenon.load(tmp_path / "net.onnx")
    (x,) = samples(1)
    (ours,), (real,) = (evaluate(each, {"x": x}).values() for each in (again, graph))
    assert 10 * np.log10((real**2).sum() / ((ours - real) ** 2).sum()) > least
    with pytest.raises(ModelError, match="no weights of 64 elements"):
        tenon.quantize(network_of_constants(), scheme=scheme)


def network_of_constants() -> Graph:
    node = helper.make_node("Relu", ["x"], ["y"])
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3]) for name in "xy"]
    model = helper.make_model(helper.make_graph([node], "net", ports[:1], ports[1:]))
    return tenon.load(model.SerializeToString())


def test_blocks_of_weights_have_scales_of_their_own() -> None:
    """A block of large weights does not coarsen the small ones of its channel."""
    rng = np.random.default_rng(0)
    weights = np.concatenate([rng.normal(0, 1, (4, 32)), rng.normal(0, 0.01, (4, 32))], 1).astype(np.float32)
    node = helper.make_node("Gemm", ["x", "w"], ["y"], transB=1)
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, n]) for name, n in (("x", 64), ("y", 4))]
    graph = helper.make_graph([node], "net", ports[:1], ports[1:], [numpy_helper.from_array(weights, "w")])
    made = tenon.quantize(helper.make_model(graph).SerializeToString(), scheme="int4-weights-only").graph
    (columns,) = evaluate(made, {"x": np.eye(1, 64, 40, dtype=np.float32)}).values()
    np.testing.assert_allclose(columns[0], weights[:, 40], atol=0.01)
    assert np.abs(weights).max() / 7 > 0.1  # the step of one scale for the channel


def test_scales_of_blocks_have_the_least_error() -> None:
    """With 4 bits no common share of the scales that reach the greatest weights has less."""
    weights = np.random.default_rng(0).normal(0, 1, (16, 64)).astype(np.float32)
    node = helper.make_node("Gemm", ["x", "w"], ["y"], transB=1)
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, n]) for name, n in (("x", 64), ("y", 16))]
    graph = helper.make_graph([node], "net", ports[:1], ports[1:], [numpy_helper.from_array(weights, "w")])
    made = tenon.quantize(helper.make_model(graph).SerializeToString(), scheme="int4-weights-only").graph
    stored = np.stack([next(iter(evaluate(made, {"x": x[None]}).values()))[0] for x in np.eye(64, dtype=np.float32)], 1)
    blocks = weights.reshape(-1, 32)
    for share in (1.05, 1.0, 0.9, 0.8):
        scale = share * np.abs(blocks).max(1, keepdims=True) / 7
        plain = np.clip(np.rint(blocks / scale), -8, 7) * scale
        assert ((stored - weights) ** 2).sum() < 0.97 * ((plain - blocks) ** 2).sum()


@pytest.mark.parametrize(("inputs", "scales"), [(64, 8), (144, 24), (27, 4), (62, 8), (33, 12), (37, 4)])
def test_blocks_divide_channels_evenly(inputs: int, scales: int) -> None:
    """Channels whose size 32 does not divide have shorter blocks: 24 of 144, 31 of 62, 11 of 33."""
    weights = np.random.default_rng(0).normal(0, 1, (4, inputs)).astype(np.float32)
    node = helper.make_node("Gemm", ["x", "w"], ["y"], transB=1)
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, n]) for name, n in (("x", inputs), ("y", 4))]
    graph = helper.make_graph([node], "net", ports[:1], ports[1:], [numpy_helper.from_array(weights, "w")])
    made = tenon.quantize(helper.make_model(graph).SerializeToString(), scheme="int4-weights-only").graph
    (stored,) = (n for n in made if n.op.name == "DequantizeLinear")
    assert stored.input(1).type.size == scales


def test_activations_of_16_bits_have_less_noise() -> None:
    """The input by far, later tensors as far as weights of 8 bits allow."""
    settings: dict[str, Any] = {
        "method": "min-max",
        "bias_correction": False,
        "range_search": False,
        "equalisation": False,
        "rounding": "nearest",
    }
    quantised = {name: tenon.quantize(network(), samples(8), scheme=name, **settings) for name in ("int8", "int16x8")}
    wide, bytes_ = (max(each.sqnr for each in quantised[name].report.tensors) for name in ("int16x8", "int8"))
    assert wide > bytes_ + 30
    description, _ = tenon.inspect(quantised["int16x8"].graph, arithmetic="tflm")
    assert description.compiled is not None
    assert {"IntegerConv", "IntegerGemm", "IntegerAdd"} <= description.compiled.keys()


@pytest.mark.parametrize("options", [{}, {"int16": ["first"]}, {"scheme": "int4-weights"}])
def test_answers_of_bundle_reference_and_onnxruntime_agree(options: dict[str, Any], tmp_path: Path) -> None:
    """They agree where 16 or 4 bits need an opset of which ONNX Runtime adds pairs that it does not accept."""
    made = tenon.quantize(network(), samples(), method="min-max", **options)
    made.save(tmp_path / "net.onnx")
    session = exact_onnxruntime.session(tmp_path / "net.onnx")
    with tenon.open(tenon.compile(tmp_path / "net.onnx")) as saved, tenon.open(tenon.compile(made.graph)) as direct:
        for x in samples(4):
            (y,) = direct.run(x).values()
            (again,) = saved.run(x).values()
            assert y.tobytes() == again.tobytes()
            np.testing.assert_allclose(y, session.run(None, {"x": x})[0], atol=2e-3)


def test_onnxruntime_runs_files_whose_output_is_moved(tmp_path: Path) -> None:
    """Weights of 4 bits, after which it adds pairs, too."""
    weights = {"w": np.random.default_rng(0).normal(0, 1, (4, 3, 1, 1))}
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Reshape", ["c", "dims"], ["y"])]
    graph = built(nodes, weights, [1, 3, 8, 8], [1, 256], {"dims": np.array([1, 256])})
    made = tenon.quantize(graph, samples(4), scheme="int4-weights", method="min-max", rounding="nearest")
    made.save(tmp_path / "net.onnx")
    session, x = exact_onnxruntime.session(tmp_path / "net.onnx"), samples(1)[0]
    with tenon.open(tenon.compile(tmp_path / "net.onnx")) as engine:
        np.testing.assert_allclose(engine.run(x)["y"], session.run(None, {"x": x})[0], atol=1e-5)


def test_bias_correction_puts_means_back() -> None:
    """Weights of 4 bits shift the means of channels."""
    made = tenon.quantize(network(), samples(32), scheme="int4-weights", method="min-max")
    assert made.report.repairs["bias correction"] > made.report.repairs[""] + 0.5


def test_parts_of_a_concatenation_have_its_grid() -> None:
    graph = network()
    placed = placement(optimize(graph, fuse=False))
    assert len(placed.parts) == 2


def test_excluded_layers_stay_in_float() -> None:
    made = tenon.quantize(network(), samples(4), method="min-max", exclude=["depthwise"])
    description, _ = tenon.inspect(made.graph)
    assert description.compiled is not None
    assert description.compiled["IntegerConv"] == 3
    assert "Conv" in " ".join(description.compiled)
    with pytest.raises(InputError, match="no layer 'nothing'"):
        tenon.quantize(network(), samples(4), exclude=["nothing"])


def leaky_network() -> Graph:
    return float_network([make("LeakyRelu", ["a"], ["c"], alpha=0.1), LAST])


def test_a_product_is_rounded_once_with_its_leaky_relu(tmp_path: Path) -> None:
    graph, once = leaky_network(), tenon.quantize(leaky_network(), images(8))
    twice = tenon.quantize(graph, images(8), separate_activations=True)
    counts = [sum(n.op.name == "QuantizeLinear" for n in each.graph) for each in (once, twice)]
    assert counts[0] == counts[1] - 1
    assert once.report.outputs[0].sqnr > twice.report.outputs[0].sqnr - 0.5
    with pytest.raises(InputError, match="separate_activations=True"):
        once.save(tmp_path / "net.tflite")
    twice.save(tmp_path / "net.tflite")
    once.save(tmp_path / "net.onnx")
    once.save_ranges(tmp_path / "ranges.yml")
    again = tenon.quantize(graph, ranges=tmp_path / "ranges.yml")
    assert sum(n.op.name == "QuantizeLinear" for n in again.graph) == counts[0]


def residual_network() -> Graph:
    """A convolution of a bounded one's result, and the sum of both, bounded."""
    return float_network(
        [
            make("Relu", ["a"], ["r"]),
            make("Conv", ["r", "grouped"], ["g"], group=2, pads=[1] * 4),
            make("Add", ["r", "g"], ["s"]),
            make("Relu", ["s"], ["c"]),
            LAST,
        ]
    )


def with_grids(graph: Graph) -> set[str]:
    return {n.input(0).name for n in graph if n.op.name == "QuantizeLinear"}


def test_a_convolution_is_rounded_once_with_what_is_added(tmp_path: Path) -> None:
    graph, once = residual_network(), tenon.quantize(residual_network(), images(8), range_search=False)
    twice = tenon.quantize(graph, images(8), range_search=False, separate_activations=True)
    assert with_grids(twice.graph) - with_grids(once.graph) == {"g"}
    description, _ = tenon.inspect(once.graph)
    assert description.compiled is not None
    assert description.compiled["IntegerConv"] == 3
    assert not {"Add", "Conv", "IntegerAdd"} & description.compiled.keys()
    assert once.report.outputs[0].sqnr > twice.report.outputs[0].sqnr + 0.5
    with pytest.raises(InputError, match="separate_activations=True"):
        once.save(tmp_path / "net.tflite")
    twice.save(tmp_path / "net.tflite")
    once.save_ranges(tmp_path / "ranges.yml")
    again = tenon.quantize(graph, ranges=tmp_path / "ranges.yml")
    assert with_grids(again.graph) == with_grids(once.graph)


def test_a_sum_of_two_convolutions_becomes_a_file_of_tflite(tmp_path: Path) -> None:
    """Both results get grids of their own, not only the one that is added to the other."""
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(0, 0.4, (4, 3 if name != "w" else 4, 1, 1)) for name in "uvw"}
    nodes = [
        helper.make_node("Conv", ["x", "u"], ["a"]),
        helper.make_node("Conv", ["x", "v"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["s"]),
        helper.make_node("Conv", ["s", "w"], ["y"]),
    ]
    graph = built(nodes, weights, [1, 3, 4, 4], [1, 4, 4, 4])
    given = [rng.uniform(-1, 1, (1, 3, 4, 4)).astype(np.float32) for _ in range(4)]
    made = tenon.quantize(graph, given, range_search=False, method="min-max", separate_activations=True)
    assert with_grids(made.graph) >= {"a", "b", "s"}
    made.save(tmp_path / "net.tflite")
    wide = tenon.quantize(graph, given, range_search=False, method="min-max", scheme="int16x8")
    assert with_grids(wide.graph) >= {"a", "b", "s"}


@pytest.mark.parametrize("options", [{"scheme": "int16x8"}, {"int16": ["g"]}, {"int16": ["a"]}, {"int16": ["b"]}])
def test_what_is_added_in_16_bits_is_rounded_apart(options: dict[str, Any]) -> None:
    """Where the sum alone has 16 bits, as the operand of the last layer, it is rounded once."""
    made = tenon.quantize(residual_network(), images(4), rounding="nearest", range_search=False, **options)
    assert ("g" in with_grids(made.graph)) == (options != {"int16": ["b"]})


@pytest.mark.parametrize("layer", ["g", "s"])
def test_a_layer_in_float_is_not_rounded_with_what_is_added(layer: str) -> None:
    made = tenon.quantize(residual_network(), images(4), rounding="nearest", range_search=False, exclude=[layer])
    assert "g" in with_grids(made.graph)


def test_weights_are_no_finer_than_what_is_added_to_their_sums_needs() -> None:
    """A channel of tiny weights: what is added would be too many of its sums for 32 bits."""
    graph = residual_network()
    conv = next(n for n in graph if n.output.name == "g")
    weights = conv.input(1).array.copy()
    weights[2] *= 1e-9
    graph.rewire(conv, [conv.input(0), graph.constant("tiny", weights)])
    made = tenon.quantize(graph, images(4), rounding="nearest", range_search=False)
    description, _ = tenon.inspect(made.graph)
    assert description.compiled is not None
    assert not {"Add", "Conv"} & description.compiled.keys()


def test_the_model_is_not_changed_and_the_result_is_deterministic() -> None:
    graph = network()
    before = repr(list(graph))
    first, second = (tenon.quantize(graph, samples()) for _ in range(2))
    assert repr(list(graph)) == before
    assert first.report == second.report
    assert tenon.compile(first.graph).weights == tenon.compile(second.graph).weights


def test_auto_takes_the_method_with_the_least_noise() -> None:
    report = tenon.quantize(network(), samples()).report
    tried = {name: quality for name, quality in report.methods.items() if name in METHODS}
    assert report.method == max(tried, key=lambda name: tried[name])
    assert len(tried) > 1


def test_inputs_keep_their_steps_while_other_ranges_are_widened() -> None:
    """Wider steps than those of inputs of 8 bits would round them once more; samples here are steps of 1/127."""
    given = [np.rint(127 * x) / np.float32(127) for x in samples(16)]
    given[0].flat[:2] = -1, 1
    made = tenon.quantize(network(), given, method="min-max", rounding="nearest")
    assert {"outputs x 1.1", "ranges x 1.25"} <= made.report.methods.keys()
    (node,) = made.graph.inputs[0].uses
    assert float(node.input(1).array) == pytest.approx(1 / 127, rel=1e-6)


def test_range_search_narrows_ranges_that_are_too_wide() -> None:
    graph, given = optimize(network(), fuse=False), [{"x": x} for x in samples(8)]
    placed, scheme = placement(graph), named_scheme("int8")
    seen = observed(graph, placed.tensors, given, histograms=False, threads=1, step=lambda *_: None)
    ranges = {v: (8 * each.low, 8 * each.high) for v, each in seen.items()}
    grids = {v: scheme.activation_grid(*ranges[placed.end(v)]) for v in ranges}
    simulation = Simulation(graph, placed, products(placed, grids, scheme), grids, scheme, 1)
    expected = expected_scores(graph, given, 1)
    before = simulation.noise(given, expected)[-1].total
    narrowed = searched(graph, placed, ranges, simulation, scheme, given, expected=expected, step=lambda *_: None)
    assert simulation.noise(given, expected)[-1].total < 0.9 * before
    simulation.close()
    assert all(narrowed[part] == narrowed[end] for part, end in placed.parts.items())


def test_quantised_models_and_bad_options_are_errors(tmp_path: Path) -> None:
    made = tenon.quantize(network(), samples(4), method="min-max")
    with pytest.raises(ModelError, match="quantised already"):
        tenon.quantize(made.graph, samples(4))
    with pytest.raises(InputError, match="no method 'best'"):
        tenon.quantize(network(), samples(4), method="best")
    with pytest.raises(InputError, match="no quantisation scheme 'int2'"):
        tenon.quantize(network(), samples(4), scheme="int2")
    with pytest.raises(InputError, match=r"ends in \.onnx, \.tflite or \.tmfile"):
        made.save(tmp_path / "net.pb")


# ------------------------------------------------------------------------------------------------ ranges
def seen(values: Array) -> Observed:
    observed = Observed()
    observed.add(values)
    observed.count(values)
    return observed


@pytest.mark.parametrize("method", METHODS)
def test_ranges_have_zero_and_lie_within_what_was_observed(method: str) -> None:
    rng = np.random.default_rng(0)
    for values in (rng.normal(0, 1, 10000), rng.uniform(2, 3, 1000), -rng.exponential(1, 1000), np.zeros(5)):
        observed = seen(values)
        low, high = METHODS[method](observed)
        slack = (observed.high - observed.low) / BINS
        assert observed.low - slack <= low <= 0 <= high <= observed.high + slack


def test_ends_that_one_of_many_samples_needs_are_cut_off() -> None:
    """As MACE's quantize_stat does with --enhance."""
    observed = Observed()
    for low, high in [(-1.0, 2.0)] * 30 + [(-9.0, 2.5)]:
        observed.add(np.array([low, high]))
    assert METHODS["enhance"](observed) == (-1.0, 2.5)


@pytest.mark.parametrize("method", ["percentile", "entropy", "aciq"])
def test_outliers_are_cut_off(method: str) -> None:
    values = np.append(np.random.default_rng(0).normal(0, 1, 100000), [60.0, -60.0])
    low, high = METHODS[method](seen(values))
    assert high - low < 60


def test_mean_squared_error_is_least() -> None:
    """The distribution is heavy-tailed, and all ranges that were tried are compared."""
    values = np.random.default_rng(0).laplace(0, 1, 50000)
    observed = seen(values)

    def error(low: float, high: float) -> float:
        step = (high - low) / 255
        return float(((np.clip(np.rint((values - low) / step), 0, 255) * step + low - values) ** 2).mean())

    best = error(*METHODS["mse"](observed))
    assert best <= 1.02 * min(error(observed.low * s, observed.high * s) for s in np.linspace(0.2, 1, 41))
    assert best < 0.95 * error(observed.low, observed.high)


@pytest.mark.parametrize("name", [*EIGHT_BITS, "int16x8"])
def test_zero_is_exact_on_every_grid(name: str) -> None:
    scheme = named_scheme(name)
    for low, high in ((-1.0, 3.0), (0.0, 2.5), (-7.0, 0.0), (0.0, 0.0), (0.1, 0.2)):
        grid = scheme.activation_grid(low, high)
        assert grid.quantised(np.zeros(1)) == grid.zero
        back = (grid.quantised(np.array([high])).astype(np.float64) - grid.zero.astype(np.float64)) * grid.scale
        assert abs(back - high) <= grid.scale
        if scheme.power_of_two:
            assert np.frexp(grid.scale)[0] == 0.5


def test_weights_have_a_scale_for_each_output_channel() -> None:
    weights = np.random.default_rng(0).normal(0, np.array([[[[1]]], [[[100]]]]), (2, 3, 3, 3))
    grid = named_scheme("int8").weight_grid(weights, 0)
    assert grid.dtype is DType.I8
    assert np.abs(grid.quantised(weights, 0)).reshape(2, -1).max(1).tolist() == [127, 127]


# ------------------------------------------------------------------------------------------------ samples
def image_graph() -> Graph:
    return tenon.load(DIGITS / "digits.onnx")


def test_samples_of_files(tmp_path: Path) -> None:
    graph = network()
    data = np.stack([s[0] for s in samples(6)])
    np.save(tmp_path / "all.npy", data)
    np.savez(tmp_path / "named.npz", x=data, y=np.arange(6))
    folder = tmp_path / "folder"
    folder.mkdir()
    for i, each in enumerate(data):
        np.save(folder / f"{i}.npy", each)
    for source in ("all.npy", "named.npz", "folder"):
        read = read_samples(graph, tmp_path / source, 100)
        assert np.concatenate([s["x"] for s in read]).tobytes() == data.tobytes()
        assert len(read_samples(graph, tmp_path / source, 2)) == 2
        first, second = (read_samples(graph, tmp_path / source, 3, seed)[0]["x"].tobytes() for seed in (1, 1))
        assert first == second


def test_samples_of_a_function_and_of_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    (tmp_path / "given_samples.py").write_text("import numpy as np\ndef some():\n    yield np.ones((3, 8, 8))\n")
    monkeypatch.syspath_prepend(tmp_path)
    (sample,) = read_samples(network(), "given_samples:some", 5)
    assert sample["x"].shape == (1, 3, 8, 8)
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    (sample,) = read_samples(network(), tmp_path, 5, preprocess={"scale": 1 / 255})
    np.testing.assert_allclose(sample["x"][0], pixels.transpose(2, 0, 1) / 255, atol=1e-6)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "there are no samples"),
        ([np.zeros((2, 2))], "has the shape"),
        ([{"z": np.zeros((1, 3, 8, 8))}], "no array for the input 'x'"),
        ([np.full((1, 3, 8, 8), "text")], "not numbers"),
        ([np.zeros((1, 3, 8, 8)), np.full((1, 3, 8, 8), np.inf)], "sample 1 .* infinities or NaN in the input 'x'"),
        ("missing.npz", "missing.npz: No such file"),
        ("nothing", "not a folder"),
        ("no_such_module:f", "no_such_module"),
    ],
)
def test_bad_samples(data: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        tenon.quantize(network(), data)


# ------------------------------------------------------------------------------------------------ command line
def test_digits_are_still_recognised(tmp_path: Path) -> None:
    images, labels = held_out_digits()
    made = tenon.quantize(image_graph(), images[:64], samples=64)
    with tenon.open(tenon.compile(made.graph)) as engine:
        right = sum(int(engine.run(x)["probabilities"].argmax()) == y for x, y in zip(images, labels, strict=True))
    with tenon.open(tenon.compile(image_graph())) as engine:
        floats = sum(int(engine.run(x)["probabilities"].argmax()) == y for x, y in zip(images, labels, strict=True))
    assert right >= floats - 0.02 * len(labels)


def test_report_is_json(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from tenon.cli.app import app

    images, _ = held_out_digits()
    np.save(tmp_path / "x.npy", np.concatenate(list(images[:8])))
    arguments = [
        "quantize",
        str(DIGITS / "digits.onnx"),
        "--data",
        str(tmp_path / "x.npy"),
        "-o",
        str(tmp_path / "q.onnx"),
    ]
    report = tmp_path / "report.json"
    done = CliRunner().invoke(app, [*arguments, "--method", "min-max", "--report", str(report), "--json"])
    assert done.exit_code == 0, done.output
    content = json.loads(Path(report).read_text())
    assert content["scheme"] == "int8"
    assert {t["name"] for t in content["tensors"]}
    assert content["without"]["bias correction"] == content["repairs"][""]
    assert set(content["without"]) >= {*content["repairs"]} - {""}
    assert (tmp_path / "q.onnx").stat().st_size < (DIGITS / "digits.onnx").stat().st_size


def test_samples_that_are_all_the_same(tmp_path: Path) -> None:
    """The covariance of the inputs of layers is zero then, but for rounding errors, which no matrix is inverted of."""
    graph = tenon.load(DIGITS / "digits.onnx")
    for number in (0.0, 0.3):
        np.save(tmp_path / "same.npy", np.full((4, 1, 1, 8, 8), number, np.float32))
        assert tenon.quantize(graph, data=str(tmp_path / "same.npy")).report.samples == 4


def test_samples_that_overflow_the_float_network() -> None:
    """No noise can be measured beside infinities: the error asks for the scaling of the samples."""
    weights = {"w": np.ones((4, 3, 3, 3), np.float32)}
    made = model([node("Conv", ["x", "w"], ["y"])], {"x": [1, 3, 8, 8]}, ["y"], weights)
    samples = np.full((8, 1, 3, 8, 8), 3e38, np.float32)
    with pytest.raises(InputError, match="only infinities and NaN for 'y' from these samples"):
        tenon.quantize(made.SerializeToString(), data=samples)
