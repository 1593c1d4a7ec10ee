/* The serial port on pins PA9 (out) and PA10 (in), USART1: 115200 baud, 8 data bits, no parity. */

#include <stdint.h>

void serial_open(void);
void serial_put(uint8_t byte);
uint8_t serial_get(void); /* waits for a byte */
void serial_text(const char *text);
void serial_number(unsigned number);
