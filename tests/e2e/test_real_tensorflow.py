"""Real TFLite, TensorFlow and Keras models as compiled bundles, compared with recorded results and on photos."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import tenon
from evaluate import difference, evaluate
from real import SHARED, shared
from tenon.errors import UnsupportedError
from tenon.formats import importers
from tenon.network import passes
from tenon.network.graph.graph import Array, Graph

TOLERANCE = 1e-4  # relative to the largest output: thousands of f32 additions in another order
SINGLE = "models/tflite_fp32/glow_single_ops"

FLOAT = [
    "tflite_fp32/hello_world/hello_world_float.tflite",
    "tflite_fp32/mlperf_tiny/ad01_fp32.tflite",
    "tflite_fp32/mlperf_tiny/pretrainedResnet.tflite",
    "tflite_fp32/version-RFB-320/version-RFB-320_without_postprocessing.tflite",
    "keras_h5/mlperf_tiny_ad/ad01.h5",
    "keras_h5/mlperf_tiny_ic_resnet8/pretrainedResnet.h5",
    "keras_h5/mlperf_tiny_sww/str_ww_ref_model.h5",
    "keras_h5/gender_mini_XCEPTION/gender_mini_XCEPTION.21-0.95.hdf5",
    *(
        pytest.param(path, marks=pytest.mark.slow)
        for path in (
            "keras_h5/mlperf_tiny_vww/vww_96.h5",
            "tflite_fp32/mlperf_tiny/vww_96_float.tflite",
            "tflite_fp32/mlperf_tiny/pretrainedResnet_large_float.tflite",
        )
    ),
]
INTEGER = [
    "hello_world/hello_world_int8",
    "micro_speech/micro_speech_quantized",
    "mlperf_tiny/ad01_int8",
    "mlperf_tiny/kws_ref_model",
    "mlperf_tiny/pretrainedResnet_quant",
    "mlperf_tiny/str_ww_ref_model",
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in (
            "mlperf_tiny/vww_96_int8",
            "mcunet/vww",
            "mcunet/detection",
            "coral_mobilenet/mobilenet_v1_0.25_128_quant",
            "coral_mobilenet/mobilenet_v1_0.5_160_quant",
            "coral_mobilenet/mobilenet_v1_0.75_192_quant",
            "coral_mobilenet/mobilenet_v2_1.0_224_quant",
        )
    ),
]


def key(name: str) -> str:
    return re.sub(r"\W", "_", name)


def golden(path: str) -> tuple[dict[str, Array], dict[str, Array]]:
    """Recorded inputs and outputs of a model, by their names without punctuation."""
    kind, stem = path.split("/")[0], Path(path).name.rpartition(".")[0]
    arrays = np.load(shared(f"models/expected/{kind}__{stem}.npz"))
    tensors: tuple[dict[str, Array], dict[str, Array]] = {}, {}
    for name in arrays:
        tensors[name.startswith("out_")][key(name.partition("_")[2])] = arrays[name]
    return tensors


def feeds(graph: Graph, inputs: dict[str, Array]) -> dict[str, Array]:
    """The recorded inputs for a graph; a single one may have another name."""
    only = next(iter(inputs.values())) if len(inputs) == 1 else None
    named = {}
    for v in graph.inputs:
        data = inputs.get(key(v.name), only)
        assert data is not None
        named[v.name] = data.reshape(v.type.dims).astype(v.type.dtype.numpy)
    return named


def compiled(graph: Graph, inputs: dict[str, Array]) -> dict[str, Array]:
    with tenon.open(tenon.compile(graph)) as engine:
        return {key(name): a for name, a in engine.run(inputs).items()}


@pytest.mark.parametrize("path", FLOAT)
def test_float_models(path: str) -> None:
    inputs, outputs = golden(path)
    graph = importers.load(shared(f"models/{path}"))
    actual = compiled(graph, feeds(graph, inputs))
    for name, expected in outputs.items():
        ours = actual[name] if name in actual else next(iter(actual.values()))
        assert difference(ours.reshape(expected.shape), expected) < TOLERANCE
    passes.optimize(graph)
    assert sum(node.op.name == "Transpose" for node in graph) <= (9 if "RFB" in path else 1)


def test_dynamic_range_model() -> None:
    """LiteRT quantises the activations at run time too; Tenon quantises the weights only."""
    path = "tflite_fp32/mlperf_tiny/kws_ref_model_float32.tflite"
    inputs, outputs = golden(path)
    graph = importers.load(shared(f"models/{path}"))
    (actual,), (expected,) = compiled(graph, feeds(graph, inputs)).values(), outputs.values()
    assert difference(actual, expected) < 2e-3


@pytest.mark.parametrize("name", INTEGER)
def test_integer_models(name: str) -> None:
    """The references match exactly. Compiled code may fuse a multiplication and an addition outside of convolutions, so
    ties of a residual sum may round the other way, by one quantisation step.
    """
    path = f"tflite_int8/{name}.tflite"
    inputs, outputs = golden(path)
    graph = importers.load(shared(f"models/{path}"))
    given = feeds(graph, inputs)
    truth, actual = ({key(k): a for k, a in f(graph, given).items()} for f in (evaluate, compiled))
    for output, expected in outputs.items():
        np.testing.assert_array_equal(truth[output], expected)
        if expected.dtype == np.float32:  # dequantised by the model: in units of the last scale
            assert difference(actual[output], expected) < 2e-2
        else:
            assert np.abs(actual[output].astype(int) - expected).max() <= 1


# ------------------------------------------------------------------------------------------- single operators
def single_names() -> list[str]:
    return sorted(p.stem for p in (SHARED / SINGLE).glob("*.tflite") if p.with_suffix(".inp0").exists())


def raw(name: str, suffix: str, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> Array:
    """A recorded tensor: one byte, then the elements."""
    return (
        np.frombuffer(shared(f"{SINGLE}/{name}.{suffix}").read_bytes(), np.uint8, offset=1).view(dtype).reshape(shape)
    )


@pytest.mark.parametrize("name", single_names() or ["absent"])
def test_single_operators(name: str) -> None:
    graph = importers.load(shared(f"{SINGLE}/{name}.tflite"))
    given = {v.name: raw(name, f"inp{i}", v.type.dtype.numpy, v.type.dims) for i, v in enumerate(graph.inputs)}
    whole = graph.copy()
    passes.optimize(graph, verify=True)
    for actual in (evaluate(whole, given), evaluate(graph, given)):
        for i, a in enumerate(actual.values()):
            expected = raw(name, f"out{i}", a.dtype, a.shape)
            assert difference(a, expected) < 1e-5


@pytest.mark.slow
def test_single_operators_compiled() -> None:
    declined = []
    for name in single_names():
        graph = importers.load(shared(f"{SINGLE}/{name}.tflite"))
        given = {v.name: raw(name, f"inp{i}", v.type.dtype.numpy, v.type.dims) for i, v in enumerate(graph.inputs)}
        try:
            bundle = tenon.compile(graph)
        except UnsupportedError:
            declined.append(name)
            continue
        with tenon.open(bundle) as engine:
            actual = engine.run(given)
        for i, v in enumerate(graph.outputs):
            assert difference(actual[v.name], raw(name, f"out{i}", v.type.dtype.numpy, v.type.dims)) < 1e-4, name
    assert not declined


@pytest.mark.parametrize(("kind", "classes"), [("fast", [2, 7, 2]), ("regular", [2, 7, 2])])
def test_detection_post_process(kind: str, classes: list[int]) -> None:
    """Real box encodings and scores of a street scene: cars and trucks, sorted by score, after NMS."""
    graph = importers.load(shared(f"{SINGLE}/tflite_detection_post_processing_{kind}.tflite"))
    names = ("boxes", "scores")
    data = [shared(f"{SINGLE}/tflite_detection_post_processing_{n}.bin").read_bytes()[1:] for n in names]
    given = {v.name: np.frombuffer(d, np.float32).reshape(v.type.dims) for v, d in zip(graph.inputs, data, strict=True)}
    reference = evaluate(graph, given)
    for name, array in compiled(graph, given).items():
        assert difference(array, {key(k): a for k, a in reference.items()}[name]) < 1e-5
    boxes, kinds, scores, count = reference.values()
    assert (boxes.shape, count.tolist()) == ((1, 10, 4), [10])
    assert kinds[0, :3].tolist() == classes
    assert (np.diff(scores[0]) <= 0).all()
    assert scores.min() >= 0.3


# ---------------------------------------------------------------------------------------------- TensorFlow 1.x
@pytest.mark.parametrize(
    ("folder", "case"), [("CNN", "yes"), ("CNN", "no"), ("DNN", "yes"), ("DS_CNN", "yes"), ("LSTM", "yes")]
)
def test_keyword_spotting(folder: str, case: str) -> None:
    labels = shared("models/tensorflow_pb/labels.txt").read_text().split()
    graph = importers.load(shared(f"models/tensorflow_pb/kws_{folder}/{folder}_S.pb"))
    arrays = np.load(shared(f"models/expected/tensorflow_pb__kws_{folder}_S_{case}.npz"))
    assert [v.name for v in graph.inputs] == ["Mfcc"]
    (actual,) = compiled(graph, feeds(graph, {"Mfcc": arrays["in_mfcc"]})).values()
    assert difference(actual, arrays["out_labels_softmax"]) < TOLERANCE
    if case == "yes":  # the recorded answer to "no" is "go"
        assert labels[int(actual.argmax())] == case


# --------------------------------------------------------------------------------------------------------- photos
def photo(path: str, size: int, *, crop: bool = False, nearest: bool = False) -> Array:
    """RGB of 0..255, [1, size, size, 3]; ``crop`` takes the middle square."""
    from PIL import Image

    with Image.open(shared(f"models/{path}")) as image:
        rgb = image.convert("RGB")
        if crop:
            side = min(rgb.size)
            left, top = (rgb.width - side) // 2, (rgb.height - side) // 2
            rgb = rgb.crop((left, top, left + side, top + side))
        how = Image.Resampling.NEAREST if nearest else Image.Resampling.BILINEAR
        return np.asarray(rgb.resize((size, size), how), np.float32)[None]


def test_animal_classifier() -> None:
    kinds = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    photos = {"cat_285.png": "cat", "dog_207.png": "dog", "darknet_eagle.jpg": "bird", "darknet_horses.jpg": "horse"}
    model = shared("models/keras_h5/mlperf_tiny_ic_resnet8/pretrainedResnet.h5")
    with tenon.open(tenon.compile(model)) as engine:
        for name, kind in photos.items():
            image = photo(f"images/{name}", 32, crop=name == "darknet_eagle.jpg")
            (actual,) = engine.run(image).values()
            assert kinds[int(actual.argmax())] == kind


def test_person_detection() -> None:
    graph = importers.load(shared("models/keras_h5/mlperf_tiny_vww/vww_96.h5"))
    for name, person in (("coral_grace_hopper.bmp", True), ("coral_cat.bmp", False)):
        (actual,) = evaluate(graph, {graph.inputs[0].name: photo(f"images/{name}", 96) / 255}).values()
        assert bool(actual[0, 1] > 0.5) is person


def test_person_detection_with_file_rejected_by_litert() -> None:
    """The quantized_dimension of the biases is out of range, but vectors have only one axis. The bytes of the photos
    are signed, as in that project's own test.
    """
    from PIL import Image

    graph = importers.load(shared("models/tflite_int8/person_detect/person_detect.tflite"))
    for name, person in (("person", True), ("no_person", False)):
        with Image.open(shared(f"models/tflite_int8/person_detect/{name}.bmp")) as image:
            data = np.frombuffer(image.tobytes(), np.int8).reshape(1, 96, 96, 1)
        (actual,) = evaluate(graph, {"input": data}).values()
        assert bool(actual.ravel()[1] > actual.ravel()[0]) is person


def test_photo_classification() -> None:
    for name, size, file, answers in (
        ("mobilenet_v1_0.25_128_quant", 128, "coral_cat.bmp", {282, 283, 286}),
        ("mobilenet_v2_1.0_224_inat_bird_quant", 224, "coral_bird.bmp", {659}),
    ):
        graph = importers.load(shared(f"models/tflite_int8/coral_mobilenet/{name}.tflite"))
        image = photo(f"images/{file}", size, nearest=True).astype(np.uint8)
        (actual,) = evaluate(graph, {graph.inputs[0].name: image}).values()
        assert int(actual.argmax()) in answers


# -------------------------------------------------------------------------------------- one net, several formats
def test_face_detector_matches_its_onnx_export() -> None:
    """TFLite's boxes and scores compared with ONNX's, which have other names and channels first."""
    image = (photo("images/rfb_faces_test.jpg", 320)[:, :240] - 127) / 128
    lite = importers.load(shared("models/tflite_fp32/version-RFB-320/version-RFB-320_without_postprocessing.tflite"))
    other = importers.load(shared("models/onnx/version-RFB-320/version-RFB-320_without_postprocessing.onnx"))
    a = {v.shape[-1]: v for v in evaluate(lite, {lite.inputs[0].name: image}).values()}
    first = np.ascontiguousarray(image.transpose(0, 3, 1, 2))
    b = {v.shape[-1]: v for v in evaluate(other, {other.inputs[0].name: first}).values()}
    assert difference(a[2], b[2]) < TOLERANCE
    assert difference(a[4], b[4]) < TOLERANCE


def test_small_residual_net_matches_its_onnx_export() -> None:
    image = photo("images/cat_285.png", 32)
    answers = []
    for path in (
        "tflite_fp32/mlperf_tiny/pretrainedResnet.tflite",
        "keras_h5/mlperf_tiny_ic_resnet8/pretrainedResnet.h5",
    ):
        graph = importers.load(shared(f"models/{path}"))
        (actual,) = evaluate(graph, {graph.inputs[0].name: image}).values()
        answers.append(actual)
    assert difference(*answers) < TOLERANCE
