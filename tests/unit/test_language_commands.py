"""``tenon run --prompt``, ``tenon chat`` and ``tenon compile`` of a language model."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

import tenon
from command_line import run_main
from libtenon import CLIENTS, needed, run, succeeded
from real import DIGITS
from tenon.cli import conversations, main
from tenon.errors import InputError, TenonWarning
from tenon.runtime.generation.completion import Completion
from tenon.runtime.generation.generator import SamplingKeywords
from tenon.runtime.text.grammar import read_rules
from text_models import talking_decoder, written_model

pytest.importorskip("tokenizers")

PROMPT = "the cat sat on the"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = written_model(tmp_path_factory.mktemp("words")).parent
    (folder / "answer.json").write_text('{"enum": ["cat"]}')
    return folder


@pytest.fixture(autouse=True)
def _in_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TENON_CACHE", str(folder / "cache"))


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run_main(main, list(words)) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run_main(main, list(words)) == 2
    return capsys.readouterr().err


def test_run(capsys: pytest.CaptureFixture[str]) -> None:
    """The text alone is on standard output; JSON says more."""
    wanted = tenon.generate("words.onnx", PROMPT, max_tokens=6, options={"no_tuning": True})
    command = ["run", "words.onnx", "--prompt", PROMPT, "--max-tokens", "6"]
    assert printed(capsys, *command) == f"{wanted.text}\n"
    about = json.loads(printed(capsys, *command, "--json"))
    assert (about["text"], about["tokens"], about["finish"]) == (wanted.text, list(wanted.tokens), "length")
    drawn = [printed(capsys, *command, "--temperature", "1.5", "--top-k", "50", "--seed", s) for s in ("1", "1", "2")]
    assert drawn[0] == drawn[1] != drawn[2]
    assert (
        printed(capsys, *command, "--stop", wanted.text[-1:]).rstrip("\n") == wanted.text.partition(wanted.text[-1])[0]
    )
    pytest.importorskip("llguidance")
    assert printed(capsys, "run", "words.onnx", "--prompt", PROMPT, "--grammar", "answer.json") == '"cat"\n'


def test_a_text_that_ends_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Models that are trained for conversations end other texts; the command for conversations is named."""
    first = tenon.generate("words.onnx", PROMPT, max_tokens=1, options={"no_tuning": True}).tokens[0]
    model = written_model(tmp_path, eos_token_id=[first])
    for more in ((), ("--json",)):
        assert run_main(main, ["run", str(model), "--prompt", PROMPT, *more]) == 0
        shown = capsys.readouterr()
        assert (json.loads(shown.out)["text"] if more else shown.out.strip()) == ""
        assert "tenon chat MODEL --prompt TEXT" in shown.err
    for count in ("0", "2"):
        assert run_main(main, ["run", "words.onnx", "--prompt", PROMPT, "--max-tokens", count]) == 0
        assert "tenon chat" not in capsys.readouterr().err


