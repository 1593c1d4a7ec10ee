/* Main program of executables: reads one file per input, runs the network, prints the outputs, or the detections in an
   image.
   Exit status: 0, or 2 after one line on standard error. */

#define _XOPEN_SOURCE 700
#define __USE_MINGW_ANSI_STDIO 1 /* %zu */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "elements.h"
#include "image_file.h"
#include "classes.h"
#include "labels.h"
#include "messages.h"
#include "network.h"
#include "program_images.h"
#include "settings.h"
#include "tables.h"
#ifdef TENON_THREAD_POOL
#include "threads.h"
#endif
#ifdef _WIN32
#include "windows.h"
#endif

enum { MAX_REPEAT = 1000000, SHOWN = 10, SHOWN_OF_IMAGE = 5, LARGEST_IMAGE = 1 << 30, LARGEST_LABELS = 1 << 24 /* bytes of a file */ };

static void print_shape(FILE *to, const TenonPort *port) {
  fprintf(to, "%s[", port->type);
  for (int i = 0; i < port->rank; i++) fprintf(to, i ? ",%ld" : "%ld", port->extents[i]);
  fputc(']', to);
}

static void usage(void) {
  printf("usage: %s [options] FILE...\n\nOne file per input, in this order, or NAME=FILE:\n", tenon_name);
  for (int i = 0; i < tenon_input_count; i++) {
    printf("  %s  ", tenon_inputs[i].name);
    print_shape(stdout, &tenon_inputs[i]);
    putchar('\n');
  }
  fputs(
      "A file is raw (exactly the input's bytes), .npy, or a JPEG, PNG, BMP, PGM or PPM image of any size, which is\n"
      "resized and preprocessed as specified when compiling.\n\n"
      "  --mean M[,M,M]     override the mean subtracted from pixel values (0 to 255), per channel in the network's order\n"
      "  --scale S[,S,S]    override the scale\n"
      "  --repeat N         run N times and print the latency\n"
      "  --threads N        run with N threads\n"
      "  --top K            print the K largest values of each output\n"
      "  --labels FILE      class names, one per line\n"
      "  --raw-output FILE  write all outputs as raw bytes, one after the other\n",
      stdout);
  if (tenon_heads.kind != HEADS_NONE)
    fputs(
        "  --threshold S      list detections in an image with a score of at least S (0.5)\n"
        "  --overlap O        remove boxes that overlap a better one of the same class by more (0.45)\n",
        stdout);
}

/* ------------------------------------------------------------------------------------------------- inputs */

typedef struct {
  unsigned char *data;
  size_t size;
} Bytes;

/* Read a file of at most `limit` bytes, or `largest` if it is an image: no input needs more. */
static Bytes read_file(const char *path, size_t limit, size_t largest) {
  FILE *file = fopen(path, "rb");
  if (file == NULL) tenon_fail("cannot open %s: %s", path, strerror(errno));
  Bytes bytes = {NULL, 0};
  size_t room = 0, got = 1;
  while (got != 0 && bytes.size <= limit) {
    if (bytes.size == room) {
      room = room == 0 ? 1 << 16 : room * 2;
      unsigned char *larger = realloc(bytes.data, room);
      if (larger == NULL) tenon_fail("not enough memory to read %s", path);
      bytes.data = larger;
    }
    got = fread(bytes.data + bytes.size, 1, room - bytes.size, file);
    bytes.size += got;
    if (tenon_is_image(bytes.data, bytes.size)) limit = largest;
  }
  if (ferror(file)) tenon_fail("cannot read %s: %s", path, strerror(errno));
  fclose(file);
  if (bytes.size > limit) tenon_fail("%s has more than the %zu bytes that this input could take", path, limit);
  if (bytes.size == 0) tenon_fail("%s is empty", path);
  return bytes;
}

