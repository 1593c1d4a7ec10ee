/* Memory that is taken in pieces and released at once. */

#include "internal.h"

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
