"""Other runtimes: those that are installed compute what we do, those that are not say so."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import tenon
from real import shared
from tenon.errors import InputError
from tenon.network.graph.graph import Array, Graph
from tenon.network.graph.types import F32, tensor
from tenon.network.passes.base import make
from tenon.tools.peers import PEERS, peer, runtime_for
from tenon.tools.peers.base import order_of, partner
from tenon.tools.quantization.comparison import GraphInterface, compare, opened
from tflite_models import quantised_convolution


def test_every_runtime_says_that_it_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "net.prototxt"
    file.write_text("")
    for name, runtime in PEERS.items():
        for module in (
            *runtime.modules,
            "paddle.inference",
            "ai_edge_litert.interpreter",
            "tflite_runtime.interpreter",
        ):
            monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(InputError, match="is not installed in this Python"):
            peer(name, str(file))


def test_formats_have_a_runtime() -> None:
    assert [runtime_for(name) for name in ("ONNX", "Caffe", "Keras")] == ["onnxruntime", "opencv", "tensorflow"]
    with pytest.raises(InputError, match="no runtime here runs models of MegEngine"):
        runtime_for("MegEngine")


def test_outputs_belong_together_by_name_or_in_order() -> None:
    assert order_of(["a", "b"], ["b", "a"]) == [1, 0]
    assert order_of(["a", "b"], ["b", "c"]) == [0, 1]


def test_second_files(tmp_path: Path) -> None:
    for name in ("net.prototxt", "weights.caffemodel"):
        (tmp_path / name).write_text("")
    assert Path(partner(str(tmp_path / "net.prototxt"), ".caffemodel")).name == "weights.caffemodel"
    (tmp_path / "other.caffemodel").write_text("")
    with pytest.raises(InputError, match=r"no net\.caffemodel beside it"):
        partner(str(tmp_path / "net.prototxt"), ".caffemodel")


class Interpreter:
    """The interface of LiteRT's interpreter: integers in, twice as large integers out."""

    def __init__(self, file: str, **options: Any) -> None:
        self.arrays: dict[int, Array] = {}

    def allocate_tensors(self) -> None:
        pass

    def get_input_details(self) -> list[dict[str, Any]]:
        return [{"name": "x", "index": 0, "dtype": np.int8, "shape": [1, 4], "quantization": (0.5, 1)}]

    def get_output_details(self) -> list[dict[str, Any]]:
        return [{"name": "y", "index": 1, "dtype": np.int8, "shape": [1, 4], "quantization": (1.0, 0)}]

    def get_tensor_details(self) -> list[dict[str, Any]]:
        return [*self.get_input_details(), *self.get_output_details()]

    def set_tensor(self, index: int, array: Array) -> None:
        assert array.dtype == np.int8
        self.arrays[index] = array

    def invoke(self) -> None:
        self.arrays[1] = self.arrays[0] - 1

    def get_tensor(self, index: int) -> Array:
        return self.arrays[index]


def test_litert_gives_and_takes_what_integers_stand_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("ai_edge_litert.interpreter")
    module.Interpreter = Interpreter
    monkeypatch.setitem(sys.modules, "ai_edge_litert.interpreter", module)
    (tmp_path / "net.tflite").write_bytes(b"")
    twice = Graph("twice")
    x = twice.add_input("x", tensor(F32, 1, 4))
    twice.outputs = [twice.add(make("Add"), [x, x], ["y"]).output]
    samples = [np.array([[-2, 0, 1, 3]], np.float32)]
    comparison = compare(twice, f"litert:{tmp_path / 'net.tflite'}", samples)
    assert comparison.outputs[0].sqnr == np.inf


def test_litert_computes_the_same_bits(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert", reason="LiteRT is not installed")
    file = tmp_path / "net.tflite"
    file.write_bytes(quantised_convolution())
    graph = tenon.load(file)
    samples = [np.random.default_rng(i).integers(-128, 128, graph.inputs[0].type.dims, np.int8) for i in range(3)]
    for first, second in ((str(file), f"litert:{file}"), (f"litert:{file}", str(file))):
        comparison = compare(first, second, samples, arithmetic="litert")
        assert all(each.sqnr == np.inf for each in comparison.outputs)


def test_opencv_computes_the_same(tmp_path: Path) -> None:
    pytest.importorskip("cv2", reason="OpenCV is not installed")
    folder = shared("models/caffe/RFB-320")
    graph = tenon.load(folder / "RFB-320.prototxt")
    sample = np.random.default_rng(0).uniform(-1, 1, graph.inputs[0].type.dims).astype(np.float32)
    comparison = compare(graph, f"opencv:{folder / 'RFB-320.prototxt'}", [sample])
    assert all(each.sqnr > 90 for each in comparison.outputs)


def test_ncnn_computes_the_same() -> None:
    pytest.importorskip("ncnn", reason="ncnn is not installed")
    folder = shared("models/ncnn/version-RFB-320")
    graph = tenon.load(folder / "RFB-320.param", shapes={"input": (1, 3, 240, 320)})
    sample = np.random.default_rng(0).uniform(-1, 1, graph.inputs[0].type.dims).astype(np.float32)
    comparison = compare(graph, f"ncnn:{folder / 'RFB-320.param'}", [sample])
    assert all(each.sqnr > 60 for each in comparison.outputs)


def test_a_runtime_without_shapes_comes_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ncnn", ModuleType("ncnn"))
    (tmp_path / "net.param").write_text("")
    with pytest.raises(InputError, match="ncnn does not tell the shapes of inputs: compare it as the second network"):
        opened(f"ncnn:{tmp_path / 'net.param'}")


class Torch(ModuleType):
    """The part of torch's interface that runs an exported program, with NumPy's arrays for tensors."""

    class Tensor:
        def __init__(self, array: Array) -> None:
            self.array = array

        def detach(self) -> Torch.Tensor:
            return self

        def cpu(self) -> Array:
            return self.array

    def __init__(self) -> None:
        super().__init__("torch")
        self.export = self
        self.from_numpy = Torch.Tensor

    def load(self, file: str) -> Torch:
        return self

    def module(self) -> Any:
        return lambda x: (Torch.Tensor(x.array * 2),)

    def no_grad(self) -> Any:
        from contextlib import nullcontext

        return nullcontext()


def test_programs_of_torch_are_called_in_the_order_of_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", Torch())
    (tmp_path / "net.pt2").write_bytes(b"")
    graph = Graph("twice")
    x = graph.add_input("x", tensor(F32, 1, 4))
    graph.outputs = [graph.add(make("Add"), [x, x], ["y"]).output]
    network = opened(f"torch:{tmp_path / 'net.pt2'}", like=GraphInterface(graph))
    assert (network.run({"x": np.ones((1, 4), np.float32)})["y"] == 2).all()
