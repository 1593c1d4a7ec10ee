/* Plug-ins: shared libraries with a function that registers what they bring. */

#include "library.h"
#include "messages.h"
#include "platform.h"
#include "tenon.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PLUGINS = 64 };

static struct {
  char name[NAME];
  Library library;
} plugins[PLUGINS];
static int plugin_count;

static int find(const char *name) {
  for (int i = 0; i < plugin_count; i++)
    if (strcmp(plugins[i].name, name) == 0) return i;
  return -1;
}

static int call(const Library *library, const char *plugin, const char *function_name) {
  int (*function)(void) = (int (*)(void))(uintptr_t)tn_library_symbol(library, function_name);
  if (function == NULL) return tg_error("plug-in %s has no function %s", plugin, function_name);
  return function() >= 0 ? 0 : tg_error("plug-in %s: its function %s failed", plugin, function_name);
}

int load_tengine_plugin(const char *name, const char *file, const char *init_function) {
  if (name == NULL || file == NULL) return tg_error("load_tengine_plugin: the name or the file is NULL");
  if (find(name) >= 0) return tg_error("there is a plug-in %s already", name);
  if (plugin_count == PLUGINS || strlen(name) >= NAME) return tg_error("plug-in %s: too many, or too long a name", name);
  Library library;
  if (tn_library_open(file, &library) != TENON_OK) return -1;
  const int has_device = tn_library_symbol(&library, "tenon_plugin_device") != NULL;
  int status = has_device && tenon_device_load(file, NULL) != TENON_OK ? tg_error("%s", tenon_last_error()) : 0;
  if (status == 0 && init_function != NULL) status = call(&library, name, init_function);
  if (status != 0) {
    tn_library_unload(&library);
    return -1;
  }
  snprintf(plugins[plugin_count].name, NAME, "%s", name);
  plugins[plugin_count++].library = library;
  return 0;
}

int unload_tengine_plugin(const char *name, const char *release_function) {
  const int i = name != NULL ? find(name) : -1;
  if (i < 0) return tg_error("there is no plug-in %s", name != NULL ? name : "NULL");
  if (release_function != NULL) call(&plugins[i].library, name, release_function);
  tn_library_unload(&plugins[i].library);
  plugins[i] = plugins[--plugin_count];
  return 0;
}

int get_tengine_plugin_number(void) { return plugin_count; }

const char *get_tengine_plugin_name(int number) {
  return number >= 0 && number < plugin_count ? plugins[number].name : NULL;
}
