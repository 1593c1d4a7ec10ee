#include "wav.h"
#include <math.h>
#include <string.h>

/* Sources: Microsoft and IBM, Multimedia Programming Interface and Data Specifications 1.0 (1991); RFC 2361; the structure
   WAVEFORMATEXTENSIBLE.  See runtime/engine/wav_file.py. */

enum { PCM = 1, FLOATS = 3, EXTENSIBLE = 0xfffe, FIELDS = 40 };

static uint32_t number(const uint8_t *at, int bytes) {
  uint32_t value = 0;
  for (int i = bytes; i-- > 0;) value = value << 8 | at[i];
  return value;
}

static int skip(FILE *file, uint64_t count) {
  uint8_t part[512];
  while (count > 0) {
    const size_t wanted = count < sizeof part ? (size_t)count : sizeof part;
    if (fread(part, 1, wanted, file) != wanted) return 0;
    count -= wanted;
  }
  return 1;
}

static const char *read_fields(WavFile *wav, const uint8_t *fields, size_t size) {
  if (size < 16) return "no format is stated before the data";
  uint32_t tag = number(fields, 2);
  const uint32_t block = number(fields + 12, 2), bits = number(fields + 14, 2);
  if (tag == EXTENSIBLE && size >= 26) tag = number(fields + 24, 2);
  wav->channels = number(fields + 2, 2);
  wav->rate = number(fields + 4, 4);
  wav->width = wav->channels > 0 ? block / wav->channels : 0;
  wav->is_float = tag == FLOATS;
  if (tag != PCM && tag != FLOATS) return "its encoding is neither PCM nor floats";
  const int known = tag == FLOATS ? wav->width == 4 || wav->width == 8 : wav->width >= 1 && wav->width <= 4;
  if (!known || wav->width * wav->channels != block || wav->width != (bits + 7) / 8 || wav->rate == 0)
    return "its samples are of a kind that is not supported";
  return NULL;
}

const char *wav_open(WavFile *wav, FILE *file) {
  uint8_t head[12], fields[FIELDS];
  size_t size = 0;
  wav->file = file;
  if (fread(head, 1, sizeof head, file) != sizeof head || memcmp(head, "RIFF", 4) != 0 || memcmp(head + 8, "WAVE", 4) != 0)
    return "it does not begin with RIFF and WAVE";
  while (fread(head, 1, 8, file) == 8) {
    const uint64_t length = number(head + 4, 4);
    if (memcmp(head, "data", 4) == 0) {
      wav->left = length;
      return read_fields(wav, fields, size);
    }
    uint64_t rest = length + length % 2;
    if (memcmp(head, "fmt ", 4) == 0) {
      const size_t taken = length < sizeof fields ? (size_t)length : sizeof fields;
      size = fread(fields, 1, taken, file);
      if (size != taken) break;
      rest -= taken;
    }
    if (!skip(file, rest)) break;
  }
  return "it has no data";
}

static double of_float(const uint8_t *at, unsigned width) {
  double value;
  if (width == 4) {
    const uint32_t bits = number(at, 4);
    float narrow;
    memcpy(&narrow, &bits, sizeof narrow);
    value = (double)narrow;
  } else {
    const uint64_t bits = number(at, 4) | (uint64_t)number(at + 4, 4) << 32;
    memcpy(&value, &bits, sizeof value);
  }
  return isnan(value) ? 0 : isinf(value) ? (value > 0 ? 1 : -1) : value;
}

static double of_integer(const uint8_t *at, unsigned width) {
  if (width == 1) return ((double)at[0] - 128) / 128;
  const uint32_t bits = number(at, (int)width) << (32 - 8 * width);
  int32_t value;
  memcpy(&value, &bits, sizeof value);
  return (double)value / 2147483648.0;
}

static int read_frame(WavFile *wav, double *sample) {
  uint8_t part[8];
  double sum = 0;
  if (wav->left < (uint64_t)wav->width * wav->channels) return 0;
  for (unsigned i = 0; i < wav->channels; i++) {
    if (fread(part, 1, wav->width, wav->file) != wav->width) return 0;
    sum += wav->is_float ? of_float(part, wav->width) : of_integer(part, wav->width);
  }
  wav->left -= (uint64_t)wav->width * wav->channels;
  *sample = sum / wav->channels;
  return 1;
}

size_t wav_read(WavFile *wav, double *samples, size_t most) {
  size_t count = 0;
  while (count < most && read_frame(wav, &samples[count])) count++;
  return count;
}
