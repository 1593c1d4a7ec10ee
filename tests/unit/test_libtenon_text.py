"""Texts by libtenon: the same as in Python, on this machine and by an emulated AArch64 one."""

from __future__ import annotations

import ctypes
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tenon
from gguf_models import U32
from libtenon import (
    BUILDS,
    CLIENTS,
    LIBC_OF_CLIENT,
    START_OF_AARCH64,
    client,
    needed,
    needs_loadable_build,
    needs_plain_build,
    run,
    sdk_for_clients,
    succeeded,
)
from on_targets import skip_without_device
from tenon.machine.targets import find
from tenon.machine.toolchain.compiler import zig
from tenon.machine.toolchain.stub_library import stub_library
from tenon.runtime.bundle.writer import save_container
from tenon.runtime.generation.generator import SamplingKeywords
from tenon.runtime.sdk import save_sdk
from text_models import talking_decoder, written_model

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

PROMPT = "the cat sat on the"
PROMPTS = (
    [PROMPT],
    ["\u4f60\u597d <|end|> \u00fc"],
    ["the cat", "sat", "on"],
    ["system", "the mat", "dog", "and", " 12 "],
)
SAMPLED: dict[str, Any] = {
    "temperature": 1.25,
    "top_k": 50,
    "top_p": 0.9375,
    "min_p": 0.015625,
    "repetition_penalty": 1.25,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.25,
}


