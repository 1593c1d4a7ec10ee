/* Files that belong to models. */

#ifndef TENON_COMPANIONS_H
#define TENON_COMPANIONS_H

#include "digest.h"
#include "platform.h"

/* Adds the name and content of a file, or of the files in a folder, if it is there. */
void tn_add_file(Blake2b *state, const char *path);
/* Adds the files that belong to the model with this path and content, as far as they are there. */
void tn_add_companions(Blake2b *state, const char *path, const File *content);

#endif
