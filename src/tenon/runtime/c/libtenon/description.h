/* The content of a bundle, from its manifest and from the layout in its code. */

#ifndef TENON_DESCRIPTION_H
#define TENON_DESCRIPTION_H

#include "json.h"
#include "tenon.h"

typedef struct {
  TenonTensor tensor;
  uint64_t offset; /* in the mutable region */
  /* For each axis the number of the input, or of the output plus NUMBER_OF_OUTPUTS, that holds its extent; -1: none does,
     the extent is that of the shape. */
  int32_t extents[TENON_MAX_RANK];
} Port;

enum { PART_DEVICES = 8, NUMBER_OF_OUTPUTS = 1 << 20 };

typedef struct {
  const char *entry;
  uint64_t mutable_bytes, activations;
  int input_count, output_count;
  Port *inputs, *outputs; /* behind the inputs lie those through which the code calls devices */
  int device_count;
  uint8_t devices[PART_DEVICES]; /* of each of those inputs, the number of the bundle's device */
} Binding;

typedef struct {
  const char *file;
  uint64_t bytes;
  uint8_t checksum[8];
} FileRecord;

typedef struct {
  const char *name, *target;
  uint64_t constant, mutable_bytes, activations, alignment;
  const char *tokens, *logits; /* names of these ports of a language model; or NULL */
  int threads, timed_calls, binding_count, step_count, file_count;
  Binding *bindings;
  TenonStep *steps;       /* NULL until they are asked for */
  const JsonValue *nodes; /* from which they are read; NULL: there is nothing to read */
  FileRecord *files;
} Description;

/* Both fail with TENON_DAMAGED and a text that begins with `origin`. */
TenonStatus tn_read_manifest(Pool *pool, const char *text, size_t size, const char *origin, Description *description);
TenonStatus tn_read_layout(Pool *pool, const char *text, size_t size, const char *origin, Description *description);
/* Reads the steps if they were not. */
TenonStatus tn_read_steps(Pool *pool, const char *origin, Description *description);
/* Whether code of the second layout may run in memory of the first. */
int tn_same_layout(const Description *a, const Description *b);
/* An input or output from its JSON: [name, type, shape, offset, bytes, extents, size, string, scale, zero point], the last
   two NULL if it is not quantised; 0 if it is not one. */
enum { PORT_FIELDS = 10, PORT_EXTENTS = 5 };
int tn_read_port(const JsonValue *const fields[PORT_FIELDS], Port *port);
/* Finds what holds the extents of an input or output, by their names in its JSON, when all of the binding are known; 0 if
   nothing does. */
int tn_find_extents(const Binding *binding, const JsonValue *extents, Port *port);
/* A binding of a bundle, and an input or output of a binding, by its number; else both fail with TENON_NOT_FOUND. */
TenonStatus tn_find_binding(const Description *description, int number, const Binding **binding);
TenonStatus tn_find_port(const Description *description, const Binding *binding, int number, int is_output,
                         const Port **port);
/* Finishes a description: limits.  Returns NULL or what is wrong. */
const char *tn_check_description(Description *description);

#endif
