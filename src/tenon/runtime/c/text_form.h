/* Unicode's normal forms (UAX #15). */

#ifndef TENON_TEXT_FORM_H
#define TENON_TEXT_FORM_H

#include "text_tables.h"

/* Write the normal form of a text in UTF-8 to `to`; returns its bytes.  `work` is memory for 12 numbers of 4 bytes for
   each byte of the text. */
size_t tenon_text_form(const TenonText *text, const uint8_t *from, size_t length, uint8_t *to, void *work);

#endif
