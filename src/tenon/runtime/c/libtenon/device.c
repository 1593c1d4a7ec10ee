/* Devices: shared libraries, or functions of the program, that run parts of networks. */

#include "device.h"

#include "bundle_device.h"
#include "errors.h"
#include "path_list.h"
#include "platform.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEVICES = 16, PATH = 4096 };

typedef struct {
  const TenonDevice *device;
  char *origin; /* "PATH=ARGUMENT" of the plug-in; NULL of a device of the program */
} Entry;

static Entry entries[DEVICES];
static int entry_count;
static uint32_t busy;

static void take(void) {
  while (__atomic_exchange_n(&busy, 1, __ATOMIC_ACQUIRE)) {
  }
}

static void leave(void) { __atomic_store_n(&busy, 0, __ATOMIC_RELEASE); }

/* ----------------------------------------------------------------------------------------------------- registration */

/* Names are equal in capitals and small letters: some programs write them in capitals. */
static int is_name(const char *a, const char *b) {
  while (*a && ((*a ^ *b) == 0 || ((*a ^ *b) == 32 && (*a | 32) >= 'a' && (*a | 32) <= 'z'))) a++, b++;
  return *a == *b;
}

static const Entry *known(const char *name) {
  const Entry *found = NULL;
  take();
  for (int i = 0; i < entry_count && found == NULL; i++)
    if (is_name(entries[i].device->name, name)) found = &entries[i];
  leave();
  return found;
}

/* Owns `origin`. */
static TenonStatus add(const TenonDevice *device, char *origin) {
  TenonStatus status = TENON_OK;
  if (device->abi != TENON_DEVICE_ABI || device->struct_size < offsetof(TenonDevice, seconds))
    status = tn_fail(TENON_UNSUPPORTED, "the device was built for version %d of tenon_device.h, not %d: compile it again",
                     (int)device->abi, TENON_DEVICE_ABI);
  else if (device->name == NULL || device->prerun == NULL || device->run == NULL || device->postrun == NULL)
    status = tn_fail(TENON_INVALID_ARGUMENT, "the device has no name, or no prerun, run or postrun");
  const Entry *same = status == TENON_OK ? known(device->name) : NULL;
  if (same != NULL && same->device != device)
    status = tn_fail(TENON_WRONG_STATE, "there is a device '%s' already", device->name);
  take();
  if (status == TENON_OK && same == NULL && entry_count < DEVICES) entries[entry_count++] = (Entry){device, origin};
  else if (status == TENON_OK && same == NULL) status = tn_fail(TENON_UNSUPPORTED, "there are %d devices already", DEVICES);
  else free(origin);
  leave();
  return status;
}

TenonStatus tenon_device_register(const TenonDevice *device) {
  return device != NULL ? add(device, NULL) : tn_fail(TENON_INVALID_ARGUMENT, "tenon_device_register: the device is NULL");
}

TenonStatus tenon_device_load(const char *path, const char *argument) {
  Library library = {NULL, -1};
  const char *message = NULL, *given = argument != NULL ? argument : "";
  if (path == NULL) return tn_fail(TENON_INVALID_ARGUMENT, "tenon_device_load: the path is NULL");
  const TenonStatus status = tn_library_open(path, &library);
  if (status != TENON_OK) return status;
  TenonPluginDevice *entry = (TenonPluginDevice *)(uintptr_t)tn_library_symbol(&library, "tenon_plugin_device");
  if (entry == NULL) {
    tn_library_unload(&library);
    return tn_fail(TENON_INVALID_ARGUMENT, "%s is no plug-in with a device: it has no function tenon_plugin_device", path);
  }
  const TenonDevice *device = entry(given, &message);
  if (device == NULL)
    return tn_fail(TENON_UNSUPPORTED, "%s: %s", path, message != NULL ? message : "the device cannot be used");
  const size_t room = strlen(path) + strlen(given) + 2;
  char *origin = malloc(room);
  if (origin == NULL) return tn_fail(TENON_OUT_OF_MEMORY, "%s: no memory", path);
  snprintf(origin, room, "%s=%s", path, given);
  return add(device, origin);
}

/* Also those that TENON_DEVICE_PLUGINS lists; NULL, and an error text, if there is none of that name. */
static const Entry *find(const char *name) {
  const char *list = getenv("TENON_DEVICE_PLUGINS");
  char path[PATH];
  TenonStatus status = TENON_OK;
  const Entry *found = known(name);
  for (int entry; found == NULL && (entry = tn_next_of_list(&list, path, sizeof path)) != 0;) {
    if (entry < 0) return tn_fail(TENON_INVALID_ARGUMENT, "TENON_DEVICE_PLUGINS has an entry that is too long"), NULL;
    char *argument = strchr(path, '=');
    if (argument != NULL) *argument++ = 0;
    if ((status = tenon_device_load(path, argument)) != TENON_OK) return NULL;
    found = known(name);
  }
  if (found == NULL)
    tn_fail(TENON_NOT_FOUND, "there is no device '%s': tenon_device_load comes first, or set TENON_DEVICE_PLUGINS to its "
            "library", name);
  return found;
}

const TenonDevice *tn_find_device(const char *name, int host_only) {
  const TenonDevice *device = tn_bundle_device(name, host_only);
  const Entry *entry = device == NULL ? find(name) : NULL;
  return entry != NULL ? entry->device : device;
}

const char *tenon_device_describe(const char *name) {
  const TenonDevice *device = name != NULL ? tn_find_device(name, 0) : NULL;
  if (device == NULL || device->describe == NULL) return device != NULL ? "" : NULL;
  return device->describe(device->self);
}

static TenonStatus add_origin(const char *name, Texts *origins) {
  if (tn_bundle_device(name, 0) != NULL) {
    tn_texts_add(origins, tn_pool_text(origins->pool, name, strlen(name)));
    return TENON_OK;
  }
  const Entry *found = find(name);
  if (found == NULL) return TENON_NOT_FOUND;
  if (found->origin != NULL) tn_texts_add(origins, found->origin);
  return found->origin != NULL ? TENON_OK
                               : tn_fail(TENON_UNSUPPORTED, "device '%s' is not of a shared library, so that the compiler "
                                         "cannot ask it: open a bundle instead of a model", name);
}

TenonStatus tn_device_origins(const char *names, Texts *origins) {
  TenonStatus status = TENON_OK;
  while (status == TENON_OK && names != NULL && *names) {
    char name[128];
    const size_t length = strcspn(names, ",");
    snprintf(name, sizeof name, "%.*s", (int)length, names);
    status = add_origin(name, origins);
    names += length + (names[length] == ',');
  }
  return status;
}
