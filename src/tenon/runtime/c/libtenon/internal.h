/* What the files of libtenon share. */

#ifndef TENON_INTERNAL_H
#define TENON_INTERNAL_H

#include "platform.h"

/* ---- errors */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
TenonStatus tn_fail(TenonStatus status, const char *format, ...);

/* Copies a struct of options that begins with its size, of an older or a newer program; zeros for NULL. */
TenonStatus tn_options(const void *given, void *options, size_t size, const char *initialiser);

/* ---- handles: a number of a slot and of its use, so that the handle of an ended object is recognised */
typedef enum {
  BUNDLE_HANDLE = 1,
  ENGINE_HANDLE = 2,
  GRAPH_HANDLE = 3, /* this and the following: of Tengine's API */
  TENSOR_HANDLE = 4,
  NODE_HANDLE = 5,
  CONTEXT_HANDLE = 6
} HandleKind;
void *tn_handle_new(HandleKind kind, void *object); /* NULL if there is no memory */
void *tn_handle_object(HandleKind kind, const void *handle); /* NULL, and an error text, if it is not valid */
void tn_handle_end(const void *handle);

/* ---- memory that is released at once */
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

/* ---- digests */
typedef struct {
  uint64_t h[8], total;
  uint8_t block[128];
  size_t filled, digest_size;
} Blake2b;
void tn_blake2b_start(Blake2b *state, size_t digest_size);
void tn_blake2b_add(Blake2b *state, const void *data, size_t size);
void tn_blake2b_end(Blake2b *state, uint8_t *digest);
void tn_hex(const uint8_t *bytes, size_t count, char *text); /* 2 * count + 1 characters */
/* Of the form that manifests of this format have. */
void tn_checksum(const uint8_t *data, size_t size, int format, uint8_t digest[8]);

/* ---- encryption: AES-256-GCM of a nonce (12 bytes), the encrypted text and its tag (16 bytes) */
enum { SEAL_BYTES = 12 + 16 };
/* Verifies, then decrypts size - SEAL_BYTES bytes; `name` is authenticated as well.  0: another key, or a change. */
int tn_decrypt(const uint8_t key[TENON_KEY_BYTES], const char *name, const uint8_t *sealed, size_t size, uint8_t *text);
void tn_wipe(void *memory, size_t bytes);
/* Whether an Ed25519 signature (64 bytes) of a message is genuine. */
int tn_is_signed(const uint8_t *public_key, const uint8_t *signature, const uint8_t *message, size_t bytes);
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

/* ---- compression: of LZMA in the form of .lzma files, whose result has `result_bytes`.  1, 0: the data is damaged, or
   -1: there is no memory. */
int tn_lzma_decompress(const uint8_t *data, size_t bytes, uint8_t *result, size_t result_bytes);

/* ---- JSON */
typedef enum { JSON_NULL, JSON_FALSE, JSON_TRUE, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT, JSON_TEXT } JsonKind;
typedef struct JsonValue JsonValue;
struct JsonValue {
  JsonKind kind;
  int is_integer;
  size_t count; /* elements, or bytes of `text` */
  const char *key, *text; /* of a string, or of JSON that is not parsed */
  int64_t integer;
  double number;
  JsonValue *first, *next;
};
/* NULL if the text is not JSON, or the pool is empty. */
JsonValue *tn_json_parse(Pool *pool, const char *text, size_t size);
/* The same for an object each of whose members begins on a line of its own, behind one blank: these are not parsed but
   JSON_TEXT. */
JsonValue *tn_json_split(Pool *pool, const char *text, size_t size);
const JsonValue *tn_json_get(const JsonValue *object, const char *key); /* NULL if it is not there */

/* ---- what a bundle has */
typedef struct {
  TenonTensor tensor;
  uint64_t offset; /* in the mutable region */
} Port;

typedef struct {
  const char *entry;
  uint64_t mutable_bytes, activations;
  int phases, input_count, output_count;
  Port *inputs, *outputs;
  uint64_t device_offset; /* of the input through which the code calls a device */
} Binding;

