"""Speech written down by programs in C: the same texts as in Python, by executables, entry points and libtenon."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import tenon
from documented import blocks
from installed import succeeds
from installed import tenon as command
from libtenon import BUILDS, STRICT, checked, client, needed, run, sanitizer_flags, sdk_for_clients, succeeded
from tenon.errors import InputError
from tenon.network.graph.graph import Array
from tenon.runtime.bundle.speech_program import SpeechProgram
from tenon.speech import DECODER, ENCODER, HeardText, LiveRecognizer, Recognizer, read_sound, write_wav
from transformer_models import (
    SMALL_MOONSHINE,
    SMALL_WHISPER,
    config,
    moonshine_tensors,
    safetensors,
    tokenizer,
    whisper_tensors,
)

pytest.importorskip("tokenizers")

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "speech"
RATE = 16000
PARTS = {"encoder": ENCODER, "decoder": DECODER}


def sound() -> Array:
    """Two tones with a pause, then one that is longer than the small Whisper network takes at once."""
    n = np.arange(7 * RATE)
    loud = (n < RATE) | ((n > 2.2 * RATE) & (n < 3 * RATE)) | (n > 4 * RATE)
    gaps = n % 4000 >= 640
    noise = np.random.default_rng(3).normal(0, 1e-4, n.size)
    samples: Array = 0.3 * np.sin(0.1 * (1 + n // RATE) * n) * loud * gaps + noise
    return samples


def multilingual(place: Path) -> None:
    """A Whisper network with as many tokens as those for several languages have; only the first 60 are likely."""
    count = 51865
    names = [
        "<|startoftranscript|>",
        "<|en|>",
        "<|de|>",
        "<|fr|>",
        "<|translate|>",
        "<|transcribe|>",
        "<|notimestamps|>",
    ]
    special = {50000: "<|endoftext|>", **{50001 + i: name for i, name in enumerate(names)}}
    special |= {50100 + i: f"<|{i / 50:.2f}|>" for i in range(count - 50100)}
    sizes = replace(SMALL_WHISPER, vocab_size=count, d_model=8, decoder_ffn_dim=8, max_target_positions=12)
    tensors = whisper_tensors(sizes)
    tensors["model.decoder.embed_tokens.weight"][60:] *= 0.01
    place.mkdir()
    (place / "config.json").write_bytes(config("whisper", sizes))
    settings = {"decoder_start_token_id": 50001, "eos_token_id": 50000}
    (place / "generation_config.json").write_text(json.dumps(settings))
    (place / "tokenizer.json").write_bytes(tokenizer([f"\u0120w{i}" for i in range(count)], special))
    (place / "model.safetensors").write_bytes(safetensors(tensors))


def moonshine(place: Path) -> None:
    """A Moonshine network, some of whose tokens are parts of characters."""
    words = [f"\u0120w{i}" for i in range(SMALL_MOONSHINE.vocab_size)]
    words[23], words[7], words[24] = "\u0120\u00c3\u00a9", "\u00c3", "\u00a9"
    place.mkdir()
    (place / "config.json").write_bytes(config("moonshine", SMALL_MOONSHINE))
    (place / "generation_config.json").write_text(json.dumps({"decoder_start_token_id": 1, "eos_token_id": 3}))
    (place / "tokenizer.json").write_bytes(tokenizer(words, {0: "<unk>", 1: "<s>", 3: "</s>"}))
    (place / "model.safetensors").write_bytes(safetensors(moonshine_tensors(SMALL_MOONSHINE)))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models with random weights, and sounds of two rates; ``x.pcm`` has the samples of one."""
    folder = tmp_path_factory.mktemp("speech")
    succeeded(run(sys.executable, EXAMPLES / "random_models.py", folder))
    moonshine(folder / "moonshine")
    multilingual(folder / "languages")
    write_wav(folder / "x.wav", sound(), RATE)
    (folder / "x.pcm").write_bytes((folder / "x.wav").read_bytes()[44:])
    n = np.arange(3 * 44100)
    write_wav(folder / "x44.wav", 0.3 * np.sin(0.03 * n * (1 + n / 90000)), 44100)
    return folder


@pytest.fixture(scope="module", params=["whisper", "moonshine"])
def program(request: pytest.FixtureRequest, models: Path) -> Path:
    """The program of a model, which lies in a folder of its name with .net behind it."""
    name = str(request.param)
    succeeds("compile", name, "-o", f"{name}.net", "--emit", "exe,text", "--threads", "2", cwd=models)
    return models / f"{name}.net" / name


