/* Serves a network over the serial port: `tenon validate MODEL --target stm32f4 --device serial:/dev/ttyACM0` runs it here
   and compares its outputs.  The server is the file that `tenon compile --emit serial` writes. */

#include "serial.h"

#define JOIN(a, b) a##b
#define JOINED(a, b) JOIN(a, b)
#define SERVE JOINED(NETWORK_NAME, _serve)

#define REGISTER(address) (*(volatile uint32_t *)(address))
#define RCC_APB1ENR REGISTER(0x40023840u)
#define TIM2_CR1 REGISTER(0x40000000u)
#define TIM2_EGR REGISTER(0x40000014u)
#define TIM2_CNT REGISTER(0x40000024u)
#define TIM2_PSC REGISTER(0x40000028u)

void SERVE(uint8_t (*receive)(void), void (*send)(uint8_t byte), uint32_t (*microseconds)(void));

static uint32_t microseconds(void) { return TIM2_CNT; }

int main(void) {
  RCC_APB1ENR |= 1u;
  TIM2_PSC = 15; /* of 16 MHz */
  TIM2_EGR = 1;
  TIM2_CR1 = 1;
  serial_open();
  SERVE(serial_get, serial_put, microseconds);
  return 0;
}
