"""The command line in Chinese: the catalogue is complete, and help and messages come out of it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import cli_messages
import tenon.cli
from cli_messages import CATALOGUE
from command_line import run_main
from installed import environment, tenon_script
from real import DIGITS
from tenon.cli.catalogue import entry_text, open_catalogue, read_catalogue
from tenon.cli.examples import EXAMPLES
from tenon.cli.message_templates import Template, Templates
from tenon.cli.text_wrap import columns
from tenon.cli.translation import chosen_catalogue, translated
from tenon.compat.tengine.convert_tool import convert_tool
from tenon.options import languages

TEXTS = read_catalogue(CATALOGUE.read_text(encoding="utf-8"))
HAN = re.compile("[\u4e00-\u9fff]")
INSERTED = re.compile(r"\{\w+\}")
UPDATE = "run scripts/cli-messages and translate what it adds to the catalogue"
FOLLOWED = (
    "let both branches give tensors of the same types and ranks",
    "let both branches give the same shapes",  # given to a function of another module, which inserts it
    "its blocks along the axes {blocked} do not fit {rank} axes",  # returned by a function
    "a pipe",  # a value of a table
    "holds {size} bytes where {needed} {value}",  # one of several results of a function
)
"""Texts that are not written where the message is made."""

MODEL = str(DIGITS / "digits.onnx")


@pytest.fixture
def chinese(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("LANGUAGE", "LC_ALL", "LC_MESSAGES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    chosen_catalogue.cache_clear()
    yield
    monkeypatch.undo()
    chosen_catalogue.cache_clear()


# ------------------------------------------------------------------------------------------- the catalogue
def test_no_text_is_untranslated_or_stale() -> None:
    """Help, and every message of all modules; one test, because it reads all sources of Tenon."""
    wanted = cli_messages.texts().keys()
    assert not {text for text in wanted if not TEXTS.get(text)}, UPDATE
    assert not TEXTS.keys() - wanted - {""}, UPDATE
    assert {*FOLLOWED} <= wanted
    assert "the system has no room for {value} more threads" not in wanted, "an InternalError is no message"


def test_translations_insert_what_the_texts_do() -> None:
    wrong = {t for t, zh in TEXTS.items() if sorted(INSERTED.findall(t)) != sorted(INSERTED.findall(zh))}
    assert not wrong


def test_translations_are_chinese() -> None:
    """A translation has Chinese characters, but for a template that only puts others together."""
    plain = {t for t, zh in TEXTS.items() if t and not HAN.search(zh)}
    words = re.compile(r"(?<![-\w])[a-z]{2,}")
    assert not {text for text in plain if words.search(INSERTED.sub("", text))}


def test_options_and_commands_are_kept() -> None:
    """The words that a user types are the same in both languages."""
    typed = re.compile(r"--[a-z][a-z0-9-]*|TENON_[A-Z_]+")
    wrong = {text for text, zh in TEXTS.items() if set(typed.findall(text)) != set(typed.findall(zh))}
    assert not wrong


def test_punctuation_is_that_of_chinese() -> None:
    """Between Chinese characters stand full-width marks."""
    wrong = {zh for zh in TEXTS.values() if re.search("[\u4e00-\u9fff][,;:!?][ \u4e00-\u9fff]", zh)}
    assert not wrong


def test_catalogues_are_read_as_written() -> None:
    text = 'say "no" \\ to\nlines'
    written = entry_text(text, "说“不”") + "\n# a comment\n" + 'msgid ""\n"two "\n"parts"\nmsgstr "两部分"\n'
    assert read_catalogue(written) == {text: "说“不”", "two parts": "两部分"}
    assert open_catalogue(written).gettext("two parts") == "两部分"
    assert open_catalogue(written).gettext("unknown") == "unknown"
    assert open_catalogue('msgid "a"\nmsgstr ""\n').gettext("a") == "a"
    with pytest.raises(ValueError, match="has no line"):
        read_catalogue("msgctxt 'x'\n")


# -------------------------------------------------------------------------------------------- templates
def templates(**texts: str) -> Templates:
    written = "".join(entry_text(text, zh) for text, zh in texts.items())
    return Templates.of(open_catalogue(written))


def test_templates_are_found_again() -> None:
    assert Template.of("{path}: not a {kind} file").match("a: b.npy: not a .npy file") == {
        "path": "a: b.npy",
        "kind": ".npy",
    }
    assert Template.of("it is {what}").match("it was text") is None
    assert Template.of("plain").match("plain") == {}
    assert Template.of("{a} and {b} end").match("x and y") is None


def test_messages_within_messages_are_translated() -> None:
    catalogue = Templates.of(
        open_catalogue(
            entry_text("{file}: no array ({why})", "{file}：不是数组（{why}）")
            + entry_text("it is {what}", "这是{what}")
            + entry_text("a JPEG image", " JPEG 图像")
        )
    )
    assert catalogue.translated("x.npy: no array (it is a JPEG image)") == "x.npy：不是数组（这是 JPEG 图像）"
    assert catalogue.translated("conv1: it is a JPEG image") == "conv1：这是 JPEG 图像"
    assert catalogue.translated("one\n  - conv1: it is a JPEG image") == "one\n  - conv1：这是 JPEG 图像"
    assert catalogue.translated("nothing of these") == "nothing of these"


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("conv1 (Pad): no padding (give it)", "conv1 (Pad)：没有填充（请给出它）"),
        ("conv1 (Pad): no padding (as ever)", "conv1 (Pad)：没有填充 (as ever)"),
        ("a.onnx: 2 problems\n  - p: no padding", "a.onnx：2 个问题\n  - p：没有填充"),
        ("a: b (Pad): it failed: c: 3 rows are too many", "a: b (Pad)：失败：c：3 行过多"),
        ("ssh ended with 255: give it", "ssh 以 255 结束：请给出它"),
    ],
)
def test_messages_are_divided_at_their_marks(message: str, shown: str) -> None:
    """Whole messages stand between parentheses and other marks; what a template inserts rather has none of these."""
    texts = {
        "no padding": "没有填充",
        "give it": "请给出它",
        "{file}: {count} problems": "{file}：{count} 个问题",
        "it failed: {error}": "失败：{error}",
        "{name}: {count} rows are too many": "{name}：{count} 行过多",
        "ssh ended with {status}": "ssh 以 {status} 结束",
    }
    assert templates(**texts).translated(message) == shown


def test_every_template_gives_back_what_was_inserted() -> None:
    """Each message, with names inserted, is translated and keeps the names."""
    catalogue = Templates.of(open_catalogue(CATALOGUE.read_text(encoding="utf-8")))
    for text, zh in TEXTS.items():
        template = Template.of(text)
        if not template.groups or template.letters < 4:
            continue
        inserted = [name for group in template.groups for name in group]
        names = {name: f"q{i}q" for i, name in enumerate(inserted)}
        message = re.sub(r"\{(\w+)\}", "{\\1}", text).format(**names)
        shown = catalogue.translated(message)
        assert all(name in shown for name in names.values()), message
        assert not HAN.search(zh) or HAN.search(shown), message


# ------------------------------------------------------------------------------------------- the program
def test_languages_of_the_environment() -> None:
    assert languages({"LANG": "zh_CN.UTF-8"}) == ["zh_CN.UTF-8"]
    assert languages({"LANG": "de_DE", "LANGUAGE": "zh_CN:en"}) == ["zh_CN", "en"]
    assert languages({"LANG": "de_DE", "LC_ALL": "zh_CN"}) == ["zh_CN"]
    assert languages({"LANG": "C.UTF-8", "LANGUAGE": "zh_CN"}) == ["C.UTF-8"]
    assert languages({}) == [""]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"LANG": "zh_CN.UTF-8"}, "模型"),
        ({"LANG": "zh_SG"}, "模型"),
        ({"LANG": "fr_FR.UTF-8", "LANGUAGE": "fr:zh_CN"}, "模型"),
        ({"LANG": "en_US.UTF-8"}, "Model"),
        ({"LANG": "zh_CN.UTF-8", "LANGUAGE": "en:zh_CN"}, "Model"),
        ({"LANG": "C"}, "Model"),
        ({"LANG": "zh_TW.UTF-8"}, "Model"),
    ],
)
def test_the_language_is_chosen_as_by_gettext(
    variables: dict[str, str], expected: str, chinese: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LANG")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    chosen_catalogue.cache_clear()
    assert translated("Model") == expected


@pytest.mark.parametrize("name", ["", *EXAMPLES])
def test_help_in_chinese(
    name: str, chinese: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No line is wider than the terminal, and no sentence is English."""
    monkeypatch.setenv("COLUMNS", "80")
    assert run_main(tenon.cli.main, [*([name] if name else []), "-h"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("用法：")
    assert max(map(columns, text.splitlines())) <= 80
    sentences = re.findall(r"\b[a-z]+(?: [a-z]+){3,}", re.sub(r"^ +\$ .*$", "", text, flags=re.MULTILINE))
    assert not sentences


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["inspect", "absent.onnx"], "absent.onnx：没有那个文件或目录"),
        (["compile", "digits.onnx"], "缺少选项 '-o' / '--out' / '--output'：见 'tenon compile -h'"),
        (["compile", "digits.onnx", "-o", "x", "--target", "cortex-m4", "--emit", "exe"], "没有操作系统"),
        (
            ["compile", "digits.onnx", "-o", "x", "--precision", "int8"],
            "：可选的值：fp32, fp16, bf16；8 位整数",
        ),
        (["run", "digits.onnx", "text.png"], "text.png：不是图像：这是文本；请给出 JPEG"),
        (["inspect", "digits.onnx", "--shape", "image=1,1,9,9"], "形状 image=1,1,9,9 不适合这个模型"),
        (["run", "digits.onnx"], "没有可以运行的输入：请给出图像"),
        (["inspect", "picture.onnx"], "picture.onnx：不是模型：这是 PNG 图像：请把它写在模型之后"),
        (["frobnicate"], "没有命令 'frobnicate'：见 'tenon -h'"),
        (["run", "digits.onnx", "--threads", "0"], "'--threads' 的值无效：不得小于 1"),
        (
            ["inspect", "damaged.cfg"],
            "  - convolutional_0 (convolutional)：第 5 行：[convolutional] 的 stride=x 不是可用的数",
        ),
        (["run", "digits.onnx", "--device", "nosuch"], "没有名为 'nosuch' 的设备"),
    ],
)
def test_errors_in_chinese(
    words: list[str],
    message: str,
    chinese: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["tenon"])  # messages name the program as it was called: not by python -m
    monkeypatch.setattr("__main__.__package__", None)
    shutil.copy(MODEL, "digits.onnx")
    Path("text.png").write_text("no image\n")
    Path("damaged.cfg").write_text("[net]\nheight=4\nwidth=4\nchannels=1\n[convolutional]\nstride=x\n")
    Path("damaged.weights").write_bytes(bytes(64))
    Path("picture.onnx").write_bytes(b"\x89PNG\r\n\x1a\n")
    assert run_main(tenon.cli.main, words) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["-f", "onnx", "-m", "absent.onnx", "-o", "x.tmfile"], 255, "文件不存在：absent.onnx"),
        (["-f", "onnx", "-m", "text.onnx", "-o", "x.tmfile"], 2, "text.onnx：无法读取的 ONNX 模型；这是文本"),
    ],
)
def test_errors_of_other_commands_in_chinese(
    words: list[str],
    status: int,
    message: str,
    chinese: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["convert_tool", *words])
    Path("text.onnx").write_text("no model\n")
    with pytest.raises(SystemExit) as ended:
        convert_tool()
    assert ended.value.code == status
    assert message in capsys.readouterr().err


def test_installed_program_in_chinese() -> None:
    """The catalogue is part of the package."""
    done = subprocess.run(
        [str(tenon_script()), "-h"],
        env=environment(LANG="zh_CN.UTF-8", LC_ALL="", LANGUAGE=""),
        capture_output=True,
        check=True,
    )
    assert "运行与测量：" in done.stdout.decode()


def test_english_commands_read_no_catalogue() -> None:
    program = (
        "import sys\nfrom tenon.cli.translation import translated, translated_message\n"
        "assert translated_message(translated('Model')) == 'Model'\n"
        "assert not {'tenon.cli.catalogue', 'tenon.cli.message_templates', 'gettext'} & set(sys.modules)"
    )
    variables = {**os.environ, "LANG": "en_US.UTF-8", "LC_ALL": "", "LANGUAGE": ""}
    subprocess.run([sys.executable, "-c", program], env=variables, check=True)
