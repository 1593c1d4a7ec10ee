"""``tenon run --prompt``, ``tenon chat`` and ``tenon compile`` of a language model."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import pytest

import tenon
from command_line import run_main
from tenon.cli import main
from text_models import written_model

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


def test_bundles_answer_text_with_text(capsys: pytest.CaptureFixture[str]) -> None:
    """The compiled model has its tokenizer and room for as many tokens as are asked for."""
    command = ["--prompt", PROMPT, "--max-tokens", "6"]
    wanted = printed(capsys, "run", "words.onnx", *command)
    for out in ("net", "net.tenon"):
        printed(capsys, "compile", "words.onnx", "-o", out, "--context", "20")
        assert printed(capsys, "run", out, *command) == wanted
        with tenon.Generator(out) as generator:
            assert generator.context == 20


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
        (["run", "words.onnx", "--prompt", "a", "--input", "x.npy"], "--input: no effect"),
        (["run", "words.onnx", "--prompt", ""], "the prompt is empty"),
        (["run", "words.onnx", "--prompt", "a", "--grammar", "none.json"], "none.json: No such file"),
        (["run", "words.onnx", "words.onnx", "--prompt", "a"], "--image: no effect"),
        (["serve", "words.onnx", "--host", "no host"], "--host no host --port 8080: "),
        (["chat", os.devnull, "--prompt", "a"], "character device"),
    ],
)
def test_errors(capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    assert message in refused(capsys, *words)
