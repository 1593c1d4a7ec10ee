/* Versions, contexts, and functions of the library that have no effect in Tengine. */

#include "library.h"
#include "handle.h"
#include "messages.h"
#include "tenon.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int is_initialised;

int init_tengine(void) {
  is_initialised = 1;
  return 0;
}

void release_tengine(void) { is_initialised = 0; }

int tg_is_initialised(void) { return is_initialised; }

const char *get_tengine_version(void) { return "1.5-dev"; }

const char *get_tengine_hcl_version(void) { return NULL; }

int request_tengine_version(const char *version) { return (void)version, 1; }

int get_tengine_errno(void) { return -1; }

int clr_tengine_errno(void) { return -1; }

size_t get_cluster_affinity_mask(int cluster) { return (void)cluster, (size_t)-1; }

const char *get_default_device(void) { return "CPU"; }

int set_default_device(const char *device) { return (void)device, -1; }

/* --------------------------------------------------------------------------------------------------------- contexts */

typedef struct {
  void *handle;
  char name[NAME], device[NAME]; /* the device is "" of an empty context */
  char *gpu;                     /* options of a GPU, as TenonEngineOptions has them; NULL: none */
} Context;

/* The options that a context gives Tengine's OpenCL device (struct ocl_option of its ocl_define.h). */
typedef struct {
  const char *device_name;
  int precision;
  const char *cache_path;
  _Bool load_cache, store_cache;
} OpenclOptions;

static const HandleKind context_kind = {"context", "destroyed"};

static Context *context_of(context_t handle) { return tn_handle_object(&context_kind, handle); }

int tg_is_context(context_t handle) { return context_of(handle) != NULL; }

context_t create_context(const char *name, int empty_context) {
  Context *context = calloc(1, sizeof *context);
  if (context == NULL) return NULL;
  snprintf(context->name, sizeof context->name, "%s", name != NULL ? name : "");
  if (!empty_context) strcpy(context->device, "CPU");
  context->handle = tn_handle_new(&context_kind, context);
  if (context->handle != NULL) return context->handle;
  free(context);
  return NULL;
}

void destroy_context(context_t handle) {
  Context *context = context_of(handle);
  if (context == NULL) return;
  tn_handle_end(handle);
  free(context->gpu);
  free(context);
}

const char *tg_gpu_target(const char *device) {
  static const char names[][2][8] = {{"OCL", "opencl"}, {"CUDA", "cuda"}, {"VK", "vulkan"}};
  for (int i = 0; i < 3; i++)
    if (strcmp(device, names[i][0]) == 0) return names[i][1];
  return NULL;
}

int tg_set_device(char device[NAME], const char *name) {
  const int is_known = strcmp(name, "CPU") == 0 || tg_gpu_target(name) != NULL;
  if (!is_known && tenon_device_describe(name) == NULL) return tg_error("%s", tenon_last_error());
  if (strlen(name) >= NAME) return tg_error("the name of device %s is too long", name);
  strcpy(device, name);
  return 0;
}

const char *tg_context_device(context_t handle) {
  const Context *context = handle != NULL ? context_of(handle) : NULL;
  return context != NULL && context->device[0] != 0 ? context->device : "CPU";
}

const char *tg_context_gpu(context_t handle) {
  const Context *context = handle != NULL ? context_of(handle) : NULL;
  return context != NULL ? context->gpu : NULL;
}

int get_context_device_number(context_t handle) {
  if (handle == NULL) return 0;
  const Context *context = context_of(handle);
  return context != NULL ? context->device[0] != 0 : -1;
}

int add_context_device(context_t handle, const char *device) {
  Context *context = context_of(handle);
  if (context == NULL || device == NULL) return -1;
  if (context->device[0] != 0) return tg_error("context %s has a device already: %s", context->name, context->device);
  return tg_set_device(context->device, device);
}

/* Compiled kernels are kept in a folder. */
static int set_gpu_cache(Context *context, const char *folder) {
  const size_t bytes = strlen(folder) + sizeof "cache: \n";
  free(context->gpu);
  context->gpu = malloc(bytes);
  if (context->gpu == NULL) return tg_error("no memory for a context");
  snprintf(context->gpu, bytes, "cache: %s\n", folder);
  return 0;
}

int set_context_device(context_t handle, const char *device, const void *options, size_t options_size) {
  const OpenclOptions *opencl = options;
  if (add_context_device(handle, device) != 0) return -1;
  const int has_cache = strcmp(device, "OCL") == 0 && opencl != NULL && options_size == sizeof *opencl &&
                        opencl->cache_path != NULL && (opencl->load_cache || opencl->store_cache);
  return has_cache ? set_gpu_cache(context_of(handle), opencl->cache_path) : 0;
}

int remove_context_device(context_t handle, const char *device) {
  Context *context = context_of(handle);
  if (context == NULL) return -1;
  if (device == NULL) return 0; /* as in Tengine */
  if (context->device[0] == 0 || strcmp(device, context->device) != 0) return -1;
  context->device[0] = 0;
  return 0;
}

int set_context_attr(context_t context, const char *name, const void *value, int size) {
  (void)context, (void)name, (void)value, (void)size;
  return -1;
}

int get_context_attr(context_t context, const char *name, void *value, int size) {
  (void)context, (void)name, (void)value, (void)size;
  return -1;
}
