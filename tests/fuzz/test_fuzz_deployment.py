"""Damaged deployment files of both forms are one error of Tenon's, or are read."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tenon.errors import TenonError
from tenon.tools.deployment import read_deployment

SEEDS = {
    "tenon": """\
name: two
defaults: &all {targets: [host, aarch64], threads: 2}
models:
  faces:
    <<: *all
    model: ${HOME}/faces.prototxt
    sha256: 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
    inputs: {image: {shape: [1, 3, 24, 32], format: NCHW, type: float32, range: [-1, 1], data: [a.npy, b.npy]}}
    outputs: [boxes, scores]
    quantize: {data: photos, scheme: int8, samples: 128, exclude: a}
    validate: {cpu: 0.99, targets: {host: 0.9}}
    ram: 64K
""",
    "mace": """\
library_name: lib
target_abis: [armeabi-v7a, host]
model_graph_format: file
models:
  net:
    platform: tensorflow
    model_file_path: net.pb
    subgraphs:
      - input_tensors: [x, y]
        input_shapes: ["1,4,6,3", "1,4"]
        output_tensors: z
        output_shapes: 1,4
        input_ranges: [[-1, 1], "0,1"]
        validation_inputs_data: [x.npy, y.npy]
        accuracy_validation_script: a.py
    runtime: cpu+gpu
    quantize: 1
    validation_threshold: {CPU: 0.9}
""",
}
WORDS = (
    "null",
    "[]",
    "{}",
    "-1",
    "1e400",
    ".nan",
    "0x",
    "&a",
    "*a",
    "!!set",
    "${X}",
    "\t",
    ": ",
    "- ",
    "'",
    "|",
    "\x85",
)


def damaged(text: str, rng: random.Random) -> str:
    for _ in range(rng.randint(1, 4)):
        at, end = sorted(rng.randrange(len(text) + 1) for _ in range(2))
        kind = rng.randrange(4)
        if kind == 0:
            text = text[:at] + rng.choice(WORDS) + text[at:]
        elif kind == 1:
            text = text[:at] + text[min(end, at + 12) :]
        elif kind == 2:
            text = text[:at] + text[at:end] + text[at:]
        else:
            lines = text.splitlines(keepends=True)
            rng.shuffle(lines)
            text = "".join(lines)
        text = text or " "
    return text


@pytest.mark.parametrize("form", SEEDS)
def test_damaged_deployment_files(form: str, tmp_path: Path) -> None:
    path = tmp_path / "deploy.yml"
    read, messages = 0, set()
    for seed in range(100):
        path.write_text(damaged(SEEDS[form], random.Random(seed)), encoding="utf-8")
        try:
            read += bool(read_deployment(path, {"HOME": "/data"}).models)
        except TenonError as error:
            messages.add(str(error))
    assert 0 < read < 100
    assert all(messages)
