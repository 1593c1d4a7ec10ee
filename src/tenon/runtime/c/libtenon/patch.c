/* Updates of .tenon files: bundle/delta.py makes and describes them. */

#include "container.h"
#include "digest.h"
#include "errors.h"
#include "lzma.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAGIC = 8, HEAD = MAGIC + 4 + 3 * 8, DIGEST = 32, STEPS = HEAD + 2 * DIGEST, STEP = 17, FORM = 1, SPARE = 65536 };
enum { COPY = 0, CHANGE = 1, NEW = 2, STRIDE = 4 };

static const char magic[] = "TENONDLT";

typedef struct {
  const uint8_t *data;
  size_t size;
} Bytes;

static uint64_t number(const uint8_t *at, int bytes) {
  uint64_t value = 0;
  while (bytes-- > 0) value = value << 8 | at[bytes];
  return value;
}

static int has_digest(const uint8_t *data, size_t size, const uint8_t *wanted) {
  Blake2b state;
  uint8_t digest[DIGEST];
  tn_blake2b_start(&state, DIGEST);
  tn_blake2b_add(&state, data, size);
  tn_blake2b_end(&state, digest);
  return memcmp(digest, wanted, DIGEST) == 0;
}

/* Exclusive-or with data of which every fourth byte comes first, then those after them. */
static void change(uint8_t *to, const uint8_t *from, const uint8_t *data, size_t length) {
  for (size_t first = 0; first < STRIDE; first++)
    for (size_t i = first; i < length; i += STRIDE) to[i] = from[i] ^ *data++;
}

/* Whether the steps lead from the old content to as many bytes as the new one has. */
static int follow(Bytes old, Bytes steps, uint8_t *made, size_t size) {
  size_t done = 0;
  for (size_t at = 0; at < steps.size;) {
    if (steps.size - at < STEP) return 0;
    const uint8_t *step = steps.data + at;
    const uint64_t offset = number(step + 1, 8), length = number(step + 9, 8);
    const uint64_t follows = step[0] == COPY ? 0 : length;
    at += STEP;
    if (step[0] > NEW || length > size - done || follows > steps.size - at) return 0;
    if (step[0] != NEW && (offset > old.size || length > old.size - offset)) return 0;
    if (step[0] == COPY) memcpy(made + done, old.data + offset, (size_t)length);
    else if (step[0] == NEW) memcpy(made + done, steps.data + at, (size_t)length);
    else change(made + done, old.data + offset, steps.data + at, (size_t)length);
    done += (size_t)length;
    at += (size_t)follows;
  }
  return done == size;
}

static TenonStatus damaged(const char *origin) {
  return tn_fail(TENON_DAMAGED, "%s is damaged: get it again", origin);
}

static TenonStatus check_head(Bytes old, Bytes delta, const char *old_path, const char *origin) {
  if (delta.size < STEPS || memcmp(delta.data, magic, MAGIC) != 0)
    return tn_fail(TENON_DAMAGED, "%s is no delta of Tenon: make one with 'tenon delta OLD NEW -o DELTA'", origin);
  if (number(delta.data + MAGIC, 4) != FORM)
    return tn_fail(TENON_DAMAGED, "%s has form %u of deltas and this libtenon reads %d: make it with the Tenon that "
                   "libtenon is of", origin, (unsigned)number(delta.data + MAGIC, 4), FORM);
  if (number(delta.data + 12, 8) != old.size || !has_digest(old.data, old.size, delta.data + HEAD))
    return tn_fail(TENON_INVALID_ARGUMENT, "%s is for another file than %s: apply it to the version that it was made from",
                   origin, old_path);
  const uint64_t size = number(delta.data + 20, 8), steps = number(delta.data + 28, 8);
  if (size > SIZE_MAX / 4 || steps > 2 * size + SPARE) return damaged(origin);
  return TENON_OK;
}

/* The new content, to be freed. */
static TenonStatus apply(Bytes old, Bytes delta, const char *old_path, const char *origin, uint8_t **made, size_t *size) {
  TenonStatus status = check_head(old, delta, old_path, origin);
  if (status != TENON_OK) return status;
  *size = (size_t)number(delta.data + 20, 8);
  const size_t step_bytes = (size_t)number(delta.data + 28, 8);
  uint8_t *steps = malloc(step_bytes + 1);
  *made = malloc(*size + 1);
  const int unpacked = steps == NULL || *made == NULL
                           ? -1
                           : tn_lzma_decompress(delta.data + STEPS, delta.size - STEPS, steps, step_bytes);
  if (unpacked < 0) status = tn_fail(TENON_OUT_OF_MEMORY, "%s: no memory to apply it", origin);
  else if (!unpacked || !follow(old, (Bytes){steps, step_bytes}, *made, *size)) status = damaged(origin);
  else if (!has_digest(*made, *size, delta.data + HEAD + DIGEST)) status = damaged(origin);
  free(steps);
  if (status == TENON_OK) return status;
  free(*made);
  *made = NULL;
  return status;
}

/* Atomically: to a temporary file in the same folder, then renamed. */
static TenonStatus replace(const char *path, const uint8_t *data, size_t size) {
  char part[4096];
  if ((size_t)snprintf(part, sizeof part, "%s.part", path) >= sizeof part)
    return tn_fail(TENON_SYSTEM, "%s: the path is too long", path);
  if (tn_write_file(part, data, size, 0) == 0 && tn_rename_file(part, path) == 0) return TENON_OK;
  tn_remove_file(part);
  return tn_fail(TENON_SYSTEM, "%s cannot be written: choose another place, or make room", path);
}

TenonStatus tenon_patch(const char *old_path, const char *delta_path, const char *new_path, const uint8_t *public_key) {
  File old = {0}, delta = {0};
  uint8_t *made = NULL;
  size_t size = 0;
  if (old_path == NULL || delta_path == NULL || new_path == NULL)
    return tn_fail(TENON_INVALID_ARGUMENT, "tenon_patch: a path is NULL");
  TenonStatus status = tn_file_map(old_path, &old);
  if (status == TENON_OK) status = tn_file_map(delta_path, &delta);
  if (status == TENON_OK)
    status = apply((Bytes){old.data, old.size}, (Bytes){delta.data, delta.size}, old_path, delta_path, &made, &size);
  if (status == TENON_OK && public_key != NULL) status = tn_container_verify(made, size, delta_path, public_key);
  tn_file_release(&old);
  tn_file_release(&delta);
  if (status == TENON_OK) status = replace(new_path, made, size);
  free(made);
  return status;
}
