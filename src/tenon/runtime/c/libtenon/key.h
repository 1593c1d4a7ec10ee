/* The keys of encrypted bundles and models: where they come from, and whether they are the right ones. */

#ifndef TENON_KEY_H
#define TENON_KEY_H

#include "platform.h"

/* The key for a bundle: of the options, else of the environment. */
TenonStatus tn_find_key(const TenonOpenOptions *options, const char *origin, uint8_t key[TENON_KEY_BYTES]);
/* Whether there is one, so that bundles have to be encrypted. */
int tn_has_key(const TenonOpenOptions *options);
TenonStatus tn_not_encrypted(const char *origin); /* the error if they are not */
/* Whether the sealed empty text "key-check" was sealed with this key; else fails with TENON_WRONG_KEY. */
TenonStatus tn_check_key(const uint8_t key[TENON_KEY_BYTES], const char *origin, const uint8_t *sealed, size_t size);
/* The key with which a model in `content` is encrypted, or its bundle is to be, verified where that is possible;
   `has_key` is 0 if neither is. */
TenonStatus tn_find_model_key(const TenonOpenOptions *options, const char *origin, const File *content,
                              uint8_t key[TENON_KEY_BYTES], int *has_key);

#endif
