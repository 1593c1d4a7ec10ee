"""Link objects, executables and modules from a network's object and the C files of ``runtime/c/``."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from tenon.errors import ToolchainError
from tenon.machine.targets import Target
from tenon.machine.toolchain import musl
from tenon.machine.toolchain.compiler import Compiler

_RUNTIME = Path(__file__).parents[1] / "c"

WASM_STACK = 1 << 20
"""Bytes of the stack of a WebAssembly module; kernels keep tiles there."""


HEADERS = tuple(sorted(path.name for path in _RUNTIME.glob("*.h")))
"""Hand-written C files that main programs and tables include."""

READERS = (
    "bmp.c",
    "exif.c",
    "image.c",
    "image_file.c",
    "image_format.c",
    "inflate.c",
    "jpeg.c",
    "jpeg_samples.c",
    "netpbm.c",
    "png.c",
)
"""Reading image files."""
IMAGES = (*READERS, "detect.c", "elements.c", "preprocess.c")
"""Images as inputs, and detections in outputs."""


TEXT = (
    "text_automaton.c",
    "text_chat.c",
    "text_encode.c",
    "text_form.c",
    "text_grammar.c",
    "text_pattern.c",
    "text_sampling.c",
    "text_schema.c",
    "text_tables.c",
    "text_words.c",
)
"""Tokens of texts, and the choice of the next token."""


def runtime(name: str) -> bytes:
    """A hand-written C file."""
    return (_RUNTIME / name).read_bytes()


def object_of(compiler: Compiler, target: Target, name: str, texts: Sequence[str], header: str) -> bytes:
    """Compile a network's translation units in parallel and link them to one object."""
    extra = ("-Wno-unused-function",) if len(texts) > 1 else ()  # each unit contains all helper functions

    def compiled(text: str) -> bytes:
        files = {f"{name}.c": text.encode(), f"{name}.h": header.encode()}
        return compiler.compile(files, f"{name}.c", target, extra)

    objects = _in_parallel(compiler, compiled, texts)
    if len(objects) == 1:
        return objects[0]
    parts = {f"piece{i}.o": content for i, content in enumerate(objects)}
    return compiler.link(parts, target, ("-r", "-nostdlib"), "out.o")


def _in_parallel(compiler: Compiler, compiled: Callable[[str], bytes], items: Sequence[str]) -> list[bytes]:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            return list(pool.map(compiled, items))
        except BaseException:
            compiler.stop()
            raise


def thread_pool(compiler: Compiler, target: Target) -> bytes:
    """The object of the thread pool."""
    texts = {name: runtime(name) for name in ("threads.c", "threads.h")}
    return compiler.compile(texts, "threads.c", target)


def executable(
    compiler: Compiler,
    target: Target,
    name: str,
    network: bytes,
    header: str,
    weights: bytes,
    tables: Mapping[str, str],
    *,
    threaded: bool = False,
    takes_images: bool = True,
) -> bytes:
    """A standalone program, including the weights, that runs the network on files.  Needs an operating system.

    ``tables`` are C files by name (``bundle.preprocessing``): preprocessing of each input, format of detections.
    Without ``takes_images`` the program has no decoders of image files.
    """
    format, parts = target.format, (name, network, header, weights)
    objects = program_objects(compiler, target, "main.c", *parts, threaded=threaded)
    objects |= table_objects(compiler, target, tables)
    images = (*IMAGES, "program_images.c") if takes_images else ("elements.c", "image_format.c", "no_images.c")
    system = ("windows.c",) if format.windows else ()
    objects |= runtime_objects(compiler, target, (*images, "classes.c", "labels.c", "messages.c", *system))
    made = _with_part_of_c_library(compiler, target, objects) or compiler.link(
        objects, target, (*format.math_library, "-s", format.remove_unused, *(("-pthread",) if threaded else ()))
    )
    compiler.keep_c_library(target)
    return made


def text_executable(
    compiler: Compiler,
    target: Target,
    name: str,
    network: bytes,
    headers: Mapping[str, bytes],
    weights: bytes,
    source: str,
    tables: bytes,
    *,
    main: str,
    threaded: bool,
) -> bytes:
    """A standalone program whose ``main`` file of ``runtime/c/`` goes on with a prompt or embeds texts.  ``source`` is
    ``<name>_text.c``, and ``headers`` are those of the bundle; ``tables`` are its tokenizer's."""
    given = (name, network, headers, weights, source, tables)
    objects = _text_objects(compiler, target, main, *given, threaded=threaded)
    format = target.format
    flags = (*format.math_library, "-s", format.remove_unused, *(("-pthread",) if threaded else ()))
    made = _with_part_of_c_library(compiler, target, objects) or compiler.link(objects, target, flags)
    compiler.keep_c_library(target)
    return made


