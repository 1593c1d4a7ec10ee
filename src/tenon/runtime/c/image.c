/* Images in memory. */

#include "image.h"

#include <stdlib.h>

const char *tenon_image_allocate(Image *image) {
  if (image->width < 1 || image->height < 1 || image->width > IMAGE_LARGEST || image->height > IMAGE_LARGEST)
    return "the image has an impossible size";
  image->pixels = malloc((size_t)image->width * (size_t)image->height * (size_t)image->channels);
  return image->pixels == NULL ? IMAGE_MEMORY : NULL;
}