/* NumPy's name of an element type, without the byte order. */
static const char *numpy_type(const char *type) {
  static const char *const names[][2] = {{"f32", "f4"}, {"f64", "f8"}, {"f16", "f2"}, {"i64", "i8"}, {"i32", "i4"},
                                         {"i16", "i2"}, {"i8", "i1"},  {"u64", "u8"}, {"u32", "u4"}, {"u16", "u2"},
                                         {"u8", "u1"},  {"bool", "b1"}};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (strcmp(type, names[i][0]) == 0) return names[i][1];
  return "?";
}

static void check_npy_type(const char *path, const char *header, const TenonPort *port) {
  const char *wanted = numpy_type(port->type);
  const char *descr = strstr(header, "'descr':");
  descr = descr == NULL ? NULL : strchr(descr + 8, '\'');
  if (descr == NULL || descr[1] == 0) tenon_fail("%s is a damaged .npy file", path);
  descr++;
  if (*descr == '>') tenon_fail("%s is big-endian: save it with .astype('<%s')", path, wanted);
  descr++;
  if (strncmp(descr, wanted, 2) != 0 || descr[2] != '\'')
    tenon_fail("%s holds %.*s and input '%s' takes %s: convert it with .astype('%s')", path, (int)strcspn(descr, "'"), descr,
         port->name, wanted, wanted);
  if (strstr(header, "'fortran_order': True") != NULL)
    tenon_fail("%s is in Fortran order: save it with numpy.ascontiguousarray", path);
}

static void check_npy_shape(const char *path, const char *header, const TenonPort *port) {
  const char *shape = strstr(header, "'shape':");
  shape = shape == NULL ? NULL : strchr(shape, '(');
  if (shape == NULL) tenon_fail("%s is a damaged .npy file", path);
  const char *at = shape + 1;
  int same = 1;
  for (int i = 0; i < port->rank; i++) {
    char *end;
    const long extent = strtol(at, &end, 10);
    same = same && extent == port->extents[i] && end != at;
    at = end + strspn(end, ", ");
  }
  if (!same || *at != ')')
    tenon_fail("%s has shape %.*s) and input '%s' takes another: try --help", path, (int)strcspn(shape, ")"), shape,
         port->name);
}

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
/* Reverse the bytes of every element: .npy files are little-endian. */
static void swap_elements(uint8_t *data, size_t bytes, size_t width) {
  for (size_t at = 0; at < bytes; at += width)
    for (size_t i = 0; i < width / 2; i++) {
      const uint8_t first = data[at + i];
      data[at + i] = data[at + width - 1 - i];
      data[at + width - 1 - i] = first;
    }
}
#endif

/* NPY format 1.0 to 3.0: magic, version, header length, a Python dict as text, then the array. */
static void take_npy(const char *path, Bytes file, const TenonPort *port) {
  const size_t prefix = file.size > 6 && file.data[6] == 1 ? 10 : 12;
  if (file.size < prefix) tenon_fail("%s is a truncated .npy file", path);
  size_t length = file.data[8] | (size_t)file.data[9] << 8;
  if (prefix == 12) length |= (size_t)file.data[10] << 16 | (size_t)file.data[11] << 24;
  if (length > file.size - prefix) tenon_fail("%s is a truncated .npy file", path);
  char *header = malloc(length + 1);
  if (header == NULL) tenon_fail("not enough memory to read %s", path);
  memcpy(header, file.data + prefix, length);
  header[length] = 0;
  check_npy_type(path, header, port);
  check_npy_shape(path, header, port);
  free(header);
  const size_t content = file.size - prefix - length;
  if (content != port->bytes)
    tenon_fail("%s holds %zu bytes of data and input '%s' takes %zu", path, content, port->name, port->bytes);
  memcpy(tenon_mutable + port->offset, file.data + prefix + length, port->bytes);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  swap_elements(tenon_mutable + port->offset, port->bytes, port->bytes / tenon_element_count(port));
#endif
}

