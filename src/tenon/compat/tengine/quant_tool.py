"""``quant_tool_int8``, ``quant_tool_uint8``, ``quant_tool_uint8_perchannel``: a float tmfile and images to a quantised
tmfile, with the options, side files and messages of Tengine's tools (``tools/quantize`` of OAID/Tengine).

Every tensor of the file that is no constant is of 8 bits, outputs too: programs read integers and the scale.
"""

from __future__ import annotations

import getopt
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import tenon
from tenon import __version__
from tenon.cli.program import run_command
from tenon.cli.translation import translated_message
from tenon.errors import InputError, ShapeError
from tenon.formats.exporters.save import save
from tenon.network.graph.graph import Graph
from tenon.network.ops.softmax import Softmax
from tenon.tools.quantization.by_ranges import calibrated_ranges, equalised_model, quantize_by_ranges
from tenon.tools.quantization.comparison import compare
from tenon.tools.quantization.range_files import Ranges, read_ranges, write_ranges
from tenon.tools.quantization.samples import SUFFIXES, Sample, read_samples, sample_files
from tenon.tools.quantization.scheme import named_scheme

_LETTERS = "m:a:f:o:i:g:s:w:b:c:y:k:z:t:h"
_DFQ, _EQ = 3, 4
_ALGORITHMS = {
    0: ("MIN MAX", "minmax", "min-max"),
    1: ("KL", "kl", "entropy"),
    2: ("ACIQ", "aciq", "aciq"),
    _DFQ: ("DFQ", "minmax", "min-max"),
    _EQ: ("MM EQ", "minmax", "min-max"),
}
"""Algorithms of ``-a``: as the tools print them, in the name of the table, and as Tenon names them."""

MOST = 64
"""Images that weights are rounded for, channels equalised on, and tensors compared on."""

_HELP = """[Quant Tools Info]: optional arguments:
\t-h    help            show this help message and exit
\t-m    input model     path to input float32 tmfile
\t-i    image dir       path to calibration images folder
\t-f    scale file      path to calibration scale file
\t-o    output model    path to output {kind} tmfile
\t-a    algorithm       the type of quant algorithm(0:min-max, 1:kl, 2:aciq, 3:dfq, 4:eq, default is 0)
\t-g    size            the size of input image(default is 3,224,224)
\t-w    mean            value of mean (default is 104.0,117.0,123.0)
\t-s    scale           value of normalize (default is 1.0,1.0,1.0)
\t-b    swapRB          swap first and last channels(0:OFF, 1:ON, default is 1)
\t-c    center crop     crop the center of images(0:OFF, 1:ON, default is 0)
\t-y    letter box      the size of the letter box [rows, cols], default is [0, 0]
\t-k    focus           YOLOv5's focus(0:OFF, 1:ON, default is 0)
\t-z    evaluate        compare with float, tensor by tensor(0:OFF, 1:ON, default is 0)
\t-t    num thread      count of processing threads(default is 4)
"""


@dataclass(frozen=True)
class Tool:
    """One of the tools: what it is called, what it makes, and Tenon's scheme for that."""

    name: str
    kind: str
    status: str
    scheme: str
    algorithms: tuple[int, ...]


INT8 = Tool("quant_tool_int8", "int8", "int8, per-channel, symmetric", "int8-symmetric", (0, 1, 2, _DFQ, _EQ))
UINT8 = Tool("quant_tool_uint8", "uint8", "uint8, per-layer, asymmetric", "uint8", (0, 1, 2, _DFQ))
UINT8_PERCHANNEL = Tool(
    "quant_tool_uint8_perchannel", "uint8", "uint8, per-channel, asymmetric", "uint8-per-channel", (0, 1, 2)
)


def quant_tool_int8() -> None:
    _main(INT8)


def quant_tool_uint8() -> None:
    _main(UINT8)


def quant_tool_uint8_perchannel() -> None:
    _main(UINT8_PERCHANNEL)


class QuantUsageError(InputError):
    """An option that is missing: the usage is printed, and the exit status is that of the tools (-1)."""


