"""Package forms: unpacked, built by the tool that they are for where it is here, and run.

What stands for a tool that is not: functions of ESP-IDF's and Zephyr's CMake, Arduino.h of a board, and the compilers
that Swift's package manager, PlatformIO and CMSIS pack managers would call.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

import handmade
import tenon
from programs import needed
from real import DIGITS, ROOT, held_out_digits
from tenon.cli.app import _parts
from tenon.errors import InputError
from tenon.options import EMIT, Emit
from tenon.runtime.bundle.packages import FORMS
from tenon.runtime.bundle.packages import contents as contents_module

VERSION = tenon.__version__
NAMES: tuple[Emit, ...] = tuple(part for part in EMIT if part in FORMS)

MAIN = """\
#include <stdio.h>
#include "@HEADER@"
TENON_MEM_ALIGN(64) static uint8_t tensors[DIGITS_MUTABLE_MEM_SIZE];
TENON_MEM_ALIGN(64) static uint8_t activations[DIGITS_ACTIVATIONS_MEM_SIZE];
int main(void) {
  if (fread(TENON_GET_ADDR(tensors, DIGITS_image), 1, DIGITS_image_BYTES, stdin) != DIGITS_image_BYTES) return 1;
  if (digits_run(tensors, activations) != 0) return 2;
  fwrite(TENON_GET_ADDR(tensors, DIGITS_probabilities), 1, DIGITS_probabilities_BYTES, stdout);
  return 0;
}
"""


def run(*command: str | Path, cwd: Path, stdin: bytes = b"") -> bytes:
    done = subprocess.run(list(map(str, command)), cwd=cwd, input=stdin, capture_output=True, check=False, timeout=300)
    assert done.returncode == 0, f"{command}\n{done.stdout.decode()}\n{done.stderr.decode()}"
    return bytes(done.stdout)


@pytest.fixture(scope="module")
def bundle() -> tenon.Bundle:
    return tenon.compile(DIGITS / "digits.onnx", threads=1, no_tuning=True)


@pytest.fixture(scope="module")
def packed(bundle: tenon.Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with all forms."""
    return bundle.save(tmp_path_factory.mktemp("packed") / "out", (*bundle.parts, *NAMES))


@pytest.fixture(scope="module")
def image() -> bytes:
    return bytes(held_out_digits()[0][0].tobytes())


@pytest.fixture(scope="module")
def answer(packed: Path) -> bytes:
    with tenon.open(packed) as engine:
        return bytes(engine.run(held_out_digits()[0][0])["probabilities"].tobytes())


@pytest.fixture(scope="module")
def flags(bundle: tenon.Bundle) -> list[str]:
    stated = re.search(r"^   Flags:     (.+?)(?: \*/)?$", bundle.source, re.MULTILINE)
    return stated[1].split() if stated else ["-O2"]


def unpacked(packed: Path, name: str, folder: Path) -> set[str]:
    """Unpack an archive of the bundle; its paths."""
    raw = (packed / name).read_bytes()
    if name.endswith(".gz"):
        with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
            archive.extractall(folder, filter="data")
            return set(archive.getnames())
    with zipfile.ZipFile(io.BytesIO(raw)) as zipped:
        zipped.extractall(folder)
        return set(zipped.namelist())


def main_program(folder: Path, header: str = "digits_weights.h") -> str:
    (folder / "main.c").write_text(MAIN.replace("@HEADER@", header))
    return "main.c"


def project(folder: Path, text: str, **variables: str | Path) -> Path:
    """Configure and build a CMake project with ``text``; its folder of results."""
    (folder / "CMakeLists.txt").write_text(f"cmake_minimum_required(VERSION 3.13)\nproject(test C)\n{text}")
    given = [f"-D{name}={value}" for name, value in {"CMAKE_C_COMPILER_WORKS": 1, **variables}.items()]
    run(needed("cmake"), "-B", "build", *given, cwd=folder)
    run("cmake", "--build", "build", cwd=folder)
    return folder / "build"


# ------------------------------------------------------------------------------------------------- single files
def test_static_library(packed: Path, image: bytes, answer: bytes, tmp_path: Path) -> None:
    unpacked(packed, "libdigits.tar.gz", tmp_path)
    main = main_program(tmp_path)
    run(
        needed("gcc"),
        "-std=c99",
        "-Wall",
        "-Werror",
        "-Iinclude",
        main,
        packed / "libdigits.a",
        "-o",
        "one",
        cwd=tmp_path,
    )
    assert run("./one", cwd=tmp_path, stdin=image) == answer
    assert (tmp_path / "lib" / "libdigits.a").read_bytes() == (packed / "libdigits.a").read_bytes()


