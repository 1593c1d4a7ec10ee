/* The key of a compiled model, of made-up names of models and contents with made-up names of further files: above the
   folder, very long, empty, cut, missing, folders and pipes.  Arguments: a folder, which is filled; how many.  Built with
   libtenon's sources. */

#include "companions.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "require.h"

enum { ROOM = 9000 };

static uint64_t state = 88172645463325252u;

static size_t random_below(size_t end) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return (size_t)(state % end);
}

static const char *const parts[] = {
    "..", ".", "", "/", "//", "net", "net.data", "part", "pipe", "loop", "none", "folder", "model", "-symbol", "_deploy",
    ".param", ".bin", ".pb", ".data", ".onnx", ".json", ".cfg", ".caffemodel", ".prototxt", "__model__", "params",
    "saved_model.pb", "variables", "x.mlir", "\x01\x7f\xff", " ", "%s%n",
};

/* Parts in any order, at times thousands of them; at most ROOM - 1 characters. */
static size_t make_name(char *name, size_t room) {
  size_t length = 0;
  for (size_t left = random_below(8) == 0 ? random_below(2000) : random_below(6); left > 0; left--) {
    const char *part = parts[random_below(sizeof parts / sizeof *parts)];
    if (length + strlen(part) + 1 >= room) break;
    memcpy(name + length, part, strlen(part));
    length += strlen(part);
    if (random_below(2)) name[length++] = '/';
  }
  name[length] = 0;
  return length;
}

/* Entries "location" among other bytes, in memory that ends where the content does. */
static File make_content(void) {
  static uint8_t room[4 * ROOM + 64];
  static char name[ROOM];
  size_t size = 0;
  for (size_t left = random_below(5); left > 0 && size < 3 * ROOM; left--) {
    for (size_t n = random_below(4); n > 0; n--) room[size++] = (uint8_t)(random_below(3) ? random_below(256) : '\n');
    memcpy(room + size, "\n\x08location\x12", 11);
    size += 11;
    size_t length = make_name(name, random_below(3) ? 100 : 4000), told = random_below(4) ? length : random_below(20000);
    if (told > 127 || random_below(8) == 0) room[size++] = (uint8_t)(told | 128), told >>= 7;
    room[size++] = (uint8_t)told;
    if (random_below(16) == 0 && length > 0) name[random_below(length)] = 0;
    memcpy(room + size, name, length);
    size += length;
  }
  if (size > 0 && random_below(3) == 0) size -= random_below(size < 24 ? size : 24);
  uint8_t *exact = malloc(size + !size);
  ENSURE(exact != NULL);
  memcpy(exact, room, size);
  return (File){exact, size, ALLOCATED, NULL};
}

static void make_key(const char *path, const File *content, uint8_t digest[16]) {
  Blake2b key;
  tn_blake2b_start(&key, 16);
  tn_add_companions(&key, path, content);
  tn_blake2b_end(&key, digest);
}

static void write_file(const char *path, const char *text) {
  FILE *file = fopen(path, "wb");
  ENSURE(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
}

int main(int count, char **words) {
  static char path[ROOM];
  char *exact;
  uint8_t first[16], second[16], changed[16];
  REQUIRE(count == 3 && chdir(words[1]) == 0);
  alarm(300); /* nothing waits for a pipe */
  REQUIRE(mkdir("net", 0700) == 0 && mkdir("net/folder", 0700) == 0 && mkdir("net/variables", 0700) == 0);
  REQUIRE(symlink("..", "net/loop") == 0 && symlink("itself", "itself") == 0 && symlink("itself", "net/part") == 0);
  REQUIRE(mkfifo("pipe", 0600) == 0 && mkfifo("net/net.data", 0600) == 0 && mkfifo("net/folder/pipe", 0600) == 0);
  write_file("net.data", "weights");
  write_file("empty.data", "");
  for (long left = atol(words[2]); left > 0; left--) {
    File content = make_content();
    do make_name(path, random_below(4) ? 300 : sizeof path);
    while (path[0] == '/' || strstr(path, "..") != NULL); /* it is the program's own; others may change files there */
    REQUIRE((exact = strdup(path)) != NULL);
    make_key(exact, &content, first);
    make_key(exact, &content, second);
    REQUIRE(memcmp(first, second, sizeof first) == 0);
    free(exact);
    tn_file_release(&content);
  }

  /* Nothing above the folder is read, where the importer does not read either. */
  static const char above[] = "\n\x08location\x12\x0b../net.data....", beside[] = "\n\x08location\x12\x08net.data....";
  const File refused = {(const uint8_t *)above, sizeof above - 1, BORROWED, NULL};
  const File content = {(const uint8_t *)beside, sizeof beside - 1, BORROWED, NULL};
  make_key("net/model.onnx", &refused, first);
  make_key("model.onnx", &content, second);
  write_file("net.data", "WEIGHTS");
  make_key("net/model.onnx", &refused, changed);
  REQUIRE(memcmp(first, changed, sizeof first) == 0);
  make_key("model.onnx", &content, changed);
  REQUIRE(memcmp(second, changed, sizeof second) != 0);

  /* An empty file is another than none. */
  make_key("empty.onnx", &content, first);
  REQUIRE(unlink("empty.data") == 0);
  make_key("empty.onnx", &content, changed);
  REQUIRE(memcmp(first, changed, sizeof first) != 0);

  /* Through the whole library: a pipe is no model. */
  TenonBundle *bundle;
  TenonOpenOptions options = TENON_OPEN_OPTIONS_INIT;
  options.never_compile = 1;
  REQUIRE(tenon_bundle_open("pipe", &options, &bundle) != TENON_OK);
  fprintf(stderr, "%s\n", tenon_last_error());
  REQUIRE(tenon_bundle_open("net/folder/pipe", &options, &bundle) != TENON_OK);
  return 0;
}
