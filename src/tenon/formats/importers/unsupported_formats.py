"""Files that are recognised and not read: what they are, and what to give instead.

Detected by the magic bytes of their content, else by their ending.  Sources of these: the formats' own
documentation; a pickle begins with its protocol, a zip archive of torch with the name of the pickle in it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

OLD_PARAM = "an ncnn .param of before 2017, which ncnn itself refuses: convert the original model again"
HEAD = 4096
"""Bytes of the beginning of a file that identify it."""

_ONNX = "export the original model to ONNX"
_TORCH = "save with torch.export.save(torch.export.export(module, inputs), 'net.pt2'), or export the module to ONNX"
_BUILT = "it is compiled for one machine: give the model that it was built from"


class Foreign(NamedTuple):
    """A format: its name, what to give instead, the endings of its files, and a test of their content."""

    name: str
    remedy: str
    endings: tuple[str, ...] = ()
    fits: Callable[[bytes], bool] = lambda head: False


def _begins(*marks: bytes, at: int = 0) -> Callable[[bytes], bool]:
    return lambda head: any(head[at : at + len(mark)] == mark for mark in marks)


def _is_pickle(head: bytes) -> bool:
    return head[:1] == b"\x80" and 2 <= head[1:2][0] <= 5 if len(head) > 1 else False


def _is_old_param(head: bytes) -> bool:
    """Text that counts layers and blobs in its first line; a layer with its own numbers of blobs follows."""
    lines = head.split(b"\n")
    counts, tokens = lines[0].split(), lines[1].split() if len(lines) > 2 else []
    if len(counts) != 2 or len(tokens) < 5 or not all(w.isdigit() for w in (*counts, *tokens[2:4])):
        return False
    return (
        tokens[0][:1].isalpha() and 0 < int(tokens[2]) + int(tokens[3]) <= len(tokens) - 4 and not tokens[4].isdigit()
    )


def _is_json(head: bytes, *tokens: bytes) -> bool:
    return head.lstrip()[:1] in (b"{", b"[") and all(token in head for token in tokens)


FORMATS = (
    Foreign(OLD_PARAM.partition(":")[0], OLD_PARAM.partition(": ")[2], (), _is_old_param),
    Foreign("a model of MNN", f"MNN converts to no format that is read here: {_ONNX}", (".mnn",)),
    Foreign("a model of TNN", _ONNX, (".tnnproto", ".tnnmodel")),
    Foreign("a model of OpenVINO", f"{_ONNX}, from which OpenVINO made it", (".xml",), lambda h: b"<net " in h),
    Foreign("a model of Core ML", _ONNX, (".mlmodel", ".mlpackage", ".mlmodelc")),
    Foreign("an engine of TensorRT", _BUILT, (".engine", ".trt", ".plan"), _begins(b"ftrt")),
    Foreign("a model of Ascend (.om)", _BUILT, (".om",), _begins(b"IMOD")),
    Foreign("a model of RKNN", _BUILT, (".rknn",), _begins(b"RKNN")),
    Foreign("a model of Hailo", _BUILT, (".hef",), _begins(b"\x01HEF")),
    Foreign("a model of Kendryte", _BUILT, (".kmodel",), _begins(b"LDMK", b"KMDL")),
    Foreign("a model of Sophgo", _BUILT, (".bmodel", ".cvimodel")),
    Foreign("a model of SNPE", _BUILT, (".dlc",)),
    Foreign("a model of Paddle Lite", "give the program of Paddle that it was made from", (".nb",)),
    Foreign("a model of MindSpore", "in MindSpore, mindspore.export(..., file_format='ONNX')", (".ms", ".mindir")),
    Foreign(
        "parameters of MXNet",
        "give NAME-symbol.json, with the parameters beside it or named with --weights",
        (".params",),
        _begins(struct.pack("<QQ", 0x112, 0)),
    ),
    Foreign(
        "parameters of Paddle",
        "give the program (.pdmodel, .json, __model__), with these beside it or with --weights",
        (".pdiparams",),
        _begins(bytes(16)),
    ),
    Foreign("weights of Darknet", "give the .cfg, with the weights beside it or named with --weights", (".weights",)),
    Foreign(
        "a checkpoint of MegEngine, a pickle, which is never opened",
        "dump the network: megengine.jit.trace(...).dump('net.mge', optimize_for_inference=...)",
        (".mge",),
    ),
    Foreign(
        "a checkpoint of Paddle, a pickle, which is never opened",
        "save with paddle.jit.save or paddle.static",
        (".pdparams", ".pdopt"),
    ),
    Foreign(
        "a file of PyTorch, a pickle, which is never opened",
        _TORCH,
        (".pt", ".pth", ".ckpt", ".torchscript"),
        lambda h: h[:4] == b"PK\x03\x04" and (b"data.pkl" in h or (b"/version" in h and b"code/" in h)),
    ),
    Foreign(
        "a checkpoint of TensorFlow",
        "give a SavedModel's folder, or freeze the graph (.pb)",
        (".ckpt", ".index", ".meta", ".data-00000-of-00001"),
    ),
    Foreign(
        "a model of TensorFlow.js",
        "give the SavedModel or the .h5 that it was made from",
        (),
        lambda h: _is_json(h, b'"modelTopology"') or _is_json(h, b'"weightsManifest"'),
    ),
    Foreign(
        "a description of a Keras model without its weights",
        "give the .keras or .h5 file",
        (),
        lambda h: _is_json(h, b'"class_name"', b'"config"'),
    ),
    Foreign("a pickle, which is never opened", _TORCH, (".pkl", ".pickle", ".joblib"), _is_pickle),
    Foreign(
        "an array of NumPy",
        "a model is needed; arrays are inputs: --input NAME=FILE",
        (".npy", ".npz"),
        _begins(b"\x93NUMPY"),
    ),
)
"""Formats by their endings, which few others have, else by their content."""

LAST = (
    Foreign(
        "JSON that is neither a symbol of MXNet nor a program of Paddle 3",
        "give the model's own file",
        (".json",),
    ),
    Foreign("weights alone", "give the file that describes the network (.param of ncnn, .xml ...) instead", (".bin",)),
)
"""Formats with common endings, tried after the content."""


def foreign(name: str, head: bytes) -> str:
    """The description of a file that no importer reads, and what to give instead; "" if its format is not known.

    ``head`` is the beginning of its content, ``HEAD`` bytes or all.
    """
    named = [f for f in FORMATS if name.lower().endswith(f.endings)]
    formats = named or [f for f in FORMATS if f.fits(head)] or [f for f in LAST if name.lower().endswith(f.endings)]
    return f"not a model that Tenon reads but {formats[0].name}; {formats[0].remedy}" if formats else ""
