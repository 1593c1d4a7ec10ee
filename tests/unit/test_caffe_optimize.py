"""Rewritten Caffe nets: results are unchanged, layers are folded where possible and kept otherwise."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import tenon
from caffe_models import Blobs, caffemodel, head, layer, random
from command_line import run_main
from evaluate import difference, evaluate
from tenon.errors import FormatError, InputError
from tenon.formats import importers
from tenon.formats.exporters.caffe import Optimised, Settings, optimise
from tenon.formats.model_files.model_file import ModelFile
from tenon.network.graph.graph import Array
from tenon.pipeline import rewrite

NORM = [random(4), random(4) + 2, np.array([2.0])]
SCALE = [random(4, seed=3) + 2, random(4, seed=4)]


def optimised(text: str, blobs: Blobs, settings: Settings | None = None) -> Optimised:
    return optimise(
        ModelFile("net.prototxt", text.encode(), weights=ModelFile("w", caffemodel(blobs))), settings or Settings()
    )


def answers(text: str | bytes, weights: bytes, x: Array) -> list[Array]:
    graph = importers.load(text.encode() if isinstance(text, str) else text, weights=weights)
    return list(evaluate(graph, {graph.inputs[0].name: x}).values())


def equal(text: str, blobs: Blobs, x: Array) -> Optimised:
    """Rewrite a net and check that its results are unchanged, loaded from the text and from the weights file alone."""
    made = optimised(text, blobs)
    before = answers(text, caffemodel(blobs), x)
    after = answers(made.prototxt(), made.caffemodel(), x)
    for a, b in zip(after, before, strict=True):
        assert difference(a, b) < 1e-5
    return made


def types(made: Optimised) -> list[str]:
    return [one.type for one in made.net.layer]


def norms(bottom: str, scale: str = "scale_param { bias_term: true }") -> str:
    return (
        layer("BatchNorm", "", (bottom,), "b", "bn")
        + layer("Scale", scale, ("b",), "s", "sc")
        + layer("ReLU", "", ("s",), "y", "relu")
    )


CONVOLUTION = "convolution_param {{ num_output: 4 kernel_size: 3 group: {} bias_term: {} }}"


@pytest.mark.parametrize("type", ["Convolution", "Deconvolution"])
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("bias", ["true", "false"])
def test_norms_fold_into_convolutions(type: str, group: int, bias: str) -> None:
    options = CONVOLUTION.format(group, bias)
    shape = (4, 6 // group, 3, 3) if type == "Convolution" else (6, 4 // group, 3, 3)
    weights = [random(*shape)] + ([random(4)] if bias == "true" else [])
    text = head(2, 6, 5, 5) + layer(type, options, top="c", name="c") + norms("c")
    made = equal(text, {"c": weights, "bn": NORM, "sc": SCALE}, random(2, 6, 5, 5))
    assert types(made) == ["Input", type, "ReLU"]
    assert made.net.layer[1].convolution_param.bias_term


@pytest.mark.parametrize("transpose", [False, True])
def test_norms_fold_into_inner_products(transpose: bool) -> None:
    options = f"inner_product_param {{ num_output: 4 transpose: {str(transpose).lower()} }}"
    w = random(3, 4) if transpose else random(4, 3)
    text = (
        head(2, 3)
        + layer("InnerProduct", options, top="c", name="c")
        + norms("c")
        + layer("Dropout", "", ("y",), "z", "d")
    )
    made = equal(text, {"c": [w, random(4)], "bn": NORM, "sc": SCALE}, random(2, 3))
    assert types(made) == ["Input", "InnerProduct", "ReLU"]
    assert made.net.layer[-1].top == ["z"]  # an output keeps its name


def test_norms_that_cannot_be_folded_are_kept() -> None:
    weights = {"c": [random(4, 2, 3, 3), random(4)], "bn": NORM, "sc": SCALE}
    convolution = head(1, 2, 5, 5) + layer("Convolution", CONVOLUTION.format(1, "true"), top="c", name="c")
    x = random(1, 2, 5, 5)
    twice = equal(convolution + norms("c") + layer("TanH", "", ("c",), "t", "t"), weights, x)
    assert types(twice)[2:4] == ["BatchNorm", "Scale"]
    assert any("kept, it does not follow" in line for line in twice.log)
    alone = head(1, 4, 3, 3) + norms("data")
    assert types(equal(alone, {"bn": NORM, "sc": SCALE}, random(1, 4, 3, 3)))[1:3] == ["BatchNorm", "Scale"]
    other = equal(convolution + norms("c", "scale_param { num_axes: 0 }"), {**weights, "sc": [np.array(3.0)]}, x)
    assert types(other) == ["Input", "Convolution", "Scale", "ReLU"]
    batch = layer("BatchNorm", "batch_norm_param { use_global_stats: false }", ("c",), "b", "bn")
    assert types(equal(convolution + batch, weights, x)) == ["Input", "Convolution", "BatchNorm"]


def test_in_place_only_without_other_readers() -> None:
    text = head(1, 3) + layer("AbsVal", "", top="a", name="a") + layer("ReLU", "", ("a",), "r", "r")
    text += layer("TanH", "", ("r",), "t", "t") + layer("Eltwise", "", ("r", "t"), "e", "e")
    made = equal(text, {"none": [random(1)]}, random(1, 3))
    tops = {one.name: one.top[0] for one in made.net.layer}
    assert tops == {"data": "data", "a": "a", "r": "a", "t": "t", "e": "e"}
    assert optimised(text, {"none": [random(1)]}, Settings(in_place=False)).net.layer[2].top == ["r"]


def test_reused_blob_names() -> None:
    """Computing the second layer in place would overwrite the blob that the last layer reads."""
    text = head(1, 3) + layer("AbsVal", "", top="a", name="a") + layer("ReLU", "", ("a",), "r", "r")
    text += layer("Power", "power_param { scale: 3 }", ("data",), "a", "p") + layer("Eltwise", "", ("r", "a"), "e", "e")
    equal(text, {"none": [random(1)]}, random(1, 3))


# ----------------------------------------------------------------------------------------------- input
def data_layer(options: str) -> str:
    return (
        f'layer {{ name: "data" type: "Data" top: "data" top: "label" transform_param {{ crop_size: 6 {options} }} }}\n'
    )


def first(pad: int) -> str:
    return layer("Convolution", f"convolution_param {{ num_output: 4 kernel_size: 3 pad: {pad} }}", top="c", name="c")


def test_mean_and_scale_of_the_input() -> None:
    text = data_layer("scale: 0.5 mean_value: [10, 20, 30]") + first(0)
    weights = {"c": [random(4, 3, 3, 3), random(4)]}
    made = optimised(text, weights)
    assert made.net.layer[0].transform_param.scale == 1
    assert len(made.net.layer[0].transform_param.mean_value) == 0
    x = random(1, 3, 6, 6) * 100
    mean = np.array([10, 20, 30], np.float32).reshape(3, 1, 1)
    (before,) = answers(text, caffemodel(weights), (x - mean) * np.float32(0.5))
    assert difference(answers(made.prototxt(), made.caffemodel(), x)[0], before) < 1e-5


def test_mean_is_not_folded_into_padded_convolutions() -> None:
    made = optimised(data_layer("scale: 0.5 mean_value: 10") + first(1), {"c": [random(4, 3, 3, 3), random(4)]})
    assert made.net.layer[0].transform_param.mean_value.tolist() == [10]
    assert made.net.layer[0].transform_param.scale == 1
    assert "data: its mean is kept, c pads (or has groups)" in made.log


def test_nets_without_weights_are_not_folded() -> None:
    with pytest.raises(FormatError, match="its weights are needed"):
        optimise(ModelFile("net.prototxt", (head(1, 3) + layer("ReLU")).encode()))


def test_unknown_layers_are_kept() -> None:
    text = head(1, 3) + layer("TanH", 'mystery_param { depth: 3 note: "}" }')
    assert 'mystery_param { depth: 3 note: "}" }' in optimised(text, {"none": [random(1)]}).prototxt()


# ------------------------------------------------------------------------------------------- config.ini
CONFIG = """[DEFAULT]
pycaffe_path = /nowhere/python
original_prototxt_path = ./net.prototxt
original_model_path = ./net.caffemodel
optimized_prototxt_path = ./out/opt.prototxt
optimized_model_path = ./out/opt.caffemodel
# a comment
merge_bn_scale = yes
merge_input_scale = {}
merge_input_mean = {}
mean_proto_path = ./{}
mean_R = 30
mean_G = 20
mean_B = 10
input_scale = 0.5
H = 6
W = 6
C = 3
merge_dropout = no
merge_inplace_memory = yes
"""


@pytest.mark.parametrize(("scale", "mean"), [("yes", "yes"), ("no", "yes"), ("yes", "no"), ("no", "no")])
@pytest.mark.parametrize("image", [False, True])
def test_config_ini(tmp_path: Path, scale: str, mean: str, image: bool) -> None:
    text = head(1, 3, 6, 6) + first(0) + layer("Dropout", "", ("c",), "y", "d")
    weights = caffemodel({"c": [random(4, 3, 3, 3), random(4)]})
    (tmp_path / "net.prototxt").write_text(text)
    (tmp_path / "net.caffemodel").write_bytes(weights)
    (tmp_path / "config.ini").write_text(CONFIG.format(scale, mean, "mean.npy" if image else "absent.npy"))
    np.save(tmp_path / "mean.npy", np.broadcast_to(np.array([1.0, 2.0, 3.0])[:, None, None], (3, 8, 8)))
    files, _ = rewrite(str(tmp_path / "config.ini"), None)
    assert [f.name for f in files] == ["opt.prototxt", "opt.caffemodel"]
    x = random(1, 3, 6, 6) * 100
    offset = np.array([1, 2, 3] if image else [10, 20, 30], np.float32).reshape(3, 1, 1)
    shifted = x - offset if mean == "yes" else x
    (before,) = answers(text, weights, shifted * np.float32(0.5) if scale == "yes" else shifted)
    (after,) = answers(files[0].read_bytes(), files[1].read_bytes(), x)
    assert difference(after, before) < 1e-5
    assert "Dropout" in files[0].read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("original_model_path", "nothing"), "the key 'original_model_path' is missing"),
        (("merge_bn_scale = yes", "merge_bn_scale = perhaps"), "not a configuration that can be read"),
        (("[DEFAULT]", ""), "not a configuration that can be read"),
        (("C = 3", "C = 4294967296"), "C is 4294967296, which no image has"),
        (("./net.prototxt", "./net\0"), "is not the name of a file"),
    ],
)
def test_invalid_configurations(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    (tmp_path / "config.ini").write_text(CONFIG.format("yes", "yes", "").replace(*change))
    with pytest.raises(InputError, match=message):
        rewrite(str(tmp_path / "config.ini"), None)


def test_output_paths(tmp_path: Path) -> None:
    text = head(1, 3, 6, 6) + first(0)
    (tmp_path / "net.prototxt").write_text(text)
    (tmp_path / "net.caffemodel").write_bytes(caffemodel({"c": [random(4, 3, 3, 3), random(4)]}))
    names = {
        "folder": ["folder/net.prototxt", "folder/net.caffemodel"],
        "a.prototxt": ["a.prototxt", "a.caffemodel"],
        "a.onnx": ["a.onnx"],
        "a.tflite": ["a.tflite"],
        "a.tmfile": ["a.tmfile"],
    }
    for out, expected in names.items():
        files, _ = rewrite(tmp_path / "net.prototxt", tmp_path / out)
        assert [str(f.relative_to(tmp_path)) for f in files] == expected
    for file in ("a.onnx", "a.tflite", "a.tmfile"):
        assert len(tenon.load(tmp_path / file)) > 0
    with pytest.raises(InputError, match="files without weights are ONNX"):
        rewrite(tmp_path / "a.onnx", tmp_path / "b.tflite", without_weights=True)
    with pytest.raises(InputError, match="give the place to write"):
        rewrite(tmp_path / "net.prototxt", None)
    with pytest.raises(InputError, match="only a Caffe net can become a Caffe net"):
        rewrite(tmp_path / "a.onnx", tmp_path / "b.prototxt")


def test_optimize_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tenon.cli import main

    (tmp_path / "net.prototxt").write_text(head(1, 2, 5, 5) + layer("Convolution", CONVOLUTION.format(1, "true")))
    weights = tmp_path / "other.weights"
    weights.write_bytes(caffemodel({"it": [random(4, 2, 3, 3), random(4)]}))
    arguments = [str(tmp_path / "net.prototxt"), "--weights", str(weights)]
    assert run_main(main, ["optimize", *arguments, "-o", str(tmp_path / "out"), "--json"]) == 0
    assert [Path(p).name for p in json.loads(capsys.readouterr().out)["files"]] == ["net.prototxt", "net.caffemodel"]
    assert run_main(main, ["optimize", *arguments]) == 2
    assert "give the place to write" in capsys.readouterr().err
    assert run_main(main, ["inspect", str(tmp_path / "net.prototxt")]) == 0
    assert "multiply-accumulates" in capsys.readouterr().out
    assert run_main(main, ["compile", str(tmp_path / "net.prototxt"), "-o", str(tmp_path / "bundle")]) == 2
    assert "its weights were not given; name their file with --weights" in " ".join(capsys.readouterr().err.split())
