/* Images as inputs of executables, and the detections in them. */

#define __USE_MINGW_ANSI_STDIO 1 /* %zu */
#include "program_images.h"
#include "image_file.h"
#include "labels.h"
#include "messages.h"
#include "preprocess.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The image that was given, if any: its size, and how it became an input. */
typedef struct {
  long height, width;
  TenonPreprocessing how;
} GivenImage;

static GivenImage given;

static void fit(const char *path, Image *image, const TenonPort *port, const Settings *settings) {
  TenonPreprocessing how = tenon_preprocessing[port - tenon_inputs];
  if (how.whole && (settings->means || settings->scales))
    tenon_fail("--mean and --scale: the preprocessing is compiled into this program");
  if (settings->means) memcpy(how.mean, settings->mean, sizeof how.mean), how.means = settings->means;
  if (settings->scales) memcpy(how.scale, settings->scale, sizeof how.scale), how.scales = settings->scales;
  if (how.means > how.channels || how.scales > how.channels)
    tenon_fail("input '%s' has 1 channel: give --mean and --scale one number", port->name);
  unsigned char *fitted = NULL;
  given = (GivenImage){image->height, image->width, how};
  const char *problem = tenon_fit_image(image, &how, &fitted);
  if (problem != NULL) tenon_fail("%s: %s", path, problem);
  if (!tenon_put_pixels(fitted, &how, port->type, tenon_mutable + port->offset))
    tenon_fail("%s is an image and input '%s' has elements of type %s: give a raw or .npy file", path, port->name, port->type);
  free(fitted);
}

void tenon_take_image(const char *path, const unsigned char *data, size_t size, const TenonPort *port,
                      const Settings *settings) {
  Image image = {0, 0, 0, NULL};
  const char *problem = tenon_read_image(data, size, &image);
  if (problem != NULL) tenon_fail("%s: %s", path, problem);
  fit(path, &image, port, settings);
  free(image.pixels);
}

int tenon_has_image(void) { return given.width > 0; }

void tenon_print_detections(const Settings *settings) {
  Detection *found;
  size_t count;
  const char *problem =
      tenon_find_detections(&given.how, tenon_mutable, given.height, given.width, settings->limits, &found, &count);
  if (problem != NULL) tenon_fail("%s", problem);
  enum { COLUMNS = 6 };
  static const char *const titles[COLUMNS] = {"class", "score", "left", "top", "right", "bottom"};
  char (*texts)[COLUMNS][32] = malloc((count + 1) * sizeof *texts);
  if (texts == NULL) tenon_fail("not enough memory for the detections");
  int widths[COLUMNS];
  for (int k = 0; k < COLUMNS; k++) widths[k] = (int)strlen(titles[k]);
  for (size_t i = 0; i < count; i++) {
    const char *label = tenon_label_of(found[i].kind);
    snprintf(texts[i][0], sizeof texts[i][0], "%ld", found[i].kind);
    snprintf(texts[i][1], sizeof texts[i][1], "%.3f", (double)found[i].score);
    for (int k = 0; k < 4; k++) snprintf(texts[i][k + 2], sizeof texts[i][k + 2], "%.0f", found[i].box[k]);
    for (int k = 0; k < COLUMNS; k++) {
      const int width = k == 0 && label != NULL ? tenon_characters(label) : (int)strlen(texts[i][k]);
      if (width > widths[k]) widths[k] = width;
    }
  }
  for (size_t i = 0; i <= count && count > 0; i++) {
    const char *label = i ? tenon_label_of(found[i - 1].kind) : titles[0];
    const char *first = label != NULL ? label : texts[i - 1][0];
    printf("%s%*s", first, widths[0] - tenon_characters(first), "");
    for (int k = 1; k < COLUMNS; k++) printf("  %*s", widths[k], i ? texts[i - 1][k] : titles[k]);
    putchar('\n');
  }
  printf("%zu found\n", count);
  free(texts);
  free(found);
}
