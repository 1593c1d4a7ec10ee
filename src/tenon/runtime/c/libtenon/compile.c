/* Models instead of bundles: compiled by the command `tenon`, and kept in a cache by their content. */

#include "compile.h"
#include "companions.h"
#include "device.h"
#include "errors.h"
#include "path_list.h"
#include "processor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY = 16, PATH = 4096, DEFAULT_SECONDS = 600, SHOWN = 1200 };

/* How a model is compiled, and what the compiler is told of devices. */
typedef struct {
  const TenonOpenOptions *options;
  const char *const *devices; /* ends in NULL; NULL: there are none */
} Request;

static const char remedy[] = "compile it first: tenon compile MODEL -o MODEL.tenon";

/* -------------------------------------------------------------------------------------------------------------- key */

static void add_text(Blake2b *state, const char *text) { tn_blake2b_add(state, text ? text : "", text ? strlen(text) + 1 : 1); }

static void add_list(Blake2b *state, const char *const *list) {
  for (; list != NULL && *list != NULL; list++) add_text(state, *list);
  add_text(state, "end of list");
}

/* Plug-ins of the compiler: those that define operators, and those of devices ("PATH=ARGUMENT"). */
static void add_plugins(Blake2b *state, const char *const *devices) {
  char path[PATH];
  const char *list = getenv("TENON_PLUGINS");
  add_text(state, list);
  for (int entry; (entry = tn_next_of_list(&list, path, sizeof path)) != 0;)
    if (entry > 0) tn_add_file(state, path); /* the compiler says what is wrong with a path that is too long */
  for (; devices != NULL && *devices != NULL; devices++) {
    add_text(state, *devices);
    snprintf(path, sizeof path, "%.*s", (int)strcspn(*devices, "="), *devices);
    tn_add_file(state, path); /* nothing for the name of a GPU target */
  }
}

static void make_key(const char *path, const File *content, const Request *request, char key[2 * KEY + 1]) {
  const TenonOpenOptions *options = request->options;
  Blake2b state;
  uint8_t digest[KEY];
  char text[8192];
  tn_blake2b_start(&state, KEY);
  add_text(&state, "model compiled for libtenon " TENON_VERSION);
  tn_processor_features(text, sizeof text); /* caches may be shared by machines */
  add_text(&state, text);
  tn_blake2b_add(&state, content->data, content->size);
  add_text(&state, options->model_name);
  add_text(&state, options->key != NULL ? "encrypted" : "");
  tn_blake2b_add(&state, options->key, options->key != NULL ? TENON_KEY_BYTES : 0);
  add_text(&state, options->target);
  add_list(&state, options->shapes);
  add_list(&state, options->arguments);
  snprintf(text, sizeof text, "%d threads", (int)options->threads);
  add_text(&state, text);
  if (options->weights != NULL) tn_add_file(&state, options->weights);
  else if (options->weights_data != NULL) tn_blake2b_add(&state, options->weights_data, options->weights_bytes);
  if (path != NULL) tn_add_companions(&state, path, content);
  add_plugins(&state, request->devices);
  tn_blake2b_end(&state, digest);
  tn_hex(digest, KEY, key);
}

static TenonStatus cache_folder(char folder[PATH]) {
  const char *cache = getenv("TENON_CACHE"), *home = getenv("XDG_CACHE_HOME");
  size_t length;
  if (cache != NULL && *cache) {
    length = (size_t)snprintf(folder, PATH, "%s/models", cache);
  } else if (home != NULL && *home) {
    length = (size_t)snprintf(folder, PATH, "%s/tenon/models", home);
  } else {
    home = tn_home();
    if (home == NULL) return tn_fail(TENON_SYSTEM, "there is no HOME: set TENON_CACHE to a folder that can be written");
    length = (size_t)snprintf(folder, PATH, "%s/.cache/tenon/models", home);
  }
  if (length + 160 >= PATH || tn_make_folders(folder) != 0)
    return tn_fail(TENON_SYSTEM, "cannot create the cache %s: set TENON_CACHE to a folder that can be written", folder);
  if (tn_is_private(folder)) return TENON_OK;
  return tn_fail(TENON_SYSTEM, "the cache %s belongs to another user, or others may write in it, so that its code is not "
                 "trusted: set TENON_CACHE to a folder of your own, or 'chmod go-w' it", folder);
}

