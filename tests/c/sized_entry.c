/* Calls the entry point of a network with any sizes in its inputs; the regions have exactly the bytes that it needs, so
   that a sanitizer sees accesses outside of them.  Compiled with the network `net` and the name of its header. */

#include NETWORK

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t sizes[] = {INT64_MIN, INT64_MIN + 1, -8, -1, 0, 1, 2, 3, 4, 5, 8, 12, 20, 24, 25, 28, 1 << 20,
                                (int64_t)1 << 32, INT64_MAX - 3, INT64_MAX};

static uint8_t *region(size_t bytes) {
  void *memory = NULL;
  if (posix_memalign(&memory, NET_MEM_ALIGN, bytes ? bytes : 1) != 0) exit(2);
  memset(memory, 0, bytes);
  return memory;
}

int main(void) {
  enum { COUNT = sizeof sizes / sizeof *sizes };
  int right = 0, wrong = 0;
  for (int i = 0; i < COUNT * COUNT; i++) {
    uint8_t *weights = region(NET_CONSTANT_MEM_SIZE), *tensors = region(NET_MUTABLE_MEM_SIZE);
    uint8_t *activations = region(NET_ACTIVATIONS_MEM_SIZE);
    const int64_t l = sizes[i / COUNT], w = sizes[i % COUNT];
    memcpy(tensors + NET_L, &l, sizeof l);
    memcpy(tensors + NET_W, &w, sizeof w);
    const int status = net(weights, tensors, activations);
    const int fits = l >= NET_L_LEAST && l <= NET_L_MOST && (l - NET_L_LEAST) % NET_L_STEP == 0 && w >= NET_W_LEAST &&
                     w <= NET_W_MOST && (w - NET_W_LEAST) % NET_W_STEP == 0;
    if (status != (fits ? 0 : 2)) return 1;
    right += fits;
    wrong += !fits;
    free(weights);
    free(tensors);
    free(activations);
  }
  printf("%d %d\n", right, wrong);
  return 0;
}
