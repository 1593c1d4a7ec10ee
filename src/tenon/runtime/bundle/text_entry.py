"""C entry points that go on with a text: ``<name>_text.h`` and ``<name>_text.c``, over ``<name>.text.bin``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tenon.errors import InputError
from tenon.network.graph.text_model import TextModel
from tenon.runtime.bundle.manifest import Binding, BundleTensor, Manifest, counts_of_states, size_ranges

SOURCES = (
    *("text.h", "text_tables.h", "text_words.h", "text_form.h", "text_encode.h", "text_sampling.h", "text_chat.h"),
    *("text_output.h", "text_grammar.h", "text_schema.h", "text_rules.h", "text_generate.h"),
    *("text_tables.c", "text_words.c", "text_form.c", "text_encode.c", "text_sampling.c", "text_chat.c"),
    *("text_output.c", "text_grammar.c", "text_pattern.c", "text_schema.c", "text_automaton.c", "text_generate.c"),
)
"""The hand-written C files that ``text_source`` needs, in the order in which these need each other."""
_INCLUDE = re.compile(r'^#include "[^"]*"\n', re.MULTILINE)
_SHARED_FUNCTION = re.compile(r"^(?=(?:const )?\w+ \*?tenon_(?:text|speech)_\w+\()", re.MULTILINE)
NOWHERE = "TEXT_NOWHERE"

_HEADER = """\
/* The language model {name}: goes on with a text.  The tokens are those of `tenon run --prompt` with the same seed, if
   {name}_text.c is compiled with -ffp-contract=off.

   These functions allocate no memory and keep nothing between calls. */

#ifndef {prefix}_TEXT_H
#define {prefix}_TEXT_H

#include <stddef.h>
#include "{name}.h"

#ifdef __cplusplus
extern "C" {{
#endif

#define {prefix}_VOCABULARY {vocabulary}
#define {prefix}_CONTEXT {context} /* the most tokens of a prompt and its continuation */

/* The parts of the model. */
typedef struct {{
  const void *tables; /* {name}.text.bin, at a multiple of 8 */
  size_t tables_size;
  const uint8_t *constantWeight;
  uint8_t *mutableWeight, *activations;
  int (*run)(void *runner, int entry); /* runs an entry point; NULL: in the calling thread */
  void *runner;
  const char *const *stop; /* strings before which a text ends, the last one NULL; or NULL */
  const char *grammar;     /* GBNF or a JSON schema, which texts follow; NULL: that of the tables, if any; "": none */
}} {name}_text;

/* A message of a conversation, in UTF-8; the role is "system", "user" or "assistant". */
typedef struct {{
  const char *role, *content;
}} {name}_message;

/* How the next token is chosen, as tenon.Sampling. */
typedef struct {{
  double temperature, top_p, min_p;
  float repetition_penalty, presence_penalty, frequency_penalty;
  uint32_t top_k, recent; /* tokens that penalties look at */
  uint64_t state;         /* the seed; changed by every choice */
}} {name}_sampling;

#ifndef TENON_GREEDY
#define TENON_GREEDY {{0, 1, 0, 1, 0, 0, 0, 64, 0}} /* the most probable token */
#endif

/* Results of functions other than a number: the prompt is empty, or has more tokens than fit; the tables are damaged;
   `size` is too small; the network failed; the tables have no chat template, or it does not take these messages; the
   grammar has a mistake, or allows none of the tokens. */
enum {{
  {name}_TEXT_LONG = -1, {name}_TEXT_DAMAGED = -2, {name}_TEXT_NO_MEMORY = -3, {name}_TEXT_FAILED = -4,
  {name}_TEXT_NO_CHAT = -5, {name}_TEXT_GRAMMAR = -6
}};

/* The values of sampling that the model's file recommends (greedy where it recommends none); `state` stays.  Returns 0,
   or {name}_TEXT_DAMAGED. */
int {name}_recommended(const {name}_text *text, {name}_sampling *sampling);

/* The bytes of memory that {name}_generate needs for a prompt of `length` bytes; 0 for damaged tables. */
size_t {name}_text_memory(const {name}_text *text, size_t length);

/* Go on with a prompt (UTF-8, ended by a zero), by at most `most` tokens, or with -1 until the text ends or the caches
   are full.  `piece` gets the text as it is generated, whole characters that no zero follows; what it returns, if it is
   not 0, ends the text.  `memory` are `size` bytes at a multiple of 8.  Returns the number of tokens. */
long {name}_generate(const {name}_text *text, {name}_sampling *sampling, const char *prompt, long most,
                     int (*piece)(const char *piece, size_t length, void *user), void *user, void *memory,
                     size_t size);

/* The same for a conversation: answers the last of `count` messages, which are one of the system, if any, and then of
   user and assistant in turn.  The tokens that `memory` begins with stay there from call to call, and `*kept` of them
   are in the caches: 0 at first, and for other memory.  What the next conversation has in common with them is not
   computed again.  `memory` may have been moved, as by realloc. */
size_t {name}_chat_memory(const {name}_text *text, const {name}_message *messages, size_t count);
long {name}_chat(const {name}_text *text, {name}_sampling *sampling, const {name}_message *messages, size_t count,
                 long most, int (*piece)(const char *piece, size_t length, void *user), void *user, size_t *kept,
                 void *memory, size_t size);

/* The entry points that `run` is given the numbers of, as functions of threads (threads of one's own: {name}_phase). */
enum {{ {name}_ENTRIES = {entries} }};
typedef void {name}_phase_function(const uint8_t *, uint8_t *, uint8_t *, int, int, int, int);
typedef int {name}_next_function(const uint8_t *, uint8_t *, uint8_t *, int);
extern {name}_phase_function *const {name}_text_phases[{name}_ENTRIES];
extern {name}_next_function *const {name}_text_nexts[{name}_ENTRIES];

#ifdef __cplusplus
}}
#endif

