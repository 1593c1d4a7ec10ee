/* Speech to text: a recognizer is an engine each for encoder and decoder, and memory for a sound. */

#define SPEECH_TEXT TenonHeardText

#include "engine.h"
#include "errors.h"
#include "handle.h"
#include "speech.h"

#include <stdlib.h>
#include <string.h>

static const HandleKind recognizer_kind = {"recognizer", "destroyed"};

typedef struct {
  TenonEngine *handles[2];
  Engine *encoder, *decoder;
  TenonText text;
  SpeechNetworks networks;
  SpeechCross *cross;
  SpeechListener listener;
  char language[16];
  void *memory;
  size_t memory_bytes;
  int has_begun;
  TenonStatus status; /* of the last run */
} Recognizer;

static Recognizer *recognizer_of(const TenonRecognizer *handle) { return tn_handle_object(&recognizer_kind, handle); }

/* --------------------------------------------------------------------------------------------------------- networks */

static const Port *named(const Port *ports, int count, const char *name) {
  for (int i = 0; i < count; i++)
    if (strcmp(ports[i].tensor.name, name) == 0) return &ports[i];
  return NULL;
}

/* The input or output that holds the extent of an axis; NULL if the extent is fixed. */
static const Port *holder(const Binding *binding, const Port *port, int axis) {
  const int number = port->extents[axis];
  if (number >= NUMBER_OF_OUTPUTS) return &binding->outputs[number - NUMBER_OF_OUTPUTS];
  return number >= 0 ? &binding->inputs[number] : NULL;
}

static size_t offset_of(const Port *port) { return port == NULL ? SPEECH_NOWHERE : (size_t)port->offset; }

static size_t extent(const Port *port, int axis) { return (size_t)port->tensor.shape[axis]; }

/* Whether keys or values [1, heads, positions, width] of the encoder fit the decoder's. */
static int is_cross(const Port *given, const Port *taken) {
  const TenonTensor *from = &given->tensor, *to = &taken->tensor;
  if (from->rank != 4 || to->rank != 4 || from->type != to->type || strcmp(from->type_name, to->type_name) != 0) return 0;
  return extent(given, 0) == extent(taken, 0) && extent(given, 1) == extent(taken, 1) &&
         extent(given, 2) <= extent(taken, 2) && extent(given, 3) == extent(taken, 3) && extent(given, 2) > 0;
}

/* The values that the encoder gives the decoder; 0 if this is not what the decoder takes. */
static int read_cross(Recognizer *r, const Binding *encoder, const Binding *decoder) {
  SpeechPlaces *p = &r->networks.places;
  for (int i = 0; i < encoder->output_count; i++) {
    const Port *given = &encoder->outputs[i];
    const Port *taken = named(decoder->inputs, decoder->input_count, given->tensor.name);
    if (taken == NULL) continue;
    if (!is_cross(given, taken)) return 0;
    const size_t rows = extent(given, 0) * extent(given, 1);
    const size_t from = (size_t)given->tensor.bytes / rows, to = (size_t)taken->tensor.bytes / rows;
    r->cross[p->cross_count++] = (SpeechCross){.from = (size_t)given->offset, .to = (size_t)taken->offset, .rows = rows,
                                               .from_step = from, .to_step = to, .position = from / extent(given, 2)};
    p->encoded = offset_of(holder(encoder, given, 2));
    p->most_encoded = extent(given, 2);
    p->positions = offset_of(holder(decoder, taken, 2));
  }
  return p->cross_count > 0;
}

/* Where inputs and outputs lie; 0 for networks of another kind. */
static int read_places(Recognizer *r, const Binding *encoder, const Binding *decoder) {
  SpeechPlaces *p = &r->networks.places;
  const Port *samples = named(encoder->inputs, encoder->input_count, "samples");
  const Port *tokens = named(decoder->inputs, decoder->input_count, "tokens");
  const Port *logits = named(decoder->outputs, decoder->output_count, "logits");
  if (samples == NULL || samples->tensor.type != TENON_F32 || samples->tensor.rank != 2) return 0;
  if (tokens == NULL || tokens->tensor.type != TENON_I64 || tokens->tensor.bytes != sizeof(int64_t)) return 0;
  if (logits == NULL || logits->tensor.type != TENON_F32 || logits->tensor.rank < 2) return 0;
  const Port *count = holder(encoder, samples, 1);
  p->samples = (size_t)samples->offset;
  p->sample_count = offset_of(count);
  p->most = extent(samples, 1);
  p->least = count != NULL ? (size_t)count->tensor.least : p->most;
  p->token = (size_t)tokens->offset;
  p->logits = (size_t)logits->offset;
  p->vocabulary = (uint32_t)extent(logits, logits->tensor.rank - 1);
  for (int i = 0; i < decoder->input_count; i++) {
    const TenonTensor *state = &decoder->inputs[i].tensor;
    if (state->is_state && state->rank == 4) p->room = (long)state->shape[2];
  }
  return p->room > 0 && p->most >= SPEECH_FRAME && read_cross(r, encoder, decoder);
}

