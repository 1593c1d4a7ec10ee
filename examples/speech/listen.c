/* Writes down speech by the entry points of a bundle, without a library:

       tenon compile models/whisper -o net --emit text
       gcc listen.c net/whisper_speech.c net/encoder/whisper_encoder.o net/decoder/whisper_decoder.o -Inet -Inet/encoder \
         -Inet/decoder -ffp-contract=off -lm -o listen
       arecord -q -t raw -f S16_LE -r 16000 | ./listen net */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include "whisper_speech.h"

TENON_MEM_ALIGN(64) static uint8_t encoder[WHISPER_ENCODER_MUTABLE_MEM_SIZE];
TENON_MEM_ALIGN(64) static uint8_t decoder[WHISPER_DECODER_MUTABLE_MEM_SIZE];
TENON_MEM_ALIGN(64) static uint8_t activations[WHISPER_SPEECH_ACTIVATIONS];

/* The content of a file, at a multiple of 64. */
static const void *content(const char *folder, const char *name, size_t *size) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "rb");
  if (file == NULL || fseek(file, 0, SEEK_END) != 0) {
    perror(path);
    exit(1);
  }
  *size = (size_t)ftell(file);
  rewind(file);
  uint8_t *memory = malloc(*size + 64);
  if (memory == NULL) exit(1);
  memory += 64 - (uintptr_t)memory % 64;
  if (fread(memory, 1, *size, file) != *size) exit(1);
  fclose(file);
  return memory;
}

static int print(const whisper_heard *text, void *user) {
  (void)user;
  if (text->final) printf("%.1f %.1f %.*s\n", text->start, text->end, (int)text->bytes, text->text);
  return fflush(stdout);
}

int main(int count, char **arguments) {
  int16_t samples[1600];
  size_t size, tables;
  if (count != 2) return fprintf(stderr, "usage: %s FOLDER < SAMPLES\n", arguments[0]) > 0;
  whisper_speech speech = {content(arguments[1], "whisper.text.bin", &tables), 0, NULL, NULL, encoder, decoder, activations, NULL, NULL};
  speech.tables_size = tables;
  speech.encoder_weights = content(arguments[1], "encoder/whisper_encoder.weights.bin", &size);
  speech.decoder_weights = content(arguments[1], "decoder/whisper_decoder.weights.bin", &size);

  whisper_listening how = WHISPER_LISTENING;
  how.live = 1;
  const size_t needed = whisper_speech_memory(&speech);
  void *memory = malloc(needed + 1);
  if (memory == NULL || whisper_listen(&speech, &how, print, NULL, memory, needed) != 0) return 1;
  for (size_t taken; (taken = fread(samples, sizeof *samples, 1600, stdin)) > 0;)
    if (whisper_hear_pcm(memory, samples, taken) != 0) return 1;
  return whisper_finish(memory) != 0;
}
