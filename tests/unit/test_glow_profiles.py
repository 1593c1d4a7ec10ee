"""Glow's ``model-profiler`` and ``model-tuner``, as installed commands, and ``-quantization-precision=Int16``."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

import tenon
from installed import SCRIPT, environment
from networks_to_quantise import built
from tenon.compat.glow.model import quantised
from tenon.compat.glow.options import LOADER, parse
from tenon.compat.glow.tuner import halved
from tenon.errors import InputError
from tenon.network.graph.graph import Array
from tenon.tools.quantization.glow_profile import GlowProfile, GlowRange
from tenon.tools.quantization.glow_profile import parse as parse_profile

SHAPE = (1, 1, 8, 8)
CLASSES = 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    w = numpy_helper.from_array(rng.standard_normal((4, 1, 3, 3)).astype(np.float32), "w")
    f = numpy_helper.from_array(rng.standard_normal((144, CLASSES)).astype(np.float32), "f")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Flatten", ["r"], ["q"]),
        helper.make_node("MatMul", ["q", "f"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, CLASSES])
    graph = helper.make_graph(nodes, "main_graph", [x], [y], [w, f])
    path = tmp_path_factory.mktemp("glow") / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)]), path)
    return path


@pytest.fixture(scope="module")
def pixels() -> Array:
    """Images of bytes, [12, 8, 8]."""
    return np.random.default_rng(1).integers(0, 256, (12, *SHAPE[2:]), np.uint8)


@pytest.fixture(scope="module")
def scores(model: Path, pixels: Array) -> Array:
    """The scores of the float model on the images, [12, CLASSES]."""
    with tenon.open(tenon.compile(model)) as engine:
        return np.concatenate([engine.run(feed(image))["y"].copy() for image in pixels])


def feed(image: Array) -> Array:
    """An image as ``-image-mode=0to1`` reads it."""
    return (image * np.float32(1 / 255)).reshape(SHAPE)


def command(name: str, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    script = SCRIPT.with_name(name)
    if not script.exists():
        pytest.skip("the package is not installed: no console script beside this Python")
    return subprocess.run(
        [script, *words], cwd=cwd, env=environment(), capture_output=True, text=True, check=False, timeout=300
    )


def images(folder: Path, pixels: Array) -> None:
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(folder / f"{number:02}.png")


@pytest.mark.parametrize("form", ["rawbin", "rawtxt"])
@pytest.mark.parametrize("source", ["dir", "file", "file in a folder"])
def test_profile_of_files(form: str, source: str, model: Path, pixels: Array, scores: Array, tmp_path: Path) -> None:
    """The profile has the ranges of all files, and ``model-compiler`` quantises by it."""
    (tmp_path / "data").mkdir()
    names = [f"{number:02}.dat" for number in range(len(pixels))]
    for name, image in zip(names, pixels, strict=True):
        array = feed(image)
        text = ",\n".join(repr(float(v)) for v in array.reshape(-1)) + ",\n"
        (tmp_path / "data" / name).write_bytes(array.tobytes() if form == "rawbin" else text.encode())
    where = {"dir": "dir,data", "file": "file,list.csv", "file in a folder": "file,list.csv,data"}[source]
    folder = "data/" if source == "file" else ""
    (tmp_path / "list.csv").write_text("\n".join(f"{folder}{name} ,7" for name in names) + "\n\n")
    made = command(
        "model-profiler", f"-m={model}", f"-input-dataset=x,{form},{where}", "-dump-profile=p.yml", cwd=tmp_path
    )
    assert made.returncode == 0, made.stderr
    ranges = parse_profile((tmp_path / "p.yml").read_text(), "p.yml").ranges
    assert {"x:0", "r:0", "y:0"} <= ranges.keys()
    assert (ranges["y:0"].least, ranges["y:0"].greatest) == pytest.approx((scores.min(), scores.max()), rel=1e-5)
    assert sum(ranges["y:0"].histogram) == pytest.approx(scores.size)
    done = command("model-compiler", f"-m={model}", "-load-profile=p.yml", "-emit-bundle=q", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-input-dataset=x,rawbin,dir,data"], "Use the 'dump-profile' option"),
        (["-dump-profile=p.yml"], "write -input-dataset=INPUT,rawbin|rawtxt,file|dir,PATH"),
        (["-dump-profile=p.yml", "-input-dataset=x,npy,dir,data"], "write -input-dataset=INPUT"),
        (["-dump-profile=p.yml", "-input-dataset=x,rawbin,dir"], "write -input-dataset=INPUT"),
        (["-dump-profile=p.yml", "-input-dataset=z,rawbin,dir,data"], "'z' is no input: the model has x"),
        (["-dump-profile=p.yml", "-input-dataset=x,rawbin,dir,none"], "there is no such folder"),
        (["-dump-profile=p.yml", "-input-dataset=x,rawbin,dir,data"], "has 3 bytes, and input 'x' 256"),
        (["-dump-profile=p.yml", "-input-dataset=x,rawtxt,dir,data"], "has 1 numbers, and input 'x' 64"),
    ],
)
def test_refusals_of_the_profiler(words: list[str], message: str, model: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.bin").write_text("1.5")
    done = command("model-profiler", f"-model={model}", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "p.yml").exists()


def test_tuned_profile(model: Path, pixels: Array, scores: Array, tmp_path: Path) -> None:
    """A profile whose range of ``r`` is far too wide is narrowed, until the quantised model gives the float answers."""
    images(tmp_path, pixels)
    labels = scores.argmax(axis=1)
    (tmp_path / "set.csv").write_text("".join(f"{n:02}.png,{label},\n" for n, label in enumerate(labels)))
    profile = GlowProfile.of(tenon.load(model))
    for image in pixels:
        with tenon.open(tenon.compile(model)) as engine:
            profile.add({"x:0": feed(image), "y:0": engine.run(feed(image))["y"]})
    top = 200.0  # steps of 0.8: some answers change
    profile.ranges |= {"c:0": GlowRange(-top, top, [1.0] * 10), "r:0": GlowRange(0.0, top, [96.0] + [0.0] * 9)}
    (tmp_path / "wide.yml").write_text(profile.text())
    words = (
        f"-m={model}",
        "-i=0to1",
        "-load-profile=wide.yml",
        "-dataset-file=set.csv",
        "-dataset-path=.",
        "-dump-tuned-profile=tuned.yml",
    )
    done = command("model-tuner", *words, "-max-iter-per-node=12", "-acc-drop-skip=1.0", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Initial accuracy: 100.0000 % (FLOAT)" in done.stdout
    before, after = (
        float(re.findall(rf"{when} accuracy: ([\d.]+) % \(QUANTIZED\)", done.stdout)[0])
        for when in ("Initial", "Final")
    )
    assert before < after
    tuned = parse_profile((tmp_path / "tuned.yml").read_text(), "tuned.yml")
    assert tuned.graph_hash == profile.graph_hash
    assert tuned.ranges.keys() == profile.ranges.keys()
    assert tuned.ranges["r:0"].greatest < top
    again = command(
        "model-tuner",
        *(w.replace("wide", "tuned") for w in words[:-1]),
        "-dump-tuned-profile=again.yml",
        "-max-iter-per-node=0",
        cwd=tmp_path,
    )
    assert f"Initial accuracy: {after:.4f} % (QUANTIZED)" in again.stdout
    early = command("model-tuner", *words[:-1], "-dump-tuned-profile=early.yml", "-target-accuracy=0.1", cwd=tmp_path)
    assert before > 10
    assert "Target accuracy achieved! Tuning is stopped ..." in early.stdout


def test_refusals_of_the_tuner(model: Path, pixels: Array, tmp_path: Path) -> None:
    images(tmp_path, pixels[:1])
    (tmp_path / "set.csv").write_text("00.png\n")
    words = (f"-m={model}", "-dataset-path=.", "-dump-tuned-profile=t.yml")
    for more, message in (
        (["-load-profile=p.yml"], "-dataset-file is missing"),
        (["-dataset-file=set.csv"], "Input profile not found. Use the -load-profile option!"),
    ):
        done = command("model-tuner", *words, *more, cwd=tmp_path)
        assert done.returncode == 2
        assert message in done.stderr
    profile = GlowProfile.of(tenon.load(model))
    profile.add({"x:0": feed(pixels[0])})
    (tmp_path / "p.yml").write_text(profile.text())
    done = command("model-tuner", *words, "-dataset-file=set.csv", "-load-profile=p.yml", cwd=tmp_path)
    assert "set.csv:1: write a file and its label" in done.stderr


def test_halved_ranges() -> None:
    """Around the mean of the values, or around 0."""
    assert halved(GlowRange(-2.0, 6.0, [1.0, 1.0]), symmetric=False) == GlowRange(0.0, 4.0, [1.0, 1.0])
    assert halved(GlowRange(0.0, 8.0, [3.0, 1.0]), symmetric=False) == GlowRange(1.5, 5.5, [3.0, 1.0])
    assert halved(GlowRange(-2.0, 6.0, [1.0, 1.0]), symmetric=True) == GlowRange(-3.0, 3.0, [1.0, 1.0])


def test_activations_of_16_bits(model: Path, pixels: Array, scores: Array, tmp_path: Path) -> None:
    """``-quantization-precision=Int16`` is nearer to float than Int8."""
    images(tmp_path, pixels)
    files, words = [f"{n:02}.png" for n in range(len(pixels))], (f"-m={model}", "-i=0to1", f"-topk={CLASSES}")
    made = command("image-classifier", *files, *words, "-dump-profile=p.yml", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    errors = {}
    for precision in ("Int8", "Int16"):
        options = ("-load-profile=p.yml", f"-quantization-precision={precision}", "-assert-all-nodes-quantized")
        done = command("image-classifier", *files, *words, *options, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        rows = re.findall(r"Label-K\d: (\d+) \(probability: (-?[\d.]+)\)", done.stdout)
        printed = np.zeros_like(scores)
        for n, (label, value) in enumerate(rows):
            printed[n // CLASSES, int(label)] = float(value)
        errors[precision] = float(np.abs(printed - scores).mean())
        bundle = command("model-compiler", words[0], *options, f"-emit-bundle={precision}", cwd=tmp_path)
        assert bundle.returncode == 0, bundle.stderr
    assert errors["Int16"] < errors["Int8"]
    refused = command(
        "model-compiler",
        words[0],
        *options,
        "-quantization-schema=symmetric_with_power2_scale",
        "-emit-bundle=z",
        cwd=tmp_path,
    )
    assert "there are 8 bits only" in refused.stderr


def test_kinds_of_nodes_that_keep_their_precision(tmp_path: Path) -> None:
    """By Glow's names and by ONNX's, also of nodes that are folded together: the sum is the convolution's bias."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((2, 3, 1, 1)), "b": rng.standard_normal((1, 2, 1, 1)), "v": np.ones((8, 4))}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Add", ["c", "b"], ["s"]),
        helper.make_node("Flatten", ["s"], ["f"]),
        helper.make_node("MatMul", ["f", "v"], ["y"]),
    ]
    graph = built(nodes, weights, [1, 3, 2, 2], [1, 4])
    profile = GlowProfile.of(graph)
    profile.add({f"{name}:0": np.array([-4, 4], np.float32) for name in ("x", "s", "y")})
    (tmp_path / "p.yml").write_text(profile.text())

    def floats(*kinds: str) -> set[str]:
        """Products of weights that are no integers."""
        words = ["-m=net", f"-load-profile={tmp_path / 'p.yml'}"]
        kept = [f"-keep-original-precision-for-nodes={kind}" for kind in kinds]
        made = quantised(parse([*words, *kept], LOADER), graph)
        return {n.op.name for n in made if n.op.name in ("Conv", "Gemm", "MatMul") and n.input(1).constant}

    assert floats() == set()
    assert floats("Convolution") == floats("conv") == {"Conv"}
    assert floats("FullyConnected") == {"MatMul"}
    with pytest.raises(InputError, match="Nonsense: there is no such kind of node"):
        floats("Nonsense")
