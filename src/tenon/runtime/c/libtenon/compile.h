/* Models, which are compiled or found in a cache. */

#ifndef TENON_COMPILE_H
#define TENON_COMPILE_H

#include "memory_pool.h"
#include "platform.h"

/* Compiles a model, or finds it in the cache; `bundle` is the path of a .tenon file. */
TenonStatus tn_compile(Pool *pool, const char *path, const File *content, const TenonOpenOptions *options,
                       const char **bundle);

#endif
