/* For executables none of whose inputs takes an image: main.c refuses images before they get here. */

#include "program_images.h"

void tenon_take_image(const char *path, const unsigned char *data, size_t size, const TenonPort *port,
                      const Settings *settings) {
  (void)path, (void)data, (void)size, (void)port, (void)settings;
}

int tenon_has_image(void) { return 0; }

void tenon_print_detections(const Settings *settings) { (void)settings; }
