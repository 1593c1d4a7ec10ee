/* The files of a bundle: in a folder, or in a .tenon file (bundle/container.py).

   A .tenon file, numbers little-endian:

       8 bytes   "TENON\r\n" and 0x1a
       u32       1, the version of this form; 2 if it is encrypted
       u32       number of parts
       u64       bytes of the whole file
       32 bytes  BLAKE2b of the 24 bytes before it and of the directory
       directory 120 bytes for each part: its name in 104, zero-padded; u64 offset; u64 bytes

   Names are TARGET/FILE.  Parts with the same content share their place.  The files of a target are those of a folder:
   the digest in manifest.json and the checksums listed there cover their content.

   Of an encrypted file these parts are sealed with AES-256-GCM (wire/encryption.py): a nonce of 12 bytes, the encrypted
   content and a tag of 16 bytes, FILE authenticated with it.  The part "key-check" is a sealed empty text; the part
   "directory" is the sealed digest of what the directory says of all other parts but the signature, with their nonces and
   tags, so that parts of files with the same key cannot be exchanged, left out or put elsewhere. */

#include "container.h"
#include "digest.h"
#include "encryption.h"
#include "errors.h"
#include "key.h"
#include "processor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VERSION = 1, ENCRYPTED = 2, HEAD = 24, DIGEST = 32, DIRECTORY = HEAD + DIGEST, NAME = 104, ROW = NAME + 16, MOST_PARTS = 4096 };

static const uint8_t magic[8] = {'T', 'E', 'N', 'O', 'N', '\r', '\n', 0x1a};
static const char manifest_name[] = "/manifest.json", key_check[] = "key-check", directory_name[] = "directory";
static const char signature_name[] = "signature";

static uint64_t number(const uint8_t *at, int bytes) {
  uint64_t value = 0;
  while (bytes-- > 0) value = value << 8 | at[bytes];
  return value;
}

static const uint8_t *row(const uint8_t *data, uint64_t part) { return data + DIRECTORY + ROW * part; }

int tn_is_container(const uint8_t *data, size_t size) {
  return size >= sizeof magic && memcmp(data, magic, sizeof magic) == 0;
}

static const char *check_directory(const uint8_t *data, size_t size) {
  if (size < DIRECTORY || number(data + 16, 8) != size) return "it is incomplete";
  const uint64_t parts = number(data + 12, 4);
  if (parts > MOST_PARTS || parts * ROW > size - DIRECTORY) return "its directory is incomplete";
  Blake2b state;
  uint8_t digest[DIGEST];
  tn_blake2b_start(&state, DIGEST);
  tn_blake2b_add(&state, data, HEAD);
  tn_blake2b_add(&state, data + DIRECTORY, parts * ROW);
  tn_blake2b_end(&state, digest);
  if (memcmp(digest, data + HEAD, DIGEST) != 0) return "the digest of its directory differs";
  for (uint64_t i = 0; i < parts; i++) {
    const uint64_t offset = number(row(data, i) + NAME, 8), bytes = number(row(data, i) + NAME + 8, 8);
    if (memchr(row(data, i), 0, NAME) == NULL || offset > size || bytes > size - offset)
      return "its directory is damaged";
    for (uint64_t other = 0; other < i; other++)
      if (strcmp((const char *)row(data, i), (const char *)row(data, other)) == 0) return "its directory lists a name twice";
  }
  return NULL;
}

/* The target of a part that is a manifest, as the length of its name; else 0. */
static size_t target_length(const char *name) {
  const char *slash = strchr(name, '/');
  return slash != NULL && strcmp(slash, manifest_name) == 0 ? (size_t)(slash - name) : 0;
}

/* The prefix of the wanted target, or of the one that asks for most of what this machine has. */
static const char *choose(Pool *pool, const uint8_t *data, const char *wanted) {
  const char *best = NULL;
  int most = -1;
  for (uint64_t i = 0; i < number(data + 12, 4); i++) {
    const char *name = (const char *)row(data, i);
    const size_t length = target_length(name);
    if (length == 0) continue;
    char *target = tn_pool_text(pool, name, length + 1);
    if (target == NULL) return NULL;
    target[length] = 0;
    const int features = wanted == NULL ? tn_target_features(target) : strcmp(target, wanted) == 0;
    if (wanted != NULL ? features : features > most) {
      most = features;
      best = memcpy(target, name, length + 1);
    }
  }
  return best;
}

/* For a message: "and others" where there is no room for all. */
static void list_targets(const uint8_t *data, char *text, size_t room) {
  static const char others[] = " and others";
  text[0] = 0;
  for (uint64_t i = 0; i < number(data + 12, 4); i++) {
    const char *name = (const char *)row(data, i);
    const size_t length = target_length(name), used = strlen(text);
    if (length == 0) continue;
    const int fits = used + length + 3 + sizeof others < room;
    if (fits) snprintf(text + used, room - used, "%s%.*s", used ? ", " : "", (int)length, name);
    else memcpy(text + used, others, sizeof others);
    if (!fits) return;
  }
}

