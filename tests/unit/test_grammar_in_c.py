"""Grammars in C allow the same tokens as in Python, over each kind of tokenizer."""

from __future__ import annotations

import ctypes
import json
import os
import random
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from libtenon import CLIENTS, needed, run, succeeded
from tenon.errors import InputError
from tenon.network.graph.graph import Array
from tenon.runtime.bundle.link import TEXT
from tenon.runtime.sdk.libtenon import RUNTIME
from tenon.runtime.text.grammar import TokenGrammar, TokenGrammars, rules_grammar, schema_grammar
from tenon.runtime.text.schema_rules import schema_rules
from tenon.runtime.text.text_tables import text_tables
from tenon.runtime.text.tokenizer import TextTokenizer
from text_definitions import DEFINITIONS
from text_in_c import GrammarInC, TextInC, library

pytest.importorskip("tokenizers")
pytest.importorskip("llguidance")

END = 5
"""The token that ends a text, which may be a byte: then it never stands for that byte."""

GRAMMARS = {
    "words": 'root ::= "yes" | "no"\n',
    "lists": """# items
root ::= "[" (item ("," item)*)? "]"
item ::= [a-c]+ | num
num ::= "-"? ("0" | [1-9] [0-9]*)
""",
    "JSON": r"""root ::= object
value ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" (string ":" value ("," string ":" value)*)? "}"
array ::= "[" (value ("," value)*)? "]"
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\""
number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)? ([eE] [-+]? [0-9]+)?
""",
    "lines": 'root ::= line{2,3}\nline ::= [^\\n]{1,5} "\\n"\n',
    "characters": 'root ::= [\u00e9-\u4f70]+ "\U0001f600" .? "x"\n',
    "brackets": 'root ::= "(" root ")" | "x"\n',
    "repetitions": 'root ::= "a"? "b"{0,2} "c"{2,} "d"{3} ("e"\n | "f" | "")\n',
    "empty loops": 'root ::= ("a"? "b"*)* ("c"? | "d"){0,3} "e"\n',
}


def thing(properties: dict[str, Any], **others: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **others}


FORMATS = (*("date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown"),)
OPEN_PATTERNS = ("", "^a|b$", "x", r"\d", "(^a|b)c?(d|e$)")
PATTERNS = (
    *OPEN_PATTERNS,
    *("^$", r"^\w+@\w+\.\w{2,3}$", r"^(?:\+49|0)[1-9][\d -]*$", r"^\s\S\D\W.$"),
    *("^(^a|b)$", r"\Aa\z", "^(?<name>[^a-y]|(?P<other>z))*?$", r"^a{2}{3}b**c+?d{0}$", "^()$"),
    *(
        r'^[\x20-~]"\\\t[\]\-\n]$',
        r"^[]a-][^]-][&\w-]$",
        r"^\u{1F600}\u00e9\x41[\u4f60-\u9fff]$",
        r"^\a\f\v/\/\_[^\n]$",
    ),
    *("^([a-z]+(-[a-z]+)*)$", "^(a|b|c){1,3}(d?e)*$"),
)
"""Regular expressions, whose texts in JSON have escapes, too."""

