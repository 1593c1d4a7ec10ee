/* Recognition of the files that are images. */

#include "image_file.h"

#include <string.h>

int tenon_is_image(const unsigned char *data, size_t size) {
  if (size < 3) return 0;
  if (data[0] == 'B' && data[1] == 'M') return 1;
  if (data[0] == 0xff && data[1] == 0xd8 && data[2] == 0xff) return 1;
  if (size >= 8 && memcmp(data, "\x89PNG\r\n\x1a\n", 8) == 0) return 1;
  return data[0] == 'P' && strchr("2356", data[1]) != NULL && data[1] != 0;
}