/* A part as it is stored; the name is `prefix` and `name`. */
static TenonStatus stored(const BundleFiles *files, const char *prefix, const char *name, File *file) {
  const size_t length = strlen(prefix);
  for (uint64_t i = 0; i < number(files->container + 12, 4); i++) {
    const uint8_t *at = row(files->container, i);
    if (strncmp((const char *)at, prefix, length) != 0 || strcmp((const char *)at + length, name) != 0) continue;
    *file = (File){files->container + number(at + NAME, 8), (size_t)number(at + NAME + 8, 8), BORROWED, NULL};
    return TENON_OK;
  }
  return tn_fail(TENON_DAMAGED, "%s is damaged: it has no %s%s: compile the model again", files->path, prefix, name);
}

static TenonStatus part(const BundleFiles *files, const char *name, File *file) {
  File sealed;
  if (!files->is_encrypted) return stored(files, files->prefix, name, file);
  const TenonStatus status = stored(files, files->prefix, name, &sealed);
  if (status != TENON_OK) return status;
  const size_t bytes = sealed.size < SEAL_BYTES ? 0 : sealed.size - SEAL_BYTES;
  uint8_t *text = tn_aligned_memory(bytes + 1, 64); /* and a zero behind it */
  if (text == NULL) return tn_fail(TENON_OUT_OF_MEMORY, "%s: no memory to decrypt %s", files->path, name);
  *file = (File){text, bytes, ALIGNED, NULL};
  if (tn_decrypt(files->key, name, sealed.data, sealed.size, text)) return TENON_OK;
  tn_file_release(file);
  return tn_fail(TENON_DAMAGED, "%s is damaged: %s%s was changed after it was encrypted: encrypt the bundle again",
                 files->path, files->prefix, name);
}

/* The digest of names, sizes, nonces and tags of the parts that are sealed; 0 if one is too short to be. */
static int digest_of_parts(const BundleFiles *files, uint8_t digest[DIGEST]) {
  enum { SEAL_NONCE = 12, SEAL_TAG = SEAL_BYTES - SEAL_NONCE };
  Blake2b state;
  tn_blake2b_start(&state, DIGEST);
  for (uint64_t i = 0; i < number(files->container + 12, 4); i++) {
    const uint8_t *at = row(files->container, i), *data = files->container + number(at + NAME, 8);
    const uint64_t bytes = number(at + NAME + 8, 8);
    if (strcmp((const char *)at, directory_name) == 0 || strcmp((const char *)at, signature_name) == 0) continue;
    if (bytes < SEAL_BYTES) return 0;
    tn_blake2b_add(&state, at, NAME);
    tn_blake2b_add(&state, at + NAME + 8, 8);
    tn_blake2b_add(&state, data, SEAL_NONCE);
    tn_blake2b_add(&state, data + bytes - SEAL_TAG, SEAL_TAG);
  }
  tn_blake2b_end(&state, digest);
  return 1;
}

static TenonStatus check_parts(const BundleFiles *files) {
  File sealed;
  uint8_t stated[DIGEST], digest[DIGEST];
  const TenonStatus status = stored(files, "", directory_name, &sealed);
  if (status != TENON_OK) return status;
  if (sealed.size == DIGEST + SEAL_BYTES && digest_of_parts(files, digest) &&
      tn_decrypt(files->key, directory_name, sealed.data, sealed.size, stated) && memcmp(stated, digest, DIGEST) == 0)
    return TENON_OK;
  return tn_fail(TENON_DAMAGED, "%s is damaged: its parts are not those that were encrypted together: encrypt the bundle "
                 "again", files->path);
}

static TenonStatus check_key(BundleFiles *files, const TenonOpenOptions *options) {
  File sealed;
  TenonStatus status = tn_find_key(options, files->path, files->key);
  if (status == TENON_OK) status = stored(files, "", key_check, &sealed);
  if (status == TENON_OK) status = tn_check_key(files->key, files->path, sealed.data, sealed.size);
  return status == TENON_OK ? check_parts(files) : status;
}

static TenonStatus check_version(const BundleFiles *files, uint64_t version, int64_t least) {
  if (least <= 0 || version >= (uint64_t)least) return TENON_OK;
  return tn_fail(TENON_NOT_SIGNED, "%s was signed as version %llu, and %lld is the oldest that is accepted: get the newest",
                 files->path, (unsigned long long)version, (long long)least);
}

/* The text that is signed (bundle/signature.py): the file's form, the version that its owner gave it, and name, size and
   digest of every other part. */