SCHEMAS: dict[str, dict[str, Any]] = {
    "anything": {},
    "objects": {"type": "object"},
    "pets": thing(
        {"name": {"enum": ["cat", "dog"]}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
        required=["name", "age"],
        additionalProperties=False,
    ),
    "optional": thing({"a": {"type": "integer"}, "b": {"type": "boolean"}, "c": {"type": "null"}}, required=["b"]),
    "all optional": thing({"a": {"type": "integer"}, "ab": {"type": "boolean"}}, additionalProperties=False),
    "more": thing({"a": {"type": "integer"}, "ab": {"type": "null"}}, additionalProperties={"type": "string"}),
    "undescribed": thing({"a": {}}, required=["z"]),
    "names": thing({"\u00e9": {"type": "integer"}, "\u00e9a": {}, "": {}}, required=["\u00e9"]),
    "none": {"type": "object", "additionalProperties": False},
    "some": {"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 3},
    "few": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    "rows": {"type": "array", "prefixItems": [{"type": "null"}, {"type": "boolean"}], "minItems": 1, "maxItems": 4},
    "pairs": {"type": "array", "prefixItems": [{"type": "null"}, {}], "items": False, "minItems": 2},
    "longer": {"type": "array", "prefixItems": [{"type": "null"}], "items": {"type": "integer"}, "minItems": 3},
    "lengths": {"type": "string", "minLength": 2, "maxLength": 5},
    "types": {"type": ["string", "null", "integer"]},
    "values": {"enum": ['\u00e9\n/"\x7f', "b", 1, 1.5, {"x": [1, 2]}, None, True]},
    "of types": {"enum": ["b", 1, 2.5, True], "type": ["integer", "boolean"]},
    "any of": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"const": 3}}]},
    "recursive": {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": thing(
                {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
                required=["v"],
                additionalProperties=False,
            )
        },
    },
    "names of references": {
        "$defs": {"a/b~c": {"type": "integer"}, "list": {"anyOf": [{"type": "null"}, {"enum": [7, "\\"]}]}},
        "type": "array",
        "items": {"anyOf": [{"$ref": "#/$defs/a~1b~0c"}, {"$ref": "#/$defs/list/anyOf/1"}]},
        "minItems": 2,
        "maxItems": 2,
    },
    "fractions": {
        "type": "array",
        "items": {"type": "integer", "minimum": 0.5, "exclusiveMaximum": 12.5},
        "minItems": 3,
    },
    "beyond": {"type": "integer", "exclusiveMinimum": -12.5, "maximum": -0.5},
    "itself": thing({"x": {"$ref": "#"}}, additionalProperties=False),
    "without type": {"properties": {"a": {"type": "integer"}}, "maxItems": 2},
    "between": {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 10},
    "around zero": {"type": "array", "items": {"type": "integer", "minimum": -2.5, "exclusiveMaximum": 2.5}},
    "negative": {"type": "array", "items": {"type": "integer", "minimum": -2.5}},
    **{f"format {name}": {"type": "string", "format": name} for name in FORMATS},
    **{f"pattern {pattern}": {"type": "string", "pattern": pattern} for pattern in PATTERNS},
    "pattern and lengths": {"type": "string", "pattern": "^[a-z_0-9]+$", "minLength": 3, "maxLength": 5},
    "pattern of few": {"type": "string", "pattern": "^a{0,2}$|^bc?$", "maxLength": 2},
    "texts": thing(
        {"id": {"pattern": "^[A-Z]{2}-\\d{4}$"}, "day": {"type": ["string", "null"], "format": "date"}},
        required=["id"],
        additionalProperties=False,
    ),
    **{
        f"from {low} to {high}": {"type": "integer"}
        | ({} if low is None else {"minimum": low})
        | ({} if high is None else {"maximum": high})
        for low, high in (
            *((-5, 5), (-120, -7), (7, 7), (13, 2045), (1000, 1001)),
            *((0, None), (None, 0), (-3, None), (None, -12), (None, 250)),
        )
    },
}


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return library(tmp_path_factory.mktemp("grammars"))


@cache
def tokenizer(name: str) -> tuple[TextTokenizer, bytes, TokenGrammars]:
    made = TextTokenizer(DEFINITIONS[name])
    return made, text_tables(made.definition, [END]), TokenGrammars(made, (END,), len(made.pieces) + 3)


def allowed_in_python(grammar: TokenGrammar, size: int) -> Array:
    try:
        return grammar.allowed()
    except InputError:  # the vocabulary has no token that could follow
        return np.zeros(size, np.bool_)


