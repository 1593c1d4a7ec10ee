/* Prints the target whose code is taken of a .tenon file, which TENON_OPEN_TARGET may name. */

#include "tenon.h"

#include <stdio.h>

int main(int count, char **words) {
  TenonBundle *bundle;
  if (count < 2 || tenon_bundle_open(words[1], NULL, &bundle) != TENON_OK) {
    printf("%s\n", tenon_last_error());
    return 1;
  }
  printf("%s\n", tenon_bundle_target(bundle));
  return tenon_bundle_close(bundle) != TENON_OK;
}
