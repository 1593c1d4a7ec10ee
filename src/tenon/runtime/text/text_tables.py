"""A tokenizer as one block of tables, which ``runtime/c/text.h`` reads.

It begins with numbers (u32), whose order is that of the names in ``text.h``; sections follow at multiples of 8 bytes,
and the numbers hold their offsets.  All numbers are in the byte order of the target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from tenon.network.graph.dtype import Array
from tenon.runtime.text.chat_form import TEXTS, ChatForm
from tenon.runtime.text.normal_forms import NormalForm, normal_form
from tenon.runtime.text.normal_steps import NormalStep, NormalSteps, growth, normal_steps, unsupported
from tenon.runtime.text.pattern_automata import Automata, automata
from tenon.runtime.text.sampling import Sampling
from tenon.runtime.text.speech_tokens import SpeechTokens
from tenon.runtime.text.token_bytes import token_bytes, vocabulary
from tenon.runtime.text.tokenizer import common_prefix, damage
from tenon.runtime.text.word_splits import WordRules, word_rules

MAGIC, VERSION = 0x58544E54, 4
NONE = 0xFFFFFFFF
BYTE_PAIRS, CHARACTER_PAIRS, UNIGRAM, WORD_PIECES = range(4)
_KINDS = {"BPE": CHARACTER_PAIRS, "Unigram": UNIGRAM, "WordPiece": WORD_PIECES}
WHOLE_WORDS, BYTE_FALLBACK, JOIN_UNKNOWN = 1, 2, 4
_PAGE = 128
_SPACED = 0xFFFF
"""Stands for a character with a space on either side."""
_UNKNOWN_PENALTY = 10.0
"""An unknown character is less probable than the least probable token by this."""

HEAD = (
    *("magic", "version", "bytes", "model", "flags", "vocabulary", "unknown", "longest", "growth", "added_bytes"),
    *("steps", "step_rows", "splits", "split_rows", "classes", "class_pages", "class_rows", "map_pages", "map_rows"),
    *("map_starts", "map_texts", "name_starts", "names", "piece_starts", "pieces", "name_mask", "name_slots"),
    *("pair_mask", "pair_slots", "pairs", "byte_tokens", "scores", "special_count", "special_rows", "special_bits"),
    *("first", "first_tokens", "last", "last_tokens", "ends", "end_tokens", "longest_word"),
    *("form_pages", "form_numbers", "form_entries", "form_points", "form_pair_count", "form_pairs"),
    *("chat", "chat_texts", "sampling", "deepest", "order_count", "order", "common", "grammar", "speech"),
    *("rewind", "room"),
)
"""The names of the numbers at the beginning."""


def text_tables(
    definition: Mapping[str, Any],
    ends: Sequence[int],
    byte_order: Literal["little", "big"] = "little",
    *,
    sampling: Sampling | None = None,
    chat: ChatForm | None = None,
    grammar: str = "",
    speech: SpeechTokens | None = None,
    rewind: int | None = None,
    room: int = 0,
) -> bytes:
    """The tables of a tokenizer.json; ``ends`` are the tokens that end a text, ``sampling`` how tokens are chosen
    unless a program says (greedily), ``chat`` the model's chat template, ``grammar`` what texts follow unless a program
    says, in GBNF, ``speech`` the tokens of a decoder that writes down speech, ``rewind`` and ``room`` what caches that
    are rings have (``TextModel``).

    Raises UnsupportedError for what the functions in C lack, FormatError for a damaged definition.
    """
    with damage("the settings of the tokenizer"):
        tables = _Tables(definition, byte_order, {"rewind": NONE if rewind is None else rewind, "room": room})
        return tables.written(ends, sampling or Sampling(), chat, grammar, speech)


def names_of(definition: Mapping[str, Any]) -> dict[int, str]:
    """The names of the tokens of a tokenizer.json."""
    with damage("the settings of the tokenizer"):
        names = {number: name for name, number in vocabulary(definition["model"]).items()}
        return names | {each["id"]: each["content"] for each in definition.get("added_tokens") or ()}


class _Tables:
    def __init__(
        self, definition: Mapping[str, Any], byte_order: Literal["little", "big"], numbers: Mapping[str, int]
    ) -> None:
        self._definition, self._model = definition, definition["model"]
        self._order: Literal["<", ">"] = "<" if byte_order == "little" else ">"
        self._content = bytearray(8 * -(-len(HEAD) // 2))
        self._head = {**dict.fromkeys(HEAD, 0), **numbers}
        self._vocabulary = vocabulary(self._model)
        self._pieces = token_bytes(definition)
        self._added = sorted(definition.get("added_tokens") or (), key=lambda each: -len(each["content"].encode()))

    def written(
        self,
        ends: Sequence[int],
        sampling: Sampling,
        chat: ChatForm | None,
        grammar: str,
        speech: SpeechTokens | None,
    ) -> bytes:
        rules, normal = word_rules(self._definition.get("pre_tokenizer")), self._normal()
        self._head |= {"magic": MAGIC, "version": VERSION, "vocabulary": len(self._pieces)}
        self._put_model(rules)
        self._put_steps(NormalSteps((*normal.steps, *rules.steps), normal.map, normal.form))
        self._put_splits(rules)
        self._put_names(rules.bytes)
        self._put_added(normal)
        self._put_around()
        self._put_list("ends", "end_tokens", ends)
        self._put_order(ends)
        self._put_sampling(sampling)
        if chat is not None:
            self._put_chat(chat)
        if grammar:
            self._add_section("grammar", grammar.encode() + b"\0")
        if speech is not None:
            self._add_section("speech", np.array(speech.table, np.uint32))
        self._head["bytes"] = len(self._content)
        numbers = np.array([self._head[name] for name in HEAD], np.uint32).astype(f"{self._order}u4").tobytes()
        return numbers + bytes(self._content[len(numbers) :])

    def _normal(self) -> NormalSteps:
        return normal_steps(self._definition.get("normalizer"))

    def _add_section(self, name: str, content: Array | bytes) -> None:
        """Add a section; ``name`` is the number that holds its offset."""
        data = content if isinstance(content, bytes) else content.astype(content.dtype.newbyteorder(self._order))
        self._head[name] = self._append(data if isinstance(data, bytes) else data.tobytes())

    def _append(self, data: bytes) -> int:
        at = len(self._content)
        self._content += data + bytes(-len(data) % 8)
        return at

    def _put_list(self, count: str, name: str, tokens: Sequence[int]) -> None:
        self._head[count] = len(tokens)
        self._add_section(name, np.array(tokens, np.uint32))

    def _put_model(self, rules: WordRules) -> None:
        model = self._model
        kind = model.get("type") or ("Unigram" if isinstance(model.get("vocab"), list) else "BPE")
        if kind not in _KINDS or model.get("continuing_subword_prefix") not in (None, "", "##"):
            raise unsupported(f"models of the kind {kind}")
        if model.get("dropout") or model.get("end_of_word_suffix"):
            raise unsupported("dropout and ends of words")
        unknown = model.get("unk_id") if kind == "Unigram" else self._vocabulary.get(model.get("unk_token") or "")
        flags = (
            (WHOLE_WORDS if model.get("ignore_merges") else 0)
            | (BYTE_FALLBACK if model.get("byte_fallback") else 0)
            | (JOIN_UNKNOWN if model.get("fuse_unk") else 0)
        )
        number = BYTE_PAIRS if kind == "BPE" and rules.bytes else _KINDS[kind]
        self._head |= {"model": number, "flags": flags, "unknown": NONE if unknown is None else unknown}
        self._head["longest_word"] = model.get("max_input_chars_per_word", 100)
        if kind == "BPE":
            self._put_pairs(model.get("merges") or [])
        self._add_section("byte_tokens", self._byte_tokens(of_bytes=number == BYTE_PAIRS))
        if kind == "Unigram":
            scores = np.zeros(len(self._pieces) + 1)
            own = [score for _, score in model["vocab"]]
            scores[: len(own)] = own
            scores[-1] = min(own) - _UNKNOWN_PENALTY
            self._add_section("scores", scores)

    def _byte_tokens(self, *, of_bytes: bool) -> Array:
        """The token of each byte."""
        tokens = np.full(256, NONE, np.uint32)
        for name, number in self._vocabulary.items():
            piece = self._pieces[number]
            if len(piece) == 1 and ((of_bytes and len(name) == 1) or name == f"<0x{piece[0]:02X}>"):
                tokens[piece[0]] = number
        return tokens

    def _put_pairs(self, merges: Sequence[Any]) -> None:
        known, rows = self._vocabulary, list[tuple[int, int, int]]()
        for merge in merges:
            left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
            rows.append((known[left], known[right], known[left + right]))
        table = np.array(rows, np.uint32).reshape(-1, 3)
        left, right = table[:, 0], table[:, 1]
        hashes = (left * np.uint32(0x9E3779B1)) ^ (right * np.uint32(0x85EBCA77))
        slots = _slots((hashes ^ (hashes >> np.uint32(15))).tolist())
        self._head["pair_mask"] = len(slots) - 1
        self._add_section("pair_slots", slots)
        self._add_section("pairs", table)

    def _put_sampling(self, how: Sampling) -> None:
        factors = [how.temperature, how.top_p, how.min_p]
        penalties = [how.repetition_penalty, how.presence_penalty, how.frequency_penalty]
        self._add_section("sampling", np.array([*factors, *penalties, how.top_k, how.penalty_window], np.float64))

    def _put_chat(self, chat: ChatForm) -> None:
        places = [self._text(getattr(chat, name)) for name in TEXTS]
        self._head["chat"] = chat.flags
        self._add_section("chat_texts", np.array(places, np.uint32))

    def _put_steps(self, normal: NormalSteps) -> None:
        steps, factor = normal.steps, 1
        if normal.map:
            factor = max(
                len(text.encode()) // len(chr(point).encode()) + 1 for point, text in normal.map.items() if text
            )
        texts = [[self._text(step.text), self._text(step.other)] for step in steps]
        rows = [[step.kind, *first, *second] for step, (first, second) in zip(steps, texts, strict=True)]
        self._head["steps"] = len(steps)
        self._add_section("step_rows", np.array(rows, np.uint32))
        longest = self._put_form(normal_form(normal.form)) if normal.form else 1
        self._head["growth"], self._head["added_bytes"] = growth(steps, max(factor, 1), longest)
        if normal.map:
            self._put_map(normal.map)

    def _put_form(self, form: NormalForm) -> int:
        """The tables of a normal form; the most by which a character grows."""
        entries: dict[tuple[tuple[int, ...], int], int] = {((), 0): 0}
        numbers, points, rows = np.zeros(0x110000, np.uint16), list[int](), [(0, 0, 0)]
        for point in {**form.parts, **form.classes}:
            key = (form.parts.get(point, ()), form.classes.get(point, 0))
            if key not in entries:
                entries[key] = len(rows)
                rows.append((len(points), len(key[0]), key[1]))
                points += key[0]
            numbers[point] = entries[key]
        self._put_pages("form_pages", "form_numbers", numbers)
        self._add_section("form_entries", np.array(rows, np.uint32))
        self._add_section("form_points", np.array(points, np.uint32))
        self._head["form_pair_count"] = len(form.pairs) if form.composed else 0
        self._add_section("form_pairs", form.pairs)
        grown = (len("".join(map(chr, parts)).encode()) // len(chr(p).encode()) for p, parts in form.parts.items())
        return 1 + max((*grown, 3))  # a syllable of Hangul becomes three letters

    def _text(self, text: str) -> tuple[int, int]:
        """Where a text is put, and its bytes."""
        data = text.encode()
        return self._append(data), len(data)

    def _put_map(self, mapping: Mapping[int, str]) -> None:
        numbers, texts = np.zeros(0x110000, np.uint16), dict[str, int]()
        for point, text in mapping.items():
            spaced = len(text) == 3 and text == f" {chr(point)} "
            numbers[point] = _SPACED if spaced else texts.setdefault(text, len(texts) + 1)
        if len(texts) >= _SPACED:
            raise unsupported("so large a map of characters")
        self._put_pages("map_pages", "map_rows", numbers)
        self._add_section("map_starts", _starts([text.encode() for text in texts]))
        self._add_section("map_texts", b"".join(text.encode() for text in texts))

    def _put_pages(self, pages: str, rows: str, values: Array) -> None:
        """A value for each code point: a number of a page for each 128, and the pages that differ."""
        whole = values.reshape(-1, _PAGE)
        different, numbers = np.unique(whole, axis=0, return_inverse=True)
        self._add_section(pages, numbers.reshape(-1).astype(np.uint16))
        self._add_section(rows, different.tobytes() if different.itemsize == 1 else different)

    def _put_splits(self, rules: WordRules) -> None:
        made: Automata = automata([split.pattern for split in rules.splits])
        order = f"{self._order}u2"
        places = [self._append(table.astype(order).tobytes()) for table in made.tables]
        rows = [[place, split.behaviour] for place, split in zip(places, rules.splits, strict=True)]
        self._head |= {"splits": len(rows), "classes": made.count}
        self._add_section("split_rows", np.array(rows, np.uint32))
        self._put_pages("class_pages", "class_rows", made.classes)

    def _put_names(self, of_bytes: bool) -> None:
        """The names of tokens, by which they are looked up, and their bytes in a text."""
        names = [b""] * len(self._pieces)
        for name, number in self._vocabulary.items():
            names[number] = self._pieces[number] if of_bytes else name.encode()
        hashes = [_hash(name) for name in names]
        usable = [bool(name) for name in names]
        for each in self._added:
            names[each["id"]] = each["content"].encode()
        slots = _slots(hashes, usable)
        self._head |= {"name_mask": len(slots) - 1, "longest": max(map(len, names))}
        self._add_section("name_slots", slots)
        self._add_section("name_starts", _starts(names))
        self._add_section("names", b"".join(names))
        self._add_section("piece_starts", _starts(self._pieces))
        self._add_section("pieces", b"".join(self._pieces))

    def _put_added(self, normal: NormalSteps) -> None:
        """The tokens that are found in the text before it is changed."""
        rows, bits = list[tuple[int, int]](), np.zeros(-(-len(self._pieces) // 32), np.uint32)
        for each in self._added:
            if each.get("single_word") or (each.get("normalized") and _changes(normal.steps)):
                raise unsupported(f"the added token {each['content']}, which is looked up in the changed text")
            rows.append((each["id"], int(bool(each.get("lstrip"))) + 2 * int(bool(each.get("rstrip")))))
            if each.get("special"):
                bits[each["id"] // 32] |= np.uint32(1 << each["id"] % 32)
        self._head["special_count"] = len(rows)
        self._add_section("special_rows", np.array(rows, np.uint32))
        self._add_section("special_bits", bits)

    def _put_order(self, ends: Sequence[int]) -> None:
        """Tokens that a grammar may allow, in the order of their bytes, and how many bytes (255 at most) each has in
        common with the one before."""
        without = {each["id"] for each in self._added if each.get("special")}.union(ends)
        tokens = [token for token, piece in enumerate(self._pieces) if piece and token not in without]
        tokens.sort(key=self._pieces.__getitem__)
        pieces = [self._pieces[token] for token in tokens]
        common = [common_prefix(first, second) for first, second in pairwise([b"", *pieces])]
        self._head["deepest"] = max(map(len, pieces), default=0)
        self._put_list("order_count", "order", tokens)
        self._add_section("common", np.minimum(common, 255).astype(np.uint8))

    def _put_around(self) -> None:
        """The tokens in front of and behind every text."""
        first, last = around(self._definition.get("post_processor"))
        self._put_list("first", "first_tokens", first)
        self._put_list("last", "last_tokens", last)


def _changes(steps: Sequence[NormalStep]) -> bool:
    return bool(steps)


def around(processor: Mapping[str, Any] | None) -> tuple[list[int], list[int]]:
    """The tokens that a tokenizer.json's post_processor puts in front of and behind a text."""
    if processor is None or processor.get("type") == "ByteLevel":
        return [], []
    kind = processor.get("type")
    if kind in ("BertProcessing", "RobertaProcessing"):
        return [processor["cls"][1]], [processor["sep"][1]]
    if kind == "Sequence":
        pairs = [around(each) for each in processor["processors"]]
        return [i for first, _ in reversed(pairs) for i in first], [i for _, last in pairs for i in last]
    if kind != "TemplateProcessing":
        raise unsupported(f"the post-processor {kind}")
    parts, special = processor["single"], processor["special_tokens"]
    at = next(i for i, part in enumerate(parts) if "Sequence" in part)

    def numbers(some: Sequence[Mapping[str, Any]]) -> list[int]:
        return [i for part in some for i in special[part["SpecialToken"]["id"]]["ids"]]

    return numbers(parts[:at]), numbers(parts[at + 1 :])


def _starts(texts: Sequence[bytes]) -> Array:
    """Where each of some texts begins, one behind another, and where the last one ends."""
    return np.cumsum([0, *map(len, texts)]).astype(np.uint32)


def _hash(name: bytes) -> int:
    """FNV-1a in 32 bits."""
    value = 2166136261
    for byte in name:
        value = ((value ^ byte) * 16777619) & 0xFFFFFFFF
    return value


def _slots(hashes: Sequence[int], usable: Sequence[bool] | None = None) -> Array:
    """A hash table with linear probing: the number of an entry + 1, or 0."""
    size = 1 << max(1, (len(hashes) * 3 // 2).bit_length())
    slots = [0] * size
    for number, value in enumerate(hashes):
        if usable is not None and not usable[number]:
            continue
        at = value & (size - 1)
        while slots[at]:
            at = (at + 1) & (size - 1)
        slots[at] = number + 1
    return np.array(slots, np.uint32)