/* Class names from a file, one per line. */
static void take_labels(const char *path) {
  const Bytes file = read_file(path, LARGEST_LABELS, LARGEST_LABELS);
  if (!tenon_split_labels(file.data, file.size)) tenon_fail("not enough memory to read %s", path);
}

static void take(const char *path, const TenonPort *port, const Settings *settings) {
  /* The largest files: plain PPM, at most a dozen characters and a comment for each value. */
  const size_t limit = port->bytes * 24 + (1u << 20);
  const size_t largest = tenon_preprocessing[port - tenon_inputs].channels ? LARGEST_IMAGE : limit;
  const Bytes file = read_file(path, limit, largest > limit ? largest : limit);
  if (file.size >= 6 && memcmp(file.data, "\x93NUMPY", 6) == 0) {
    take_npy(path, file, port);
  } else if (tenon_is_image(file.data, file.size)) {
    if (tenon_preprocessing[port - tenon_inputs].channels == 0)
      tenon_fail("%s is an image and input '%s' cannot hold one: give a raw or .npy file", path, port->name);
    tenon_take_image(path, file.data, file.size, port, settings);
  } else if (file.size == port->bytes) {
    memcpy(tenon_mutable + port->offset, file.data, file.size);
  } else {
    tenon_fail("%s has %zu bytes and input '%s' takes %zu: give that many raw, or a .npy file or image", path,
         file.size, port->name, port->bytes);
  }
  free(file.data);
}

static void take_all(int count, char **files, const Settings *settings) {
  char *filled = calloc((size_t)tenon_input_count + 1, 1);
  if (filled == NULL) tenon_fail("not enough memory");
  int next = 0;
  for (int i = 0; i < count; i++) {
    const char *path = files[i];
    int chosen = -1;
    for (int j = 0; j < tenon_input_count; j++) {
      const size_t length = strlen(tenon_inputs[j].name);
      if (strncmp(path, tenon_inputs[j].name, length) == 0 && path[length] == '=') {
        chosen = j;
        path += length + 1;
        break;
      }
    }
    while (chosen < 0 && next < tenon_input_count && filled[next]) next++;
    if (chosen < 0) chosen = next;
    if (chosen >= tenon_input_count) tenon_fail("%d files given and this network has %d inputs: try --help", count, tenon_input_count);
    if (filled[chosen]) tenon_fail("input '%s' is given twice", tenon_inputs[chosen].name);
    take(path, &tenon_inputs[chosen], settings);
    filled[chosen] = 1;
  }
  for (int j = 0; j < tenon_input_count; j++)
    if (!filled[j] && !tenon_is_state(&tenon_inputs[j])) tenon_fail("no file for input '%s': try --help", tenon_inputs[j].name);
  free(filled);
}

/* ------------------------------------------------------------------------------------------------ outputs */

static void print_value(const TenonPort *port, size_t count, size_t at) {
  /* A label belongs to a position of a vector. */
  const char *label = count == (size_t)port->extents[port->rank ? port->rank - 1 : 0] ? tenon_label_of((long)at) : NULL;
  printf("  %6zu  %.6g%s%s\n", at, tenon_element(tenon_mutable, port, at), label ? "  " : "", label ? label : "");
}

static void print_top(const TenonPort *port, size_t count, size_t top) {
  char *used = calloc(count, 1);
  if (used == NULL) tenon_fail("not enough memory to print %s", port->name);
  for (size_t k = 0; k < top && k < count; k++) {
    size_t best = count;
    for (size_t i = 0; i < count; i++)
      if (!used[i] && (best == count || tenon_element(tenon_mutable, port, i) > tenon_element(tenon_mutable, port, best))) best = i;
    used[best] = 1;
    print_value(port, count, best);
  }
  free(used);
}

