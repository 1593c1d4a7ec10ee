/* Several texts at the same time: a batch is an engine whose caches hold several sequences, and a text for each of them. */

#include "errors.h"
#include "handle.h"
#include "texts.h"

#include <stdlib.h>
#include <string.h>

static const HandleKind batch_kind = {"batch", "destroyed"};

/* Where the inputs and outputs of an entry point lie in the mutable region, for at most `length` tokens. */
typedef struct {
  size_t length, tokens, count, slots, positions, rows, row_count, logits;
} Entry;

enum { MOST_SEQUENCES = 256 }; /* which tenon compile allows */

typedef enum { NO_TEXT, WAITING, ACTIVE } TextState;

/* A text, from its prompt on; its tokens are at first in memory of its own, then those of its slot. */
typedef struct {
  TextState state;
  uint64_t order; /* in which texts were added */
  uint32_t *prompt;
  size_t length;
  int slot;
  long most, made, reused;
  TenonSampling how;
  TextProgress progress;
  TextGrammar grammar;
  uint8_t *memory; /* of the grammar, and of pieces that are held back */
  char **stop;
  TenonTextDone *done;
  void *context;
} BatchText;

/* The tokens of a sequence: those in the caches, of the text that is or was there, and behind them the ones to come.
   `reached` is the most that were held since the first of them. */
typedef struct {
  uint32_t *tokens;
  size_t held, reached;
  BatchText *text; /* or NULL */
} BatchSlot;

typedef struct {
  TenonEngine *handle;
  Engine *engine;
  TenonText text;
  Entry *entries;
  long sequences, room;
  uint32_t vocabulary;
  BatchText *texts;
  BatchSlot *slots;
  uint64_t added;
  uint8_t *work; /* of `work_bytes` */
  size_t work_bytes;
  int is_stepping;
} Batch;

static Batch *batch_of(const TenonBatch *handle) { return tn_handle_object(&batch_kind, handle); }

/* ---------------------------------------------------------------------------------------------------------- network */

static int is_cache(const Port *port) { return port->tensor.is_state && port->tensor.rank == 4; }

static int read_entry(const Description *about, const Binding *binding, Entry *entry, Batch *b) {
  const Port *tokens = tn_port_named(binding->inputs, binding->input_count, about->tokens);
  const Port *logits = tn_port_named(binding->outputs, binding->output_count, about->logits), *cache = NULL;
  const Port *slots = tn_port_named(binding->inputs, binding->input_count, "slots");
  const Port *positions = tn_port_named(binding->inputs, binding->input_count, "positions");
  const Port *rows = tn_port_named(binding->inputs, binding->input_count, "rows");
  for (int i = 0; cache == NULL && i < binding->input_count; i++)
    if (is_cache(&binding->inputs[i])) cache = &binding->inputs[i];
  if (!tn_has_type(tokens, TENON_I64, 2) || !tn_has_type(logits, TENON_F32, 3) || !tn_has_type(slots, TENON_I64, 1) ||
      !tn_has_type(positions, TENON_I64, 1) || !tn_has_type(rows, TENON_I64, 1) || cache == NULL)
    return 0;
  const Port *count = tn_extent_holder(binding, tokens, 1), *row_count = tn_extent_holder(binding, rows, 0);
  if (count == NULL || row_count == NULL) return 0;
  entry->length = (size_t)tokens->tensor.shape[1];
  entry->tokens = (size_t)tokens->offset;
  entry->count = (size_t)count->offset;
  entry->slots = (size_t)slots->offset;
  entry->positions = (size_t)positions->offset;
  entry->rows = (size_t)rows->offset;
  entry->row_count = (size_t)row_count->offset;
  entry->logits = (size_t)logits->offset;
  b->sequences = (long)cache->tensor.shape[0];
  if (b->sequences > MOST_SEQUENCES) return 0;
  b->room = b->text.head[TEXT_ROOM] != 0 ? (long)b->text.head[TEXT_ROOM] : (long)cache->tensor.shape[2];
  b->vocabulary = (uint32_t)logits->tensor.shape[2];
  return 1;
}

static TenonStatus take_slots(Batch *b) {
  b->texts = calloc((size_t)b->sequences, sizeof *b->texts);
  b->slots = calloc((size_t)b->sequences, sizeof *b->slots);
  int missing = b->texts == NULL || b->slots == NULL;
  for (long i = 0; !missing && i < b->sequences; i++)
    missing = (b->slots[i].tokens = malloc(((size_t)b->room + 1) * sizeof(uint32_t))) == NULL;
  return missing ? tn_fail(TENON_OUT_OF_MEMORY, "no memory for a batch") : TENON_OK;
}

