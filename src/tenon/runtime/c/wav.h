/* WAV files, read from the beginning to the end, and sampling rates converted on the way. */

#ifndef TENON_WAV_H
#define TENON_WAV_H

#include <stdint.h>
#include <stdio.h>

/* Frames of `channels` samples of `width` bytes, floats or integers, `rate` frames in a second; `left` bytes of them are to
   be read. */
typedef struct {
  FILE *file;
  int is_float;
  unsigned width, channels, rate;
  uint64_t left;
} WavFile;

/* Read up to the samples of an open file.  Returns NULL, or what is wrong with it. */
const char *wav_open(WavFile *wav, FILE *file);

/* Up to `most` frames as samples of -1 to 1, channels averaged; 0 at the end. */
size_t wav_read(WavFile *wav, double *samples, size_t most);

/* A converter of sampling rates: a windowed sinc with weights for each phase between two samples. */
typedef struct Resampler Resampler;
typedef int ResampledSamples(const float *samples, size_t count, void *user);

/* From `rate` to `wanted`; NULL if there is no memory.  `give` gets the samples; what it returns, if it is not 0, ends it. */
Resampler *resampler_new(unsigned rate, unsigned wanted, ResampledSamples *give, void *user);
/* Take the next samples; what `give` returned. */
int resampler_add(Resampler *resampler, const double *samples, size_t count);
/* Give what is left at the end, and release the converter. */
int resampler_end(Resampler *resampler);

#endif
