#include "text_words.h"

void tenon_text_add(TextTokens *to, uint32_t token) {
  if (to->count < to->room) to->tokens[to->count] = token;
  to->count++;
}

/* ----------------------------------------------------------------------------------------- merging of pairs */

/* A part of the word: its token, and its neighbours. */
typedef struct {
  int32_t token, before, after;
} Part;

/* A pair that may be merged: its rank, the place of its left part, and the token that it becomes. */
typedef struct {
  int32_t rank, place;
  uint32_t result;
} Candidate;

typedef struct {
  const TenonText *text;
  Part *parts;
  Candidate *heap;
  size_t candidates;
} Merging;

static int is_before(const Candidate *a, const Candidate *b) {
  return a->rank != b->rank ? a->rank < b->rank : a->place < b->place;
}

static void push(Merging *m, Candidate added) {
  size_t at = m->candidates++;
  for (; at > 0 && is_before(&added, &m->heap[(at - 1) / 2]); at = (at - 1) / 2) m->heap[at] = m->heap[(at - 1) / 2];
  m->heap[at] = added;
}

static Candidate pop(Merging *m) {
  Candidate first = m->heap[0], last = m->heap[--m->candidates];
  size_t at = 0;
  for (size_t next; (next = 2 * at + 1) < m->candidates; at = next) {
    if (next + 1 < m->candidates && is_before(&m->heap[next + 1], &m->heap[next])) next++;
    if (!is_before(&m->heap[next], &last)) break;
    m->heap[at] = m->heap[next];
  }
  m->heap[at] = last;
  return first;
}

static void consider(Merging *m, int32_t place) {
  if (place < 0 || m->parts[place].after < 0) return;
  uint32_t result = 0;
  int32_t rank = tenon_text_pair(m->text, (uint32_t)m->parts[place].token,
                                 (uint32_t)m->parts[m->parts[place].after].token, &result);
  if (rank >= 0) push(m, (Candidate){rank, place, result});
}

/* Merge the pairs of `count` parts, the one with the lowest rank first, and add the tokens that are left. */
static void merge(Merging *m, int32_t count, TextTokens *to) {
  for (int32_t i = 0; i + 1 < count; i++) consider(m, i);
  while (m->candidates > 0) {
    Candidate best = pop(m);
    Part *left = &m->parts[best.place];
    uint32_t result = 0;
    if (left->token < 0 || left->after < 0) continue;
    Part *right = &m->parts[left->after];
    if (tenon_text_pair(m->text, (uint32_t)left->token, (uint32_t)right->token, &result) != best.rank) continue;
    left->token = (int32_t)result;
    right->token = -1;
    left->after = right->after;
    if (left->after >= 0) m->parts[left->after].before = best.place;
    consider(m, left->before);
    consider(m, best.place);
  }
  for (int32_t i = 0; count > 0 && i >= 0; i = m->parts[i].after) tenon_text_add(to, (uint32_t)m->parts[i].token);
}

static int32_t add_part(Merging *m, int32_t count, uint32_t token) {
  m->parts[count] = (Part){(int32_t)token, count - 1, -1};
  if (count > 0) m->parts[count - 1].after = count;
  return count + 1;
}

/* Whether all bytes have tokens of their own. */
static int has_bytes(const uint32_t *bytes, const uint8_t *s, size_t length) {
  for (size_t i = 0; i < length; i++)
    if (bytes[s[i]] == UINT32_MAX) return 0;
  return 1;
}

static int32_t parts_of_characters(Merging *m, const uint8_t *word, size_t length) {
  const TenonText *text = m->text;
  const uint32_t *bytes = (const uint32_t *)tenon_text_section(text, TEXT_BYTE_TOKENS);
  uint32_t flags = text->head[TEXT_FLAGS], unknown = text->head[TEXT_UNKNOWN];
  int32_t count = 0;
  int joined = 0;
  for (size_t at = 0, size; at < length; at += size) {
    tenon_text_point(word + at, length - at, &size);
    int32_t token = tenon_text_token(text, tenon_text_hash(TEXT_HASH_SEED, word + at, size), word + at, size, word, 0);
    if (token >= 0) {
      count = add_part(m, count, (uint32_t)token);
      joined = 0;
    } else if (flags & FLAG_BYTE_FALLBACK && has_bytes(bytes, word + at, size)) {
      for (size_t i = 0; i < size; i++) count = add_part(m, count, bytes[word[at + i]]);
      joined = 0;
    } else if (unknown != UINT32_MAX) {
      if (!joined) count = add_part(m, count, unknown);
      joined = flags & FLAG_JOIN_UNKNOWN ? 1 : 0;
    }
  }
  return count;
}

static void pairs(const TenonText *text, const uint8_t *word, size_t length, TextTokens *to, void *work) {
  Part *parts = (Part *)work;
  Merging m = {text, parts, (Candidate *)(void *)(parts + length), 0};
  int32_t count = 0;
  if (text->head[TEXT_FLAGS] & FLAG_WHOLE_WORDS) {
    int32_t token = tenon_text_token(text, tenon_text_hash(TEXT_HASH_SEED, word, length), word, length, word, 0);
    if (token >= 0) {
      tenon_text_add(to, (uint32_t)token);
      return;
    }
  }
  if (text->head[TEXT_MODEL] == MODEL_CHARACTER_PAIRS) {
    count = parts_of_characters(&m, word, length);
  } else {
    const uint32_t *bytes = (const uint32_t *)tenon_text_section(text, TEXT_BYTE_TOKENS);
    for (size_t i = 0; i < length; i++)
      if (bytes[word[i]] != UINT32_MAX) count = add_part(&m, count, bytes[word[i]]);
  }
  merge(&m, count, to);
}

