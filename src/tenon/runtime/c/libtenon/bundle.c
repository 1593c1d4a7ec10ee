/* Open bundles: verify, load code and weights, and answer questions about them. */

#include "internal.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(_WIN32)
static const char library_format[] = "%s.dll";
#elif defined(__APPLE__)
static const char library_format[] = "lib%s.dylib";
#else
static const char library_format[] = "lib%s.so";
#endif

enum { NAME = 128, WEIGHTS_ALIGNMENT = 64 };

/* ------------------------------------------------------------------------------------------------ life of a bundle */

void tn_bundle_retain(Bundle *bundle) { __atomic_add_fetch(&bundle->references, 1, __ATOMIC_RELAXED); }

void tn_bundle_release(Bundle *bundle) {
  if (bundle == NULL || __atomic_sub_fetch(&bundle->references, 1, __ATOMIC_ACQ_REL) > 0) return;
  if (bundle->library.handle != NULL) tn_library_unload(&bundle->library);
  tn_aligned_release(bundle->weights_copy);
  tn_file_release(&bundle->weights_file);
  tn_file_release(&bundle->manifest);
  tn_file_release(&bundle->container);
  tn_pool_release(&bundle->pool);
  free(bundle);
}

static Bundle *new_bundle(void) {
  Bundle *bundle = calloc(1, sizeof *bundle);
  if (bundle == NULL) return tn_fail(TENON_OUT_OF_MEMORY, "no memory for a bundle"), NULL;
  bundle->references = 1;
  tn_monitor_init(&bundle->monitor);
  return bundle;
}

/* Gives out a handle, or ends the bundle. */
static TenonStatus finish(Bundle *bundle, TenonStatus status, TenonBundle **result) {
  if (status == TENON_OK && (bundle->handle = tn_handle_new(BUNDLE_HANDLE, bundle)) == NULL)
    status = tn_fail(TENON_OUT_OF_MEMORY, "no room for one more bundle");
  if (status == TENON_OK) *result = bundle->handle;
  else tn_bundle_release(bundle);
  return status;
}

/* --------------------------------------------------------------------------------------------------- code, weights */

static TenonStatus verify(const Bundle *bundle, const BundleFiles *files, const char *name, const File *file,
                          int skip_checksum) {
  uint8_t checksum[8];
  const FileRecord *record = bundle->about.files, *end = record + bundle->about.file_count;
  while (record < end && strcmp(record->file, name) != 0) record++;
  if (record == end)
    return tn_fail(TENON_DAMAGED, "%s was saved without %s: save it with its library and weights", files->path, name);
  if (record->bytes == file->size) {
    if (skip_checksum) return TENON_OK;
    tn_checksum(file->data, file->size, bundle->about.format, checksum);
    if (memcmp(checksum, record->checksum, sizeof checksum) == 0) return TENON_OK;
  }
  return tn_fail(TENON_DAMAGED, "%s: %s is damaged (its checksum differs from the manifest's): compile the model again",
                 files->path, name);
}

static TenonStatus load_weights(Bundle *bundle, const BundleFiles *files, int skip_checksum) {
  char name[NAME];
  snprintf(name, sizeof name, "%s.weights.bin", bundle->about.name);
  TenonStatus status = tn_bundle_file(files, name, 1, &bundle->weights_file);
  if (status == TENON_OK) status = verify(bundle, files, name, &bundle->weights_file, skip_checksum);
  if (status != TENON_OK) return status;
  const File *file = &bundle->weights_file;
  if (file->size != bundle->about.constant)
    return tn_fail(TENON_DAMAGED, "%s: %s has %zu bytes and the network reads %llu: compile the model again", files->path,
                   name, file->size, (unsigned long long)bundle->about.constant);
  bundle->weights = file->data;
  if ((uintptr_t)file->data % WEIGHTS_ALIGNMENT == 0) return TENON_OK;
  bundle->weights_copy = tn_aligned_memory(file->size, WEIGHTS_ALIGNMENT);
  if (bundle->weights_copy == NULL) return tn_fail(TENON_OUT_OF_MEMORY, "%s: no memory for the weights", files->path);
  bundle->weights = memcpy(bundle->weights_copy, file->data, file->size);
  return TENON_OK;
}

/* A function of the library; names end in what stands behind the entry point's. */
static void *symbol(const Bundle *bundle, const char *entry, const char *end) {
  char name[2 * NAME];
  snprintf(name, sizeof name, "%s%s", entry, end);
  return tn_library_symbol(&bundle->library, name);
}