static TenonStatus read_network(Batch *b) {
  const Description *about = &b->engine->bundle->about;
  const TenonStatus status = tn_text_tables(b->engine, &b->text);
  if (status != TENON_OK) return status;
  if ((b->entries = calloc((size_t)about->binding_count, sizeof *b->entries)) == NULL)
    return tn_fail(TENON_OUT_OF_MEMORY, "%s: no memory for a batch", about->name);
  for (int i = 0; i < about->binding_count; i++)
    if (!read_entry(about, &about->bindings[i], &b->entries[i], b))
      return tn_fail(TENON_UNSUPPORTED, "%s is no language model for several texts: compile it with --sequences", about->name);
  return take_slots(b);
}

/* ------------------------------------------------------------------------------------------------------------- life */

static void forget(BatchText *text) {
  for (char **stop = text->stop; stop != NULL && *stop != NULL; stop++) free(*stop);
  free(text->stop);
  free(text->prompt);
  free(text->memory);
  memset(text, 0, sizeof *text);
}

static void end(Batch *b) {
  for (long i = 0; b->texts != NULL && i < b->sequences; i++) forget(&b->texts[i]);
  for (long i = 0; b->slots != NULL && i < b->sequences; i++) free(b->slots[i].tokens);
  if (b->handle != NULL) tenon_engine_destroy(b->handle);
  free(b->entries);
  free(b->texts);
  free(b->slots);
  free(b->work);
  free(b);
}

TenonStatus tenon_batch_create(TenonBundle *bundle, const TenonEngineOptions *options, TenonBatch **result) {
  if (result == NULL) return tn_fail(TENON_INVALID_ARGUMENT, "tenon_batch_create: the result is NULL");
  Batch *b = calloc(1, sizeof *b);
  if (b == NULL) return tn_fail(TENON_OUT_OF_MEMORY, "no memory for a batch");
  TenonStatus status = tenon_engine_create(bundle, options, &b->handle);
  if (status == TENON_OK) b->engine = tn_engine_of(b->handle);
  if (status == TENON_OK) status = read_network(b);
  TenonBatch *handle = status == TENON_OK ? tn_handle_new(&batch_kind, b) : NULL;
  if (status == TENON_OK && handle == NULL) status = tn_fail(TENON_OUT_OF_MEMORY, "no room for one more batch");
  if (status == TENON_OK) *result = handle;
  else end(b);
  return status;
}

TenonStatus tenon_batch_destroy(TenonBatch *handle) {
  Batch *b = batch_of(handle);
  if (b == NULL) return TENON_INVALID_HANDLE;
  if (b->is_stepping) return tn_fail(TENON_BUSY, "a function that a batch calls cannot destroy it");
  tn_handle_end(handle);
  end(b);
  return TENON_OK;
}

int64_t tenon_batch_sequences(const TenonBatch *handle) {
  const Batch *b = batch_of(handle);
  return b != NULL ? b->sequences : -1;
}

int64_t tenon_batch_context(const TenonBatch *handle) {
  const Batch *b = batch_of(handle);
  return b != NULL ? b->room : -1;
}

/* ------------------------------------------------------------------------------------------------------------ texts */

static TenonStatus no_memory(const Batch *b) {
  return tn_fail(TENON_OUT_OF_MEMORY, "%s: no memory for a text", b->engine->bundle->about.name);
}

static int take_work(Batch *b, size_t bytes) {
  if (bytes <= b->work_bytes) return 1;
  uint8_t *work = realloc(b->work, bytes);
  if (work == NULL) return 0;
  b->work = work;
  b->work_bytes = bytes;
  return 1;
}

/* Copies of the strings that end a text; 0 if there is no memory for them. */
static int copy_stop(BatchText *text, const char *const *stop) {
  size_t count = 0;
  while (stop != NULL && stop[count] != NULL) count++;
  if ((text->stop = calloc(count + 1, sizeof *text->stop)) == NULL) return 0;
  for (size_t i = 0; i < count; i++) {
    const size_t bytes = strlen(stop[i]) + 1;
    if ((text->stop[i] = malloc(bytes)) == NULL) return 0;
    memcpy(text->stop[i], stop[i], bytes);
  }
  return 1;
}