static void print_output(const TenonPort *port, const Settings *settings) {
  const size_t count = tenon_element_count(port);
  if (tenon_has_image() && tenon_lists_classes(port)) {
    if (!tenon_print_classes(port, settings->top > 0 ? (size_t)settings->top : SHOWN_OF_IMAGE)) tenon_fail("not enough memory to print %s", port->name);
    return;
  }
  printf("%s ", port->name);
  print_shape(stdout, port);
  putchar('\n');
  const long top = settings->top == 0 && tenon_has_image() ? SHOWN_OF_IMAGE : settings->top;
  if (top > 0) {
    print_top(port, count, (size_t)top);
    return;
  }
  for (size_t i = 0; i < count && i < SHOWN; i++) print_value(port, count, i);
  if (count > SHOWN) printf("  ... %zu more: --top K or --raw-output FILE\n", count - SHOWN);
}

/* Write atomically, with signals blocked: to a temporary file that is renamed; to devices and pipes directly. */
static void write_raw(const char *path) {
  struct stat known;
  const int there = stat(path, &known) == 0;
  const int beside = (!there || S_ISREG(known.st_mode)) && strncmp(path, "/dev/", 5) != 0 && strncmp(path, "/proc/", 6) != 0;
  char *target = there && beside ? realpath(path, NULL) : NULL; /* a link stays one */
  const char *place = target == NULL ? path : target;
  char *name = malloc(strlen(place) + 32);
  if (name == NULL) tenon_fail("not enough memory to write %s", path);
  if (beside) sprintf(name, "%s.%ld.part", place, (long)getpid());
  else strcpy(name, path);
  if (there && beside && access(place, W_OK) != 0) tenon_fail("cannot write %s: %s", path, strerror(errno));
  sigset_t all, before;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, &before);
  FILE *file = fopen(name, "wb");
  if (file == NULL) tenon_fail("cannot write %s: %s", path, strerror(errno));
  size_t missing = 0;
  for (int i = 0; i < tenon_output_count; i++)
    missing += tenon_outputs[i].bytes - fwrite(tenon_mutable + tenon_outputs[i].offset, 1, tenon_outputs[i].bytes, file);
  if (there && beside) fchmod(fileno(file), known.st_mode & 07777);
  if (fclose(file) != 0 || missing != 0 || (beside && rename(name, place) != 0)) {
    const int reason = errno;
    if (beside) remove(name);
    tenon_fail("cannot write %s: %s", path, strerror(reason));
  }
  sigprocmask(SIG_SETMASK, &before, NULL);
  free(name);
  free(target);
}

/* ---------------------------------------------------------------------------------------------------- run */

#ifdef _WIN32
static double now(void) { return tenon_milliseconds(); }
#else
static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}
#endif

