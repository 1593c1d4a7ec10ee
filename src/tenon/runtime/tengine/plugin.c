/* Plug-ins: shared libraries with a function that registers what they bring. */

#include "graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(_WIN32)
#include <windows.h>
#else
#include <dlfcn.h>
#endif

enum { PLUGINS = 64 };

static struct {
  char name[NAME];
  void *library;
} plugins[PLUGINS];
static int plugin_count;

#if defined(_WIN32)
static void *open_library(const char *path) { return (void *)LoadLibraryA(path); }
static void *symbol(void *library, const char *name) { return (void *)(uintptr_t)GetProcAddress((HMODULE)library, name); }
static void close_library(void *library) { FreeLibrary((HMODULE)library); }
static const char *reason(void) { return "it is no library of this machine, or one that it needs is missing"; }
#else
static void *open_library(const char *path) { return dlopen(path, RTLD_LAZY); }
static void *symbol(void *library, const char *name) { return dlsym(library, name); }
static void close_library(void *library) { dlclose(library); }
static const char *reason(void) {
  const char *text = dlerror();
  return text != NULL ? text : "unknown reason";
}
#endif

static int find(const char *name) {
  for (int i = 0; i < plugin_count; i++)
    if (strcmp(plugins[i].name, name) == 0) return i;
  return -1;
}

static int call(void *library, const char *plugin, const char *function_name) {
  int (*function)(void) = (int (*)(void))(uintptr_t)symbol(library, function_name);
  if (function == NULL) return tg_error("plug-in %s has no function %s", plugin, function_name);
  return function() >= 0 ? 0 : tg_error("plug-in %s: its function %s failed", plugin, function_name);
}

int load_tengine_plugin(const char *name, const char *file, const char *init_function) {
  if (name == NULL || file == NULL) return tg_error("load_tengine_plugin: the name or the file is NULL");
  if (find(name) >= 0) return tg_error("there is a plug-in %s already", name);
  if (plugin_count == PLUGINS || strlen(name) >= NAME) return tg_error("plug-in %s: too many, or too long a name", name);
  void *library = open_library(file);
  if (library == NULL) return tg_error("plug-in %s is not loaded: %s", name, reason());
  if (init_function != NULL && call(library, name, init_function) != 0) {
    close_library(library);
    return -1;
  }
  snprintf(plugins[plugin_count].name, NAME, "%s", name);
  plugins[plugin_count++].library = library;
  return 0;
}

int unload_tengine_plugin(const char *name, const char *release_function) {
  const int i = name != NULL ? find(name) : -1;
  if (i < 0) return tg_error("there is no plug-in %s", name != NULL ? name : "NULL");
  if (release_function != NULL) call(plugins[i].library, name, release_function);
  close_library(plugins[i].library);
  plugins[i] = plugins[--plugin_count];
  return 0;
}

int get_tengine_plugin_number(void) { return plugin_count; }

const char *get_tengine_plugin_name(int number) {
  return number >= 0 && number < plugin_count ? plugins[number].name : NULL;
}
