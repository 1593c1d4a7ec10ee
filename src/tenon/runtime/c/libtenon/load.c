/* Loading a bundle: verify its files, map its weights, load its code, and find its device. */

#include "bundle.h"
#include "bundle_device.h"
#include "device.h"
#include "digest.h"
#include "errors.h"
#include "processor.h"

#include <stdio.h>
#include <string.h>

#if defined(_WIN32)
static const char library_format[] = "%s.dll";
#elif defined(__APPLE__)
static const char library_format[] = "lib%s.dylib";
#else
static const char library_format[] = "lib%s.so";
#endif

enum { NAME = 128 };

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
    tn_checksum(file->data, file->size, checksum);
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

/* The tables of texts, at a multiple of 8, of a bundle that was saved with them. */
static TenonStatus load_text(Bundle *bundle, const BundleFiles *files, int skip_checksum) {
  char name[NAME];
  snprintf(name, sizeof name, "%s.text.bin", bundle->about.name);
  const FileRecord *record = bundle->about.files, *end = record + bundle->about.file_count;
  while (record < end && strcmp(record->file, name) != 0) record++;
  if (record == end) return TENON_OK;
  File *file = &bundle->text_file;
  TenonStatus status = tn_bundle_file(files, name, 1, file);
  if (status == TENON_OK) status = verify(bundle, files, name, file, skip_checksum);
  if (status != TENON_OK || (uintptr_t)file->data % sizeof(uint64_t) == 0) return status;
  bundle->text_copy = tn_aligned_memory(file->size, sizeof(uint64_t));
  if (bundle->text_copy == NULL) return tn_fail(TENON_OUT_OF_MEMORY, "%s: no memory for %s", files->path, name);
  memcpy(bundle->text_copy, file->data, file->size);
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
  bundle->next = about->threads > 1 ? tn_pool_take(&bundle->pool, count * sizeof *bundle->next) : NULL;
  bundle->reset = tn_pool_take(&bundle->pool, count * sizeof *bundle->reset);
  if (bundle->run == NULL || bundle->reset == NULL || (about->threads > 1 && (bundle->phase == NULL || bundle->next == NULL)))
    return tn_fail(TENON_OUT_OF_MEMORY, "%s: no memory", origin);
  for (size_t i = 0; i < count; i++) {
    const char *entry = about->bindings[i].entry;
    if (!(bundle->run[i] = (RunFunction *)(uintptr_t)symbol(bundle, entry, ""))) return no_function(origin, entry, "");
    if (bundle->phase != NULL && !(bundle->phase[i] = (PhaseFunction *)(uintptr_t)symbol(bundle, entry, "_phase")))
      return no_function(origin, entry, "_phase");
    bundle->reset[i] = (ResetFunction *)(uintptr_t)symbol(bundle, entry, "_reset");
    if (bundle->next != NULL && !(bundle->next[i] = (NextFunction *)(uintptr_t)symbol(bundle, entry, "_next")))
      return no_function(origin, entry, "_next");
  }
  const TenonStatus status = tn_attach_queues(bundle);
  if (about->timed_calls == 0 || bundle->queues != NULL || status != TENON_OK) return status;
  const char *entry = about->bindings[0].entry;
  bundle->profile = (PhaseFunction *)(uintptr_t)symbol(bundle, entry, "_profile");
  bundle->profile_next = (NextFunction *)(uintptr_t)symbol(bundle, entry, "_profile_next");
  if (bundle->profile == NULL) return no_function(origin, entry, "_profile");
  return bundle->profile_next != NULL ? TENON_OK : no_function(origin, entry, "_profile_next");
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

/* Lets a device join those of the bundle, unless it is one of them, and gives its number. */
static TenonStatus part_device(Bundle *bundle, const char *name, int host_only, uint8_t *result) {
  const TenonDevice *device = tn_find_device(name, host_only);
  int number = 0;
  if (device == NULL) return TENON_NOT_FOUND;
  while (number < bundle->device_count && bundle->devices[number].device != device) number++;
  if (number == PART_DEVICES)
    return tn_fail(TENON_UNSUPPORTED, "%s: parts run on more than %d devices", bundle->about.name, PART_DEVICES);
  if (number == bundle->device_count)
    bundle->devices[bundle->device_count++] = (PartDevice){device, tn_begin_part_of(device), 0};
  *result = (uint8_t)number;
  return TENON_OK;
}

static int is_device_input(const Port *port) {
  static const char prefix[] = TENON_DEVICE_INPUT;
  return strncmp(port->tensor.name, prefix, sizeof prefix - 1) == 0 && port->tensor.type == TENON_U64 &&
         port->tensor.bytes >= 2 * sizeof(uint64_t);
}

TenonStatus tn_attach_devices(Bundle *bundle, int host_only) {
  bundle->device_count = 0;
  for (int i = 0; i < bundle->about.binding_count; i++) {
    Binding *binding = &bundle->about.bindings[i];
    const int all = binding->input_count;
    while (binding->input_count > 0 && is_device_input(&binding->inputs[binding->input_count - 1])) binding->input_count--;
    for (int k = binding->input_count; k < all; k++) {
      const TenonTensor *input = &binding->inputs[k].tensor;
      uint8_t *number = &binding->devices[binding->device_count < PART_DEVICES ? binding->device_count++ : 0];
      const TenonStatus status = part_device(bundle, input->name + sizeof TENON_DEVICE_INPUT - 1, host_only, number);
      if (status != TENON_OK) return status;
      const int parts = (int)(input->bytes / sizeof(uint64_t)) - 2;
      if (parts > bundle->devices[*number].part_count) bundle->devices[*number].part_count = parts;
    }
  }
  return TENON_OK;
}

TenonStatus tn_bundle_load(Bundle *bundle, const BundleFiles *files, const TenonOpenOptions *options) {
  const int skip_checksum = options->skip_checksums;
  TenonStatus status = read_description(bundle, files);
  if (status != TENON_OK) return status;
  if (strlen(bundle->about.name) > NAME - 32)
    return tn_fail(TENON_DAMAGED, "%s: the name of the network is too long", files->path);
  if (tn_target_features(bundle->about.target) < 0)
    return tn_fail(TENON_WRONG_MACHINE, "%s was made for %s, whose code this machine does not execute: compile the model "
                   "again with --target for it", files->path, bundle->about.target);
  status = load_weights(bundle, files, skip_checksum);
  if (status == TENON_OK) status = load_text(bundle, files, skip_checksum);
  if (status == TENON_OK) status = load_library(bundle, files, skip_checksum);
  const int host_only = options->target != NULL && strcmp(options->target, "host") == 0;
  return status == TENON_OK ? tn_attach_devices(bundle, host_only) : status;
}
