"""Glow's commands and bundles: options, headers, symbols, weight files, C++ programs that use them."""

from __future__ import annotations

import io
import math
import re
import shutil
import subprocess
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

import tenon
from installed import SCRIPT, environment
from libtenon import VALGRIND, needed
from onnx_models import model as onnx_model
from onnx_models import node as onnx_node
from real import DIGITS, held_out_digits
from tenon.compat.glow import bundle_of
from tenon.compat.glow.bundle import weights_text
from tenon.compat.glow.commands import image_classifier, model_compiler
from tenon.compat.glow.model import load, quantised
from tenon.compat.glow.model_input import ModelInput, model_input
from tenon.compat.glow.names import legal_name
from tenon.compat.glow.options import IMAGES, LOADER, parse
from tenon.compat.glow.target import target_name
from tenon.errors import InputError
from tenon.machine.targets import targets
from tenon.network.graph.graph import Array
from tenon.tools.quantization.glow_profile import GlowProfile
from tenon.tools.quantization.glow_profile import parse as parse_profile
from tenon.tools.quantization.relative_entropy import least_entropy_range

CLASSES = 10


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small classifier of images of 12 x 12 pixels, with the names of tensors that Caffe2's ResNet-50 has."""
    rng = np.random.default_rng(0)
    w = numpy_helper.from_array(rng.standard_normal((4, 1, 3, 3)).astype(np.float32), "w")
    f = numpy_helper.from_array(rng.standard_normal((100, CLASSES)).astype(np.float32), "f")
    nodes = [
        helper.make_node("Conv", ["gpu_0/data", "w"], ["c"]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["p"], ["q"]),
        helper.make_node("MatMul", ["q", "f"], ["m"]),
        helper.make_node("Softmax", ["m"], ["gpu_0/softmax"]),
    ]
    x = helper.make_tensor_value_info("gpu_0/data", TensorProto.FLOAT, [1, 1, 12, 12])
    y = helper.make_tensor_value_info("gpu_0/softmax", TensorProto.FLOAT, [1, CLASSES])
    graph = helper.make_graph(nodes, "main_graph", [x], [y], [w, f])
    path = tmp_path_factory.mktemp("glow") / "small_net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)]), path)
    return path


@pytest.fixture(scope="module")
def image() -> Array:
    return np.random.default_rng(1).random((1, 1, 12, 12), np.float32)


@pytest.fixture(scope="module")
def answer(model: Path, image: Array) -> Array:
    with tenon.open(tenon.compile(model, threads=1)) as engine:
        return engine.run(image)["gpu_0/softmax"]