static int run(void *runner, int what) {
  Recognizer *r = runner;
  if (what == SPEECH_RESET) {
    tn_reset(r->decoder);
    return 0;
  }
  r->status = tn_run(what == SPEECH_ENCODE ? r->encoder : r->decoder, NULL);
  return r->status != TENON_OK;
}

static TenonStatus read_networks(Recognizer *r) {
  const Bundle *encoder = r->encoder->bundle, *decoder = r->decoder->bundle;
  const char *name = decoder->about.name;
  const void *tables = decoder->text_copy != NULL ? decoder->text_copy : decoder->text_file.data;
  if (decoder->text_file.size == 0)
    return tn_fail(TENON_UNSUPPORTED, "%s has no tables for text: it is no decoder of speech with a tokenizer", name);
  if (tenon_text_open(&r->text, tables, decoder->text_file.size) != 0)
    return tn_fail(TENON_DAMAGED, "%s: the tables for text are damaged or of another version: compile the model again", name);
  r->cross = calloc((size_t)encoder->about.bindings[0].output_count + 1, sizeof *r->cross);
  if (r->cross == NULL) return tn_fail(TENON_OUT_OF_MEMORY, "%s: no memory for a recognizer", name);
  if (r->text.head[TEXT_SPEECH] == 0 || !read_places(r, &encoder->about.bindings[0], &decoder->about.bindings[0]))
    return tn_fail(TENON_UNSUPPORTED, "%s and %s are no encoder and decoder of speech, or not of the same model: compile "
                   "them with the outputs 'cross.*' and with these as inputs", encoder->about.name, name);
  r->networks.places.cross = r->cross;
  r->networks.encoder = r->encoder->tensors;
  r->networks.decoder = r->decoder->tensors;
  r->networks.run = run;
  r->networks.runner = r;
  r->memory_bytes = tenon_speech_memory(&r->text, &r->networks.places);
  r->memory = malloc(r->memory_bytes);
  return r->memory != NULL ? TENON_OK : tn_fail(TENON_OUT_OF_MEMORY, "%s: no memory for a sound", name);
}

/* ------------------------------------------------------------------------------------------------------------- life */

static void end(Recognizer *r) {
  for (int i = 0; i < 2; i++)
    if (r->handles[i] != NULL) tenon_engine_destroy(r->handles[i]);
  free(r->cross);
  free(r->memory);
  free(r);
}

TenonStatus tenon_recognizer_create(TenonBundle *encoder, TenonBundle *decoder, const TenonEngineOptions *options,
                                    TenonRecognizer **result) {
  if (result == NULL) return tn_fail(TENON_INVALID_ARGUMENT, "tenon_recognizer_create: the result is NULL");
  Recognizer *r = calloc(1, sizeof *r);
  if (r == NULL) return tn_fail(TENON_OUT_OF_MEMORY, "no memory for a recognizer");
  TenonStatus status = tenon_engine_create(encoder, options, &r->handles[0]);
  if (status == TENON_OK) status = tenon_engine_create(decoder, options, &r->handles[1]);
  if (status == TENON_OK) {
    r->encoder = tn_engine_of(r->handles[0]);
    r->decoder = tn_engine_of(r->handles[1]);
    status = read_networks(r);
  }
  TenonRecognizer *handle = status == TENON_OK ? tn_handle_new(&recognizer_kind, r) : NULL;
  if (status == TENON_OK && handle == NULL) status = tn_fail(TENON_OUT_OF_MEMORY, "no room for one more recognizer");
  if (status == TENON_OK) *result = handle;
  else end(r);
  return status;
}

