"""An operator in C, of one Python file, through every API: a program compiles the model, or it is compiled before."""

from __future__ import annotations

import ctypes
import io
import platform
import tarfile
from pathlib import Path

import numpy as np
import pytest

import installed
from command_line import run_main
from libtenon import client, needed, run, succeeded
from real import ROOT
from source_operator import EXPECTED, PLUGIN, X, save_model
from tengine_sdk import Tengine, environment_of, sdk_and_compiler, small_bundle
from tenon.cli import main
from tenon.network.ops.base import REGISTRY

pytestmark = pytest.mark.skipif(platform.system() != "Linux", reason="clients are compiled for Linux here")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the SDK and the model, ``model.onnx``."""
    folder = sdk_and_compiler(tmp_path_factory.mktemp("operator"))
    save_model(folder / "model.onnx")
    return folder


@pytest.fixture(scope="module")
def environment(place: Path) -> dict[str, str]:
    """The environment of programs that compile models with the operator."""
    return {**environment_of(place), "TENON_PLUGINS": str(PLUGIN)}


def check(content: bytes) -> None:
    np.testing.assert_allclose(np.frombuffer(content, np.float32).reshape(X.shape), EXPECTED, rtol=1e-6)


def compiled(place: Path, out: Path, *options: str) -> Path:
    """The output of ``tenon compile`` for the model; afterwards this process does not know the operator."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TENON_PLUGINS", str(PLUGIN))
        assert run_main(main, ["compile", str(place / "model.onnx"), "-o", str(out), *options]) == 0
    REGISTRY.pop("SoftThreshold", None)
    return out


def unpacked(place: Path, folder: Path, form: str) -> Path:
    """The archive of ``--emit form``."""
    compiled(place, folder / "out", "--emit", form, "--name", "net", "--threads", "1")
    with tarfile.open(fileobj=io.BytesIO((folder / "out" / f"net_{form}.tar.gz").read_bytes())) as archive:
        archive.extractall(folder, filter="data")
    return folder


def test_python(place: Path, tmp_path: Path) -> None:
    """A process that opens a bundle needs no plug-in."""
    bundle = compiled(place, tmp_path / "model.tenon")
    text = f"import sys, numpy, tenon; x = numpy.frombuffer(sys.stdin.buffer.read(), 'f4').reshape({X.shape})\n"
    text += "sys.stdout.buffer.write(tenon.open(sys.argv[1]).run(x)['y'].tobytes())\n"
    python = installed.tenon_script().with_name("python")
    check(succeeded(run(python, "-c", text, bundle, stdin=X.tobytes(), env=installed.environment())))


@pytest.mark.parametrize("given", ["model", "memory", "bundle"])
def test_libtenon(given: str, place: Path, environment: dict[str, str], tmp_path: Path) -> None:
    program = client("run_bundle", place / "sdk", tmp_path)
    if given == "bundle":
        bundle = compiled(place, tmp_path / "model.tenon")
        check(succeeded(run(program, bundle, stdin=X.tobytes(), env={**environment, "TENON": "/bin/false"})))
    else:
        model = f"{'memory:' if given == 'memory' else ''}{place / 'model.onnx'}"
        check(succeeded(run(program, model, stdin=X.tobytes(), env=environment)))


def test_libtenon_without_the_plug_in(place: Path, environment: dict[str, str], tmp_path: Path) -> None:
    """The error names the operator, also after the same model was compiled with the plug-in."""
    program = client("run_bundle", place / "sdk", tmp_path)
    check(succeeded(run(program, place / "model.onnx", stdin=X.tobytes(), env=environment)))
    done = run(program, place / "model.onnx", stdin=X.tobytes(), env={**environment, "TENON_PLUGINS": ""})
    assert done.returncode == 1
    assert b"SoftThreshold" in done.stderr


