"""Grammars over tokens, and chat templates."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tenon.errors import InputError, ModelError
from tenon.runtime.text.chat_template import conversation
from tenon.runtime.text.grammar import TokenGrammars, read_grammar, schema_grammar
from tenon.runtime.text.tokenizer import TextTokenizer
from text_models import SPECIAL, TEMPLATE, byte_pairs, vocabulary_size

SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["cat", "dog"]}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def grammars() -> tuple[TextTokenizer, TokenGrammars]:
    pytest.importorskip("tokenizers")
    pytest.importorskip("llguidance")
    tokenizer = TextTokenizer(byte_pairs())
    size = vocabulary_size(byte_pairs())
    return tokenizer, TokenGrammars(tokenizer, (size - len(SPECIAL),), size + 5)


def any_text(grammar: str, seed: int) -> str:
    """A text of random tokens that the grammar allows."""
    tokenizer, all_grammars = grammars()
    state, rng, tokens = all_grammars.parse(grammar), np.random.default_rng(seed), list[int]()
    for _ in range(200):
        allowed = state.allowed()
        tokens.append(int(rng.choice(np.flatnonzero(allowed))))
        if state.add(tokens[-1]):
            return tokenizer.decode(tokens)
    raise AssertionError("the text did not end")


@pytest.mark.parametrize("seed", range(5))
def test_texts_have_the_schema(seed: int) -> None:
    value = json.loads(any_text(schema_grammar(SCHEMA), seed))
    assert value.keys() == {"name", "age"}
    assert value["name"] in ("cat", "dog")
    assert 0 <= value["age"] <= 99


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("g.gbnf", 'root ::= "yes" | "no"\n'),
        ("g.lark", 'start: "yes" | "no"\n'),
        ("g.json", '{"enum": ["yes", "no"]}'),
    ],
)
def test_grammar_files(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    texts = {any_text(read_grammar(tmp_path / name), seed).strip('"') for seed in range(8)}
    assert texts == {"yes", "no"}


def test_grammars_that_cannot_be_used(tmp_path: Path) -> None:
    _, all_grammars = grammars()
    with pytest.raises(InputError, match="grammar: "):
        all_grammars.parse(schema_grammar({"type": "objekt"}))
    with pytest.raises(InputError, match="schema is no JSON"):
        schema_grammar("{")
    with pytest.raises(InputError, match="a schema is a JSON object"):
        schema_grammar("[]")
    (tmp_path / "g.txt").write_text("")
    with pytest.raises(InputError, match=r"JSON schema \(\.json\), Lark"):
        read_grammar(tmp_path / "g.txt")


MESSAGES = [{"role": "user", "content": "the cat"}]


def test_conversations() -> None:
    assert conversation(TEMPLATE, MESSAGES, {}) == "<|user|>the cat<|end|><|assistant|>"
    assert conversation(TEMPLATE, MESSAGES, {}, answer=False) == "<|user|>the cat<|end|>"
    named = "{{ bos_token }}{% for m in messages %}{{ m | tojson }}{% endfor %}"
    assert conversation(named, MESSAGES, {"bos_token": "<s>"}) == f"<s>{json.dumps(MESSAGES[0])}"


@pytest.mark.parametrize(
    ("template", "error", "message"),
    [
        ("", InputError, "no chat template"),
        ("{{ raise_exception('roles must alternate') }}", InputError, "roles must alternate"),
        ("{% if %}", ModelError, "chat template fails"),
        ("{{ messages[0].role.nothing.more }}", ModelError, "chat template fails"),
        ("{{ messages.__class__.__mro__ }}", ModelError, "chat template fails"),
        ("{{ cycler.__init__.__globals__.os.system('ls') }}", ModelError, "chat template fails"),
        ("{{ messages[0].content + 1 }}", ModelError, "chat template fails"),
    ],
)
def test_templates_that_fail(template: str, error: type[Exception], message: str) -> None:
    """Templates come with the model: they run in a sandbox, and reach neither Python's classes nor the system."""
    with pytest.raises(error, match=message):
        conversation(template, MESSAGES, {})