def compare(name: str, python: str, rules: str, functions: ctypes.CDLL, seed: int) -> str:
    """Go on with tokens by a seed, and compare all that may come after each; the text."""
    own, tables, grammars = tokenizer(name)
    text, size = TextInC(functions, tables), len(own.pieces) + 3
    first, second, rng = grammars.parse(python), GrammarInC(text, rules), np.random.default_rng(seed)
    tokens = list[int]()
    for _ in range(50):
        allowed = second.allowed(size)
        so_far = own.bytes_of(tokens)
        assert np.flatnonzero(allowed ^ allowed_in_python(first, size)).tolist() == [], so_far
        choice = np.flatnonzero(allowed)
        if len(choice) > 1 and rng.random() < 0.9:
            choice = choice[choice != END]
        signs = [3.0 if set(own.pieces[i]) & set(b'",:]})') else 0.2 if max(own.pieces[i]) > 127 else 1 for i in choice]
        token = int(rng.choice(choice, p=np.array(signs) / sum(signs))) if len(choice) else END
        if token == END:
            return "ended"
        tokens.append(token)
        complete = second.add(token)
        assert complete == first.add(token), own.bytes_of(tokens)
        if complete:
            return "complete"
    return "long"


FEW = ("own", "sentence pieces")
NAMES = [pytest.param(name, marks=() if name in FEW else pytest.mark.slow) for name in DEFINITIONS]


@pytest.mark.parametrize("rules", GRAMMARS)
@pytest.mark.parametrize("name", NAMES)
def test_tokens_are_those_of_python(name: str, rules: str, functions: ctypes.CDLL) -> None:
    python = rules_grammar(GRAMMARS[rules])
    for seed in range(4):
        compare(name, python, GRAMMARS[rules], functions, seed)


@pytest.mark.parametrize("name", DEFINITIONS)
def test_each_kind_of_tokenizer(name: str, functions: ctypes.CDLL) -> None:
    """All grammars of the kinds that the tests by name leave to the slow ones, once each."""
    for text in GRAMMARS.values():
        compare(name, rules_grammar(text), text, functions, 9)


@pytest.mark.parametrize("schema", SCHEMAS)
def test_schemas(schema: str, functions: ctypes.CDLL) -> None:
    """Translated in Python and in C, however they are written."""
    python, rules = schema_grammar(SCHEMAS[schema]), schema_rules(SCHEMAS[schema])
    written = [json.dumps(SCHEMAS[schema], ensure_ascii=False), "\n" + json.dumps(SCHEMAS[schema], indent=3) + "\n"]
    ends = {compare("own", python, (rules, *written)[seed % 3], functions, seed) for seed in range(9)}
    long = ("anything", "objects", "without type", "undescribed", *(f"pattern {pattern}" for pattern in OPEN_PATTERNS))
    assert ends & {"ended", "complete"} or schema in long
    compare("sentence pieces", python, rules, functions, 0)
    compare("sentence pieces", python, written[0], functions, 0)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ("", "0: the rule root is not there"),
        ('root ::= "a', "11: it ends within quotes"),
        ("root ::= [b-a]", "13: the range has its larger character first"),
        ("root ::= other", "9: the rule is not there"),
        ('root ::= "a"\nroot ::= "b"', "13: the rule is there twice"),
        ('root ::= root "a"', "0: the rule begins with itself"),
        ('root ::= a\na ::= "x"? b\nb ::= ("y" | a)', "0: the rule begins with itself"),
        ('root = "a"', "5: '::=' is missing"),
        ('root ::= ("a"', "13: ')' is missing"),
        ('root ::= "a")', "12: it cannot be read from here"),
        ('root ::= "a"{3', "14: '}' is missing"),
        ('root ::= "a"{,3}', "13: a number is missing"),
        ('root ::= "a"{3,2}', "17: the smaller number of a repetition is the second"),
        ('root ::= "a"{99999}', "the numbers"),
        ('root ::= "\\q"', "11: no character follows the backslash"),
        ('root ::= "\\uD800"', "16: it is no character"),
        ('root ::= "\\x0"', "13: a hexadecimal digit is missing"),
        ('root ::= (("a"{400}){400}){400}', "it is too large"),
        (f"root ::= {'(' * 200}", "109: it has too many parentheses"),
    ],
)
def test_mistakes(rules: str, message: str, functions: ctypes.CDLL) -> None:
    text = TextInC(functions, tokenizer("own")[1])
    with pytest.raises(ValueError, match=r"^\d+: ") as caught:
        GrammarInC(text, rules)
    assert ("it is too large" if message == "the numbers" else message) in str(caught.value)