def test_tengine(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENON_PLUGINS", str(PLUGIN))
    tengine = Tengine(place, environment_of(place), monkeypatch, small_bundle(place))
    graph = tengine.created(place / "model.onnx")
    first, last = (tengine.pointer(f"get_graph_{end}put_tensor", graph, 0, 0) for end in ("in", "out"))
    assert tengine("set_tensor_buffer", first, X.ctypes.data_as(ctypes.c_void_p), X.nbytes) == 0, tengine.messages
    assert tengine("prerun_graph", graph) == 0, tengine.messages
    assert tengine("run_graph", graph, 1) == 0, tengine.messages
    check(ctypes.string_at(tengine.pointer("get_tensor_buffer", last).value or 0, X.nbytes))
    assert tengine("destroy_graph", graph) == 0


@pytest.mark.parametrize("given", ["model", "bundle"])
def test_mace(given: str, place: Path, environment: dict[str, str], tmp_path: Path) -> None:
    """By the program of the documentation."""
    text = (ROOT / "docs" / "howto" / "from-mace.md").read_text().split("```cpp\n")[1].split("```")[0]
    (tmp_path / "program.cpp").write_text(text)
    sdk = place / "sdk"
    paths = (f"-I{sdk}/include", f"-L{sdk}/lib", "-lmace", f"-Wl,-rpath,{sdk}/lib", f"-Wl,-rpath-link,{sdk}/lib")
    succeeded(run(needed("g++"), "-std=c++11", tmp_path / "program.cpp", *paths, "-o", tmp_path / "program"))
    model = place / "model.onnx" if given == "model" else compiled(place, tmp_path / "model.tenon")
    check(succeeded(run(tmp_path / "program", model, "x", "y", "3,7", "3,7", stdin=X.tobytes(), env=environment)))


CODE = """\
#include <cstdio>
#include "mace/public/mace_engine_factory.h"
int main() {
  std::shared_ptr<mace::MaceEngine> engine;
  mace::MaceEngineConfig config;
  std::map<std::string, mace::MaceTensor> in, out;
  for (auto *tensors : {&in, &out})
    (*tensors)[tensors == &in ? "x" : "y"] =
        mace::MaceTensor({3, 7}, std::shared_ptr<float>(new float[21], std::default_delete<float[]>()));
  if (std::fread(in["x"].data().get(), 4, 21, stdin) != 21) return 1;
  if (mace::CreateMaceEngineFromCode("net", nullptr, 0, {"x"}, {"y"}, config, &engine) !=
      mace::MaceStatus::MACE_SUCCESS) return 2;
  if (engine->Run(in, &out) != mace::MaceStatus::MACE_SUCCESS) return 3;
  return std::fwrite(out["y"].data().get(), 4, 21, stdout) == 21 ? 0 : 4;
}
"""


def test_mace_model_in_code(place: Path, tmp_path: Path) -> None:
    unpacked(place, tmp_path, "mace")
    (tmp_path / "program.cpp").write_text(CODE)
    sdk = place / "sdk"
    includes = (f"-I{tmp_path}/include", f"-I{sdk}/include")
    libraries = (f"-L{tmp_path}/lib", "-lnet", f"-L{sdk}/lib", "-lmace", "-ltenon", "-lm", f"-Wl,-rpath,{sdk}/lib")
    succeeded(
        run(needed("g++"), "-std=c++11", *includes, tmp_path / "program.cpp", *libraries, "-o", tmp_path / "program")
    )
    check(succeeded(run(tmp_path / "program", stdin=X.tobytes())))


MICRO = """\
#include <stdio.h>
#include "micro/codegen/net/micro_engine_c_interface.h"
int main(void) {
  static float x[21];
  static const int32_t dims[2] = {3, 7};
  void *handle = net_GetMaceMicroEngineHandle(), *y = NULL;
  const int32_t *shape = NULL;
  uint32_t rank = 0;
  if (fread(x, 4, 21, stdin) != 21) return 1;
  if (!net_RegisterInputData(handle, 0, x, dims) || !net_Interpret(handle)) return 2;
  if (!net_GetInterpretResult(handle, 0, &y, &shape, &rank) || rank != 2 || shape[1] != 7) return 3;
  return fwrite(y, 4, 21, stdout) == 21 ? 0 : 4;
}
"""


def test_micro(place: Path, tmp_path: Path) -> None:
    unpacked(place, tmp_path, "micro")
    (tmp_path / "program.c").write_text(MICRO)
    succeeded(run(needed("cmake"), "-S", tmp_path, "-B", tmp_path / "build"))
    succeeded(run("cmake", "--build", tmp_path / "build"))
    libraries = (f"-L{tmp_path}/build", "-lmodel_net", "-lmicro", "-lm")
    source = tmp_path / "program.c"
    succeeded(run(needed("gcc"), f"-I{tmp_path}/include", source, *libraries, "-o", tmp_path / "program"))
    check(succeeded(run(tmp_path / "program", stdin=X.tobytes())))


GLOW = """\
#include <stdio.h>
#include "net.h"
GLOW_MEM_ALIGN(NET_MEM_ALIGN) static uint8_t constants[NET_CONSTANT_MEM_SIZE + 1];
GLOW_MEM_ALIGN(NET_MEM_ALIGN) static uint8_t tensors[NET_MUTABLE_MEM_SIZE];
GLOW_MEM_ALIGN(NET_MEM_ALIGN) static uint8_t activations[NET_ACTIVATIONS_MEM_SIZE + 1];
int main(void) {
  if (fread(GLOW_GET_ADDR(tensors, NET_x), 4, 21, stdin) != 21) return 1;
  if (net(constants, tensors, activations) != GLOW_SUCCESS) return 2;
  return fwrite(GLOW_GET_ADDR(tensors, NET_y), 4, 21, stdout) == 21 ? 0 : 3;
}
"""


def test_glow(place: Path, tmp_path: Path) -> None:
    """By Glow's command in a process of its own."""
    command = installed.tenon_script().with_name("model-compiler")
    options = (f"-model={place}/model.onnx", "-network-name=net", "-backend=CPU", f"-emit-bundle={tmp_path}")
    succeeded(run(command, *options, env=installed.environment(TENON_PLUGINS=str(PLUGIN))))
    (tmp_path / "program.c").write_text(GLOW)
    parts = (tmp_path / "program.c", tmp_path / "net.o", "-lm")
    succeeded(run(needed("gcc"), f"-I{tmp_path}", *parts, "-o", tmp_path / "program"))
    check(succeeded(run(tmp_path / "program", stdin=X.tobytes())))
