#include "text_generate.h"
#include <string.h>

/* Bytes of characters that are not complete yet. */
typedef struct {
  char bytes[4];
  size_t count;
} Held;

static int64_t *number_at(const TextDecoder *d, size_t offset) { return (int64_t *)(void *)(d->memory + offset); }

size_t tenon_text_memory(const TenonText *text, const TextDecoder *d, size_t length) {
  size_t sampling = (size_t)d->vocabulary * (sizeof(uint64_t) + sizeof(uint32_t)), encoding = tenon_text_work(text, length);
  return ((size_t)d->context + 2) / 2 * 2 * sizeof(uint32_t) + (encoding > sampling ? encoding : sampling) + 8;
}

/* The entry point for the most tokens of those that are left. */
static int fitting(const TextDecoder *d, long left, long past) {
  int best = -1;
  for (int i = 0; i < d->count; i++) {
    long takes = d->entries[i].length < left ? d->entries[i].length : left;
    if (past > d->entries[i].past) continue;
    if (best < 0 || takes > (d->entries[best].length < left ? d->entries[best].length : left)) best = i;
  }
  return best;
}

static void feed(const TextDecoder *d, const TextEntry *entry, const uint32_t *tokens, long count, long past) {
  for (long i = 0; i < count; i++) number_at(d, entry->tokens)[i] = tokens[i];
  if (entry->count != TEXT_NOWHERE) *number_at(d, entry->count) = count;
  if (entry->positions != TEXT_NOWHERE)
    for (long i = 0; i < count; i++) number_at(d, entry->positions)[i] = past + i;
  if (entry->mask != TEXT_NOWHERE)
    for (long i = 0; i < past + count; i++) number_at(d, entry->mask)[i] = 1;
  if (entry->mask_count != TEXT_NOWHERE) *number_at(d, entry->mask_count) = past + count;
}

/* Run the network on tokens behind `past` others; the logits of the last one, or NULL where a run fails. */
static float *logits_of(const TextDecoder *d, const uint32_t *tokens, long count, long past) {
  float *logits = NULL;
  *number_at(d, d->past) = past;
  for (long done = 0; done < count;) {
    int number = fitting(d, count - done, past + done);
    if (number < 0) return NULL;
    const TextEntry *entry = &d->entries[number];
    long taken = entry->length < count - done ? entry->length : count - done;
    feed(d, entry, tokens + done, taken, past + done);
    if (d->run(d->runner, number) != 0) return NULL;
    logits = (float *)(void *)(d->memory + entry->logits) + (entry->every_row ? (size_t)(taken - 1) * d->vocabulary : 0);
    done += taken;
  }
  return logits;
}

/* The bytes of the character that begins with a byte; 1 for a byte that begins none. */
static size_t character(unsigned char first) {
  return first < 0xc2 || first > 0xf4 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
}

/* Give the bytes that are held. */
static int release(Held *held, TextPieces *pieces, void *user) {
  size_t count = held->count;
  held->count = 0;
  return count > 0 && pieces(held->bytes, count, user);
}

/* Give the whole characters of a piece, and hold the rest back.  Bytes that are no UTF-8 are given as they are. */
static int give(Held *held, const char *piece, size_t length, TextPieces *pieces, void *user) {
  int ended = 0;
  while (held->count > 0 && length > 0 && !ended) {
    if (((unsigned char)*piece & 0xc0) == 0x80) {
      held->bytes[held->count++] = *piece++;
      length--;
      if (held->count < character((unsigned char)held->bytes[0])) continue;
    }
    ended = release(held, pieces, user);
  }
  size_t whole = length;
  for (size_t back = 1; back <= 3 && back <= length; back++) {
    unsigned char byte = (unsigned char)piece[length - back];
    if (character(byte) > back) whole = length - back;
    if (byte < 0x80 || byte >= 0xc0) break;
  }
  if (whole > 0 && !ended) ended = pieces(piece, whole, user);
  for (; whole < length; whole++) held->bytes[held->count++] = piece[whole];
  return ended;
}

long tenon_text_generate(const TenonText *text, const TextDecoder *d, TenonSampling *sampling, const char *prompt,
                         size_t length, long most, TextPieces *pieces, void *user, void *memory, size_t size) {
  uint32_t *tokens = (uint32_t *)memory;
  void *work = tokens + ((size_t)d->context + 2) / 2 * 2;
  Held held = {{0}, 0};
  if (size < tenon_text_memory(text, d, length)) return TENON_TEXT_NO_MEMORY;
  long count = tenon_text_encode(text, prompt, length, 1, tokens, (size_t)d->context, work), made = 0, past = 0;
  if (count <= 0 || count >= d->context) return TENON_TEXT_LONG;
  for (int ended = 0; made != most && !ended && past < d->context; made++) {
    float *logits = logits_of(d, tokens + past, count - past, past);
    if (logits == NULL) return TENON_TEXT_FAILED;
    past = count;
    uint32_t token = tenon_text_choose(sampling, logits, d->vocabulary, tokens, (size_t)count, work);
    if (tenon_text_ends(text, token)) break;
    size_t bytes;
    const char *piece = tenon_text_piece(text, token, &bytes);
    ended = give(&held, piece, bytes, pieces, user);
    tokens[count++] = token;
  }
  release(&held, pieces, user);
  return made;
}
