/* Texts by language models: a generator is an engine, and memory for tokens. */

#include "errors.h"
#include "handle.h"
#include "texts.h"

#include <stdlib.h>
#include <string.h>

static const HandleKind generator_kind = {"generator", "destroyed"};

typedef struct {
  TenonEngine *handle;
  Engine *engine;
  TenonText text;
  TextDecoder decoder;
  TextEntry *entries;
  uint8_t *memory; /* of `memory_bytes`; `kept` of the tokens that it begins with are in the caches */
  size_t memory_bytes, kept;
  TenonStatus status; /* of the last run */
} Generator;

static Generator *generator_of(const TenonGenerator *handle) { return tn_handle_object(&generator_kind, handle); }

/* ---------------------------------------------------------------------------------------------------------- network */

const Port *tn_port_named(const Port *ports, int count, const char *name) {
  for (int i = 0; name != NULL && i < count; i++)
    if (strcmp(ports[i].tensor.name, name) == 0) return &ports[i];
  return NULL;
}

static size_t offset_of(const Port *port) { return port == NULL ? TEXT_NOWHERE : (size_t)port->offset; }

const Port *tn_extent_holder(const Binding *binding, const Port *port, int axis) {
  const int number = port != NULL && axis < port->tensor.rank ? port->extents[axis] : -1;
  return number >= 0 && number < binding->input_count ? &binding->inputs[number] : NULL;
}

/* The size that counts the tokens in the caches: the one that is a state. */
static const Port *find_past(const Binding *binding) {
  for (int i = 0; i < binding->input_count; i++)
    if (binding->inputs[i].tensor.is_size && binding->inputs[i].tensor.is_state) return &binding->inputs[i];
  return NULL;
}

int tn_has_type(const Port *port, TenonType type, int rank) {
  return port != NULL && port->tensor.type == type && port->tensor.rank >= rank;
}

/* Where the inputs and outputs of a binding lie; 0 if it is not of a decoder. */
static int read_entry(const Description *about, const Binding *binding, TextEntry *entry, Generator *g) {
  const Port *tokens = tn_port_named(binding->inputs, binding->input_count, about->tokens);
  const Port *logits = tn_port_named(binding->outputs, binding->output_count, about->logits), *past = find_past(binding);
  const Port *positions = tn_port_named(binding->inputs, binding->input_count, "position_ids");
  const Port *mask = tn_port_named(binding->inputs, binding->input_count, "attention_mask");
  if (!tn_has_type(tokens, TENON_I64, 2) || !tn_has_type(logits, TENON_F32, 2) || past == NULL) return 0;
  const TenonTensor *scores = &logits->tensor;
  entry->length = (long)tokens->tensor.shape[1];
  entry->past = (long)past->tensor.most;
  entry->tokens = (size_t)tokens->offset;
  entry->count = offset_of(tn_extent_holder(binding, tokens, 1));
  entry->logits = (size_t)logits->offset;
  entry->positions = offset_of(positions);
  entry->mask = offset_of(mask);
  entry->mask_count = offset_of(tn_extent_holder(binding, mask, 1));
  entry->every_row = entry->length > 1 && scores->shape[scores->rank - 2] == entry->length;
  g->decoder.past = (size_t)past->offset;
  g->decoder.vocabulary = (uint32_t)scores->shape[scores->rank - 1];
  if (g->decoder.context < entry->length + entry->past) g->decoder.context = entry->length + entry->past;
  return 1;
}

static int run(void *runner, int entry) {
  Generator *g = runner;
  g->engine->binding = entry;
  g->status = tn_run(g->engine, NULL);
  return g->status != TENON_OK;
}

TenonStatus tn_text_tables(const Engine *engine, TenonText *text) {
  const Bundle *bundle = engine->bundle;
  const char *name = bundle->about.name;
  const void *tables = bundle->text_copy != NULL ? bundle->text_copy : bundle->text_file.data;
  if (bundle->text_file.size == 0)
    return tn_fail(TENON_UNSUPPORTED, "%s has no tables for text: it is no language model with a tokenizer, or one that "
                   "tenon compile --emit text refuses", name);
  if (tenon_text_open(text, tables, bundle->text_file.size) != 0)
    return tn_fail(TENON_DAMAGED, "%s: the tables for text are damaged or of another version: compile the model again", name);
  if (text->head[TEXT_SPEECH] != 0) return tn_fail(TENON_UNSUPPORTED, "%s writes down speech: create a recognizer", name);
  return TENON_OK;
}

