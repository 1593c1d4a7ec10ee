/* Memory that is taken in pieces and released at once. */

#include "memory_pool.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 4096, PIECE = 16 };

struct PoolBlock {
  PoolBlock *next;
  size_t used, size;
};

static size_t rounded(size_t bytes) { return (bytes + PIECE - 1) / PIECE * PIECE; }

void *tn_pool_take(Pool *pool, size_t bytes) {
  const size_t head = rounded(sizeof(PoolBlock));
  if (bytes > SIZE_MAX / 2) return NULL;
  bytes = rounded(bytes ? bytes : 1);
  PoolBlock *block = pool->blocks;
  if (block == NULL || block->size - block->used < bytes) {
    const size_t size = head + (bytes > BLOCK ? bytes : BLOCK);
    if ((block = calloc(1, size)) == NULL) return NULL;
    *block = (PoolBlock){pool->blocks, head, size};
    pool->blocks = block;
  }
  void *piece = (uint8_t *)block + block->used;
  block->used += bytes;
  return piece;
}

char *tn_pool_text(Pool *pool, const char *text, size_t length) {
  char *copy = tn_pool_take(pool, length + 1);
  if (copy != NULL) memcpy(copy, text, length);
  return copy;
}

void tn_pool_release(Pool *pool) {
  while (pool->blocks != NULL) {
    PoolBlock *next = pool->blocks->next;
    free(pool->blocks);
    pool->blocks = next;
  }
}

void tn_texts_add(Texts *texts, const char *text) {
  if (text == NULL || texts->has_failed) {
    texts->has_failed = 1;
    return;
  }
  if (texts->count + 1 >= texts->room) {
    const size_t room = 2 * texts->room + 32;
    const char **list = tn_pool_take(texts->pool, room * sizeof *list);
    if (list == NULL) {
      texts->has_failed = 1;
      return;
    }
    if (texts->count > 0) memcpy(list, texts->list, texts->count * sizeof *list);
    texts->list = list;
    texts->room = room;
  }
  texts->list[texts->count++] = text;
}

char *tn_pool_format(Pool *pool, const char *format, ...) {
  va_list values, again;
  va_start(values, format);
  va_copy(again, values);
  const int length = vsnprintf(NULL, 0, format, values);
  char *text = length >= 0 ? tn_pool_take(pool, (size_t)length + 1) : NULL;
  if (text != NULL) vsnprintf(text, (size_t)length + 1, format, again);
  va_end(again);
  va_end(values);
  return text;
}

char *tn_pool_shape(Pool *pool, const char *name, const int64_t *extents, int rank) {
  char *text = tn_pool_format(pool, "%s=", name);
  for (int i = 0; i < rank && text != NULL; i++)
    text = tn_pool_format(pool, "%s%s%lld", text, i ? "," : "", (long long)extents[i]);
  return text;
}