@pytest.fixture(scope="module", params=BUILDS)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an SDK for this machine, and a language model as a folder and as one file for two machines."""
    folder = tmp_path_factory.mktemp("texts")
    sdk_for_clients(folder, request.param)
    model = written_model(folder / "model")
    here = tenon.compile(model, context=60, threads=2, no_tuning=True)
    here.save(folder / "words")
    other = tenon.compile(model, context=60, threads=2, no_tuning=True, target="aarch64")
    save_container(folder / "words.tenon", [other, here])
    return folder


@pytest.fixture(scope="module")
def program(place: Path) -> Path:
    return client("generate_text", place / "sdk", place)


def as_messages(words: list[str]) -> str | list[dict[str, str]]:
    if len(words) == 1:
        return words[0]
    first = [{"role": "system", "content": words[1]}] if words[0] == "system" else []
    rest = words[2 * len(first) :]
    return first + [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(rest)]


def python_text(place: Path, words: list[str], seed: int, stop: str) -> str:
    """The text that the client prints for these arguments."""
    how = {**SAMPLED, "seed": seed} if seed else {}
    with tenon.Generator(place / "words") as generator:
        prompt = as_messages(words)
        made = generator.generate(prompt, max_tokens=12, stop=["never and never", *([stop] if stop else [])], **how)
        again = len(words) > 2 and f"{generator.generate(prompt, max_tokens=12, stop=stop, **how).text}\n"
    finish = {"stop": 0, "length": 1, "context": 2}[made.finish]
    return f"{made.text}\n{again or ''}{len(made.tokens)} {made.prompt_tokens} {finish}\n"


@pytest.mark.parametrize("form", ["words", "words.tenon"])
def test_texts_are_those_of_python(form: str, place: Path, program: Path) -> None:
    for words in PROMPTS:
        for seed, stop in ((0, ""), (0, "t"), (5, "")):
            wanted = python_text(place, words, seed, stop)
            for threads in ("1", "2"):
                shown = succeeded(run(program, place / form, threads, str(seed), stop, *words))
                assert shown.decode() == wanted


GRAMMAR = 'root ::= "[" item ("," item){1,3} "]"\nitem ::= [a-z ]{2,4} | [0-9]+\n'


def test_grammars_are_followed_as_in_python(place: Path, program: Path) -> None:
    (place / "list.gbnf").write_text(GRAMMAR)
    with tenon.Generator(place / "words") as generator:
        for seed in (0, 5, 6):
            how = {**SAMPLED, "seed": seed} if seed else {}
            wanted = generator.generate(PROMPT, max_tokens=12, grammar=place / "list.gbnf", **how)
            shown = succeeded(run(program, place / "words", "1", str(seed), GRAMMAR, PROMPT)).decode()
            assert shown.startswith(f"{wanted.text}\n{len(wanted.tokens)} ")
        schema = {"type": "array", "items": {"enum": ["cat", "dog", 7]}, "minItems": 1, "maxItems": 3}
        for seed in (0, 5):
            how = {**SAMPLED, "seed": seed} if seed else {}
            wanted = generator.generate(PROMPT, max_tokens=12, grammar=schema, **how)
            shown = succeeded(run(program, place / "words", "1", str(seed), json.dumps(schema), PROMPT)).decode()
            assert shown.startswith(f"{wanted.text}\n{len(wanted.tokens)} ")
    done = run(program, place / "words", "1", "0", '{"uniqueItems": true}', PROMPT)
    assert b"the grammar has a mistake at byte 1: the keyword is not supported" in done.stdout
    done = run(program, place / "words", "1", "0", 'root ::= "a', PROMPT)
    assert b"the grammar has a mistake at byte 11: it ends within quotes or brackets" in done.stdout


def test_texts_on_an_emulated_aarch64(place: Path) -> None:
    needs_plain_build(place / "sdk", "it is one for this machine")
    skip_without_device("aarch64")
    system = Path("/usr/aarch64-linux-gnu")
    if not (system / "lib" / "libc.so.6").exists():
        pytest.skip("there is no C library for AArch64 to run programs with (Debian: libc6-arm64-cross)")
    sdk = save_sdk(place / "aarch64", "aarch64")
    compiler = zig(tenon.Options.from_environment().cache)
    row = replace(find("aarch64"), triple="aarch64-linux-gnu")
    files = {
        "generate_text.c": (CLIENTS / "generate_text.c").read_bytes(),
        "tenon.h": (sdk / "include" / "tenon.h").read_bytes(),
    }
    objects = {
        "client.o": compiler.compile(files, "generate_text.c", row),
        "start.o": compiler.compile({"start.c": START_OF_AARCH64.encode()}, "start.c", row),
        "libtenon.so": (sdk / "lib" / "libtenon.so").read_bytes(),
    }
    called = (*LIBC_OF_CLIENT, "printf", "putchar", "puts", "strtol", "atoi", "strcmp", "stdout", "fputc")
    objects["libc.so"] = stub_library(objects["client.o"], "libc.so.6", called)
    flags = ("-nostdlib", "libtenon.so", "libc.so", "-Wl,--dynamic-linker=/lib/ld-linux-aarch64.so.1", "-pie")
    out = place / "generate_text_aarch64"
    out.write_bytes(compiler.link(objects, row, flags))
    out.chmod(0o755)
    emulator = (needed("qemu-aarch64"), "-L", system, "-E", f"LD_LIBRARY_PATH={sdk}/lib")
    for words, seed in ((PROMPTS[0], 0), (PROMPTS[0], 5), (PROMPTS[3], 0)):
        shown = succeeded(run(*emulator, out, place / "words.tenon", "2", str(seed), "", *words))
        assert shown.decode() == python_text(place, words, seed, "")


def cpp_client(source: Path, sdk: Path) -> Path:
    """A program in C++, beside its source."""
    needs_plain_build(sdk, "it is the client in C that they check")
    paths = (f"-I{sdk}/include", f"-L{sdk}/lib", "-ltenon", f"-Wl,-rpath,{sdk}/lib")
    flags = ("-std=c++17", "-Wall", "-Wextra", "-Werror")
    succeeded(run(needed("g++"), *flags, source, *paths, "-o", source.with_suffix("")))
    return source.with_suffix("")


def test_a_program_in_cpp(place: Path) -> None:
    source = """\
#include <cstdio>
#include <tenon.hpp>