static TenonStatus check_layout(Bundle *bundle, const char *origin) {
  const char *text = symbol(bundle, bundle->about.name, "_layout");
  const unsigned *size = symbol(bundle, bundle->about.name, "_layout_size");
  Description own = {0};
  if (text == NULL || size == NULL)
    return tn_fail(TENON_DAMAGED, "%s: the library is not that of a bundle: compile the model again", origin);
  const TenonStatus status = tn_read_layout(&bundle->pool, text, *size, origin, &own);
  if (status != TENON_OK) return status;
  if (tn_same_layout(&bundle->about, &own) && bundle->about.timed_calls == own.timed_calls) return TENON_OK;
  return tn_fail(TENON_DAMAGED, "%s: the library was compiled for another layout of memory than the manifest says: copy "
                 "the whole bundle, or compile the model again", origin);
}

static TenonStatus no_function(const char *origin, const char *entry, const char *end) {
  return tn_fail(TENON_DAMAGED, "%s: the library has no %s%s: compile the model again", origin, entry, end);
}

static TenonStatus resolve(Bundle *bundle, const char *origin) {
  const Description *about = &bundle->about;
  const size_t count = (size_t)about->binding_count;
  bundle->run = tn_pool_take(&bundle->pool, count * sizeof *bundle->run);
  bundle->phase = about->threads > 1 ? tn_pool_take(&bundle->pool, count * sizeof *bundle->phase) : NULL;
  if (bundle->run == NULL || (about->threads > 1 && bundle->phase == NULL))
    return tn_fail(TENON_OUT_OF_MEMORY, "%s: no memory", origin);
  for (size_t i = 0; i < count; i++) {
    const char *entry = about->bindings[i].entry;
    if (!(bundle->run[i] = (RunFunction *)(uintptr_t)symbol(bundle, entry, ""))) return no_function(origin, entry, "");
    if (bundle->phase != NULL && !(bundle->phase[i] = (PhaseFunction *)(uintptr_t)symbol(bundle, entry, "_phase")))
      return no_function(origin, entry, "_phase");
  }
  if (about->timed_calls == 0) return TENON_OK;
  const char *entry = about->bindings[0].entry;
  bundle->profile = (PhaseFunction *)(uintptr_t)symbol(bundle, entry, "_profile");
  return bundle->profile != NULL ? TENON_OK : no_function(origin, entry, "_profile");
}

static TenonStatus load_library(Bundle *bundle, const BundleFiles *files, int skip_checksum) {
  char name[NAME];
  File file = {0};
  snprintf(name, sizeof name, library_format, bundle->about.name);
  TenonStatus status = tn_bundle_file(files, name, 0, &file);
  if (status == TENON_OK) status = verify(bundle, files, name, &file, skip_checksum);
  if (status == TENON_OK) status = tn_library_load(file.data, file.size, files->path, &bundle->library);
  tn_file_release(&file);
  if (status == TENON_OK) status = check_layout(bundle, files->path);
  return status == TENON_OK ? resolve(bundle, files->path) : status;
}

/* Memory that was taken for a file does, and most parts of a container, which zeros fill to whole pages. */
static int ends_in_zero(const BundleFiles *files, const File *file) {
  if (file->kind == ALLOCATED || file->kind == ALIGNED) return 1;
  const uint8_t *end = file->data + file->size;
  return file->kind == BORROWED && end < files->container + files->size && *end == 0;
}

static TenonStatus read_description(Bundle *bundle, const BundleFiles *files) {
  File file = {0};
  const TenonStatus status = tn_bundle_file(files, "manifest.json", 0, &file);
  if (status != TENON_OK) return status;
  if (!ends_in_zero(files, &file)) {
    const char *text = tn_pool_text(&bundle->pool, (const char *)file.data, file.size);
    const File copy = {(const uint8_t *)text, file.size, BORROWED, NULL};
    tn_file_release(&file);
    if (text == NULL) return tn_fail(TENON_OUT_OF_MEMORY, "%s: no memory for the manifest", files->path);
    file = copy;
  }
  bundle->manifest = file;
  return tn_read_manifest(&bundle->pool, (const char *)file.data, file.size, files->path, &bundle->about);
}

static TenonStatus load(Bundle *bundle, const BundleFiles *files, int skip_checksum) {
  TenonStatus status = read_description(bundle, files);
  if (status != TENON_OK) return status;
  if (strlen(bundle->about.name) > NAME - 32)
    return tn_fail(TENON_DAMAGED, "%s: the name of the network is too long", files->path);
  if (tn_target_features(bundle->about.target) < 0)
    return tn_fail(TENON_WRONG_MACHINE, "%s was made for %s, whose code this machine does not execute: compile the model "
                   "again with --target for it", files->path, bundle->about.target);
  status = load_weights(bundle, files, skip_checksum);
  if (status == TENON_OK) status = load_library(bundle, files, skip_checksum);
  return status == TENON_OK ? tn_attach_device(bundle) : status;
}

