/* Main program of language models: goes on with a prompt, or answers messages, and prints the text as it is generated.
   Exit status: 0, or 2 after one line on standard error. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifdef _WIN32
#include <io.h>
#define isatty _isatty
#else
#include <unistd.h>
#endif
#include "text_program.h"
#ifdef TENON_THREAD_POOL
#include "threads.h"
#endif

static double number(const char *option, const char *text, double least, double most) {
  char *end;
  double value = strtod(text, &end);
  char limits[64];
  snprintf(limits, sizeof limits, "it takes a number from %g to %g", least, most);
  if (end == text || *end != 0 || !(value >= least && value <= most)) FAIL(limits, option);
  return value;
}

/* Text that grows: a line that is typed, or an answer. */
typedef struct {
  char *text;
  size_t size, room;
} Growing;

static void add(Growing *to, const char *bytes, size_t count) {
  while (to->size + count + 1 > to->room)
    if ((to->text = realloc(to->text, to->room = 2 * to->room + 256)) == NULL) FAIL("there is no memory for a text", "");
  memcpy(to->text + to->size, bytes, count);
  to->text[to->size += count] = 0;
}

/* `user` is NULL, or the Growing that keeps the text as well. */
static int print(const char *piece, size_t length, void *user) {
  if (user != NULL) add(user, piece, length);
  fwrite(piece, 1, length, stdout);
  return fflush(stdout) != 0;
}

static const char HELP[] =
    " [options] PROMPT\n\nGoes on with a text, or answers messages.  Without PROMPT, it is read from standard input.\n\n"
    "  --chat                  answer PROMPT, or without it each line of standard input; a backslash at the end\n"
    "                          goes on in the next line, and /reset begins a new conversation\n"
    "  --system TEXT           the message of the system, with --chat\n"
    "  --max-tokens N          most tokens (until the text ends)\n"
    "  --stop TEXT             ends the text before this; can be repeated\n"
    "  --temperature T         0 takes the most probable token\n"
    "  --top-k N               choose among so many tokens; 0: all\n"
    "  --top-p P               choose among the tokens whose probabilities add up to this\n"
    "  --min-p P               least probability relative to the most probable token\n"
    "  --repetition-penalty R  divides the logits of tokens that occurred\n"
    "  --grammar FILE          the text follows this grammar in GBNF, or this JSON schema\n"
    "  --seed N                makes choices repeatable (the time)\n"
#ifdef TENON_THREAD_POOL
    "  --threads N             threads (1)\n"
#endif
    "\nOptions that are not given have the values that the model's file recommends.\n";

#ifdef TENON_THREAD_POOL
static TenonThreadPool *pools[OF_BUNDLE(_ENTRIES)];

static void start(int threads) {
  for (int i = 0; i < OF_BUNDLE(_ENTRIES); i++) {
    pools[i] = tenon_thread_pool_start(OF_BUNDLE(_text_phases)[i], OF_BUNDLE(_text_nexts)[i], threads);
    if (pools[i] == NULL) FAIL("there is no memory for threads", "");
  }
}

static int run(void *runner, int entry) {
  (void)runner;
  return tenon_thread_pool_run(pools[entry], tenon_weights, network, scratch);
}
#endif

static Growing content(FILE *file) {
  Growing text = {NULL, 0, 0};
  char part[1 << 12];
  for (size_t size; (size = fread(part, 1, sizeof part, file)) > 0;) add(&text, part, size);
  add(&text, "", 0);
  return text;
}

static const char *file_content(const char *path) {
  FILE *file = fopen(path, "rb");
  if (file == NULL) FAIL(strerror(errno), path);
  const Growing text = content(file);
  if (ferror(file) || fclose(file) != 0) FAIL("it cannot be read", path);
  return text.text;
}

static const char *standard_input(void) {
  Growing text = content(stdin);
  while (text.size > 0 && text.text[text.size - 1] == '\n') text.text[--text.size] = 0;
  return text.text;
}

/* The next message that is typed; NULL at the end of the input. */
static char *typed_message(void) {
  Growing text = {NULL, 0, 0};
  char part[1 << 12];
  if (isatty(0)) fputs("> ", stderr);
  while (fgets(part, sizeof part, stdin) != NULL) {
    add(&text, part, strlen(part));
    if (text.text[text.size - 1] != '\n') continue;
    text.text[--text.size] = 0;
    if (text.size == 0 || text.text[text.size - 1] != '\\') break;
    text.text[text.size - 1] = '\n';
  }
  return text.text;
}

/* Settings and messages of a conversation, and memory that keeps its tokens. */
typedef struct {
  const OF_BUNDLE(_text) *text;
  OF_BUNDLE(_sampling) *how;
  long most;
  const char *system;
  OF_BUNDLE(_message) *messages;
  size_t count, room, kept;
  void *memory;
} Conversation;