static TenonStatus read_prompt(Batch *b, BatchText *text, const char *prompt, size_t length, int special) {
  text->prompt = malloc(((size_t)b->room + 1) * sizeof(uint32_t));
  const size_t sampling = (size_t)b->vocabulary * (sizeof(uint64_t) + sizeof(uint32_t));
  const size_t encoding = tenon_text_work(&b->text, length);
  if (text->prompt == NULL || !take_work(b, encoding > sampling ? encoding : sampling)) return no_memory(b);
  const long count = tenon_text_encode(&b->text, prompt, length, special, text->prompt, (size_t)b->room, b->work);
  if (count <= 0 || count >= b->room) return tn_wrong_prompt(b->engine, b->room);
  text->length = (size_t)count;
  return TENON_OK;
}

/* Memory for what is held back of the text, and for its grammar, which is read. */
static TenonStatus take_memory(Batch *b, BatchText *text, const char *given) {
  const char *rules = tenon_text_chosen_grammar(&b->text, given);
  const char *const *stop = (const char *const *)(void *)text->stop;
  const size_t held = (tenon_text_held_bytes(stop, b->text.head[TEXT_LONGEST]) + 7) / 8 * 8;
  const size_t length = rules != NULL ? strlen(rules) : 0, more = length + 1;
  const size_t own = rules != NULL ? (tenon_text_grammar_memory(&b->text, rules, length) + 7) / 8 * 8 : 0;
  if ((text->memory = malloc(held + own + more)) == NULL) return no_memory(b);
  text->progress.output.stop = stop;
  text->progress.output.held = (char *)text->memory;
  if (rules == NULL) return TENON_OK;
  char *kept = (char *)text->memory + held + own; /* the program's may be gone when it is read again */
  memcpy(kept, rules, more);
  text->progress.grammar = &text->grammar;
  if (tenon_text_grammar_open(&text->grammar, &b->text, kept, length, text->memory + held) == 0) return TENON_OK;
  return tn_wrong_grammar(b->engine, text->grammar.mistake, text->grammar.at);
}

static TenonStatus add(Batch *b, BatchText *text, const char *prompt, size_t length, int special,
                       const TenonTextOptions *options, TenonPiece *piece, TenonTextDone *done, void *context) {
  if (!copy_stop(text, options->stop)) return no_memory(b);
  TenonStatus status = read_prompt(b, text, prompt, length, special);
  if (status == TENON_OK) status = take_memory(b, text, options->grammar);
  if (status != TENON_OK) return status;
  text->progress.text = &b->text;
  text->progress.output.pieces = piece;
  text->progress.output.user = context;
  text->most = tn_most_tokens(options);
  text->done = done;
  text->context = context;
  text->order = ++b->added;
  text->state = WAITING;
  return TENON_OK;
}

/* A place for one more text, with the options of a call; the engine is to be left. */
static TenonStatus enter(Batch *b, const TenonTextOptions *given, TenonPiece *piece, TenonTextOptions *options,
                         BatchText **text) {
  Engine *engine;
  *text = NULL;
  if (piece == NULL) return tn_fail(TENON_INVALID_ARGUMENT, "the function for pieces of the text is NULL");
  for (long i = 0; *text == NULL && i < b->sequences; i++)
    if (b->texts[i].state == NO_TEXT) *text = &b->texts[i];
  if (*text == NULL || b->is_stepping)
    return tn_fail(TENON_BUSY, "the batch has %ld texts, and takes another one between two steps when one has ended",
                   b->sequences);
  const TenonStatus status = tn_text_options(&b->text, given, options, &(*text)->how);
  return status == TENON_OK ? tn_engine_take(b->handle, &engine) : status;
}

TenonStatus tenon_batch_generate(TenonBatch *handle, const char *prompt, const TenonTextOptions *given, TenonPiece *piece,
                                 TenonTextDone *done, void *context) {
  TenonTextOptions options;
  BatchText *text;
  Batch *b = batch_of(handle);
  if (b == NULL) return TENON_INVALID_HANDLE;
  if (prompt == NULL) return tn_fail(TENON_INVALID_ARGUMENT, "tenon_batch_generate: the prompt is NULL");
  TenonStatus status = enter(b, given, piece, &options, &text);
  if (status != TENON_OK) return status;
  status = add(b, text, prompt, strlen(prompt), 1, &options, piece, done, context);
  if (status != TENON_OK) forget(text);
  tn_engine_leave(b->engine);
  return status;
}

