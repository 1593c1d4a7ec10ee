/* mace_run: runs a model on files of tensors, and prints how long that takes. */

#include "mace_run.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 64, PATH = 4096, INT32_TYPE = 4, FLOAT_TYPE = 1 };

typedef struct {
  void *data;
  size_t size;
} Content;

/* The inputs or outputs that the flags describe. */
typedef struct {
  MaceCoreTensor tensors[MOST];
  const char *names[MOST];
  size_t elements[MOST];
  size_t count;
  char *texts[4]; /* copies of flags, which names point into */
} Tensors;

static double milliseconds(int64_t begin) { return (double)(mace_core_micros() - begin) / 1000; }

/* Success of a run is judged by the word FAILED, which is not there. */
static int fail(const char *what, const MaceError *error) {
  mr_log('F', "%s FAILED: %s", what, error->text);
  return 0;
}

/* ---------------------------------------------------------------------------------------------------------- tensors */

static size_t split(char *text, char separator, const char **parts) {
  size_t count = 0;
  while (text != NULL && *text && count < MOST) {
    char *end = strchr(text, separator);
    parts[count++] = text;
    if (end != NULL) *end++ = 0;
    text = end;
  }
  return count;
}

static void release(Tensors *tensors) {
  for (size_t i = 0; i < tensors->count; i++) free(tensors->tensors[i].data);
  for (size_t i = 0; i < sizeof tensors->texts / sizeof *tensors->texts; i++) free(tensors->texts[i]);
}

static int32_t format_of(const char *text) {
  return strcmp(text, "NHWC") == 0 ? NHWC : strcmp(text, "NCHW") == 0 ? NCHW : FORMAT_NONE;
}

static size_t split_flag(char **copy, const char *kind, const char *what, char separator, const char **parts) {
  char name[64];
  snprintf(name, sizeof name, "%s_%s", kind, what);
  const char *text = mr_text(name);
  *copy = malloc(strlen(text) + 1);
  return *copy != NULL ? split(strcpy(*copy, text), separator, parts) : 0;
}

static int read_shape(const char *text, MaceCoreTensor *tensor, size_t *elements) {
  char *end;
  *elements = 1;
  for (tensor->rank = 0; tensor->rank < TENON_MAX_RANK; tensor->rank++, text = end + (*end == ',')) {
    if (*text == 0) return tensor->rank > 0;
    const long extent = strtol(text, &end, 10);
    if (end == text || extent < 1 || extent > INT32_MAX || *elements > ((size_t)1 << 31) / (size_t)extent) return 0;
    tensor->shape[tensor->rank] = extent;
    *elements *= (size_t)extent;
  }
  return *text == 0;
}

/* Files hold float32, or int32 where that is declared; the engine converts to the network's type. */
static int describe(const char *kind, Tensors *tensors) {
  const char *shapes[MOST], *types[MOST], *formats[MOST];
  tensors->count = split_flag(&tensors->texts[0], kind, "node", ',', tensors->names);
  const size_t shape_count = split_flag(&tensors->texts[1], kind, "shape", ':', shapes);
  const size_t type_count = split_flag(&tensors->texts[2], kind, "data_type", ',', types);
  const size_t format_count = split_flag(&tensors->texts[3], kind, "data_format", ',', formats);
  if (shape_count != tensors->count) {
    mr_log('E', "%ss' names do not match %ss' shapes", kind, kind);
    return 0;
  }
  for (size_t i = 0; i < tensors->count; i++) {
    MaceCoreTensor *tensor = &tensors->tensors[i];
    tensor->name = tensors->names[i];
    if (!read_shape(shapes[i], tensor, &tensors->elements[i])) {
      mr_log('E', "%s '%s': '%s' is no shape", kind, tensor->name, shapes[i]);
      return 0;
    }
    tensor->format = format_count > 0 ? format_of(formats[i < format_count ? i : 0]) : NHWC;
    tensor->type = type_count > 0 && strcmp(types[i < type_count ? i : 0], "int32") == 0 ? INT32_TYPE : FLOAT_TYPE;
    if ((tensor->data = calloc(tensors->elements[i] + 1, 4)) == NULL) return 0;
  }
  return 1;
}

/* ------------------------------------------------------------------------------------------------------------ files */

