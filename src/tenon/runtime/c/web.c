/* Entry points of the WebAssembly modules of pages and npm packages: images in, outputs and detections out.

   The module needs nothing from its host: web_library.c defines what it calls of a C library. */

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "detect.h"
#include "image_file.h"
#include "network.h"
#include "preprocess.h"
#include "tables.h"

#define EXPORT(name) __attribute__((export_name(name)))

static struct {
  long height, width;
  int input;
} given;
static Detection *found;
static Image decoded;

/* The region that inputs and outputs are in. */
EXPORT("tensors") uint8_t *tenon_web_tensors(void) { return tenon_mutable; }

EXPORT("run") int tenon_web_run(void) { return tenon_run(); }

/* Decode an image file to red, green, blue and alpha bytes.  Returns NULL, or an error message, which is empty for files
   of other formats. */
EXPORT("decode") const char *tenon_web_decode(const uint8_t *file, size_t size) {
  Image image = {0, 0, 0, NULL};
  decoded.pixels = NULL;
  if (!tenon_is_image(file, size)) return "";
  const char *problem = tenon_read_image(file, size, &image);
  if (problem != NULL) return problem;
  const size_t count = (size_t)image.width * (size_t)image.height;
  decoded = image;
  decoded.pixels = malloc(4 * count);
  if (decoded.pixels == NULL) return IMAGE_MEMORY;
  for (size_t i = 0; i < count; i++) {
    const unsigned char *from = image.pixels + i * (size_t)image.channels;
    const int step = image.channels == 3;
    decoded.pixels[4 * i] = from[0];
    decoded.pixels[4 * i + 1] = from[step];
    decoded.pixels[4 * i + 2] = from[2 * step];
    decoded.pixels[4 * i + 3] = 255;
  }
  return NULL;
}

EXPORT("decoded_pixels") const uint8_t *tenon_web_decoded_pixels(void) { return decoded.pixels; }
EXPORT("decoded_width") long tenon_web_decoded_width(void) { return decoded.width; }
EXPORT("decoded_height") long tenon_web_decoded_height(void) { return decoded.height; }

/* Make an image of red, green, blue and alpha bytes an input, as specified when compiling.  Returns NULL, or an error
   message. */
EXPORT("take_image") const char *tenon_web_take_image(int input, const uint8_t *rgba, long height, long width) {
  const TenonPreprocessing *how = &tenon_preprocessing[input];
  if (how->channels == 0) return "this input takes no image";
  Image image = {width, height, 3, NULL};
  const char *problem = tenon_image_allocate(&image);
  if (problem != NULL) return problem;
  const size_t count = (size_t)width * (size_t)height;
  for (size_t i = 0; i < count; i++) memcpy(image.pixels + 3 * i, rgba + 4 * i, 3);
  unsigned char *fitted = NULL;
  problem = tenon_fit_image(&image, how, &fitted);
  if (problem != NULL) return problem;
  given.height = height;
  given.width = width;
  given.input = input;
  const TenonPort *port = &tenon_inputs[input];
  return tenon_put_pixels(fitted, how, port->type, tenon_mutable + port->offset) ? NULL : "this input takes no image";
}

/* Detections in the outputs for the last image.  Returns how many, or -1 without memory; see `detections`. */
EXPORT("detect") long tenon_web_detect(double threshold, double overlap) {
  const DetectionLimits limits = {threshold, overlap};
  size_t count;
  if (tenon_heads.kind == HEADS_NONE || given.width == 0) return 0;
  if (tenon_find_detections(&tenon_preprocessing[given.input], tenon_mutable, given.height, given.width, limits, &found, &count) != NULL)
    return -1;
  return (long)count;
}

/* The detections that `detect` found: 40 bytes each, class (i32), score (f32 at 4) and four f64 at 8. */
EXPORT("detections") const Detection *tenon_web_detections(void) { return found; }