static TenonStatus read_network(Generator *g) {
  const Description *about = &g->engine->bundle->about;
  const TenonStatus status = tn_text_tables(g->engine, &g->text);
  if (status != TENON_OK) return status;
  if ((g->entries = calloc((size_t)about->binding_count, sizeof *g->entries)) == NULL)
    return tn_fail(TENON_OUT_OF_MEMORY, "%s: no memory for a generator", about->name);
  for (int i = 0; i < about->binding_count; i++)
    if (!read_entry(about, &about->bindings[i], &g->entries[i], g))
      return tn_fail(TENON_UNSUPPORTED, "%s is no language model with caches that grow", about->name);
  g->decoder.entries = g->entries;
  g->decoder.count = about->binding_count;
  g->decoder.memory = g->engine->tensors;
  g->decoder.run = run;
  g->decoder.runner = g;
  return TENON_OK;
}

/* ------------------------------------------------------------------------------------------------------------- life */

static void end(Generator *g) {
  if (g->handle != NULL) tenon_engine_destroy(g->handle);
  free(g->entries);
  free(g->memory);
  free(g);
}

TenonStatus tenon_generator_create(TenonBundle *bundle, const TenonEngineOptions *options, TenonGenerator **result) {
  if (result == NULL) return tn_fail(TENON_INVALID_ARGUMENT, "tenon_generator_create: the result is NULL");
  Generator *g = calloc(1, sizeof *g);
  if (g == NULL) return tn_fail(TENON_OUT_OF_MEMORY, "no memory for a generator");
  TenonStatus status = tenon_engine_create(bundle, options, &g->handle);
  if (status == TENON_OK) g->engine = tn_engine_of(g->handle);
  if (status == TENON_OK) status = read_network(g);
  TenonGenerator *handle = status == TENON_OK ? tn_handle_new(&generator_kind, g) : NULL;
  if (status == TENON_OK && handle == NULL) status = tn_fail(TENON_OUT_OF_MEMORY, "no room for one more generator");
  if (status == TENON_OK) *result = handle;
  else end(g);
  return status;
}

TenonStatus tenon_generator_destroy(TenonGenerator *handle) {
  Generator *g = generator_of(handle);
  if (g == NULL) return TENON_INVALID_HANDLE;
  tn_handle_end(handle);
  end(g);
  return TENON_OK;
}

int64_t tenon_generator_context(const TenonGenerator *handle) {
  const Generator *g = generator_of(handle);
  return g != NULL ? g->decoder.context : -1;
}

/* ---------------------------------------------------------------------------------------------------------- options */

static double chosen(double given, double recommended) { return given >= 0 ? given : recommended; }

/* Fails for the first number that is not between its limits. */
static TenonStatus check_range(const char *name, double value, double least, double most) {
  if (value >= least && value <= most) return TENON_OK;
  return tn_fail(TENON_INVALID_ARGUMENT, "options.%s is %g: it lies from %g to %g", name, value, least, most);
}

static TenonStatus read_sampling(const TenonText *text, const TenonTextOptions *o, TenonSampling *how) {
  tenon_text_sampling(text, how);
  how->temperature = chosen(o->temperature, how->temperature);
  how->top_p = chosen(o->top_p, how->top_p);
  how->min_p = chosen(o->min_p, how->min_p);
  how->repetition_penalty = (float)chosen(o->repetition_penalty, how->repetition_penalty);
  how->presence_penalty = (float)o->presence_penalty;
  how->frequency_penalty = (float)o->frequency_penalty;
  if (o->top_k >= 0) how->top_k = o->top_k < UINT32_MAX ? (uint32_t)o->top_k : 0;
  if (o->penalty_window >= 0) how->recent = o->penalty_window < UINT32_MAX ? (uint32_t)o->penalty_window : UINT32_MAX;
  how->state = o->seed >= 0 ? (uint64_t)o->seed : tn_clock();
  TenonStatus status = check_range("temperature", how->temperature, 0, 100);
  if (status == TENON_OK) status = check_range("top_p", how->top_p, 0, 1);
  if (status == TENON_OK) status = check_range("min_p", how->min_p, 0, 1);
  if (status == TENON_OK) status = check_range("repetition_penalty", how->repetition_penalty, 0.01, 100);
  if (status == TENON_OK) status = check_range("presence_penalty", how->presence_penalty, -100, 100);
  return status == TENON_OK ? check_range("frequency_penalty", how->frequency_penalty, -100, 100) : status;
}

