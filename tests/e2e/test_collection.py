"""Every file of the model collection is tested, compiles, and gives the same results in every format it comes in.

``COVERAGE`` is the table: for each path pattern the test that checks the files' results, or the reason why there are
none to check. A file without a row fails, and so does a row without files or without its test.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tenon
from evaluate import difference, evaluate, random_inputs
from real import SHARED, shared
from tenon.formats import importers
from tenon.network.graph.graph import Array, Graph

HERE = Path(__file__).parent
TOLERANCE = 1e-4  # relative to the largest output: thousands of f32 additions in another order

BESIDE = "no model: part of a model in the same folder"
COVERAGE = {
    "README.md": "no model: documents the expected results",
    "SOURCES.tsv": "no model: where the files come from",
    "expected/*.npz": "no model: recorded results, used by tests (see test_every_golden_file_is_used)",
    "images/*": "no model: images, read by the tests of the models",
    "mace_yml/*": "no model: deployment files with addresses of models, which are not included",
    "caffe/RFB-320/*": "test_real_caffe::test_face_detector_compiled",
    "caffe/cifar10_cgo/*.npy": BESIDE,
    "caffe/cifar10_cgo/*": "test_real_caffe::test_cifar10_matches_the_authors_optimised_net",
    "caffe/prototxt_only/*.prototxt": "test_real_caffe::test_inspect_networks_without_weights",
    "caffe/prototxt_only/*.txt": BESIDE,
    "caffe2/super_resolution/squeeze_predict_net.pb": "test_real_formats::test_caffe2_predict_net_without_init_net",
    "caffe2/super_resolution/*_net.pb": "test_real_formats::test_caffe2_model_matches_the_onnx_export",
    "darknet/cfg_only/*.cfg": "test_real_darknet::test_cfg_is_imported_with_known_macs",
    "darknet/coco.names": BESIDE,
    "darknet/yolo-fastest-1.1/*": "test_real_darknet::test_yolo_fastest_matches_opencv",
    "keras_h5/*.h5": "test_real_tensorflow::test_float_models",
    "keras_h5/*.hdf5": "test_real_tensorflow::test_float_models",
    "megengine/*.md": BESIDE,
    "megengine/*.mge": "test_real_formats::test_xornet",
    "ncnn/*": "test_real_formats::test_ncnn_model_matches_ncnn_and_the_onnx_export",
    "oneflow/affine_graph/*": "test_real_formats::test_affine_graphs",
    "onnx/*.md": BESIDE,
    "onnx/mnist*.onnx": "test_compiled_models::test_digit_model_classifies_all_samples",
    "onnx/onnx_light_graphs/light_squeezenet*": "test_real_models::test_light_squeezenet_before_its_softmax",
    "onnx/onnx_light_graphs/light_*": "test_compiled_models::test_onnx_light_models",
    "onnx/silero_vad/*": "test_speech_and_images::test_silero_vad_agrees_with_onnxruntime",
    "onnx/super_resolution/*": "test_speech_and_images::test_super_resolution_of_opset_2",
    "onnx/version-RFB-320/*": "test_compiled_models::test_outputs_match_golden_files",
    "paddle/*fluid_time_file": "no model: an empty file that Paddle leaves",
    "paddle/*.prototxt": "no model: settings of Paddle's server",
    "paddle/*.info": BESIDE,
    "paddle/*": "test_real_formats::test_paddle_models",
    "tensorflow_pb/labels.txt": BESIDE,
    "tensorflow_pb/*.pb": "test_real_tensorflow::test_keyword_spotting",
    "tflite_fp32/glow_single_ops/tflite_detection_*": "test_real_tensorflow::test_detection_post_process",
    "tflite_fp32/glow_single_ops/*": "test_real_tensorflow::test_single_operators",
    "tflite_fp32/mlperf_tiny/kws_ref_model_float32.tflite": "test_real_tensorflow::test_dynamic_range_model",
    "tflite_fp32/*.tflite": "test_real_tensorflow::test_float_models",
    "tflite_int8/*.txt": BESIDE,
    "tflite_int8/*.json": BESIDE,
    "tflite_int8/*.wav": "no model: sound for test_keywords and test_speech_and_images",
    "tflite_int8/coral_mobilenet/*_inat_bird_*": "test_real_tensorflow::test_photo_classification",
    "tflite_int8/micro_speech/audio_preprocessor_float.tflite": "test_keywords::test_float_features",
    "tflite_int8/micro_speech/audio_preprocessor_int8.tflite": "test_keywords::test_keywords_with_noise_state",
    "tflite_int8/mlperf_tiny/pretrainedResnet_large_*": "test_collection::test_large_integer_residual_network",
    "tflite_int8/person_detect/*": "test_real_tensorflow::test_person_detection_with_file_rejected_by_litert",
    "tflite_int8/*.tflite": "test_real_tensorflow::test_integer_models",
    "tmfile/mnist/*": "test_real_formats::test_tmfile_digit_classifier",
    "tmfile/tengine_benchmark_noweights/*": "test_real_formats::test_benchmark_topologies",
}


def row(path: str) -> str:
    """The first row that covers a file."""
    return next((pattern for pattern in COVERAGE if fnmatchcase(path, pattern)), "")


def test_every_file_is_tested() -> None:
    root = shared("models")
    rows = {p.relative_to(root).as_posix(): "" for p in sorted(root.rglob("*")) if p.is_file()}
    rows = {path: row(path) for path in rows}
    assert [path for path, files in rows.items() if not files] == []
    assert sorted(set(COVERAGE) - set(rows.values())) == []


@pytest.mark.parametrize("where", sorted({w for w in COVERAGE.values() if "::" in w}))
def test_tests_named_in_the_table_exist(where: str) -> None:
    file, name = where.split("::")
    assert re.search(rf"^def {name}\(", (HERE / f"{file}.py").read_text(), re.MULTILINE)


def test_every_golden_file_is_used() -> None:
    """By name in a test, or by the path of the model from which test_real_tensorflow derives the name."""
    tests = "".join(p.read_text() for p in HERE.glob("test_real_*.py")) + (HERE / "test_compiled_models.py").read_text()
    for path in sorted(shared("models/expected").glob("*.npz")):
        kind, _, stem = path.stem.partition("__")
        named = stem.removesuffix("_yes").removesuffix("_no").removeprefix("kws_").removesuffix("_S")
        assert any(word in tests for word in (path.stem, f"{stem}", f'"{named}"')), (kind, stem)


# -------------------------------------------------------------------------------------------------- compiled
COMPILED: dict[str, dict[str, tuple[int, ...]]] = {
    "caffe/cifar10_cgo/train_val.prototxt": {"data": (1, 3, 32, 32)},
    "caffe2/super_resolution": {"1": (1, 1, 224, 224)},
    "megengine/xornet_deploy": {},
    "ncnn/version-RFB-320": {"input": (1, 3, 240, 320)},
    "oneflow/affine_graph/affine_no_parameter": {},
    "oneflow/affine_graph/affine_with_parameter": {},
    "paddle/ch_ppocr_mobile_v2.0_cls_infer": {"x": (1, 3, 48, 192)},
    "paddle/uci_housing_separate_params": {"x": (1, 13)},
    "tflite_int8/person_detect/person_detect.tflite": {},
    "tflite_int8/coral_mobilenet/mobilenet_v2_1.0_224_inat_bird_quant.tflite": {},
}
"""Models whose right answers are held against the operators' references only: compiled, they give the same."""


