"""Bundles as C and C++ programs use them: read-only weights, macros, compiler flags, symbols, strict C99."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import handmade
import tenon
from programs import needed
from real import DIGITS, held_out_digits
from tenon.errors import InputError
from tenon.machine.codegen.c.entry_points import entry_points
from tenon.machine.codegen.c.strict import StrictC
from tenon.machine.kernel_ir.loops import Const, Type
from tenon.machine.plan.program import Port
from tenon.machine.targets import find, targets
from tenon.machine.toolchain.compiler import Compiler, zig
from tenon.network.graph.preprocessing import Preprocessing
from tenon.network.graph.types import DType, Quant, tensor
from tenon.options import Emit
from tenon.runtime.bundle.compiler_flags import OVERRIDE, check, flags, macros
from tenon.runtime.bundle.header import header

MODEL = DIGITS / "digits.onnx"
FILES: tuple[Emit, ...] = ("c", "header", "weights", "weights-text", "object", "library")
TEXTS: tuple[Emit, ...] = ("c", "header", "weights", "weights-text")
WARNINGS = ("-pedantic", "-Wall", "-Wextra", "-Wcast-qual", "-Wundef", "-Werror")

MAIN = """\
#include <stdio.h>
#include <string.h>
#include "digits.h"
#include "digits.h"

TENON_MEM_ALIGN(DIGITS_MEM_ALIGN) static const uint8_t weights[DIGITS_CONSTANT_MEM_SIZE] = {
#include "digits.weights.txt"
};
TENON_MEM_ALIGN(DIGITS_MEM_ALIGN) static uint8_t tensors[DIGITS_MUTABLE_MEM_SIZE];
TENON_MEM_ALIGN(DIGITS_MEM_ALIGN) static uint8_t scratch[DIGITS_ACTIVATIONS_MEM_SIZE];
static float pixels[DIGITS_image_ELEMENTS];
static const float mean[DIGITS_image_IMAGE_CHANNELS] = DIGITS_image_IMAGE_MEAN;

int main(void) {
  int i;
  if (fread(pixels, 1, DIGITS_image_BYTES, stdin) != DIGITS_image_BYTES) return 1;
  for (i = 0; i < DIGITS_image_ELEMENTS; i++) pixels[i] -= mean[0];
  memcpy(TENON_GET_ADDR(tensors, DIGITS_image), pixels, DIGITS_image_BYTES);
  if (digits(weights, tensors, scratch) != 0) return 2;
  fwrite(TENON_GET_ADDR(tensors, DIGITS_probabilities), 1, DIGITS_probabilities_BYTES, stdout);
  return 0;
}
"""


def run(*command: str | Path, cwd: Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(list(map(str, command)), cwd=cwd, input=stdin, capture_output=True, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits bundle for this machine, and a program that uses it."""
    made = tenon.compile(MODEL, no_tuning=True).save(tmp_path_factory.mktemp("programs") / "digits", FILES)
    (made / "main.c").write_text(MAIN)
    return made


# ------------------------------------------------------------------------------------------------ the header
@pytest.mark.parametrize(("program", "standard"), [("gcc", "c99"), ("g++", "c++17"), ("clang", "c99")])
def test_program_with_constant_weights(program: str, standard: str, folder: Path, tmp_path: Path) -> None:
    language = ("-x", "c++") if "+" in standard else ("-x", "c")
    command = (needed(program), f"-std={standard}", *WARNINGS, f"-I{folder}", *language, folder / "main.c")
    built = run(*command, "-x", "none", folder / "digits.o", "-o", "main", cwd=tmp_path)
    assert built.returncode == 0, built.stderr.decode()
    image = held_out_digits()[0][0]
    with tenon.open(folder) as engine:
        (expected,) = engine.run(image).values()
    assert run("./main", cwd=tmp_path, stdin=image.tobytes()).stdout == expected.tobytes()
    symbols = run(needed("nm"), "main", cwd=tmp_path).stdout.decode()
    assert re.search(r" r \w*weights", symbols), "in read-only memory"


def test_every_entry_point_takes_constant_weights() -> None:
    bundle = tenon.compile(MODEL, no_tuning=True, profile=True, target="x86-64")
    for text in (bundle.header, bundle.source):
        assert len(re.findall(r"^(?:int|void) digits\w*\(const uint8_t \*constantWeight,", text, re.MULTILINE)) == 5


