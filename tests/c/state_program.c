/* As state_client.cpp, with the bundle linked into the program. */

#include "net.h"

#include <stdio.h>

TENON_MEM_ALIGN(64) static const uint8_t weights[NET_CONSTANT_MEM_SIZE] = {
#include "net.weights.txt"
};
TENON_MEM_ALIGN(64) static uint8_t tensors[NET_MUTABLE_MEM_SIZE], scratch[NET_ACTIVATIONS_MEM_SIZE];

int main(void) {
  unsigned char runs;
  while (fread(&runs, 1, 1, stdin) == 1) {
    int i;
    net_reset(tensors);
    for (i = 0; i < runs; i++) {
      if (fread(TENON_GET_ADDR(tensors, NET_x), 1, NET_x_BYTES, stdin) != NET_x_BYTES) return 1;
      if (net(weights, tensors, scratch) != 0) return 2;
      fwrite(TENON_GET_ADDR(tensors, NET_y), 1, NET_y_BYTES, stdout);
    }
  }
  return 0;
}