static TenonStatus check_signature(Pool *pool, const BundleFiles *files, const uint8_t *public_key, int64_t least) {
  static const char title[] = "Tenon bundle\n";
  enum { TITLE = sizeof title - 1, FORM = 4, ENTRY = NAME + 8 + DIGEST, KEY = TENON_PUBLIC_KEY_BYTES };
  enum { NUMBER = 8, SIGNATURE = 64 };
  const uint64_t parts = number(files->container + 12, 4);
  File signature = {0};
  uint8_t *text = tn_pool_take(pool, TITLE + FORM + NUMBER + (size_t)parts * ENTRY), *end = text;
  if (text == NULL) return tn_fail(TENON_OUT_OF_MEMORY, "%s: no memory", files->path);
  end = (uint8_t *)memcpy(end, title, TITLE) + TITLE;
  end = (uint8_t *)memcpy(end, files->container + 8, FORM) + FORM + NUMBER;
  for (uint64_t i = 0; i < parts; i++) {
    const uint8_t *at = row(files->container, i), *data = files->container + number(at + NAME, 8);
    const size_t bytes = (size_t)number(at + NAME + 8, 8);
    Blake2b state;
    if (strcmp((const char *)at, signature_name) == 0) {
      signature = (File){data, bytes, BORROWED, NULL};
      continue;
    }
    memcpy(end, at, NAME);
    memcpy(end + NAME, at + NAME + 8, 8);
    tn_blake2b_start(&state, DIGEST);
    tn_blake2b_add(&state, data, bytes);
    tn_blake2b_end(&state, end + NAME + 8);
    end += ENTRY;
  }
  if (signature.data == NULL)
    return tn_fail(TENON_NOT_SIGNED, "%s is not signed: sign it (tenon sign), or get it from who made it", files->path);
  if (signature.size != KEY + NUMBER + SIGNATURE || memcmp(signature.data, public_key, KEY) != 0)
    return tn_fail(TENON_NOT_SIGNED, "%s was signed with another key", files->path);
  memcpy(text + TITLE + FORM, signature.data + KEY, NUMBER);
  if (tn_is_signed(public_key, signature.data + KEY + NUMBER, text, (size_t)(end - text)))
    return check_version(files, number(text + TITLE + FORM, NUMBER), least);
  return tn_fail(TENON_NOT_SIGNED, "%s was changed after it was signed: get it again from who made it", files->path);
}

static TenonStatus check_form(const uint8_t *data, size_t size, const char *origin) {
  const uint64_t version = size >= 12 ? number(data + 8, 4) : VERSION;
  if (version != VERSION && version != ENCRYPTED)
    return tn_fail(TENON_DAMAGED, "%s has form %u of .tenon files and this libtenon reads %d and %d: use a newer libtenon, "
                   "or compile the model again", origin, (unsigned)version, VERSION, ENCRYPTED);
  const char *why = check_directory(data, size);
  return why == NULL ? TENON_OK : tn_fail(TENON_DAMAGED, "%s is damaged: %s: compile the model again", origin, why);
}

TenonStatus tn_container_verify(const uint8_t *data, size_t size, const char *origin, const uint8_t *public_key) {
  Pool pool = {0};
  const BundleFiles files = {.path = origin, .container = data, .size = size};
  if (!tn_is_container(data, size)) return tn_fail(TENON_NOT_SIGNED, "%s gives no .tenon file", origin);
  TenonStatus status = check_form(data, size, origin);
  if (status == TENON_OK) status = check_signature(&pool, &files, public_key, 0);
  tn_pool_release(&pool);
  return status;
}

TenonStatus tn_container_open(Pool *pool, const uint8_t *data, size_t size, const char *origin,
                              const TenonOpenOptions *options, int has_key, BundleFiles *files) {
  const char *target = options->target != NULL ? options->target : getenv("TENON_OPEN_TARGET");
  const TenonStatus form = check_form(data, size, origin);
  if (form != TENON_OK) return form;
  if (target != NULL && (target[0] == 0 || strcmp(target, "host") == 0)) target = NULL;
  *files = (BundleFiles){.path = origin, .prefix = choose(pool, data, target), .container = data, .size = size};
  files->is_encrypted = number(data + 8, 4) == ENCRYPTED;
  if (options->public_key != NULL) {
    const TenonStatus status = check_signature(pool, files, options->public_key, options->minimum_version);
    if (status != TENON_OK) return status;
  }
  if (!files->is_encrypted && has_key) return tn_not_encrypted(origin);
  if (files->prefix != NULL) return files->is_encrypted ? check_key(files, options) : TENON_OK;
  char targets[512];
  list_targets(data, targets, sizeof targets);
  return tn_fail(TENON_WRONG_MACHINE, "%s has code for %s and none for %s: compile the model with --target for it", origin,
                 targets[0] ? targets : "no target", target != NULL ? target : "this machine");
}

TenonStatus tn_bundle_file(const BundleFiles *files, const char *name, int map, File *file) {
  if (files->container != NULL) return part(files, name, file);
  char path[4096];
  if ((size_t)snprintf(path, sizeof path, "%s/%s", files->path, name) >= sizeof path)
    return tn_fail(TENON_SYSTEM, "%s: the path is too long", files->path);
  if (!tn_exists(path))
    return tn_fail(TENON_DAMAGED, "%s is missing: copy the whole folder, or compile the model again", path);
  return map ? tn_file_map(path, file) : tn_file_read(path, file);
}