int main(int, char **words) {
  try {
    tenon::Generator generator{tenon::Bundle(words[1])};
    tenon::TextOptions how;
    how.max_tokens = 12;
    how.grammar = "root ::= [a-c]{3}";
    const std::string letters = generator.generate(words[2], how).text;
    if (letters.size() != 3 || letters.find_first_not_of("abc") != std::string::npos) return 1;
    how.grammar.reset();
    how.stop = {"never"};
    const tenon::Text text = generator.generate(words[2], how);
    int pieces = 0;
    const auto some = [&](std::string_view) { return ++pieces < 3; };
    const tenon::Text answer = generator.chat({{"user", words[2]}}, how, some);
    std::printf("%s\\n%d %d\\n", text.text.c_str(), static_cast<int>(text.about.tokens), answer.about.finish);
    std::printf("%s\\n", generator.tokens(words[2]).size() == std::size_t(text.about.prompt_tokens) ? "same" : "other");
    generator.chat({{"tool", words[2]}}, how);
  } catch (const tenon::Error &error) {
    std::printf("%d %s\\n", error.status(), error.what());
  }
  return 0;
}
"""
    (place / "client.cpp").write_text(source)
    shown = succeeded(run(cpp_client(place / "client.cpp", place / "sdk"), place / "words", PROMPT)).decode()
    with tenon.Generator(place / "words") as generator:
        text = generator.generate(PROMPT, max_tokens=12).text
    assert shown.startswith(f"{text}\n")
    numbers, tokens, error = shown.splitlines()[-3:]
    assert (numbers, tokens) == ("12 3", "same")
    assert error.startswith("2 words: messages are one of the system")


@pytest.fixture(scope="module")
def library(place: Path) -> ctypes.CDLL:
    needs_loadable_build(place / "sdk")
    loaded = ctypes.CDLL(str(place / "sdk" / "lib" / "libtenon.so"))
    loaded.tenon_last_error.restype = ctypes.c_char_p
    return loaded


def opened(library: ctypes.CDLL, path: Path) -> tuple[ctypes.c_void_p, int, ctypes.c_void_p]:
    """A bundle, the status of the generator on it, and the generator."""
    bundle, generator = ctypes.c_void_p(), ctypes.c_void_p()
    assert library.tenon_bundle_open(str(path).encode(), None, ctypes.byref(bundle)) == 0
    return bundle, library.tenon_generator_create(bundle, None, ctypes.byref(generator)), generator


def test_misuse(place: Path, library: ctypes.CDLL) -> None:
    bundle, status, generator = opened(library, place / "words")
    assert status == 0
    piece = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    busy = list[int]()

    def again(*_: Any) -> int:
        busy.append(library.tenon_generator_generate(generator, b"a", None, nested, None, None))
        return 1

    nested = piece(again)

    def generated(prompt: bytes | None, options: Any, function: Any) -> tuple[int, str]:
        status = library.tenon_generator_generate(generator, prompt, options, function, None, None)
        return status, library.tenon_last_error().decode()

    assert library.tenon_generator_generate(generator, b"the cat", None, nested, None, None) == 0
    assert busy == [9]
    assert generated(None, None, nested)[0] == 2
    assert generated(b"a", None, None) == (2, "the function for pieces of the text is NULL")
    for prompt in (b"", b"x" * 70):
        status, text = generated(prompt, None, nested)
        assert (status, text) == (4, "words: the prompt is empty or leaves no room among the 60 tokens of the caches")
    options = (ctypes.c_double * 13)(*([-1.0] * 13))
    ctypes.c_size_t.from_buffer(options).value = ctypes.sizeof(options)
    ctypes.c_int64.from_buffer(options, 8).value = 3
    ctypes.c_double.from_buffer(options, 24).value = 1.5
    assert generated(b"a", options, nested) == (2, "options.top_p is 1.5: it lies from 0 to 1")
    assert library.tenon_generator_chat(generator, None, 1, None, nested, None, None) == 2
    assert library.tenon_generator_create(bundle, None, None) == 2
    assert library.tenon_generator_destroy(generator) == 0
    assert generated(b"a", None, nested) == (
        1,
        "the handle is not of this kind (generator), or the generator was destroyed",
    )
    assert library.tenon_generator_destroy(bundle) == 1
    assert library.tenon_bundle_close(bundle) == 0


def test_bundles_without_text(place: Path, library: ctypes.CDLL, tmp_path: Path) -> None:
    """Saved without tables, and with damaged ones."""
    model = tenon.compile(place / "model" / "words.onnx", context=20, no_tuning=True)
    tokenizer = place / "model" / "tokenizer.json"
    moved = shutil.copytree(place / "model", tmp_path / "model")
    (moved / tokenizer.name).unlink()
    tenon.compile(moved / "words.onnx", context=20, no_tuning=True).save(tmp_path / "plain")
    _, status, _ = opened(library, tmp_path / "plain")
    assert (status, b"no tables for text" in library.tenon_last_error()) == (11, True)
    model.save(tmp_path / "net")
    tables = tmp_path / "net" / "words.text.bin"
    tables.write_bytes(b"\0" + tables.read_bytes()[1:])
    bundle = ctypes.c_void_p()
    assert library.tenon_bundle_open(str(tmp_path / "net").encode(), None, ctypes.byref(bundle)) == 5
    assert b"words.text.bin is damaged" in library.tenon_last_error()


SEVERAL = (
    "the cat sat on the",
    "12",
    "the cat sat on the mat and",
    "user:dog and cat",
    "the cat sat on the",
    "the mat",
)


@pytest.fixture(scope="module")
def several(place: Path) -> Path:
    """Folders with a decoder for one sequence and for three."""
    (place / "talk.gguf").write_bytes(talking_decoder().file())
    for name, count in (("one", 1), ("three", 3)):
        tenon.compile(place / "talk.gguf", context=60, sequences=count, threads=2, no_tuning=True).save(place / name)
    return place


def test_several_texts_are_those_of_python(several: Path) -> None:
    """Each as if it were alone, with a seed and a grammar too; what prompts have in common is computed once."""
    program = client("batch_texts", several / "sdk", several)
    (several / "list.gbnf").write_text(GRAMMAR)
    with tenon.Generator(several / "one") as generator:
        for seed, grammar in ((0, ""), (4, ""), (4, GRAMMAR)):
            wanted = list[list[str]]()
            for number, prompt in enumerate(SEVERAL):
                how: SamplingKeywords = {"seed": seed + number, "temperature": 1.25 if seed else None}
                given = several / "list.gbnf" if grammar else None
                words = [{"role": "user", "content": prompt[5:]}] if prompt.startswith("user:") else prompt
                made = generator.generate(words, max_tokens=8, grammar=given, **how)
                finish = {"stop": 0, "length": 1, "context": 2}[made.finish]
                wanted.append(
                    [
                        made.text.replace("\n", "/").replace("\0", "/"),
                        f"{len(made.tokens)} {made.prompt_tokens}",
                        str(finish),
                    ]
                )
            for threads in ("1", "2"):
                shown = succeeded(run(program, several / "three", threads, str(seed), grammar, *SEVERAL)).decode()
                lines = shown.rstrip("\n").split("\n")
                numbers = [line.split() for line in lines[1::2]]
                texts = zip(lines[::2], numbers, strict=True)
                assert [[text, f"{n[0]} {n[1]}", n[3]] for text, n in texts] == wanted
                assert [int(n[2]) > 3 for n in numbers] == [False, False, True, False, True, False]


LATER = "the cat sat on the mat and the dog sat on the cat 12"
GONE_ON = (LATER, LATER + " and the mat", LATER, LATER[:20], LATER + "ing")
"""Texts each of which has more or less in common with the one before it."""


@pytest.fixture(scope="module")
def ringed(place: Path) -> Path:
    """Folders with decoders whose caches are rings that are shorter than texts, for one sequence and for three."""
    window = {"attention.sliding_window": (U32, 5)}
    (place / "rings.gguf").write_bytes(talking_decoder("phi3", layers=2, joined=True, pairs=window).file())
    for name, count in (("ring", 1), ("rings", 3)):
        slots: dict[str, str | int] = {"sequences": count, "answers": f"1..{count}"} if count > 1 else {}
        shapes = [{**slots, "length": f"1..{n}", "past": f"0..{60 - n}"} for n in (count, 8)]
        tenon.compile(place / "rings.gguf", shapes=shapes, threads=2, no_tuning=True).save(place / name)
    return place


def test_several_texts_in_rings(ringed: Path) -> None:
    """Texts that are longer than rings are those of Python; tokens are shared as far as the rings have them."""
    program = client("batch_texts", ringed / "sdk", ringed)
    prompts = (*GONE_ON, LATER, LATER, "the mat", LATER[:20])
    with tenon.Generator(ringed / "ring") as generator:
        made = [generator.generate(prompt, max_tokens=8) for prompt in prompts]
    wanted = [each.text.replace("\n", "/").replace("\0", "/") for each in made]
    for threads in ("1", "2"):
        lines = succeeded(run(program, ringed / "rings", threads, "0", "", *prompts)).decode().rstrip("\n").split("\n")
        assert lines[::2] == wanted
        reused = [int(line.split()[2]) for line in lines[1::2]]
        assert reused[1] > 10
        assert reused.count(0) > 2


def test_tokens_taken_back_from_rings(ringed: Path, library: ctypes.CDLL) -> None:
    """One generator goes on with texts as one in Python does, and says of as many tokens that it had them."""
    bundle, status, generator = opened(library, ringed / "ring")
    assert status == 0
    pieces = list[bytes]()
    piece = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)

    def kept(text: int, size: int, _: Any) -> int:
        pieces.append(ctypes.string_at(text, size))
        return 0

    keep = piece(kept)
    options = (ctypes.c_double * 13)(*([-1.0] * 13))
    ctypes.c_size_t.from_buffer(options).value = ctypes.sizeof(options)
    for field, number in ((1, 6), (6, 0), (7, 0), (8, -1), (9, -1), (10, -1), (11, 0), (12, 0)):
        ctypes.c_int64.from_buffer(options, 8 * field).value = number
    shown = list[tuple[str, int]]()
    for prompt in GONE_ON:
        result = (ctypes.c_int64 * 8)()
        pieces.clear()
        assert library.tenon_generator_generate(generator, prompt.encode(), options, keep, None, result) == 0
        shown.append((b"".join(pieces).decode(), result[2]))
    with tenon.Generator(ringed / "ring") as python:
        wanted = [python.generate(prompt, max_tokens=6) for prompt in GONE_ON]
    assert shown == [(each.text, each.reused_tokens) for each in wanted]
    assert [count > 0 for _, count in shown] == [False, True, False, False, True]
    assert library.tenon_generator_destroy(generator) == 0
    assert library.tenon_bundle_close(bundle) == 0


def test_bundles_that_are_for_one_text_or_several(several: Path) -> None:
    program = client("batch_texts", several / "sdk", several)
    done = run(program, several / "one", "1", "0", "", "a")
    assert b"create: talk is no language model for several texts: compile it with --sequences" in done.stdout
    done = run(program, several / "three", "1", "0", "", "a" * 200)
    assert b"the prompt is empty or leaves no room among the 60 tokens" in done.stdout
    done = run(program, several / "three", "1", "0", "root ::= (", "a")
    assert b"add: the grammar has a mistake at byte 10" in done.stdout
    done = run(program, several / "three", "1", "0", 'root ::= "\\x00"', "a")
    assert (done.returncode, done.stderr) == (0, b"")


def test_several_texts_in_cpp(several: Path) -> None:
    source = """\
