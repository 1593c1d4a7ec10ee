/* Kernels that the driver takes as one text, `device_text` of the generated file.  It stands behind device_network.c. */

/* The kernels as one text, which the caller frees; a null pointer without memory. */
static char *device_kernels(void) {
  size_t length = 1, count = sizeof device_text / sizeof device_text[0];
  for (size_t i = 0; i < count; i++) length += strlen(device_text[i]);
  char *text = malloc(length), *end = text;
  for (size_t i = 0; text && i < count; i++) {
    const size_t own = strlen(device_text[i]);
    memcpy(end, device_text[i], own);
    end += own;
  }
  if (text) *end = 0;
  return text;
}