def test_single_source(packed: Path, image: bytes, answer: bytes, flags: list[str], tmp_path: Path) -> None:
    """The one file is all that there is; a program includes it."""
    shutil.copy(packed / "digits_single.c", tmp_path)
    gcc = (needed("gcc"), "-std=c99", "-Wall", "-Wextra", "-Werror", *flags, "-O0")
    run(*gcc, "-c", "digits_single.c", cwd=tmp_path)
    run(*gcc, main_program(tmp_path, "digits_single.c"), "-o", "one", cwd=tmp_path)
    assert run("./one", cwd=tmp_path, stdin=image)
    symbols = run(needed("nm"), "-g", "--defined-only", "digits_single.o", cwd=tmp_path).decode().split()
    assert set(symbols[2::3]) == {"digits", "digits_weights"}


def test_single_header(packed: Path, image: bytes, flags: list[str], tmp_path: Path) -> None:
    """Declarations in C++, the implementation in one file of C."""
    (tmp_path / "digits.c").write_text('#define DIGITS_IMPLEMENTATION\n#include "digits_single.h"\n')
    warnings = ("-Wall", "-Wextra", "-Werror", f"-I{packed}")
    run(needed("gcc"), "-std=c99", *warnings, *flags, "-O0", "-c", "digits.c", cwd=tmp_path)
    (tmp_path / "main.cpp").write_text(MAIN.replace("@HEADER@", "digits_single.h"))
    run(needed("g++"), "-std=c++11", *warnings, "main.cpp", "digits.o", "-o", "one", cwd=tmp_path)
    assert len(run("./one", cwd=tmp_path, stdin=image)) == 40


# ------------------------------------------------------------------------------------------------- CMake, tar
def test_cmake_package(packed: Path, image: bytes, answer: bytes, tmp_path: Path) -> None:
    unpacked(packed, f"digits-{VERSION}-cmake.tar.gz", tmp_path)
    main_program(tmp_path)
    text = (
        f"find_package(digits {VERSION} EXACT REQUIRED)\nadd_executable(one main.c)\n"
        "target_link_libraries(one digits::digits)\nfind_package(digits 99 QUIET)\n"
        'if(digits_FOUND)\nmessage(FATAL_ERROR "a newer version than there is")\nendif()\n'
    )
    build = project(tmp_path, text, CMAKE_PREFIX_PATH=tmp_path / f"digits-{VERSION}")
    assert run(build / "one", cwd=tmp_path, stdin=image) == answer


def test_release_as_tar(packed: Path, tmp_path: Path) -> None:
    names = unpacked(packed, "libdigits.tar.gz", tmp_path)
    assert names == {
        "include/digits.h",
        "include/digits_weights.h",
        "lib/libdigits.a",
        "lib/libdigits.so",
        "model/digits.weights.bin",
        "model/manifest.json",
    }
    for path, kept in (("lib/libdigits.so", "libdigits.so"), ("model/digits.weights.bin", "digits.weights.bin")):
        assert (tmp_path / path).read_bytes() == (packed / kept).read_bytes()


# ------------------------------------------------------------------------------------------------- microcontrollers
ARDUINO = """\
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
struct { void begin(long) {} void print(const char *text) { printf("%s", text); }
         void print(long n) { printf("%ld", n); }
         void println(double x) { printf("%.3f\\n", x); } template <class T> void println(T) {} } Serial;
static unsigned long micros() { return 0; }
static void delay(int) {}
void setup();
void loop();
int main() { setup(); loop(); }
"""


SHOWN = re.compile(rb"probabilities: largest at 1, 0\.982\nin microseconds: ")
"""The network's output for an image without a digit."""


