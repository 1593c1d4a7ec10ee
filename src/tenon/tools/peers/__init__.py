"""Other runtimes of models, where these are installed, to compare with: a class for each, found by its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from tenon.errors import InputError, TenonError
from tenon.tools.peers.base import Interface, Network


@dataclass(frozen=True)
class Runtime:
    """The class that runs a model, one of the ``modules`` that it needs, which ``package`` brings, and the names of the
    ``formats`` that it reads (of ``importers.FORMATS``)."""

    home: str
    modules: tuple[str, ...]
    package: str
    formats: tuple[str, ...]

    @property
    def installed(self) -> bool:
        """Whether this Python has it."""
        return any(find_spec(module) is not None for module in self.modules)


PEERS = {
    "litert": Runtime("lite_rt:LiteRt", ("ai_edge_litert", "tflite_runtime"), "ai-edge-litert", ("TFLite",)),
    "ncnn": Runtime("ncnn_net:Ncnn", ("ncnn",), "ncnn", ("ncnn",)),
    "onnxruntime": Runtime("onnx_runtime:OnnxRuntime", ("onnxruntime",), "onnxruntime", ("ONNX",)),
    "opencv": Runtime("open_cv:OpenCv", ("cv2",), "'opencv-python-headless<5'", ("Caffe", "Darknet")),
    "paddle": Runtime("paddle_program:Paddle", ("paddle",), "paddlepaddle", ("Paddle",)),
    "tensorflow": Runtime("tensorflow_model:TensorFlow", ("tensorflow",), "tensorflow", ("TensorFlow", "Keras")),
    "torch": Runtime("torch_program:Torch", ("torch",), "torch", ("PyTorch",)),
}
"""Runtimes by the prefix of a network's name."""


def peer(runtime: str, file: str, weights: str | None = None, like: Interface | None = None) -> Network:
    """The model in ``file`` (and ``weights``, if they do not lie beside it), loaded by one of ``PEERS``.

    ``like`` has the inputs and outputs for runtimes that do not tell them.  Raises InputError if the runtime is not
    installed, or refuses the model.
    """
    if not Path(file).exists():
        raise InputError(f"{runtime}:{file}: there is no such file")
    module, _, name = PEERS[runtime].home.partition(":")
    made: Callable[..., Network] = getattr(import_module(f"tenon.tools.peers.{module}"), name)
    try:
        return made(file, weights, like)
    except TenonError:
        raise
    except Exception as error:  # every runtime has classes of its own
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{runtime}:{file}: {runtime} cannot run it: {first}") from None


def runtime_for(format: str) -> str:
    """The runtime that a format belongs to.  Raises InputError if there is none."""
    for name, runtime in PEERS.items():
        if format in runtime.formats:
            return name
    raise InputError(f"no runtime here runs models of {format}: give recorded outputs (--expected)")
