/* Opening bundles, and models, which are compiled first. */

#include "bundle.h"
#include "bundle_device.h"
#include "compile.h"
#include "encryption.h"
#include "errors.h"
#include "key.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* `has_key`: it has to be encrypted. */
static TenonStatus load_target(Bundle *bundle, const char *origin, const TenonOpenOptions *options, int has_key) {
  BundleFiles files = {0};
  const File *file = &bundle->container;
  TenonStatus status = tn_container_open(&bundle->pool, file->data, file->size, origin, options, has_key, &files);
  if (status == TENON_OK) status = tn_bundle_load(bundle, &files, options);
  tn_wipe(files.key, sizeof files.key);
  return status;
}

/* The first of several targets, separated by commas, whose device there is. */
static TenonStatus load_container(Bundle *bundle, const char *origin, const TenonOpenOptions *options, int has_key) {
  TenonOpenOptions own = *options;
  const char *list = options->target != NULL ? options->target : getenv("TENON_OPEN_TARGET");
  while (list != NULL && strchr(list, ',') != NULL) {
    const size_t length = strcspn(list, ",");
    if ((own.target = tn_pool_text(&bundle->pool, list, length)) == NULL)
      return tn_fail(TENON_OUT_OF_MEMORY, "%s: no memory", origin);
    const TenonStatus status = load_target(bundle, origin, &own, has_key);
    if (status != TENON_OK || bundle->queues == NULL || bundle->queues->device()[0] != 0) return status;
    tn_bundle_unload(bundle);
    list += length + 1;
    while (*list == ' ') list++;
    own.target = list;
  }
  return load_target(bundle, origin, &own, has_key);
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
  Bundle *bundle = tn_bundle_new();
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
  tn_open_parts_by(tenon_bundle_open_memory);
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
    return tn_bundle_load(bundle, &files, options);
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
  Bundle *bundle = tn_bundle_new();
  if (bundle == NULL) return TENON_OUT_OF_MEMORY;
  return tn_bundle_give(bundle, open_path(bundle, path, &options), result);
}

TenonStatus tenon_bundle_open_memory(const void *data, size_t bytes, const TenonOpenOptions *given, TenonBundle **result) {
  TenonOpenOptions options;
  if (data == NULL || result == NULL)
    return tn_fail(TENON_INVALID_ARGUMENT, "tenon_bundle_open_memory: %s is NULL", data == NULL ? "the data" : "the result");
  TenonStatus status = tn_options(given, &options, sizeof options, "TENON_OPEN_OPTIONS_INIT");
  if (status == TENON_OK) status = check_options(&options);
  if (status != TENON_OK) return status;
  Bundle *bundle = tn_bundle_new();
  if (bundle == NULL) return TENON_OUT_OF_MEMORY;
  bundle->container = (File){data, bytes, BORROWED, NULL};
  tn_open_parts_by(tenon_bundle_open_memory);
  return tn_bundle_give(bundle, open_content(bundle, "the bundle in memory", NULL, &options), result);
}