@dataclass(frozen=True)
class QuantSettings:
    """The command line."""

    model: str
    out: str
    images: str = ""
    algorithm: int = 0
    table: str = ""
    size: tuple[int, int, int] = (3, 224, 224)
    mean: tuple[float, ...] = (104.0, 117.0, 123.0)
    scale: tuple[float, ...] = (1.0, 1.0, 1.0)
    swap: bool = True
    crop: bool = False
    letter_box: tuple[int, int] = (0, 0)
    focus: bool = False
    evaluate: bool = False
    threads: int = 4
    sized: bool = False  # whether -g is given

    def preprocess(self, graph: Graph) -> dict[str, Any]:
        """As ``tenon.quantize`` takes it.  A grey image takes the first mean and scale.  A centre crop is of 224 of the
        256 pixels of the shorter side, or in that proportion; the border of a letter box becomes 0.5."""
        fit = "letterbox" if all(self.letter_box) else "crop" if self.crop else "stretch"
        dims = graph.inputs[0].type.dims
        grey = len(dims) == 4 and dims[1] in (1, 4)  # with focus there are four channels for each of an image
        mean, scale = (self.mean[:1], self.scale[:1]) if grey else (self.mean, self.scale)
        changes: dict[str, Any] = {"mean": mean, "scale": scale, "fit": fit}
        if fit == "crop":
            changes["resize"] = round(max(dims[2:]) * 256 / 224)
        if fit == "letterbox":
            border = np.mean(np.array(mean) + 0.5 / np.array(scale))
            changes["border"] = round(float(np.clip(border, 0, 255)))
        return {**changes, "channels": "rgb" if self.swap else "bgr", **({"focus": True} if self.focus else {})}


def parse(words: Sequence[str]) -> QuantSettings:
    """Raises UsageError for a missing option, InputError for a value that cannot be read."""
    try:
        options, rest = getopt.gnu_getopt(list(words), _LETTERS)
    except getopt.GetoptError as error:
        raise QuantUsageError(str(error)) from None
    if rest:
        raise QuantUsageError(f"'{rest[0]}': every argument follows an option")
    given = {letter[1:]: value for letter, value in options}
    for letter, what in (("m", "input file of Float32 tmfile"), ("o", "output file")):
        if not given.get(letter):
            raise QuantUsageError(f"The {what} not specified! (-{letter})")
    if not given.get("i") and not given.get("f"):
        raise QuantUsageError("The input dir of Calibration image not specified! (-i)")
    size, box = _numbers(given, "g", (3, 224, 224)), _numbers(given, "y", (0, 0))
    if len(size) != 3 or len(box) != 2 or min(size) < 1:
        raise InputError("-g needs three numbers, C,H,W, and -y two, ROWS,COLS")
    means, scales = _numbers(given, "w", (104.0, 117.0, 123.0)), _numbers(given, "s", (1.0, 1.0, 1.0))
    if 0 in scales:
        raise InputError(f"-s {given['s']}: a scale of 0 leaves nothing of the pixels")
    return QuantSettings(
        given["m"],
        given["o"],
        given.get("i", ""),
        int(_numbers(given, "a", (0,))[0]),
        given.get("f", ""),
        (int(size[0]), int(size[1]), int(size[2])),
        means,
        scales,
        _switch(given, "b", default=True),
        _switch(given, "c"),
        (int(box[0]), int(box[1])),
        _switch(given, "k"),
        _switch(given, "z"),
        max(1, int(_numbers(given, "t", (4,))[0])),
        "g" in given,
    )


def _switch(given: dict[str, str], letter: str, *, default: bool = False) -> bool:
    return _numbers(given, letter, (float(default),))[0] != 0


def _numbers(given: dict[str, str], letter: str, default: tuple[float, ...]) -> tuple[float, ...]:
    try:
        return tuple(float(word) for word in given[letter].split(",")) if letter in given else default
    except ValueError:
        raise InputError(f"-{letter} {given[letter]}: write numbers separated by commas") from None


