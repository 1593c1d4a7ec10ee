#include "text_embed.h"
#include <math.h>

size_t tenon_text_embed_memory(const TenonText *text, const TextEncoder *e, size_t length) {
  return (e->length + 2) / 2 * 2 * sizeof(uint32_t) + tenon_text_work(text, length);
}

static int64_t *numbers_at(uint8_t *mutable_region, size_t offset) {
  return (int64_t *)(void *)(mutable_region + offset);
}

/* Write an input with an extent of so many tokens; the numbers are `start`, `start` + `step`, ... */
static void fill(uint8_t *mutable_region, size_t offset, size_t extent, long count, int64_t start, int64_t step) {
  if (extent != TEXT_NOWHERE) *numbers_at(mutable_region, extent) = count;
  if (offset == TEXT_NOWHERE) return;
  for (long i = 0; i < count; i++) numbers_at(mutable_region, offset)[i] = start + step * i;
}

long tenon_text_embed_begin(const TenonText *text, const TextEncoder *e, uint8_t *mutable_region, const char *string,
                            size_t length, void *work, size_t size) {
  uint32_t *tokens = (uint32_t *)work;
  if (size < tenon_text_embed_memory(text, e, length)) return TENON_TEXT_NO_MEMORY;
  const long count = tenon_text_encode(text, string, length, 1, tokens, e->length, tokens + (e->length + 2) / 2 * 2);
  if (count <= 0 || (e->count == TEXT_NOWHERE && (size_t)count != e->length)) return TENON_TEXT_LONG;
  fill(mutable_region, e->mask, e->mask_count, count, 1, 0);
  fill(mutable_region, e->types, e->types_count, count, 0, 0);
  fill(mutable_region, e->positions, e->positions_count, count, 0, 1);
  fill(mutable_region, e->tokens, e->count, count, 0, 0);
  for (long i = 0; i < count; i++) numbers_at(mutable_region, e->tokens)[i] = tokens[i];
  return count;
}

void tenon_text_embed_end(const TextEncoder *e, const uint8_t *mutable_region, long tokens, float *vector) {
  const float *rows = (const float *)(const void *)(mutable_region + e->output);
  const size_t count = e->rows == 1 ? 1 : (size_t)tokens;
  double squares = 0;
  for (size_t i = 0; i < e->width; i++) {
    float sum = 0;
    for (size_t row = 0; row < count; row++) sum += rows[row * e->width + i];
    vector[i] = sum / (float)count;
    squares += (double)vector[i] * (double)vector[i];
  }
  const float norm = (float)sqrt(squares);
  for (size_t i = 0; i < e->width && norm > 0; i++) vector[i] /= norm;
}
