"""Figures of speed in the pages are those of the tables of bench/NOTES.md."""

from __future__ import annotations

import re
from collections.abc import Sequence

from real import ROOT

NOTES = (ROOT / "bench" / "NOTES.md").read_text(encoding="utf-8")


def page(name: str) -> str:
    """A page as one line."""
    return " ".join((ROOT / "docs" / name).read_text(encoding="utf-8").split())


def table(section: str, first: str) -> list[dict[str, str]]:
    """The rows, by column, of the first table of a section whose first column has that name.  Of columns of one name
    the first counts."""
    text = NOTES.split(f"\n## {section}\n", 1)[1].split("\n## ", 1)[0]
    written = text[text.index(f"| {first} |") :].split("\n\n", 1)[0].splitlines()
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in written]
    return [dict(reversed(list(zip(head, row, strict=True)))) for row in rows]


def number(cell: str) -> float:
    """The first number of a cell."""
    return float(re.sub(",", "", re.findall(r"[\d.,]+", cell)[0]))


def ratios(rows: Sequence[dict[str, str]], over: str, under: str) -> list[float]:
    """One column over another, in order of size."""
    return sorted(number(row[over]) / number(row[under]) for row in rows)


def test_beside_tflite_micro() -> None:
    rows = table("TFLite's integer models on microcontrollers", "model")
    instructions = [number(row["of it"]) for row in rows]
    code = ratios(rows, "code + constants (M4)", "TFLM's")
    ram = ratios(rows, "RAM (M4)", "TFLM's arena")
    stated = page("explanation/comparison.md")
    assert len(rows) == 8
    assert "Of eight int8 networks" in stated
    assert f"{min(instructions)} to {max(instructions)} times the instructions of TFLM with CMSIS-NN" in stated
    assert f"{code[0]:.2f} to {code[-1]:.2f} times its code and constants" in stated
    assert f"{ram[0]:.2f} to {ram[-1]:.2f} times its RAM" in stated


def test_beside_ncnn_and_openvino() -> None:
    rows = table("Floats against other runtimes", "network")
    ncnn = ratios(rows, "ncnn", "tenon")
    words = {1: "one", 12: "12"}
    faster, faster_in_bf16 = (sum(r < 1 for r in ratios(rows, "openvino-default", ours)) for ours in ("tenon", "bf16"))
    stated = page("explanation/comparison.md")
    assert f"{ncnn[0]:.1f} to {ncnn[-1]:.1f} times ncnn's on {len(rows)} networks" in stated
    assert f"faster than Tenon's fp32 in {words[faster]}, and than Tenon's bf16 in {words[faster_in_bf16]}" in stated


def test_the_estimate_beside_measured_times() -> None:
    text = " ".join(NOTES.split("Selection by estimate beside tuning", 1)[1].split("\n\n", 1)[0].split())
    networks = [float(n) for n in re.findall(r"\w+ ([\d.]+) (?:%? ?)and [\d.]+", text.split("layers: ", 1)[1])]
    (mean,) = re.findall(r"Geometric mean ([\d.]+) %", text)
    stated = page("explanation/cost-model.md")
    assert f"the layers of {len(networks)} networks took {min(networks):.0f} to {max(networks):.0f} % longer" in stated
    assert f"geometric mean {mean} %" in stated


def test_integers_beside_floats_on_microcontrollers() -> None:
    rows = {row["target"]: row for row in table("ONNX models in 8 bits on microcontrollers", "target")}

    def gains(*targets: str) -> tuple[float, float]:
        cells = [rows[target][name].split("/") for target in targets for name in ("small", "digits", "mnist", "kws")]
        fewer = [number(floats) / number(integers) for floats, integers in cells]
        return min(fewer), max(fewer)

    stated = page("howto/faster.md")
    least, most = gains("cortex-m4", "cortex-m33")
    assert f"| Cortex-M4, M33 with FPU | {least:.1f} to {most:.0f} times fewer instructions |" in stated
    least, most = gains("cortex-m55")
    assert f"| Cortex-M55 (Helium) | {least:.1f} to {most:.1f} times fewer |" in stated
    least, most = gains("cortex-m0", "cortex-m3")
    assert f"| Cortex-M0+, M3: no FPU | {least:.0f} to {most:.0f} times fewer |" in stated