static int ascending(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

#ifdef TENON_THREAD_POOL
static TenonThreadPool *pool; /* none for one thread */

static void start_threads(long threads) {
  if (threads > tenon_max_threads) tenon_fail("--threads: this program was made for 1 to %d", tenon_max_threads);
  if (threads > 1 && (pool = tenon_thread_pool_start(tenon_phase, tenon_next, (int)threads)) == NULL)
    tenon_fail("the system has no room for %ld more threads", threads - 1);
}

static int run_once(void) {
  if (pool == NULL) return tenon_run();
  return tenon_thread_pool_run(pool, tenon_weights, tenon_mutable, tenon_activations);
}
#else
static void start_threads(long threads) {
  if (threads > 1) tenon_fail("--threads: this program was made for 1");
}

static int run_once(void) { return tenon_run(); }
#endif

static void run(long repeat) {
  double *times = malloc((size_t)repeat * sizeof *times);
  uint8_t *given = malloc(tenon_mutable_size + 1); /* what every run begins with: states change */
  if (times == NULL || given == NULL) tenon_fail("not enough memory to repeat %ld times", repeat);
  memcpy(given, tenon_mutable, tenon_mutable_size);
  for (long i = 0; i < repeat; i++) {
    if (i > 0) memcpy(tenon_mutable, given, tenon_mutable_size);
    const double start = now();
    const int status = run_once();
    times[i] = now() - start;
    if (status != 0) tenon_fail("the network returned %d", status);
  }
  qsort(times, (size_t)repeat, sizeof *times, ascending);
  if (repeat > 1) printf("latency: min %.3f ms, median %.3f ms of %ld runs\n", times[0], times[repeat / 2], repeat);
  free(times);
  free(given);
}

static double parse_fraction(const char *option, const char *text) {
  char *end;
  const double value = strtod(text, &end);
  if (end == text || *end != 0 || !(value >= 0 && value <= 1)) tenon_fail("%s takes a number from 0 to 1, not '%s'", option, text);
  return value;
}

static long parse_count(const char *option, const char *text, long most) {
  char *end;
  errno = 0;
  const long value = strtol(text, &end, 10);
  if (end == text || *end != 0 || errno != 0 || value < 1 || value > most)
    tenon_fail("%s takes a whole number from 1 to %ld, not '%s'", option, most, text);
  return value;
}

/* One number for all channels, or three; returns how many. */
static int parse_channels(const char *option, const char *text, double *values) {
  int count = 0;
  for (const char *at = text;; at++) {
    char *end;
    values[count] = strtod(at, &end);
    if (end == at || (*end != 0 && *end != ',')) tenon_fail("%s takes one number or three, not '%s'", option, text);
    count++;
    at = end;
    if (*at == 0) break;
    if (count == 3) tenon_fail("%s takes one number or three, not '%s'", option, text);
  }
  if (count == 2) tenon_fail("%s takes one number or three, not '%s'", option, text);
  return count;
}

int main(int count, char **arguments) {
  Settings settings = {{0, 0, 0}, {1, 1, 1}, 0, 0, 1, 0, 1, NULL, NULL, {0.5, 0.45}};
  int files = 0, i = 1;
  for (; i < count; i++) {
    const char *option = arguments[i];
    if (strcmp(option, "--help") == 0 || strcmp(option, "-h") == 0) {
      usage();
      return 0;
    }
    if (strncmp(option, "--", 2) != 0) {
      arguments[files++] = arguments[i];
      continue;
    }
    const char *value = i + 1 < count ? arguments[++i] : NULL;
    if (value == NULL) tenon_fail("%s needs a value, or is no option: try --help", option);
    if (strcmp(option, "--mean") == 0) settings.means = parse_channels(option, value, settings.mean);
    else if (strcmp(option, "--scale") == 0) settings.scales = parse_channels(option, value, settings.scale);
    else if (strcmp(option, "--repeat") == 0) settings.repeat = parse_count(option, value, MAX_REPEAT);
    else if (strcmp(option, "--threads") == 0) settings.threads = parse_count(option, value, MAX_REPEAT);
    else if (strcmp(option, "--top") == 0) settings.top = parse_count(option, value, MAX_REPEAT);
    else if (strcmp(option, "--raw-output") == 0) settings.raw_output = value;
    else if (strcmp(option, "--labels") == 0) settings.labels = value;
    else if (strcmp(option, "--threshold") == 0) settings.limits.threshold = parse_fraction(option, value);
    else if (strcmp(option, "--overlap") == 0) settings.limits.overlap = parse_fraction(option, value);
    else tenon_fail("no option %s: try --help", option);
  }
  if (settings.labels != NULL) take_labels(settings.labels);
  tenon_reset_states();
  take_all(files, arguments, &settings);
  start_threads(settings.threads);
  run(settings.repeat);
  if (tenon_has_image() && tenon_heads.kind != HEADS_NONE) tenon_print_detections(&settings);
  else
    for (int j = 0; j < tenon_output_count; j++) print_output(&tenon_outputs[j], &settings);
  if (settings.raw_output != NULL) write_raw(settings.raw_output);
  if (fflush(stdout) != 0) tenon_fail("cannot write the answer: %s", strerror(errno));
  return 0;
}
