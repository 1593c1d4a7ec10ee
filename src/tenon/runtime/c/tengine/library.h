/* The library as a whole, and contexts, which name the device of new graphs. */

#ifndef TENON_TENGINE_LIBRARY_H
#define TENON_TENGINE_LIBRARY_H

#include "tengine/c_api.h"

enum { NAME = 64 };

int tg_is_initialised(void); /* whether init_tengine was called, and release_tengine not after it */

/* The target that runs on a GPU of Tengine's name ("OCL", "CUDA", "VK"); NULL for other devices. */
const char *tg_gpu_target(const char *device);

int tg_set_device(char device[NAME], const char *name); /* 0, or -1 after a message if there is no such device */
int tg_is_context(context_t context);                   /* whether it is valid; else a message */
const char *tg_context_device(context_t context);       /* of a new graph; NULL is a private context */
const char *tg_context_gpu(context_t context);          /* options of a GPU, or NULL */

#endif
