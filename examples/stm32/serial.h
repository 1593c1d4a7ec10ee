/* Text on pin PA9 (USART1), 115200 baud, 8 data bits, no parity. */

void serial_open(void);
void serial_text(const char *text);
void serial_number(unsigned number);
