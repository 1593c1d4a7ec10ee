/* The text of tokens on its way out: whole characters, up to the first of the strings that end it. */

#ifndef TENON_TEXT_OUTPUT_H
#define TENON_TEXT_OUTPUT_H

#include <stddef.h>

/* Given a piece of the text, whole characters of UTF-8; what is not 0 ends the text. */
typedef int TextPieces(const char *piece, size_t length, void *user);

/* `held`, in memory of tenon_text_held_bytes, are characters that may begin one of `stop` (the last one is NULL; or NULL);
   `partial` are the bytes of a character that is not complete. */
typedef struct {
  TextPieces *pieces;
  void *user;
  const char *const *stop;
  char *held, partial[4];
  size_t held_count, partial_count;
  int has_stopped, is_ended; /* one of `stop` occurred; the function wants no more */
} TextOutput;

/* The bytes of memory for pieces of at most `longest` bytes. */
size_t tenon_text_held_bytes(const char *const *stop, size_t longest);

/* Add the bytes of a token.  Those that are no character become U+FFFD, as in Python's bytes.decode. */
void tenon_text_put(TextOutput *output, const char *piece, size_t length);

/* Give what is held back, at the end of a text. */
void tenon_text_finish(TextOutput *output);

#endif
