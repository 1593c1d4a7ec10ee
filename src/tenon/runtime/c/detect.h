/* Decode detection outputs to boxes in pixels of the image: the same results as engine/detect.py, bit for bit. */

#ifndef TENON_DETECT_H
#define TENON_DETECT_H

#include <stddef.h>
#include <stdint.h>
#include "tables.h"

/* A detected object: class, score, and left, top, right, bottom. */
typedef struct {
  long kind;
  float score;
  double box[4];
} Detection;

typedef struct {
  double threshold, overlap;
} DetectionLimits;

/* The detections in the outputs in a mutable region, in pixels of an image of height x width, highest score first.
   Returns NULL, or an error message; the caller frees `found`. */
const char *tenon_find_detections(const TenonPreprocessing *how, const uint8_t *region, long height, long width,
                                  DetectionLimits limits, Detection **found, size_t *count);

#endif