def lines(program: Path, *words: str, stdin: bytes = b"") -> list[str]:
    return succeeded(run(program, *words, stdin=stdin)).decode().splitlines()


def in_python(program: Path, *words: str) -> list[str]:
    return succeeds("run", program.name, *words, cwd=program.parent.parent).splitlines()


def test_programs_explain_themselves(program: Path) -> None:
    assert lines(program, "-h") == lines(program, "--help") != []


@pytest.mark.parametrize("options", [(), ("--timestamps",), ("--stream",), ("--stream", "--timestamps")], ids=" ".join)
@pytest.mark.parametrize("name", ["x.wav", "x44.wav"])
def test_programs_print_the_texts_of_python(program: Path, name: str, options: Sequence[str]) -> None:
    expected = in_python(program, name, *options)
    sound = str(program.parent.parent / name)
    assert lines(program, sound, *options) == expected
    assert lines(program, sound, *options, "--threads", "2") == expected
    assert any(expected)


def test_samples_on_standard_input(program: Path) -> None:
    """Texts that may change come with the samples, final ones do not depend on how these arrive."""
    data = (program.parent.parent / "x.pcm").read_bytes()
    final = in_python(program, "x.wav", "--stream")
    assert lines(program, "--stream", stdin=data) == final
    with subprocess.Popen([program, "--stream", "--json"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as listening:
        assert listening.stdin is not None
        assert listening.stdout is not None
        for first in range(0, len(data), 9001):  # samples are cut in two
            listening.stdin.write(data[first : first + 9001])
            listening.stdin.flush()
        listening.stdin.close()
        heard = [json.loads(line) for line in listening.stdout]
    assert [each["text"] for each in heard if each["final"]] == final
    expected = [json.loads(line) for line in in_python(program, "x.wav", "--stream", "--json")]
    assert [each for each in heard if each["final"]] == [each for each in expected if each["final"]]
    assert all(a["end"] <= b["end"] for a, b in pairwise(heard))
    assert lines(program, "-", stdin=(program.parent.parent / "x.wav").read_bytes()) == in_python(program, "x.wav")


def test_drafts_of_a_file(program: Path) -> None:
    got = [json.loads(line) for line in lines(program, str(program.parent.parent / "x.wav"), "--stream", "--json")]
    assert got == [json.loads(line) for line in in_python(program, "x.wav", "--stream", "--json")]
    assert not all(each["final"] for each in got)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "give a WAV file, or --stream and samples on standard input"),
        (("none.wav",), "none.wav: No such file or directory"),
        (("one.wav", "two.wav"), "two.wav: give one sound"),
        (("--threads",), "--threads: it needs a value, or is no option"),
        (("--threads", "0", "x.wav"), "0: it takes a number of threads"),
        (("--volume", "1", "x.wav"), "--volume: there is no such option"),
        (("--language", "de", "x.wav"), "de: the network does not know this language"),
        (("damaged",), "damaged: not a readable WAV file (it does not begin with RIFF and WAVE)"),
    ],
)
def test_what_programs_refuse(program: Path, tmp_path: Path, words: Sequence[str], why: str) -> None:
    (tmp_path / "damaged").write_bytes(b"RIFX")
    done = subprocess.run([program, *words], cwd=tmp_path, capture_output=True, check=False, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (
        2,
        "",
        f"{program.name}: {done.stderr[len(program.name) + 2 :]}",
    )
    assert why in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("options", [(), ("--language", "fr"), ("--timestamps",)], ids=" ".join)
def test_languages(models: Path, options: Sequence[str]) -> None:
    if not (models / "languages.net").exists():
        succeeds("compile", "languages", "-o", "languages.net", "--emit", "exe", cwd=models)
    program = models / "languages.net" / "languages"
    assert lines(program, str(models / "x.wav"), *options) == in_python(program, "x.wav", *options)


def test_which_languages_there_are(models: Path) -> None:
    with (
        tenon.open(tenon.compile(models / "languages", **ENCODER)) as encoder,
        tenon.open(tenon.compile(models / "languages", **DECODER)) as decoder,
        pytest.raises(InputError, match="the language 'xx' is not known; there are en, de, fr"),
    ):
        Recognizer(encoder, decoder, "xx")


# ----------------------------------------------------------------------------------------------- entry points
def test_a_program_without_a_library(models: Path, tmp_path: Path) -> None:
    """The example, by sanitizers and with all warnings: the functions take no memory but what they are given."""
    net = models / "plain"
    succeeds("compile", "whisper", "-o", net, "--emit", "text", cwd=models)
    paths = [f"-I{net / part}" for part in (".", "encoder", "decoder")]
    objects = [net / "encoder" / "whisper_encoder.o", net / "decoder" / "whisper_decoder.o"]
    sanitizers = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g")
    flags = (*STRICT, "-ffp-contract=off", *sanitizers, *paths)
    files = (EXAMPLES / "listen.c", net / "whisper_speech.c", *objects)
    succeeded(run(needed("gcc"), *flags, *files, "-lm", "-o", tmp_path / "listen"))
    # The weights are there until the program ends.
    kept = {"ASAN_OPTIONS": "detect_leaks=0"}
    done = run(tmp_path / "listen", net, stdin=(models / "x.pcm").read_bytes(), env=kept)
    got = succeeded(done).decode().splitlines()
    expected = succeeds("run", "whisper", "x.wav", "--stream", "--json", cwd=models).splitlines()
    final = [each for each in map(json.loads, expected) if each["final"]]
    assert got == [f"{each['start']:.1f} {each['end']:.1f} {each['text']}" for each in final]


def test_entry_points_call_no_allocation(models: Path, tmp_path: Path) -> None:
    net = models / "entry"
    succeeds("compile", "whisper", "-o", net, "--emit", "text", cwd=models)
    paths = [f"-I{net / part}" for part in (".", "encoder", "decoder")]
    succeeded(run(needed("gcc"), *STRICT, *paths, "-O2", "-c", net / "whisper_speech.c", "-o", tmp_path / "x.o"))
    names = succeeded(run(needed("nm"), "-u", tmp_path / "x.o")).decode().split()
    own = {f"whisper_{part}" for part in ("encoder", "decoder", "decoder_reset")}
    allowed = {"memcpy", "memmove", "memset", "memcmp", "strlen", "__stack_chk_fail", "_GLOBAL_OFFSET_TABLE_"}
    assert {name for name in names if len(name) > 1} <= own | allowed


def test_networks_that_do_not_belong_together(models: Path) -> None:
    def compiled(part: str, name: str, **how: object) -> tenon.Bundle:
        return tenon.compile(models / "whisper", name=name, **{**PARTS[part], **how})

    encoder, decoder = compiled("encoder", "a_encoder"), compiled("decoder", "a_decoder")
    assert SpeechProgram(encoder, decoder).name == "a"
    for pair, why in (
        ((decoder, encoder), "the networks of a program for speech are called NAME_encoder and NAME_decoder"),
        ((encoder, compiled("decoder", "b_decoder")), "the networks of a program for speech are called"),
        ((encoder, compiled("decoder", "a_decoder", target="aarch64")), "are compiled for different targets"),
        ((compiled("decoder", "a_encoder"), decoder), "are no encoder and decoder of speech"),
    ):
        with pytest.raises(InputError, match=why):
            SpeechProgram(*pair)


def test_folders_with_other_files_stay(models: Path, tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "notes.txt").write_text("mine")
    done = command("compile", models / "whisper", "-o", "net", "--emit", "exe", cwd=tmp_path)
    assert done.returncode == 2
    assert "notes.txt" in done.stderr
    assert [path.name for path in (tmp_path / "net").iterdir()] == ["notes.txt"]
    (tmp_path / "net" / "notes.txt").unlink()
    for _ in range(2):  # it is replaced
        succeeds("compile", models / "whisper", "-o", "net", "--emit", "text", cwd=tmp_path)
    done = command("compile", models / "whisper", "-o", "net", "--emit", "exe", "--report", "x.html", cwd=tmp_path)
    assert (done.returncode, "--report is about one network" in " ".join(done.stderr.split())) == (2, True)


# ---------------------------------------------------------------------------------------------------- libtenon
@pytest.fixture(scope="module", params=BUILDS)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, models: Path) -> Path:
    """A folder with an SDK for this machine, a client and the bundles of both models."""
    folder = tmp_path_factory.mktemp("clients")
    sdk_for_clients(folder, request.param)
    for name in ("whisper", "moonshine"):
        for part, how in PARTS.items():
            tenon.compile(models / name, threads=2, no_tuning=True, **how).save(folder / f"{name}_{part}.tenon")
    client("write_down", folder / "sdk", folder)
    return folder


