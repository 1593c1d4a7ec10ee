/* One matrix product by a microkernel of XNNPACK, for arm_products.py: all rows, as many at a time as it takes.  Matrices
   and limits are zero: what they hold does not change the number of instructions.

     product ROWS INPUTS COLUMNS

   KERNEL is the name of the function, HEIGHT and PANEL its rows and columns, INPUT and OUTPUT are bytes of an element. */
#include <stdlib.h>

void step(int multiplies, size_t rows, size_t inputs, size_t columns);
void KERNEL(size_t height, size_t columns, size_t bytes, const void *left, size_t left_stride, const void *right, void *result,
            size_t result_stride, size_t panel_stride, const void *limits);

static char *left, *right, *result;
static const double limits[8];

__attribute__((noinline)) void step(int multiplies, size_t rows, size_t inputs, size_t columns) {
  for (size_t row = 0; multiplies && row < rows; row += HEIGHT) {
    const size_t height = rows - row < HEIGHT ? rows - row : HEIGHT;
    KERNEL(height, columns, inputs * INPUT, left + row * inputs * INPUT, inputs * INPUT, right, result + row * columns * OUTPUT,
           columns * OUTPUT, PANEL * OUTPUT, limits);
  }
}

int main(int count, char **words) {
  const size_t room = 1 << 24;
  if (count != 4) return 2;
  left = calloc(room, 1), right = calloc(room, 1), result = calloc(room, 1);
  if (!left || !right || !result) return 1;
  for (int multiplies = 0; multiplies <= 1; multiplies++) {
    step(multiplies, strtoul(words[1], NULL, 10), strtoul(words[2], NULL, 10), strtoul(words[3], NULL, 10));
  }
  return 0;
}
