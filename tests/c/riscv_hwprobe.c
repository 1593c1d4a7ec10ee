/* Preloaded before libtenon: riscv_hwprobe answers with the extensions of HWPROBE (a number), or, without it, as systems
   that do not know the call; other system calls are made. */
#include <stdint.h>
#include <stdlib.h>

struct pair {
  int64_t key;
  uint64_t value;
};

long syscall(long number, long a, long b, long c, long d, long e, long f) {
  enum { HWPROBE = 258, KEY_EXTENSIONS = 4 };
  const char *extensions = getenv("HWPROBE");
  if (number == HWPROBE) {
    struct pair *pairs = (struct pair *)a;
    if (!extensions || b != 1 || pairs->key != KEY_EXTENSIONS) return -1;
    pairs->value = strtoull(extensions, NULL, 0);
    return 0;
  }
  register long a0 __asm__("a0") = a, a1 __asm__("a1") = b, a2 __asm__("a2") = c, a3 __asm__("a3") = d;
  register long a4 __asm__("a4") = e, a5 __asm__("a5") = f, a7 __asm__("a7") = number;
  __asm__ volatile("ecall" : "+r"(a0) : "r"(a1), "r"(a2), "r"(a3), "r"(a4), "r"(a5), "r"(a7) : "memory");
  return a0;
}
