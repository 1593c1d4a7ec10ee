/* QEMU's machine virt: start-up, a printf of %d and %%, and memcpy and its like. */

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

void app_main(void);

__asm__(".section .start, \"ax\", @progbits\n.globl _start\n_start:\n la sp, stack_top\n call run\n.text\n");

void run(void);
void run(void) {
  app_main();
  *(volatile uint32_t *)0x100000 = 0x5555; /* turns the machine off */
  for (;;) {
  }
}

static void put(char c) { *(volatile uint8_t *)0x10000000 = (uint8_t)c; }

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
