"""Quantisation tools of Tengine and MACE: options, side files and messages."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import helper
from PIL import Image

import tenon
from command_line import run_main
from evaluate import evaluate
from networks_to_quantise import built
from quantised_networks import CASES, make, network
from tenon.compat.mace.__main__ import main as mace
from tenon.compat.mace.quantize_stat import overall
from tenon.compat.tengine import quant_tool
from tenon.formats.exporters.save import save
from tenon.formats.importers.tengine.file import read


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: a float tmfile for images of 9 x 7, and three images."""
    monkeypatch.chdir(tmp_path)
    save(network(CASES["relu"]), "net.tmfile")
    Path("images").mkdir()
    for i in range(3):
        pixels = np.random.default_rng(i).integers(0, 256, (9, 7, 3), np.uint8)
        Image.fromarray(pixels).save(f"images/{i}.png")
    return tmp_path


WORDS = ["-m", "net.tmfile", "-i", "images", "-o", "out.tmfile", "-g", "3,9,7", "-w", "127.5", "-s", "0.0078125"]


@pytest.mark.parametrize(
    ("tool", "algorithm", "table", "data_type"),
    [
        (quant_tool.quant_tool_int8, "0", "minmax", 2),
        (quant_tool.quant_tool_int8, "1", "kl", 2),
        (quant_tool.quant_tool_uint8, "2", "aciq", 3),
        (quant_tool.quant_tool_uint8_perchannel, "0", "minmax", 3),
    ],
)
def test_a_float_tmfile_becomes_a_quantised_one(
    tool: Callable[[], object],
    algorithm: str,
    table: str,
    data_type: int,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_main(_exiting(tool), [*WORDS, "-a", algorithm, "-t", "1"]) == 0
    printed = capsys.readouterr().err
    assert "---- Tengine Post Training Quantization Tool ----" in printed
    assert "Step 0, load calibration image files done, image num is 3." in printed
    assert f"Calibration file is using table_{table}.scale" in printed
    assert "tmfile create success" in printed
    file = read((folder / "out.tmfile").read_bytes())
    assert {t.data_type for t in file.tensors if not t.constant} == {data_type}
    names = [line.split()[0] for line in (folder / "table_minmax.scale").read_text().splitlines()]
    assert names == ["x", "c", "b"]
    x = np.random.default_rng(7).uniform(-1, 1, (1, 3, 9, 7)).astype(np.float32)
    (ours,), (real,) = (evaluate(tenon.load(n), {"x": x}).values() for n in ("out.tmfile", "net.tmfile"))
    assert np.abs(ours - real).max() < 0.1 * np.abs(real).max()


def _exiting(tool: Callable[[], object]) -> Callable[[], object]:
    """A tool that ends by returning ends with status 0."""

    def main() -> None:
        tool()
        raise SystemExit(0)

    return main


def test_a_table_that_is_given_is_used(folder: Path) -> None:
    Path("my.scale").write_text("x 0.0078740157 0\nc 0.05 0\nb 0.08 0\n")
    assert run_main(_exiting(quant_tool.quant_tool_int8), [*WORDS[:2], *WORDS[4:6], "-f", "my.scale"]) == 0
    quants = {t.name: t.quant for t in read((folder / "out.tmfile").read_bytes()).tensors if not t.constant}
    scales = [quants[name].scale[0] for name in "xcb" if quants[name] is not None]  # type: ignore[union-attr]
    assert scales == pytest.approx([0.0078740157, 0.05, 0.08], rel=1e-6)
    assert not Path("table_minmax.scale").exists()


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["-h"], 0, "path to input float32 tmfile"),
        (["-i", "images", "-o", "out.tmfile"], 255, "not specified! (-m)"),
        (["-m", "net.tmfile", "-o", "out.tmfile"], 255, "Calibration image not specified! (-i)"),
        ([*WORDS, "-q"], 255, "option -q not recognized"),
        ([*WORDS, "-g", "3,9"], 2, "-g needs three numbers"),
        ([*WORDS, "-w", "much"], 2, "-w much: write numbers"),
        ([*WORDS, "-i", "nowhere"], 2, "-i nowhere: there is no such folder"),
    ],
)
def test_errors(words: list[str], status: int, message: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(_exiting(quant_tool.quant_tool_int8), words) == status
    assert message in capsys.readouterr().err
    assert not Path("out.tmfile").exists()


@pytest.mark.parametrize(
    ("tool", "algorithm", "file"),
    [
        (quant_tool.quant_tool_int8, "4", "save_i8_eq.tmfile"),
        (quant_tool.quant_tool_int8, "3", "test_dfq_fp32.tmfile"),
        (quant_tool.quant_tool_uint8, "3", "test_dfq_fp32.tmfile"),
    ],
)
def test_equalisation_and_search(
    tool: Callable[[], object], algorithm: str, file: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(_exiting(tool), [*WORDS, "-a", algorithm, "-z", "1", "-t", "1"]) == 0
    printed = capsys.readouterr().err
    assert "Step Evaluate, evaluate quantitative losses" in printed
    losses = {name: float(cosine) for name, cosine in re.findall(r"^(\w+) +cosine similarity ([0-9.]+)", printed, re.M)}
    assert set(losses) >= {"c", "b"}
    assert all(0.99 < cosine <= 1 for cosine in losses.values())
    assert Path(file).is_file()
    x = np.random.default_rng(7).uniform(-1, 1, (1, 3, 9, 7)).astype(np.float32)
    (ours,), (side,), (real,) = (evaluate(tenon.load(n), {"x": x}).values() for n in ("out.tmfile", file, "net.tmfile"))
    assert np.abs(ours - real).max() < 0.1 * np.abs(real).max()
    if algorithm == "3":
        assert np.abs(side - real).max() < 1e-5 * np.abs(real).max()
        assert not np.array_equal(side, real)
    else:
        assert np.array_equal(side, ours)
        plain = run_main(_exiting(tool), [*WORDS, "-a", "0", "-t", "1"])
        assert plain == 0
        assert Path("out.tmfile").read_bytes() != Path(file).read_bytes()


@pytest.mark.parametrize(
    ("tool", "data_type", "scale"),
    [
        (quant_tool.quant_tool_int8, 2, 1 / 127),
        (quant_tool.quant_tool_uint8, 3, 1 / 255),
        (quant_tool.quant_tool_uint8_perchannel, 3, 1 / 255),
    ],
)
@pytest.mark.parametrize("algorithm", ["0", "1", "table"])
def test_outputs_are_integers_too(
    algorithm: str, tool: Callable[[], object], data_type: int, scale: float, folder: Path
) -> None:
    """Operators after the last product are too: a softmax has Tengine's scale, even without a line in the table."""
    graph = network(
        [
            *CASES["relu"],
            make("Softmax", ["b"], ["p"], axis=1),
            make("Sigmoid", ["b"], ["s"]),
            make("Add", ["s", "p"], ["sum"]),
        ],
        ["p", "sum"],
    )
    save(graph, "net.tmfile")
    if algorithm == "table":
        words = [*WORDS[:2], *WORDS[4:], "-f", "my.scale"]
        middle, step = (0, 0.008) if data_type == 2 else (128, 0.004)
        Path("my.scale").write_text(
            f"x 0.008 {middle}\nc {6 * step} 0\nb 0.08 {middle}\ns {step} 0\nsum {2 * step} 0\n"
        )
    else:
        words = [*WORDS, "-a", algorithm, "-t", "1"]
    assert run_main(_exiting(tool), words) == 0
    tensors = {t.name: t for t in read((folder / "out.tmfile").read_bytes()).tensors if not t.constant}
    assert {t.data_type for t in tensors.values()} == {data_type}
    assert set(tensors) == {"x", "c", "b", "p", "s", "sum"}
    assert all(t.quant is not None for t in tensors.values())
    quant = tensors["p"].quant
    assert quant is not None
    assert quant.scale[0] == pytest.approx(scale, abs=5e-7)  # six digits in a table
    assert quant.zero_point == (0,)
    x = np.random.default_rng(7).uniform(-1, 1, (1, 3, 9, 7)).astype(np.float32)
    ours, real = (evaluate(tenon.load(n), {"x": x}) for n in ("out.tmfile", "net.tmfile"))
    assert list(ours) == list(real) == ["p", "sum"]
    for name, expected in real.items():
        assert np.abs(ours[name] - expected).max() < 0.1 * np.abs(expected).max()


def test_algorithms_that_a_tool_does_not_have(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(_exiting(quant_tool.quant_tool_uint8), [*WORDS, "-a", "4", "-t", "1"]) == 0
    assert "algorithm not specified, using default type MIN MAX" in capsys.readouterr().err
    Path("my.scale").write_text("x 0.0078740157 0\nc 0.05 0\nb 0.08 0\n")
    words = [*WORDS[:2], *WORDS[4:6], "-f", "my.scale", "-a", "4"]
    assert run_main(_exiting(quant_tool.quant_tool_int8), words) == 2
    assert "need images" in capsys.readouterr().err


# ------------------------------------------------------------------------------------- what each letter does
def _calibrated_input(folder: Path, *words: str) -> float:
    """The largest magnitude of the input that images of ``folder`` give, as the table of min-max has it."""
    assert run_main(_exiting(quant_tool.quant_tool_int8), [*WORDS[:6], "-t", "1", *words]) == 0
    name, scale, zero = (folder / "table_minmax.scale").read_text().splitlines()[0].split()
    assert (name, zero) == ("x", "0")
    return float(scale) * 127


def _red_image(pixels: np.ndarray) -> None:
    """The only image: its red channel."""
    for path in Path("images").iterdir():
        path.unlink()
    Image.fromarray(np.stack([pixels, 0 * pixels, 0 * pixels], -1).astype(np.uint8)).save("images/red.png")


def test_means_and_scales_are_in_the_order_of_channels(folder: Path) -> None:
    """-b 1 (the default) makes RGB of OpenCV's BGR before -w and -s."""
    _red_image(np.full((9, 7), 200))
    assert _calibrated_input(folder) == pytest.approx(123, abs=1e-3)  # 0 - 123 of the last channel
    assert _calibrated_input(folder, "-w", "0,0,0", "-s", "1,10,100") == pytest.approx(200, abs=1e-3)
    assert _calibrated_input(folder, "-w", "0,0,0", "-s", "1,10,100", "-b", "0") == pytest.approx(20000, abs=0.1)


def test_a_centre_crop_leaves_out_an_eighth(folder: Path) -> None:
    """-c 1: 224 of the 256 pixels of the shorter side."""
    pixels = np.zeros((72, 72))
    pixels[:4] = pixels[-4:] = 255  # beyond the 63 rows in the middle
    _red_image(pixels)
    assert _calibrated_input(folder, "-w", "0,0,0") > 80
    assert _calibrated_input(folder, "-w", "0,0,0", "-c", "1") < 40


def test_the_border_of_a_letter_box_is_one_half(folder: Path) -> None:
    """-y ROWS,COLS, whatever mean and scale are."""
    _red_image(np.full((9, 1), 0))
    assert _calibrated_input(folder, "-w", "0", "-s", "0.01", "-y", "9,7") == pytest.approx(0.5, abs=1e-3)
    assert run_main(_exiting(quant_tool.quant_tool_int8), [*WORDS, "-y", "9,9"]) == 2


@pytest.mark.parametrize(("words", "size"), [([], (9, 7)), (["-g", "3,12,10"], (12, 10))])
def test_the_size_of_the_input(words: list[str], size: tuple[int, int], folder: Path) -> None:
    assert run_main(_exiting(quant_tool.quant_tool_int8), [*WORDS[:6], "-t", "1", *words]) == 0
    assert tenon.load("out.tmfile").inputs[0].type.dims == (1, 3, *size)


def test_grey_images_take_the_first_mean_and_scale(folder: Path) -> None:
    """Three of them are the default."""
    graph = built(
        [helper.make_node("Conv", ["x", "w"], ["y"])], {"w": np.ones((2, 1, 1, 1))}, [1, 1, 9, 7], [1, 2, 9, 7]
    )
    save(graph, "net.tmfile")
    _red_image(np.full((9, 7), 0))
    assert _calibrated_input(folder, "-g", "1,9,7") == pytest.approx(104, abs=1e-3)


def test_images_in_subfolders_are_read(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("images").rename("nested")
    Path("images").mkdir()
    Path("nested").rename("images/class")
    assert run_main(_exiting(quant_tool.quant_tool_int8), [*WORDS, "-t", "1"]) == 0
    assert "image num is 3." in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------ MACE
LOG = """I tensor.cc:12 Tensor range @@conv/out:0@@-1.5,2.5
noise
Tensor range @@relu@@0,4
Tensor range @@conv/out:0@@-1.0,8.0
Tensor range @@relu@@0.0,6.5
"""


def test_quantize_stat_gives_the_overall_ranges(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_text(LOG)
    assert mace(["quantize_stat", "--log_file", str(tmp_path / "log")]) == 0
    assert capsys.readouterr().out == "conv/out:0@@-1.500000,8.000000\nrelu@@0.000000,6.500000\n"
    assert mace(["quantize_stat", "--log_file", str(tmp_path / "log"), "--percentile", "50"]) == 0
    assert capsys.readouterr().out == "conv/out:0@@-1.250000,5.250000\nrelu@@0.000000,5.250000\n"


def test_enhancement_cuts_what_one_run_needs_alone() -> None:
    """One run of fifty owns nine tenths of the range; of values that are spread evenly nothing is cut."""
    highs = [100.0, *(10.0 - i / 100 for i in range(49))]
    assert overall(([0.0] * 50, highs), 0, 10) == (0.0, 10.0)
    assert overall(([0.0] * 50, highs), 0, None) == (0.0, 100.0)
    even = [float(i) for i in range(1, 51)]
    assert overall(([0.0] * 50, even), 0, 10) == (0.0, 50.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nothing", "there are no lines with 'Tensor range @@'"),
        ("Tensor range @@a@@1;2", ":1: damaged"),
        ("Tensor range @@a@@2,2", "the range of 'a' is 2 to 2"),
    ],
)
def test_damaged_logs_are_errors(text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_text(text)
    assert mace(["quantize_stat", "--log_file", str(tmp_path / "log")]) == 2
    assert message in capsys.readouterr().err


def test_a_log_of_tensor_ranges_is_what_quantize_stat_reads(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save("data.npy", np.random.default_rng(0).uniform(-1, 1, (3, 3, 9, 7)).astype(np.float32))
    assert mace(["tensor_ranges", "--model_file", "net.tmfile", "--input_dir", "data.npy"]) == 0
    Path("log").write_text(capsys.readouterr().out)
    assert mace(["quantize_stat", "--log_file", "log"]) == 0
    Path("net.range").write_text(capsys.readouterr().out)
    assert [line.split("@@")[0] for line in Path("net.range").read_text().splitlines()] == ["x", "c", "b"]
    tenon.quantize("net.tmfile", ranges="net.range")