#endif
"""

_HEAD = """\
/* Texts of the network {name}, see {header}. */

#include "{header}"

"""
_MESSAGE = """\
#define TEXT_MESSAGE {name}_message

"""

_ENTRY = """\
#include <string.h>

static const TextEntry entries[] = {{
{rows}
}};

{phases}

static int run_here(void *runner, int entry) {{
  const {name}_text *text = (const {name}_text *)runner;
  switch (entry) {{
{cases}
    default: return -1;
  }}
}}

static TextDecoder decoder_of(const {name}_text *text) {{
  union {{ const {name}_text *given; void *runner; }} self = {{text}};
  TextDecoder decoder = {{entries, {entries}, {past}, {vocabulary}, {context}, text->mutableWeight, NULL, NULL}};
  decoder.run = run_here;
  decoder.runner = self.runner;
  if (text->run != NULL) {{
    decoder.run = text->run;
    decoder.runner = text->runner;
  }}
  return decoder;
}}

/* Goes on with a prompt, with the fields of `request` that say so. */
static long generate(const {name}_text *text, {name}_sampling *sampling, TextRequest request, void *memory,
                     size_t size) {{
  TenonText tables;
  TextResult result;
  TextDecoder decoder = decoder_of(text);
  TenonSampling how = {{sampling->temperature, sampling->top_p, sampling->min_p, sampling->repetition_penalty,
                       sampling->presence_penalty, sampling->frequency_penalty, sampling->top_k, sampling->recent,
                       sampling->state}};
  if (tenon_text_open(&tables, text->tables, text->tables_size) != 0) return {name}_TEXT_DAMAGED;
  request.stop = text->stop;
  request.grammar = text->grammar;
  long made = tenon_text_generate(&tables, &decoder, &how, &request, memory, size, &result);
  sampling->state = how.state;
  return made;
}}

int {name}_recommended(const {name}_text *text, {name}_sampling *sampling) {{
  TenonText tables;
  TenonSampling how = TENON_GREEDY;
  if (tenon_text_open(&tables, text->tables, text->tables_size) != 0) return {name}_TEXT_DAMAGED;
  tenon_text_sampling(&tables, &how);
  sampling->temperature = how.temperature;
  sampling->top_p = how.top_p;
  sampling->min_p = how.min_p;
  sampling->repetition_penalty = how.repetition_penalty;
  sampling->presence_penalty = how.presence_penalty;
  sampling->frequency_penalty = how.frequency_penalty;
  sampling->top_k = how.top_k;
  sampling->recent = how.recent;
  return 0;
}}

size_t {name}_text_memory(const {name}_text *text, size_t length) {{
  TenonText tables;
  TextDecoder decoder = decoder_of(text);
  if (tenon_text_open(&tables, text->tables, text->tables_size) != 0) return 0;
  return tenon_text_memory(&tables, &decoder, length, text->stop, text->grammar);
}}

long {name}_generate(const {name}_text *text, {name}_sampling *sampling, const char *prompt, long most,
                     int (*piece)(const char *piece, size_t length, void *user), void *user, void *memory,
                     size_t size) {{
  TextRequest request = {{prompt, 0, 1, NULL, most, NULL, piece, user, NULL}};
  request.length = strlen(prompt);
  return generate(text, sampling, request, memory, size);
}}

/* The bytes of a conversation, which are written to `to` unless it is NULL; a number below 0 if it cannot be. */
static long conversation(const {name}_text *text, const {name}_message *messages, size_t count, char *to) {{
  TenonText tables;
  if (tenon_text_open(&tables, text->tables, text->tables_size) != 0) return {name}_TEXT_DAMAGED;
  long length = tenon_text_conversation(&tables, messages, count, to);
  return length < 0 ? {name}_TEXT_NO_CHAT : length;
}}

size_t {name}_chat_memory(const {name}_text *text, const {name}_message *messages, size_t count) {{
  long length = conversation(text, messages, count, NULL);
  return length < 0 ? 0 : {name}_text_memory(text, (size_t)length) + (size_t)length;
}}

