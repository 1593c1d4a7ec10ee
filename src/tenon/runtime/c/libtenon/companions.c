/* The files that a model reads besides its own: what the key of its compiled bundle covers. */

#include "companions.h"

#include <stdio.h>
#include <string.h>

enum { PATH = 4096 };

/* Each line: the ending of a model's file, and those of the files that its format looks for beside it: of each, those
   named like the model, else any (importers/.../load.py).  The first line is for all models, and of files named like
   them only. */
static const char partners[] =
    " .bin .data .weights .ini\n"
    ".prototxt .caffemodel .binaryproto\n"
    ".caffemodel .prototxt .binaryproto\n"
    ".cfg .weights .tree .map\n"
    ".weights .cfg .tree .map\n"
    ".json .params .pdiparams params __\n"
    ".pdmodel .pdiparams params __\n"
    "params .json .pdmodel __model__\n"
    "params__ __model__\n"
    ".param .bin\n"
    ".bin .param\n"
    ".pb .data t_net.pb\n" /* init_net.pb and predict_net.pb */
    ".data .pb\n";

/* Files of a folder; their digests are added, so that the order in which the system lists them does not matter. */
typedef struct {
  const char *folder, *model; /* the model itself, which is left out, is no companion */
  const char *stem, *ending;
  size_t stem_length, ending_length;
  int depth; /* of folders in it */
  uint64_t sum, count;
} Listing;

static uint64_t content_sum(const char *path, int depth);

static int ends_with(const char *text, size_t own, const char *end, size_t length) {
  return own >= length && memcmp(text + own - length, end, length) == 0;
}

static void visit(void *context, const char *name) {
  Listing *listing = context;
  char path[PATH];
  if (name[0] == '.' || (listing->model != NULL && strcmp(name, listing->model) == 0) ||
      !ends_with(name, strlen(name), listing->ending, listing->ending_length))
    return;
  if (listing->stem_length > 0) {
    if (strncmp(name, listing->stem, listing->stem_length) != 0) return;
    const char next = name[listing->stem_length];
    if (next != '.' && next != '-' && next != '_') return;
  }
  if ((size_t)snprintf(path, sizeof path, "%s/%s", listing->folder, name) >= sizeof path) return;
  listing->sum += content_sum(path, listing->depth);
  listing->count++;
}

/* The digest of the name and content of a file, or of the files in a folder; 0 if there is none. */
static uint64_t content_sum(const char *path, int depth) {
  uint8_t digest[8];
  uint64_t sum;
  Blake2b state;
  File file = {0};
  if (tn_is_folder(path)) {
    Listing listing = {.folder = path, .ending = "", .depth = depth - 1};
    if (depth > 0) tn_list_folder(path, visit, &listing);
    return listing.sum;
  }
  if (tn_file_map(path, &file) != TENON_OK) return 0;
  tn_blake2b_start(&state, sizeof digest);
  tn_blake2b_add(&state, path, strlen(path) + 1);
  tn_blake2b_add(&state, file.data, file.size);
  tn_blake2b_end(&state, digest);
  tn_file_release(&file);
  memcpy(&sum, digest, sizeof sum);
  return sum;
}

static void add_sum(Blake2b *state, uint64_t sum) { tn_blake2b_add(state, &sum, sizeof sum); }

void tn_add_file(Blake2b *state, const char *path) { add_sum(state, content_sum(path, 2)); }

/* The files with tensors of an ONNX model: its entries "location" (StringStringEntryProto, which writers begin with the
   key).  The importer refuses names that lead out of the folder, and nothing is opened there. */
static void add_locations(Blake2b *state, const char *folder, const File *content) {
  static const char entry[] = "\n\x08location\x12";
  enum { LENGTH = sizeof entry - 1 };
  const uint8_t *at = content->data, *end = at + content->size, *last = at;
  const size_t folder_length = strlen(folder);
  size_t last_length = 0;
  char path[PATH];
  while (end - at > LENGTH + 2 && (at = memchr(at, '\n', (size_t)(end - at) - LENGTH - 2)) != NULL) {
    const uint8_t *name = at++ + LENGTH;
    if (memcmp(at - 1, entry, LENGTH) != 0) continue;
    size_t length = *name++;
    if (length > 127) length = (length & 127) | (size_t)(*name++ & 127) << 7;
    if (length > (size_t)(end - name) || (length == last_length && memcmp(name, last, length) == 0)) continue;
    last = name;
    last_length = length;
    const size_t own = (size_t)snprintf(path, sizeof path, "%s/%.*s/", folder, (int)length, (const char *)name);
    if (own >= sizeof path || strstr(path + folder_length, "/../") != NULL) continue;
    path[own - 1] = 0;
    add_sum(state, content_sum(path, 0));
  }
}

/* The files that the endings of a line name; `listing` has the rest. */
static void add_partners(Blake2b *state, Listing listing, const char *endings, int of_any_name) {
  const size_t stem_length = listing.stem_length;
  while (*endings == ' ') {
    listing.ending = endings + 1;
    listing.ending_length = strcspn(listing.ending, " \n");
    listing.stem_length = stem_length;
    tn_list_folder(listing.folder, visit, &listing);
    listing.stem_length = 0;
    if (of_any_name && listing.count == 0) tn_list_folder(listing.folder, visit, &listing);
    listing.count = 0;
    add_sum(state, listing.sum);
    endings = listing.ending + listing.ending_length;
  }
}

void tn_add_companions(Blake2b *state, const char *path, const File *content) {
  static const char cut[] = "-symbol\n_deploy\n.param\n";
  char folder[PATH];
  const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path, *dot = strrchr(name, '.');
  const size_t length = strlen(name);
  const int folder_length = slash != NULL ? (int)(slash - path) : 0;
  if (strlen(path) + sizeof "variables" > PATH) return;
  snprintf(folder, sizeof folder, "%.*s", slash != NULL ? folder_length + (folder_length == 0) : 1, slash != NULL ? path : ".");
  Listing listing = {.folder = folder, .model = name, .stem = name, .stem_length = dot != NULL ? (size_t)(dot - name) : length};
  for (const char *at = cut, *end; *at; at = end + 1) {
    end = strchr(at, '\n');
    if (ends_with(name, listing.stem_length, at, (size_t)(end - at))) listing.stem_length -= (size_t)(end - at);
  }
  for (const char *at = partners, *end; *at; at = end + 1) {
    const size_t own = strcspn(at, " ");
    end = strchr(at, '\n');
    if (ends_with(name, length, at, own)) add_partners(state, listing, at + own, own > 0);
  }
  add_locations(state, folder, content);
  if (strcmp(name, "saved_model.pb") == 0)
    strcat(folder, "/variables");
  else if (strcmp(name, "__model__") != 0 && !ends_with(name, length, ".mlir", 5))
    return;
  tn_add_file(state, folder); /* a file or a folder for each variable */
}