static void check(long made) {
  switch (made) {
    case OF_BUNDLE(_TEXT_LONG): FAIL("the prompt is empty or too long", "");
    case OF_BUNDLE(_TEXT_FAILED): FAIL("the network failed", "");
    case OF_BUNDLE(_TEXT_GRAMMAR): FAIL("the grammar has a mistake, or allows no token", "");
    case OF_BUNDLE(_TEXT_NO_CHAT): FAIL("the model has no chat template, or it takes no message of the system", "--chat");
    default: break;
  }
  if (printf("\n") < 0 || fflush(stdout) != 0) FAIL(strerror(errno), "cannot write the text");
}

static void say(Conversation *c, const char *role, const char *content) {
  if (c->count == c->room) {
    c->messages = realloc(c->messages, (c->room = 2 * c->room + 8) * sizeof *c->messages);
    if (c->messages == NULL) FAIL("there is no memory for messages", "");
  }
  c->messages[c->count].role = role;
  c->messages[c->count++].content = content;
}

static void begin(Conversation *c) {
  c->count = 0;
  if (c->system != NULL) say(c, "system", c->system);
}

static void answer(Conversation *c, const char *message) {
  Growing text = {NULL, 0, 0};
  say(c, "user", message);
  const size_t size = OF_BUNDLE(_chat_memory)(c->text, c->messages, c->count);
  if ((c->memory = realloc(c->memory, size + 1)) == NULL) FAIL("there is not enough memory", "");
  add(&text, "", 0);
  check(OF_BUNDLE(_chat)(c->text, c->how, c->messages, c->count, c->most, print, &text, &c->kept, c->memory, size));
  say(c, "assistant", text.text);
}

static void converse(Conversation *c) {
  begin(c);
  for (char *line; (line = typed_message()) != NULL;) {
    if (strcmp(line, "/reset") == 0) begin(c);
    else if (*line != 0) answer(c, line);
  }
}

static void complete(const OF_BUNDLE(_text) *text, OF_BUNDLE(_sampling) *how, const char *prompt, long most) {
  const size_t size = OF_BUNDLE(_text_memory)(text, strlen(prompt));
  void *memory = malloc(size + 1);
  if (memory == NULL) FAIL("there is not enough memory", "");
  check(OF_BUNDLE(_generate)(text, how, prompt, most, print, NULL, memory, size));
}

int main(int count, char **arguments) {
  const char **stop = calloc((size_t)count + 1, sizeof *stop), *prompt = NULL;
  OF_BUNDLE(_text) text = {tenon_text_tables, tenon_text_tables_size, tenon_weights, network, scratch, NULL, NULL, stop,
                          NULL};
  OF_BUNDLE(_sampling) how = TENON_GREEDY;
  Conversation talk = {&text, &how, -1, NULL, NULL, 0, 0, 0, NULL};
  int stops = 0, chat = 0;
  if (stop == NULL || OF_BUNDLE(_recommended)(&text, &how) != 0) FAIL("there is not enough memory", "");
  how.state = (uint64_t)time(NULL);
  for (int i = 1; i < count; i++) {
    const char *option = arguments[i];
    if (strcmp(option, "--help") == 0 || strcmp(option, "-h") == 0)
      return printf("usage: %s%s", STRING(TENON_ENTRY), HELP) < 0;
    if (strcmp(option, "--chat") == 0) {
      chat = 1;
      continue;
    }
    if (strncmp(option, "--", 2) != 0) {
      if (prompt != NULL) FAIL("give one prompt, in quotes", option);
      prompt = option;
      continue;
    }
    if (++i == count) FAIL("it needs a value, or is no option: try --help", option);
    const char *value = arguments[i];
    if (strcmp(option, "--max-tokens") == 0) talk.most = (long)number(option, value, 0, 1e9);
    else if (strcmp(option, "--stop") == 0) stop[stops++] = value;
    else if (strcmp(option, "--system") == 0) talk.system = value;
    else if (strcmp(option, "--grammar") == 0) text.grammar = file_content(value);
    else if (strcmp(option, "--temperature") == 0) how.temperature = number(option, value, 0, 100);
    else if (strcmp(option, "--top-k") == 0) how.top_k = (uint32_t)number(option, value, 0, 1e9);
    else if (strcmp(option, "--top-p") == 0) how.top_p = number(option, value, 0, 1);
    else if (strcmp(option, "--min-p") == 0) how.min_p = number(option, value, 0, 1);
    else if (strcmp(option, "--repetition-penalty") == 0)
      how.repetition_penalty = (float)number(option, value, 0.01, 100);
    else if (strcmp(option, "--seed") == 0) how.state = (uint64_t)number(option, value, 0, 9e15);
#ifdef TENON_THREAD_POOL
    else if (strcmp(option, "--threads") == 0) start((int)number(option, value, 1, BYTES_OF(MAX_THREADS))), text.run = run;
#endif
    else FAIL("there is no such option: try --help", option);
  }
  if (!chat && talk.system != NULL) FAIL("it belongs to --chat", "--system");
  if (chat && prompt == NULL) {
    converse(&talk);
  } else if (chat) {
    begin(&talk);
    answer(&talk, prompt);
  } else {
    complete(&text, &how, prompt != NULL ? prompt : standard_input(), talk.most);
  }
  return 0;
}