def test_quantisation_and_preprocessing_are_in_the_header(tmp_path: Path) -> None:
    quantised = replace(tensor(DType.I8, 1, 4, 6, 3), quant=Quant((0.5,), (-3,)))
    inputs = (Port("pixels", quantised, 0), Port("photo", tensor(DType.F32, 1, 3, 5, 7), 128))
    outputs = (Port("y", replace(tensor(DType.U8, 1, 4), quant=Quant((1 / 3,), (7,))), 1024),)
    program = replace(handmade.program(), inputs=inputs, outputs=outputs)
    photo = Preprocessing((1.5, 2, 3), (0.25,), "bgr", "letterbox", border=9)
    text = header(program, [entry_points(program, profiled=False)], preprocessing={"photo": photo})
    (tmp_path / "affine.h").write_text(text)
    tests = """\
#include "affine.h"
#define IS(name, value) typedef char is_##name[(AFFINE_##name) == (value) ? 1 : -1];
IS(pixels_ZERO_POINT, -3) IS(pixels_ELEMENTS, 72)
IS(y_ZERO_POINT, 7)
IS(photo_IMAGE_HEIGHT, 5) IS(photo_IMAGE_WIDTH, 7) IS(photo_IMAGE_CHANNELS, 3)
IS(photo_IMAGE_CHANNELS_LAST, 0) IS(photo_IMAGE_BGR, 1)
const float numbers[] = {AFFINE_y_SCALE, AFFINE_pixels_SCALE}, mean[] = AFFINE_photo_IMAGE_MEAN;
const float scale[] = AFFINE_photo_IMAGE_SCALE;
#ifdef AFFINE_pixels_IMAGE_MEAN
#error "an input without preprocessing has no macros for it"
#endif
"""
    (tmp_path / "tests.c").write_text(tests)
    done = run(needed("gcc"), "-std=c99", "-Wall", "-Werror", "-S", "tests.c", "-o", "-", cwd=tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    words = [int(word) for word in re.findall(r"\.long\s+(\d+)", done.stdout.decode())]
    assert np.array(words, np.uint32).view(np.float32).tolist() == [np.float32(1 / 3), 0.5, 1.5, 2, 3, 0.25, 0.25, 0.25]
    assert "with a border of 9" in (tmp_path / "affine.h").read_text()


# ------------------------------------------------------------------------------------------------ compiler flags
COMPILED = [name for name, target in targets().items() if target.object != "none"]


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Compiler:
    return zig(tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize("name", [name for name in COMPILED if check(find(name))])
def test_flags_of_a_target_satisfy_its_check(name: str, compiler: Compiler) -> None:
    source = f"{check(find(name))}int net;\n"
    assert compiler.compile({"net.c": source.encode()}, "net.c", find(name))


def test_targets_with_vectors_of_their_own_are_checked() -> None:
    assert macros(find("x86-64-avx2")) == ("__AVX2__", "__FMA__")
    assert macros(find("aarch64-i8mm")) == (
        "__ARM_FEATURE_DOTPROD",
        "__ARM_FEATURE_FP16_VECTOR_ARITHMETIC",
        "__ARM_FEATURE_MATMUL_INT8",
    )
    assert not check(find("x86-64"))
    assert not check(find("aarch64"))
    wide = [name for name in COMPILED if find(name).machine.lanes > 4 and not check(find(name))]
    assert not wide


@pytest.mark.parametrize("names", [("__AMX_TILE__", "__AMX_BF16__"), ("__AMXTILE__", "__AMXBF16__"), ()])
def test_macros_have_other_names_in_old_compilers(names: Sequence[str], tmp_path: Path) -> None:
    """Clang 14 has its own ones for the same flags of AMX."""
    target = find("x86-64-amx")
    (tmp_path / "net.c").write_text(check(target))
    given = [name for name in macros(target) if name not in ("__AMX_TILE__", "__AMX_BF16__")]
    words = [needed("gcc"), "-E", "-undef", *(f"-D{name}" for name in (*given, *names)), str(tmp_path / "net.c")]
    assert (subprocess.run(words, capture_output=True, check=False).returncode == 0) == bool(names)


@pytest.mark.parametrize("target", ["x86-64-avx2", "x86-64-avx512-bf16", "cortex-m4", "cortex-m55", "cortex-m0plus"])
def test_other_flags_are_an_error_that_names_the_right_ones(target: str, tmp_path: Path) -> None:
    """GCC takes the flags that the file itself states."""
    bundle = tenon.compile(MODEL, target=target, threads=1, no_tuning=True)
    bundle.save(tmp_path / "out", TEXTS)
    gcc = needed("arm-none-eabi-gcc" if target.startswith("cortex") else "gcc")
    stated = re.search(r"^   Flags:     (.+?)(?: \*/)?$", bundle.source, re.MULTILINE)
    assert stated
    assert stated[1] == " ".join(("-O2", *flags(find(target))))
    command = (gcc, "-std=c99", "-Wall", "-Wextra", "-Werror", "-c", "digits.c", "-o", "digits.o")
    assert run(*command, *stated[1].replace("-O2", "-O0").split(), cwd=tmp_path / "out").returncode == 0
    if not macros(find(target)):
        return
    refused = run(*command, "-O2", cwd=tmp_path / "out")
    assert refused.returncode != 0
    assert " ".join(flags(find(target))) in refused.stderr.decode()
    assert run(*command, f"-D{OVERRIDE}", "-O0", cwd=tmp_path / "out").returncode == 0


def test_code_for_microcontrollers_can_be_tried_elsewhere(tmp_path: Path) -> None:
    tenon.compile(MODEL, target="cortex-m4").save(tmp_path / "out", TEXTS)
    tried = run(needed("gcc"), "-std=c99", "-O0", "-c", "digits.c", cwd=tmp_path / "out")
    assert tried.returncode == 0, tried.stderr.decode()


# ------------------------------------------------------------------------------------------------ strict C99
def test_strict_c99(tmp_path: Path) -> None:
    bundle = tenon.compile(MODEL, c99="strict", prefix="strict_")
    assert not re.search(r"__builtin|__attribute__|asm|vector_size|_Pragma|#pragma|__GNUC__", bundle.source)
    bundle.save(tmp_path / "out", FILES)
    for program in ("gcc", "clang"):
        command = (needed(program), "-std=c99", *WARNINGS, "-O1", "-c", "strict_digits.c")
        done = run(*command, cwd=tmp_path / "out")
        assert done.returncode == 0, done.stderr.decode()
    image = held_out_digits()[0][0]
    with tenon.open(tmp_path / "out") as strict, tenon.open(tenon.compile(MODEL, no_tuning=True)) as gnu:
        np.testing.assert_allclose(
            strict.run(image)["probabilities"], gnu.run(image)["probabilities"], rtol=1e-5, atol=1e-7
        )  # rounding: other algorithms, other orders of summation
        assert strict.manifest.options["c99"] == "strict"


@pytest.mark.parametrize("target", ["cortex-m0plus", "cortex-m4", "wasm32", "mips"])
def test_strict_c99_for_other_machines(target: str, tmp_path: Path) -> None:
    """Machines without <math.h> run it, too: strict code includes <stdint.h> only."""
    bundle = tenon.compile(MODEL, c99="strict", target=target, no_tuning=True)
    assert re.findall(r"#include (.*)", bundle.source + bundle.header) == ['"digits.h"', "<stdint.h>"]
    assert bundle.object


def test_strict_c99_of_numbers_that_are_not_finite_and_library_functions(tmp_path: Path) -> None:
    kernel = StrictC()
    texts = [kernel.literal(Const(value, Type(DType.F32))) for value in (math.inf, -math.inf, math.nan)]
    body = "".join(f"  p[{i}] = {text};\n" for i, text in enumerate(texts))
    (tmp_path / "net.c").write_text(
        "#include <stdint.h>\n#define TENON_INLINE static inline\n"
        + "\n".join(helper.text for helper in kernel.helpers.values())
        + f"\nint main(void) {{\n  float p[3];\n{body}"
        "  return p[0] > 3e38f && p[1] < -3e38f && p[2] != p[2] ? 0 : 1;\n}\n"
    )
    done = run(needed("gcc"), "-std=c99", *WARNINGS, "net.c", "-o", "net", cwd=tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    assert run("./net", cwd=tmp_path).returncode == 0


def test_option_c99_is_validated() -> None:
    with pytest.raises(InputError, match=r"c99='ansi'"):
        tenon.compile(MODEL, c99="ansi")  # type: ignore[call-overload]


# ------------------------------------------------------------------------------------------------ symbols
def exported(path: Path, *options: str) -> set[str]:
    text = run(needed("nm"), *options, "--defined-only", "-g", path, cwd=path.parent).stdout.decode()
    return {line.split()[-1] for line in text.splitlines() if len(line.split()) == 3}


def dynamic(path: Path) -> dict[str, set[str]]:
    text = run(needed("readelf"), "-d", path, cwd=path.parent).stdout.decode()
    entries: dict[str, set[str]] = {"NEEDED": set(), "SONAME": set()}
    for kind, name in re.findall(r"\((NEEDED|SONAME)\).*\[(.*)\]", text):
        entries[kind].add(name)
    return entries


def test_two_networks_link_into_one_program(tmp_path: Path) -> None:
    """PyTorch gives the graphs of all ONNX files one name: symbols begin with that of the file, or with --prefix."""
    gcc = needed("gcc")
    shutil.copy(MODEL, tmp_path / "first.onnx")
    folders = [
        tenon.compile(tmp_path / "first.onnx", threads=2).save(tmp_path / "a", FILES),
        tenon.compile(MODEL, prefix="acme_", threads=2).save(tmp_path / "b", FILES),
    ]
    names = ["first", "acme_digits"]
    for name, made in zip(names, folders, strict=True):
        for file, options in ((f"{name}.o", ()), (f"lib{name}.so", ("-D",))):
            symbols = exported(made / file, *options)
            assert name in symbols
            assert all(symbol == name or symbol.startswith(f"{name}_") for symbol in symbols), symbols
    (tmp_path / "both.c").write_text(
        '#include "a/first.h"\n#include "b/acme_digits.h"\n'
        "int main(void) { return FIRST_MUTABLE_MEM_SIZE - ACME_DIGITS_MUTABLE_MEM_SIZE + (first == acme_digits); }\n"
    )
    for parts in (["a/first.o", "b/acme_digits.o"], ["a/libfirst.so", "b/libacme_digits.so", "-Wl,-rpath,a:b"]):
        built = run(gcc, "both.c", *parts, "-o", "both", cwd=tmp_path)
        assert built.returncode == 0, built.stderr.decode()
        assert run("./both", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize("target", ["host", "armv7"])
def test_libraries_name_themselves_and_what_they_need(target: str, folder: Path, tmp_path: Path) -> None:
    bundle = folder if target == "host" else tenon.compile(MODEL, target=target).save(tmp_path / "out", FILES)
    entries = dynamic(bundle / "libdigits.so")
    assert entries == {"NEEDED": {"libc.so.6", "libpthread.so.0"}, "SONAME": {"libdigits.so"}}
    if target == "host":
        missing = run(needed("ldd"), "-r", "libdigits.so", cwd=bundle)
        assert b"undefined" not in missing.stdout + missing.stderr


def test_libraries_for_android_name_its_c_library(tmp_path: Path) -> None:
    android = replace(find("aarch64"), name="android-arm64")
    bundle = tenon.compile(MODEL, target="aarch64", threads=2)
    (tmp_path / "libdigits.so").write_bytes(
        replace(bundle, compilation=replace(bundle.compilation, target=android)).library
    )
    assert dynamic(tmp_path / "libdigits.so") == {"NEEDED": {"libc.so"}, "SONAME": {"libdigits.so"}}


def test_without_threads_nothing_is_needed(tmp_path: Path) -> None:
    bundle = tenon.compile(MODEL, threads=1, no_tuning=True)
    (tmp_path / "libdigits.so").write_bytes(bundle.library)
    (tmp_path / "digits.o").write_bytes(bundle.object)
    assert dynamic(tmp_path / "libdigits.so") == {"NEEDED": set(), "SONAME": {"libdigits.so"}}
    for file in ("libdigits.so", "digits.o"):
        assert b"pthread" not in (tmp_path / file).read_bytes()


@pytest.mark.parametrize(("prefix", "name"), [("acme__", "net"), ("a" * 32, "n" * 40), ("u", "int8_t")])
def test_prefix_and_name_make_an_identifier(prefix: str, name: str) -> None:
    with pytest.raises(InputError, match=f"prefix={prefix} makes the name"):
        tenon.compile(MODEL, prefix=prefix, name=name)


def test_prefix_is_an_identifier() -> None:
    with pytest.raises(InputError, match=r"prefix='9-'"):
        tenon.compile(MODEL, prefix="9-")