#include <cstdio>
#include <tenon.hpp>

int main(int, char **words) {
  try {
    tenon::Bundle bundle(words[1]);
    tenon::Batch batch(bundle);
    tenon::TextOptions how;
    how.max_tokens = 8;
    std::vector<std::string> texts(3);
    int pieces = 0;
    batch.generate(words[2], how, [&](const tenon::Text &text) { texts[0] = text.text; });
    batch.chat({{"user", words[2]}}, how, [&](const tenon::Text &text) { texts[1] = text.text; });
    batch.generate(words[2], how, {}, [&](std::string_view) { return ++pieces < 2; });
    while (batch.step() > 0) {
    }
    std::printf("%s\\n%s\\n%d %d\\n", texts[0].c_str(), texts[1].c_str(), pieces, int(batch.sequences()));
    batch.generate(words[2], how, {}, [](std::string_view) -> bool { throw std::runtime_error("enough"); });
    while (batch.step() > 0) {
    }
  } catch (const std::runtime_error &error) {
    std::puts(error.what());
  }
}
"""
    (several / "batch.cc").write_text(source)
    with tenon.Generator(several / "one") as generator:
        plain = generator.generate("the cat", max_tokens=8).text
        answer = generator.generate([{"role": "user", "content": "the cat"}], max_tokens=8).text
    out = cpp_client(several / "batch.cc", several / "sdk")
    assert succeeded(run(out, several / "three", "the cat")).decode() == f"{plain}\n{answer}\n2 3\nenough\n"


def test_programs_of_the_documentation(several: Path) -> None:
    needs_plain_build(several / "sdk", "it is the client in C that they check")
    page = (Path(__file__).parents[2] / "docs" / "reference" / "libtenon.md").read_text()
    sdk = several / "sdk"
    flags = ("-std=c99", "-Wall", "-Wextra", "-Werror", f"-I{sdk}/include", f"-L{sdk}/lib", f"-Wl,-rpath,{sdk}/lib")
    for name in ("chat", "several"):
        source = several / f"{name}.c"
        source.write_text(page.split(f"```c title={name}.c\n")[1].split("```")[0])
        succeeded(run(needed("gcc"), *flags, source, "-ltenon", "-o", source.with_suffix("")))
    with tenon.Generator(several / "one") as generator:
        texts = [generator.generate(prompt, max_tokens=100) for prompt in ("12", "the mat", "dog", "cat")]
    assert succeeded(run(several / "chat", several / "one", "12")).decode() == texts[0].text
    shown = succeeded(run(several / "several", several / "three", "12", "the mat", "dog", "cat")).decode()
    assert all(f"{len(text.tokens)} tokens: {text.text}\n" in shown for text in texts)