def command(name: str, *arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of Glow's in this process."""
    line = [name, *map(str, arguments)]
    out, told = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(told):
        patch.chdir(cwd)
        patch.setattr("sys.argv", line)
        with pytest.raises(SystemExit) as left:
            (model_compiler if name == "model-compiler" else image_classifier)()
    return subprocess.CompletedProcess(line, int(left.value.code or 0), out.getvalue(), told.getvalue())


@pytest.mark.parametrize("name", ["model-compiler", "image-classifier"])
def test_commands_are_installed(name: str) -> None:
    script = SCRIPT.with_name(name)
    if not script.exists():
        pytest.skip("the package is not installed: no console script beside this Python")
    done = subprocess.run([script, "-help"], env=environment(), capture_output=True, text=True, check=True, timeout=300)
    assert "-emit-bundle=<value>" in done.stdout


SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def program(
    folder: Path, source: str, *parts: str | Path, standard: str = "c++11", sanitizers: tuple[str, ...] = SANITIZERS
) -> Path:
    """A program compiled with sanitizers."""
    compiler = shutil.which("gcc" if standard.startswith("c9") else "g++")
    if compiler is None:
        pytest.skip("no compiler of the system")
    file = folder / ("main.c" if standard.startswith("c9") else "main.cpp")
    file.write_text(source)
    flags = ("-Wall", "-Wextra", "-Werror", *sanitizers, f"-I{folder}")
    line = [compiler, f"-std={standard}", *flags, str(file), *map(str, parts), "-o", str(folder / "main")]
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "main"


def symbols(path: Path) -> set[str]:
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("nm is not installed")
    done = subprocess.run([nm, "-g", "--defined-only", str(path)], capture_output=True, text=True, check=True)
    return {" ".join(line.split()[1:]) for line in done.stdout.splitlines() if len(line.split()) == 3}


STATIC = """\
#include <stdio.h>
#include <string.h>
#include "small_net.h"
GLOW_MEM_ALIGN(SMALL_NET_MEM_ALIGN)
uint8_t constantWeight[SMALL_NET_CONSTANT_MEM_SIZE] = {
#include "small_net.weights.txt"
};
GLOW_MEM_ALIGN(SMALL_NET_MEM_ALIGN)
uint8_t mutableWeight[SMALL_NET_MUTABLE_MEM_SIZE];
GLOW_MEM_ALIGN(SMALL_NET_MEM_ALIGN)
uint8_t activations[SMALL_NET_ACTIVATIONS_MEM_SIZE];
%s
int main(void) {
  uint8_t *data = GLOW_GET_ADDR(mutableWeight, SMALL_NET_gpu_0_data);
  if (fread(data, 1, 576, stdin) != 576) return 1;
  if (small_net(constantWeight, mutableWeight, activations) != GLOW_SUCCESS) return 2;
  fwrite(GLOW_GET_ADDR(mutableWeight, SMALL_NET_gpu_0_softmax), 4, 10, stdout);
  return 0;
}
"""
DYNAMIC = """\
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "net.h"
static const SymbolTableEntry *find(const BundleConfig *config, const char *name) {
  for (uint64_t i = 0; i < config->numSymbols; i++)
    if (!strncmp(config->symbolTable[i].name, name, strlen(name))) return &config->symbolTable[i];
  return NULL;
}
static uint8_t *kept[3];
static uint8_t *region(uint64_t size, uint64_t alignment) {
  static int count;
  uint8_t *raw = kept[count++] = (uint8_t *)malloc(size + alignment);
  return raw + alignment - (uintptr_t)raw % alignment;
}
int main(void) {
  const BundleConfig *c = &net_config;
  uint8_t *weights = region(c->constantWeightVarsMemSize, c->alignment);
  uint8_t *tensors = region(c->mutableWeightVarsMemSize, c->alignment);
  uint8_t *activations = region(c->activationsMemSize, c->alignment);
  FILE *file = fopen("net.weights.bin", "rb");
  if (!file || fread(weights, 1, c->constantWeightVarsMemSize, file) != c->constantWeightVarsMemSize) return 1;
  if (fgetc(file) != EOF) return 3;
  const SymbolTableEntry *data = find(c, "gpu_0_data"), *softmax = find(c, "gpu_0_softmax");
  if (!data || !softmax || data->kind != 1 || data->size != 144 || softmax->size != 10) return 2;
  if (fread(tensors + data->offset, 4, data->size, stdin) != data->size) return 4;
  if (classify(weights, tensors, activations) != GLOW_SUCCESS) return 5;
  fwrite(tensors + softmax->offset, 4, softmax->size, stdout);
  return 0;
}
"""


# ------------------------------------------------------------------------------------------------------- bundles
@pytest.mark.parametrize("standard", ["c++11", "c99"])
def test_static_bundle(standard: str, model: Path, image: Array, answer: Array, tmp_path: Path) -> None:
    out = tmp_path / "made" / "here"
    done = command(
        "model-compiler",
        "-g",
        f"-model={model}",
        "--model-input",
        "gpu_0/data,float,[1,1,12,12]",
        "-backend=CPU",
        f"-emit-bundle={out}",
        "-bundle-api=static",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert {path.name for path in out.iterdir()} == {
        f"small_net.{end}" for end in ("o", "h", "weights.bin", "weights.txt")
    }
    assert symbols(out / "small_net.o") == {"T small_net"}
    run = program(out, STATIC % "", out / "small_net.o", standard=standard)
    result = subprocess.run([run], input=image.tobytes(), capture_output=True, check=True)
    assert result.stdout == answer.tobytes()
    header = (out / "small_net.h").read_text()
    constant = int(re.findall(r"#define SMALL_NET_CONSTANT_MEM_SIZE +(\d+)", header)[0])
    assert (out / "small_net.weights.bin").stat().st_size == constant
    assert header.startswith("// Bundle API auto-generated header file. Do not edit!\n// Glow Tools version: ")
    assert "#define SMALL_NET_gpu_0_data     0\n#define SMALL_NET_gpu_0_softmax  576\n" in header
    assert '//   Name: "gpu_0_softmax"\n//   Type: float<1 x 10>\n//   Size: 10 (elements)\n' in header
    assert "int small_net(uint8_t *constantWeight, uint8_t *mutableWeight, uint8_t *activations);" in header


@pytest.mark.parametrize("standard", ["c++11", "c99"])
def test_dynamic_bundle(standard: str, model: Path, image: Array, answer: Array, tmp_path: Path) -> None:
    done = command(
        "model-compiler",
        "-m",
        model,
        "-emit-bundle",
        tmp_path,
        "-bundle-api=dynamic",
        "-network-name=net",
        "-main-entry-name=classify",
        "-relocation-model=pic",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"net.o", "net.h", "net.weights.bin"}
    assert symbols(tmp_path / "net.o") == {"T classify", "D net_config"}
    run = program(tmp_path, DYNAMIC, tmp_path / "net.o", standard=standard)
    result = subprocess.run([run], input=image.tobytes(), capture_output=True, check=True, cwd=tmp_path)
    assert result.stdout == answer.tobytes()


@pytest.mark.parametrize("standard", ["c++11", "c99"])
def test_program_of_the_documentation(standard: str, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "howto" / "from-glow.md").read_text()
    image = held_out_digits()[0][0]
    done = command(
        "model-compiler", f"-model={DIGITS / 'digits.onnx'}", "-emit-bundle=.", "-bundle-api=static", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    made = program(tmp_path, page.split("```c\n")[1].split("```")[0], tmp_path / "digits.o", standard=standard)
    with tenon.open(tenon.compile(DIGITS / "digits.onnx", threads=1)) as engine:
        (expected,) = engine.run(image).values()
    result = subprocess.run([made], input=image.tobytes(), capture_output=True, check=True)
    assert result.stdout == expected.tobytes()


@pytest.mark.slow
def test_valgrind_finds_nothing(model: Path, image: Array, answer: Array, tmp_path: Path) -> None:
    """In programs with static and with dynamic bundles."""
    valgrind = needed("valgrind")
    for text, api, name in ((STATIC % "", "static", "small_net"), (DYNAMIC, "dynamic", "net")):
        folder = tmp_path / api
        named = () if api == "static" else ("-network-name=net", "-main-entry-name=classify")
        words = (f"-model={model}", f"-emit-bundle={folder}", f"-bundle-api={api}", "-target=x86-64", *named)
        done = command("model-compiler", *words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        made = program(folder, text, folder / f"{name}.o", standard="c99", sanitizers=())
        line = [valgrind, *VALGRIND[1:], str(made)]
        result = subprocess.run(line, input=image.tobytes(), capture_output=True, check=False, cwd=folder)
        assert result.returncode == 0, result.stderr.decode()
        np.testing.assert_allclose(np.frombuffer(result.stdout, np.float32), answer.ravel(), rtol=1e-5)  # other target


CALLBACKS = """\
#ifdef __cplusplus
extern "C" {
#endif
static int next, total;
void glow_instrument_before(int id, int kind, int opInp, int opOut, uint8_t **opAddr, int *opSize) {
  (void)kind, (void)opOut;
  if (id != next) exit(3);
  for (int i = 0; i < opInp; i++) total += opAddr[i] != 0 ? opSize[i] : 0;
}
void glow_instrument_after(int id, int kind, int opInp, int opOut, uint8_t **opAddr, int *opSize) {
  (void)kind, (void)opAddr;
  if (id != next++) exit(4);
  for (int i = 0; i < opOut; i++) total += opSize[opInp + i];
}
static void told(void) { fprintf(stderr, "%d %d", next, total); }
#ifdef __cplusplus
}
#endif
"""


def test_instrumented_bundle(model: Path, image: Array, answer: Array, tmp_path: Path) -> None:
    """Ids count from 0; operands are inputs, then outputs."""
    done = command(
        "model-compiler", f"-model={model}", "-emit-bundle=.", "-instrument-ir", "-target=x86_64", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    text = STATIC.replace("#include <string.h>", "#include <stdlib.h>") % CALLBACKS
    text = text.replace("  return 0;\n}\n", "  told();\n  return 0;\n}\n")
    run = program(tmp_path, text, tmp_path / "small_net.o")
    result = subprocess.run([run], input=image.tobytes(), capture_output=True, check=True)
    np.testing.assert_allclose(np.frombuffer(result.stdout, np.float32), answer.reshape(-1), rtol=1e-5)  # other target
    told = (tmp_path / "instrument-ir.info").read_text()
    calls, total = map(int, result.stderr.split())
    assert [int(n) for n in re.findall(r"^ID   : (\d+)$", told, re.MULTILINE)] == list(range(calls))
    assert calls >= 4
    assert total > image.nbytes + answer.nbytes


def test_several_entry_points(model: Path, image: Array, answer: Array, tmp_path: Path) -> None:
    other = tenon.load(DIGITS / "digits.onnx")
    made = bundle_of({"first": other, "second": model}, "both", api="dynamic", verbose=True)
    tenon.compile({"first": other, "second": model}, name="both", bundle_api="dynamic").save(tmp_path)
    assert {"T first", "T second", "D both_config"} <= symbols(tmp_path / "both.o")
    text = (
        DYNAMIC.replace("net.h", "both.h").replace("net_config", "both_config").replace("net.weights", "both.weights")
    )
    run = program(tmp_path, text.replace("classify(", "second("), tmp_path / "both.o")
    result = subprocess.run([run], input=image.tobytes(), capture_output=True, check=True, cwd=tmp_path)
    assert result.stdout == answer.tobytes()
    constants = made.header.partition("// Constants:\n")[2]
    assert re.search(r"float<\d+( x \d+)*>", constants)
    assert "float32" not in constants


def test_entry_points_that_are_none(model: Path) -> None:
    for wrong, words in (
        ({"model": {}, "name": "both"}, "at least one model"),
        ({"model": {"a": model}}, "a name of the bundle"),
        ({"model": {"a": model}, "name": "both", "bundle_api": "fast"}, "there is no API 'fast'"),
        ({"model": {"a": model}, "name": "no name"}, "is not a name in C"),
        ({"model": model, "bundle_api": "static"}, "for models behind entry points"),
    ):
        with pytest.raises(InputError, match=words):
            tenon.compile(**wrong)


def test_extra_objects_make_an_archive(model: Path, tmp_path: Path) -> None:
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("gcc is not installed")
    (tmp_path / "extra.c").write_text("int extra(void);\nint extra(void) { return 7; }\n")
    subprocess.run([gcc, "-c", "extra.c", "-o", "extra.o"], cwd=tmp_path, check=True)
    done = command("model-compiler", f"-model={model}", "-emit-bundle=out", "-bundle-objects=extra.o", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "small_net.o").read_bytes().startswith(b"!<arch>\n")
    text = (
        '#include "small_net.h"\nint extra(void);\nint main(void) { return extra() == 7 ? 0 : SMALL_NET_MEM_ALIGN; }\n'
    )
    run = program(tmp_path / "out", text, tmp_path / "out" / "small_net.o", standard="c99")
    assert subprocess.run([run], check=False).returncode == 0


def test_weights_as_text() -> None:
    text = weights_text(bytes(range(25))).decode()
    first, second, end = text.split("\n")
    assert first.startswith(" 0X00, 0X01,")
    assert first.endswith(" 0X13,")
    assert (second, end) == (" 0X14, 0X15, 0X16, 0X17, 0X18,", "")
    assert weights_text(bytes(20)).decode() == " 0X00," * 20 + "\n"


def test_bundles_for_microcontrollers(model: Path, tmp_path: Path) -> None:
    done = command(
        "model-compiler",
        f"-model={model}",
        "-target=arm",
        "-mcpu=cortex-m7",
        "-float-abi=hard",
        "-emit-bundle=.",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    raw = (tmp_path / "small_net.o").read_bytes()
    assert raw[:5] == b"\x7fELF\x01"
    assert raw[18] == 40, "EM_ARM"


# ------------------------------------------------------------------------------------------------------- options
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("-target=arm", "-mcpu=cortex-m7"), "cortex-m7"),
        (("--target", "thumbv7em-none-eabi", "--mcpu", "cortex-m4", "-float-abi=hard"), "cortex-m4"),
        (("-mcpu=cortex-m0",), "cortex-m0"),
        (("-mcpu=cortex-m4", "-float-abi=soft"), "cortex-m4-nofp"),
        (("-target=ppc64le",), "powerpc64le"),
        (("-target=aarch64",), "aarch64"),
        (("-target=aarch64-linux-gnu", "-mcpu=cortex-a76"), "aarch64-dotprod"),
        (("-target=x86-64", "-mcpu=haswell"), "x86-64-avx2"),
        (("-target=x86_64-pc-linux-gnu", "-mattr=+avx512f"), "x86-64-avx512"),
        (("-target=x86-64",), "x86-64"),
        (("-target=armv7-linux-gnueabihf",), "armv7"),
        (("-target=riscv64", "-target-feature=+v"), "riscv64-v"),
        (("-target=riscv64", "-target-feature=+v,+zfh,+zvfh"), "riscv64-v-fp16"),
        (("-target=aarch64", "-mattr=+v8.2a,+dotprod,+fullfp16"), "aarch64-fp16"),
        (("-target=arm", "-mcpu=cortex-m7", "-float-abi=soft"), "cortex-m7-nofp"),
        ((), "host"),
    ],
)
def test_processors(words: tuple[str, ...], expected: str) -> None:
    given = parse(words, LOADER)
    features = given.lists.get("target-feature", [])
    name = target_name(given.get("target"), given.get("mcpu"), features, given.get("float-abi", "default"))
    assert name == expected
    assert name == "host" or name in targets()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-model=m.onnx",), "Use the -emit-bundle option!"),
        (("-emit-bundle=o",), "no model: give its file or folder with -model=PATH"),
        (("-emit-bundel=o",), "unknown option -emit-bundel: did you mean -emit-bundle?"),
        (("-dump-llvm-asm",), "-dump-llvm-asm is not supported: write -llvm-save-asm"),
        (("-model=MODEL", "-emit-bundle=o", "-onnx-define-symbol=batch"), "write NAME,NUMBER, as in batch,1"),
        (("-model=m.onnx", "-emit-bundle"), "-emit-bundle needs a value"),
        (("-model=MODEL", "-emit-bundle=o", "-target=z80"), "no target for -target=z80"),
        (("-model=MODEL", "-emit-bundle=o", "-bundle-api=modern"), "choose static, dynamic"),
        (("-model=MODEL", "-emit-bundle=o", "-network-name=a-b"), "'a-b' is not a name in C"),
        (("-model=MODEL", "-emit-bundle=o", "-model-input=x,float,[1]"), "the model has 'gpu_0/data'"),
        (("-model=MODEL", "-emit-bundle=o", "-model-input=x,int8q,[1]"), "write name, name,type"),
        (("-model=MODEL", "-emit-bundle=o", "-backend=OpenCL"), "no such backend"),
        (("-model=MODEL", "-emit-bundle=o", "-mcpu=cortex-m3", "-float-abi=hard"), "has no registers for floats"),
    ],
)
def test_wrong_options_are_one_message(words: tuple[str, ...], message: str, model: Path, tmp_path: Path) -> None:
    done = command("model-compiler", *(word.replace("MODEL", str(model)) for word in words), cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


OPTIONS = (
    "model verbose dump-profile load-profile quantization-schema quantization-calibration calibrate-constants "
    "quantization-precision quantization-precision-bias enable-rowwise enable-channelwise "
    "keep-original-precision-for-nodes do-not-lower-nodes-for-profiling backend dump-graph-DAG-before-compile "
    "dump-graph-DAG dump-graph convert-to-fp16 fp16-format convert-placeholders emit-bundle assert-all-nodes-quantized "
    "num-histogram-bins network-name main-entry-name model-input model-input-name num-devices "
    "run-all-inputs-on-all-devices time iterations target march mcpu mabi code-model bundle-code-model "
    "relocation-model target-feature mattr llvm-compiler llvm-opt llvm-compiler-opt llvm-save-asm float-abi bundle-api "
    "bundle-api-verbose bundle-objects jit-specialize dump-jit-symbol-info dump-llvm-ir dump-llvm-asm g "
    "llvm-code-debug-trace-instrumentation llvm-debug-trace-print-function-name llvm-detect-read-write-start-address "
    "llvm-detect-read-write-end-address reuse-activation-memory-allocations cpu-memory optimize-ir dump-ir "
    "instrument-debug instrument-debug-dir instrument-debug-format instrument-debug-only instrument-ir "
    "instrument-ir-only const-dedup-size compilation-log verbose-compilation onnx-define-symbol "
    "onnx-export-rnn-states loop-unroll-limit const-fold-ops tflite-uint8-to-int8 tflite-float-inputs "
    "tflite-float-outputs tflite-rename-tensors tflite-float-softmax tflite-bias-scale-check-max-error "
    "tflite-bias-scale-check-throw-error tflite-mfcc-sample-rate tflite-enable-custom-operator tflite-dump-graph "
    "load-backend-specific-opts load-device-configs device_init_timeout_ms pseudo-random-seed debug-glow "
    "debug-glow-only input-image-dir input-image-list-file input-tensor-list-file minibatch minibatch-threads "
    "pool-size convert-inout-to-fp16 trace-path auto-instrument trace-level warmup excluded-first-warmup-runs "
    "preload-all-images output-name repeat-single-batch-count image-mode i image-channel-order image-layout l "
    "input-layout input-values-range use-imagenet-normalization mean stddev label-offset compute-softmax topk "
    "expected-labels"
)
"""The options of Glow's two tools."""


@pytest.mark.parametrize("dashes", ["-", "--"])
def test_every_option_of_glow_is_known(dashes: str) -> None:
    """It is read, or an error says what does its work."""
    refused = []
    for name in OPTIONS.split():
        try:
            parse([f"{dashes}{name}", "false"], {**LOADER, **IMAGES})
        except InputError as error:
            refused.append(str(error))
    assert len(refused) == 20
    assert not [message for message in refused if "is not supported: " not in message]


def test_named_dimensions_get_their_extent(tmp_path: Path) -> None:
    file = tmp_path / "net.onnx"
    made = onnx_model([onnx_node("Relu", ["x"], ["y"])], {"x": ["batch", "n"]}, ["y"], {})
    file.write_bytes(made.SerializeToString())
    words = [f"-model={file}", "-onnx-define-symbol=batch,2", "--onnx-define-symbol", "n,3"]
    assert load(parse(words, LOADER)).inputs[0].type.dims == (2, 3)


def test_model_inputs() -> None:
    assert model_input("data") == ModelInput("data")
    assert model_input("gpu_0/data,float,[1,3,2,2]") == ModelInput("gpu_0/data", "float32", (1, 3, 2, 2))
    assert model_input("data,int8q,0.123,-13,[1,10]") == ModelInput("data", "int8", (1, 10), 0.123, -13)
    assert legal_name("gpu_0/data") == "gpu_0_data"
    assert legal_name("0") == "A0"
    for wrong in ("data,int8q,[1]", "data,float,0.1,2,[1]", "data,float,[0]", "data,what,[1]", "data,bool,[1]"):
        with pytest.raises(InputError, match="-model-input="):
            model_input(wrong)


def test_quantised_input(model: Path, image: Array) -> None:
    arguments = parse([f"-model={model}", "-model-input=gpu_0/data,int8q,0.0078125,-1,[1,1,12,12]"], LOADER)
    given = np.round(image / 0.0078125 - 1).clip(-128, 127).astype(np.int8)
    with tenon.open(tenon.compile(load(arguments))) as engine, tenon.open(tenon.compile(model)) as real:
        assert engine.inputs["gpu_0/data"].dtype == np.int8
        scores = engine.run(given)["gpu_0/softmax"]
        expected = real.run((given.astype(np.float32) + 1) * np.float32(0.0078125))["gpu_0/softmax"]
    np.testing.assert_allclose(scores, expected, rtol=1e-6)
    made = bundle_of({"net": load(arguments)}, "net")
    assert "Type: i8[S:0.007812500 O:-1][-0.992,1.000]<1 x 1 x 12 x 12>" in made.header


# ------------------------------------------------------------------------------------------------------- images
def test_image_classifier(model: Path, tmp_path: Path) -> None:
    pixels = np.random.default_rng(2).integers(0, 256, (12, 12), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    with tenon.open(tenon.compile(model)) as engine:
        scores = engine.run((pixels / np.float32(255)).reshape(1, 1, 12, 12))["gpu_0/softmax"][0]
    best = np.argsort(-scores)[:2]
    words = (f"-m={model}", "-i=0to1", "-model-input-name=gpu_0/data", "-topk=2")
    done = command("image-classifier", "a.png", *words, f"-expected-labels={best[0]}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()[-2:]
    assert first == f" File: a.png\tLabel-K1: {best[0]} (probability: {scores[best[0]]:.4f})"
    assert second.strip() == f"Label-K2: {best[1]} (probability: {scores[best[1]]:.4f})"
    wrong = command("image-classifier", "a.png", "a.png", *words, "-expected-labels=0,1", cwd=tmp_path)
    assert wrong.returncode == sum(int(best[0]) != label for label in (0, 1))
    dumped = command("image-classifier", "a.png", *words, "-dump-profile=p.yml", "-dump-graph-DAG=g.dot", cwd=tmp_path)
    assert dumped.returncode == 0, dumped.stderr
    assert (tmp_path / "g.dot").read_text().startswith("digraph")
    profile = parse_profile((tmp_path / "p.yml").read_text(), "p.yml")
    softmax = profile.ranges["gpu_0/softmax:0"]
    assert softmax.least == pytest.approx(float(scores.min()), rel=1e-6)
    assert softmax.greatest == pytest.approx(float(scores.max()), rel=1e-6)
    assert sum(softmax.histogram) == CLASSES
    assert {"gpu_0/data:0", "r:0", "m:0"} <= profile.ranges.keys()


def test_quantised_by_a_profile(model: Path, image: Array, answer: Array, tmp_path: Path) -> None:
    """Profile, compile by it, and compare the C program's answer with that of the float model."""
    pixels = (image.reshape(12, 12) * 255).round().astype(np.uint8)
    for number in range(3):
        Image.fromarray(np.roll(pixels, number, 0)).save(tmp_path / f"{number}.png")
    words = (f"-m={model}", "-i=0to1")
    files = [f"{number}.png" for number in range(3)]
    made = command("image-classifier", *files, *words, "-dump-profile=p.yml", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    loaded = ("-load-profile=p.yml", "-emit-bundle=q", "-assert-all-nodes-quantized")
    done = command("model-compiler", *words[:1], *loaded, "-keep-original-precision-for-nodes=SoftMax", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    run = program(tmp_path / "q", STATIC % "", tmp_path / "q" / "small_net.o", standard="c99")
    result = subprocess.run([run], input=(pixels / np.float32(255)).tobytes(), capture_output=True, check=True)
    scores = np.frombuffer(result.stdout, np.float32)
    np.testing.assert_allclose(scores, answer.reshape(-1), atol=0.05)  # 8 bits
    assert not np.array_equal(scores, answer.reshape(-1))
    other = tmp_path / "p.yml"
    other.write_text(re.sub(r"(?<=Hash: 0x).", lambda m: "0" if m[0] != "0" else "1", other.read_text()))
    wrong = command("model-compiler", *words[:1], *loaded, cwd=tmp_path)
    assert "Graph hash mismatch!" in wrong.stderr


def test_ranges_of_least_relative_entropy(model: Path, tmp_path: Path) -> None:
    """``-quantization-calibration=KL`` narrows the ranges of a profile with enough bins, and those only."""
    Image.fromarray(np.zeros((12, 12), np.uint8)).save(tmp_path / "0.png")
    done = command("image-classifier", "0.png", f"-m={model}", "-dump-profile=p.yml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    names = parse_profile((tmp_path / "p.yml").read_text(), "p.yml").ranges
    values = np.append(np.random.default_rng(5).normal(0, 1, 50_000), [-20, 20])
    scales = {}
    for bins in (10, 1024):
        profile = GlowProfile.of(tenon.load(model), bins)
        profile.add(dict.fromkeys(names, values))
        (tmp_path / "p.yml").write_text(profile.text())
        for calibration in ("none", "KL"):
            line = [f"-m={model}", f"-load-profile={tmp_path / 'p.yml'}", f"-quantization-calibration={calibration}"]
            made = quantised(parse(line, LOADER), load(parse(line, LOADER)))
            steps = [v.data for node in made if node.op.name == "QuantizeLinear" and (v := node.inputs[1])]
            scales[bins, calibration] = np.array(steps, np.float32).reshape(-1)
    np.testing.assert_array_equal(scales[10, "KL"], scales[10, "none"])
    np.testing.assert_array_equal(scales[1024, "none"], scales[10, "none"])
    assert (scales[1024, "KL"] < 0.7 * scales[1024, "none"]).any()
    refused = command("model-compiler", *line[:2], "-quantization-calibration=MSE", "-emit-bundle=q", cwd=tmp_path)
    assert "choose none, KL" in refused.stderr


def divergence(counts: list[float], first: int, last: int) -> float:
    """The divergence of a window, as Glow's ``computeKL`` has it, bin by bin."""
    inside = counts[first : last + 1]
    kept = [sum(counts[: first + 1]), *inside[1:-1], sum(counts[last:])]
    merged, stored = len(inside) // 255, [0.0] * len(inside)
    for level in range(255):
        span = range(level * merged, (level + 1) * merged if level < 254 else len(inside))
        some = sum(inside[i] != 0 for i in span)
        for i in span:
            if some and kept[i]:
                stored[i] = sum(inside[j] for j in span) / some
    for each in (kept, stored):
        empty = each.count(0)
        less = 1e-4 * empty / (len(each) - empty)
        if less < 1:
            each[:] = [1e-4 if v == 0 else v - less for v in each]
    pairs = [(p / sum(kept), q / sum(stored)) for p, q in zip(kept, stored, strict=True)]
    return sum(p * math.log(p / q) for p, q in pairs if p > 0 and q > 0)


@pytest.mark.parametrize("symmetric", [False, True])
def test_least_entropy_range_is_that_of_the_best_window(symmetric: bool) -> None:
    """A sharp peak and a few values far away."""
    values = np.append(np.random.default_rng(9).normal(0, 1, 50_000), [-9.0, 11.0])
    counts = np.histogram(values, 600, (-11, 11))[0].astype(float).tolist()
    windows, first, last = [], 0, 599
    while last - first >= 254:
        windows.append((divergence(counts, first, last), first, last))
        both, left, right = (
            counts[first] + counts[last],
            counts[first] + counts[first + 1],
            counts[last] + counts[last - 1],
        )
        if symmetric or both <= min(left, right):
            first, last = first + 1, last - 1
        elif left <= right:
            first += 2
        else:
            last -= 2
    _, first, last = min(windows)
    limits = least_entropy_range(counts, -11, 11, symmetric=symmetric)
    assert limits == pytest.approx((-11 + first * 22 / 600, -11 + (last + 1) * 22 / 600))
    assert (first, last) != (0, 599)


def test_least_entropy_range_of_little() -> None:
    """Too few bins, no difference, no values: the whole range; one around zero for symmetric schemas."""
    assert least_entropy_range([1.0] * 254, 0, 3, symmetric=False) == (0, 3)
    assert least_entropy_range([1.0] * 300, 0, 3, symmetric=False) == (0, 3)
    assert least_entropy_range([0.0] * 300, 0, 3, symmetric=False) == (0, 3)
    assert least_entropy_range([5.0] * 300, 2, 2, symmetric=True) == (2, 2)
    assert least_entropy_range([5.0] * 10, -1, 3, symmetric=True) == (-3, 3)


def test_minibatch(model: Path, tmp_path: Path) -> None:
    """The network takes several images at a time: the answers are those of one at a time."""
    rng = np.random.default_rng(6)
    for number in range(4):
        Image.fromarray(rng.integers(0, 256, (12, 12), np.uint8)).save(tmp_path / f"{number}.png")
    files = [f"{number}.png" for number in range(4)]
    words = (f"-m={model}", "-i=0to1", "-topk=3")
    one, two = (command("image-classifier", *files, *words, f"-minibatch={n}", cwd=tmp_path) for n in (1, 2))
    assert (one.returncode, two.returncode) == (0, 0), two.stderr
    assert one.stdout.count(" File: ") == 4
    assert one.stdout == two.stdout
    assert load(parse([f"-m={model}", "-minibatch=2"], {**LOADER, **IMAGES})).inputs[0].type.dims == (2, 1, 12, 12)
    odd = command("image-classifier", *files, *words, "-minibatch=3", cwd=tmp_path)
    assert odd.returncode == 2
    assert "-minibatch=3: 4 images are no multiple of it" in odd.stderr
    assert "at least 1" in command("image-classifier", *files, *words, "-minibatch=0", cwd=tmp_path).stderr
    made = command("image-classifier", *files, *words, "-minibatch=2", "-dump-profile=p.yml", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    profile = parse_profile((tmp_path / "p.yml").read_text(), "p.yml")
    assert sum(profile.ranges["gpu_0/softmax:0"].histogram) == pytest.approx(4 * CLASSES)
    wrong = command("model-compiler", *words[:1], "-load-profile=p.yml", "-emit-bundle=q", cwd=tmp_path)
    assert "Graph hash mismatch!" in wrong.stderr


def test_assembly_beside_the_object(model: Path, tmp_path: Path) -> None:
    """``-llvm-save-asm`` writes what the object is assembled from."""
    words = (f"-model={model}", "-emit-bundle=q", "-network-name=net", "-target=aarch64")
    done = command("model-compiler", *words, "-llvm-save-asm", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "q" / "net.s").read_text()
    assert re.search(r"^net:", text, re.MULTILINE)
    assert "fmla" in text
    plain = command("model-compiler", *words[:1], "-emit-bundle=p", *words[2:], cwd=tmp_path)
    assert plain.returncode == 0
    assert not (tmp_path / "p" / "net.s").exists()


def test_layers_left_in_float_are_an_error_on_request(tmp_path: Path) -> None:
    w = numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
    axis = numpy_helper.from_array(np.array(1), "axis")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], name="first"),
        helper.make_node("CumSum", ["m", "axis"], ["s"], name="sums"),
        helper.make_node("MatMul", ["s", "w"], ["y"], name="last"),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy")
    graph = helper.make_graph(nodes, "main_graph", [x], [y], [w, axis])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)]), tmp_path / "m.onnx")
    profile = GlowProfile.of(tenon.load(tmp_path / "m.onnx"))
    profile.add({f"{name}:0": np.array([-4, 4], np.float32) for name in ("x", "m", "s", "y")})
    (tmp_path / "p.yml").write_text(profile.text())
    words = ("-model=m.onnx", "-load-profile=p.yml", "-emit-bundle=q", "-assert-all-nodes-quantized")
    refused = command("model-compiler", *words, cwd=tmp_path)
    assert refused.returncode == 2
    assert re.search(r"left in float: .*CumSum", refused.stderr)
    assert not (tmp_path / "q").exists()
    kept = command("model-compiler", *words, "-keep-original-precision-for-nodes=CumSum", cwd=tmp_path)
    assert kept.returncode == 0, kept.stderr


def test_profiles_are_three_documents() -> None:
    profile = GlowProfile(0x12AB, 4)
    profile.add({"b:0": np.array([0, 1, 2, 4], np.float32), "a/x:0": np.array([-1e-7, 1e7], np.float32)})
    profile.add({"b:0": np.array([8], np.float32)})
    text = profile.text()
    yaml = [part for part in text.split("---\n") if part]
    assert len(yaml) == 3
    assert yaml[1].startswith("GraphPreLowerHash: 0x00000000000012AB\n")
    assert yaml[2].index("a/x:0") < yaml[2].index("b:0")
    assert "e-" not in yaml[2]
    again = parse_profile(text, "p.yml")
    assert again.ranges == profile.ranges
    assert (again.graph_hash, again.bins) == (0x12AB, 4)
    assert again.ranges["b:0"].greatest == 8
    assert sum(again.ranges["b:0"].histogram) == 5


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("GraphPreLowerHash", "Hash", "three documents"),
        ("  Max:             2\n", "", "damaged at"),
        ("Max:             2", "Max:             -2", "is above its Max"),
    ],
)
def test_damaged_profiles(old: str, new: str, message: str) -> None:
    profile = GlowProfile(1, 2)
    profile.add({"x:0": np.array([0, 2], np.float32)})
    assert old in profile.text()
    with pytest.raises(InputError, match=message):
        parse_profile(profile.text().replace(old, new), "p.yml")
