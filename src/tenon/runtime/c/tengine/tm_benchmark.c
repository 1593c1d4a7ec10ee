/* tm_benchmark: times models through Tengine's C API, with the options and lines of Tengine's command of that name.

   Unlike there, a shape of three or two numbers is that of one image, height comes before width, and the exit status is 1
   if anything failed. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tengine/c_api.h"

enum { LOOPS, THREADS, CLUSTER, MODEL, MASK, DEVICE, FILE_NAME, SHAPE, TYPE, HELP, OPTIONS, FLOAT_BYTES = 4 };

static const struct {
  char letter;
  const char *name, *about, *initial; /* `initial` is NULL of what takes no value */
} options[OPTIONS] = {
    {'r', "loop_count", "benchmark loops count (int [=1])", "1"},
    {'t', "thread_count", "benchmark threads count (int [=1])", "1"},
    {'p', "cpu_cluster", "cpu cluster [0:auto, 1:big, 2:middle, 3:little] (int [=0])", "0"},
    {'s', "model", "benchmark which model, \"-1\" means all models (int [=-1])", "-1"},
    {'a', "cpu_mask", "benchmark on masked cpu core(s) (int [=-1])", "-1"},
    {'d', "device", "device name (should be upper-case) (string [=])", ""},
    {'m', "model_file", "path to a model file (string [=])", ""},
    {'i', "input_shape", "shape of input (n,c,h,w) (string [=])", ""},
    {'f', "input_dtype", "data type of input (int [=0])", "0"},
    {'?', "help", "print this message", NULL},
};

/* The networks of Tengine's folder benchmark/models, in its order. */
static const struct {
  const char *name, *file;
  int height, width;
} models[] = {
    {"squeezenet_v1.1", "squeezenet_v1.1", 227, 227}, {"mobilenetv1", "mobilenet", 224, 224},
    {"mobilenetv2", "mobilenet_v2", 224, 224},        {"mobilenetv3", "mobilenet_v3", 224, 224},
    {"shufflenetv2", "shufflenet_v2", 224, 224},      {"resnet18", "resnet18", 224, 224},
    {"resnet50", "resnet50", 224, 224},               {"googlenet", "googlenet", 224, 224},
    {"inceptionv3", "inception_v3", 299, 299},        {"vgg16", "vgg16", 224, 224},
    {"mssd", "mssd", 300, 300},                       {"retinaface", "retinaface", 320, 240},
    {"yolov3_tiny", "yolov3_tiny", 416, 416},         {"mobilefacenets", "mobilefacenets", 112, 112},
};
enum { MODELS = sizeof models / sizeof *models };

static const char *given[OPTIONS];

/* ---------------------------------------------------------------------------------------------------------- options */

static void print_usage(const char *program) {
  fprintf(stderr, "usage: %s [options] ... \noptions:\n", program);
  for (int i = 0; i < OPTIONS; i++)
    fprintf(stderr, "  -%c, --%-16s%s\n", options[i].letter, options[i].name, options[i].about);
}

/* The option of a word, whose value may follow after "="; OPTIONS if there is none. */
static int find_option(const char *word, const char **value) {
  const size_t length = strcspn(word, "=");
  *value = word[length] == '=' ? word + length + 1 : NULL;
  for (int i = 0; i < OPTIONS; i++) {
    if (word[0] == '-' && word[1] == options[i].letter && word[2] == 0) return i;
    if (length > 2 && strncmp(word, "--", 2) == 0 && strlen(options[i].name) == length - 2 &&
        strncmp(word + 2, options[i].name, length - 2) == 0)
      return i;
  }
  return OPTIONS;
}

static int is_number(const char *text) {
  char *end;
  strtol(text, &end, 0);
  return end != text && *end == 0;
}

static int number(int option) { return (int)strtol(given[option], NULL, 0); }

static int read_options(int count, char **words) {
  for (int i = 0; i < OPTIONS; i++) given[i] = options[i].initial;
  for (int i = 1; i < count; i++) {
    const char *value;
    const int option = find_option(words[i], &value);
    if (option == OPTIONS) return fprintf(stderr, "undefined option: %s\n", words[i]), -1;
    if (option == HELP) return given[HELP] = "", 0;
    if (value == NULL && i + 1 == count) return fprintf(stderr, "option needs value: --%s\n", options[option].name), -1;
    given[option] = value != NULL ? value : words[++i];
    const int is_text = option == DEVICE || option == FILE_NAME || option == SHAPE;
    if (!is_text && !is_number(given[option]))
      return fprintf(stderr, "option value is invalid: --%s=%s\n", options[option].name, given[option]), -1;
  }
  return 0;
}

/* -------------------------------------------------------------------------------------------------------- benchmark */

static double milliseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

static int fail(const char *what) {
  fprintf(stderr, "Tengine Benchmark: %s failed.\n", what);
  return -1;
}

static size_t element_bytes(int type) {
  if (type == TENGINE_DT_FP16 || type == TENGINE_DT_INT16) return 2;
  return type == TENGINE_DT_INT8 || type == TENGINE_DT_UINT8 ? 1 : FLOAT_BYTES;
}

