/* JSON schemas as grammars in GBNF. */

#ifndef TENON_TEXT_SCHEMA_H
#define TENON_TEXT_SCHEMA_H

#include <stddef.h>
#include <stdint.h>

/* Whether a grammar is a JSON schema: it begins with a brace, which no grammar in GBNF does. */
int tenon_text_is_schema(const char *source, size_t length);

/* The most bytes of the grammar of a schema of `length` bytes, and those of memory that translating takes, which the
   grammar is at the beginning of. */
size_t tenon_text_schema_room(size_t length);
size_t tenon_text_schema_memory(size_t length);

/* Write the grammar in GBNF of JSON that has a schema: without white space, and with properties in the order of the schema.
   `memory` is at a multiple of 8.  Returns the bytes of the grammar, or 0; then `*mistake` and `*at` say what is wrong with
   the schema, and where. */
size_t tenon_text_schema_rules(const char *schema, size_t length, void *memory, const char **mistake, size_t *at);

#endif
