/* The parts of Arduino's core that sketches use: QEMU's board ends after the first loop. */
#pragma once
#include "../board.h"

struct Port {
  void begin(long) {}
  operator bool() const { return true; }
  void print(const char *text) { while (*text) put(*text++); }
  void print(int value) { number(value); }
  void print(long value) { number(value); }
  void print(unsigned long value) { number((long)value); }
  void print(double value) { /* with two digits behind the point */
    const long hundredths = (long)(value * 100 + (value < 0 ? -0.5 : 0.5)), size = hundredths < 0 ? -hundredths : hundredths;
    if (hundredths < 0) put('-');
    number(size / 100);
    put('.');
    put((char)('0' + size / 10 % 10));
    put((char)('0' + size % 10));
  }
  template <class T> void println(T value) { print(value), print("\r\n"); }
 private:
  void number(long value) {
    if (value < 0) put('-'), value = -value;
    if (value >= 10) number(value / 10);
    put((char)('0' + value % 10));
  }
};
static Port Serial __attribute__((unused));
static inline unsigned long micros() { return 0; }
static inline void delay(int) { leave(); }
