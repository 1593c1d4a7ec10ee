/* Conversations as one text. */

#ifndef TENON_TEXT_CHAT_H
#define TENON_TEXT_CHAT_H

#include "text.h"

/* A message of a conversation, both in UTF-8: `role` is "system", "user" or "assistant".  TEXT_MESSAGE may name a type of
   the program's that is alike. */
#ifdef TEXT_MESSAGE
typedef TEXT_MESSAGE TextMessage;
#else
typedef struct {
  const char *role, *content;
} TextMessage;
#endif

/* Results of tenon_text_conversation other than a number of bytes. */
enum {
  TENON_TEXT_NO_TEMPLATE = -1, /* the tables have no chat template */
  TENON_TEXT_NO_SYSTEM = -2,   /* the template takes no message of the system */
  TENON_TEXT_WRONG_ROLE = -3   /* messages are not (system) user assistant user ... user */
};

/* The bytes of a conversation by the model's chat template, with the beginning of an answer to its last message, which
   are written to `to` unless it is NULL.  See runtime/text/chat_form.py. */
long tenon_text_conversation(const TenonText *text, const TextMessage *messages, size_t count, char *to);

#endif