TenonStatus tenon_recognizer_destroy(TenonRecognizer *handle) {
  Recognizer *r = recognizer_of(handle);
  if (r == NULL) return TENON_INVALID_HANDLE;
  tn_handle_end(handle);
  end(r);
  return TENON_OK;
}

/* ------------------------------------------------------------------------------------------------------------ sound */

/* Both engines, so that no other call uses them; they are to be left. */
static TenonStatus enter(Recognizer *r) {
  Engine *engine;
  TenonStatus status = tn_engine_take(r->handles[0], &engine);
  if (status != TENON_OK) return status;
  status = tn_engine_take(r->handles[1], &engine);
  if (status != TENON_OK) tn_engine_leave(r->encoder);
  r->status = TENON_OK;
  return status;
}

static TenonStatus leave(Recognizer *r, int result) {
  const char *name = r->decoder->bundle->about.name;
  TenonStatus status = TENON_OK;
  if (r->status != TENON_OK) status = r->status;
  else if (result == TENON_SPEECH_NO_LANGUAGE)
    status = tn_fail(TENON_NOT_FOUND, "%s does not know the language '%s'", name, r->language);
  else if (result < 0) status = tn_fail(TENON_RUN_FAILED, "%s: the caches have no room for a run", name);
  tn_engine_leave(r->decoder);
  tn_engine_leave(r->encoder);
  return status;
}

TenonStatus tenon_recognizer_begin(TenonRecognizer *handle, const TenonListenOptions *given, TenonHeard *heard,
                                   void *context) {
  static const TenonListenOptions usual = TENON_LISTEN_OPTIONS_INIT;
  TenonListenOptions how;
  Recognizer *r = recognizer_of(handle);
  if (r == NULL) return TENON_INVALID_HANDLE;
  if (heard == NULL) return tn_fail(TENON_INVALID_ARGUMENT, "the function for texts is NULL");
  TenonStatus status = tn_options(given, &how, sizeof how, "TENON_LISTEN_OPTIONS_INIT");
  if (given == NULL) how = usual;
  if (status == TENON_OK && !(how.step >= 0 && how.step <= 1e6 && how.pause >= 0 && how.pause <= 1e6))
    status = tn_fail(TENON_INVALID_ARGUMENT, "options.step and options.pause are seconds, of 0 to 1000000");
  if (status == TENON_OK && how.language != NULL && strlen(how.language) >= sizeof r->language)
    status = tn_fail(TENON_NOT_FOUND, "%s does not know the language '%s'", r->decoder->bundle->about.name, how.language);
  if (status == TENON_OK) status = enter(r);
  if (status != TENON_OK) return status;
  if (how.language != NULL) strcpy(r->language, how.language);
  const SpeechOptions options = {how.language != NULL ? r->language : NULL, how.live != 0, how.times != 0, how.step, how.pause};
  const int result =
      tenon_speech_begin(&r->listener, &r->text, &r->networks, &options, heard, context, r->memory, r->memory_bytes);
  r->has_begun = result == 0;
  return leave(r, result);
}

static TenonStatus hear(TenonRecognizer *handle, const float *floats, const int16_t *integers, size_t count, int is_end) {
  Recognizer *r = recognizer_of(handle);
  if (r == NULL) return TENON_INVALID_HANDLE;
  if (floats == NULL && integers == NULL && count > 0) return tn_fail(TENON_INVALID_ARGUMENT, "the samples are NULL");
  const TenonStatus status = enter(r);
  if (status != TENON_OK) return status;
  if (!r->has_begun) {
    leave(r, 0);
    return tn_fail(TENON_WRONG_STATE, "%s: begin with tenon_recognizer_begin", r->decoder->bundle->about.name);
  }
  if (is_end) return leave(r, tenon_speech_finish(&r->listener));
  if (floats != NULL) return leave(r, tenon_speech_hear(&r->listener, floats, count));
  return leave(r, tenon_speech_hear_pcm(&r->listener, integers, count));
}

TenonStatus tenon_recognizer_hear(TenonRecognizer *handle, const float *samples, size_t count) {
  return hear(handle, samples, NULL, count, 0);
}

TenonStatus tenon_recognizer_hear_pcm(TenonRecognizer *handle, const int16_t *samples, size_t count) {
  return hear(handle, NULL, samples, count, 0);
}

TenonStatus tenon_recognizer_finish(TenonRecognizer *handle) { return hear(handle, NULL, NULL, 0, 1); }