def run(tool: Tool, settings: QuantSettings) -> None:
    """Calibrate (or read the table), quantise, write.  Raises TenonError."""
    chosen = settings.algorithm if settings.algorithm in tool.algorithms else 0
    algorithm = _ALGORITHMS[chosen]
    if (chosen in (_DFQ, _EQ) or settings.evaluate) and not settings.images:
        raise InputError("-a 3, -a 4 and -z 1 need images (-i), beside a table, too")
    _say(_banner(tool, settings, algorithm[0]))
    _info("Step 0, load FP32 tmfile.")
    graph = _loaded(settings)
    _info("Step 0, load FP32 tmfile done.")
    samples = _samples(settings, graph) if chosen in (_DFQ, _EQ) or settings.evaluate else []
    if chosen == _DFQ:
        graph = equalised_model(graph, samples, scheme=tool.scheme, threads=settings.threads)
        save(graph, "test_dfq_fp32.tmfile", "-a 3")
    table = settings.table
    if not table:
        if settings.algorithm not in tool.algorithms:
            _info("algorithm not specified, using default type MIN MAX")
        table = _calibrated(tool, settings, graph, algorithm[1:])
    _info(f"Calibration file is using {table}")
    _info("Step 3, load FP32 tmfile once again")
    _info("Step 3, load FP32 tmfile once again done.")
    _info(f"Step 3, load calibration table file {table}.")
    ranges = {**_probabilities(graph), **read_ranges(table, named_scheme(tool.scheme))}
    _info("Step 4, optimize the calibration table.")
    if chosen == _EQ:
        _info("Step Search, enable EQ search")
    fitted = samples if chosen == _EQ else []
    made = quantize_by_ranges(
        graph, ranges, scheme=tool.scheme, fitted=fitted, threads=settings.threads, everywhere=True
    )
    if chosen == _EQ:
        save(made, "save_i8_eq.tmfile", "-a 4")
    _info("Step 4, quantize activation tensor done.")
    _info("Step 5, quantize weight tensor done.")
    save(made, settings.out, "-o")
    _info(f"Step 6, save {tool.kind.capitalize()} tmfile done, {settings.out}")
    if settings.evaluate:
        _evaluated(graph, made, samples)
    _say(
        f"\n---- Tengine {tool.kind.capitalize()} tmfile create success, best wish for your "
        f"{tool.kind.upper()} inference has a low accuracy loss...\\(^0^)/ ----"
    )


def _samples(settings: QuantSettings, graph: Graph) -> list[Sample]:
    return read_samples(graph, settings.images, MOST, preprocess=settings.preprocess(graph))


def _evaluated(floats: Graph, made: Graph, samples: Sequence[Sample]) -> None:
    """Print how near every tensor is to float."""
    _info("Step Evaluate, evaluate quantitative losses")
    comparison = compare(floats, made, samples, samples=len(samples), layers=True)
    for each in (*comparison.tensors, *comparison.outputs):
        _say(f"{each.name:<40} cosine similarity {each.cosine:.6f}, SQNR {each.sqnr:.2f} dB")


def _loaded(settings: QuantSettings) -> Graph:
    """The model; its input gets the shape of ``-g``, if that is given or the input has none."""
    shapes = dict.fromkeys(_input_names(settings.model), (1, *settings.size))
    try:
        graph = tenon.load(settings.model)
        dims = [value.type.dims for value in graph.inputs]
        if settings.sized and len(dims) == 1 and dims != [(1, *settings.size)]:
            graph = tenon.load(settings.model, shapes=shapes)
    except ShapeError:
        graph = tenon.load(settings.model, shapes=shapes)
    _check_letter_box(settings, graph)
    return graph


def _check_letter_box(settings: QuantSettings, graph: Graph) -> None:
    """Raises InputError for a letter box that is not as large as the image that the input is made of."""
    dims, factor = graph.inputs[0].type.dims, 2 if settings.focus else 1
    image = tuple(factor * n for n in dims[2:])
    if all(settings.letter_box) and settings.letter_box != image:
        wanted = ",".join(map(str, image))
        raise InputError(f"-y {settings.letter_box[0]},{settings.letter_box[1]}: images for this model are {wanted}")


