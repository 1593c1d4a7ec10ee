/* mace_run: runs a model on files of tensors, and prints how long that takes. */

#include "mace_run.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH = 4096, INT32_TYPE = 4, FLOAT_TYPE = 1 };

typedef struct {
  void *data;
  size_t size;
} Content;

/* The parts of a flag between separators. */
typedef struct {
  char *copy; /* into which the parts point */
  const char **parts;
  size_t count;
} List;

/* The inputs or outputs that the flags describe. */
typedef struct {
  MaceCoreTensor *tensors;
  size_t *elements;
  size_t count;
  List names;
} Tensors;

static double milliseconds(int64_t begin) { return (double)(mace_core_micros() - begin) / 1000; }

/* Success of a run is judged by the word FAILED, which is not there. */
static int fail(const char *what, const MaceError *error) {
  mr_log('F', "%s FAILED: %s", what, error->text);
  return 0;
}

/* ---------------------------------------------------------------------------------------------------------- tensors */

static void release_list(List *list) {
  free(list->copy);
  free(list->parts);
}

static void release(Tensors *tensors) {
  for (size_t i = 0; i < tensors->count && tensors->tensors != NULL; i++) free(tensors->tensors[i].data);
  free(tensors->tensors);
  free(tensors->elements);
  release_list(&tensors->names);
}

static int32_t format_of(const char *text) {
  return strcmp(text, "NHWC") == 0 ? NHWC : strcmp(text, "NCHW") == 0 ? NCHW : FORMAT_NONE;
}

/* Empty if there is no memory. */
static List split_flag(const char *kind, const char *what, char separator) {
  char name[64];
  snprintf(name, sizeof name, "%s_%s", kind, what);
  const char *text = mr_text(name);
  size_t most = 1;
  for (const char *at = text; *at; at++) most += *at == separator;
  List list = {malloc(strlen(text) + 1), malloc(most * sizeof *list.parts), 0};
  if (list.copy == NULL || list.parts == NULL) return list;
  for (char *at = strcpy(list.copy, text), *end; at != NULL && *at; at = end) {
    list.parts[list.count++] = at;
    if ((end = strchr(at, separator)) != NULL) *end++ = 0;
  }
  return list;
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
static int describe_tensor(const char *kind, Tensors *tensors, size_t i, const char *shape, const List *types,
                           const List *formats) {
  MaceCoreTensor *tensor = &tensors->tensors[i];
  tensor->name = tensors->names.parts[i];
  if (!read_shape(shape, tensor, &tensors->elements[i])) {
    mr_log('E', "%s '%s': '%s' is no shape", kind, tensor->name, shape);
    return 0;
  }
  const char *type = types->count > 0 ? types->parts[i < types->count ? i : 0] : "";
  tensor->format = formats->count > 0 ? format_of(formats->parts[i < formats->count ? i : 0]) : NHWC;
  tensor->type = strcmp(type, "int32") == 0 ? INT32_TYPE : FLOAT_TYPE;
  return (tensor->data = calloc(tensors->elements[i] + 1, 4)) != NULL;
}

static int describe(const char *kind, Tensors *tensors) {
  tensors->names = split_flag(kind, "node", ',');
  List shapes = split_flag(kind, "shape", ':'), types = split_flag(kind, "data_type", ',');
  List formats = split_flag(kind, "data_format", ',');
  tensors->count = tensors->names.count;
  tensors->tensors = calloc(tensors->count + 1, sizeof *tensors->tensors);
  tensors->elements = calloc(tensors->count + 1, sizeof *tensors->elements);
  int good = tensors->tensors != NULL && tensors->elements != NULL && shapes.count == tensors->count;
  if (!good) mr_log('E', "%ss' names do not match %ss' shapes", kind, kind);
  for (size_t i = 0; good && i < tensors->count; i++)
    good = describe_tensor(kind, tensors, i, shapes.parts[i], &types, &formats);
  release_list(&shapes);
  release_list(&types);
  release_list(&formats);
  return good;
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
    mr_file_name(path, sizeof path, *folder ? folder : prefix, *folder ? "/" : "_", inputs->names.parts[i], end);
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

/* The options of a GPU that the flags state, as lines. */
static void gpu_lines(char *lines, size_t size) {
  static const char *const hints[] = {"default", "low", "normal", "high"};
  const long performance = mr_number("gpu_perf_hint"), priority = mr_number("gpu_priority_hint");
  snprintf(lines, size, "performance: %s\npriority: %s\nreuse: %s\ncache: %s\nbinary: %s\nparameters: %s\n",
           hints[performance & 3], hints[priority & 3],
           mr_number("opencl_cache_reuse_policy") == 1 ? "same-gpu" : "same-driver", mr_text("opencl_cache_full_path"),
           mr_text("opencl_binary_file"), mr_text("opencl_parameter_file"));
}

static MaceCore *create(const Tensors *inputs, const Tensors *outputs, const Content *graph, const Content *weights,
                        int64_t begin, double *init) {
  MaceError error = {""};
  MaceCore *core = NULL;
  const long threads = mr_number("num_threads");
  char gpu[3 * PATH + 256];
  gpu_lines(gpu, sizeof gpu);
  const MaceModel model = {graph->data, graph->size, weights->data, weights->size, NULL, NULL};
  const MaceCoreConfig config = {strcmp(mr_text("device"), "CPU") == 0 ? RT_CPU : RT_OPENCL,
                                 (int32_t)(threads > 0 ? threads : mr_number("omp_num_threads")),
                                 (int32_t)mr_number("cpu_affinity_policy"), (int32_t)mr_number("fake_warmup"), NULL, gpu};
  const int64_t creating = mace_core_micros();
  if (mace_core_create(&model, inputs->names.parts, inputs->count, outputs->names.parts, outputs->count, &config, &core, &error) !=
      MACE_SUCCESS) {
    fail("Create engine", &error);
    return NULL;
  }
  mr_log('I', "Create Mace Engine latency: %g ms", milliseconds(creating));
  *init = milliseconds(begin);
  mr_log('I', "Total init latency: %g ms", *init);
  mr_log('I', "runtimes: [%s]", config.runtime == RT_OPENCL ? "GPU" : "CPU");
  return core;
}

static int run(MaceCore *core, const Tensors *inputs, Tensors *outputs, Statistics *statistics) {
  MaceError error = {""};
  const MaceCoreStep *steps = NULL;
  size_t count;
  MaceCoreTensor *results = malloc((outputs->count + 1) * sizeof *results); /* whose shapes a run sets */
  if (results == NULL) return fail("Run model", &(MaceError){"no memory"});
  for (size_t i = 0; i < outputs->count; i++) {
    results[i] = outputs->tensors[i];
    if (results[i].rank == 4) continue;
    results[i].rank = 1;
    results[i].shape[0] = (int64_t)outputs->elements[i];
  }
  const int code = statistics == NULL
                       ? mace_core_run(core, inputs->tensors, inputs->count, results, outputs->count, &error)
                       : mace_core_profile(core, inputs->tensors, inputs->count, results, outputs->count, &steps, &count,
                                           &error);
  free(results);
  if (code != 0) return fail("Run model", &error);
  if (statistics != NULL && steps != NULL) mr_add_times(statistics, steps, count);
  return 1;
}

static int run_folder(MaceCore *core, Tensors *inputs, Tensors *outputs) {
  char prefix[256];
  const char *folder = mr_text("input_dir");
  int count = 0, good = 1;
  mr_file_name(prefix, sizeof prefix, "", "", inputs->names.parts[0], "");
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
