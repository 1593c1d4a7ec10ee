/* Where the files of a bundle are: in a folder, or in a .tenon file. */

#ifndef TENON_CONTAINER_H
#define TENON_CONTAINER_H

#include "memory_pool.h"
#include "platform.h"

typedef struct {
  const char *path;   /* for messages; of the folder, if `container` is NULL */
  const char *prefix; /* of names in the container: "x86-64/" */
  const uint8_t *container;
  size_t size;
  int is_encrypted;
  uint8_t key[TENON_KEY_BYTES]; /* to be wiped after use */
} BundleFiles;

int tn_is_container(const uint8_t *data, size_t size);
/* Verifies the directory, the signature and the key, and chooses a target.  A file that is not encrypted is refused if
   `has_key`. */
TenonStatus tn_container_open(Pool *pool, const uint8_t *data, size_t size, const char *origin,
                              const TenonOpenOptions *options, int has_key, BundleFiles *files);
/* Whether a .tenon file was signed by the owner of the key, and not changed since. */
TenonStatus tn_container_verify(const uint8_t *data, size_t size, const char *origin, const uint8_t *public_key);
TenonStatus tn_bundle_file(const BundleFiles *files, const char *name, int map, File *file);

#endif
