/* Opens damaged copies of a .tenon file from memory: bytes changed, cut, and with right digests after a change, so that
   the damage reaches the parsers behind them.  Arguments: the file, how many copies.  Built with libtenon's sources. */

#include "digest.h"
#include "tenon.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state = 88172645463325252u;

static uint64_t random_number(void) {
  state ^= state << 13;
  state ^= state >> 7;
  return state ^= state << 17;
}

static uint64_t number(const uint8_t *at) {
  uint64_t value = 0;
  for (int i = 7; i >= 0; i--) value = value << 8 | at[i];
  return value;
}

/* The row of the manifest in the directory. */
static const uint8_t *manifest_row(const uint8_t *data) {
  const uint8_t *row = data + 56;
  while (strstr((const char *)row, "/manifest.json") == NULL) row += 120;
  return row;
}

static void sign_directory(uint8_t *data, size_t size) {
  const size_t parts = data[12];
  Blake2b digest;
  if (56 + 120 * parts > size) return;
  tn_blake2b_start(&digest, 32);
  tn_blake2b_add(&digest, data, 24);
  tn_blake2b_add(&digest, data + 56, 120 * parts);
  tn_blake2b_end(&digest, data + 24);
}

/* The digest that manifest.json has of itself. */
static void sign_manifest(uint8_t *text, size_t size) {
  static const char before[] = "\n \"digest\": \"";
  for (size_t i = 0; i + sizeof before + 64 < size; i++) {
    if (memcmp(text + i, before, sizeof before - 1) != 0) continue;
    uint8_t *hex = text + i + sizeof before - 1, digest[32];
    char right[65];
    Blake2b state_of;
    tn_blake2b_start(&state_of, 32);
    tn_blake2b_add(&state_of, text, (size_t)(hex - text));
    tn_blake2b_add(&state_of, hex + 64, (size_t)(text + size - hex) - 64);
    tn_blake2b_end(&state_of, digest);
    tn_hex(digest, 32, right);
    memcpy(hex, right, 64);
    return;
  }
}

static void change(uint8_t *data, size_t size, const char *letters) {
  for (uint64_t n = 1 + random_number() % 4; n > 0; n--) {
    uint8_t *at = &data[random_number() % size];
    *at = letters != NULL ? (uint8_t)letters[random_number() % strlen(letters)] : (uint8_t)random_number();
  }
}

int main(int count, char **words) {
  FILE *file = count == 3 ? fopen(words[1], "rb") : NULL;
  if (file == NULL || fseek(file, 0, SEEK_END) != 0) return 1;
  const size_t size = (size_t)ftell(file);
  uint8_t *whole = malloc(size);
  rewind(file);
  if (fread(whole, 1, size, file) != size) return 1;
  fclose(file);
  int opened = 0, statuses[64] = {0};
  TenonOpenOptions options = TENON_OPEN_OPTIONS_INIT;
  options.never_compile = 1;
  for (long i = 0; i < strtol(words[2], NULL, 10); i++) {
    /* A copy of its own size, so that a read behind its end is noticed. */
    const size_t length = i % 5 == 4 ? random_number() % size : size;
    uint8_t *copy = malloc(length + 1);
    memcpy(copy, whole, length);
    const uint64_t manifest = number(manifest_row(whole) + 104), bytes = number(manifest_row(whole) + 112);
    if (i % 5 == 0) change(copy, size, NULL);
    if (i % 5 == 1) change(copy + 8, 56 + 120 * 3 - 8, NULL), sign_directory(copy, size);
    if (i % 5 == 2) change(copy + manifest, bytes, "{}[]\",:0129-e.tfn\\u ");
    if (i % 5 == 3) change(copy + manifest, bytes, "0123456789-"), change(copy + manifest, bytes, "[]\"");
    if (i % 5 == 2 || i % 5 == 3) sign_manifest(copy + manifest, bytes);
    TenonBundle *bundle = NULL;
    const TenonStatus status = tenon_bundle_open_memory(copy, length, &options, &bundle);
    if (status == TENON_OK) {
      TenonEngine *engine;
      TenonStep step;
      opened++;
      if (tenon_bundle_step_count(bundle) > 0 && tenon_bundle_step(bundle, 0, &step) != TENON_OK) return 3;
      if (tenon_engine_create(bundle, NULL, &engine) == TENON_OK) tenon_engine_run(engine), tenon_engine_destroy(engine);
      tenon_bundle_close(bundle);
    } else if (*tenon_last_error() == 0) {
      return 2;
    }
    statuses[status]++;
    free(copy);
  }
  printf("%d opened, %d damaged, %d of another machine, %d no bundle\n", opened, statuses[TENON_DAMAGED],
         statuses[TENON_WRONG_MACHINE], statuses[TENON_NO_COMPILER]);
  free(whole);
  return 0;
}
