"""C entry points that write down speech: ``<name>_speech.h`` and ``<name>_speech.c``, over an encoder and a decoder."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tenon.errors import InputError
from tenon.runtime.bundle.manifest import BundleTensor, Manifest, size_ranges
from tenon.runtime.bundle.text_entry import joined_sources

SOURCES = (
    *("text.h", "text_tables.h", "text_output.h", "speech.h"),
    *("text_tables.c", "text_output.c", "speech.c", "speech_tokens.c"),
)
"""The hand-written C files that ``speech_source`` needs, in the order in which these need each other."""

ENCODER, DECODER = "_encoder", "_decoder"
"""Behind the name of a program for speech, the names of its networks."""

_NOWHERE = "SPEECH_NOWHERE"

_HEADER = """\
/* The networks {encoder} and {decoder}: write down speech while it arrives.
   The texts are those of `tenon run` and tenon.speech.

   These functions allocate no memory and keep nothing but what they are given.  The headers of the networks lie in
   encoder/ and decoder/ beside this file: give the compiler both folders (-I). */

#ifndef {prefix}_SPEECH_H
#define {prefix}_SPEECH_H

#include <stddef.h>
#include "{encoder}.h"
#include "{decoder}.h"

#ifdef __cplusplus
extern "C" {{
#endif

#define {prefix}_SPEECH_RATE 16000 /* samples in a second */
#define {prefix}_SPEECH_MOST {most} /* samples that are written down at once; longer sounds are cut in quiet places */
#define {prefix}_SPEECH_ACTIVATIONS \\
  ({encoder_prefix}_ACTIVATIONS_MEM_SIZE > {decoder_prefix}_ACTIVATIONS_MEM_SIZE \\
       ? {encoder_prefix}_ACTIVATIONS_MEM_SIZE \\
       : {decoder_prefix}_ACTIVATIONS_MEM_SIZE)

/* The parts of the networks.  Both use the same memory for activations. */
typedef struct {{
  const void *tables; /* {name}.text.bin, at a multiple of 8 */
  size_t tables_size;
  const uint8_t *encoder_weights, *decoder_weights;
  uint8_t *encoder, *decoder; /* {encoder_prefix}_ and {decoder_prefix}_MUTABLE_MEM_SIZE bytes */
  uint8_t *activations;       /* {prefix}_SPEECH_ACTIVATIONS bytes */
  int (*run)(void *runner, int network); /* runs the encoder (0) or the decoder (1); NULL: in the calling thread */
  void *runner;
}} {name}_speech;

/* How a sound is written down. */
typedef struct {{
  const char *language; /* "en"; NULL: the network says it for each piece, if it knows several */
  int live;             /* 1: texts end where the speaker pauses, and those so far are given in between; 0: they end
                           where the network takes no more samples */
  int times;            /* 1: each part of a text has its own times, where the network knows them (not live) */
  double step, pause;   /* live: seconds between texts so far, and without a voice before a final one */
}} {name}_listening;

#define {prefix}_LISTENING {{NULL, 0, 0, 1.0, 0.6}}

/* The words from `start` to `end`, in seconds, in UTF-8 that no zero follows; what is not final may change. */
typedef struct {{
  double start, end;
  const char *text;
  size_t bytes;
  int32_t final;
}} {name}_heard;

/* Results of functions other than 0: the function for texts wanted no more; the tables are damaged; `size` is too
   small; a network failed; there is no such language. */
enum {{
  {name}_SPEECH_ENDED = 1,
  {name}_SPEECH_DAMAGED = -2,
  {name}_SPEECH_NO_MEMORY = -3,
  {name}_SPEECH_FAILED = -4,
  {name}_SPEECH_NO_LANGUAGE = -5
}};

/* The bytes of memory for a sound of any length; 0 for damaged tables. */
size_t {name}_speech_memory(const {name}_speech *speech);

/* Begin with a sound.  `texts` gets what is said; what it returns, if it is not 0, ends the call.  `memory` are `size`
   bytes at a multiple of 8, for the functions below until the sound ends. */
int {name}_listen(const {name}_speech *speech, const {name}_listening *how,
                  int (*texts)(const {name}_heard *text, void *user), void *user, void *memory, size_t size);

/* Take the next samples of a sound, any number at once: of -1 to 1, or of 16 bits. */
int {name}_hear(void *memory, const float *samples, size_t count);
int {name}_hear_pcm(void *memory, const int16_t *samples, size_t count);

/* Write down what is left where the sound ends. */
int {name}_finish(void *memory);

#ifdef __cplusplus
}}
#endif

#endif
"""

_STATIC = """\
#define SPEECH_TEXT {name}_heard
#ifdef __GNUC__
#define SPEECH_STATIC __attribute__((unused)) static /* some functions are those of language models */
#else
#define SPEECH_STATIC static
#endif

"""

_ENTRY = """\
static const SpeechCross cross[] = {{
{cross}
}};
static const SpeechPlaces places = {{
    {samples}, {sample_count}, {encoded}, {most_encoded}, {positions}, {token}, {logits}, {least}, {most},
    {vocabulary}, {room}, cross, {cross_count}}};

/* A sound that is written down; samples and texts are behind it. */
typedef struct {{
  SpeechListener listener;
  {name}_speech speech;
}} Listening;
enum {{ LISTENING_BYTES = (sizeof(Listening) + 7) / 8 * 8 }};