static int read_content(const char *path, Content *content) {
  content->data = NULL;
  content->size = 0;
  if (!*path) return 1;
  FILE *file = fopen(path, "rb");
  size_t room = 0, count = 1;
  while (file != NULL && count > 0) {
    if (room - content->size < 65536) {
      void *larger = realloc(content->data, room = 2 * room + 65536);
      if (larger == NULL) break;
      content->data = larger;
    }
    content->size += count = fread((char *)content->data + content->size, 1, room - content->size, file);
  }
  if (file != NULL) fclose(file);
  if (file == NULL || count > 0) mr_log('F', "Failed to read file: %s", path);
  return file != NULL && count == 0;
}

static int read_inputs(Tensors *inputs, const char *folder, const char *prefix, const char *end) {
  char path[PATH];
  for (size_t i = 0; i < inputs->count; i++) {
    mr_file_name(path, sizeof path, *folder ? folder : prefix, *folder ? "/" : "_", inputs->names[i], end);
    FILE *file = fopen(path, "rb");
    const size_t count = file != NULL ? fread(inputs->tensors[i].data, 4, inputs->elements[i], file) : 0;
    if (file != NULL) fclose(file);
    if (count == inputs->elements[i]) continue;
    mr_log('F', "Open input file FAILED: %s %s", path, file == NULL ? "is not there" : "is too short");
    return 0;
  }
  return 1;
}

static int write_outputs(const Tensors *outputs, const char *folder, const char *prefix, const char *end) {
  char path[PATH];
  for (size_t i = 0; i < outputs->count; i++) {
    const MaceCoreTensor *tensor = &outputs->tensors[i];
    size_t count = 1;
    for (int d = 0; d < tensor->rank; d++) count *= (size_t)tensor->shape[d];
    mr_file_name(path, sizeof path, *folder ? folder : prefix, *folder ? "/" : "_", tensor->name, end);
    FILE *file = fopen(path, "wb");
    int written = file != NULL && fwrite(tensor->data, 4, count, file) == count;
    if (file != NULL) written &= fclose(file) == 0;
    if (!written) {
      mr_log('F', "Open output file FAILED: %s cannot be written", path);
      return 0;
    }
    mr_log('I', "Write output file %s with size %zu done.", path, count);
  }
  return 1;
}

/* ------------------------------------------------------------------------------------------------------------- runs */

static MaceCore *create(const Tensors *inputs, const Tensors *outputs, const Content *graph, const Content *weights,
                        int64_t begin, double *init) {
  MaceError error = {""};
  MaceCore *core = NULL;
  const long threads = mr_number("num_threads");
  const MaceModel model = {graph->data, graph->size, weights->data, weights->size, NULL, NULL};
  const MaceCoreConfig config = {strcmp(mr_text("device"), "CPU") == 0 ? RT_CPU : 2,
                                 (int32_t)(threads > 0 ? threads : mr_number("omp_num_threads")),
                                 (int32_t)mr_number("cpu_affinity_policy"), (int32_t)mr_number("fake_warmup"), NULL};
  const int64_t creating = mace_core_micros();
  if (mace_core_create(&model, inputs->names, inputs->count, outputs->names, outputs->count, &config, &core, &error) !=
      MACE_SUCCESS) {
    fail("Create engine", &error);
    return NULL;
  }
  mr_log('I', "Create Mace Engine latency: %g ms", milliseconds(creating));
  *init = milliseconds(begin);
  mr_log('I', "Total init latency: %g ms", *init);
  mr_log('I', "runtimes: [CPU]");
  return core;
}

static int run(MaceCore *core, const Tensors *inputs, Tensors *outputs, Statistics *statistics) {
  MaceError error = {""};
  const MaceCoreStep *steps;
  size_t count;
  MaceCoreTensor results[MOST];
  memcpy(results, outputs->tensors, sizeof results); /* whose shapes a run sets */
  for (size_t i = 0; i < outputs->count; i++) {
    results[i].rank = 1;
    results[i].shape[0] = (int64_t)outputs->elements[i];
    if (outputs->tensors[i].rank == 4) results[i] = outputs->tensors[i];
  }
  const int code = statistics == NULL
                       ? mace_core_run(core, inputs->tensors, inputs->count, results, outputs->count, &error)
                       : mace_core_profile(core, inputs->tensors, inputs->count, results, outputs->count, &steps, &count,
                                           &error);
  if (code != MACE_SUCCESS) return fail("Run model", &error);
  if (statistics != NULL && steps != NULL) mr_add_times(statistics, steps, count);
  return 1;
}