typedef struct {
  const char *file;
  uint64_t bytes;
  uint8_t checksum[8];
} FileRecord;

typedef struct {
  const char *name, *target;
  uint64_t constant, mutable_bytes, activations, alignment;
  int format, threads, timed_calls, binding_count, step_count, file_count;
  Binding *bindings;
  TenonStep *steps;       /* NULL until they are asked for */
  const JsonValue *nodes; /* from which they are read; NULL: there is nothing to read */
  FileRecord *files;
} Description;

/* Both fail with TENON_DAMAGED and a text that begins with `origin`. */
TenonStatus tn_read_manifest(Pool *pool, const char *text, size_t size, const char *origin, Description *description);
TenonStatus tn_read_layout(Pool *pool, const char *text, size_t size, const char *origin, Description *description);
/* Reads the steps if they were not. */
TenonStatus tn_read_steps(Pool *pool, const char *origin, Description *description);
/* Whether code of the second layout may run in memory of the first. */
int tn_same_layout(const Description *a, const Description *b);
/* An input or output from its JSON: [name, type, shape, offset, bytes, extent, string, scale, zero point], the last two
   NULL if it is not quantised; 0 if it is not one. */
enum { PORT_FIELDS = 9 };
int tn_read_port(Pool *pool, const JsonValue *const fields[PORT_FIELDS], Port *port);
/* Finishes a description: names of extents, limits.  Returns NULL or what is wrong. */
const char *tn_check_description(Description *description);

/* ---- where the files of a bundle are */
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

/* ---- machines: whether this one executes code for a target, and how many features that asks for (-1: it does not) */
int tn_target_features(const char *target);

/* ---- models */
/* The name and content of a file, or of the files in a folder, if it is there. */
void tn_add_file(Blake2b *state, const char *path);
/* The files that belong to the model with this path and content, as far as they are there. */
void tn_add_companions(Blake2b *state, const char *path, const File *content);
/* Compiles a model, or finds it in the cache; `bundle` is the path of a .tenon file. */
TenonStatus tn_compile(Pool *pool, const char *path, const File *content, const TenonOpenOptions *options,
                       const char **bundle);

/* The next entry of a list of paths, separated as in PATH: 1; 0 at the end (also of a NULL), -1 for one that there is no
   room for. */
int tn_next_of_list(const char **list, char *entry, size_t room);

/* ---- devices */
/* "PATH=ARGUMENT" of the plug-in of a device, for the compiler. */
TenonStatus tn_device_origin(const char *name, const char **origin);

/* ---- bundles and engines */
typedef int RunFunction(const uint8_t *, uint8_t *, uint8_t *);
typedef void PhaseFunction(const uint8_t *, uint8_t *, uint8_t *, int, int, int);

typedef struct {
  int references;
  void *handle;
  Pool pool;
  Description about;
  Monitor monitor; /* of the steps, which are read when they are asked for */
  File manifest, container, weights_file;
  uint8_t *weights_copy;
  const uint8_t *weights;
  Library library;
  RunFunction **run;
  PhaseFunction **phase; /* NULL: one thread only */
  PhaseFunction *profile;
  const struct TenonDevice *device; /* that runs parts of the network, or NULL */
  int part_count;                   /* the most of a binding */
  const TenonOpenOptions *model;    /* how the model was opened that this is a bundle of; NULL: it is of no model, or
                                       of an encrypted or transformed one */
  int is_sealed_model;              /* it is of an encrypted or transformed one */
  const char *model_path;           /* NULL: it is in memory */
  File model_content;
} Bundle;

/* Compiles the model of a bundle for other shapes, or finds it in the cache: a bundle without a handle. */
TenonStatus tn_bundle_for_shapes(const Bundle *bundle, const char *const *shapes, Bundle **other);

void tn_bundle_retain(Bundle *bundle);
void tn_bundle_release(Bundle *bundle);
/* Finds the device that a bundle was compiled for, if any, and hides the input for it. */
TenonStatus tn_attach_device(Bundle *bundle);

#endif
