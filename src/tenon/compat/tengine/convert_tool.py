"""``convert_tool``: a model of another format to a tmfile, with the options and messages of Tengine's tool
(``tools/convert_tool`` of OAID/Tengine)."""

from __future__ import annotations

import getopt
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tenon
from tenon import __version__
from tenon.atomic_write import write
from tenon.cli.parse import parse_bindings
from tenon.cli.translation import translated, translated_message
from tenon.errors import SYSTEM_ERRORS, FormatError, InputError, TenonError, explained
from tenon.formats.exporters.tengine.ops import to_tmfile
from tenon.network import passes
from tenon.network.graph.bind import Shapes, bind
from tenon.network.graph.graph import Graph

TWO_FILES = ("caffe", "mxnet", "darknet", "ncnn", "oneflow", "paddle")
"""Formats of a structure (-p) and its weights (-m); either option may name either file."""
ONE_FILE = ("caffe_single", "onnx", "tensorflow", "tflite")

_HELP = """[Convert Tools Info]: optional arguments:
\t-h    help            show this help message and exit
\t-f    input type      format of the model: {formats}
\t-p    input structure path to the network structure of input model(*.param, *.prototxt, *.symbol, *.cfg, *.pdmodel)
\t-m    input params    path to the network params of input model(*.caffemodel, *.params, *.weight, *.pb, *.onnx,
\t                      *.tflite, *.pdiparams)
\t-o    output model    path to output fp32 tmfile
\t-s    shape           NAME=N,C,H,W of an input that has none in the model; may be repeated

[Convert Tools Info]: example arguments:
\tconvert_tool -f onnx -m ./mobilenet.onnx -o ./mobilenet.tmfile
\tconvert_tool -f caffe -p ./mobilenet.prototxt -m ./mobilenet.caffemodel -o ./mobilenet.tmfile
""".format(formats=", ".join((*TWO_FILES, *ONE_FILE)))


class ConvertUsageError(InputError):
    """Wrong options: the exit status is that of Tengine's tool (-1)."""


@dataclass(frozen=True)
class ConvertSettings:
    """The command line."""

    format: str
    model: str
    out: str
    structure: str = ""
    shapes: tuple[str, ...] = ()


def parse(words: Sequence[str]) -> ConvertSettings:
    """Raises UsageError with the tool's message."""
    try:
        options, rest = getopt.gnu_getopt(list(words), "f:p:m:o:s:h")
    except getopt.GetoptError as error:
        raise ConvertUsageError(str(error)) from None
    given = {letter[1:]: value for letter, value in options}
    if rest or not given.get("f"):
        raise ConvertUsageError(f"'{rest[0]}': every argument follows an option" if rest else _HELP)
    if given["f"] not in (*TWO_FILES, *ONE_FILE):
        raise ConvertUsageError(f"Allowed input file format: {', '.join(sorted((*TWO_FILES, *ONE_FILE)))}")
    needed = [("m", "input model", "Model")]
    if given["f"] in TWO_FILES:
        needed.insert(0, ("p", "input proto", "Proto"))
    for letter, what, name in needed:
        if not given.get(letter):
            raise ConvertUsageError(f"Please specify the -{letter} option to indicate the {what} file.")
        if not Path(given[letter]).exists():
            raise ConvertUsageError(f"{name} file does not exist: {given[letter]}")
    if not given.get("o"):
        raise ConvertUsageError("Please specify the -o option to indicate the output tengine model file.")
    if not Path(given["o"]).parent.is_dir():
        raise ConvertUsageError(f"The dir of output file does not exist: {Path(given['o']).parent}")
    shapes = tuple(value for letter, value in options if letter == "-s")
    return ConvertSettings(
        given["f"], given["m"], given["o"], given.get("p", "") if given["f"] in TWO_FILES else "", shapes
    )


def run(settings: ConvertSettings) -> None:
    """Import, optimise as a net of the same operators, write.  Raises TenonError."""
    _say("\n---- Tengine Convert Tool ---- \n")
    _say(f"\nVersion     : Tenon {__version__}")
    _say("Status      : float32\n")
    graph = bind(_loaded(settings, parse_bindings(settings.shapes)[0]))
    passes.optimize(graph, fuse=False)
    write(settings.out, to_tmfile(graph), "-o")
    _say(f"Convert model success. {settings.model} -----> {settings.out} ")


def _loaded(settings: ConvertSettings, shapes: Shapes | None) -> Graph:
    """The model, whichever of its two files is which."""
    if not settings.structure:
        return tenon.load(settings.model, shapes=shapes)
    try:
        return tenon.load(settings.structure, weights=settings.model, shapes=shapes)
    except FormatError as error:
        try:
            return tenon.load(settings.model, weights=settings.structure, shapes=shapes)
        except FormatError:
            raise error from None


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def convert_tool() -> None:
    """Run on ``sys.argv``; exit status 255 for wrong options, 2 for another error."""
    words = sys.argv[1:]
    if "-h" in words:
        return _say(_HELP)
    try:
        return run(parse(words))
    except ConvertUsageError as error:
        _say(translated_message(str(error)))
        sys.exit(255)
    except (TenonError, *SYSTEM_ERRORS) as error:
        _say("Convert model failed.")
        _say(f"convert_tool: {translated_message(explained(error))}")
        sys.exit(2)
    except KeyboardInterrupt:
        _say(f"convert_tool: {translated('interrupted; nothing was left half-written')}")
        sys.exit(130)
