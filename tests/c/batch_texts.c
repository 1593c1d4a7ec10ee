/* Goes on with texts at the same time, by a bundle of a language model for several sequences.

   BUNDLE THREADS SEED GRAMMAR PROMPT..., of which each one is added as soon as there is a place.  A PROMPT that begins with
   "user:" is a message. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tenon.h"

typedef struct {
  char text[2048];
  size_t bytes;
  TenonTextResult result;
  int ended, pieces;
} Answer;

static int keep(const char *text, size_t bytes, void *context) {
  Answer *answer = context;
  for (size_t i = 0; i < bytes; i++) answer->text[answer->bytes++] = text[i] == '\n' || text[i] == 0 ? '/' : text[i];
  return ++answer->pieces == 1000;
}

static TenonBatch *batch;

static void ended(const TenonTextResult *result, void *context) {
  Answer *answer = context;
  answer->result = *result;
  answer->ended++;
  if (tenon_batch_generate(batch, "a", NULL, keep, NULL, NULL) != TENON_BUSY || tenon_batch_destroy(batch) != TENON_BUSY)
    answer->ended = 9;
}

static int fail(const char *what) {
  printf("%s: %s\n", what, tenon_last_error());
  return 1;
}

int main(int count, char **words) {
  static Answer answers[16];
  TenonBundle *bundle;
  TenonEngineOptions engine = TENON_ENGINE_OPTIONS_INIT;
  TenonTextOptions how = TENON_TEXT_OPTIONS_INIT;
  size_t left = 0;
  int added = 0, most = count - 5;
  if (most < 1 || most > 16 || tenon_bundle_open(words[1], NULL, &bundle) != TENON_OK) return fail("open");
  engine.threads = atoi(words[2]);
  if (tenon_batch_create(bundle, &engine, &batch) != TENON_OK) return fail("create");
  how.max_tokens = 8;
  if (*words[4]) how.grammar = words[4];
  if (atoi(words[3]) > 0) how.temperature = 1.25;
  do {
    while (added < most) {
      char *prompt = words[5 + added], grammar[256] = "", *end[] = {NULL, NULL};
      TenonTextOptions own = how;
      TenonMessage message;
      char stop[] = "never and never";
      own.seed = atoi(words[3]) + added;
      end[0] = stop;
      own.stop = (const char *const *)end;
      if (how.grammar != NULL) own.grammar = strcpy(grammar, how.grammar);
      message.role = "user";
      message.content = prompt + 5;
      TenonStatus status = strncmp(prompt, "user:", 5) == 0
                               ? tenon_batch_chat(batch, &message, 1, &own, keep, ended, &answers[added])
                               : tenon_batch_generate(batch, prompt, &own, keep, ended, &answers[added]);
      memset(grammar, 'x', sizeof grammar); /* what was given is copied */
      memset(stop, 'x', sizeof stop);
      if (status == TENON_BUSY && (int64_t)left == tenon_batch_sequences(batch)) break;
      if (status != TENON_OK) return fail("add");
      added++;
      left++;
    }
    if (tenon_batch_step(batch, &left) != TENON_OK) return fail("step");
  } while (left > 0 || added < most);
  for (int i = 0; i < most; i++)
    printf("%.*s\n%ld %ld %ld %d\n", (int)answers[i].bytes, answers[i].text, (long)answers[i].result.tokens,
           (long)answers[i].result.prompt_tokens, (long)answers[i].result.reused_tokens,
           answers[i].ended == 1 ? (int)answers[i].result.finish : -1);
  /* One that is not to its end when the batch is destroyed, unless it ends at once. */
  if (tenon_batch_generate(batch, words[count - 1], NULL, keep, NULL, &answers[0]) != TENON_OK) return fail("last");
  if (tenon_batch_step(batch, &left) != TENON_OK || left > 1) return fail("one more");
  if (tenon_batch_destroy(batch) != TENON_OK || tenon_bundle_close(bundle) != TENON_OK) return 3;
  return tenon_batch_context(batch) == -1 ? 0 : 5;
}