long {name}_chat(const {name}_text *text, {name}_sampling *sampling, const {name}_message *messages, size_t count,
                 long most, int (*piece)(const char *piece, size_t length, void *user), void *user, size_t *kept,
                 void *memory, size_t size) {{
  long length = conversation(text, messages, count, NULL);
  if (length < 0) return length;
  size_t need = {name}_text_memory(text, (size_t)length);
  if (size < need + (size_t)length) return {name}_TEXT_NO_MEMORY;
  TextRequest request = {{NULL, 0, 0, NULL, most, kept, piece, user, NULL}};
  request.prompt = (char *)memory + need;
  request.length = (size_t)length;
  conversation(text, messages, count, (char *)memory + need);
  return generate(text, sampling, request, memory, need);
}}
"""


def text_header(manifest: Manifest, model: TextModel) -> str:
    """The text of ``<name>_text.h``."""
    return _HEADER.format(**_words(manifest, model))


def text_source(manifest: Manifest, model: TextModel, runtime: Mapping[str, str]) -> str:
    """The text of ``<name>_text.c``, which needs no other file than the headers of the bundle; all but the functions of
    the header is static.  ``runtime`` are the files ``SOURCES``."""
    files = [_MESSAGE.format(name=manifest.name), *(runtime[file] for file in SOURCES)]
    return joined_sources(manifest.name, files) + _ENTRY.format(**_words(manifest, model))


def joined_sources(name: str, files: Sequence[str], static: str = "static", header: str = "") -> str:
    """The hand-written files as the beginning of a C file, whose functions are ``static`` there; it includes ``header``
    (``<name>_text.h``)."""
    parts = [_INCLUDE.sub("", _SHARED_FUNCTION.sub(f"{static} ", text)) for text in files]
    return _HEAD.format(name=name, header=header or f"{name}_text.h") + "\n".join(parts) + "\n"


def text_description(manifest: Manifest, model: TextModel, *, chat: bool) -> dict[str, object]:
    """The properties of a language model that a page needs; ``chat``: whether its tables have a chat template."""
    words = _words(manifest, model)
    origin = manifest.origin.file if manifest.origin else ""
    sizes = {key: words[key] for key in ("vocabulary", "context")}
    return {"name": manifest.name, "model": origin, "chat": chat, **sizes}


def _words(manifest: Manifest, model: TextModel) -> dict[str, object]:
    """The values that the templates are filled with.  Raises InputError for a network that does not predict tokens."""
    bindings, name = manifest.every_binding(), manifest.name
    if model.kind != "decoder" or model.tokenizer is None:
        raise InputError(f"'{name}' is no language model with a tokenizer: leave out --emit text")
    if not all(counts_of_states(binding.inputs) for binding in bindings):
        raise InputError(f"'{name}' has several sequences: leave out --emit text and exe, or sequences (--sequences)")
    entries = [_Places(binding, model) for binding in bindings]
    threaded = manifest.threads > 1
    regions = "text->constantWeight, text->mutableWeight, text->activations"
    calls = [f"    case {i}: return {b.entry}({regions});" for i, b in enumerate(bindings)]
    phases = ", ".join(f"{b.entry}_phase" if threaded else "NULL" for b in bindings)
    nexts = ", ".join(f"{b.entry}_next" if threaded else "NULL" for b in bindings)
    return {
        "name": name,
        "prefix": name.upper(),
        "vocabulary": entries[0].logits.shape[-1],
        "context": max(entry.length + entry.past_most for entry in entries),
        "entries": len(entries),
        "past": entries[0].past.offset,
        "rows": "\n".join(f"    {entry.row()}," for entry in entries),
        "cases": "\n".join(calls),
        "phases": f"{name}_phase_function *const {name}_text_phases[] = {{{phases}}};\n"
        f"{name}_next_function *const {name}_text_nexts[] = {{{nexts}}};",
    }


class _Places:
    """Where the inputs and outputs of an entry point lie."""

    def __init__(self, binding: Binding, model: TextModel) -> None:
        self._inputs = {tensor.name: tensor for tensor in binding.inputs}
        ranges = size_ranges(binding.inputs)
        self.tokens = self._inputs[model.ports["tokens"]]
        self.logits = next(t for t in binding.outputs if t.name == model.ports["logits"])
        self.past = self._inputs[min(counts_of_states(binding.inputs))]
        self._count = dict(self.tokens.extents).get(1)
        self.length = self.tokens.shape[1]
        self.past_most = ranges[self.past.name].most

    def row(self) -> str:
        """The entry point as a row of C."""
        mask, positions = self._inputs.get("attention_mask"), self._inputs.get("position_ids")
        places = [
            self.tokens.offset,
            self._place(self._count),
            self.logits.offset,
            NOWHERE if positions is None else positions.offset,
            NOWHERE if mask is None else mask.offset,
            self._place(None if mask is None else dict(mask.extents).get(1)),
        ]
        every_row = int(self.logits.shape[-2] == self.length and self.length > 1)
        return f"{{{self.length}, {self.past_most}, {', '.join(map(str, places))}, {every_row}}}"

    def _place(self, name: str | None) -> int | str:
        tensor: BundleTensor | None = self._inputs.get(name) if name else None
        return NOWHERE if tensor is None else tensor.offset