static int run_folder(MaceCore *core, Tensors *inputs, Tensors *outputs) {
  char prefix[256];
  const char *folder = mr_text("input_dir");
  int count = 0, good = 1;
  mr_file_name(prefix, sizeof prefix, "", "", inputs->names[0], "");
  DIR *directory = opendir(folder);
  if (directory == NULL) {
    mr_log('F', "Open input_dir %s FAILED", folder);
    return 0;
  }
  for (const struct dirent *entry; good && (entry = readdir(directory)) != NULL;) {
    if (strncmp(entry->d_name, prefix, strlen(prefix)) != 0) continue;
    const char *end = entry->d_name + strlen(prefix);
    count++;
    good = read_inputs(inputs, folder, "", end) && run(core, inputs, outputs, NULL);
    if (good && *mr_text("output_dir")) good = write_outputs(outputs, mr_text("output_dir"), "", end);
  }
  closedir(directory);
  if (good && count == 0) mr_log('F', "FAILED: no file in %s begins with %s", folder, prefix);
  return good && count > 0;
}

static int run_rounds(MaceCore *core, Tensors *inputs, Tensors *outputs, double init, double capability,
                      Statistics *statistics) {
  const int benchmark = (int)mr_number("benchmark");
  const long rounds = mr_number("round");
  double average = -1;
  if (!read_inputs(inputs, "", mr_text("input_file"), "")) return 0;
  mr_log('I', "Warm up run");
  int64_t begin = mace_core_micros();
  if (!run(core, inputs, outputs, NULL)) return 0;
  const double warm_up = milliseconds(begin);
  mr_log('I', "1st warm up run latency: %g ms", warm_up);
  if (rounds > 0) {
    mr_log('I', "Run model");
    begin = mace_core_micros();
    for (long i = 0; i < rounds; i++)
      if (!run(core, inputs, outputs, NULL)) return 0;
    average = milliseconds(begin) / (double)rounds;
    mr_log('I', "Average latency: %g ms", average);
  }
  for (long i = 0; benchmark && i < rounds; i++)
    if (!run(core, inputs, outputs, statistics)) return 0;
  if (!write_outputs(outputs, "", mr_text("output_file"), "")) return 0;
  printf("========================================================\n"
         "     capability(CPU)        init      warmup     run_avg\n"
         "========================================================\n"
         "time %15.3f %11.3f %11.3f %11.3f\n",
         capability, init, warm_up, average);
  if (benchmark) mr_print_times(statistics);
  return 1;
}

static int run_model(Tensors *inputs, Tensors *outputs, double capability) {
  Content graph = {NULL, 0}, weights = {NULL, 0};
  Statistics statistics = {0, 0, NULL, NULL, NULL};
  double init = 0;
  const int64_t begin = mace_core_micros();
  int good = read_content(mr_text("model_file"), &graph) && read_content(mr_text("model_data_file"), &weights);
  MaceCore *core = good ? create(inputs, outputs, &graph, &weights, begin, &init) : NULL;
  good = core != NULL;
  if (good) good = *mr_text("input_dir") ? run_folder(core, inputs, outputs)
                                         : run_rounds(core, inputs, outputs, init, capability, &statistics);
  mace_core_destroy(core);
  free(statistics.sums);
  free(statistics.firsts);
  free(graph.data);
  free(weights.data);
  return good;
}

int main(int count, char **words) {
  static Tensors inputs, outputs;
  const int parsed = mr_parse_flags(count, words);
  if (parsed != 0) return parsed > 0 ? 0 : 1;
  if (!*mr_text("input_node") || !*mr_text("output_node")) {
    printf("MACE run model tool, please specify proper arguments.\nusage: mace_run --help\n");
    return 0;
  }
  mr_log('I', "model name: %s", mr_text("model_name"));
  mr_log('I', "mace version: %s", mace_core_version());
  for (const Flag *flag = mr_flags + 1; flag->name != NULL; flag++) mr_log('I', "%s: %s", flag->name, flag->text);
  int good = describe("input", &inputs) && describe("output", &outputs);
  const double capability = !good || *mr_text("input_dir") ? 0 : (double)mace_core_cpu_time();
  for (long i = 0; good && i < mr_number("restart_round"); i++) good = run_model(&inputs, &outputs, capability);
  release(&inputs);
  release(&outputs);
  return good ? 0 : 1;
}
