#!/usr/bin/env python3
"""End-to-end demo: compile a trained network to a standalone bundle and executable, and run it on images of digits.

python examples/digits/demo.py [--out FOLDER] [--target TARGET]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table

import tenon

HERE = Path(__file__).parent
SHADES = " .:-=+*#%@"
SHOWN = 12


def held_out() -> tuple[np.ndarray, np.ndarray]:
    """(images [n, 1, 1, 8, 8] of 0..255, labels) that the network was not trained on."""
    labels = [list(map(int, line)) for line in (HERE / "held_out.txt").read_text().split()]
    sheet = np.asarray(Image.open(HERE / "held_out.png"), np.float32)
    rows, columns = len(labels), len(labels[0])
    images = sheet.reshape(rows, 8, columns, 8).transpose(0, 2, 1, 3).reshape(-1, 1, 1, 8, 8)
    return images, np.array(labels).reshape(-1)


def drawn(image: np.ndarray) -> list[str]:
    """An image as lines of text, two characters per pixel."""
    levels = (image.reshape(8, 8) / 256 * len(SHADES)).astype(int)
    return ["".join(SHADES[v] * 2 for v in row) for row in levels]


def ask(executable: Path, image: np.ndarray, folder: Path) -> tuple[int, float]:
    """(class, probability) from the standalone executable for one image, passed as a PGM file."""
    path = folder / "digit.pgm"
    path.write_bytes(b"P5\n8 8\n255\n" + image.astype(np.uint8).tobytes())
    command = [str(executable), "--top", "1", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    answer, probability = done.stdout.split()[-2:]
    return int(answer.rstrip(":")), float(probability)


def gallery(console: Console, executable: Path, images: np.ndarray, labels: np.ndarray) -> None:
    """Print some digits and the executable's predictions."""
    with tempfile.TemporaryDirectory() as folder:
        answers = [ask(executable, image, Path(folder)) for image in images]
    for start in range(0, len(images), 4):
        images = [drawn(image) for image in images[start : start + 4]]
        for lines in zip(*images, strict=True):
            console.print("   ".join(lines), highlight=False, markup=False)
        captions = []
        for (answer, probability), label in zip(answers[start : start + 4], labels[start : start + 4], strict=True):
            right = answer == label
            text = f"{answer} ({100 * probability:.0f} %)" + ("" if right else f" not {label}")
            captions.append(f"[{'green' if right else 'red'}]{text.center(16)}[/]")
        console.print("   ".join(captions) + "\n", highlight=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/digits"))
    parser.add_argument("--target", default="host")
    options = parser.parse_args()
    console = Console()

    began = perf_counter()
    bundle = tenon.compile(HERE / "digits.onnx", target=options.target)
    bundle.save(options.out, emit=(*bundle.parts, "exe"))
    console.print(f"compiled digits.onnx to {options.out}/ in {perf_counter() - began:.1f} s\n")

    images, labels = held_out()
    chosen = np.linspace(0, len(images) - 1, SHOWN).astype(int)
    gallery(console, options.out / "digits", images[chosen], labels[chosen])

    with tenon.open(options.out) as engine:
        answers = [next(iter(engine.run(image).values())).argmax() for image in images]
        times = []
        for _ in range(2000):
            start = perf_counter()
            engine.run()
            times.append(perf_counter() - start)
        report = engine.manifest
    accuracy = (np.array(answers) == labels).mean()
    table = Table(show_header=False)
    table.add_row("held-out digits right", f"{100 * accuracy:.1f} % of {len(labels)}")
    table.add_row("latency (median, called from Python)", f"{1e6 * np.median(times):.1f} µs")
    table.add_row("peak RAM", f"{report.memory.activations + report.memory.mutable} bytes")
    table.add_row("code size", f"{report.size.code + report.size.data} bytes")
    table.add_row("weights", f"{report.memory.constant} bytes")
    console.print(table)
    return 0 if accuracy >= 0.97 else 1


if __name__ == "__main__":
    sys.exit(main())