def test_deep_texts_end_before_memory_does(functions: ctypes.CDLL) -> None:
    """Brackets are opened until no more fit, and can be closed then; states are forgotten many times on the way."""
    own, tables, _ = tokenizer("own")
    grammar, size = GrammarInC(TextInC(functions, tables), GRAMMARS["brackets"]), len(own.pieces)
    opened, byte = 0, {own.pieces[i]: i for i in range(256)}
    while grammar.allowed(size)[byte[b"("]]:
        assert not grammar.add(byte[b"("])
        opened += 1
    assert 5000 < opened < 60000
    assert not grammar.add(byte[b"x"])
    assert [grammar.add(byte[b")"]) for _ in range(opened)] == [False] * (opened - 1) + [True]


def test_long_texts_of_many_states(functions: ctypes.CDLL) -> None:
    """A list of words that are longer together than there is memory for states."""
    rng = random.Random(3)
    words = sorted({"".join(rng.choice("abcdefgh") for _ in range(9)) for _ in range(400)})
    rules = f"root ::= ({' | '.join(json.dumps(word) for word in words)})+ {json.dumps('.')}\n"
    own, tables, _ = tokenizer("own")
    grammar, byte = GrammarInC(TextInC(functions, tables), rules), {own.pieces[i]: i for i in range(256)}
    for word in [rng.choice(words) for _ in range(300)]:
        for at, letter in enumerate(word):
            following = {other[at] for other in words if other.startswith(word[:at])}
            allowed = grammar.allowed(256)
            assert {own.pieces[i].decode() for i in np.flatnonzero(allowed)} - {"."} == following
            grammar.add(byte[letter.encode()])
    assert grammar.add(byte[b"."])


