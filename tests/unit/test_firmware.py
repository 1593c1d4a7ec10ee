"""Bundles in firmware: headers of packages, floating-point ABIs, optimisation, functions of libraries."""

from __future__ import annotations

import io
import re
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import handmade
import tenon
from integer_models import model as integer_model
from on_targets import skip_without_device
from onnx_models import model, node
from programs import needed
from real import DIGITS, held_out_digits
from tenon.errors import InputError
from tenon.machine.targets import find
from tenon.machine.targets.float_abi import FloatAbi, float_abi, with_float_abi
from tenon.machine.toolchain.imports import imported
from tenon.machine.toolchain.size import sizes as code_sizes
from tenon.options import EMIT, Emit
from tenon.runtime.bundle import Bundle, read_manifest
from tenon.runtime.bundle.packages import FORMS
from tenon.runtime.engine.device import RemoteBundle
from tenon.runtime.engine.saved_bundle import SavedBundle

FORM_NAMES: tuple[Emit, ...] = tuple(part for part in EMIT if part in FORMS)
CORTEX_M4 = ("-mcpu=cortex-m4", "-mthumb", "-mfpu=fpv4-sp-d16")
MAIN = """\
#include "digits_weights.h"
TENON_MEM_ALIGN(64) static uint8_t tensors[DIGITS_MUTABLE_MEM_SIZE];
TENON_MEM_ALIGN(64) static uint8_t scratch[DIGITS_ACTIVATIONS_MEM_SIZE];
float half(float x);
float half(float x) { return x / 2; }
void start(void);
void start(void) { for (;;) digits_run(tensors, scratch); }
void *memset(void *to, int value, __SIZE_TYPE__ count);
void *memset(void *to, int value, __SIZE_TYPE__ count) {
  for (unsigned char *p = to; count--;) *p++ = (unsigned char)value;
  return to;
}
void *memcpy(void *to, const void *from, __SIZE_TYPE__ count);
void *memcpy(void *to, const void *from, __SIZE_TYPE__ count) {
  unsigned char *p = to;
  for (const unsigned char *q = from; count--;) *p++ = *q++;
  return to;
}
"""


def digits(target: str, abi: FloatAbi | None = None) -> Bundle:
    return tenon.compile(DIGITS / "digits.onnx", target=target, float_abi=abi, no_tuning=True)


