/* Prints the checksums of the first bytes of standard input: one line for each of the numbers of bytes that are the
   arguments.  Built with libtenon's sources. */

#include "digest.h"

#include <stdio.h>
#include <stdlib.h>

int main(int count, char **words) {
  enum { ROOM = 1 << 20 };
  uint8_t *data = malloc(ROOM), digest[8];
  if (data == NULL) return 1;
  const size_t size = fread(data, 1, ROOM, stdin);
  for (int i = 1; i < count; i++) {
    const size_t bytes = strtoul(words[i], NULL, 10);
    if (bytes > size) return 1;
    uint8_t *copy = malloc(bytes ? bytes : 1); /* of its own size, so that a read behind its end is noticed */
    for (size_t at = 0; at < bytes; at++) copy[at] = data[at];
    char hex[17];
    tn_checksum(copy, bytes, digest);
    tn_hex(digest, sizeof digest, hex);
    printf("%s\n", hex);
    free(copy);
  }
  free(data);
  return 0;
}
