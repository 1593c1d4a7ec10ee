"""C entry points that embed a text: ``<name>_text.h`` and ``<name>_text.c``, over ``<name>.text.bin``."""

from __future__ import annotations

from collections.abc import Mapping

from tenon.errors import InputError
from tenon.network.graph.text_model import TextModel, no_text
from tenon.runtime.bundle.manifest import BundleTensor, Manifest
from tenon.runtime.bundle.text_entry import NOWHERE, joined_sources

SOURCES = (
    *("text.h", "text_tables.h", "text_words.h", "text_form.h", "text_encode.h", "text_embed.h"),
    *("text_tables.c", "text_words.c", "text_form.c", "text_encode.c", "text_embed.c"),
)
"""The hand-written C files that ``embedding_source`` needs, in the order in which these need each other."""
_OTHERS = ("mask", "type", "position")
"""Parts of the names of inputs beside the tokens."""
_NAMED = ("embedding", "sentence_embedding", "text_embeds")

_HEADER = """\
/* The network {name}: embeds a text.  Vectors have the length 1, so that their products are the cosines of the angles
   between them.  These functions allocate no memory and keep nothing between calls. */

#ifndef {prefix}_TEXT_H
#define {prefix}_TEXT_H

#include <stddef.h>
#include "{name}.h"

#ifdef __cplusplus
extern "C" {{
#endif

#define {prefix}_EMBEDDING {width} /* the numbers of a vector */
#define {prefix}_TEXT_TOKENS {length} /* the most tokens of a text */

/* The parts of the network. */
typedef struct {{
  const void *tables; /* {name}.text.bin, at a multiple of 8 */
  size_t tables_size;
  const uint8_t *constantWeight;
  uint8_t *mutableWeight, *activations;
}} {name}_text;

/* Results of {name}_embed other than 0: the text is empty, or has more tokens than the network takes; the tables are
   damaged; `size` is too small; the network failed. */
enum {{ {name}_TEXT_LONG = -1, {name}_TEXT_DAMAGED = -2, {name}_TEXT_NO_MEMORY = -3, {name}_TEXT_FAILED = -4 }};

/* The bytes of memory that {name}_embed needs for a text of `length` bytes; 0 for damaged tables. */
size_t {name}_embed_memory(const {name}_text *text, size_t length);

/* The vector of a text in UTF-8, which a zero ends.  `memory` are `size` bytes at a multiple of 8. */
int {name}_embed(const {name}_text *text, const char *string, float vector[{prefix}_EMBEDDING], void *memory,
                 size_t size);

#ifdef __cplusplus
}}
#endif

#endif
"""

_STATIC = """\
#ifdef __GNUC__
#define TEXT_STATIC __attribute__((unused)) static /* some functions are those of language models */
#else
#define TEXT_STATIC static
#endif
"""
_ENTRY = """\
#include <string.h>

static const TextEncoder encoder = {{{places}}};

size_t {name}_embed_memory(const {name}_text *text, size_t length) {{
  TenonText tables;
  if (tenon_text_open(&tables, text->tables, text->tables_size) != 0) return 0;
  return tenon_text_embed_memory(&tables, &encoder, length);
}}

int {name}_embed(const {name}_text *text, const char *string, float vector[{prefix}_EMBEDDING], void *memory,
                 size_t size) {{
  TenonText tables;
  if (tenon_text_open(&tables, text->tables, text->tables_size) != 0) return {name}_TEXT_DAMAGED;
  const long count =
      tenon_text_embed_begin(&tables, &encoder, text->mutableWeight, string, strlen(string), memory, size);
  if (count < 0) return (int)count;
  if ({name}(text->constantWeight, text->mutableWeight, text->activations) != 0) return {name}_TEXT_FAILED;
  tenon_text_embed_end(&encoder, text->mutableWeight, count, vector);
  return 0;
}}
"""


def embedding_header(manifest: Manifest, model: TextModel) -> str:
    """The text of ``<name>_text.h``."""
    return _HEADER.format(**_words(manifest, model))


def embedding_source(manifest: Manifest, model: TextModel, runtime: Mapping[str, str]) -> str:
    """The text of ``<name>_text.c``, as ``text_entry.text_source``; ``runtime`` are the files ``SOURCES``."""
    files = [_STATIC, *(runtime[file] for file in SOURCES)]
    entry = _ENTRY.format(**_words(manifest, model))
    return joined_sources(manifest.name, files, "TEXT_STATIC") + entry


def _words(manifest: Manifest, model: TextModel) -> dict[str, object]:
    """The values that the templates are filled with.  Raises InputError for a network whose inputs a text does not
    give."""
    inputs = {tensor.name: tensor for tensor in manifest.inputs}
    tokens, output = inputs[model.ports["tokens"]], _output(manifest, model)
    named = {name: tensor for name, tensor in inputs.items() if tensor is not tokens}
    others = {part: next((t for name, t in named.items() if part in name), None) for part in _OTHERS}
    sizes = {size for tensor in inputs.values() for _, size in tensor.extents}
    known = {tokens.name, *(t.name for t in others.values() if t is not None), *sizes}
    if unknown := [name for name in inputs if name not in known]:
        raise InputError(no_text(manifest.name, unknown[0], model))
    for tensor in (tokens, *(t for t in others.values() if t is not None)):
        if tensor.dtype != "i64" or len(tensor.shape) != 2 or tensor.shape[0] != 1:
            raise InputError(f"'{manifest.name}' has an input '{tensor.name}' that is no list of one text's i64 tokens")

    def place(tensor: BundleTensor | None) -> list[int | str]:
        """Where an input lies, and its extent."""
        size = None if tensor is None else inputs.get(dict(tensor.extents).get(1, ""))
        return [NOWHERE if each is None else each.offset for each in (tensor, size)]

    places: list[int | str] = [tokens.shape[1], *place(tokens)]
    for part in _OTHERS:
        places += place(others[part])
    rows = 1 if len(output.shape) == 2 else output.shape[1]
    places += [output.offset, rows, output.shape[-1]]
    return {
        "name": manifest.name,
        "prefix": manifest.name.upper(),
        "width": output.shape[-1],
        "length": tokens.shape[1],
        "places": ", ".join(map(str, places)),
    }


def _output(manifest: Manifest, model: TextModel) -> BundleTensor:
    """The embedding, or the states of all tokens, as ``Embedder`` chooses it."""
    outputs = {t.name: t for t in manifest.outputs if len(t.shape) in (2, 3) and t.dtype == "f32" and t.shape[0] == 1}
    named = (model.ports.get("embedding", ""), *_NAMED, *outputs)
    name = next((each for each in named if each in outputs), "")
    if not name:
        raise InputError(f"'{manifest.name}' has no output with embeddings or states")
    return outputs[name]
