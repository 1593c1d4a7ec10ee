#include "serial.h"

#include <stdint.h>

#define REGISTER(address) (*(volatile uint32_t *)(address))
#define RCC_AHB1ENR REGISTER(0x40023830u)
#define RCC_APB2ENR REGISTER(0x40023844u)
#define GPIOA_MODER REGISTER(0x40020000u)
#define GPIOA_AFRH REGISTER(0x40020024u)
#define USART1_SR REGISTER(0x40011000u)
#define USART1_DR REGISTER(0x40011004u)
#define USART1_BRR REGISTER(0x40011008u)
#define USART1_CR1 REGISTER(0x4001100cu)

enum { CLOCK = 16000000, BAUD = 115200 }; /* the internal oscillator, which runs after a reset */
enum { TRANSMITTER_EMPTY = 1 << 7, TRANSMIT = 1 << 3, ENABLE = 1 << 13 };

void serial_open(void) {
  RCC_AHB1ENR |= 1u;       /* GPIOA */
  RCC_APB2ENR |= 1u << 4;  /* USART1 */
  GPIOA_MODER = (GPIOA_MODER & ~(3u << 18)) | 2u << 18; /* PA9: alternate function */
  GPIOA_AFRH = (GPIOA_AFRH & ~(0xfu << 4)) | 7u << 4;   /* which is AF7, USART1_TX */
  USART1_BRR = (CLOCK + BAUD / 2) / BAUD;
  USART1_CR1 = ENABLE | TRANSMIT;
}

static void put(char c) {
  while (!(USART1_SR & TRANSMITTER_EMPTY)) {
  }
  USART1_DR = (uint8_t)c;
}

void serial_text(const char *text) {
  while (*text) put(*text++);
}

void serial_number(unsigned number) {
  if (number >= 10) serial_number(number / 10);
  put((char)('0' + number % 10));
}
