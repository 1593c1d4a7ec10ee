"""JSON schemas as grammars in GBNF, which programs in C follow (``runtime/c/text_grammar.h``)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tenon.errors import InputError
from tenon.runtime.text.pattern_rules import pattern_rules
from tenon.runtime.text.pattern_rules import unsupported as _unsupported

_STRING = r'[^"\\\x00-\x1F\x7F'
"""The beginning of the class of characters that stand in a string as they are."""
_PLAIN: Mapping[str, str] = {
    "escape": r'"\\" (["\\bfnrt] | "u00" [01] [0-9a-fA-F] | "u007" [fF])',
    "char": rf"{_STRING}] | escape",
    "string": r'"\"" char* "\""',
    "integer": '"-"? ("0" | [1-9] [0-9]*)',
    "number": 'integer ("." [0-9]+)? ([eE] [-+]? [0-9]+)?',
    "boolean": '"true" | "false"',
    "null": '"null"',
    "array": '"[" (value ("," value)*)? "]"',
    "object": r'"{" (string ":" value ("," string ":" value)*)? "}"',
    "value": "object | array | string | number | boolean | null",
    "dot": r'[^"\\\x00-\x1F\x7F] | "\\" (["\\bfrt] | "u000" [0-9b-fB-F] | "u001" [0-9a-fA-F] | "u007" [fF])',
    "date": '[0-9]{4} "-" (("0" [13578] | "1" [02]) "-" ("0" [1-9] | [12] [0-9] | "3" [01]) | ("0" [469] | "11") '
    '"-" ("0" [1-9] | [12] [0-9] | "30") | "02-" ("0" [1-9] | [12] [0-9]))',
    "time": 'minute ":" ([0-5] [0-9] | "60") ("." [0-9]+)? ([zZ] | [-+] minute)',
    "datetime": "date [tT] time",
    "duration": '"P" ((years | months | days) span? | span | [0-9]+ "W")',
    "email": 'atom ("." atom)* "@" (domain ("." domain)* | "[" ipv4 "]")',
    "hostname": 'label ("." label)*',
    "ipv4": '(octet "."){3} octet',
    "ipv6": '(quad ":"){7} quad | "::" (quad ":"){0,5} quads | quad? "::" (quad ":"){0,4} quads | ((quad '
    '":"){0,1} quad)? "::" (quad ":"){0,3} quads | ((quad ":"){0,2} quad)? "::" (quad ":"){0,2} quads | '
    '((quad ":"){0,3} quad)? "::" quad ":" quads | ((quad ":"){0,4} quad)? "::" quads | ((quad ":"){0,5} '
    'quad)? "::" quad | ((quad ":"){0,6} quad)? "::"',
    "uuid": 'hex{8} ("-" hex{4}){3} "-" hex{12}',
    "uri": '[a-zA-Z] [-+.a-zA-Z0-9]* ":" ("//" ((plain | ":")* "@")? (plain* | "[" literal "]") (":" [0-9]*)? '
    'path | "/" (segment+ path)? | segment+ path | "") ("?" query)? ("#" query)?',
    "unknown": "char*",
    "hex": "[0-9a-fA-F]",
    "minute": '([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9]',
    "years": '[0-9]+ "Y" months?',
    "months": '[0-9]+ "M" days?',
    "days": '[0-9]+ "D"',
    "span": '"T" ([0-9]+ "H" ([0-9]+ "M" ([0-9]+ "S")?)? | [0-9]+ "M" ([0-9]+ "S")? | [0-9]+ "S")',
    "atom": """[-a-zA-Z0-9!#$%&'*+/=?^_`{|}~]+""",
    "domain": "[a-zA-Z0-9] ([-a-zA-Z0-9]* [a-zA-Z0-9])?",
    "label": "[a-zA-Z0-9] ([-a-zA-Z0-9]{0,61} [a-zA-Z0-9])?",
    "octet": '[0-9] | [1-9] [0-9] | "1" [0-9] [0-9] | "2" [0-4] [0-9] | "25" [0-5]',
    "quad": "hex{1,4}",
    "quads": 'quad ":" quad',
    "plain": """[-a-zA-Z0-9._~!$&'()*+,;=] | "%" hex hex""",
    "segment": "plain | [:@]",
    "path": '("/" segment*)*',
    "query": "(segment | [/?])*",
    "literal": '(quad ":"){7} quad | (quad ":"){1,7} ":" | (quad ":"){1,6} ":" quad | (quad ":"){1,5} (":" '
    'quad){1,2} | (quad ":"){1,4} (":" quad){1,3} | (quad ":"){1,3} (":" quad){1,4} | (quad ":"){1,2} '
    '(":" quad){1,5} | quad ":" (":" quad){1,6} | ":" (":" quad){1,7} | "::" | [vV] hex+ "." (plain | '
    '":")+',
}
"""The rules of JSON, without white space, and those of strings with a format, with their parts."""
_FORMATS = {
    name: name.replace("-", "")
    for name in ["date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown"]
}
"""The formats that strings may have, and their rules."""
_TYPES = ("object", "array", "string", "number", "boolean", "null")
MOST_TIMES = 2000
"""The most characters or items of a limited number, whose steps the programs' memory has room for."""
_NOTES = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$schema", "$id", "$comment"}
    | {"$defs", "definitions", "$anchor"}
)
"""Keywords that say nothing about values, or only hold what others refer to."""
_OF_TYPES: Mapping[str, frozenset[str]] = {
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems"}),
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "integer": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}),
}
"""The keywords that limit the values of a type."""


