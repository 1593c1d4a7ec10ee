"""``tenon compile --dump DIR`` writes every stage of a compilation."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from command_line import run_main
from onnx_models import model, node, random
from real import DIGITS
from tenon.cli import main
from tenon.machine.kernel_ir.parse import parse as parse_kernel
from tenon.network.graph.text import parse
from tenon.network.ops import constructors
from tflite_models import Model

HOW = ("--target", "x86-64-avx2", "--no-tuning")


def padded(folder: Path) -> Path:
    """A convolution of an image padded by ones, which it cannot take for its own padding of zeros."""
    nodes = [
        node("Pad", ["x", "pads", "one"], ["p"], mode="constant"),
        node("Conv", ["p", "w"], ["conv"]),
        node("Relu", ["conv"], ["y"]),
    ]
    weights = {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "one": np.array(1, np.float32), "w": random(4, 2, 3, 3)}
    path = folder / "padded.onnx"
    path.write_bytes(model(nodes, {"x": ("batch", 2, 8, 8)}, ["y"], weights).SerializeToString())
    return path


def product() -> bytes:
    """A quantised product of a vector by a matrix."""
    made = Model()
    x = made.tensor("x", (1, 4), "i8", scale=[0.1], zero=[3])
    w = made.constant("w", np.arange(-6, 6, dtype=np.int8).reshape(3, 4), scale=[0.02])
    b = made.constant("b", np.array([5, -7, 0], np.int32), scale=[0.002])
    y = made.tensor("y", (1, 3), "i8", scale=[0.05], zero=[-1])
    made.add("FULLY_CONNECTED", [x, w, b], [y], activation=0)
    return made.bytes([x], [y])


def dumped(file: Path, *more: str) -> dict[str, str]:
    """The files of a dump by their names without the number, in their order."""
    folder = file.parent / "dump"
    words = ["compile", str(file), "-o", str(file.parent / "out"), "--dump", str(folder), *more]
    assert run_main(main, words) == 0
    paths = sorted(folder.iterdir())
    assert [int(path.name[:3]) for path in paths] == list(range(1, len(paths) + 1))
    return {path.name[4:]: path.read_text() for path in paths}


def test_every_stage_is_written_in_order(tmp_path: Path) -> None:
    file = tmp_path / "digits.onnx"
    file.write_bytes((DIGITS / "digits.onnx").read_bytes())
    files = dumped(file, *HOW)
    names = list(files)
    assert names[0] == "import.txt"
    assert names[-6:] == ["rules.txt", "layouts.txt", "plan.txt", "kernels.ir", "digits.h", "digits.c"]
    assert "fuse-pointwise-operators.txt" in names
    for name in names[: names.index("rules.txt")]:
        assert parse(files[name], constructors(), fill=True).outputs
    changed = re.findall(r"^([a-z ]+): \d+ changes?$", files["rules.txt"], re.M)
    assert [name.replace(" ", "-") + ".txt" for name in changed] == names[1 : names.index("rules.txt")]
    assert "Conv" in files["import.txt"]
    assert "Fused" in files["fuse-pointwise-operators.txt"]
    assert "Fused" not in files["import.txt"]
    assert "@8(" in files["layouts.txt"]
    assert re.search(r"^input image: f32\[1,1,8,8\] at mutableWeight \+ 0$", files["plan.txt"], re.M)
    assert re.search(r"^  conv0 \(Conv\): direct ", files["plan.txt"], re.M)
    called = re.findall(r"^  \d+ (\w+)\(", files["plan.txt"], re.M)
    kernels, _, steps = files["kernels.ir"].partition("program digits() {")
    texts = re.findall(r"^kernel .*?^\}\n", kernels, re.DOTALL | re.MULTILINE)
    names = [parse_kernel(text).name for text in texts]
    run = re.findall(r"^  (\w+)\(", steps, re.M)
    assert set(run) == set(names)  # which are unique: of two kernels with one name, the second has a number
    assert [name if name in called else name.rpartition("_")[0] for name in run] == called
    assert files["digits.c"] == (tmp_path / "out" / "digits.c").read_text()


def test_rules_that_decline_are_listed_with_reasons(tmp_path: Path) -> None:
    rules = dumped(padded(tmp_path), *HOW, "--shape", "batch=1")["rules.txt"]
    declined = [line for line in rules.splitlines() if "its padding value is not that of the operator" in line]
    assert len(declined) == 1
    assert re.match(r"  \w+ declines .*conv", declined[0])


def test_the_conversion_to_integers_is_a_stage(tmp_path: Path) -> None:
    (tmp_path / "net.tflite").write_bytes(product())
    files = dumped(tmp_path / "net.tflite", *HOW, "--arithmetic", "tflm")
    assert "IntegerGemm" in files["integers.txt"]
    assert "IntegerGemm" not in files["import.txt"]


def test_bindings_follow_each_other(tmp_path: Path) -> None:
    names = list(dumped(padded(tmp_path), *HOW, "--shape", "batch=1", "--shape", "batch=2"))
    first, second = names.index("import.txt"), names.index("padded_2-import.txt")
    assert first < names.index("plan.txt") < second < names.index("padded_2-plan.txt") < names.index("kernels.ir")


def test_every_generated_file_is_written(tmp_path: Path) -> None:
    names = list(dumped(padded(tmp_path), "--target", "opencl", "--emit", "c", "--shape", "batch=1"))
    assert names[-3:] == ["padded.h", "padded.c", "padded.cl"]


def test_targets_have_folders_of_their_own(tmp_path: Path) -> None:
    out, dump = str(tmp_path / "net.tenon"), tmp_path / "dump"
    words = ["compile", str(DIGITS / "digits.onnx"), "-o", out, "--dump", str(dump), "--no-tuning"]
    assert run_main(main, [*words, "--target", "x86-64,aarch64"]) == 0
    assert sorted(path.name for path in dump.iterdir()) == ["aarch64", "x86-64"]
    assert all((folder / "001-import.txt").is_file() for folder in dump.iterdir())


def test_stages_before_an_error_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, folder = padded(tmp_path), tmp_path / "dump"
    words = ["compile", str(file), "-o", str(tmp_path / "out"), "--dump", str(folder), "--shape", "batch=1"]
    assert run_main(main, [*words, "--ram", "1"]) == 2
    names = [path.name[4:] for path in sorted(folder.iterdir())]
    assert names[0] == "import.txt"
    assert names[-1] == "rules.txt"
    assert "Traceback" not in capsys.readouterr().err


def test_folder_with_files_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "dump").mkdir()
    (tmp_path / "dump" / "notes").touch()
    words = ["compile", str(DIGITS / "digits.onnx"), "-o", str(tmp_path / "out"), "--dump", str(tmp_path / "dump")]
    assert run_main(main, words) == 2
    assert f"--dump {tmp_path / 'dump'}: the folder is not empty: name a new one" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