static int time_runs(graph_t graph, const char *name) {
  double least = 0, most = 0, sum = 0;
  const int loops = number(LOOPS) > 0 ? number(LOOPS) : 1;
  if (run_graph(graph, 1) != 0) return fail("Run graph"); /* warms up */
  for (int i = 0; i < loops; i++) {
    const double begin = milliseconds();
    if (run_graph(graph, 1) != 0) return fail("Run graph");
    const double time = milliseconds() - begin;
    if (i == 0 || time < least) least = time;
    if (time > most) most = time;
    sum += time;
  }
  fprintf(stderr, "%20s  min = %7.2f ms   max = %7.2f ms   avg = %7.2f ms\n", name, least, most, sum / loops);
  return 0;
}

static int benchmark(graph_t graph, const char *name, const int shape[4], const struct options *how, void **input) {
  if (graph == NULL) return fail("Create graph");
  size_t bytes = element_bytes(number(TYPE));
  for (int i = 0; i < 4; i++) bytes *= (size_t)shape[i];
  tensor_t tensor = get_graph_input_tensor(graph, 0, 0);
  if (tensor == NULL) return fail("Get input tensor");
  if (set_tensor_shape(tensor, shape, 4) != 0) return fail("Set input tensor shape");
  if (prerun_graph_multithread(graph, *how) != 0) return fail("Pre-run graph");
  if ((*input = malloc(bytes)) == NULL) return fail("Allocate input");
  memset(*input, 1, bytes);
  if (set_tensor_buffer(tensor, *input, (int)bytes) != 0) return fail("Set input tensor buffer");
  const int status = time_runs(graph, name);
  release_graph_tensor(tensor);
  postrun_graph(graph);
  return status;
}

static int benchmark_file(context_t context, const char *name, const char *file, const int shape[4],
                          const struct options *how) {
  void *input = NULL;
  graph_t graph = create_graph(context, "tengine", file);
  const int status = benchmark(graph, name, shape, how, &input);
  if (graph != NULL) destroy_graph(graph);
  free(input);
  return status;
}

static int benchmark_model(context_t context, int i, const struct options *how) {
  char file[128];
  const int shape[4] = {1, 3, models[i].height, models[i].width};
  snprintf(file, sizeof file, "./models/%s_benchmark.tmfile", models[i].file);
  return benchmark_file(context, models[i].name, file, shape, how);
}

/* Four, three or two numbers: the last dimensions of [1, 3, 224, 224]. */
static int read_shape(const char *text, int shape[4]) {
  int values[4], count = 0;
  const char *at = text;
  while (*at && count < 4) {
    char *end;
    const long value = strtol(at, &end, 10);
    if (end == at || value < 1 || value > 1 << 20 || (*end && strchr(",x ", *end) == NULL)) return -1;
    values[count++] = (int)value;
    at = *end ? end + 1 : end;
  }
  if (*at || count == 1) return -1;
  for (int i = 0; i < count; i++) shape[4 - count + i] = values[i];
  return 0;
}

static int run_all(context_t context, const struct options *how) {
  const int chosen = number(MODEL);
  int shape[4] = {1, 3, 224, 224}, status = 0;
  if (chosen >= 0 && chosen < MODELS) return benchmark_model(context, chosen, how);
  if (*given[FILE_NAME]) {
    if (read_shape(given[SHAPE], shape) != 0)
      return fprintf(stderr, "option value is invalid: --input_shape=%s\n", given[SHAPE]), -1;
    return benchmark_file(context, given[FILE_NAME], given[FILE_NAME], shape, how);
  }
  for (int i = 0; i < MODELS; i++) status |= benchmark_model(context, i, how);
  return status;
}

int main(int count, char **words) {
  static const int clusters[] = {TENGINE_CLUSTER_ALL, TENGINE_CLUSTER_BIG, TENGINE_CLUSTER_MEDIUM, TENGINE_CLUSTER_LITTLE};
  char device[64] = "CPU";
  if (read_options(count, words) != 0 || given[HELP] != NULL) {
    print_usage(words[0]);
    return given[HELP] != NULL ? 0 : 1;
  }
  if (*given[DEVICE]) snprintf(device, sizeof device, "%s", given[DEVICE]);
  for (char *at = device; *at; at++)
    if (*at >= 'a' && *at <= 'z') *at = (char)(*at - 'a' + 'A');
  printf("Tengine benchmark:\n  loops:    %d\n  threads:  %d\n  cluster:  %d\n  affinity: 0x%X\n  device:   %s\n",
         number(LOOPS), number(THREADS), number(CLUSTER), (unsigned)number(MASK), device);
  if (init_tengine() != 0) return fail("Initialize tengine"), 1;
  printf("Tengine-lite library version: %s\n", get_tengine_version());
  fflush(stdout);
  context_t context = create_context("ctx", 1);
  const int refused = set_context_device(context, device, NULL, 0);
  if (refused != 0) {
    fprintf(stderr, "Set context device failed: %d.\n", refused);
    return 1;
  }
  const int cluster = number(CLUSTER);
  const struct options how = {number(THREADS), cluster >= 0 && cluster < 4 ? clusters[cluster] : TENGINE_CLUSTER_ALL,
                              TENGINE_MODE_FP32, (uint64_t)(int64_t)number(MASK)};
  const int status = run_all(context, &how);
  destroy_context(context);
  release_tengine();
  fprintf(stderr, "ALL TEST DONE.\n");
  return status == 0 ? 0 : 1;
}
