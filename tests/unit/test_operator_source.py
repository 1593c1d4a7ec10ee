"""Operators of plug-ins that are written in C."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tenon
from source_operator import EXPECTED, PLUGIN, X, save_model
from tenon.errors import InputError
from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.loops import CallSource, Const, Kernel, Type
from tenon.machine.kernel_ir.parse import parse
from tenon.machine.kernel_ir.text import show
from tenon.machine.proofs.bounds import OutOfRangeError, prove
from tenon.network.graph.types import DType
from tenon.network.ops.base import REGISTRY
from tenon.runtime.plugins import load_plugin


@pytest.fixture
def operator() -> Iterator[None]:
    load_plugin(PLUGIN)
    yield
    REGISTRY.pop("SoftThreshold", None)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("source") / "m.onnx")


@pytest.mark.usefixtures("operator")
@pytest.mark.parametrize("options", [{"verify": True}, {"c99": "strict"}, {"obfuscate": "all"}], ids=str)
def test_compiled(model: Path, options: dict[str, object]) -> None:
    bundle = tenon.compile(model, no_tuning=True, **options)  # type: ignore[call-overload]
    with tenon.open(bundle) as engine:
        (result,) = engine.run(X).values()
    np.testing.assert_allclose(result, EXPECTED, rtol=1e-6)


@pytest.mark.usefixtures("operator")
def test_compiled_for_another_machine(model: Path, tmp_path: Path) -> None:
    tenon.compile(model, no_tuning=True, target="cortex-m4").save(tmp_path / "m", emit=("object", "header"))
    assert (tmp_path / "m" / "m.o").is_file()


@pytest.mark.usefixtures("operator")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("static void other(void);", "defines no function 'soft_threshold'"),
        ("static inline void soft_threshold(const float *x) { (void)x; }", "too many arguments"),
    ],
)
def test_wrong_source(text: str, said: str, model: Path, tmp_path: Path) -> None:
    load = REGISTRY["SoftThreshold"].source.__globals__  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(load, "C", text)
        with pytest.raises(tenon.TenonError, match=said):
            tenon.compile(model, no_tuning=True).save(tmp_path / "m")


@pytest.mark.usefixtures("operator")
def test_one_name_for_two_functions(model: Path, tmp_path: Path) -> None:
    graph = onnx.load(model)
    graph.graph.node.append(helper.make_node("SoftThreshold", ["x"], ["z"], domain="own"))
    graph.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [3, 7]))
    onnx.save(graph, tmp_path / "two.onnx")
    names = REGISTRY["SoftThreshold"].source.__globals__  # type: ignore[attr-defined]
    texts = iter([names["C"], names["C"] + "/* another */\n"])
    original = REGISTRY["SoftThreshold"].source  # type: ignore[attr-defined]

    def source(self: object, site: object) -> object:
        names["C"] = next(texts)
        return original(self, site)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(REGISTRY["SoftThreshold"], "source", source)
        with pytest.raises(InputError, match="two operators define a C function 'soft_threshold'"):
            tenon.compile(tmp_path / "two.onnx", no_tuning=True)


def called(kind: str = "serial", *, local: bool = False) -> Kernel:
    k = Builder("caller")
    x, y = k.param("x", 4), k.param("y", 4, out=True)
    own = k.local("own", 4, space="stack") if local else x
    numbers = (Const(4, Type(DType.I64)), Const(0.5, Type(DType.F32)))
    call = CallSource("f", 'void f(...);\n"\\', (own.buffer, y.buffer), numbers)
    with k.loop("i", 2, kind=kind):
        k._emit(call)
    return k.done()


def test_text_form() -> None:
    kernel = called()
    assert show(parse(show(kernel))) == show(kernel)


def test_what_is_refused() -> None:
    assert prove(called()) == 2
    with pytest.raises(OutOfRangeError, match="several threads"):
        prove(called("parallel"))
    with pytest.raises(OutOfRangeError, match="no parameter"):
        prove(called(local=True))