TenonStatus tenon_batch_chat(TenonBatch *handle, const TenonMessage *messages, size_t count,
                             const TenonTextOptions *given, TenonPiece *piece, TenonTextDone *done, void *context) {
  TenonTextOptions options;
  BatchText *text;
  Batch *b = batch_of(handle);
  if (b == NULL) return TENON_INVALID_HANDLE;
  if (!tn_are_messages(messages, count)) return tn_fail(TENON_INVALID_ARGUMENT, "tenon_batch_chat: a message is NULL");
  TenonStatus status = enter(b, given, piece, &options, &text);
  if (status != TENON_OK) return status;
  const long length = tenon_text_conversation(&b->text, messages, count, NULL);
  char *prompt = length < 0 ? NULL : malloc((size_t)length + 1);
  if (length < 0) status = tn_no_conversation(b->engine, length);
  else if (prompt == NULL) status = no_memory(b);
  if (status == TENON_OK) {
    tenon_text_conversation(&b->text, messages, count, prompt);
    status = add(b, text, prompt, (size_t)length, 0, &options, piece, done, context);
  }
  free(prompt);
  if (status != TENON_OK) forget(text);
  tn_engine_leave(b->engine);
  return status;
}

/* ------------------------------------------------------------------------------------------------------------ slots */

static size_t kept_of(const Batch *b, const BatchSlot *slot, const BatchText *text) {
  return tenon_text_common(&b->text, slot->tokens, slot->held, slot->reached, text->prompt, text->length);
}

/* Copy the first tokens of a sequence's caches to another one's; rings as a whole. */
static void copy_caches(Batch *b, int from, int to, size_t count) {
  const Binding *binding = &b->engine->bundle->about.bindings[0];
  for (int i = 0; i < binding->input_count; i++) {
    const Port *port = &binding->inputs[i];
    if (!is_cache(port)) continue;
    const size_t heads = (size_t)port->tensor.shape[1], head = (size_t)port->tensor.bytes / heads / (size_t)b->sequences;
    const size_t room = (size_t)port->tensor.shape[2], rows = room == (size_t)b->room ? count : room;
    uint8_t *cache = b->engine->tensors + port->offset;
    for (size_t h = 0; h < heads; h++)
      memcpy(cache + ((size_t)to * heads + h) * head, cache + ((size_t)from * heads + h) * head,
             rows * (head / room));
  }
}

/* Give a text one of the free slots: the one that has most of its beginning, to which more is copied from another one. */
static void place(Batch *b, BatchText *text) {
  int best = -1, source = 0;
  for (int i = 0; i < (int)b->sequences; i++) {
    const size_t kept = kept_of(b, &b->slots[i], text);
    if (kept > kept_of(b, &b->slots[source], text)) source = i;
    if (b->slots[i].text != NULL) continue;
    const size_t most = best < 0 ? 0 : kept_of(b, &b->slots[best], text);
    if (best < 0 || kept > most || (kept == most && b->slots[i].held < b->slots[best].held)) best = i;
  }
  BatchSlot *slot = &b->slots[best];
  size_t count = kept_of(b, slot, text);
  const int is_on_device = b->engine->bundle->queues != NULL; /* where the caches are */
  if (kept_of(b, &b->slots[source], text) > count && !is_on_device) {
    count = kept_of(b, &b->slots[source], text);
    copy_caches(b, source, best, count);
    slot->reached = b->slots[source].reached;
  }
  if (count == 0) slot->reached = 0;
  memcpy(slot->tokens, text->prompt, text->length * sizeof *slot->tokens);
  slot->held = count;
  slot->text = text;
  text->slot = best;
  text->reused = (long)count;
  text->state = ACTIVE;
  text->progress.tokens = slot->tokens;
  text->progress.count = text->length;
  text->progress.past = count;
  text->progress.sampling = &text->how;
}

static size_t pending(const BatchSlot *slot) { return slot->text == NULL ? 0 : slot->text->progress.count - slot->held; }

/* Let waiting texts begin as long as no other prompt is being read, in their order. */
static void admit(Batch *b) {
  for (;;) {
    BatchText *next = NULL;
    for (long i = 0; i < b->sequences; i++) {
      if (pending(&b->slots[i]) > 1) return;
      BatchText *text = &b->texts[i];
      if (text->state == WAITING && (next == NULL || text->order < next->order)) next = text;
    }
    if (next == NULL) return;
    place(b, next);
  }
}

/* ------------------------------------------------------------------------------------------------------------- runs */

static int64_t *numbers(const Batch *b, size_t offset) { return (int64_t *)(void *)(b->engine->tensors + offset); }