/* ---------------------------------------------------------------------------------------------------------- opening */

/* `has_key`: it has to be encrypted. */
static TenonStatus load_container(Bundle *bundle, const char *origin, const TenonOpenOptions *options, int has_key) {
  BundleFiles files = {0};
  const File *file = &bundle->container;
  TenonStatus status = tn_container_open(&bundle->pool, file->data, file->size, origin, options, has_key, &files);
  if (status == TENON_OK) status = load(bundle, &files, options->skip_checksums);
  tn_wipe(files.key, sizeof files.key);
  return status;
}

static int copy_text(Pool *pool, const char **text) {
  return *text == NULL || (*text = tn_pool_text(pool, *text, strlen(*text))) != NULL;
}

/* Keeps how a model was opened, so that it can be compiled for other shapes. */
static TenonStatus remember_model(Bundle *bundle, const char *path, const TenonOpenOptions *options) {
  size_t count = 0;
  while (options->arguments != NULL && options->arguments[count] != NULL) count++;
  TenonOpenOptions *own = tn_pool_take(&bundle->pool, sizeof *own);
  const char **arguments = tn_pool_take(&bundle->pool, (count + 1) * sizeof *arguments);
  int whole = own != NULL && arguments != NULL;
  if (whole) {
    *own = (TenonOpenOptions){.skip_checksums = options->skip_checksums, .never_compile = options->never_compile,
                              .target = options->target, .model_name = options->model_name,
                              .weights = options->weights, .arguments = arguments, .threads = options->threads,
                              .compile_seconds = options->compile_seconds, .weights_data = options->weights_data,
                              .weights_bytes = options->weights_bytes, .device = options->device};
    whole = copy_text(&bundle->pool, &own->target) && copy_text(&bundle->pool, &own->model_name) &&
            copy_text(&bundle->pool, &own->weights) && copy_text(&bundle->pool, &own->device);
  }
  for (size_t i = 0; whole && i < count; i++) {
    arguments[i] = options->arguments[i];
    whole = copy_text(&bundle->pool, &arguments[i]);
  }
  if (!whole) return tn_fail(TENON_OUT_OF_MEMORY, "no memory for the options of a model");
  bundle->model = own;
  bundle->model_path = path;
  if (path == NULL) bundle->model_content = bundle->container;
  return TENON_OK;
}

static TenonStatus compile_with_key(Bundle *bundle, const char *path, const TenonOpenOptions *options) {
  const char *compiled;
  TenonStatus status = tn_compile(&bundle->pool, path, &bundle->container, options, &compiled);
  if (status != TENON_OK) return status;
  tn_file_release(&bundle->container);
  status = tn_file_map_checked(compiled, tn_is_private_descriptor, &bundle->container);
  if (status != TENON_OK) return status;
  status = load_container(bundle, compiled, options, options->key != NULL);
  if (status == TENON_DAMAGED) tn_remove_file(compiled); /* the next opening compiles again */
  return status;
}

/* The bundle of an encrypted model is kept encrypted, too. */
static TenonStatus compile_and_load(Bundle *bundle, const char *path, const TenonOpenOptions *options) {
  uint8_t key[TENON_KEY_BYTES];
  int has_key;
  const char *origin = path != NULL ? path : "the model in memory";
  TenonOpenOptions with_key = *options;
  if (options->public_key != NULL)
    return tn_fail(TENON_NOT_SIGNED, "%s is a model: only .tenon files are signed: compile and sign it first", origin);
  TenonStatus status = tn_find_model_key(options, origin, &bundle->container, key, &has_key);
  with_key.key = has_key ? key : NULL;
  bundle->is_sealed_model = has_key || options->transform != NULL;
  if (status == TENON_OK && !bundle->is_sealed_model) status = remember_model(bundle, path, options);
  if (status == TENON_OK) status = compile_with_key(bundle, path, &with_key);
  tn_wipe(key, sizeof key);
  return status;
}