REFUSED_PATTERNS = (
    ("a$b", "an anchor within the text", "the pattern has an anchor within the text"),
    ("x^a", "an anchor within the text", "the pattern has an anchor within the text"),
    ("(^a)?", "an anchor within the text", "the pattern has an anchor within the text"),
    ("^*a", "a repetition of nothing", "the pattern repeats nothing"),
    (r"a\b", r"the escape \\b", "the pattern has an escape that is not supported"),
    (r"\p{L}", r"the escape \\p", "the pattern has an escape that is not supported"),
    (r"(a)\1", r"the escape \\1", "the pattern has an escape that is not supported"),
    (r"\xg0", "an escape of no character", "the pattern has an escape of no character"),
    (r"\u{d800}", "an escape of no character", "the pattern has an escape of no character"),
    ("(?=a)", "a group of a kind", "the pattern has a group of a kind that is not supported"),
    ("(?i)a", "a group of a kind", "the pattern has a group of a kind that is not supported"),
    ("(a", "a group without end", "a group of the pattern has no end"),
    ("a)", r"'\)' without '\('", "the pattern has ')' without '('"),
    ("(" * 30 + ")" * 30, "too many groups in each other", "the pattern has too many groups in each other"),
    ("a" + "*" * 30, "too many repetitions", "the pattern has too many repetitions of each other"),
    ("a{,2}", "a repetition without a number", "a repetition of the pattern lacks a number"),
    ("a{2", "a repetition without '}'", "a repetition of the pattern lacks '}'"),
    ("a{2,1}", "a repetition whose smaller", "a repetition of the pattern has its smaller number second"),
    ("a{99999999999}", "a repetition above 2000", "a number of the pattern is above 2000"),
    ("[a", "a class without end", "a class of the pattern has no end"),
    ("[^]", "a class without end", "a class of the pattern has no end"),
    ("[b-a]", "a range whose larger", "a class of the pattern has a range without a first or last character"),
    (r"[a-\d]", "a range without a first", "a class of the pattern has a range without a first or last character"),
    (r"[\s-a]", "a range without a first", "a class of the pattern has a range without a first or last character"),
    ("[a&&b]", "operators of classes", "operators of classes in patterns are not supported"),
    ("[a[b]]", "classes in classes", "classes in classes of a pattern are not supported"),
    (r"[^\s\S]", "a class without characters", "a class of the pattern has no characters"),
)
"""Regular expressions, and what the refusals of them in Python and in C are."""


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "array", "uniqueItems": True}, "lack the keyword uniqueItems of the type array"),
        ({"type": "string", "format": "iri"}, "lack the format 'iri'"),
        ({"type": "string", "format": "date", "maxLength": 9}, "lack other keywords beside format"),
        ({"type": "string", "pattern": "a", "maxLength": 3}, "lack lengths beside a pattern that does not imply them"),
        *(({"pattern": pattern}, f"lack {message}.* \\(the pattern ") for pattern, message, _ in REFUSED_PATTERNS),
        ({"type": "number", "minimum": 1}, "lack the keyword minimum of the type number"),
        ({"minimum": 1}, "limits of numbers without the type integer"),
        ({"allOf": [{}, {}]}, "allOf with several schemas"),
        ({"anyOf": [{}], "type": "string"}, "the keyword type beside anyOf"),
        ({"$ref": "other.json"}, "the reference other.json to another file"),
        ({"$ref": "#/$defs/x"}, "nothing at #/\\$defs/x"),
        ({"enum": []}, "a schema that has no values"),
        ({"type": "objekt"}, "a type 'objekt', which JSON lacks"),
        ({"type": "object", "properties": {'"': {}}}, "whose name has an escaped character"),
        ({"type": "string", "maxLength": 5000}, "lengths above 2000"),
        ({"type": "array", "items": {"enum": 3}}, "the schema is damaged"),
        ({"type": "object", "required": ["a"], "additionalProperties": False}, "the property a, which is required"),
    ],
)
def test_schemas_that_have_no_form(schema: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        schema_rules(schema)


def random_schema(rng: random.Random, depth: int = 0) -> Any:
    """A schema of every keyword; "#/$defs/" ones are those of ``test_random_schemas``."""
    kind = rng.choice(("object", "array", "string", "integer", "values", "any", "reference", "plain"))
    if depth > 2 or kind == "plain":
        return rng.choice(({}, True, {"type": rng.sample(["null", "boolean", "number"], rng.randrange(1, 4))}))
    if kind == "reference":
        return {"$ref": f"#/$defs/{rng.choice(('text', 'tree'))}"}
    if kind == "any":
        return {rng.choice(("anyOf", "oneOf")): [random_schema(rng, depth + 1) for _ in range(rng.randrange(1, 4))]}
    if kind == "values":
        values = ["a", '\u00e9\n\x7f"\\', 1, -2.5, None, True, {"x": [1, {}]}, []]
        return (
            {"const": rng.choice(values)} if rng.random() < 0.3 else {"enum": rng.sample(values, rng.randrange(1, 5))}
        )
    low, high = sorted((rng.randrange(4), rng.randrange(4)))
    given: dict[str, Any] = {"type": kind}
    if kind == "string" and rng.random() < 0.3:
        return given | {"format": rng.choice(FORMATS)}
    if kind == "string" and rng.random() < 0.5:
        return given | {"pattern": rng.choice(PATTERNS)}
    if kind == "string":
        given |= {"minLength": low} if rng.random() < 0.6 else {}
        return given | ({"maxLength": high} if rng.random() < 0.6 else {})
    if kind == "integer":
        scale = 10 ** rng.randrange(5)
        low, high = sorted((rng.randrange(-scale, scale + 1), rng.randrange(-scale, 2 * scale + 1)))
        bounds = {"minimum": low, "maximum": high, "exclusiveMinimum": low - 1, "exclusiveMaximum": high + 1}
        return given | {name: bounds[name] for name in rng.sample([*bounds], rng.randrange(4))}
    if kind == "array":
        given |= {"minItems": low} if rng.random() < 0.5 else {}
        given |= {"maxItems": max(high, 1)} if rng.random() < 0.5 else {}
        given |= {"items": random_schema(rng, depth + 1)} if rng.random() < 0.7 else {}
        first = [random_schema(rng, depth + 1) for _ in range(rng.randrange(3))]
        return given | ({"prefixItems": first} if first else {})
    names = rng.sample(["a", "ab", "abc", "b", "\u00e9", "", "a\u4f60"], rng.randrange(5))
    given["properties"] = {name: random_schema(rng, depth + 1) for name in names}
    given["required"] = rng.sample(names, rng.randrange(len(names) + 1))
    if rng.random() < 0.6:
        given["additionalProperties"] = rng.choice((False, random_schema(rng, depth + 1)))
        given["required"] += [] if given["additionalProperties"] is False else ["new"]
    return given


def random_pattern(rng: random.Random, depth: int = 0) -> str:
    """A regular expression of every construct, which may be damaged."""
    signs = (
        *'ab01 -/:@]}_,\n"\u00e9\u4f60',
        r"\d",
        r"\w",
        r"\s",
        r"\D",
        r"\W",
        r"\S",
        r"\.",
        r"\\",
        r"\n",
        r"\x41",
        r"\u{42}",
        ".",
    )
    # a class of all control characters, and neither a quote nor a backslash, has these in llguidance 1.9
    items = (
        "a",
        "b-d",
        "0-9",
        "A-Z",
        r"\d",
        r"\w",
        r"\s",
        "-",
        "_",
        r"\-",
        r"\]",
        "\u00e9-\u00fc",
        ".",
        r"\n",
        "^",
        "]",
        "&",
        r"\W",
        "[",
    )
    text = rng.choice(("^", "", "^^")) if rng.random() < (0.2, 0.85)[depth == 0] else ""
    for _ in range(rng.randrange(4)):
        kind = rng.random()
        if kind < 0.6 or depth > 2:
            text += rng.choice(signs)
        elif kind < 0.8:
            text += f"[{rng.choice(('', '^'))}{''.join(rng.choice(items) for _ in range(rng.randrange(1, 4)))}]"
        else:
            text += f"{rng.choice(('(', '(?:'))}{random_pattern(rng, depth + 1)})"
        if rng.random() < 0.4:
            text += rng.choice(("*", "+", "?", "{2}", "{1,3}", "{2,}", "{0,2}", "*?", "{0}", "**", "?+", "{3,2}"))
    text += rng.choice(("$", "")) if rng.random() < (0.2, 0.85)[depth == 0] else ""
    return f"{text}|{random_pattern(rng, depth)}" if rng.random() < 0.2 else text


def test_random_patterns(functions: ctypes.CDLL) -> None:
    """Patterns that C and schema_rules take have the texts of llguidance (TENON_FUZZ: how many are tried)."""
    _, tables, _ = tokenizer("own")
    text, rng, taken, count = TextInC(functions, tables), random.Random(4), 0, int(os.environ.get("TENON_FUZZ", "150"))
    for number in range(count):
        schema: dict[str, Any] = {"type": "string", "pattern": random_pattern(rng)}
        limit = rng.randrange(9)
        schema |= {"maxLength": limit} if limit < 4 else {}
        refused = list[str]()
        try:
            rules = schema_rules(schema)
        except InputError as error:
            refused.append(str(error))
        try:
            GrammarInC(text, json.dumps(schema))
        except ValueError as error:
            refused.append(str(error))
        assert len(refused) in (0, 2), schema
        if refused:
            continue
        python = schema_grammar(schema)
        try:
            tokenizer("own")[2].parse(python)
        except InputError as error:
            if "lookarounds not supported" not in str(error):
                raise
            continue  # the library does not see all anchors that are at an end
        for seed in range(2):
            compare("own", python, rules if seed else json.dumps(schema), functions, number)
        taken += 1
    assert taken > count / 4


def test_random_schemas(functions: ctypes.CDLL) -> None:
    """Schemas become grammars of the same texts in C as in Python."""
    own, tables, _ = tokenizer("own")
    text, rng, size, ended = TextInC(functions, tables), random.Random(8), len(own.pieces), 0
    for _ in range(150):
        schema = {"allOf": [random_schema(rng)], "$defs": {"text": {"type": "string"}, "tree": random_schema(rng, 1)}}
        try:
            states = [GrammarInC(text, schema_rules(schema)), GrammarInC(text, json.dumps(schema))]
        except ValueError:  # a reference that is to itself alone
            continue
        for _ in range(40):
            first, second = (state.allowed(size) for state in states)
            assert np.array_equal(first, second), schema
            choice = np.flatnonzero(first & np.array([max(piece, default=255) < 127 for piece in own.pieces]))
            token = int(rng.choice(choice)) if len(choice) else END
            if token == END or {state.add(token) for state in states} == {True}:
                ended += 1
                break
    assert ended > 10


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ('{"type": "array", "uniqueItems": true}', "18: the keyword is not supported"),
        ('{"type": "string", "format": "iri"}', "29: the format is not supported"),
        ('{"type": "string", "format": "date", "maxLength": 9}', "29: other keywords beside format"),
        ('{"pattern": "a", "maxLength": 3}', "12: lengths that the pattern does not imply"),
        ('{"pattern": "^a{2}$", "maxLength": 1}', "12: the schema has no values"),
        *((json.dumps({"pattern": pattern}), f"12: {message}") for pattern, _, message in REFUSED_PATTERNS),
        ('{"type": "number", "minimum": 1}', "19: the keyword is not one of the type"),
        ('{"minimum": 1}', "1: the keyword is not one of the type"),
        ('{"allOf": [{}, {}]}', "15: allOf with several schemas is not supported"),
        ('{"anyOf": [{}], "type": "string"}', "16: the keyword stands beside one that stands alone"),
        ('{"$ref": "other.json"}', "9: the reference is to another file"),
        ('{"$ref": "#/$defs/x"}', "9: nothing is where the reference is to"),
        ('{"$ref": "#/$ref/x"}', "9: nothing is where the reference is to"),
        ('{"$ref": "#"}', "0: the rule begins with itself"),
        ('{"enum": []}', "0: the schema has no values"),
        ('{"const": 1, "minimum": 0}', "13: the keyword stands beside values"),
        ('{"const": "a", "type": "null"}', "0: the schema has no values"),
        ('{"type": "objekt"}', "9: JSON has no such type"),
        ('{"type": "object", "properties": {"\\"": {}}}', "34: more properties beside one with an escaped character"),
        ('{"properties": {"a": {}, "\\u0061": {}}}', "25: the property is there twice"),
        ('{"type": "string", "maxLength": 5000}', "32: the number is above 2000"),
        ('{"type": "string", "minLength": 2, "maxLength": 1}', "0: the schema has no values"),
        ('{"type": "array", "items": {"enum": 3}}', "36: a value of another type"),
        ('{"items": 3}', "10: a value of another type"),
        (
            '{"type": "object", "required": ["a"], "additionalProperties": false}',
            "32: the property is required and not",
        ),
        ('{"type": "integer", "minimum": 12345678901234567}', "31: a number of at most 16 digits"),
        ('{"type": "integer", "minimum": 1e3}', "31: a limit is written without an exponent"),
        ('{"type": "integer", "minimum": 3, "maximum": 2}', "0: the schema has no values"),
        ('{"type": "string"', "17: ',' or a bracket is missing"),
        ('{"type" "string"}', "8: ':' is missing"),
        ('{"type": strings}', "9: it is no JSON from here"),
        ('{"const": 01}', "10: it is no JSON from here"),
        ('{"const": "\\ud800"}', "10: the string has no end, or is damaged"),
        ('{"const": "a', "10: the string has no end"),
        ('{"const": true} x', "15: it is no JSON from here"),
        ('{"const": ' + "[" * 70 + "]" * 70 + "}", "73: it has too many values in each other"),
        (json.dumps({"enum": ["x" * 40_000]}), "0: it is too large"),
    ],
)
def test_schemas_that_c_refuses(schema: str, message: str, functions: ctypes.CDLL) -> None:
    with pytest.raises(ValueError, match=r"^\d+: ") as caught:
        GrammarInC(TextInC(functions, tokenizer("own")[1]), schema)
    assert str(caught.value).startswith(message)


