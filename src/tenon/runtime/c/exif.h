/* The orientation of photos, as cameras record it in Exif metadata (CIPA DC-008). */

#ifndef TENON_EXIF_H
#define TENON_EXIF_H

#include <stddef.h>
#include "image.h"

/* The orientation (1 to 8) in a TIFF header and its first directory; 1 if there is none. */
int tenon_exif_orientation(const unsigned char *tiff, size_t size);

/* Turn and mirror the image, so that it is upright.  Returns NULL, or an error message. */
const char *tenon_turn_image(Image *image, int orientation);

#endif
