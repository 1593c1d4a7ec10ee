/* QEMU's boards mps2-an385 and mps2-an386: start-up, a serial port, a printf of %d and %%, and memcpy and its like. */

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "board.h"

#define REGISTER(address) (*(volatile uint32_t *)(address))
#define UART_DATA REGISTER(0x40004000u)
#define UART_CONTROL REGISTER(0x40004008u)
#define UART_DIVISOR REGISTER(0x40004010u)

extern uint8_t stack_top[];
int main(void);
void reset(void);

void put(char c) { UART_DATA = (uint8_t)c; }

void leave(void) { /* by semihosting: ends the emulator */
  register uint32_t operation __asm__("r0") = 0x18, reason __asm__("r1") = 0x20026;
  __asm__ volatile("bkpt 0xab" ::"r"(operation), "r"(reason) : "memory");
  for (;;) {
  }
}

void reset(void) {
#ifdef __ARM_FP
  REGISTER(0xe000ed88u) |= 0xfu << 20; /* the FPU */
  __asm__ volatile("dsb\n isb" ::: "memory");
#endif
  UART_DIVISOR = 16;
  UART_CONTROL = 1;
  main();
  leave();
}

__attribute__((section(".vectors"), used)) static const void *const vectors[16] = {stack_top, (void *)reset};

static void number(unsigned value) {
  if (value >= 10) number(value / 10);
  put((char)('0' + value % 10));
}

int printf(const char *format, ...) {
  va_list more;
  va_start(more, format);
  for (; *format; format++) {
    if (*format != '%') {
      put(*format);
    } else if (*++format == 'd') {
      const int value = va_arg(more, int);
      if (value < 0) put('-');
      number(value < 0 ? 0u - (unsigned)value : (unsigned)value);
    } else {
      put(*format);
    }
  }
  va_end(more);
  return 0;
}

void *memcpy(void *to, const void *from, size_t count) {
  for (size_t i = 0; i < count; i++) ((volatile uint8_t *)to)[i] = ((const uint8_t *)from)[i];
  return to;
}

void *memset(void *to, int value, size_t count) {
  for (size_t i = 0; i < count; i++) ((volatile uint8_t *)to)[i] = (uint8_t)value;
  return to;
}

void *memmove(void *to, const void *from, size_t count) {
  if ((uintptr_t)to <= (uintptr_t)from) return memcpy(to, from, count);
  while (count--) ((volatile uint8_t *)to)[count] = ((const uint8_t *)from)[count];
  return to;
}
