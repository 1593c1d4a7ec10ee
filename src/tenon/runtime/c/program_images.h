/* Images as inputs of executables: program_images.c, or no_images.c where no input takes one. */

#ifndef TENON_PROGRAM_IMAGES_H
#define TENON_PROGRAM_IMAGES_H

#include <stddef.h>
#include "network.h"
#include "settings.h"

/* Make the image in a file's content an input that takes one. */
void tenon_take_image(const char *path, const unsigned char *data, size_t size, const TenonPort *port,
                      const Settings *settings);

int tenon_has_image(void); /* whether one was given */

/* The detections in the image, as `tenon run` prints them: a column is as wide as its longest text. */
void tenon_print_detections(const Settings *settings);

#endif
