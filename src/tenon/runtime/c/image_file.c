/* Image files in memory, by their first bytes. */

#include "image_file.h"
#include "image_readers.h"

const char *tenon_read_image(const unsigned char *data, size_t size, Image *image) {
  if (data[0] == 'B') return tenon_read_bmp(data, size, image);
  if (data[0] == 0xff) return tenon_read_jpeg(data, size, image);
  return data[0] == 0x89 ? tenon_read_png(data, size, image) : tenon_read_netpbm(data, size, image);
}