/* Replaces the content of a file by what the program's function makes of a copy. */
static TenonStatus transform(Bundle *bundle, const char *origin, const TenonOpenOptions *options) {
  File *file = &bundle->container;
  uint8_t *copy = tn_aligned_memory(file->size, WEIGHTS_ALIGNMENT);
  if (copy == NULL) return tn_fail(TENON_OUT_OF_MEMORY, "%s: no memory to transform it", origin);
  memcpy(copy, file->data, file->size);
  const File transformed = {copy, file->size, ALIGNED, NULL};
  tn_file_release(file);
  *file = transformed;
  const int error = options->transform(options->transform_context, copy, transformed.size);
  return error == 0 ? TENON_OK : tn_fail(TENON_DAMAGED, "%s: the program's transform returned the error %d", origin, error);
}

static TenonStatus check_options(const TenonOpenOptions *options) {
  if (options->minimum_version >= 0 && (options->minimum_version == 0 || options->public_key != NULL)) return TENON_OK;
  return tn_fail(TENON_INVALID_ARGUMENT, "options.minimum_version is negative, or there is no public_key, which says whose "
                 "versions count");
}

/* Opens what bundle->container holds; a model has a path, or NULL if it is in memory. */
static TenonStatus open_content(Bundle *bundle, const char *origin, const char *path, const TenonOpenOptions *options) {
  if (options->transform != NULL) {
    const TenonStatus status = transform(bundle, origin, options);
    if (status != TENON_OK) return status;
    path = NULL;
  }
  if (!tn_is_container(bundle->container.data, bundle->container.size)) return compile_and_load(bundle, path, options);
  return load_container(bundle, origin, options, tn_has_key(options));
}

TenonStatus tn_bundle_for_shapes(const Bundle *model, const char *const *shapes, Bundle **other) {
  TenonOpenOptions options = *model->model;
  Bundle *bundle = new_bundle();
  if (bundle == NULL) return TENON_OUT_OF_MEMORY;
  options.shapes = shapes;
  bundle->container = model->model_content;
  TenonStatus status = model->model_path != NULL ? tn_file_map(model->model_path, &bundle->container) : TENON_OK;
  if (status == TENON_OK) status = compile_and_load(bundle, model->model_path, &options);
  if (status == TENON_OK) *other = bundle;
  else tn_bundle_release(bundle);
  return status;
}

static TenonStatus open_path(Bundle *bundle, const char *path, const TenonOpenOptions *options) {
  char *name = tn_pool_text(&bundle->pool, path, strlen(path));
  char manifest[4096];
  if (name == NULL) return tn_fail(TENON_OUT_OF_MEMORY, "%s: no memory", path);
  TenonStatus status = tn_file_map(path, &bundle->container);
  if (status == TENON_OK && bundle->container.size > 0) return open_content(bundle, name, name, options);
  if (!tn_exists(path)) return tn_fail(TENON_NOT_FOUND, "there is no %s", path);
  if (tn_is_folder(path)) {
    if ((size_t)snprintf(manifest, sizeof manifest, "%s/manifest.json", path) >= sizeof manifest)
      return tn_fail(TENON_SYSTEM, "%s: the path is too long", path);
    if (!tn_exists(manifest))
      return tn_fail(TENON_NOT_FOUND, "%s is not a bundle: it holds no manifest.json: compile a model in a folder first", path);
    if (options->public_key != NULL || options->transform != NULL)
      return tn_fail(TENON_INVALID_ARGUMENT, "%s is a folder: only .tenon files are signed, or stored in another form", path);
    if (tn_has_key(options)) return tn_not_encrypted(path);
    const BundleFiles files = {.path = name, .prefix = ""};
    return load(bundle, &files, options->skip_checksums);
  }
  return status == TENON_OK ? open_content(bundle, name, name, options) : status;
}

TenonStatus tenon_bundle_open(const char *path, const TenonOpenOptions *given, TenonBundle **result) {
  TenonOpenOptions options;
  if (path == NULL || result == NULL)
    return tn_fail(TENON_INVALID_ARGUMENT, "tenon_bundle_open: %s is NULL", path == NULL ? "the path" : "the result");
  TenonStatus status = tn_options(given, &options, sizeof options, "TENON_OPEN_OPTIONS_INIT");
  if (status == TENON_OK) status = check_options(&options);
  if (status != TENON_OK) return status;
  Bundle *bundle = new_bundle();
  if (bundle == NULL) return TENON_OUT_OF_MEMORY;
  return finish(bundle, open_path(bundle, path, &options), result);
}

