/* Tables that are compiled with a network: how images become inputs, what outputs that list detections hold, and the
   names of classes.  runtime/bundle/preprocessing.py writes them. */

#ifndef TENON_TABLES_H
#define TENON_TABLES_H

#include <stddef.h>

enum { FIT_STRETCH, FIT_CROP, FIT_LETTERBOX };
enum { SAMPLING_SMOOTH, SAMPLING_BILINEAR, SAMPLING_NEAREST, SAMPLING_BICUBIC, SAMPLING_LANCZOS };

/* The preprocessing of an input, as in the manifest (see network/graph/preprocessing.py); `channels` is 0 if it takes no
   image.  `whole`: the preprocessing is compiled into the network, so the image is only resized; `inner_height` and
   `inner_width` are then the size that the network works on. */
typedef struct {
  int channels, last; /* 1 or 3; whether they are the last axis */
  long height, width;
  int fit, sampling, blue_first, border, whole;
  long inner_height, inner_width, resize;
  int means, scales; /* how many */
  double mean[3], scale[3];
} TenonPreprocessing;

extern const TenonPreprocessing tenon_preprocessing[];

enum { HEADS_NONE, HEADS_ROWS, HEADS_LISTS, HEADS_BOXES, HEADS_YOLO, HEADS_COLUMNS };
enum { CORNERS_XYXY, CORNERS_YXYX, CORNERS_CXCYWH };

/* The format of detection outputs, as in the manifest (see Heads in network/graph/preprocessing.py).  `outputs` are indices,
   `pixels` is -1 where it has to be detected, `background` -1 where there is none. */
typedef struct {
  int kind, outputs[4], output_count, corners, pixels;
  long background;
} TenonHeads;

extern const TenonHeads tenon_heads;

/* The output of a classifier: whether the only output is one, and the numbers that quantised elements stand for, which are
   scale * (element - zero). */
typedef struct {
  int listed;
  double scale, zero;
} TenonClasses;

extern const TenonClasses tenon_classes;

extern const char *const tenon_labels[];
extern const long tenon_label_count;

#endif