/* Write tokens of a slot behind `at` others, the last one of which gives logits in the row `row`. */
static void feed(const Batch *b, const Entry *entry, int slot, size_t count, size_t at, size_t row) {
  const BatchSlot *own = &b->slots[slot];
  for (size_t i = 0; i < count; i++) {
    numbers(b, entry->tokens)[at + i] = own->tokens[own->held + i];
    numbers(b, entry->slots)[at + i] = slot;
    numbers(b, entry->positions)[at + i] = (int64_t)(own->held + i);
  }
  numbers(b, entry->rows)[row] = (int64_t)(at + count - 1);
}

/* The entry point of fewest tokens that takes so many; else the one of most. */
static int fitting(const Batch *b, size_t count) {
  int best = 0;
  for (int i = 1; i < b->engine->bundle->about.binding_count; i++) {
    const size_t length = b->entries[i].length, most = b->entries[best].length;
    if (most < count ? length > most : length >= count && length < most) best = i;
  }
  return best;
}

static void finish(Batch *b, BatchText *text, TextEnd why) {
  const TenonTextResult result = {.tokens = text->made, .prompt_tokens = (int64_t)text->length,
                                  .reused_tokens = text->reused, .finish = (TenonFinish)why};
  TenonTextDone *done = text->done;
  void *context = text->context;
  tenon_text_finish(&text->progress.output);
  b->slots[text->slot].text = NULL;
  forget(text);
  if (done != NULL) done(&result, context);
}

/* Go on with the text of a slot by the logits behind its last token. */
static TenonStatus receive(Batch *b, BatchText *text, float *logits) {
  TextEnd why = TEXT_LENGTH;
  TextProgress *progress = &text->progress;
  progress->work = b->work;
  progress->past = progress->count;
  if (text->made != text->most) {
    const int added = tenon_text_next(progress, logits, b->vocabulary, b->room, text->made + 1 == text->most, &why);
    if (added < 0) {
      finish(b, text, TEXT_CANCELLED);
      return tn_wrong_grammar(b->engine, NULL, 0);
    }
    text->made += added;
  }
  if (why != TEXT_LENGTH || text->made == text->most) finish(b, text, why);
  return TENON_OK;
}

/* Run the network on a token of each text that has begun, and on as much of a prompt as fits beside them. */
static TenonStatus step(Batch *b) {
  size_t total = 0, rows = 0, taken[MOST_SEQUENCES];
  admit(b);
  for (long i = 0; i < b->sequences; i++) total += pending(&b->slots[i]);
  if (total == 0) return TENON_OK;
  const int number = fitting(b, total);
  const Entry *entry = &b->entries[number];
  int order[MOST_SEQUENCES];
  total = 0;
  for (int prompts = 0; prompts < 2; prompts++)
    for (int i = 0; i < (int)b->sequences; i++) {
      const size_t own = pending(&b->slots[i]), left = entry->length - total, count = own < left ? own : left;
      if (count == 0 || (own > 1) != prompts) continue;
      feed(b, entry, i, count, total, rows);
      order[rows] = i;
      taken[rows++] = count;
      total += count;
    }
  *numbers(b, entry->count) = (int64_t)total;
  *numbers(b, entry->row_count) = (int64_t)rows;
  for (size_t row = 0; row < rows; row++) {
    BatchSlot *slot = &b->slots[order[row]];
    if (slot->held + taken[row] > slot->reached) slot->reached = slot->held + taken[row];
  }
  b->engine->binding = number;
  TenonStatus status = tn_run(b->engine, NULL);
  for (size_t row = 0, ran = status == TENON_OK; ran && row < rows; row++) {
    BatchSlot *slot = &b->slots[order[row]];
    slot->held += taken[row];
    if (pending(slot) > 0) continue;
    float *logits = (float *)(void *)(b->engine->tensors + entry->logits) + row * b->vocabulary;
    const TenonStatus own = receive(b, slot->text, logits);
    if (status == TENON_OK) status = own;
  }
  return status;
}

TenonStatus tenon_batch_step(TenonBatch *handle, size_t *left) {
  Engine *engine;
  Batch *b = batch_of(handle);
  if (b == NULL) return TENON_INVALID_HANDLE;
  if (left == NULL) return tn_fail(TENON_INVALID_ARGUMENT, "tenon_batch_step: the result is NULL");
  TenonStatus status = tn_engine_take(b->handle, &engine);
  if (status != TENON_OK) return status;
  b->is_stepping = 1;
  status = step(b);
  b->is_stepping = 0;
  *left = 0;
  for (long i = 0; i < b->sequences; i++) *left += b->texts[i].state != NO_TEXT;
  tn_engine_leave(engine);
  return status;
}