TenonStatus tn_text_options(const TenonText *text, const TenonTextOptions *given, TenonTextOptions *options,
                            TenonSampling *how) {
  static const TenonTextOptions usual = TENON_TEXT_OPTIONS_INIT;
  const TenonStatus status = tn_options(given, options, sizeof *options, "TENON_TEXT_OPTIONS_INIT");
  if (given == NULL) *options = usual;
  return status == TENON_OK ? read_sampling(text, options, how) : status;
}

long tn_most_tokens(const TenonTextOptions *options) {
  return options->max_tokens > INT32_MAX ? -1 : (long)options->max_tokens;
}

/* ------------------------------------------------------------------------------------------------------------ texts */

/* Memory for a text of so many bytes, with room for `more` behind it, which begins with the tokens of the last one. */
static TenonStatus take_memory(Generator *g, size_t length, const TextRequest *request, size_t more, size_t *need) {
  *need = tenon_text_memory(&g->text, &g->decoder, length, request->stop, request->grammar);
  if (*need + more <= g->memory_bytes) return TENON_OK;
  uint8_t *memory = realloc(g->memory, *need + more);
  if (memory == NULL) return tn_fail(TENON_OUT_OF_MEMORY, "%s: no memory for a text", g->engine->bundle->about.name);
  g->memory = memory;
  g->memory_bytes = *need + more;
  return TENON_OK;
}

TenonStatus tn_wrong_prompt(const Engine *engine, long context) {
  return tn_fail(TENON_WRONG_SIZE, "%s: the prompt is empty or leaves no room among the %ld tokens of the caches",
                 engine->bundle->about.name, context);
}

TenonStatus tn_wrong_grammar(const Engine *engine, const char *mistake, size_t at) {
  const char *name = engine->bundle->about.name;
  if (mistake == NULL) return tn_fail(TENON_RUN_FAILED, "%s: the grammar allows none of the tokens", name);
  return tn_fail(TENON_INVALID_ARGUMENT, "the grammar has a mistake at byte %zu: %s", at, mistake);
}

static TenonStatus ended(Generator *g, long made, const TextResult *about) {
  const char *name = g->engine->bundle->about.name;
  if (made >= 0) return TENON_OK;
  if (made == TENON_TEXT_LONG) return tn_wrong_prompt(g->engine, g->decoder.context);
  if (made == TENON_TEXT_GRAMMAR) return tn_wrong_grammar(g->engine, about->mistake, about->mistake_at);
  if (g->status != TENON_OK) return g->status;
  return tn_fail(TENON_RUN_FAILED, "%s: the caches have no room for a run", name);
}

/* Generate, with the prompt of the request. */
static TenonStatus generate(Generator *g, TextRequest *request, TenonSampling *how, size_t bytes, TenonTextResult *result) {
  TextResult about = {0, 0, TEXT_STOP, NULL, 0};
  g->status = TENON_OK;
  request->kept = &g->kept;
  const long made = tenon_text_generate(&g->text, &g->decoder, how, request, g->memory, bytes, &about);
  const TenonStatus status = ended(g, made, &about);
  if (status != TENON_OK || result == NULL) return status;
  *result = (TenonTextResult){.tokens = made, .prompt_tokens = about.prompt, .reused_tokens = about.reused,
                              .finish = (TenonFinish)about.end};
  return TENON_OK;
}

/* The engine and the options of a call; the engine is to be left. */
static TenonStatus enter(Generator *g, const TenonTextOptions *given, TenonPiece *piece, TenonTextOptions *options,
                         TenonSampling *how) {
  Engine *engine;
  if (piece == NULL) return tn_fail(TENON_INVALID_ARGUMENT, "the function for pieces of the text is NULL");
  const TenonStatus status = tn_text_options(&g->text, given, options, how);
  return status == TENON_OK ? tn_engine_take(g->handle, &engine) : status;
}

TenonStatus tenon_generator_generate(TenonGenerator *handle, const char *prompt, const TenonTextOptions *given,
                                     TenonPiece *piece, void *context, TenonTextResult *result) {
  TenonTextOptions options;
  TenonSampling how;
  size_t need;
  Generator *g = generator_of(handle);
  if (g == NULL) return TENON_INVALID_HANDLE;
  if (prompt == NULL) return tn_fail(TENON_INVALID_ARGUMENT, "tenon_generator_generate: the prompt is NULL");
  TenonStatus status = enter(g, given, piece, &options, &how);
  if (status != TENON_OK) return status;
  TextRequest request = {prompt, strlen(prompt), 1, options.stop, tn_most_tokens(&options), NULL, piece, context,
                         options.grammar};
  status = take_memory(g, request.length, &request, 0, &need);
  if (status == TENON_OK) status = generate(g, &request, &how, need, result);
  tn_engine_leave(g->engine);
  return status;
}