/* --------------------------------------------------------------------------------------------------------- compiler */

/* "OPTION=VALUE", a single word, so that values may begin with "-"; nothing for NULL. */
static void add_option(Texts *command, const char *option, const char *value) {
  if (value != NULL) tn_texts_add(command, tn_pool_format(command->pool, "%s=%s", option, value));
}

static void add_words(Texts *command, const char *option, const char *const *list) {
  for (; list != NULL && *list != NULL; list++)
    if (option != NULL) add_option(command, option, *list);
    else tn_texts_add(command, *list);
}

/* With a key, the compiler reads it from standard input, where no other process sees it. */
static void make_command(Texts *command, const char *const *program, const char *model, const char *out,
                         const Request *request) {
  const TenonOpenOptions *options = request->options;
  static const char *const with_key[] = {"--key-file", "/dev/stdin", "--encrypt", NULL};
  add_words(command, NULL, program);
  tn_texts_add(command, "compile");
  tn_texts_add(command, *model == '-' ? tn_pool_format(command->pool, "./%s", model) : model); /* it is no option */
  add_option(command, "--output", out);
  add_option(command, "--weights", options->weights);
  add_option(command, "--target", options->target);
  if (options->threads > 0) tn_texts_add(command, tn_pool_format(command->pool, "--threads=%d", (int)options->threads));
  add_words(command, "--shape", options->shapes);
  for (const char *const *device = request->devices; device != NULL && *device != NULL; device++)
    add_option(command, "--offload", *device);
  add_words(command, NULL, options->arguments);
  if (options->key != NULL) add_words(command, NULL, with_key);
}

static TenonStatus run_compiler(const char *const *program, const char *model, const char *out, const char *log,
                                const Request *request, int *status) {
  const TenonOpenOptions *options = request->options;
  Pool pool = {0};
  Texts command = {.pool = &pool};
  make_command(&command, program, model, out, request);
  const int64_t seconds = options->compile_seconds > 0 ? options->compile_seconds : DEFAULT_SECONDS;
  const size_t key_bytes = options->key != NULL ? TENON_KEY_BYTES : 0;
  TenonStatus ran;
  if (command.has_failed) ran = tn_fail(TENON_OUT_OF_MEMORY, "%s: no memory for the compiler's command", model);
  else ran = tn_run_command(command.list, options->key, key_bytes, log, 1000 * seconds, status);
  tn_pool_release(&pool);
  if (ran == TENON_TIMEOUT)
    return tn_fail(TENON_TIMEOUT, "compiling %s took more than %lld s: raise compile_seconds, or %s", model,
                   (long long)seconds, remedy);
  return ran;
}

/* The end of what the compiler wrote to standard error. */
static void read_log(const char *log, char text[SHOWN + 1]) {
  File file = {0};
  text[0] = 0;
  if (tn_file_read(log, &file) != TENON_OK) return;
  const size_t count = file.size < SHOWN ? file.size : SHOWN;
  memcpy(text, file.data + file.size - count, count);
  text[count] = 0;
  for (size_t end = count; end > 0 && text[end - 1] == '\n'; end--) text[end - 1] = 0;
  tn_file_release(&file);
}

static TenonStatus compile(const char *model, const char *out, const char *log, const Request *request) {
  const char *chosen = getenv("TENON");
  /* -I: neither the working folder nor the environment says which module `tenon` is. */
  const char *const programs[3][5] = {{chosen, NULL}, {"tenon", NULL}, {"python3", "-I", "-m", "tenon", NULL}};
  const size_t first = chosen != NULL && *chosen ? 0 : 1, end = first == 0 ? 1 : 3;
  char message[SHOWN + 1];
  for (size_t i = first; i < end; i++) {
    int status = 0;
    const TenonStatus ran = run_compiler(programs[i], model, out, log, request, &status);
    if (ran == TENON_NOT_FOUND) continue;
    if (ran != TENON_OK) return ran;
    read_log(log, message);
    if (status == 0 && tn_exists(out)) return TENON_OK;
    if (i == 2 && strstr(message, "No module named tenon") != NULL) continue;
    return tn_fail(TENON_COMPILE_FAILED, "%s cannot be compiled: %s", model, *message ? message : "the compiler was ended");
  }
  return tn_fail(TENON_NO_COMPILER, "%s is a model, and there is no compiler (%s): install Tenon, or %s", model,
                 first == 0 ? chosen : "no tenon in PATH, and python3 has none", remedy);
}

