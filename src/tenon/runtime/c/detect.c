/* Decode detection outputs to boxes in pixels of the image: the same results as engine/detect.py, bit for bit.

   Compile with -ffp-contract=off: fused multiply-adds would round differently. */

#include "detect.h"
#include "elements.h"
#include "preprocess.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Boxes of different classes with more overlap than this are the same object with several labels. */
static const double same_object = 0.85;

/* Element `at` of an output of the detector, in the mutable region. */
static float value_of(const uint8_t *region, int output, size_t at) {
  return (float)tenon_element(region, &tenon_outputs[tenon_heads.outputs[output]], at);
}

static size_t values_in(int output) { return tenon_element_count(&tenon_outputs[tenon_heads.outputs[output]]); }

static long last_extent(int output, int from_the_end) {
  const TenonPort *port = &tenon_outputs[tenon_heads.outputs[output]];
  return port->rank < from_the_end ? 1 : port->extents[port->rank - from_the_end];
}

/* ---------------------------------------------------------------------------------------------- candidates */

/* The class number in an output; -1 for none. */
static long class_of(float number) { return number > -1 && number < 1e9f ? (long)number : -1; }

/* Whether the scores [rows, classes] are probabilities that sum to 1. */
static int sum_to_one(const uint8_t *region, int output, size_t rows, size_t classes) {
  for (size_t i = 0; i < rows; i++) {
    double sum = 0;
    for (size_t j = 0; j < classes; j++) sum += (double)value_of(region, output, i * classes + j);
    if (!(fabs(sum - 1) <= 1e-2 + 1e-5)) return 0;
  }
  return classes > 1;
}

/* The shape of the candidates: how many, and where in the outputs the numbers of one are. */
typedef struct {
  const uint8_t *region;
  size_t count, classes, row, step; /* value j of candidate i is at i * row + j * step */
  size_t first_score;
  int scores; /* the output with the scores */
  long background;
} Candidates;

static Candidates candidates_of(const uint8_t *region) {
  Candidates c = {region, 0, 1, 1, 1, 0, 0, tenon_heads.background};
  const size_t last = (size_t)last_extent(0, 1);
  if (tenon_heads.kind == HEADS_LISTS) {
    c.count = values_in(2);
    if (tenon_heads.output_count > 3) {
      const float valid = value_of(region, 3, 0);
      if (!(valid >= (float)c.count)) c.count = valid > 0 ? (size_t)ceilf(valid) : 0;
    }
  } else if (tenon_heads.kind == HEADS_COLUMNS) {
    const size_t rows = (size_t)last_extent(0, 2);
    c = (Candidates){region, last, rows - 4, 1, last, 4, 0, -1};
  } else if (tenon_heads.kind == HEADS_BOXES) {
    c.classes = (size_t)last_extent(1, 1);
    c.count = values_in(1) / c.classes;
    c.row = c.classes;
    c.scores = 1;
    if (c.background < 0 && sum_to_one(region, 1, c.count, c.classes)) c.background = 0;
  } else {
    c.count = values_in(0) / last;
    c.row = last;
    c.classes = tenon_heads.kind == HEADS_YOLO ? last - 5 : 1;
    c.first_score = 5;
    if (tenon_heads.kind == HEADS_YOLO) c.background = -1;
  }
  return c;
}

/* The best class of candidate `i`; returns 0 if that is no object. */
static int best_class(const Candidates *c, size_t i, Detection *found) {
  const float objectness = tenon_heads.kind == HEADS_YOLO ? value_of(c->region, 0, i * c->row + 4) : 1;
  found->kind = -1;
  for (size_t j = 0; j < c->classes; j++) {
    const float raw = value_of(c->region, c->scores, i * c->row + (c->first_score + j) * c->step);
    const float score = tenon_heads.kind == HEADS_YOLO ? raw * objectness : raw;
    if (isnan(score)) return 0;
    if (found->kind < 0 || score > found->score) found->kind = (long)j, found->score = score;
  }
  return found->kind >= 0 && found->kind != c->background;
}

/* Candidate `i` with its box as in the output; returns 0 if it is no object. */
static int read_candidate(const Candidates *c, size_t i, Detection *found) {
  size_t box = 4 * i, step = 1;
  if (tenon_heads.kind == HEADS_ROWS) {
    const size_t row = i * c->row + c->row - 6;
    found->kind = class_of(value_of(c->region, 0, row));
    found->score = value_of(c->region, 0, row + 1);
    box = row + 2;
    if (found->kind < 0 || found->kind == c->background) return 0;
  } else if (tenon_heads.kind == HEADS_LISTS) {
    const float number = value_of(c->region, 1, i);
    found->kind = number > -1e9f && number < 1e9f ? (long)number : -1;
    found->score = value_of(c->region, 2, i);
  } else {
    if (!best_class(c, i, found)) return 0;
    if (tenon_heads.kind == HEADS_YOLO) box = i * c->row;
    if (tenon_heads.kind == HEADS_COLUMNS) box = i, step = c->step;
  }
  for (size_t k = 0; k < 4; k++) found->box[k] = (double)value_of(c->region, 0, box + k * step);
  return 1;
}

