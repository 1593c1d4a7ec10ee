"""Chat templates as literal texts, compared with Jinja's rendering, in Python and by the functions in C."""

from __future__ import annotations

import ctypes
import random

import pytest

from tenon.errors import InputError, UnsupportedError
from tenon.runtime.text.chat_form import ChatForm, chat_form
from tenon.runtime.text.chat_template import conversation
from tenon.runtime.text.text_tables import text_tables
from text_in_c import TextInC, library
from text_models import TEMPLATE, byte_pairs

pytest.importorskip("jinja2")

NAMES = {"bos_token": "<s>", "eos_token": "</s>"}
ANSWER = "{% if add_generation_prompt %}"
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    f"{ANSWER}<|im_start|>assistant\n{{% endif %}}"
)
QWEN = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou help.<|im_end|>\n{% endif %}{% for m in messages %}"
    "{% set content = m.content %}{% if m.role == 'assistant' and '</think>' in content %}"
    "{% set content = content.split('</think>')[-1].lstrip('\\n') %}{% endif %}"
    "{{ '<|im_start|>' + m.role + '\\n' + content + '<|im_end|>\\n' }}{% endfor %}"
    f"{ANSWER}<|im_start|>assistant\n{{% endif %}}"
)
LLAMA_2 = (
    "{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}{% set system = messages[0].content %}"
    "{% else %}{% set rest = messages %}{% set system = false %}{% endif %}{% for m in rest %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles alternate') }}{% endif %}"
    "{% if loop.index0 == 0 and system != false %}"
    "{% set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + m.content %}"
    "{% else %}{% set content = m.content %}{% endif %}"
    "{% if m.role == 'user' %}{{ bos_token + '[INST] ' + content + ' [/INST]' }}"
    "{% else %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
LLAMA_3 = (
    "{{ bos_token }}{% if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}{% else %}26 Jul 2024{% endif %}"
    "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>"
    f"{{% endfor %}}{ANSWER}<|start_header_id|>assistant<|end_header_id|>\n\n{{% endif %}}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
    f"{ANSWER}<start_of_turn>model\n{{% endif %}}"
)
PHI = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    f"{ANSWER}<|assistant|>\n{{% else %}}{{{{ eos_token }}}}{{% endif %}}"
)
MISTRAL = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}{% else %}"
    "{% set rest = messages %}{% endif %}{% for m in rest %}{% if m.role == 'user' %}"
    "{% if loop.last and messages[0].role == 'system' %}[INST] {{ messages[0].content }}\n\n{{ m.content }}[/INST]"
    "{% else %}[INST] {{ m.content }}[/INST]{% endif %}{% else %} {{ m.content | trim }}{{ eos_token }}{% endif %}"
    "{% endfor %}"
)
TEMPLATES = {
    "chatml": CHATML,
    "qwen": QWEN,
    "llama-2": LLAMA_2,
    "llama-3": LLAMA_3,
    "gemma": GEMMA,
    "phi": PHI,
    "mistral": MISTRAL,
    "own": TEMPLATE,
}
NO_SYSTEM = ("gemma", "mistral")
"""Templates that refuse a message of the system, or write it somewhere else than in front of the first one."""
CONTENTS = (
    "a",
    " b \n",
    "two\nlines",
    "\u2003\u00fc\u00a0",
    "<think>\nx\n</think>\n\ny",
    "\t\u4f60\u597d\x1c",
    "<|end|>",
)


def some_messages(form: ChatForm, rng: random.Random) -> list[dict[str, str]]:
    turns = ["user", "assistant"] * rng.randrange(3) + ["user"]
    roles = (["system"] if form.has_system and rng.random() < 0.5 else []) + turns
    plain = [text for text in CONTENTS if "think" not in text]
    return [{"role": role, "content": rng.choice(CONTENTS if role == "assistant" else plain)} for role in roles]


class Message(ctypes.Structure):
    _fields_ = (("role", ctypes.c_char_p), ("content", ctypes.c_char_p))


def in_c(functions: ctypes.CDLL, text: TextInC, messages: list[dict[str, str]]) -> str | int:
    """The text of a conversation by ``text_chat.c``, or what it returns instead of its length."""
    functions.tenon_text_conversation.restype = ctypes.c_long
    given = (Message * len(messages))(*(Message(m["role"].encode(), m["content"].encode()) for m in messages))
    count = ctypes.c_size_t(len(messages))
    length = functions.tenon_text_conversation(text._text, given, count, None)
    if length < 0:
        return int(length)
    out = ctypes.create_string_buffer(b"?" * (length + 1), length + 1)
    assert functions.tenon_text_conversation(text._text, given, count, out) == length
    assert out.raw[length:] == b"?"
    return out.raw[:length].decode()


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return library(tmp_path_factory.mktemp("text"))


@pytest.mark.parametrize("name", TEMPLATES)
def test_texts_are_those_of_jinja(name: str, functions: ctypes.CDLL) -> None:
    template, rng = TEMPLATES[name], random.Random(name)
    form = chat_form(template, NAMES)
    assert form.has_system == (name not in NO_SYSTEM)
    text = TextInC(functions, text_tables(byte_pairs(), [5], chat=form))
    for _ in range(60):
        messages = some_messages(form, rng)
        wanted = conversation(template, messages, NAMES, today=False)
        assert form.rendered(messages) == wanted
        assert in_c(functions, text, messages) == wanted


def test_answers_without_thoughts() -> None:
    assert chat_form(QWEN, NAMES).drops_thoughts
    assert not chat_form(CHATML, NAMES).drops_thoughts


def test_messages_that_a_template_does_not_take(functions: ctypes.CDLL) -> None:
    user, answer, system = ({"role": role, "content": "x"} for role in ("user", "assistant", "system"))
    gemma = chat_form(GEMMA, NAMES)
    text = TextInC(functions, text_tables(byte_pairs(), [5], chat=gemma))
    assert in_c(functions, text, [system, user]) == -2
    for messages in ([], [user, user], [answer], [user, answer], [{**user, "role": "tool"}]):
        assert in_c(functions, text, messages) == -3
        with pytest.raises(InputError, match="user and assistant in turn"):
            gemma.rendered(messages)
    with pytest.raises(InputError, match="no message of the system"):
        gemma.rendered([system, user])
    plain = TextInC(functions, text_tables(byte_pairs(), [5]))
    assert in_c(functions, plain, [user]) == -1


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}", "repeats them"),
        ("{% for m in messages %}{{ m.content | upper }}{% endfor %}", "leaves messages out"),
        ("{% for m in messages %}{{ m.content | length }}{{ m.content }},{% endfor %}", "in another way"),
        ("{{ raise_exception('never') }}", "refuses the messages: never"),
        ("{% for %}", "template fails"),
    ],
)
def test_templates_that_write_something_else(template: str, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        chat_form(template, NAMES)
