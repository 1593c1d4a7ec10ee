/* A bundle inside the program: digits.o, its weights, and the layout that the library would have. */

#include "digits.h"
#include "tenon.h"

#include <stddef.h>
#include <stdio.h>

extern const unsigned char digits_layout[];
extern const unsigned digits_layout_size;

TENON_MEM_ALIGN(64) static const uint8_t weights[DIGITS_CONSTANT_MEM_SIZE] = {
#include "digits.weights.txt"
};

static int (*const run[])(const uint8_t *, uint8_t *, uint8_t *) = {digits};

int main(void) {
  float image[DIGITS_image_ELEMENTS], scores[DIGITS_probabilities_ELEMENTS];
  TenonLinked linked = {0};
  TenonBundle *bundle;
  TenonEngine *engine;
  linked.struct_size = offsetof(TenonLinked, profile); /* as in programs that were compiled before it was there */
  linked.name = "digits";
  linked.weights = weights;
  linked.weights_bytes = sizeof weights;
  linked.run = run;
  linked.layout = (const char *)digits_layout;
  linked.layout_bytes = digits_layout_size;
  if (fread(image, 1, sizeof image, stdin) != sizeof image) return 1;
  linked.weights_bytes--;
  if (tenon_bundle_from_program(&linked, &bundle) != TENON_WRONG_SIZE) return 2;
  linked.weights_bytes++;
  if (tenon_bundle_from_program(&linked, &bundle) != TENON_OK || tenon_engine_create(bundle, NULL, &engine) != TENON_OK ||
      tenon_engine_set_input(engine, 0, image, sizeof image) != TENON_OK || tenon_engine_run(engine) != TENON_OK ||
      tenon_engine_get_output(engine, 0, scores, sizeof scores) != TENON_OK) {
    fprintf(stderr, "%s\n", tenon_last_error());
    return 3;
  }
  fwrite(scores, 1, sizeof scores, stdout);
  tenon_engine_destroy(engine);
  tenon_bundle_close(bundle);
  return 0;
}
