/* Keys of encrypted bundles and models: 32 bytes, of the program, a file or the environment.

   An encrypted model (wire/encryption.py) begins with "TENONENC", the number of its form (u32, 1) and the sealed empty
   text "key-check"; only the compiler reads the rest. */

#include "key.h"
#include "encryption.h"
#include "errors.h"

#include <stdlib.h>
#include <string.h>

static const char model_magic[] = "TENONENC";
enum { MAGIC = sizeof model_magic - 1, FORM = 4 };

static int digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* From 64 hexadecimal digits; blanks and ends of lines may follow. */
static int read_digits(const char *text, size_t length, uint8_t *key) {
  while (length > 0 && strchr(" \t\r\n", text[length - 1]) != NULL) length--;
  if (length != 2 * TENON_KEY_BYTES) return 0;
  for (int i = 0; i < TENON_KEY_BYTES; i++) {
    const int high = digit(text[2 * i]), low = digit(text[2 * i + 1]);
    if (high < 0 || low < 0) return 0;
    key[i] = (uint8_t)(16 * high + low);
  }
  return 1;
}

static TenonStatus read_key_file(const char *path, const char *origin, uint8_t *key) {
  File file = {0};
  if (!tn_exists(path)) return tn_fail(TENON_WRONG_KEY, "%s: there is no key file %s", origin, path);
  const TenonStatus status = tn_file_read(path, &file);
  if (status != TENON_OK) return status;
  int is_key = file.size == TENON_KEY_BYTES;
  if (is_key) memcpy(key, file.data, TENON_KEY_BYTES);
  else is_key = read_digits((const char *)file.data, file.size, key);
  if (file.kind == ALLOCATED) tn_wipe((void *)(uintptr_t)file.data, file.size);
  tn_file_release(&file);
  if (is_key) return TENON_OK;
  return tn_fail(TENON_WRONG_KEY, "%s: the key file %s does not have %d bytes or %d hexadecimal digits", origin, path,
                 TENON_KEY_BYTES, 2 * TENON_KEY_BYTES);
}

TenonStatus tn_find_key(const TenonOpenOptions *options, const char *origin, uint8_t key[TENON_KEY_BYTES]) {
  if (options->key != NULL) return memcpy(key, options->key, TENON_KEY_BYTES), TENON_OK;
  if (options->key_function != NULL) {
    const int error = options->key_function(options->key_context, key);
    return error == 0 ? TENON_OK : tn_fail(TENON_WRONG_KEY, "%s: the function for its key returned %d", origin, error);
  }
  if (options->key_file != NULL) return read_key_file(options->key_file, origin, key);
  const char *digits = getenv("TENON_KEY"), *path = getenv("TENON_KEY_FILE");
  if (digits != NULL && digits[0] != 0) {
    if (read_digits(digits, strlen(digits), key)) return TENON_OK;
    return tn_fail(TENON_WRONG_KEY, "%s: TENON_KEY does not have %d hexadecimal digits", origin, 2 * TENON_KEY_BYTES);
  }
  if (path != NULL && path[0] != 0) return read_key_file(path, origin, key);
  return tn_fail(TENON_WRONG_KEY, "%s is encrypted: give its key (TenonOpenOptions, TENON_KEY_FILE or TENON_KEY)", origin);
}

int tn_has_key(const TenonOpenOptions *options) {
  const char *digits = getenv("TENON_KEY"), *path = getenv("TENON_KEY_FILE");
  return options->key != NULL || options->key_function != NULL || options->key_file != NULL ||
         (digits != NULL && *digits) || (path != NULL && *path);
}

TenonStatus tn_not_encrypted(const char *origin) {
  return tn_fail(TENON_WRONG_KEY, "%s is not encrypted, which a key demands: encrypt it (tenon encrypt), or open it without "
                 "key (TenonOpenOptions, TENON_KEY_FILE, TENON_KEY)", origin);
}

TenonStatus tn_check_key(const uint8_t key[TENON_KEY_BYTES], const char *origin, const uint8_t *sealed, size_t size) {
  uint8_t nothing[1];
  if (size == SEAL_BYTES && tn_decrypt(key, "key-check", sealed, size, nothing)) return TENON_OK;
  return tn_fail(TENON_WRONG_KEY, "%s: the key is not that with which it was encrypted", origin);
}

TenonStatus tn_find_model_key(const TenonOpenOptions *options, const char *origin, const File *content,
                              uint8_t key[TENON_KEY_BYTES], int *has_key) {
  const int encrypted = content->size >= MAGIC && memcmp(content->data, model_magic, MAGIC) == 0;
  *has_key = encrypted || options->key != NULL || options->key_function != NULL || options->key_file != NULL;
  if (!*has_key) return TENON_OK;
  if (encrypted && content->size < MAGIC + FORM + SEAL_BYTES)
    return tn_fail(TENON_DAMAGED, "%s is damaged: it is incomplete: encrypt the file again", origin);
  const TenonStatus status = tn_find_key(options, origin, key);
  if (status != TENON_OK || !encrypted) return status;
  return tn_check_key(key, origin, content->data + MAGIC + FORM, SEAL_BYTES);
}