def test_targets_that_this_machine_does_not_execute(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are refused before the model is read, because compiling it takes long."""
    monkeypatch.setattr("tenon.runtime.engine.device_here.why_no_device", lambda target: "there is no driver")
    monkeypatch.setattr("tenon.cli.model_source.ModelArgument.load", None)
    ask = ("run", "words.onnx", "--prompt", PROMPT, "--target")
    assert "--target riscv64: this machine does not execute its code" in refused(capsys, *ask, "riscv64")
    assert "--target opencl: there is no driver" in refused(capsys, *ask, "opencl")


def test_inspect_lists_equal_caches_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "net.gguf"
    path.write_bytes(talking_decoder(layers=3).file())
    model = printed(capsys, "inspect", str(path)).splitlines()
    assert re.fullmatch(r"language model  llama  trained for \d+ tokens  tokenizer  (no )?chat template", model[0])
    tenon.compile(path, no_tuning=True).save(tmp_path / "net")
    bundle = printed(capsys, "inspect", str(tmp_path / "net"))
    for text, entries in (("\n".join(model), 1), (bundle, 2)):
        assert text.count("input  past_key_values.0.key ... past_key_values.2.value  f32[") == entries
        assert text.count("  6 states: present.0.key ... present.2.value") == entries


def test_bundles_answer_text_with_text(capsys: pytest.CaptureFixture[str]) -> None:
    """The compiled model has its tokenizer and room for as many tokens as are asked for."""
    command = ["--prompt", PROMPT, "--max-tokens", "6"]
    wanted = printed(capsys, "run", "words.onnx", *command)
    for out in ("net", "net.tenon"):
        printed(capsys, "compile", "words.onnx", "-o", out, "--context", "20")
        assert printed(capsys, "run", out, *command) == wanted
        with tenon.Generator(out) as generator:
            assert generator.context == 20


@pytest.fixture(scope="module")
def program(folder: Path) -> Path:
    """The executable of the model, in a folder with the other parts in C."""
    bundle = tenon.compile(folder / "words.onnx", context=60, threads=2, no_tuning=True)
    return bundle.save(folder / "program", ("exe", "text", "header", "object", "weights")) / "words"


CHOICES: tuple[SamplingKeywords, ...] = (
    {},
    {"temperature": 1.3, "top_k": 60, "top_p": 0.95, "min_p": 0.01, "seed": 3},
    {"repetition_penalty": 1.3},
)
ERRORS = (
    (["--top-p", "2", "a"], b"from 0 to 1"),
    (["--max-tokens"], b"needs a value"),
    (["a", "b"], b"one prompt"),
    ([""], b"empty or too long"),
    (["--no", "1"], b"no such option"),
    (["--grammar", "bad.gbnf", "a"], b"the grammar has a mistake"),
    (["--grammar", "none.gbnf", "a"], b"none.gbnf: No such file"),
)


def test_executables_answer_text_with_text(program: Path) -> None:
    """The same as Python, token by token: greedy and by a seed, to the end of the caches, in one thread and in two."""
    with tenon.Generator("words.onnx", context=60, no_tuning=True) as generator:
        for prompt in (PROMPT, "\u4f60\u597d<|end|> \u00fc 12", "x" * 50):
            for choice in CHOICES:
                wanted = generator.generate(prompt, **choice).text
                given = [w for name, value in choice.items() for w in (f"--{name.replace('_', '-')}", str(value))]
                for threads in ("1", "2"):
                    shown = succeeded(run(program, *given, "--threads", threads, prompt))
                    assert shown.decode("utf-8", "replace") == f"{wanted}\n"
    assert succeeded(run(program, "--max-tokens", "0", stdin=PROMPT.encode())) == b"\n"
    Path("bad.gbnf").write_text("root ::= [")
    for words, message in ERRORS:
        done = run(program, *words)
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr


def test_executables_follow_grammars(program: Path) -> None:
    """With the same tokens as Python, of a vocabulary of bytes and words, to the end of the grammar."""
    Path("list.gbnf").write_text('root ::= "[" item ("," item){1,3} "]"\nitem ::= [a-z ]{2,4} | [0-9]+\n')
    Path("list.json").write_text('{"type": "array", "items": {"type": "integer", "minimum": 7}, "minItems": 2}\n')
    with tenon.Generator("words.onnx", context=60, no_tuning=True) as generator:
        for choice, grammar in ((choice, f"list.{kind}") for choice in CHOICES for kind in ("gbnf", "json")):
            wanted = generator.generate(PROMPT, grammar=grammar, **choice).text
            given = [w for name, value in choice.items() for w in (f"--{name.replace('_', '-')}", str(value))]
            shown = succeeded(run(program, *given, "--grammar", grammar, PROMPT))
            assert shown.decode() == f"{wanted}\n"
            assert wanted.startswith("[")


def test_grammars_of_bundles(capsys: pytest.CaptureFixture[str]) -> None:
    """Followed by Python, the program and libtenon's tables unless another one is given."""
    printed(
        capsys, "compile", "words.onnx", "-o", "cats", "--context", "60", "--grammar", "answer.json", "--emit", "exe"
    )
    assert succeeded(run(Path("cats/words"), PROMPT)) == b'"cat"\n'
    Path("no.gbnf").write_text("")
    assert succeeded(run(Path("cats/words"), "--max-tokens", "2", "--grammar", "no.gbnf", PROMPT)) != b'"cat"\n'
    assert b'root ::= "\\"cat\\""\n\0' in Path("cats/words.text.bin").read_bytes()
    with tenon.Generator("cats") as generator:
        assert generator.generate(PROMPT).text == '"cat"'
        assert generator.generate(PROMPT, grammar="", max_tokens=2).text != '"cat"'
    words = "compile", str(DIGITS / "digits.onnx"), "-o", "digits", "--grammar", "answer.json"
    assert "digits.onnx: it writes no text: leave out the grammar (--grammar)" in refused(capsys, *words)
    Path("bad.json").write_text('{"type": "array", "uniqueItems": true}')
    for path, message in (
        ("bad.json", "bad.json: grammar: programs in C lack the keyword uniqueItems"),
        ("a.lark", "a JSON schema (.json) or GBNF (.gbnf)"),
        ("bad.gbnf", "bad.gbnf: Rule 'foo' not found"),
    ):
        Path("a.lark").write_text('start: "a"')
        Path("bad.gbnf").write_text('root ::= "a" foo')
        with pytest.raises(InputError, match=re.escape(message)):
            read_rules(Path(path))


def test_entry_points_for_text(program: Path) -> None:
    """Linked into a program, without warnings and under sanitizers; the callback ends the text."""
    flags = ("-std=c99", "-Wall", "-Wextra", "-Wcast-qual", "-Werror", "-ffp-contract=off", f"-I{program.parent}")
    files = (CLIENTS / "text_program.c", program.parent / "words_text.c", program.parent / "words.o")
    out = program.parent / "text_program"
    succeeded(run(needed("gcc"), *flags, "-g", "-fsanitize=address,undefined", *files, "-lm", "-o", out))
    with tenon.Generator("words.onnx", context=60, no_tuning=True) as generator:
        whole = generator.generate(PROMPT, max_tokens=6)
        messages = [{"role": "system", "content": "the mat"}, {"role": "user", "content": PROMPT}]
        answer = generator.generate(messages, max_tokens=4).text
        Path("letters.gbnf").write_text('root ::= "[" [a-c]{2} "]"\n')
        letters = generator.generate(PROMPT, grammar="letters.gbnf").text
    shown = succeeded(subprocess.run([out, PROMPT, "6", "-1"], cwd=program.parent, capture_output=True, check=False))
    assert shown.decode() == f"{whole.text}\n6\n{answer}\n{answer}\n{letters}\n"
    shown = succeeded(subprocess.run([out, PROMPT, "6", "2"], cwd=program.parent, capture_output=True, check=False))
    text, count = shown.decode("utf-8", "replace").splitlines()
    assert int(count) < 6
    assert whole.text.startswith(text.rstrip("\ufffd"))


def test_executables_answer_messages(program: Path) -> None:
    """A conversation, whose earlier turns stay in the caches, and one message with a message of the system."""
    lines = ["the cat", "sat on", "/reset", "\u4f60\u597d\\", "12", ""]
    messages, wanted = list[dict[str, str]](), ""
    how: SamplingKeywords = {"temperature": 1.1, "seed": 8}
    with tenon.Generator("words.onnx", context=60, no_tuning=True) as generator:
        for question in ("the cat", "sat on", None, "\u4f60\u597d\n12"):
            if question is None:
                messages = []
                continue
            messages.append({"role": "user", "content": question})
            answer = generator.generate(messages, max_tokens=5, repetition_penalty=1.2).text
            messages.append({"role": "assistant", "content": answer})
            wanted += f"{answer}\n"
        asked = [{"role": "system", "content": "the mat"}, {"role": "user", "content": "dog"}]
        one = generator.generate(asked, max_tokens=9, stop=["zzz", "t"], **how)
    limits = ("--max-tokens", "5", "--repetition-penalty", "1.2")
    shown = succeeded(run(program, "--chat", *limits, stdin="\n".join(lines).encode()))
    assert shown.decode("utf-8", "replace") == wanted
    given = ("--system", "the mat", "--max-tokens", "9", "--temperature", "1.1", "--seed", "8", "--stop", "zzz")
    shown = succeeded(run(program, "--chat", *given, "--stop", "t", "dog"))
    assert shown.decode("utf-8", "replace") == f"{one.text}\n"
    done = run(program, "--system", "x", "a")
    assert (done.returncode, b"belongs to --chat" in done.stderr) == (2, True)


def test_stop_strings_of_executables(program: Path) -> None:
    """Held back while they may still come, also within characters and across tokens."""
    with tenon.Generator("words.onnx", context=60, no_tuning=True) as generator:
        whole = generator.generate(PROMPT, max_tokens=30).text
        plain = [
            text for text in {whole[i : i + n] for i in range(0, 20, 3) for n in (1, 2, 5)} if "\ufffd" not in text
        ]
        for stop in (*sorted(plain), whole[:4] + "never"):
            wanted = generator.generate(PROMPT, max_tokens=30, stop=stop).text
            shown = succeeded(run(program, "--max-tokens", "30", "--stop", stop, PROMPT))
            assert shown.decode("utf-8", "replace") == f"{wanted}\n"


def test_programs_have_no_conversations_without_a_template_of_the_kind(tmp_path: Path) -> None:
    """A warning says so; the rest of the program is as ever."""
    model = written_model(tmp_path / "model")
    settings = json.loads((tmp_path / "model" / "tokenizer_config.json").read_text())
    settings["chat_template"] = "{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}"
    (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps(settings))
    bundle = tenon.compile(model, context=20, no_tuning=True)
    with pytest.warns(TenonWarning, match="words: programs have no conversations.*repeats them"):
        program = bundle.save(tmp_path / "net", ("exe",)) / "words"
    done = run(program, "--chat", "the")
    assert (done.returncode, b"no chat template" in done.stderr) == (2, True)
    assert succeeded(run(program, "--max-tokens", "2", "the"))
    assert succeeded(run(program, "-h")) == succeeded(run(program, "--help")) != b""


def test_parts_for_text_are_those_of_language_models(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no language model with a tokenizer: leave out --emit text"):
        tenon.compile(DIGITS / "digits.onnx", no_tuning=True).save(tmp_path / "net", ("text",))


def test_chat(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line is a message; what was said before goes in front of the next one."""
    messages = [{"role": "system", "content": "the mat"}]
    with tenon.Generator("words.onnx", no_tuning=True) as generator:
        answers = []
        for line in ("the cat", "the\ndog"):
            messages.append({"role": "user", "content": line})
            answers.append(generator.generate(messages, max_tokens=4).text)
            messages.append({"role": "assistant", "content": answers[-1]})
        alone = generator.generate([messages[0], {"role": "user", "content": "on"}], max_tokens=4).text
    monkeypatch.setattr(sys, "stdin", io.StringIO("the cat\n\nthe\\\ndog\n/reset\non"))
    out = printed(capsys, "chat", "words.onnx", "--system", "the mat", "--max-tokens", "4")
    assert out == "".join(f"{text}\n" for text in (*answers, alone))


def test_one_question(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["chat", "words.onnx", "--prompt", "the cat", "--max-tokens", "4"]
    text = printed(capsys, *command)
    assert json.loads(printed(capsys, *command, "--json"))["text"] + "\n" == text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "words.onnx"], "give a text to go on with (--prompt)"),
        (["run", "words.onnx", "--top-k", "3"], "--top-k: no effect"),
        (["run", "words.onnx", "--prompt", "a", "--top", "3"], "--top: no effect"),
        (["run", "words.onnx", "--prompt", "a", "--text", "b"], "--text: no effect"),
        (["run", "words.onnx", "--prompt", "a", "--input", "x.npy"], "--input: no effect"),
        (["run", "words.onnx", "--prompt", ""], "the prompt is empty"),
        (["run", "words.onnx", "--prompt", "a", "--grammar", "none.json"], "none.json: No such file"),
        (["run", "words.onnx", "words.onnx", "--prompt", "a"], "is no language model that reads images; if its tower"),
        (["run", "words.onnx", "words.onnx"], "nothing to run on: give a text to go on with (--prompt)"),
        (["run", "words.onnx", "Once upon a time"], "Once upon a time: no such file; a text is given with --prompt"),
        (["serve", "words.onnx", "--host", "no host"], "--host no host --port 8080: "),
        (["chat", os.devnull, "--prompt", "a"], "character device"),
    ],
)
def test_errors(capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    assert message in refused(capsys, *words)


def test_benchmarks_give_tokens_per_second(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["benchmark", "words.onnx", "--rounds", "2", "--warmup", "0"]
    (facts,) = json.loads(printed(capsys, *command, "--json"))["networks"]
    text = facts["text"]
    assert text["prompt_tokens"] + text["generated_tokens"] <= facts["sizes"]["past"] + 1
    assert min(text["prompt_per_second"], text["generated_per_second"]) > 0
    lines = printed(capsys, *command)
    assert "a run of " in lines
    assert re.search(r"prompt of \d+ tokens: [\d.]+ tokens/s; \d+ generated: [\d.]+ tokens/s", lines)
    assert "\na run of " in printed(capsys, "profile", "words.onnx", "--rounds", "2")


@pytest.mark.parametrize("words", [["run", "--prompt", "a"], ["chat", "--prompt", "a"], ["serve", "--port", "0"]])
def test_models_without_tokenizer_are_refused_before_they_are_compiled(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def compile(*args: object, **options: object) -> None:
        raise AssertionError("compiled")

    monkeypatch.setattr(tenon, "compile", compile)
    model = written_model(tmp_path)
    model.with_name("tokenizer.json").unlink()
    message = refused(capsys, words[0], str(model), *words[1:])
    assert f"'{model.name}' has no tokenizer: put its tokenizer.json beside the model" in message


def test_ctrl_c_before_an_answer_begins_keeps_the_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message is taken back, and the next one is answered; at a pipe the program ends."""
    answered = list[list[str]]()

    def printed(_: object, messages: list[dict[str, str]], *__: object, **___: object) -> Completion:
        if messages[-1]["content"] == "first":
            raise KeyboardInterrupt
        answered.append([message["content"] for message in messages])
        return Completion("answer", (), "stop", 1, 0, 0.0, 0.0)

    monkeypatch.setattr(conversations, "printed", printed)
    for terminal in (True, False):
        monkeypatch.setattr(conversations, "_lines", lambda: iter(["first", "second"]))
        monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda own=terminal: own))
        with nullcontext() if terminal else pytest.raises(KeyboardInterrupt):
            conversations._converse(cast(tenon.Generator, None), [], [], {}, as_json=False)
    assert answered == [["second"]]