static void to_corners(double *box) {
  const double a = box[0], b = box[1], c = box[2], d = box[3];
  if (tenon_heads.corners == CORNERS_YXYX) {
    box[0] = b, box[1] = a, box[2] = d, box[3] = c;
  } else if (tenon_heads.corners == CORNERS_CXCYWH) {
    box[0] = a - c / 2, box[1] = b - d / 2, box[2] = a + c / 2, box[3] = b + d / 2;
  }
}

/* Boxes over the input's size, where they are in pixels of it. */
static void to_relative(Detection *found, size_t count, const TenonPreprocessing *how) {
  int pixels = tenon_heads.pixels;
  for (size_t i = 0; pixels < 0 && i < count; i++)
    for (int k = 0; k < 4; k++)
      if (fabs(found[i].box[k]) > 4) pixels = 1;
  if (pixels < 1) return;
  const double size[2] = {(double)(how->whole ? how->inner_width : how->width),
                          (double)(how->whole ? how->inner_height : how->height)};
  for (size_t i = 0; i < count; i++)
    for (int k = 0; k < 4; k++) found[i].box[k] /= size[k & 1];
}

/* ----------------------------------------------------------------------------------------------------- NMS */

/* Sort by score, highest first; stable (merge sort). */
static void sort_by_score(Detection *found, Detection *scratch, size_t count) {
  if (count < 2) return;
  const size_t half_count = count / 2;
  sort_by_score(found, scratch, half_count);
  sort_by_score(found + half_count, scratch, count - half_count);
  memcpy(scratch, found, half_count * sizeof *found);
  size_t a = 0, b = half_count, to = 0;
  while (a < half_count) found[to++] = b < count && found[b].score > scratch[a].score ? found[b++] : scratch[a++];
}

static double area_of(double width, double height) { return (width < 0 ? 0 : width) * (height < 0 ? 0 : height); }

/* Whether box `b` overlaps the better box `a` too much. */
static int suppressed(const Detection *a, const Detection *b, double overlap) {
  double low[2], high[2];
  for (int k = 0; k < 2; k++) {
    low[k] = a->box[k] > b->box[k] ? a->box[k] : b->box[k];
    high[k] = a->box[k + 2] < b->box[k + 2] ? a->box[k + 2] : b->box[k + 2];
  }
  const double shared = area_of(high[0] - low[0], high[1] - low[1]);
  const double first = area_of(a->box[2] - a->box[0], a->box[3] - a->box[1]);
  const double second = area_of(b->box[2] - b->box[0], b->box[3] - b->box[1]);
  const double allowed = a->kind == b->kind || overlap > same_object ? overlap : same_object;
  return !(shared <= allowed * (first + second - shared));
}

/* Greedy NMS of sorted boxes; returns how many are kept, at the front. */
static size_t suppress(Detection *found, size_t count, double overlap) {
  size_t kept = 0;
  for (size_t i = 0; i < count; i++) {
    size_t j = 0;
    while (j < kept && !suppressed(&found[j], &found[i], overlap)) j++;
    if (j == kept) found[kept++] = found[i];
  }
  return kept;
}

const char *tenon_find_detections(const TenonPreprocessing *how, const uint8_t *region, long height, long width,
                                  DetectionLimits limits, Detection **found, size_t *count) {
  const Candidates candidates = candidates_of(region);
  *count = 0;
  /* The second half is for sorting. */
  Detection *all = *found = malloc((2 * candidates.count + 1) * sizeof *all);
  if (all == NULL) return "not enough memory for the detections";
  for (size_t i = 0; i < candidates.count; i++)
    if (read_candidate(&candidates, i, &all[*count]) && all[*count].score >= (float)limits.threshold)
      to_corners(all[(*count)++].box);
  to_relative(all, *count, how);
  sort_by_score(all, all + candidates.count, *count);
  if (tenon_heads.kind >= HEADS_BOXES) *count = suppress(all, *count, limits.overlap);
  double view[4];
  tenon_image_view(how, height, width, view);
  for (size_t i = 0; i < *count; i++)
    for (int k = 0; k < 4; k++) {
      const double at = all[i].box[k] * (view[2 + (k & 1)] - view[k & 1]) + view[k & 1];
      const double size = (double)(k & 1 ? height : width);
      all[i].box[k] = at < 0 ? 0 : at > size ? size : at;
    }
  return NULL;
}
