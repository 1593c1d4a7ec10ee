/* One matrix product by KleidiAI, for arm_products.py: packs the left matrix, then multiplies.  Matrices are zero:
   what they hold does not change the number of instructions.

     product ROWS INPUTS COLUMNS

   KERNEL and PACK are the names of functions without "kai_run_", HEADER and PACK_HEADER their headers; INPUT and OUTPUT
   are bytes of an element.  BLOCKS, if defined, are the elements that share a scale.  Without PACK the kernel reads the
   left matrix as it is. */
#include <math.h>
#include <stdlib.h>

#include HEADER
#ifdef PACK
#include PACK_HEADER
#endif

#define JOINED(a, b) a##b
#define NAME(prefix, name) JOINED(prefix, name)

#ifdef BLOCKS
#define BLOCK_LENGTH , BLOCKS
#else
#define BLOCK_LENGTH
#endif

void step(int packs, size_t rows, size_t inputs, size_t columns);
void __arm_tpidr2_save(void);

static void *left, *packed, *right, *result;

/* A function that zig's run-time library lacks: ZA is not in use when a kernel is called. */
void __arm_tpidr2_save(void) {}

__attribute__((noinline)) void step(int packs, size_t rows, size_t inputs, size_t columns) {
  if (packs) {
#ifdef PACK
    NAME(kai_run_, PACK)
    (rows, inputs BLOCK_LENGTH, NAME(kai_get_mr_, KERNEL)(), NAME(kai_get_kr_, KERNEL)(), NAME(kai_get_sr_, KERNEL)(), 0, left,
     inputs * INPUT, packed);
#endif
    return;
  }
#ifdef PACK
#define LEFT packed
#elif defined(REQUANTIZED)
#define LEFT left
#else
#define LEFT left, inputs * INPUT
#endif
#ifdef REQUANTIZED
  const struct kai_matmul_requantize32_params params = {.min_value = -128, .max_value = 127, .output_zero_point = 0};
  NAME(kai_run_, KERNEL)(rows, columns, inputs, LEFT, right, result, columns * OUTPUT, OUTPUT, &params);
#else
  NAME(kai_run_, KERNEL)(rows, columns, inputs BLOCK_LENGTH, LEFT, right, result, columns * OUTPUT, OUTPUT, -INFINITY, INFINITY);
#endif
}

int main(int count, char **words) {
  const size_t room = 1 << 24;
  if (count != 4) return 2;
  left = calloc(room, 1), packed = calloc(room, 1), right = calloc(room, 1), result = calloc(room, 1);
  if (!left || !packed || !right || !result) return 1;
  for (int packs = 1; packs >= 0; packs--) {
    step(packs, strtoul(words[1], NULL, 10), strtoul(words[2], NULL, 10), strtoul(words[3], NULL, 10));
  }
  return 0;
}