def _text_objects(
    compiler: Compiler,
    target: Target,
    main: str,
    name: str,
    network: bytes,
    headers: Mapping[str, bytes],
    weights: bytes,
    source: str,
    tables: bytes,
    *,
    threaded: bool = False,
) -> dict[str, bytes]:
    """The objects of a program of a language model, whose main file is ``main`` of ``runtime/c/``."""
    names = (f'-DTENON_TEXT_HEADER="{name}_text.h"', f"-DTENON_ENTRY={name}", f"-DTENON_PREFIX={name.upper()}_")
    shared = {file: runtime(file) for file in ("program.h", "text_program.h", "threads.h")}
    files = {main: runtime(main), **shared, **headers}
    flags = (*names, *(("-DTENON_THREAD_POOL",) if threaded else ()), "-ffp-contract=off")
    return {
        "main.o": compiler.compile(files, main, target, flags),
        "text.o": compiler.compile({**headers, "text.c": source.encode()}, "text.c", target, ("-ffp-contract=off",)),
        "size.o": _tables_size(compiler, target, tables),
        "tables.o": weights_object(compiler, target, tables, "tenon_text_tables"),
        "weights.o": weights_object(compiler, target, weights),
        "network.o": network,
        **({"threads.o": thread_pool(compiler, target)} if threaded else {}),
    }


def speech_executable(
    compiler: Compiler,
    target: Target,
    name: str,
    networks: Mapping[str, tuple[bytes, bytes]],
    headers: Mapping[str, bytes],
    source: str,
    tables: bytes,
    *,
    threaded: bool,
) -> bytes:
    """A standalone program that writes down speech.  ``networks`` are object and weights of "encoder" and "decoder",
    ``source`` is ``<name>_speech.c``, ``headers`` are those that it includes; ``tables`` are of its tokenizer."""
    files = {
        file: runtime(file) for file in ("speech_main.c", "wav.c", "resample.c", "program.h", "wav.h", "threads.h")
    }
    names = (f'-DTENON_SPEECH_HEADER="{name}_speech.h"', f"-DTENON_ENTRY={name}", f"-DTENON_PREFIX={name.upper()}_")
    exact = "-ffp-contract=off"
    flags = (*names, *(("-DTENON_THREAD_POOL",) if threaded else ()), exact)
    objects = {
        "main.o": compiler.compile({**files, **headers}, "speech_main.c", target, flags),
        "speech.o": compiler.compile({**headers, "speech.c": source.encode()}, "speech.c", target, (exact,)),
        "size.o": _tables_size(compiler, target, tables),
        "tables.o": weights_object(compiler, target, tables, "tenon_text_tables"),
        **{f"{file}.o": compiler.compile(files, f"{file}.c", target, (exact,)) for file in ("wav", "resample")},
        **({"threads.o": thread_pool(compiler, target)} if threaded else {}),
    }
    for part, (network, weights) in networks.items():
        objects[f"{part}.o"] = network
        objects[f"{part}_weights.o"] = weights_object(compiler, target, weights, f"tenon_{part}_weights")
    format = target.format
    made = _with_part_of_c_library(compiler, target, objects) or compiler.link(
        objects, target, (*format.math_library, "-s", format.remove_unused, *(("-pthread",) if threaded else ()))
    )
    compiler.keep_c_library(target)
    return made


def _tables_size(compiler: Compiler, target: Target, tables: bytes) -> bytes:
    """The object that says how long the tables of a tokenizer are."""
    size = "#include <stddef.h>\nextern const size_t tenon_text_tables_size;\n"
    size += f"const size_t tenon_text_tables_size = {len(tables)};\n"
    return compiler.compile({"size.c": size.encode()}, "size.c", target)


def text_web_module(
    compiler: Compiler,
    target: Target,
    name: str,
    network: bytes,
    headers: Mapping[str, bytes],
    weights: bytes,
    source: str,
    tables: bytes,
) -> bytes:
    """A WebAssembly module of a language model (``runtime/c/text_web.c``); arguments are those of
    ``text_executable``."""
    hosted = replace(target, triple=target.triple.replace("freestanding", "wasi"))
    objects = _text_objects(compiler, hosted, "text_web.c", name, network, headers, weights, source, tables)
    objects |= runtime_objects(compiler, hosted, ("web_library.c",))
    flags = ("-Wl,--no-entry", f"-Wl,-z,stack-size={WASM_STACK}", "-Wl,--strip-all")
    return link_freestanding(compiler, target, objects, flags)


def _with_part_of_c_library(compiler: Compiler, target: Target, objects: Mapping[str, bytes]) -> bytes | None:
    """The program linked with the functions that it calls; None where zig has to build the whole C library, which
    takes three times as long."""
    if not musl.available(compiler, target):
        return None
    try:
        whole = {**objects, **musl.c_library(compiler, target)}
        return compiler.link(whole, target, ("-s", "-Wl,--gc-sections", *musl.LINK_FLAGS))
    except ToolchainError:
        return None


def table_objects(compiler: Compiler, target: Target, tables: Mapping[str, str]) -> dict[str, bytes]:
    """The objects of C files with tables, by name without ending."""
    headers = {name: runtime(name) for name in HEADERS}
    return {
        f"{name}.o": compiler.compile({**headers, f"{name}.c": text.encode()}, f"{name}.c", target)
        for name, text in tables.items()
    }


