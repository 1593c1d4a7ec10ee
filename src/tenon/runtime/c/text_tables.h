/* Lookups in the tables of texts. */

#ifndef TENON_TEXT_TABLES_H
#define TENON_TEXT_TABLES_H

#include "text.h"

enum { TEXT_NONE = -1, TEXT_CODE_POINTS = 0x110000 };
enum { MODEL_BYTE_PAIRS, MODEL_CHARACTER_PAIRS, MODEL_UNIGRAM, MODEL_WORD_PIECES };
enum { FLAG_WHOLE_WORDS = 1, FLAG_BYTE_FALLBACK = 2, FLAG_JOIN_UNKNOWN = 4 };

/* Two tokens that become a third one. */
typedef struct {
  uint32_t left, right, result;
} TextPair;

/* The section whose offset is a number of the head. */
const void *tenon_text_section(const TenonText *text, int number);

/* The code point at `s`, of at most `length` bytes, and its bytes; a byte that begins none is U+FFFD. */
uint32_t tenon_text_point(const uint8_t *s, size_t length, size_t *bytes);

/* The class of a code point in the automata. */
uint32_t tenon_text_class(const TenonText *text, uint32_t point);

/* The number of the text that takes the place of a code point; MAP_STAYS if it stays, MAP_SPACED if it gets a space on
   either side. */
enum { MAP_STAYS = 0, MAP_SPACED = 0xffff };
uint32_t tenon_text_mapped(const TenonText *text, uint32_t point);

/* The hash of `length` more bytes behind those with the hash `seed`. */
#define TEXT_HASH_SEED 2166136261u
uint32_t tenon_text_hash(uint32_t seed, const uint8_t *s, size_t length);

/* The token called `first` and `second` together, whose hash is given; TEXT_NONE. */
int32_t tenon_text_token(const TenonText *text, uint32_t hash, const uint8_t *first, size_t first_length,
                         const uint8_t *second, size_t second_length);

/* The rank of a pair of tokens, with the token that it becomes; TEXT_NONE. */
int32_t tenon_text_pair(const TenonText *text, uint32_t left, uint32_t right, uint32_t *result);

#endif
