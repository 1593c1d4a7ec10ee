/* Goes on with a text, or answers messages, by a bundle of a language model.

   BUNDLE THREADS SEED STOP PROMPT..., where more than one PROMPT are messages of user and assistant in turn, or with
   "system" as the first of them begin with one of the system.  A STOP that begins with "root ::=" or a brace is a grammar. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tenon.h"

static int print(const char *text, size_t bytes, void *context) {
  int *pieces = context;
  fwrite(text, 1, bytes, stdout);
  return ++*pieces == 1000;
}

static int fail(const char *what) {
  printf("%s: %s\n", what, tenon_last_error());
  return 1;
}

int main(int count, char **words) {
  static const char *const roles[] = {"user", "assistant"};
  TenonBundle *bundle;
  TenonGenerator *generator;
  TenonEngineOptions engine = TENON_ENGINE_OPTIONS_INIT;
  TenonTextOptions how = TENON_TEXT_OPTIONS_INIT;
  TenonTextResult result;
  TenonMessage messages[8];
  const char *stop[] = {"never and never", NULL, NULL};
  int pieces = 0, system, i;
  if (count < 6 || count > 12 || tenon_bundle_open(words[1], NULL, &bundle) != TENON_OK) return fail("open");
  engine.threads = atoi(words[2]);
  if (tenon_generator_create(bundle, &engine, &generator) != TENON_OK) return fail("create");
  how.max_tokens = 12;
  how.seed = atoi(words[3]);
  if (how.seed > 0) {
    how.temperature = 1.25;
    how.top_k = 50;
    how.top_p = 0.9375;
    how.min_p = 0.015625;
    how.repetition_penalty = 1.25;
    how.presence_penalty = 0.5;
    how.frequency_penalty = 0.25;
  }
  if (strncmp(words[4], "root ::=", 8) == 0 || *words[4] == '{') how.grammar = words[4];
  else if (*words[4]) stop[1] = words[4], how.stop = stop;
  system = strcmp(words[5], "system") == 0;
  for (i = 5 + system; i < count; i++) {
    messages[i - 5 - system].role = system && i == 6 ? "system" : roles[(i - 5 - 2 * system) % 2];
    messages[i - 5 - system].content = words[i];
  }
  if (count == 6) {
    if (tenon_generator_generate(generator, words[5], &how, print, &pieces, &result) != TENON_OK) return fail("generate");
  } else {
    size_t number = (size_t)(count - 5 - system);
    if (tenon_generator_chat(generator, messages, number, &how, print, &pieces, &result) != TENON_OK) return fail("chat");
    if (number > 2 + (size_t)system) { /* once more: nothing of it is computed again but its last token */
      long before = (long)result.prompt_tokens;
      printf("\n");
      if (tenon_generator_chat(generator, messages, number, &how, print, &pieces, &result) != TENON_OK) return fail("again");
      if (result.reused_tokens != before - 1) return 4;
    }
  }
  printf("\n%ld %ld %d\n", (long)result.tokens, (long)result.prompt_tokens, (int)result.finish);
  if (tenon_generator_destroy(generator) != TENON_OK || tenon_bundle_close(bundle) != TENON_OK) return 3;
  return tenon_generator_context(generator) == -1 ? 0 : 5;
}