PIECES = (
    '"a"',
    '"\\x41',
    "[^",
    "]",
    "-",
    "(",
    ")",
    "|",
    "*",
    "+",
    "?",
    "{2,3}",
    "{0}",
    "root",
    " ::= ",
    "b",
    "\n",
    "#",
    ".",
)
"""The grammars that damaged ones are made of."""


SCHEMA_PIECES = (
    *(
        '"',
        "\\\\",
        "\\\\u00",
        "\\\\ud83d\\\\ude00",
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "-",
        "0",
        "12",
        ".5",
        "e3",
        "#/",
        "true",
        "false",
    ),
    *(json.dumps({key: value})[1:-1] for schema in SCHEMAS.values() for key, value in schema.items()),
)
"""The schemas that damaged ones are made of."""


def damaged(rng: random.Random) -> bytes:
    """A damaged grammar or schema."""
    if rng.random() < 0.3:
        content = bytearray(json.dumps(rng.choice([*SCHEMAS.values()]), ensure_ascii=rng.random() < 0.5).encode())
        for _ in range(rng.randrange(4)):
            at = rng.randrange(len(content))
            piece = rng.choice([b"", bytes([rng.randrange(256)]), *(p.encode() for p in SCHEMA_PIECES)])
            content[at : at + rng.randrange(3)] = piece
        return bytes(content[: None if rng.random() < 0.9 else rng.randrange(len(content))])
    if rng.random() < 0.1:
        return ("{" + ",".join(rng.choice(SCHEMA_PIECES[18:]) for _ in range(rng.randrange(4))) + "}").encode()
    if rng.random() < 0.5:
        text = "root ::= " + " ".join(rng.choice(PIECES) for _ in range(rng.randrange(20)))
        return text.encode() + b"\nb ::= [a-z] | root\n"
    content = bytearray(rng.choice([*GRAMMARS.values()]).encode())
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(content))
        content[at : at + rng.randrange(3)] = rng.choice(
            [b"", bytes([rng.randrange(256)]), *(p.encode() for p in PIECES)]
        )
    return bytes(content)


def test_damaged_grammars_under_sanitizers(tmp_path: Path) -> None:
    """No report, whatever the text of a grammar is, and whatever tokens follow (TENON_FUZZ: how many)."""
    rng, count = random.Random(6), int(os.environ.get("TENON_FUZZ", "3000"))
    texts = [text for text in (damaged(rng) for _ in range(count)) if b"\0" not in text]
    (tmp_path / "grammars").write_bytes(b"\0".join(texts) + b"\0")
    (tmp_path / "tables").write_bytes(tokenizer("own")[1])
    sources = [CLIENTS / "grammar_texts.c", *(RUNTIME / name for name in TEXT)]
    flags = ("-std=c99", "-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-I", RUNTIME)
    succeeded(run(needed("gcc"), *flags, *sources, "-o", tmp_path / "program", "-lm"))
    shown = succeeded(run(tmp_path / "program", tmp_path / "tables", tmp_path / "grammars"))
    read, refused = map(int, shown.split())
    assert read + refused == len(texts)
    assert read > 100
    assert refused > 300