static int run_network(void *runner, int what) {{
  const {name}_speech *speech = (const {name}_speech *)runner;
  if (what == SPEECH_RESET) {{
    {decoder}_reset(speech->decoder);
    return 0;
  }}
  if (speech->run != NULL) return speech->run(speech->runner, what == SPEECH_DECODE);
  if (what == SPEECH_DECODE) return {decoder}(speech->decoder_weights, speech->decoder, speech->activations);
  return {encoder}(speech->encoder_weights, speech->encoder, speech->activations);
}}

size_t {name}_speech_memory(const {name}_speech *speech) {{
  TenonText tables;
  if (tenon_text_open(&tables, speech->tables, speech->tables_size) != 0) return 0;
  return LISTENING_BYTES + tenon_speech_memory(&tables, &places);
}}

int {name}_listen(const {name}_speech *speech, const {name}_listening *how,
                  int (*texts)(const {name}_heard *text, void *user), void *user, void *memory, size_t size) {{
  TenonText tables;
  Listening *l = (Listening *)memory;
  if (tenon_text_open(&tables, speech->tables, speech->tables_size) != 0) return {name}_SPEECH_DAMAGED;
  if (size < {name}_speech_memory(speech)) return {name}_SPEECH_NO_MEMORY;
  l->speech = *speech;
  const SpeechNetworks networks = {{places, speech->encoder, speech->decoder, run_network, &l->speech}};
  const SpeechOptions options = {{how->language, how->live, how->times, how->step, how->pause}};
  return tenon_speech_begin(&l->listener, &tables, &networks, &options, texts, user,
                            (uint8_t *)memory + LISTENING_BYTES, size - LISTENING_BYTES);
}}

int {name}_hear(void *memory, const float *samples, size_t count) {{
  return tenon_speech_hear(&((Listening *)memory)->listener, samples, count);
}}

int {name}_hear_pcm(void *memory, const int16_t *samples, size_t count) {{
  return tenon_speech_hear_pcm(&((Listening *)memory)->listener, samples, count);
}}

int {name}_finish(void *memory) {{ return tenon_speech_finish(&((Listening *)memory)->listener); }}
"""


def speech_header(name: str, encoder: Manifest, decoder: Manifest) -> str:
    """The text of ``<name>_speech.h``.  Raises InputError for networks of another kind."""
    return _HEADER.format(**_words(name, encoder, decoder))


def speech_source(name: str, encoder: Manifest, decoder: Manifest, runtime: Mapping[str, str]) -> str:
    """The text of ``<name>_speech.c``, which needs no other file than its header and those of the bundles.  ``runtime``
    are the files ``SOURCES``."""
    files = [_STATIC.format(name=name), *(runtime[file] for file in SOURCES)]
    entry = _ENTRY.format(**_words(name, encoder, decoder))
    return joined_sources(name, files, "SPEECH_STATIC", header=f"{name}_speech.h") + entry


def _words(name: str, encoder: Manifest, decoder: Manifest) -> dict[str, object]:
    """The values that the templates are filled with."""
    given = {tensor.name: tensor for tensor in encoder.inputs}
    taken = {tensor.name: tensor for tensor in decoder.inputs}
    outputs = {tensor.name: tensor for tensor in (*encoder.outputs, *decoder.outputs)}
    cross = [t for t in encoder.outputs if t.name in taken]
    if "samples" not in given or not cross or "tokens" not in taken or "logits" not in outputs:
        raise InputError(f"'{encoder.name}' and '{decoder.name}' are no encoder and decoder of speech")
    sizes = size_ranges(encoder.inputs)
    count = dict(given["samples"].extents).get(1)
    encoded = dict(cross[0].extents).get(2)
    positions = dict(taken[cross[0].name].extents).get(2)
    most = given["samples"].shape[1]
    words: dict[str, object] = {
        "name": name,
        "prefix": name.upper(),
        "encoder": encoder.name,
        "decoder": decoder.name,
        "encoder_prefix": encoder.name.upper(),
        "decoder_prefix": decoder.name.upper(),
        "samples": given["samples"].offset,
        "sample_count": given[count].offset if count else _NOWHERE,
        "encoded": outputs[encoded].offset if encoded else _NOWHERE,
        "most_encoded": cross[0].shape[2],
        "positions": taken[positions].offset if positions else _NOWHERE,
        "token": taken["tokens"].offset,
        "logits": outputs["logits"].offset,
        "least": min((size.least for size in sizes.values()), default=most),
        "most": most,
        "vocabulary": outputs["logits"].shape[-1],
        "room": next(t.shape[2] for t in decoder.inputs if t.state and len(t.shape) == 4),
        "cross": "\n".join(f"    {_cross_row(t, taken[t.name])}," for t in cross),
        "cross_count": len(cross),
    }
    return words


def _cross_row(source: BundleTensor, target: BundleTensor) -> str:
    """Keys or values [1, heads, positions, width] that the decoder takes, as a row of C."""
    if source.dtype != target.dtype or (*source.shape[:2], source.shape[3]) != (*target.shape[:2], target.shape[3]):
        raise InputError(
            f"'{source.name}' of the encoder has another type or shape than the decoder takes: compile both alike"
        )
    if target.shape[2] < source.shape[2]:
        raise InputError(
            f"the decoder has room for {target.shape[2]} of {source.shape[2]} positions of '{source.name}'"
        )
    rows = math.prod(source.shape[:2])
    position = source.bytes // (rows * source.shape[2])
    steps = source.bytes // rows, target.bytes // rows
    return f"{{{source.offset}, {target.offset}, {rows}, {steps[0]}, {steps[1]}, {position}}}"
