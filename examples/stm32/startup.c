/* The code before main: the FPU is turned on, initialised variables are copied from flash, the others are cleared.
   Also the functions that compilers expect of a C library. */

#include <stddef.h>
#include <stdint.h>

#define CPACR (*(volatile uint32_t *)0xe000ed88u) /* which coprocessors may be used */

int main(void);
void reset(void);
extern uint8_t stack_top[], data_begin[], data_end[], bss_begin[], bss_end[];
extern const uint8_t data_in_flash[];

void *memcpy(void *to, const void *from, size_t count) {
  uint8_t *a = to;
  const uint8_t *b = from;
  while (count--) *a++ = *b++;
  return to;
}

void *memset(void *to, int value, size_t count) {
  uint8_t *a = to;
  while (count--) *a++ = (uint8_t)value;
  return to;
}

void *memmove(void *to, const void *from, size_t count) {
  uint8_t *a = to;
  const uint8_t *b = from;
  if (a < b) return memcpy(to, from, count);
  while (count--) a[count] = b[count];
  return to;
}

void reset(void) {
  CPACR |= 0xfu << 20; /* full access to CP10 and CP11: the FPU */
  __asm__ volatile("dsb\n isb" ::: "memory");
  memcpy(data_begin, data_in_flash, (size_t)(data_end - data_begin));
  memset(bss_begin, 0, (size_t)(bss_end - bss_begin));
  main();
  for (;;) __asm__ volatile("wfi");
}

static void fault(void) {
  for (;;) __asm__ volatile("wfi");
}

/* The first words of flash: stack, reset, NMI, and the faults (hard, memory, bus, usage). */
typedef void (*handler)(void);
__attribute__((section(".vectors"), used)) static const handler vectors[7] = {
    (handler)(uintptr_t)stack_top, reset, fault, fault, fault, fault, fault,
};
