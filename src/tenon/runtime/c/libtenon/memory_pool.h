/* Memory that is released at once. */

#ifndef TENON_MEMORY_POOL_H
#define TENON_MEMORY_POOL_H

#include <stddef.h>
#include <stdint.h>

typedef struct PoolBlock PoolBlock;
typedef struct {
  PoolBlock *blocks;
} Pool;

void *tn_pool_take(Pool *pool, size_t bytes); /* zeros; NULL if there is none */
char *tn_pool_text(Pool *pool, const char *text, size_t length);
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
char *tn_pool_format(Pool *pool, const char *format, ...); /* NULL if there is no memory */
char *tn_pool_shape(Pool *pool, const char *name, const int64_t *extents, int rank); /* "name=1,2,3" */
void tn_pool_release(Pool *pool);

/* A NULL-terminated list of any number of texts, which are not copied; `has_failed` is 1 after a NULL, or if there is no
   memory, and then nothing of it may be used. */
typedef struct {
  Pool *pool;
  const char **list; /* NULL before the first */
  size_t count, room;
  int has_failed;
} Texts;
void tn_texts_add(Texts *texts, const char *text);

#endif