/* ------------------------------------------------------------------------------------------------- unigrams */

/* The best way to the end of a piece: its score, where the piece begins, and its token. */
typedef struct {
  double score;
  int32_t begin, token;
} Way;

static void take(Way *to, double score, int32_t begin, int32_t token) {
  if (to->begin < 0 || score > to->score) *to = (Way){score, begin, token};
}

/* The ways to all ends of pieces that begin at `at`. */
static void extend(const TenonText *text, const uint8_t *word, size_t length, size_t at, Way *ways) {
  const double *scores = (const double *)tenon_text_section(text, TEXT_SCORES);
  double so_far = ways[at].score;
  uint32_t hash = TEXT_HASH_SEED;
  size_t character, most = text->head[TEXT_LONGEST] < length - at ? text->head[TEXT_LONGEST] : length - at;
  int single = 0;
  tenon_text_point(word + at, length - at, &character);
  for (size_t n = 1; n <= most; n++) {
    hash = tenon_text_hash(hash, word + at + n - 1, 1);
    int32_t token = tenon_text_token(text, hash, word + at, n, word, 0);
    if (token < 0) continue;
    take(&ways[at + n], scores[token] + so_far, (int32_t)at, token);
    single |= n == character;
  }
  if (!single)
    take(&ways[at + character], scores[text->head[TEXT_VOCABULARY]] + so_far, (int32_t)at,
         (int32_t)text->head[TEXT_UNKNOWN]);
}

static void unigrams(const TenonText *text, const uint8_t *word, size_t length, TextTokens *to, void *work) {
  Way *ways = (Way *)work;
  const uint32_t *bytes = (const uint32_t *)tenon_text_section(text, TEXT_BYTE_TOKENS);
  uint32_t unknown = text->head[TEXT_UNKNOWN];
  for (size_t i = 0; i <= length; i++) ways[i] = (Way){0, -1, -1};
  ways[0].begin = 0;
  for (size_t at = 0, size; at < length; at += size) {
    tenon_text_point(word + at, length - at, &size);
    extend(text, word, length, at, ways);
  }
  /* Turn the ways around: `score` is not needed any more, `begin` becomes the end. */
  int32_t next = -1;
  for (int32_t at = (int32_t)length; at > 0;) {
    int32_t begin = ways[at].begin;
    ways[at].begin = next;
    next = at;
    at = begin;
  }
  int32_t begin = 0;
  for (int32_t end = next; end > 0;) {
    int32_t after = ways[end].begin, token = ways[end].token;
    while (token == (int32_t)unknown && after > 0 && ways[after].token == token) {
      end = after;
      after = ways[end].begin;
    }
    size_t size = (size_t)(end - begin);
    if (token == (int32_t)unknown && text->head[TEXT_FLAGS] & FLAG_BYTE_FALLBACK && has_bytes(bytes, word + begin, size))
      for (size_t i = 0; i < size; i++) tenon_text_add(to, bytes[word[(size_t)begin + i]]);
    else
      tenon_text_add(to, (uint32_t)token);
    begin = end;
    end = after;
  }
}

/* ---------------------------------------------------------------------------------------------- word pieces */

static size_t characters(const uint8_t *word, size_t length) {
  size_t count = 0;
  for (size_t at = 0, size; at < length; at += size, count++) tenon_text_point(word + at, length - at, &size);
  return count;
}

/* The longest token that begins at `at`; its bytes are put into `*taken`. */
static int32_t longest(const TenonText *text, const uint8_t *word, size_t length, size_t at, size_t *taken) {
  static const uint8_t sign[] = {'#', '#'};
  size_t prefix = at > 0 ? sizeof sign : 0;
  size_t most = text->head[TEXT_LONGEST] < length - at ? text->head[TEXT_LONGEST] : length - at;
  uint32_t hash = tenon_text_hash(TEXT_HASH_SEED, sign, prefix);
  int32_t best = TEXT_NONE;
  for (size_t n = 1; n <= most; n++) {
    hash = tenon_text_hash(hash, word + at + n - 1, 1);
    int32_t token = tenon_text_token(text, hash, sign, prefix, word + at, n);
    if (token < 0) continue;
    best = token;
    *taken = n;
  }
  return best;
}

static void word_pieces(const TenonText *text, const uint8_t *word, size_t length, TextTokens *to) {
  size_t begin = to->count, size = 0;
  int known = characters(word, length) <= text->head[TEXT_LONGEST_WORD];
  for (size_t at = 0; known && at < length; at += size) {
    int32_t token = longest(text, word, length, at, &size);
    known = token >= 0;
    if (known) tenon_text_add(to, (uint32_t)token);
  }
  if (known) return;
  to->count = begin;
  tenon_text_add(to, text->head[TEXT_UNKNOWN]);
}

void tenon_text_word(const TenonText *text, const uint8_t *word, size_t length, TextTokens *to, void *work) {
  if (length == 0) return;
  switch (text->head[TEXT_MODEL]) {
    case MODEL_UNIGRAM: unigrams(text, word, length, to, work); return;
    case MODEL_WORD_PIECES: word_pieces(text, word, length, to); return;
    default: pairs(text, word, length, to, work); return;
  }
}
