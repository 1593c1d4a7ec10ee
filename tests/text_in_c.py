"""The functions of ``runtime/c/text.h``, called from Python."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from libtenon import needed, run, succeeded
from tenon.network.graph.graph import Array
from tenon.runtime.bundle.link import TEXT
from tenon.runtime.sdk.libtenon import RUNTIME
from tenon.runtime.text.sampling import Sampling

WARNINGS = ("-pedantic", "-Wall", "-Wextra", "-Wcast-qual", "-Wmissing-prototypes", "-Werror")


class SamplingInC(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_double) for name in ("temperature", "top_p", "min_p")),
        *((name, ctypes.c_float) for name in ("repetition_penalty", "presence_penalty", "frequency_penalty")),
        *((name, ctypes.c_uint32) for name in ("top_k", "recent")),
        ("state", ctypes.c_uint64),
    )


@cache
def library(folder: Path, level: str = "-O1") -> ctypes.CDLL:
    """The functions as a shared library."""
    path = folder / "libtext.so"
    sources = [RUNTIME / name for name in TEXT]
    flags = ("-std=c99", level, "-fPIC", "-shared", "-ffp-contract=off", *WARNINGS)
    succeeded(run(needed("gcc"), *flags, *sources, "-o", path, "-lm"))
    loaded = ctypes.CDLL(str(path))
    loaded.tenon_text_work.restype, loaded.tenon_text_encode.restype = ctypes.c_size_t, ctypes.c_long
    loaded.tenon_text_piece.restype, loaded.tenon_text_choose.restype = ctypes.c_void_p, ctypes.c_uint32
    loaded.tenon_text_grammar_memory.restype = loaded.tenon_text_grammar_mask.restype = ctypes.c_size_t
    return loaded


class TextInC:
    """Tables, opened."""

    def __init__(self, functions: ctypes.CDLL, tables: bytes) -> None:
        self._functions = functions
        self._tables = np.zeros(-(-len(tables) // 8), np.uint64)  # at a multiple of 8
        self._tables.view(np.uint8)[: len(tables)] = np.frombuffer(tables, np.uint8)
        self._text = (ctypes.c_void_p * 2)()
        self.status = functions.tenon_text_open(self._text, self._address(self._tables), ctypes.c_size_t(len(tables)))

    @staticmethod
    def _address(array: Array) -> ctypes.c_void_p:
        return ctypes.c_void_p(array.ctypes.data)

    def encode(self, text: bytes, *, special: bool = True, room: int | None = None) -> list[int] | int:
        """The tokens, or the error.  The text is not followed by a zero, and guards are behind working memory."""
        size = ctypes.c_size_t(len(text))
        given = np.frombuffer(text + b"q", np.uint8)
        need = self._functions.tenon_text_work(self._text, size)
        work = np.full(-(-need // 8) + 8, 0xA5A5A5A5A5A5A5A5, np.uint64)
        tokens = np.zeros((2 * len(text) + 64 if room is None else room) + 1, np.uint32)
        place, memory = self._address(tokens), self._address(work)
        count = ctypes.c_size_t(len(tokens) - 1)
        got = self._functions.tenon_text_encode(self._text, self._address(given), size, special, place, count, memory)
        assert (work.view(np.uint8)[need:] == 0xA5).all()
        assert tokens[-1] == 0
        return int(got) if got < 0 else tokens[:got].tolist()

    def piece(self, token: int) -> bytes:
        size = ctypes.c_size_t()
        place = self._functions.tenon_text_piece(self._text, ctypes.c_uint32(token), ctypes.byref(size))
        return ctypes.string_at(place, size.value)

    def ends(self, token: int) -> bool:
        return bool(self._functions.tenon_text_ends(self._text, ctypes.c_uint32(token)))


class SamplerInC:
    """Chooses tokens like ``TokenSampler``."""

    def __init__(self, functions: ctypes.CDLL, how: Sampling, context: Sequence[int] = ()) -> None:
        self._functions, self._context = functions, list(context)
        self._how = SamplingInC(
            *(how.temperature, how.top_p, how.min_p),
            *(how.repetition_penalty, how.presence_penalty, how.frequency_penalty),
            *(how.top_k, how.penalty_window, how.seed or 0),
        )

    def choose(self, logits: Array) -> int:
        own, size = logits.astype(np.float32), ctypes.c_uint32(logits.size)
        work = np.zeros(logits.size * 2, np.uint64)
        context = np.array(self._context or [0], np.uint32)
        places = [ctypes.c_void_p(array.ctypes.data) for array in (own, context, work)]
        count = ctypes.c_size_t(len(self._context))
        token = self._functions.tenon_text_choose(ctypes.byref(self._how), places[0], size, places[1], count, places[2])
        self._context.append(token)
        return int(token)


class _Grammar(ctypes.Structure):
    """The first fields of the structure, and room for the others."""

    _fields_ = (
        *(("text", ctypes.c_void_p), ("source", ctypes.c_void_p), ("length", ctypes.c_size_t), ("at", ctypes.c_size_t)),
        *(("mistake", ctypes.c_char_p), ("others", ctypes.c_uint64 * 128)),
    )


class GrammarInC:
    """Where a text stands in a grammar, like ``TokenGrammar``.

    Raises ValueError with the place of the mistake for a bad grammar.  Guards are behind its memory.
    """

    def __init__(self, text: TextInC, source: str | bytes) -> None:
        self._text, self._functions, self._state = text, text._functions, _Grammar()
        self._source = source.encode() if isinstance(source, str) else source
        size = ctypes.c_size_t(len(self._source))
        need = self._functions.tenon_text_grammar_memory(text._text, self._source, size)
        self._memory = np.full(-(-need // 8) + 8, 0xA5A5A5A5A5A5A5A5, np.uint64)
        self.bytes = need
        place = ctypes.c_void_p(self._memory.ctypes.data)
        if self._functions.tenon_text_grammar_open(ctypes.byref(self._state), text._text, self._source, size, place):
            raise ValueError(f"{self._state.at}: {self._state.mistake.decode()}")

    def allowed(self, size: int) -> Array:
        """The tokens that may come next, bool[size]."""
        logits = np.zeros(size, np.float32)
        place, count = ctypes.c_void_p(logits.ctypes.data), ctypes.c_uint32(size)
        left = self._functions.tenon_text_grammar_mask(ctypes.byref(self._state), place, count)
        assert (self._memory.view(np.uint8)[self.bytes :] == 0xA5).all()
        assert left == (logits == 0).sum()
        return np.asarray(logits == 0)

    def add(self, token: int) -> bool:
        """Go on by a token; whether the text is complete."""
        piece = self._text.piece(token)
        return bool(
            self._functions.tenon_text_grammar_add(ctypes.byref(self._state), piece, ctypes.c_size_t(len(piece)))
        )