def arm_gcc(*arguments: str | Path, cwd: Path) -> str:
    """The output of Arm's gcc, which must succeed."""
    command = [needed("arm-none-eabi-gcc"), *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


def text_files(folder: Path) -> Iterator[tuple[str, str]]:
    """The text of headers and C files in a folder and in the archives there, by where they are."""
    for path in folder.iterdir():
        raw = path.read_bytes()
        if path.suffix in (".c", ".h"):
            yield path.name, raw.decode()
        elif path.suffix in (".zip", ".pack"):
            with zipfile.ZipFile(io.BytesIO(raw)) as zipped:
                yield from ((f"{path.name}/{n}", zipped.read(n).decode()) for n in zipped.namelist() if n[-2:] == ".h")
        elif path.suffix == ".gz":
            with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
                for member in tar.getmembers():
                    file = tar.extractfile(member)
                    if file is not None and member.name.endswith(".h"):
                        yield f"{path.name}/{member.name}", file.read().decode()


# ---------------------------------------------------------------------------------------------- headers
@pytest.mark.parametrize("target", ["cortex-m4", "esp32-c3"])
def test_every_package_has_the_bundles_header(target: str, tmp_path: Path) -> None:
    bundle = digits(target)
    folder = bundle.save(tmp_path / "out", (*bundle.parts, *FORM_NAMES))
    header = (folder / "digits.h").read_text()
    macros = set(re.findall(r"#define DIGITS_(\w+)", header))
    assert {"STACK_SIZE", "LIBM_FUNCTIONS"} <= macros
    assert {"MAX_INSTRUCTIONS", "CALL_INSTRUCTIONS"} <= macros or target == "esp32-c3"
    inside = [where for where, text in text_files(folder) if header in text]
    forms = {where.partition("/")[0] for where in inside}
    single = {"digits_single.c", "digits_single.h"}
    archives = {
        FORMS[form].file.replace("@NAME@", "digits") for form in FORM_NAMES if form not in ("archive", "serial")
    }
    assert {name.replace("@VERSION@", tenon.__version__) for name in archives} | single | {"digits.h"} == forms


def test_a_header_without_machine_code_states_no_bounds(tmp_path: Path) -> None:
    folder = digits("cortex-m4").save(tmp_path / "out", ("c", "header"))
    assert "STACK_SIZE" not in (folder / "digits.h").read_text()


# ---------------------------------------------------------------------------------------------- floating-point ABIs
def attribute(content: bytes, folder: Path) -> bool:
    """Whether an object says that it passes floats in the registers of the FPU."""
    (folder / "object.o").write_bytes(content)
    printed = subprocess.run(["readelf", "-A", "object.o"], cwd=folder, capture_output=True, text=True, check=True)
    return "Tag_ABI_VFP_args" in printed.stdout


@pytest.mark.parametrize(
    ("target", "abi", "expected"),
    [
        ("cortex-m4", None, "hard"),
        ("cortex-m4", "softfp", "softfp"),
        ("cortex-m4", "soft", "soft"),
        ("cortex-m7-sp", "soft", "soft"),
        ("cortex-m55", "softfp", "softfp"),
        ("cortex-m0plus", "soft", "soft"),
        ("arduino-nano-33-ble", None, "softfp"),
        ("arduino-portenta-h7", None, "softfp"),
        ("arduino-portenta-h7", "hard", "hard"),
    ],
)
def test_objects_have_the_abi(target: str, abi: FloatAbi | None, expected: str, tmp_path: Path) -> None:
    bundle = digits(target, abi)
    assert float_abi(bundle.target) == expected
    assert bundle.target.machine.float_unit == (expected != "soft")
    assert f"-mfloat-abi={expected}" in bundle.source
    assert bundle.source.count("-mfloat-abi=") == bundle.source.count(f"-mfloat-abi={expected}")
    needed("readelf")
    assert attribute(bundle.object, tmp_path) == (expected == "hard")


@pytest.mark.parametrize(
    ("target", "abi", "message"),
    [
        ("cortex-m3", "hard", "cortex-m3 has no registers for floats"),
        ("cortex-m0plus", "softfp", "cortex-m0plus has no registers for floats"),
        ("x86-64-avx2", "soft", "x86-64-avx2 has no choice of float_abi"),
        ("cortex-m55", "soft", "no target cortex-m55 without FPU"),
    ],
)
def test_an_abi_that_a_processor_lacks(target: str, abi: FloatAbi, message: str) -> None:
    with pytest.raises(InputError, match=message):
        tenon.compile(DIGITS / "digits.onnx", target=target, float_abi=abi)


@pytest.mark.parametrize("abi", ["softfp", "hard"])
@pytest.mark.parametrize("form", ["object", "archive", "platformio"])
def test_every_form_links_with_an_application_of_its_abi(form: Emit, abi: FloatAbi, tmp_path: Path) -> None:
    bundle = digits("stm32f4", abi)
    bundle.save(tmp_path / "out", ("header", "c", "weights", form))
    board = (*CORTEX_M4, f"-mfloat-abi={abi}", "-Os", "-fno-tree-loop-distribute-patterns")
    (tmp_path / "main.c").write_text(MAIN)
    with tarfile.open(fileobj=io.BytesIO(platformio(bundle, tmp_path))) as tar:
        tar.extractall(tmp_path, filter="data")
    own = {
        "object": ("src/digits_weights.c", "out/digits.o"),
        "archive": ("out/libdigits.a",),
        "platformio": ("src/digits_weights.c", "src/digits.c"),
    }[form]
    words = ("-nostdlib", "-Wl,-e,start", "main.c", "-lgcc", "-o", "firmware.elf")
    arm_gcc(*board, "-Iinclude", *words[:3], *own, *words[3:], cwd=tmp_path)


def platformio(bundle: Bundle, folder: Path) -> bytes:
    bundle.save(folder / "package", ("platformio",))
    return (folder / "package" / "digits-platformio.tar.gz").read_bytes()


def test_softfp_computes_the_same(tmp_path: Path) -> None:
    """A bundle on disk does so, too, whose target is that of its manifest."""
    skip_without_device("cortex-m4")
    (image, *_), _ = held_out_digits()
    hard, softfp = digits("cortex-m4"), digits("arduino-nano-33-ble")
    folder = softfp.save(tmp_path / "out")
    saved = SavedBundle(folder, tenon.Options())
    assert float_abi(saved.target) == "softfp"
    answers = [RemoteBundle(bundle).run([image])[0]["probabilities"] for bundle in (hard, softfp, saved)]
    for other in answers[1:]:
        np.testing.assert_array_equal(answers[0], other)


# ---------------------------------------------------------------------------------------------- optimisation
@pytest.mark.parametrize(
    ("target", "flags"),
    [
        ("cortex-m0plus", ("-mcpu=cortex-m0plus",)),
        ("cortex-m4", (*CORTEX_M4, "-mfloat-abi=hard")),
        ("cortex-m55", ("-mcpu=cortex-m55", "-mfloat-abi=hard")),
    ],
)
@pytest.mark.parametrize("form", ["c", "single-header"])
def test_a_debug_build_is_optimised_all_the_same(
    target: str, flags: tuple[str, ...], form: Emit, tmp_path: Path
) -> None:
    """Code at -O0 is about the size of that at -O2; without the guard it is much larger."""
    digits(target).save(tmp_path, ("c", "header", form))
    file = "digits.c" if form == "c" else "digits_single.h"
    (tmp_path / "unit.c").write_text(
        f'#define DIGITS_IMPLEMENTATION\n#include "{file}"\n'
        "int after(int a, int b);\nint after(int a, int b) { return a + b; }\n"
    )
    strict = ("-std=c99", "-mthumb", *flags, "-Wall", "-Wextra", "-Werror", "-c", "unit.c")
    sizes = {}
    for name, more in {"O0": ("-O0",), "O2": ("-O2",), "any": ("-O0", "-DTENON_ANY_FLAGS")}.items():
        arm_gcc(*strict, *more, "-o", f"{name}.o", cwd=tmp_path)
        sizes[name] = code_sizes((tmp_path / f"{name}.o").read_bytes())
    assert sizes["O0"].code < 1.1 * sizes["O2"].code
    assert sizes["any"].code > 1.5 * sizes["O2"].code
    own = "O0" if form == "single-header" else "any"  # a program's own code behind the header stays as it was
    assert sizes[own].functions["after"] == sizes["any"].functions["after"] > sizes["O2"].functions["after"]


def test_clang_is_told_to_optimise(tmp_path: Path) -> None:
    """Clang has no pragma for it."""
    digits("cortex-m4").save(tmp_path / "out", ("c", "header"))
    command = (needed("clang"), "--target=thumbv7em-none-eabihf", "-mcpu=cortex-m4", "-ffreestanding", "-fsyntax-only")
    statuses = {}
    for more in (("-O0",), ("-O2",), ("-O0", "-DTENON_ANY_FLAGS")):
        words = [*command, *more, "digits.c"]
        done = subprocess.run(words, cwd=tmp_path / "out", capture_output=True, text=True, check=False)
        statuses[more] = done.returncode
        assert done.returncode == 0 or "compile this file with -O2, or define TENON_ANY_FLAGS" in done.stderr
    assert list(map(bool, statuses.values())) == [True, False, False]


# ---------------------------------------------------------------------------------------------- library functions
def undefined(path: Path) -> set[str]:
    """The undefined symbols that nm lists."""
    words = [needed("nm"), "--undefined-only", "--format=just-symbols", str(path)]
    return set(subprocess.run(words, capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize("target", ["cortex-m0plus", "cortex-m4", "cortex-m7", "esp32-c3"])
@pytest.mark.parametrize("operator", ["Floor", "Sqrt", "Round", "Exp", "Erf", "Ceil"])
def test_functions_of_libm_are_listed(operator: str, target: str, tmp_path: Path) -> None:
    """They are those of the object, and for Arm those that gcc calls for the source, without -fno-math-errno."""
    network = model([node(operator, ["x"], ["y"])], {"x": (1, 6)}, ["y"])
    (tmp_path / "net.onnx").write_bytes(network.SerializeToString())
    folder = tenon.compile(tmp_path / "net.onnx", target=target, no_tuning=True).save(tmp_path / "out")
    calls, header = read_manifest(folder).calls, (folder / "net.h").read_text()
    assert calls is not None
    assert undefined(folder / "net.o") == {*calls.libm, *calls.libc, *calls.compiler}
    assert f"#define NET_LIBM_FUNCTIONS(X) {' '.join(f'X({name})' for name in calls.libm)}".rstrip() + "\n" in header
    if target.startswith("cortex"):
        flags = ("-std=c99", "-mthumb", *_flags_of(header), "-O2", "-c", "out/net.c", "-o", "other.o")
        arm_gcc(*flags, cwd=tmp_path)
        math = {n for n in undefined(tmp_path / "other.o") if not n.startswith(("__", "mem"))}
        (others,) = re.findall(r"and of libm: (.*)\.$", header, re.MULTILINE)
        assert math <= {*calls.libm, *others.split(", ")}


def _flags_of(header: str) -> list[str]:
    (line,) = re.findall(r"^ +Flags: +(.*?)(?: \*/)?$", header, re.MULTILINE)
    return list(line.split())


@pytest.mark.parametrize("target", ["cortex-m0plus", "cortex-m4", "cortex-m55"])
@pytest.mark.parametrize("name", ["kws", "ic", "speech", "sww"])
def test_integer_networks_need_no_libm(name: str, target: str, tmp_path: Path) -> None:
    bundle = tenon.compile(integer_model(name), target=target, arithmetic="tflm", name=name, no_tuning=True)
    folder = bundle.save(tmp_path / "out")
    calls = read_manifest(folder).calls
    assert calls is not None
    assert calls.libm == ()
    assert {n for n in undefined(folder / f"{name}.o") if not n.startswith(("__", "mem"))} == set()
    assert "of libm: none" in (folder / f"{name}.h").read_text()


def test_functions_are_those_that_nm_lists(tmp_path: Path) -> None:
    for target in ("x86-64", "s390x", "armv7"):
        path = tmp_path / "affine.o"
        bundle = handmade.bundle(target)
        calling = bundle.source.replace("return 0;", "extern int other(void); return other();")
        bundle = handmade.with_source(bundle, calling)
        path.write_bytes(bundle.object)
        assert set(imported(bundle.object)) == undefined(path) >= {"other"}


def test_products_name_the_abi_of_their_kit() -> None:
    assert find("arduino-nano-33-ble") == with_float_abi(find("cortex-m4"), "softfp")
