/* The parts of the Pico SDK that programs use: QEMU's board ends where they would wait. */
#include <stdint.h>

#include "../../board.h"

static inline void stdio_init_all(void) {}
static inline uint64_t time_us_64(void) { return 0; }
static inline void sleep_ms(uint32_t time) { (void)time, leave(); }
