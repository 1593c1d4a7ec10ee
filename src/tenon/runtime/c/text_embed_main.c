/* Main program of networks that embed texts: prints the numbers of a vector of length 1 for each text, in a line.
   Exit status: 0, or 2 after one line on standard error. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "text_program.h"

static void embed(const char *string) {
  static float vector[BYTES_OF(EMBEDDING)];
  const OF_BUNDLE(_text) text = {tenon_text_tables, tenon_text_tables_size, tenon_weights, network, scratch};
  const size_t size = OF_BUNDLE(_embed_memory)(&text, strlen(string));
  void *memory = malloc(size + 1);
  if (memory == NULL) FAIL("there is not enough memory", "");
  switch (OF_BUNDLE(_embed)(&text, string, vector, memory, size)) {
    case OF_BUNDLE(_TEXT_LONG): FAIL("the text is empty, or has more tokens than the network takes", string);
    case OF_BUNDLE(_TEXT_FAILED): FAIL("the network failed", "");
    default: break;
  }
  free(memory);
  for (size_t i = 0; i < BYTES_OF(EMBEDDING); i++) printf(i > 0 ? " %.9g" : "%.9g", (double)vector[i]);
  if (printf("\n") < 0 || fflush(stdout) != 0) FAIL(strerror(errno), "cannot write the vector");
}

int main(int count, char **arguments) {
  char line[1 << 16];
  if (count > 1 && (strcmp(arguments[1], "--help") == 0 || strcmp(arguments[1], "-h") == 0))
    return printf("usage: %s TEXT...\n\nPrints a vector of length 1 for each text, or for each line of standard input.\n",
                  STRING(TENON_ENTRY)) < 0;
  for (int i = 1; i < count; i++) embed(arguments[i]);
  while (count == 1 && fgets(line, sizeof line, stdin) != NULL) {
    line[strcspn(line, "\r\n")] = 0;
    if (*line) embed(line);
  }
  return 0;
}
