"""``tenon validate`` against every framework, where it is installed, on real models."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest

from command_line import run_main
from real import shared
from tenon.cli import main
from tenon.tools.peers import PEERS

pytestmark = pytest.mark.slow

KERAS = "models/keras_h5"
REAL: list[tuple[str, str, tuple[int, ...], list[str]]] = [
    ("opencv", "models/caffe/RFB-320/RFB-320.prototxt", (3, 240, 320), []),
    ("opencv", "models/darknet/yolo-fastest-1.1/yolo-fastest-1.1.cfg", (3, 320, 320), []),
    ("ncnn", "models/ncnn/version-RFB-320/RFB-320.param", (3, 240, 320), ["input=1,3,240,320"]),
    ("paddle", "models/paddle/ch_ppocr_mobile_v2.0_cls_infer/inference.pdmodel", (3, 48, 192), ["x=1,3,48,192"]),
    ("paddle", "models/paddle/uci_housing_separate_params", (13,), ["x=1,13"]),
    ("tensorflow", f"{KERAS}/mlperf_tiny_vww/vww_96.h5", (96, 96, 3), []),
    ("tensorflow", f"{KERAS}/mlperf_tiny_ad/ad01.h5", (640,), []),
    ("tensorflow", "quant/kws_ref_model", (49, 10, 1), []),
    ("tensorflow", "models/tensorflow_pb/kws_CNN/CNN_S.pb", (1, 49, 10), []),
    ("litert", "models/tflite_fp32/mlperf_tiny/vww_96_float.tflite", (96, 96, 3), []),
]


@pytest.mark.parametrize(("runtime", "file", "shape", "shapes"), REAL, ids=[f"{r}-{Path(f).name}" for r, f, *_ in REAL])
def test_real_models(
    runtime: str,
    file: str,
    shape: tuple[int, ...],
    shapes: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if not PEERS[runtime].installed:
        pytest.skip(f"{runtime} is not installed: pip install {PEERS[runtime].package}")
    model = shared(file)
    np.save(tmp_path / "x.npy", np.random.default_rng(0).uniform(0, 1, (2, *shape)).astype(np.float32))
    words = ["validate", str(model), "--data", str(tmp_path / "x.npy"), "--against", runtime, "--json"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the frameworks' own
        status = run_main(main, [*words, *(word for each in shapes for word in ("--shape", each))])
    printed = capsys.readouterr()
    assert status == 0, printed.err
    report = json.loads(printed.out)
    assert report["samples"] == 2
    assert all(output["cosine"] > 0.99999 for output in report["outputs"])