def recognizer(place: Path, name: str) -> Iterator[Recognizer]:
    parts = [place / f"{name}_{part}.tenon" for part in PARTS]
    with tenon.open(parts[0]) as encoder, tenon.open(parts[1]) as decoder:
        yield Recognizer(encoder, decoder)


@pytest.mark.parametrize("name", ["whisper", "moonshine"])
def test_libtenon_gives_the_texts_of_python(place: Path, models: Path, name: str) -> None:
    samples = np.frombuffer((models / "x.pcm").read_bytes(), "<i2").astype(np.float32) / np.float32(32768)
    parts = [place / f"{name}_{part}.tenon" for part in PARTS]
    for live, times, part, threads in ((1, 0, 1600, 1), (1, 0, -777, 2), (0, 1, 999, 1), (0, 0, -50000, 2)):
        for listener in recognizer(place, name):
            if live:
                hearing, step = LiveRecognizer(listener), abs(part)
                heard = [each for i in range(0, len(samples), step) for each in hearing.hear(samples[i : i + step])]
                texts = [*heard, *hearing.finish()]
            else:
                spoken = listener.stream(read_sound(models / "x.wav"), times=bool(times))
                texts = [HeardText(*each, final=True) for each in spoken]
        expected = [f"{each.start:.3f} {each.end:.3f} {int(each.final)} {each.text}" for each in texts]
        words = map(str, (threads, live, times, part))
        assert lines(place / "write_down", *map(str, parts), *words, str(models / "x.pcm")) == 2 * expected