TenonStatus tenon_bundle_open_memory(const void *data, size_t bytes, const TenonOpenOptions *given, TenonBundle **result) {
  TenonOpenOptions options;
  if (data == NULL || result == NULL)
    return tn_fail(TENON_INVALID_ARGUMENT, "tenon_bundle_open_memory: %s is NULL", data == NULL ? "the data" : "the result");
  TenonStatus status = tn_options(given, &options, sizeof options, "TENON_OPEN_OPTIONS_INIT");
  if (status == TENON_OK) status = check_options(&options);
  if (status != TENON_OK) return status;
  Bundle *bundle = new_bundle();
  if (bundle == NULL) return TENON_OUT_OF_MEMORY;
  bundle->container = (File){data, bytes, BORROWED, NULL};
  return finish(bundle, open_content(bundle, "the bundle in memory", NULL, &options), result);
}

static TenonStatus attach_steps(Bundle *bundle, const TenonLinked *linked) {
  Description *about = &bundle->about;
  const size_t timed = (size_t)about->timed_calls;
  about->timed_calls = 0;
  if (linked->profile == NULL || linked->steps == NULL || timed == 0) return TENON_OK;
  if (linked->step_count != timed)
    return tn_fail(TENON_WRONG_SIZE, "%s: there are %zu steps and the code has %zu", linked->name, linked->step_count, timed);
  about->steps = tn_pool_take(&bundle->pool, timed * sizeof *about->steps);
  if (about->steps == NULL) return tn_fail(TENON_OUT_OF_MEMORY, "%s: no memory", linked->name);
  memcpy(about->steps, linked->steps, timed * sizeof *about->steps);
  about->timed_calls = about->step_count = (int)timed;
  bundle->profile = linked->profile;
  return TENON_OK;
}

static TenonStatus attach(Bundle *bundle, const TenonLinked *linked) {
  Description *about = &bundle->about;
  TenonStatus status = tn_read_layout(&bundle->pool, linked->layout, linked->layout_bytes, linked->name, about);
  if (status != TENON_OK) return status;
  if (about->constant != linked->weights_bytes)
    return tn_fail(TENON_WRONG_SIZE, "%s: the weights have %zu bytes and the network reads %llu", linked->name,
                   linked->weights_bytes, (unsigned long long)about->constant);
  if ((uintptr_t)linked->weights % WEIGHTS_ALIGNMENT != 0)
    return tn_fail(TENON_INVALID_ARGUMENT, "%s: the weights are not aligned to %d bytes", linked->name, WEIGHTS_ALIGNMENT);
  const size_t count = (size_t)about->binding_count;
  about->name = tn_pool_text(&bundle->pool, linked->name, strlen(linked->name));
  about->target = "linked";
  if (linked->phase == NULL) about->threads = 1;
  bundle->weights = linked->weights;
  bundle->run = tn_pool_take(&bundle->pool, count * sizeof *bundle->run);
  bundle->phase = tn_pool_take(&bundle->pool, count * sizeof *bundle->phase);
  if (about->name == NULL || bundle->run == NULL || bundle->phase == NULL)
    return tn_fail(TENON_OUT_OF_MEMORY, "%s: no memory", linked->name);
  for (size_t i = 0; i < count; i++) {
    bundle->run[i] = linked->run[i];
    bundle->phase[i] = about->threads > 1 ? linked->phase[i] : NULL;
  }
  status = attach_steps(bundle, linked);
  return status == TENON_OK ? tn_attach_device(bundle) : status;
}

TenonStatus tenon_bundle_from_program(const TenonLinked *given, TenonBundle **result) {
  TenonLinked linked;
  if (given == NULL || result == NULL || given->struct_size < offsetof(TenonLinked, profile))
    return tn_fail(TENON_INVALID_ARGUMENT, "tenon_bundle_from_program: an argument is NULL, or struct_size is not set");
  const TenonStatus status = tn_options(given, &linked, sizeof linked, "sizeof(TenonLinked)");
  if (status != TENON_OK) return status;
  if (linked.name == NULL || linked.layout == NULL || linked.run == NULL ||
      (linked.weights == NULL && linked.weights_bytes > 0))
    return tn_fail(TENON_INVALID_ARGUMENT, "tenon_bundle_from_program: name, layout, run or weights is NULL");
  Bundle *bundle = new_bundle();
  return bundle != NULL ? finish(bundle, attach(bundle, &linked), result) : TENON_OUT_OF_MEMORY;
}

TenonStatus tenon_bundle_close(TenonBundle *handle) {
  Bundle *bundle = tn_handle_object(BUNDLE_HANDLE, handle);
  if (bundle == NULL) return TENON_INVALID_HANDLE;
  tn_handle_end(handle);
  tn_bundle_release(bundle);
  return TENON_OK;
}