def test_arduino_library(packed: Path, flags: list[str], tmp_path: Path) -> None:
    unpacked(packed, "digits-arduino.zip", tmp_path)
    library = tmp_path / "digits"
    lines = (library / "library.properties").read_text().splitlines()
    properties = dict(line.split("=", 1) for line in lines)
    required = {"name", "version", "author", "maintainer", "sentence", "paragraph", "category", "url", "architectures"}
    assert required <= properties.keys()
    assert re.fullmatch(r"\d+\.\d+\.\d+", properties["version"])
    (library / "src" / "Arduino.h").write_text(ARDUINO)
    sources = ("src/digits.c", "src/digits_weights.c")
    run(needed("gcc"), "-c", *flags, "-O0", *sources, cwd=library)
    sketch = ("-x", "c++", "-include", "Arduino.h", "-Isrc", "examples/Run/Run.ino", "-x", "none")
    run(needed("g++"), *sketch, "digits.o", "digits_weights.o", "-o", "one", cwd=library)
    assert SHOWN.fullmatch(run("./one", cwd=library))


ARDUINO_PLATFORM = """\
name=This machine
version=1
recipe.c.o.pattern=gcc -c @FLAGS@ {includes} "{source_file}" -o "{object_file}"
recipe.cpp.o.pattern=g++ -c {includes} "{source_file}" -o "{object_file}"
recipe.ar.pattern=ar rcs "{archive_file_path}" "{object_file}"
recipe.c.combine.pattern=g++ {object_files} "{archive_file_path}" -o "{build.path}/sketch.out"
recipe.preproc.macros=g++ -w -x c++ -E -CC {includes} "{source_file}" -o "{preprocessed_file_path}"
tools.ctags.pattern=arduino-ctags -u --language-force=c++ -f - --c++-kinds=svpf \
--fields=KSTtzns --line-directives "{source_file}"
"""
ARDUINO_BOARD = "here.name=This machine\nhere.build.core=core\nhere.build.board=HERE\n"


def test_arduinos_builder_finds_and_compiles_the_library(packed: Path, flags: list[str], tmp_path: Path) -> None:
    """It compiles the example, for a board that is this machine."""
    builder, _, _ = needed("arduino-builder"), needed("arduino-ctags"), needed("g++")
    libraries, board, build = tmp_path / "libraries", tmp_path / "hardware" / "test" / "here", tmp_path / "build"
    unpacked(packed, "digits-arduino.zip", libraries)
    (board / "cores" / "core").mkdir(parents=True)
    build.mkdir()
    (board / "boards.txt").write_text(ARDUINO_BOARD)
    (board / "platform.txt").write_text(ARDUINO_PLATFORM.replace("@FLAGS@", " ".join([*flags, "-O0"])))
    declared, main = ARDUINO.split("int main")
    (board / "cores" / "core" / "Arduino.h").write_text(
        "#pragma once\n" + declared.replace("} Serial;", "} static Serial;")
    )
    (board / "cores" / "core" / "main.cpp").write_text(f"#include <Arduino.h>\nint main{main}")
    sketch = libraries / "digits" / "examples" / "Run" / "Run.ino"
    folders = ("-hardware", tmp_path / "hardware", "-tools", tmp_path / "hardware", "-libraries", libraries)
    run(builder, "-compile", *folders, "-fqbn", "test:here:here", "-build-path", build, sketch, cwd=tmp_path)
    assert (build / "libraries" / "digits" / "digits.c.o").is_file()
    assert SHOWN.fullmatch(run(build / "sketch.out", cwd=tmp_path))