/* ------------------------------------------------------------------------------------------------------------ model */

static TenonStatus write_source(const char *path, const void *data, size_t size) {
  if (tn_write_file(path, data, size, 1) == 0) return TENON_OK;
  return tn_fail(TENON_SYSTEM, "cannot write %s: make room, or set TENON_CACHE", path);
}

/* A model in memory gets a file of its own name, from which the network's name follows; its weights one beside it. */
static TenonStatus compile_memory(const char *base, const File *content, const char *out, const char *log,
                                  const Request *request) {
  char folder[PATH], path[PATH], weights[PATH];
  const TenonOpenOptions *options = request->options;
  TenonOpenOptions own = *options;
  const Request with_weights = {&own, request->devices};
  const char *name = options->model_name != NULL ? options->model_name : "model";
  for (const char *at = name; *at; at++)
    if (*at == '/' || *at == '\\') name = at + 1;
  if (strlen(name) > 100 || *name == 0 || *name == '.')
    return tn_fail(TENON_INVALID_ARGUMENT, "options.model_name is no name of a file");
  const int has_weights = options->weights == NULL && options->weights_data != NULL;
  const int length = snprintf(folder, sizeof folder, "%s.source", base);
  if (length < 0 || (size_t)length + 128 > sizeof path || tn_make_folders(folder) != 0)
    return tn_fail(TENON_SYSTEM, "cannot create %s", folder);
  snprintf(path, sizeof path, "%.*s/%s", length, folder, name);
  snprintf(weights, sizeof weights, "%.*s/%s.data", length, folder, name);
  TenonStatus status = write_source(path, content->data, content->size);
  if (status == TENON_OK && has_weights) {
    own.weights = weights;
    status = write_source(weights, options->weights_data, options->weights_bytes);
  }
  if (status == TENON_OK) status = compile(path, out, log, &with_weights);
  tn_remove_file(path);
  if (has_weights) tn_remove_file(weights);
  tn_remove_folder(folder);
  return status;
}

static TenonStatus compile_request(Pool *pool, const char *path, const File *content, const Request *request,
                                   const char **bundle) {
  const TenonOpenOptions *options = request->options;
  char folder[PATH], key[2 * KEY + 1], base[PATH + 64], out[PATH + 80], lock[PATH + 80], log[PATH + 80];
  intptr_t held;
  const char *what = path != NULL ? path : "the data";
  TenonStatus status = cache_folder(folder);
  if (status != TENON_OK) return status;
  make_key(path, content, request, key);
  snprintf(base, sizeof base, "%s/%s", folder, key);
  snprintf(out, sizeof out, "%s.tenon", base);
  snprintf(lock, sizeof lock, "%s.lock", base);
  snprintf(log, sizeof log, "%s.log", base);
  if ((*bundle = tn_pool_text(pool, out, strlen(out))) == NULL) return tn_fail(TENON_OUT_OF_MEMORY, "%s: no memory", what);
  if (tn_is_private(out)) return TENON_OK;
  if (options->never_compile) return tn_fail(TENON_NO_COMPILER, "%s is no bundle of Tenon: %s", what, remedy);
  const int64_t seconds = options->compile_seconds > 0 ? options->compile_seconds : DEFAULT_SECONDS;
  status = tn_lock_file(lock, 1000 * seconds, &held);
  if (status != TENON_OK) return status;
  if (!tn_is_private(out)) {
    tn_remove_file(out); /* of another user: not to be overwritten, whose owner it would keep */
    status = path != NULL ? compile(path, out, log, request) : compile_memory(base, content, out, log, request);
  }
  tn_remove_file(log);
  tn_unlock_file(held); /* the lock file stays: others may wait for it */
  return status;
}

TenonStatus tn_compile(Pool *pool, const char *path, const File *content, const TenonOpenOptions *options,
                       const char **bundle) {
  Texts devices = {.pool = pool};
  const TenonStatus status = tn_device_origins(options->device, &devices);
  if (status != TENON_OK) return status;
  if (devices.has_failed) return tn_fail(TENON_OUT_OF_MEMORY, "no memory for the names of devices");
  return compile_request(pool, path, content, &(Request){options, devices.list}, bundle);
}
