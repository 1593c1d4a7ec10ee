/* Settings by the options of executables. */

#ifndef TENON_SETTINGS_H
#define TENON_SETTINGS_H

#include "detect.h"

typedef struct {
  double mean[3], scale[3];
  int means, scales; /* how many are given */
  long repeat, top, threads;
  const char *raw_output, *labels;
  DetectionLimits limits;
} Settings;

#endif