def test_platformio_packs_the_library(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PlatformIO checks library.json, and takes all files."""
    pio = needed("pio")
    unpacked(packed, "digits-platformio.tar.gz", tmp_path / "library")
    monkeypatch.setenv("PLATFORMIO_CORE_DIR", str(tmp_path / "core"))
    run(pio, "pkg", "pack", tmp_path / "library", "-o", tmp_path / "made.tar.gz", cwd=tmp_path)
    with tarfile.open(tmp_path / "made.tar.gz") as archive:
        names = {name for name in archive.getnames() if Path(name).suffix in (".c", ".h")}
    assert names == {
        f"{folder}/digits{end}"
        for folder, end in (("include", ".h"), ("include", "_weights.h"), ("src", ".c"), ("src", "_weights.c"))
    }


@pytest.mark.parametrize("target", ["cortex-m4", "cortex-m0", "riscv32", "esp32-c3"])
def test_the_application_says_how_functions_are_called(target: str, tmp_path: Path) -> None:
    """The application's objects and the library's do not link otherwise."""
    forms: tuple[Emit, ...] = ("platformio", "espidf")
    tenon.compile(DIGITS / "digits.onnx", target=target, no_tuning=True).save(tmp_path, emit=forms)
    unpacked(tmp_path, "digits-platformio.tar.gz", tmp_path / "platformio")
    unpacked(tmp_path, "digits-espidf.zip", tmp_path / "espidf")
    texts = [path.read_text() for name in ("library.json", "CMakeLists.txt") for path in tmp_path.rglob(name)]
    assert len(texts) == 2
    assert not [text for text in texts if "-mabi" in text or "-mfloat-abi" in text]
    assert all("-march" in text or "-mcpu" in text for text in texts)


def test_platformio_library(packed: Path, tmp_path: Path) -> None:
    unpacked(packed, "digits-platformio.tar.gz", tmp_path)
    library = json.loads((tmp_path / "library.json").read_text())
    assert (library["name"], library["version"]) == ("digits", VERSION)
    assert (tmp_path / "include" / library["headers"]).is_file()
    sources = sorted(str(path.relative_to(tmp_path)) for path in (tmp_path / "src").iterdir())
    run(needed("gcc"), "-c", *library["build"]["flags"], "-Iinclude", *sources, cwd=tmp_path)


BUILD_SYSTEMS = """\
set(COMPONENT_LIB digits_component)
function(idf_component_register)
  cmake_parse_arguments(A "" "" "SRCS;INCLUDE_DIRS" ${ARGN})
  add_library(digits_component STATIC ${A_SRCS})
  target_include_directories(digits_component PUBLIC ${A_INCLUDE_DIRS})
endfunction()
function(zephyr_include_directories)
  include_directories(${ARGN})
endfunction()
function(zephyr_library)
  add_library(digits_module STATIC)
endfunction()
function(zephyr_library_sources)
  target_sources(digits_module PRIVATE ${ARGN})
endfunction()
add_compile_options(@FLAGS@ -O0)
add_subdirectory(components/digits)
set(CONFIG_DIGITS y)
include(modules/digits/zephyr/CMakeLists.txt)
target_include_directories(digits_module PUBLIC modules/digits/include)
foreach(kind component module)
  add_executable(${kind} main.c)
  target_link_libraries(${kind} digits_${kind})
endforeach()
"""


def test_esp_idf_component_and_zephyr_module(packed: Path, image: bytes, flags: list[str], tmp_path: Path) -> None:
    unpacked(packed, "digits-espidf.zip", tmp_path / "components")
    unpacked(packed, "digits-zephyr.zip", tmp_path / "modules")
    main_program(tmp_path)
    module = tmp_path / "modules" / "digits"
    described = (module / "zephyr" / "module.yml").read_text()
    assert "cmake: zephyr\n" in described
    (kconfig,) = re.findall(r"kconfig: (.*)\n", described)
    assert (module / kconfig).read_text().startswith("config DIGITS\n  bool ")
    build = project(tmp_path, BUILD_SYSTEMS.replace("@FLAGS@", " ".join(flags)))
    assert run(build / "component", cwd=tmp_path, stdin=image) == run(build / "module", cwd=tmp_path, stdin=image)


def test_cmsis_pack(packed: Path, flags: list[str], tmp_path: Path) -> None:
    names = unpacked(packed, f"Tenon.digits.{VERSION}.pack", tmp_path)
    root = ElementTree.parse(tmp_path / "Tenon.digits.pdsc").getroot()
    vendor, name = root.findtext("vendor"), root.findtext("name")
    release = root.find("releases/release")
    assert release is not None
    assert f"{vendor}.{name}.{release.get('version')}.pack" == f"Tenon.digits.{VERSION}.pack"
    files = {str(file.get("name")): str(file.get("category")) for file in root.iter("file")}
    conditions = {condition.get("id") for condition in root.iter("condition")}
    assert {component.get("condition") for component in root.iter("component")} <= conditions
    assert {path for path, category in files.items() if category != "include"} == names - {"Tenon.digits.pdsc"}
    sources = [path for path, category in files.items() if category == "source"]
    run(needed("gcc"), "-c", *flags, "-O0", "-Iinclude", *sources, cwd=tmp_path)


def test_packages_for_cortex_m_compile_with_arms_gcc(tmp_path: Path) -> None:
    """By the flags that a package states, for a target with instructions that its code checks for."""
    made = tenon.compile(DIGITS / "digits.onnx", target="cortex-m4").save(tmp_path / "out", ("platformio", "cmsis"))
    unpacked(made, "digits-platformio.tar.gz", tmp_path)
    flags = json.loads((tmp_path / "library.json").read_text())["build"]["flags"]
    assert "-mcpu=cortex-m4" in flags
    gcc = needed("arm-none-eabi-gcc")
    for abi in ("-mfloat-abi=hard", "-mfloat-abi=softfp"):  # the application's choice
        words = (*flags, abi, "-Iinclude", "-c", "src/digits.c")
        run(gcc, "-std=c99", "-Wall", "-Wextra", "-Werror", *words, cwd=tmp_path)
    run(gcc, "-std=c99", "-Wall", "-Werror", *flags, "-Iinclude", "-c", "src/digits_weights.c", cwd=tmp_path)
    sections = run(needed("nm"), "digits_weights.o", cwd=tmp_path).decode()
    assert re.search(r" R digits_weights$", sections, re.MULTILINE), "read-only: stays in flash"


# ------------------------------------------------------------------------------------------------- applications
def test_swift_package(packed: Path, flags: list[str], tmp_path: Path) -> None:
    """Clang imports the C module and compiles the target, which is what Swift's package manager does with it."""
    unpacked(packed, "digits-swift.zip", tmp_path)
    sources = tmp_path / "digits" / "Sources" / "digits"
    manifest = (tmp_path / "digits" / "Package.swift").read_text()
    assert manifest.startswith("// swift-tools-version:")
    assert manifest.count("(") == manifest.count(")")
    (path,) = re.findall(r'path: "(.*?)"', manifest)
    assert tmp_path / "digits" / path == sources
    clang = needed("clang")
    (tmp_path / "use.c").write_text("#pragma clang module import digits\nint size = DIGITS_MUTABLE_MEM_SIZE;\n")
    modules = ("-fmodules", f"-fmodules-cache-path={tmp_path / 'modules'}")
    run(clang, *modules, f"-I{sources / 'include'}", "-fsyntax-only", "use.c", cwd=tmp_path)
    run(clang, *flags, "-O0", f"-I{sources / 'include'}", "-c", *sorted(sources.glob("*.c")), cwd=tmp_path)


JAVA = """\
import java.nio.ByteBuffer;
import org.tenon.digits.Network;

public class Main {
    public static void main(String[] arguments) throws Exception {
        ByteBuffer tensors = Network.tensors();
        byte[] image = System.in.readNBytes(256), answer = new byte[40];
        tensors.position(Network.DIGITS_image);
        tensors.put(image);
        Network.run();
        tensors.position(Network.DIGITS_probabilities);
        tensors.get(answer);
        System.out.write(answer);
        System.out.flush();
    }
}
"""


def java_library(packed: Path, folder: Path) -> tuple[Path, Path, list[str]]:
    """The library project, built with the JDK of this machine in place of Android's: javac, the Java class, and java
    with its options.
    """
    javac = Path(needed("javac")).resolve()
    include = javac.parents[1] / "include"
    if not (include / "jni.h").is_file() or not (include / "linux").is_dir():
        pytest.skip("no jni.h beside javac")
    unpacked(packed, "digits-android.zip", folder)
    text = (
        f"include_directories({include} {include / 'linux'})\nset(ANDROID 1)\nadd_subdirectory(digits/src/main/cpp)\n"
    )
    build = project(folder, text, CMAKE_BUILD_TYPE="Release")
    java = [str(javac.with_name("java")), f"-Djava.library.path={build / 'digits/src/main/cpp'}", "-cp", "classes"]
    return javac, folder / "digits/src/main/java/org/tenon/digits/Network.java", java


@pytest.mark.slow
def test_android_library(packed: Path, image: bytes, answer: bytes, tmp_path: Path) -> None:
    """The project's CMake file and Java class."""
    javac, network, java = java_library(packed, tmp_path)
    top = tmp_path / "digits"
    assert "cmake { path 'src/main/cpp/CMakeLists.txt' }" in (top / "build.gradle").read_text()
    ElementTree.parse(top / "src/main/AndroidManifest.xml")
    (tmp_path / "Main.java").write_text(JAVA)
    run(javac, "-d", "classes", "Main.java", network, cwd=tmp_path)
    printed = run(*java, "Main", cwd=tmp_path, stdin=image)
    assert len(printed) == len(answer)
    assert max(range(10), key=lambda i: _floats(printed)[i]) == max(range(10), key=lambda i: _floats(answer)[i])


ANDROID_CLASSES = {
    "android/app/Activity": "public class Activity { protected void onCreate(android.os.Bundle state) {}\n"
    "public void setContentView(android.view.View view) {} }",
    "android/os/Bundle": "public class Bundle {}",
    "android/util/Log": "public class Log { public static int i(String tag, String text) {\n"
    "System.out.println(tag + ': ' + text); return 0; } }",
    "android/view/View": "public class View {}",
    "android/widget/TextView": "public class TextView extends android.view.View {\n"
    "public TextView(android.app.Activity activity) {} public void setText(CharSequence text) {} }",
}
"""The classes of Android that the example's activity uses."""


@pytest.mark.slow
def test_android_example(packed: Path, tmp_path: Path) -> None:
    """The example's classes run the network; Gradle's files name the library project and the activity."""
    javac, network, java = java_library(packed, tmp_path)
    for path, text in ANDROID_CLASSES.items():
        file = tmp_path / f"{path}.java"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"package {'.'.join(path.split('/')[:-1])};\n{text.replace(chr(39), chr(34))}\n")
    app = ROOT / "examples" / "android" / "app"
    sources = sorted((app / "src/main/java/org/tenon/example").glob("*.java"))
    (tmp_path / "Main.java").write_text(
        "package org.tenon.example;\npublic class Main {\n  public static void main(String[] arguments) {\n"
        "    new MainActivity().onCreate(null);\n  }\n}\n"
    )
    stubs = [f"{path}.java" for path in ANDROID_CLASSES]
    run(javac, "-d", "classes", "Main.java", network, *stubs, *sources, cwd=tmp_path)
    assert run(*java, "org.tenon.example.Main", cwd=tmp_path) == b"digits: digit 7, probability 99 %\n"
    settings = (app.parent / "settings.gradle").read_text()
    assert "include ':app', ':digits'" in settings
    assert "'../../android/digits'" in settings
    assert "project(':digits')" in (app / "build.gradle").read_text()
    manifest = ElementTree.parse(app / "src/main/AndroidManifest.xml")
    (activity,) = manifest.iter("activity")
    assert activity.get("{http://schemas.android.com/apk/res/android}name") == ".MainActivity"