TenonStatus tn_no_conversation(const Engine *engine, long why) {
  const char *name = engine->bundle->about.name;
  if (why == TENON_TEXT_NO_TEMPLATE)
    return tn_fail(TENON_UNSUPPORTED, "%s has no chat template, or one that tenon compile --emit text warns of: give a "
                   "whole text to tenon_generator_generate", name);
  if (why == TENON_TEXT_NO_SYSTEM)
    return tn_fail(TENON_UNSUPPORTED, "%s: the chat template takes no message of the system", name);
  return tn_fail(TENON_INVALID_ARGUMENT, "%s: messages are one of the system, if any, and then of user and assistant in "
                 "turn, the last of the user", name);
}

int tn_are_messages(const TenonMessage *messages, size_t count) {
  int missing = messages == NULL;
  for (size_t i = 0; !missing && i < count; i++) missing = messages[i].role == NULL || messages[i].content == NULL;
  return !missing;
}

static TenonStatus answer(Generator *g, const TextMessage *messages, size_t count, TextRequest *request,
                          TenonSampling *how, TenonTextResult *result) {
  size_t need;
  const long length = tenon_text_conversation(&g->text, messages, count, NULL);
  if (length < 0) return tn_no_conversation(g->engine, length);
  const TenonStatus status = take_memory(g, (size_t)length, request, (size_t)length, &need);
  if (status != TENON_OK) return status;
  char *text = (char *)g->memory + need;
  request->prompt = text;
  request->length = (size_t)tenon_text_conversation(&g->text, messages, count, text);
  return generate(g, request, how, need, result);
}

TenonStatus tenon_generator_chat(TenonGenerator *handle, const TenonMessage *messages, size_t count,
                                 const TenonTextOptions *given, TenonPiece *piece, void *context,
                                 TenonTextResult *result) {
  TenonTextOptions options;
  TenonSampling how;
  Generator *g = generator_of(handle);
  if (g == NULL) return TENON_INVALID_HANDLE;
  if (!tn_are_messages(messages, count)) return tn_fail(TENON_INVALID_ARGUMENT, "tenon_generator_chat: a message is NULL");
  TenonStatus status = enter(g, given, piece, &options, &how);
  if (status != TENON_OK) return status;
  TextRequest request = {NULL, 0, 0, options.stop, tn_most_tokens(&options), NULL, piece, context, options.grammar};
  status = answer(g, messages, count, &request, &how, result);
  tn_engine_leave(g->engine);
  return status;
}

TenonStatus tenon_generator_tokens(TenonGenerator *handle, const char *text, int special, uint32_t *tokens, size_t room,
                                   size_t *count) {
  Engine *engine;
  size_t need;
  Generator *g = generator_of(handle);
  if (g == NULL) return TENON_INVALID_HANDLE;
  if (text == NULL || count == NULL || (tokens == NULL && room > 0))
    return tn_fail(TENON_INVALID_ARGUMENT, "tenon_generator_tokens: the text or a result is NULL");
  TenonStatus status = tn_engine_take(g->handle, &engine);
  if (status != TENON_OK) return status;
  const size_t length = strlen(text);
  const TextRequest request = {text, length, special, NULL, 0, NULL, NULL, NULL, ""};
  status = take_memory(g, length, &request, 0, &need);
  if (status == TENON_OK) {
    uint8_t *work = g->memory + need - tenon_text_work(&g->text, length);
    work -= (uintptr_t)work % sizeof(uint64_t);
    const long made = tenon_text_encode(&g->text, text, length, special, tokens, room, work);
    if (made >= 0) *count = (size_t)made;
    else status = tn_fail(TENON_WRONG_SIZE, "the text has more than %zu tokens", room);
  }
  tn_engine_leave(engine);
  return status;
}

const char *tenon_generator_piece(TenonGenerator *handle, uint32_t token, size_t *bytes) {
  const Generator *g = generator_of(handle);
  return g != NULL && bytes != NULL ? tenon_text_piece(&g->text, token, bytes) : NULL;
}