def test_the_program_of_the_reference(place: Path, models: Path) -> None:
    (page,) = (text for text in blocks(ROOT / "docs" / "reference" / "libtenon.md", "c") if "TenonRecognizer" in text)
    (place / "listen.c").write_text(page)
    sdk = place / "sdk"
    paths = (f"-I{sdk}/include", f"-L{sdk}/lib", "-ltenon", f"-Wl,-rpath,{sdk}/lib")
    succeeded(run(needed("gcc"), place / "listen.c", *STRICT, *sanitizer_flags(sdk), *paths, "-o", place / "from_page"))
    bundles = [str(place / f"moonshine_{part}.tenon") for part in PARTS]
    got = lines(checked(place / "from_page", sdk), *bundles, stdin=(models / "x.pcm").read_bytes())
    assert [line.split(" ", 2)[2] for line in got] == succeeds(
        "run", "moonshine", "x.wav", "--stream", cwd=models
    ).splitlines()


def test_a_program_in_cpp(place: Path, models: Path) -> None:
    source = """\
#include <cstdio>
#include <stdexcept>
#include <tenon.hpp>

int main(int, char **words) {
  tenon::Bundle encoder{words[1]}, decoder{words[2]};
  tenon::Recognizer recognizer{encoder, decoder};
  FILE *file = std::fopen(words[3], "rb");
  std::vector<std::int16_t> samples(1 << 17);
  samples.resize(std::fread(samples.data(), 2, samples.size(), file));
  std::fclose(file);
  tenon::Listening how;
  how.live = true;
  recognizer.begin(how, [](const tenon::Heard &text) {
    if (text.final) std::printf("%.1f %.1f %s\\n", text.start, text.end, text.text.c_str());
    return true;
  });
  recognizer.hear(samples.data(), samples.size());
  recognizer.finish();
  try {
    recognizer.begin(how, [](const tenon::Heard &) -> bool { throw std::runtime_error("enough"); });
    recognizer.hear(samples.data(), samples.size());
  } catch (const std::runtime_error &error) {
    std::printf("%s\\n", error.what());
  }
  try {
    how.language = "xx";
    recognizer.begin(how, [](const tenon::Heard &) { return true; });
  } catch (const tenon::Error &error) {
    std::printf("%s\\n", error.what());
  }
  try {
    tenon::Generator generator{decoder};
  } catch (const tenon::Error &error) {
    std::printf("%s\\n", error.what());
  }
}
"""
    (place / "listen.cpp").write_text(source)
    sdk = place / "sdk"
    paths = (f"-I{sdk}/include", f"-L{sdk}/lib", "-ltenon", f"-Wl,-rpath,{sdk}/lib")
    flags = ("-std=c++17", "-Wall", "-Wextra", "-Werror", *sanitizer_flags(sdk))
    succeeded(run(needed("g++"), place / "listen.cpp", *flags, *paths, "-o", place / "listen"))
    bundles = [str(place / f"whisper_{part}.tenon") for part in PARTS]
    got = lines(checked(place / "listen", sdk), *bundles, str(models / "x.pcm"))
    expected = succeeds("run", "whisper", "x.wav", "--stream", "--json", cwd=models).splitlines()
    final = [each for each in map(json.loads, expected) if each["final"]]
    assert got == [
        *(f"{each['start']:.1f} {each['end']:.1f} {each['text']}" for each in final),
        "enough",
        "whisper does not know the language 'xx'",
        "whisper writes down speech: create a recognizer",
    ]
