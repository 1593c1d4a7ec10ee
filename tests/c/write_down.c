/* Writes down a sound: ENCODER DECODER THREADS LIVE TIMES PART SOUND, where SOUND are samples of 16 bits, given PART at once
   (below 0: as floats).  Each text is a line: start, end, whether it is final, and the text. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tenon.h"

static int print(const TenonHeardText *text, void *context) {
  int *left = context;
  printf("%.3f %.3f %d ", text->start, text->end, (int)text->final);
  fwrite(text->text, 1, text->bytes, stdout);
  printf("\n");
  return --*left == 0;
}

static int fail(const char *what) {
  printf("%s: %s\n", what, tenon_last_error());
  return 1;
}

int main(int count, char **words) {
  TenonBundle *encoder, *decoder;
  TenonRecognizer *recognizer;
  TenonEngineOptions engine = TENON_ENGINE_OPTIONS_INIT;
  TenonListenOptions how = TENON_LISTEN_OPTIONS_INIT;
  static int16_t samples[1 << 20];
  static float floats[1 << 20];
  size_t total, i, part, done, taken;
  int left = -1, sound;
  FILE *file;
  if (count < 8 || tenon_bundle_open(words[1], NULL, &encoder) != TENON_OK) return fail("open");
  if (tenon_bundle_open(words[2], NULL, &decoder) != TENON_OK) return fail("open");
  engine.threads = atoi(words[3]);
  if (tenon_recognizer_create(encoder, decoder, &engine, &recognizer) != TENON_OK) return fail("create");
  if (tenon_recognizer_hear(recognizer, floats, 1) != TENON_WRONG_STATE) return 3;
  how.live = atoi(words[4]);
  how.times = atoi(words[5]);
  part = (size_t)abs(atoi(words[6]));
  how.language = "xx";
  if (tenon_recognizer_begin(recognizer, &how, print, &left) != TENON_NOT_FOUND) return 4;
  how.language = count > 8 ? words[8] : NULL;
  if ((file = fopen(words[7], "rb")) == NULL) return 5;
  total = fread(samples, sizeof *samples, 1 << 20, file);
  fclose(file);
  for (i = 0; i < total; i++) floats[i] = (float)samples[i] / 32768.0f;
  for (sound = 0; sound < 2; sound++) { /* the second one begins at 0 again */
    if (tenon_recognizer_begin(recognizer, &how, print, &left) != TENON_OK) return fail("begin");
    for (done = 0; done < total; done += taken) {
      taken = total - done < part ? total - done : part;
      if (atoi(words[6]) < 0) {
        if (tenon_recognizer_hear(recognizer, floats + done, taken) != TENON_OK) return fail("hear");
      } else if (tenon_recognizer_hear_pcm(recognizer, samples + done, taken) != TENON_OK) {
        return fail("hear");
      }
    }
    if (tenon_recognizer_finish(recognizer) != TENON_OK) return fail("finish");
  }
  if (tenon_recognizer_destroy(recognizer) != TENON_OK || tenon_recognizer_finish(recognizer) != TENON_INVALID_HANDLE) return 6;
  if (tenon_recognizer_create(decoder, encoder, &engine, &recognizer) != TENON_UNSUPPORTED) return 7;
  return tenon_bundle_close(encoder) != TENON_OK || tenon_bundle_close(decoder) != TENON_OK;
}
