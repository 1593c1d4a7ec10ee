// Classifies the image in seven.h and prints the answer.  The network is the library that
// `tenon compile examples/digits/digits.onnx --emit arduino` writes.
#include <digits_weights.h>

#include "classify.h"
#include "seven.h"

void setup() {
  Serial.begin(115200);
  while (!Serial) {
  }
}

void loop() {
  int percent;
  const unsigned long began = micros();
  const int digit = classify(seven, &percent);
  const unsigned long time = micros() - began;
  if (digit < 0) {
    Serial.println("the network failed");
  } else {
    Serial.print("digit ");
    Serial.print(digit);
    Serial.print(", probability ");
    Serial.print(percent);
    Serial.print(" %, in ");
    Serial.print(time);
    Serial.println(" us");
  }
  delay(1000);
}