def answers(graph: Graph, given: dict[str, Array]) -> dict[str, Array]:
    with tenon.open(tenon.compile(graph)) as engine:
        return engine.run(given)


@pytest.mark.parametrize("path", COMPILED)
def test_compiled_results_match_the_references(path: str) -> None:
    weights = SHARED / "models/caffe/cifar10_cgo/cifar10.caffemodel" if "cifar10" in path else None
    graph = importers.load(shared(f"models/{path}"), shapes=COMPILED[path], weights=weights)
    given = random_inputs(graph)
    expected = evaluate(graph, given)
    for name, actual in answers(graph, given).items():
        step = 1 if actual.dtype.kind in "iu" else TOLERANCE * np.abs(expected[name]).max()
        assert np.abs(actual.astype(np.float64) - expected[name]).max() <= step


# -------------------------------------------------------------------------------------- one net, several formats
FACES = "RFB-320/version-RFB-320"
DECODED = f"onnx/version-{FACES}.onnx"
"""The one export whose boxes are decoded: only its scores are those of the others."""
TWINS: dict[str, Sequence[str]] = {
    "faces": (
        "ncnn/version-RFB-320",
        "caffe/RFB-320",
        f"onnx/version-{FACES}_without_postprocessing.onnx",
        f"onnx/version-{FACES}_simplified.onnx",
        f"tflite_fp32/version-{FACES}_without_postprocessing.tflite",
        DECODED,
    ),
    "digits": ("onnx/mnist_tengine/mnist.onnx", "tmfile/mnist/mnist.tmfile"),
    "super resolution": ("onnx/super_resolution/super_resolution.onnx", "caffe2/super_resolution"),
    "images": (
        "keras_h5/mlperf_tiny_ic_resnet8/pretrainedResnet.h5",
        "tflite_fp32/mlperf_tiny/pretrainedResnet.tflite",
    ),
    "persons": ("keras_h5/mlperf_tiny_vww/vww_96.h5", "tflite_fp32/mlperf_tiny/vww_96_float.tflite"),
}
"""ad01.h5 and ad01_fp32.tflite are not among them: their matrices are the same, but not their biases."""
SHAPES = {"ncnn/version-RFB-320": {"input": (1, 3, 240, 320)}, "caffe2/super_resolution": {"1": (1, 1, 224, 224)}}


