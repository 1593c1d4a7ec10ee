"""Tengine's C API for tests: the SDK, programs linked with it, and the library through ctypes."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

import pytest

import tenon
from libtenon import STRICT, checked, needed, needs_loadable_build, run, sanitizer_flags, sdk_for_clients, succeeded
from real import DIGITS

MODEL = DIGITS / "digits.onnx"


def sdk_and_compiler(folder: Path, sanitizers: str = "") -> Path:
    """The folder with the SDK, a command that compiles, and an empty cache of models."""
    sdk_for_clients(folder, sanitizers)
    objects = tenon.Options.from_environment().cache
    script = folder / "compiler"
    script.write_text(f'#!/bin/sh\nTENON_CACHE="{objects}" exec "{sys.executable}" -m tenon "$@"\n')
    script.chmod(0o755)
    return folder


def environment_of(place: Path) -> dict[str, str]:
    cache = str(place / "cache")
    return {**os.environ, "TENON": str(place / "compiler"), "TENON_CACHE": cache, "TENON_NO_TUNING": "1"}


def small_bundle(place: Path) -> Path:
    """The model as a bundle, which needs no compiler."""
    path = place / "digits.tenon"
    if not path.exists():
        tenon.compile(MODEL, no_tuning=True).save(path)
    return path


def linked(sdk: Path) -> tuple[str, ...]:
    folder = f"{sdk}/lib"
    paths = (f"-I{sdk}/include", f"-L{folder}", f"-Wl,-rpath,{folder}", f"-Wl,-rpath-link,{folder}")
    return (*sanitizer_flags(sdk), *paths, "-ltengine-lite")


def built(source: Path, place: Path, *flags: str) -> Path:
    """A client in C, beside the SDK that it is linked with."""
    succeeded(run(needed("gcc"), *STRICT, source, *linked(place / "sdk"), *flags, "-o", place / source.stem))
    return checked(place / source.stem, place / "sdk")


def built_cpp(source: Path, place: Path) -> Path:
    """A client of MACE's interface in C++, beside the SDK that it is linked with."""
    sdk = place / "sdk"
    paths = (f"-I{sdk}/include", f"-L{sdk}/lib", "-lmace", f"-Wl,-rpath,{sdk}/lib", f"-Wl,-rpath-link,{sdk}/lib")
    succeeded(
        run(needed("g++"), "-std=c++11", "-Wall", "-Wextra", "-Werror", source, *paths, "-o", place / source.stem)
    )
    return checked(place / source.stem, sdk)


class Tengine:
    """The library through ctypes, with a graph, and handles of an ended one."""

    def __init__(
        self, place: Path, environment: dict[str, str], patch: pytest.MonkeyPatch, model: Path = MODEL
    ) -> None:
        for name in ("TENON", "TENON_CACHE", "TENON_NO_TUNING"):
            patch.setenv(name, environment[name])
        needs_loadable_build(place / "sdk")
        self.library = ctypes.CDLL(str(place / "sdk" / "lib" / "libtengine-lite.so"))
        self.messages: list[str] = []
        printer = ctypes.CFUNCTYPE(None, ctypes.c_char_p)
        self._print = printer(lambda text: self.messages.append(text.decode()))
        self.library.set_log_output(self._print)
        self.library.init_tengine()
        self.graph, self.ended = self.created(model), self.created(model)
        self.input = self.pointer("get_graph_input_tensor", self.graph, 0, 0)
        self.ended_input = self.pointer("get_graph_input_tensor", self.ended, 0, 0)
        self.ended_node = self.pointer("get_graph_input_node", self.ended, 0)
        assert self("destroy_graph", self.ended) == 0
        self.room = (ctypes.c_int * 1024)()
        self.empty = self.pointer("create_graph", None, None, None)
        self.relu = self.pointer("create_graph_node", self.empty, b"relu", b"ReLU")
        self.loose = self.pointer("create_graph_tensor", self.empty, b"loose", 0)

    def __call__(self, name: str, *arguments: object) -> int:
        return int(self.library[name](*arguments))

    def pointer(self, name: str, *arguments: object) -> ctypes.c_void_p:
        function = self.library[name]
        function.restype = ctypes.c_void_p
        return ctypes.c_void_p(function(*arguments))

    def created(self, model: Path = MODEL) -> ctypes.c_void_p:
        return self.pointer("create_graph", None, b"tengine", str(model).encode())
