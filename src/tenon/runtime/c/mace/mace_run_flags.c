/* The flags of mace_run, and its messages. */

#include "mace_run.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT(name, value, about) {name, TEXT_FLAG, value, about, 0}
#define INTEGER(name, value, about) {name, INTEGER_FLAG, #value, about, value}
#define BOOL(name, about) {name, BOOL_FLAG, "false", about, 0}

Flag mr_flags[] = {
    TEXT("model_name", "", "name of the model, for messages"),
    TEXT("input_node", "", "names of the inputs, separated by commas"),
    TEXT("input_shape", "", "their shapes: 1,224,224,3:1,10"),
    TEXT("output_node", "", "names of the outputs, separated by commas"),
    TEXT("output_shape", "", "their shapes"),
    TEXT("input_data_type", "float32", "float32, float16, bfloat16, int16, uint8 or int32 for each input"),
    TEXT("output_data_type", "float32", "the same for each output"),
    TEXT("input_data_format", "NHWC", "NONE, NHWC or NCHW for each input"),
    TEXT("output_data_format", "NHWC", "the same for each output"),
    TEXT("input_file", "", "prefix of the files of the inputs: PREFIX_NAME"),
    TEXT("output_file", "", "prefix of the files of the outputs: PREFIX_NAME"),
    TEXT("input_dir", "", "folder with files of inputs, each of which is run"),
    TEXT("output_dir", "output", "folder for their outputs"),
    TEXT("opencl_cache_full_path", "", "a folder that keeps compiled kernels"),
    TEXT("opencl_binary_file", "", "a file of such a folder, which is only read"),
    TEXT("opencl_parameter_file", "", "a file with sizes of work groups"),
    TEXT("model_data_file", "", "the weights (.data); none for a bundle"),
    TEXT("model_file", "", "the graph (.pb), or a bundle (.tenon)"),
    TEXT("accelerator_binary_file", "", "no effect: there is no accelerator"),
    TEXT("accelerator_storage_file", "", "no effect: there is no accelerator"),
    TEXT("device", "CPU", "CPU, or GPU: OpenCL"),
    INTEGER("round", 1, "runs that are timed"),
    INTEGER("restart_round", 1, "how often an engine is made and run"),
    INTEGER("malloc_check_cycle", -1, "no effect"),
    INTEGER("gpu_perf_hint", 3, "0: the driver's, 1: low, 2: normal, 3: high"),
    INTEGER("gpu_priority_hint", 3, "the same"),
    INTEGER("num_threads", -1, "threads; less than 1: as many as cores"),
    INTEGER("omp_num_threads", -1, "the same, by its older name"),
    INTEGER("cpu_affinity_policy", 1, "0: all cores, 1: big ones, 2: little ones, 3: fast, 4: saving power"),
    INTEGER("apu_boost_hint", 100, "no effect: there is no APU"),
    INTEGER("apu_preference_hint", 1, "no effect: there is no APU"),
    INTEGER("opencl_cache_reuse_policy", 1, "1: also kernels that another driver has compiled"),
    INTEGER("accelerator_cache_policy", 0, "no effect: there is no accelerator"),
    BOOL("benchmark", "print the time of every kernel call"),
    BOOL("fake_warmup", "run once on zeros when the engine is made"),
    {NULL, TEXT_FLAG, NULL, NULL, 0},
};

static Flag *find(const char *name, size_t length) {
  for (Flag *flag = mr_flags; flag->name != NULL; flag++)
    if (strlen(flag->name) == length && strncmp(flag->name, name, length) == 0) return flag;
  return NULL;
}

const char *mr_text(const char *name) { return find(name, strlen(name))->text; }

long mr_number(const char *name) { return find(name, strlen(name))->number; }

static int set(Flag *flag, const char *value) {
  char *end;
  flag->text = value;
  if (flag->kind == TEXT_FLAG) return 1;
  if (flag->kind == BOOL_FLAG) {
    flag->number = strcmp(value, "true") == 0 || strcmp(value, "1") == 0;
    return flag->number || strcmp(value, "false") == 0 || strcmp(value, "0") == 0;
  }
  flag->number = strtol(value, &end, 10);
  return *value && *end == 0 && flag->number >= INT32_MIN && flag->number <= INT32_MAX;
}

static void print_help(void) {
  printf("MACE run model tool, please specify proper arguments.\nusage: mace_run --help\n");
  for (const Flag *flag = mr_flags; flag->name != NULL; flag++)
    printf("  --%s (%s) default: %s\n", flag->name, flag->about, flag->kind == TEXT_FLAG && !*flag->text ? "\"\"" : flag->text);
}

int mr_parse_flags(int count, char **words) {
  for (int i = 1; i < count; i++) {
    const char *name = words[i] + (words[i][0] == '-') + (words[i][0] == '-' && words[i][1] == '-');
    const size_t length = strcspn(name, "=");
    Flag *flag = find(name, length);
    if (strcmp(name, "help") == 0 && name != words[i]) return print_help(), 1;
    const Flag *negated = length > 2 && strncmp(name, "no", 2) == 0 ? find(name + 2, length - 2) : NULL;
    if (flag == NULL && negated != NULL && negated->kind == BOOL_FLAG && name[length] == 0) {
      set(find(name + 2, length - 2), "false");
      continue;
    }
    if (flag == NULL || name == words[i]) {
      fprintf(stderr, "ERROR: unknown command line flag '%.*s'\n", (int)length, name);
      return -1;
    }
    const char *value = name[length] == '=' ? name + length + 1 : flag->kind == BOOL_FLAG ? "true" : words[++i];
    if (value != NULL && set(flag, value)) continue;
    if (value == NULL) fprintf(stderr, "ERROR: flag '%s' is missing its argument\n", flag->name);
    else fprintf(stderr, "ERROR: flag '%s' has an illegal value '%s'\n", flag->name, value);
    return -1;
  }
  return 0;
}

void mr_log(char level, const char *format, ...) {
  static const char levels[] = "IWEF";
  const char *least = getenv("MACE_CPP_MIN_LOG_LEVEL");
  const char *from = least != NULL && *least ? strchr(levels, *least & ~32) : NULL;
  if (from != NULL && strchr(levels, level) < from && level != 'F') return;
  va_list arguments;
  va_start(arguments, format);
  printf("%c mace_run] ", level);
  vprintf(format, arguments);
  printf("\n");
  va_end(arguments);
  fflush(stdout);
}

void mr_file_name(char *path, size_t size, const char *prefix, const char *separator, const char *name,
                  const char *end) {
  size_t at = (size_t)snprintf(path, size, "%s%s", prefix, separator);
  for (; *name && at + 1 < size; name++) {
    const char c = *name;
    const int kept = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    path[at++] = kept ? c : '_';
  }
  if (at < size) snprintf(path + at, size - at, "%s", end);
}
