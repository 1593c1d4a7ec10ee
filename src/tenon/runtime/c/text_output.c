#include "text_output.h"
#include <string.h>

static const char replacement[] = "\xef\xbf\xbd";

size_t tenon_text_held_bytes(const char *const *stop, size_t longest) {
  size_t most = 0;
  for (; stop != NULL && *stop != NULL; stop++)
    if (strlen(*stop) > most) most = strlen(*stop);
  return most + 3 * (longest + 4);
}

static void hold(TextOutput *o, const char *bytes, size_t count) {
  memcpy(o->held + o->held_count, bytes, count);
  o->held_count += count;
}

/* The bytes of the character that begins with a byte; 0 for a byte that begins none. */
static size_t bytes_from(unsigned char first) {
  return first < 0x80 ? 1 : first < 0xc2 || first > 0xf4 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
}

/* Whether a byte may follow those of a character that is not complete. */
static int may_follow(const TextOutput *o, unsigned char byte) {
  unsigned char first = (unsigned char)o->partial[0], least = 0x80, most = 0xbf;
  if (o->partial_count == 1) {
    least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  }
  return byte >= least && byte <= most;
}

static void hold_byte(TextOutput *o, char byte) {
  if (o->partial_count > 0 && !may_follow(o, (unsigned char)byte)) {
    hold(o, replacement, 3);
    o->partial_count = 0;
  }
  if (o->partial_count == 0 && bytes_from((unsigned char)byte) == 0) {
    hold(o, replacement, 3);
    return;
  }
  o->partial[o->partial_count++] = byte;
  if (o->partial_count < bytes_from((unsigned char)o->partial[0])) return;
  hold(o, o->partial, o->partial_count);
  o->partial_count = 0;
}

/* Where the first of the strings begins that the held bytes contain; their number if they contain none. */
static size_t first_stop(const TextOutput *o) {
  size_t first = o->held_count;
  for (const char *const *stop = o->stop; stop != NULL && *stop != NULL; stop++) {
    size_t length = strlen(*stop);
    for (size_t at = 0; length > 0 && at < first && at + length <= o->held_count; at++)
      if (memcmp(o->held + at, *stop, length) == 0) first = at;
  }
  return first;
}

/* How many bytes at the end are the beginning of one of the strings. */
static size_t possible_stop(const TextOutput *o) {
  size_t most = 0;
  for (const char *const *stop = o->stop; stop != NULL && *stop != NULL; stop++) {
    size_t length = strlen(*stop), count = length > o->held_count ? o->held_count + 1 : length;
    while (count > 0 && --count > most)
      if (memcmp(o->held + o->held_count - count, *stop, count) == 0) most = count;
  }
  return most;
}

static void give(TextOutput *o, size_t count) {
  if (count > 0 && !o->is_ended) o->is_ended = o->pieces(o->held, count, o->user) != 0;
  o->held_count -= count;
  memmove(o->held, o->held + count, o->held_count);
}

void tenon_text_put(TextOutput *o, const char *piece, size_t length) {
  if (o->has_stopped) return;
  for (size_t i = 0; i < length; i++) hold_byte(o, piece[i]);
  size_t certain = first_stop(o);
  o->has_stopped = certain < o->held_count;
  give(o, o->has_stopped ? certain : certain - possible_stop(o));
}

void tenon_text_finish(TextOutput *o) {
  if (o->has_stopped) return;
  if (o->partial_count > 0) hold(o, replacement, 3);
  o->partial_count = 0;
  const size_t certain = first_stop(o);
  o->has_stopped = certain < o->held_count;
  give(o, certain);
}