def _floats(raw: bytes) -> list[float]:
    return list(memoryview(raw).cast("f")) if sys.byteorder == "little" else []


# ------------------------------------------------------------------------------------------------- all of them
def test_packages_are_reproducible_and_in_the_manifest(bundle: tenon.Bundle, packed: Path, tmp_path: Path) -> None:
    again = bundle.save(tmp_path / "out", (*bundle.parts, *NAMES))
    contents: list[Mapping[str, bytes]] = [{p.name: p.read_bytes() for p in f.iterdir()} for f in (packed, again)]
    assert contents[0] == contents[1]
    listed = tenon.open(packed).manifest.files
    for form in FORMS.values():
        assert form.file.replace("@NAME@", "digits").replace("@VERSION@", VERSION) in listed


def test_too_many_weights_for_c_text(bundle: tenon.Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents_module, "TEXT_LIMIT", 100)
    forms: tuple[Emit, ...] = ("arduino", "single-c")
    for form in forms:
        with pytest.raises(InputError, match=r"too many for C text.*--emit a, cmake or tar"):
            bundle.save(tmp_path / "out", (form,))
    assert not list(tmp_path.iterdir())
    bundle.save(tmp_path / "out", ("cmake",))


def test_targets_without_machine_code_have_source_packages_only(tmp_path: Path) -> None:
    bundle = handmade.bundle("null")
    bundle.save(tmp_path / "out", ("arduino", "single-header"))
    with pytest.raises(InputError, match="no machine code"):
        bundle.save(tmp_path / "other", ("cmake",))


def test_packages_without_weights(tmp_path: Path) -> None:
    bundle = handmade.bundle()
    empty = replace(bundle.program, constants=(), memory=replace(bundle.program.memory, constant=0))
    made = replace(bundle, program=empty).save(tmp_path / "out", ("single-c",))
    run(needed("gcc"), "-std=c99", "-c", "affine_single.c", cwd=made)


def test_emit_is_a_list_or_repeated() -> None:
    assert _parts(["o,a", "h", "so, tar"]) == ("object", "archive", "single-header", "library", "tar")
    assert _parts(None) == ()