def runtime_objects(compiler: Compiler, target: Target, sources: Sequence[str]) -> dict[str, bytes]:
    """The objects of hand-written C files, by name, whose floating-point results are the same on all targets."""
    headers = {name: runtime(name) for name in HEADERS}

    def compiled(source: str) -> bytes:
        return compiler.compile({**headers, source: runtime(source)}, source, target, ("-ffp-contract=off",))

    objects = _in_parallel(compiler, compiled, sources)
    return {f"{Path(source).stem}.o": content for source, content in zip(sources, objects, strict=True)}


def program_objects(
    compiler: Compiler,
    target: Target,
    main: str,
    name: str,
    network: bytes,
    header: str,
    weights: bytes,
    *,
    threaded: bool = False,
    flags: tuple[str, ...] = (),
) -> dict[str, bytes]:
    """The objects of a program: ``main`` from ``runtime/c/``, compiled with ``flags``, the network, its weights, and
    with ``threaded`` the thread pool."""
    texts = {file: runtime(file) for file in (main, "network.c", *HEADERS)}
    files = {**texts, f"{name}.h": header.encode()}
    states = ("-DTENON_STATES",) if f"void {name}_reset(" in header else ()
    flags = (*flags, *(("-DTENON_THREAD_POOL",) if threaded else ()), *states)
    names = (f'-DTENON_HEADER="{name}.h"', f"-DTENON_ENTRY={name}", f"-DTENON_PREFIX={name.upper()}_")
    return {
        "main.o": compiler.compile(texts, main, target, (*flags, "-ffp-contract=off")),
        "bundle.o": compiler.compile(files, "network.c", target, (*names, *flags)),
        "network.o": network,
        "weights.o": weights_object(compiler, target, weights),
        **({"threads.o": thread_pool(compiler, target)} if threaded else {}),
    }


def web_module(
    compiler: Compiler,
    target: Target,
    name: str,
    network: bytes,
    header: str,
    weights: bytes,
    tables: Mapping[str, str],
) -> bytes:
    """A WebAssembly module with the weights inside that takes images and arrays (``runtime/c/web.c``); ``tables`` as
    for ``executable``."""
    # Headers of a C library, none of whose functions are linked: web_library.c defines those that are called.
    hosted = replace(target, triple=target.triple.replace("freestanding", "wasi"))
    objects = program_objects(compiler, hosted, "web.c", name, network, header, weights)
    objects |= table_objects(compiler, hosted, tables)
    objects |= runtime_objects(compiler, hosted, (*IMAGES, "web_library.c"))
    flags = ("-Wl,--no-entry", f"-Wl,-z,stack-size={WASM_STACK}", "-Wl,--strip-all")
    return link_freestanding(compiler, target, objects, flags)


def weights_object(
    compiler: Compiler, target: Target, weights: bytes, symbol: str = "tenon_weights", section: str | None = None
) -> bytes:
    """An object whose read-only ``symbol`` is the constant region, in the ``section`` of that name (None: the usual).

    The digest in the source is for compilation caches, which do not see the file included by the assembler.
    """
    format = target.format
    label = f"{format.symbol_prefix}{symbol}"
    lines = [
        f'.section {section},"a"' if section else format.constant_section.format(symbol=symbol),
        ".p2align 6",
        f".globl {label}",
        f"{label}:",
        '.incbin "weights.bin"',
        ".byte 0",
        *([f".size {symbol}, {len(weights) + 1}"] if format.needs_symbol_size else []),
        ".text",
    ]
    text = "".join(json.dumps(f"{line}\n") for line in lines)
    source = f"/* {hashlib.sha256(weights).hexdigest()} */\n__asm__({text});\n"
    return compiler.compile({"weights.c": source.encode(), "weights.bin": weights}, "weights.c", target)


def link_freestanding(
    compiler: Compiler, target: Target, objects: Mapping[str, bytes], flags: tuple[str, ...]
) -> bytes:
    """Link without a C library; ``runtime/c/memory.c`` defines memcpy and similar functions.

    zig's compiler_rt implements arithmetic that small processors lack.  Building it takes seconds per target, so it is
    linked only if linking without it fails.  For a board it is built for the board's processor: the generic build uses
    registers that small floating-point units lack.
    """
    memory = compiler.compile({"memory.c": runtime("memory.c")}, "memory.c", target, ("-fno-builtin",))
    whole = {**objects, "memory.o": memory}
    flags = ("-nostdlib", "-Wl,--gc-sections", *flags)
    try:
        return compiler.link(whole, target, flags)
    except ToolchainError as error:
        if "undefined symbol" not in str(error):
            raise
    exact = (f"-mcpu={target.cpu}",) if target.linker_script or target.below_baseline else ()
    return compiler.link(whole, target, (*flags, *exact, "-lcompiler_rt"))
