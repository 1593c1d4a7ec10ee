#include "serial.h"

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
enum { RECEIVED = 1 << 5, TRANSMITTER_EMPTY = 1 << 7, RECEIVE = 1 << 2, TRANSMIT = 1 << 3, ENABLE = 1 << 13 };

void serial_open(void) {
  RCC_AHB1ENR |= 1u;       /* GPIOA */
  RCC_APB2ENR |= 1u << 4;  /* USART1 */
  GPIOA_MODER = (GPIOA_MODER & ~(0xfu << 18)) | 0xau << 18; /* PA9 and PA10: alternate function */
  GPIOA_AFRH = (GPIOA_AFRH & ~(0xffu << 4)) | 0x77u << 4;   /* which is AF7, USART1_TX and USART1_RX */
  USART1_BRR = (CLOCK + BAUD / 2) / BAUD;
  USART1_CR1 = ENABLE | TRANSMIT | RECEIVE;
}

void serial_put(uint8_t byte) {
  while (!(USART1_SR & TRANSMITTER_EMPTY)) {
  }
  USART1_DR = byte;
}

uint8_t serial_get(void) {
  while (!(USART1_SR & RECEIVED)) {
  }
  return (uint8_t)USART1_DR;
}

void serial_text(const char *text) {
  while (*text) serial_put((uint8_t)*text++);
}

void serial_number(unsigned number) {
  if (number >= 10) serial_number(number / 10);
  serial_put((uint8_t)('0' + number % 10));
}