def _input_names(model: str) -> list[str]:
    from tenon.formats.importers.tengine.file import read
    from tenon.input_file import read_regular

    network = read(read_regular(Path(model)))
    return [network.tensors[i].name for n in network.inputs for i in network.nodes[n].outputs]


def _probabilities(graph: Graph) -> Ranges:
    """The range of every result of Softmax, which is not calibrated: its scale is 1/127 or 1/255 in the tables."""
    return {node.output.name: (0.0, 1.0) for node in graph if isinstance(node.op, Softmax) and not node.op.log}


def _calibrated(tool: Tool, settings: QuantSettings, graph: Graph, algorithm: tuple[str, str]) -> str:
    """Write the tables of min-max and of the algorithm; the name of the latter."""
    folder, scheme = Path(settings.images), named_scheme(tool.scheme)
    _info("Step 0, load calibration image files.")
    if not folder.is_dir():
        raise InputError(f"-i {settings.images}: there is no such folder")
    count = sum(path.suffix.lower() in SUFFIXES for path in sample_files(folder))
    _info(f"Step 0, load calibration image files done, image num is {count}.")
    began = perf_counter()

    def ranges(method: str) -> Ranges:
        calibrated = calibrated_ranges(
            graph,
            settings.images,
            method=method,
            samples=max(count, 1),
            preprocess=settings.preprocess(graph),
            threads=settings.threads,
            everywhere=True,
        )
        return {**calibrated, **{name: each for name, each in _probabilities(graph).items() if name in calibrated}}

    _info("Step 1, find original calibration table.")
    write_ranges("table_minmax.scale", ranges("min-max"), scheme, "tengine")
    _info("Step 1, find original calibration table done, output ./table_minmax.scale")
    table = f"table_{algorithm[0]}.scale"
    if algorithm[0] != "minmax":
        _info("Step 2, find calibration table.")
        write_ranges(table, ranges(algorithm[1]), scheme, "tengine")
        _info(f"Step 2, find calibration table done, output ./{table}")
    spent = 1000 * (perf_counter() - began)
    _info(
        f"Thread {settings.threads}, image nums {count}, total time {spent:.2f} ms, "
        f"avg time {spent / max(1, count):.2f} ms"
    )
    return table


def _banner(tool: Tool, settings: QuantSettings, algorithm: str) -> str:
    def switch(on: bool) -> str:
        return "ON" if on else "OFF"

    rows = {
        "Version": f"Tenon {__version__}",
        "Status": tool.status,
        "Input model": settings.model,
        "Output model": settings.out,
        "Calib images": settings.images,
        "Scale file": settings.table or "NULL",
        "Algorithm": algorithm,
        "Dims": " ".join(map(str, settings.size)),
        "Mean": " ".join(f"{n:.3f}" for n in settings.mean),
        "Scale": " ".join(f"{n:.3f}" for n in settings.scale),
        "BGR2RGB": switch(settings.swap),
        "Center crop": switch(settings.crop),
        "Letter box": " ".join(map(str, settings.letter_box)),
        "YOLOv5 focus": switch(settings.focus),
        "Thread num": str(settings.threads),
    }
    lines = [f"{name:<12}: {value}" for name, value in rows.items()]
    return "\n".join(["", "---- Tengine Post Training Quantization Tool ----", "", *lines, ""])


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _info(text: str) -> None:
    _say(f"[Quant Tools Info]: {text}")


def _main(tool: Tool) -> None:
    """Run a tool on ``sys.argv``; 255 without the options that it needs, 2 for another error."""
    words = sys.argv[1:]
    if "-h" in words:
        _say(_HELP.format(kind=tool.kind))
        return
    if status := run_command(tool.name, lambda: _run_words(tool, words)):
        sys.exit(status)


def _run_words(tool: Tool, words: Sequence[str]) -> int:
    try:
        run(tool, parse(words))
    except QuantUsageError as error:
        _info(translated_message(str(error)))
        _say(_HELP.format(kind=tool.kind))
        return 255
    return 0