def schema_rules(schema: Mapping[str, Any] | bool) -> str:
    """The grammar of JSON that has a schema: without white space, and with properties in the order of the schema, as
    ``grammar.schema_grammar`` has it.

    Raises InputError for keywords that have no form here, and for a schema that is damaged.
    """
    try:
        return _Rules(schema).text()
    except (TypeError, ValueError, KeyError, AttributeError, IndexError, RecursionError) as error:
        raise InputError(f"grammar: the schema is damaged: {type(error).__name__} {error}") from error


class _Rules:
    def __init__(self, schema: Mapping[str, Any] | bool) -> None:
        self._schema, self._rules = schema, dict[str, str]()
        self._references = dict[str, str]()
        self._rules["root"] = ""
        self._rules["root"] = self._value(schema)

    def text(self) -> str:
        """All rules, the first one of which is the whole text."""
        return "".join(f"{name} ::= {rule}\n" for name, rule in self._rules.items())

    def _plain(self, name: str) -> str:
        """The name of a rule of JSON, which is added with those that it mentions."""
        if name not in self._rules:
            self._rules[name] = _PLAIN[name]
            for word in re.findall(r"[A-Za-z0-9-]+", _PLAIN[name]):
                if word in _PLAIN:
                    self._plain(word)
        return name

    def _named(self, rule: str) -> str:
        """The name of a new rule."""
        name = f"r{len(self._rules)}"
        self._rules[name] = rule
        return name

    def _value(self, schema: Any) -> str:
        """The expression of the values of a schema; one that stands in a sequence is put in parentheses."""
        if schema is True or schema == {}:
            return self._plain("value")
        if schema is False:
            raise _unsupported("a schema that has no values")
        given = {key: value for key, value in schema.items() if key not in _NOTES}
        for key, convert in (("$ref", self._reference), ("anyOf", self._any), ("oneOf", self._any)):
            if key in given:
                return str(convert(_alone(given, key)))
        if "allOf" in given:
            if len(_alone(given, "allOf")) != 1:
                raise _unsupported("allOf with several schemas")
            return self._value(given["allOf"][0])
        types = given.pop("type", None)
        types = [types] if isinstance(types, str) else types
        if "enum" in given or "const" in given:
            return self._constants(given, types)
        if not given and types is None:
            return self._plain("value")
        known = frozenset[str]().union(*(_OF_TYPES.get(t, frozenset()) for t in types or (*_TYPES, "integer")))
        if others := sorted(given.keys() - known):
            raise _unsupported(f"the keyword {others[0]} of the type {', '.join(types or ['any'])}")
        if types is None and given.keys() & _OF_TYPES["integer"]:
            raise _unsupported("limits of numbers without the type integer")
        return _either(self._typed(each, given) for each in types or _TYPES)

    def _any(self, schemas: Sequence[Any]) -> str:
        return _either(self._value(schema) for schema in schemas)

    def _reference(self, path: str) -> str:
        if path not in self._references:
            self._references[path] = name = self._named("")
            self._rules[name] = self._value(self._target(path))
        return self._references[path]

    def _target(self, path: str) -> Any:
        if not path.startswith("#"):
            raise _unsupported(f"the reference {path} to another file")
        target: Any = self._schema
        for part in path[1:].split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            parts = dict(enumerate(target)) if isinstance(target, list) else target
            place: Any = int(key) if isinstance(target, list) else key
            if not isinstance(parts, dict) or place not in parts:
                raise InputError(f"grammar: the schema has nothing at {path}")
            target = parts[place]
        return target

    def _constants(self, given: Mapping[str, Any], types: Sequence[str] | None) -> str:
        values = [given["const"]] if "const" in given else given["enum"]
        if others := sorted(given.keys() - {"const", "enum"}):
            raise _unsupported(f"the keyword {others[0]} beside values")
        values = [value for value in values if types is None or any(_has_type(value, each) for each in types)]
        if not values:
            raise _unsupported("a schema that has no values")
        return _either(_literal(_json(value)) for value in values)

    def _typed(self, kind: str, given: Mapping[str, Any]) -> str:
        if kind not in (*_TYPES, "integer"):
            raise InputError(f"grammar: the schema has a type {kind!r}, which JSON lacks")
        own = {key: value for key, value in given.items() if key in _OF_TYPES.get(kind, ())}
        if kind == "object" and own:
            return self._object(own)
        if kind == "array" and own:
            return self._array(own)
        if kind == "string" and own:
            return self._text(own)
        if kind == "integer" and own:
            return self._integer(own)
        return self._plain(kind)

    def _text(self, limits: Mapping[str, Any]) -> str:
        least, most = limits.get("minLength", 0), limits.get("maxLength")
        times = _times(least, most)
        if "format" in limits:
            if limits.keys() != {"format"}:
                raise _unsupported("other keywords beside format")
            if limits["format"] not in _FORMATS:
                raise _unsupported(f"the format {limits['format']!r}")
            return rf'"\"" {self._plain(_FORMATS[limits["format"]])} "\""'
        content = f"{self._plain('char')}{times}"
        if "pattern" in limits:
            content = pattern_rules(limits["pattern"], least, most, MOST_TIMES).expression
            self._plain("dot")
        return rf'"\"" ({content}) "\""'

    def _array(self, limits: Mapping[str, Any]) -> str:
        items, least, limit = limits.get("items", True), limits.get("minItems", 0), limits.get("maxItems")
        if limit is not None and limit < max(least, 0):
            raise _unsupported("a schema that has no values")
        first = [self._part(schema) for schema in limits.get("prefixItems", ())[:limit]]
        count = len(first)
        rest = None if items is False or limit == count else self._part(items)
        most = None if limit is None else limit - count
        if rest is None and least > count:
            raise _unsupported("a schema that has no values")
        if rest is None:
            tail = ""
        elif first:
            tail = f'("," {rest}){_times(max(least - count, 0), most)}'
        else:
            more = _times(max(least - 1, 0), None if most is None else most - 1)
            tail = f'{rest} ("," {rest}){more}'
            tail = tail if least > 0 else f"({tail})?"
        if not first:
            return f'"[" {tail} "]"'
        # what follows an item may be missing, but for the least number of items
        expression = tail
        for number in range(count - 1, -1, -1):
            expression = f"{first[number]} {expression}" if number == 0 else f'"," {first[number]} {expression}'
            if number >= least:
                expression = f"({expression})?"
        return f'"[" {expression} "]"'

    def _object(self, limits: Mapping[str, Any]) -> str:
        known, required = dict(limits.get("properties", {})), limits.get("required", ())
        others = limits.get("additionalProperties", True)
        for name in required:
            if name not in known and others is False:
                raise _unsupported(f"the property {name}, which is required and not allowed")
            known.setdefault(name, others)
        pairs = [f"{_literal(_json(name) + ':')} {self._part(schema)}" for name, schema in known.items()]
        end, more = "", ""
        if others is not False:
            more = f'{self._other_key(tuple(known))} ":" {self._part(others)}'
            end = f'("," {more})*'
        tails = [end]
        for name, pair in zip(reversed(known), reversed(pairs), strict=True):
            rest = f'"," {pair}' if name in required else f'("," {pair})?'
            tails.append(self._named(f"{rest} {tails[-1]}") if tails[-1] else rest)
        tails.reverse()
        heads = list[str]()
        for number, name in enumerate(known):
            heads.append(f"{pairs[number]} {tails[number + 1]}".strip())
            if name in required:
                return f'"{{" {_either(heads)} "}}"'
        if more:
            heads.append(f"{more} {end}")
        return f'"{{" ({" | ".join(heads)})? "}}"' if heads else '"{" "}"'

    def _other_key(self, names: Sequence[str]) -> str:
        """The keys that are none of ``names``: a rule for each of their beginnings."""
        if not names:
            return self._plain("string")
        self._plain("char")
        contents = [_json(name)[1:-1] for name in names]
        if escaped := [name for name, content in zip(names, contents, strict=True) if "\\" in content]:
            raise _unsupported(f"more properties beside {escaped[0]!r}, whose name has an escaped character")
        return rf'"\"" {self._other_end(contents)}'

    def _other_end(self, names: Sequence[str]) -> str:
        """The rules for what may follow where some names have so many characters left."""
        starts = dict[str, list[str]]()
        for name in names:
            if name:
                starts.setdefault(name[0], []).append(name[1:])
        letters = "".join(f"\\U{ord(letter):08X}" for letter in starts)
        ways = [rf'({_STRING}{letters}] | escape) char* "\""']
        ways += [rf"{_literal(letter)} {self._other_end(rest)}" for letter, rest in starts.items()]
        if "" not in names:
            ways.append(r'"\""')
        return self._named(_either(ways))

    def _part(self, schema: Any) -> str:
        """An expression that can stand in a sequence or be repeated."""
        expression = self._value(schema)
        return expression if expression.replace("_", "").isalnum() else self._named(expression)

    def _integer(self, limits: Mapping[str, Any]) -> str:
        least, most = limits.get("minimum"), limits.get("maximum")
        low = None if least is None else -int(-least // 1)
        high = None if most is None else int(most // 1)
        if (beyond := limits.get("exclusiveMinimum")) is not None:
            low = max(int(beyond // 1) + 1, beyond if low is None else low)
        if (below := limits.get("exclusiveMaximum")) is not None:
            high = min(-int(-below // 1) - 1, below if high is None else high)
        ways = list[str]()
        if low is None or low < 0:
            # as llguidance has it, -0 is one of the numbers between two limits that are on both sides of it
            first = 1 if high is None or low is None else 0
            first = first if high is None or high >= 0 else -high
            ways += [f'"-" {way}' for way in _digits(first, None if low is None else -low)]
        if high is None or high >= 0:
            ways += _digits(max(0, low or 0), high)
        if not ways:
            raise _unsupported("a schema that has no values")
        return _either(ways)


def _digits(least: int, most: int | None) -> list[str]:
    """Expressions of the decimal numbers from ``least`` to ``most``."""
    if most is not None and least > most:
        return []
    lengths = range(len(str(least)), len(str(least if most is None else most)) + 1)
    ways = list[str]()
    for length in lengths:
        low = max(least, 10 ** (length - 1) if length > 1 else 0)
        high = 10**length - 1 if most is None else min(most, 10**length - 1)
        ways += _same_length(str(low), str(high))
    if most is None:
        ways.append(f"[1-9] [0-9]{{{len(str(least))},}}")
    return ways


def _same_length(low: str, high: str) -> list[str]:
    """Expressions of the numbers between two with as many digits."""
    if not low:
        return [""]
    if low == "0" * len(low) and high == "9" * len(low):
        return [f"[0-9]{{{len(low)}}}"]
    first, last = int(low[0]), int(high[0])
    if first == last:
        return [f'"{first}" {way}'.strip() for way in _same_length(low[1:], high[1:])]
    nines, zeros = "9" * (len(low) - 1), "0" * (len(low) - 1)
    ways = [f'"{first}" {way}'.strip() for way in _same_length(low[1:], nines)]
    if first + 1 < last:
        middle = f"[0-9]{{{len(zeros)}}}" if zeros else ""
        ways.append(f"[{first + 1}-{last - 1}] {middle}".strip())
    return ways + [f'"{last}" {way}'.strip() for way in _same_length(zeros, high[1:])]


def _times(least: int, most: int | None) -> str:
    if max(least, most or 0) > MOST_TIMES:
        raise _unsupported(f"lengths above {MOST_TIMES}")
    if most is not None and most < least:
        raise _unsupported("a schema that has no values")
    return f"{{{least},{'' if most is None else most}}}"


def _either(ways: Iterable[str]) -> str:
    """One of some expressions, in parentheses if there are several."""
    some = list(ways)
    return some[0] if len(some) == 1 else f"({' | '.join(some)})"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("\x7f", "\\u007f")


def _literal(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _has_type(value: Any, kind: str) -> bool:
    if kind in ("integer", "number"):
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        return not isinstance(value, bool) and (whole or (kind == "number" and isinstance(value, float)))
    types = {"string": str, "boolean": bool, "object": dict, "array": list, "null": type(None)}
    return isinstance(value, types.get(kind, ()))


def _alone(given: Mapping[str, Any], key: str) -> Any:
    if others := sorted(given.keys() - {key}):
        raise _unsupported(f"the keyword {others[0]} beside {key}")
    return given[key]
