/* Runs any network once and prints every output over the serial port: its largest element and where that is.

   The first input has the bytes of INPUT_FILE, if that is defined; all other inputs count from 0 to 15, again and again.
   The Makefile defines NETWORK_HEADER ("net_weights.h"), NETWORK_NAME (net) and NETWORK_PREFIX (NET_). */

#include NETWORK_HEADER

#include "serial.h"

#define JOIN(a, b) a##b
#define JOINED(a, b) JOIN(a, b)
#define MACRO(word) JOINED(NETWORK_PREFIX, word) /* NET_word */

TENON_MEM_ALIGN(64) static uint8_t tensors[MACRO(MUTABLE_MEM_SIZE) + 1];
TENON_MEM_ALIGN(64) static uint8_t activations[MACRO(ACTIVATIONS_MEM_SIZE) + 1];

/* The types of elements, by the names that the header has for them; others are shown as bytes. */
typedef float f32;
typedef int8_t i8;
typedef uint8_t u8;
typedef int16_t i16;
typedef uint16_t u16;
typedef int32_t i32;
typedef uint32_t u32;
typedef int64_t i64;
typedef uint64_t u64;
typedef double f64;
typedef uint8_t boolean;
typedef uint16_t f16;
typedef uint16_t bf16;
#define bool boolean

#ifdef INPUT_FILE
__asm__(".section .rodata.input_file,\"a\"\n"
        ".p2align 3\n"
        "input_file: .incbin \"" INPUT_FILE "\"\n"
        "input_file_end:\n"
        ".text");
extern const uint8_t input_file[], input_file_end[];

static void read_file(uint8_t *to, uint32_t bytes) {
  const uint32_t given = (uint32_t)(input_file_end - input_file);
  for (uint32_t i = 0; i < bytes && i < given; i++) to[i] = input_file[i];
}
#endif

static void number(int32_t value) {
  if (value < 0) serial_text("-");
  serial_number(value < 0 ? 0u - (uint32_t)value : (uint32_t)value);
}

/* With three digits behind the point. */
static void decimal(float value) {
  const int32_t thousandths = (int32_t)(value * 1000 + (value < 0 ? -0.5f : 0.5f));
  const uint32_t size = thousandths < 0 ? 0u - (uint32_t)thousandths : (uint32_t)thousandths;
  serial_text(thousandths < 0 ? "-" : "");
  serial_number(size / 1000);
  serial_text(size % 1000 < 10 ? ".00" : size % 1000 < 100 ? ".0" : ".");
  serial_number(size % 1000);
}

#define FILL(name, type, offset, bytes, rank, ...) \
  for (uint32_t i = 0; i < (bytes) / sizeof(type); i++) ((type *)(tensors + (offset)))[i] = (type)(i % 16);

#define SHOW(name, type, offset, bytes, rank, ...)                            \
  {                                                                           \
    const type *const values = (const type *)(tensors + (offset));            \
    uint32_t best = 0;                                                        \
    for (uint32_t i = 1; i < (bytes) / sizeof(type); i++)                     \
      if (values[i] > values[best]) best = i;                                 \
    serial_text(name ": largest at ");                                        \
    serial_number(best);                                                      \
    serial_text(", ");                                                        \
    if ((type)0.5f > 0) {                                                     \
      decimal((float)values[best]);                                           \
    } else {                                                                  \
      number((int32_t)values[best]);                                          \
    }                                                                         \
    serial_text("\r\n");                                                      \
  }

int main(void) {
  serial_open();
  MACRO(INPUTS)(FILL)
#ifdef INPUT_FILE
#define FIRST(name, type, offset, bytes, rank, ...) if ((offset) == 0) read_file(tensors, (bytes));
  MACRO(INPUTS)(FIRST)
#endif
  if (JOINED(NETWORK_NAME, _run)(tensors, activations) != 0) {
    serial_text("the network failed\r\n");
    return 1;
  }
  MACRO(OUTPUTS)(SHOW)
  return 0;
}
