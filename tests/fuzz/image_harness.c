/* Decodes one image, or every prefix and many bit flips of it, each in a block of exactly its size so that the
   address sanitizer sees a read one byte too far.  usage: harness dump|fuzz FILE */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "image_file.h"

extern int tenon_png_checked;

static const char *decode(const unsigned char *data, size_t size, int print) {
  unsigned char *exact = malloc(size ? size : 1);
  if (exact == NULL) exit(3);
  memcpy(exact, data, size);
  Image image = {0, 0, 0, NULL};
  const char *problem = tenon_is_image(exact, size) ? tenon_read_image(exact, size, &image) : "no image";
  if (problem == NULL && print) {
    printf("%ld %ld %d\n", image.width, image.height, image.channels);
    fwrite(image.pixels, (size_t)image.channels, (size_t)(image.width * image.height), stdout);
  }
  free(image.pixels);
  free(exact);
  return problem;
}

int main(int count, char **arguments) {
  static unsigned char data[1 << 20];
  FILE *file = count == 3 ? fopen(arguments[2], "rb") : NULL;
  if (file == NULL) return 3;
  const size_t size = fread(data, 1, sizeof data, file);
  fclose(file);
  if (arguments[1][0] == 'd') {
    const char *problem = decode(data, size, 1);
    if (problem != NULL) puts(problem);
    return problem != NULL;
  }
  tenon_png_checked = 0;
  for (size_t n = 0; n < size; n++) decode(data, n, 0);
  uint32_t random = 1;
  for (int i = 0; i < 20000; i++) {
    random = random * 1664525 + 1013904223;
    /* headers are where it hurts: three flips of four hit the first 64 bytes */
    const size_t within = i % 4 && size > 64 ? 64 : size, at = (random >> 8) % within;
    const unsigned char old = data[at];
    data[at] ^= (unsigned char)(1u << (random >> 5 & 7));
    decode(data, size, 0);
    if (i % 8) data[at] = old;
  }
  return 0;
}