@pytest.mark.parametrize("name", TWINS)
def test_formats_of_one_model_give_equal_results(name: str) -> None:
    """Names and order of outputs differ between formats, so outputs are matched by shape."""
    every = []
    first: Array | None = None
    for path in TWINS[name]:
        graph = importers.load(shared(f"models/{path}"), shapes=SHAPES.get(path, {}))
        (port,) = graph.inputs
        first = next(iter(random_inputs(graph).values())) if first is None else first
        turned = first if first.shape == port.type.dims else first.transpose(0, 2, 3, 1)
        actual = answers(graph, {port.name: np.ascontiguousarray(turned.reshape(port.type.dims))})
        every.append({a.shape: a for a in actual.values() if path != DECODED or a.shape[-1] == 2})
    for others in every[1:]:
        assert others
        for shape, array in others.items():
            assert difference(array, every[0][shape]) < TOLERANCE


def test_large_integer_residual_network() -> None:
    """There are no recorded results: the top classes of photos and their probabilities must be near those of the f32
    model.
    """
    paths = (
        "tflite_fp32/mlperf_tiny/pretrainedResnet_large_float",
        "tflite_int8/mlperf_tiny/pretrainedResnet_large_int8",
    )
    graphs = [importers.load(shared(f"models/{path}.tflite")) for path in paths]
    with tenon.open(tenon.compile(graphs[0])) as real, tenon.open(tenon.compile(graphs[1])) as small:
        for name in ("cat_285.png", "dog_207.png", "darknet_horses.jpg"):
            with Image.open(shared(f"models/images/{name}")) as photo:
                pixels = np.asarray(photo.convert("RGB").resize((32, 32), Image.Resampling.BILINEAR), np.float32)[None]
            (expected,) = real.run(pixels).values()
            (actual,) = small.run((pixels - 128).astype(np.int8)).values()
            assert np.abs((actual.astype(np.float32) + 128) / 256 - expected).max() < 0.1
            assert actual.argmax() == expected.argmax()
