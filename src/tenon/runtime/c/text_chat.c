#include "text_chat.h"
#include "text_tables.h"
#include <string.h>

/* The texts of a chat template around messages, by their numbers in the tables. */
enum { BEFORE_USER, BEFORE_SYSTEM, SYSTEM_TO_USER, USER_TO_ANSWER, ANSWER_TO_USER, AFTER_USER };
/* Flags. */
enum { CHAT_HAS_TEMPLATE = 1, CHAT_HAS_SYSTEM = 2, CHAT_TRIMS_SYSTEM = 4, CHAT_TRIMS_USER = 8, CHAT_TRIMS_ANSWER = 16,
       CHAT_DROPS_THOUGHTS = 32 };

/* Where a conversation is written; `to` is NULL if it is only measured. */
typedef struct {
  const TenonText *text;
  char *to;
  size_t count;
} Conversation;

static void put(Conversation *c, const char *bytes, size_t count) {
  if (c->to != NULL) memcpy(c->to + c->count, bytes, count);
  c->count += count;
}

static void put_between(Conversation *c, int number) {
  const uint32_t *rows = (const uint32_t *)tenon_text_section(c->text, TEXT_CHAT_TEXTS);
  put(c, (const char *)c->text->base + rows[2 * number], rows[2 * number + 1]);
}

/* The characters that Python's str.strip() removes. */
static int is_white(uint32_t p) {
  return (p >= 9 && p <= 13) || (p >= 28 && p <= 32) || p == 0x85 || p == 0xa0 || p == 0x1680 ||
         (p >= 0x2000 && p <= 0x200a) || p == 0x2028 || p == 0x2029 || p == 0x202f || p == 0x205f || p == 0x3000;
}

static size_t leading_white(const uint8_t *s, size_t length) {
  size_t at = 0, bytes;
  while (at < length && is_white(tenon_text_point(s + at, length - at, &bytes))) at += bytes;
  return at;
}

static size_t trimmed_length(const uint8_t *s, size_t length) {
  while (length > 0) {
    size_t start = length - 1, bytes;
    while (start > 0 && length - start < 4 && (s[start] & 0xc0) == 0x80) start--;
    if (!is_white(tenon_text_point(s + start, length - start, &bytes)) || start + bytes != length) break;
    length = start;
  }
  return length;
}

/* The text behind the last "</think>", and line feeds after it. */
static const char *without_thoughts(const char *content) {
  static const char end[] = "</think>";
  const char *last = NULL;
  for (size_t at = 0, length = strlen(content); at + sizeof end <= length + 1; at++)
    if (memcmp(content + at, end, sizeof end - 1) == 0) last = content + at + sizeof end - 1;
  while (last != NULL && *last == '\n') last++;
  return last == NULL ? content : last;
}

static void put_content(Conversation *c, const char *content, int trims) {
  size_t length = strlen(content);
  if (trims) {
    const size_t skipped = leading_white((const uint8_t *)content, length);
    content += skipped;
    length = trimmed_length((const uint8_t *)content, length - skipped);
  }
  put(c, content, length);
}

static int has_role(const TextMessage *message, const char *role) { return strcmp(message->role, role) == 0; }

long tenon_text_conversation(const TenonText *text, const TextMessage *messages, size_t count, char *to) {
  Conversation c = {text, to, 0};
  const uint32_t flags = text->head[TEXT_CHAT];
  size_t first = count > 0 && has_role(messages, "system");
  if (!(flags & CHAT_HAS_TEMPLATE)) return TENON_TEXT_NO_TEMPLATE;
  if (first && !(flags & CHAT_HAS_SYSTEM)) return TENON_TEXT_NO_SYSTEM;
  if ((count - first) % 2 != 1) return TENON_TEXT_WRONG_ROLE;
  for (size_t i = first; i < count; i++)
    if (!has_role(&messages[i], (i - first) % 2 == 0 ? "user" : "assistant")) return TENON_TEXT_WRONG_ROLE;
  put_between(&c, first ? BEFORE_SYSTEM : BEFORE_USER);
  if (first) {
    put_content(&c, messages->content, (flags & CHAT_TRIMS_SYSTEM) != 0);
    put_between(&c, SYSTEM_TO_USER);
  }
  for (size_t i = first; i < count; i += 2) {
    put_content(&c, messages[i].content, (flags & CHAT_TRIMS_USER) != 0);
    if (i + 1 == count) break;
    put_between(&c, USER_TO_ANSWER);
    const char *answer = messages[i + 1].content;
    put_content(&c, flags & CHAT_DROPS_THOUGHTS ? without_thoughts(answer) : answer, (flags & CHAT_TRIMS_ANSWER) != 0);
    put_between(&c, ANSWER_TO_USER);
  }
  put_between(&c, AFTER_USER);
  return (long)c.count;
}
