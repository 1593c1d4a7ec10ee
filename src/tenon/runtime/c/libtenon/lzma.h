/* Compression by LZMA, in the form of .lzma files. */

#ifndef TENON_LZMA_H
#define TENON_LZMA_H

#include <stddef.h>
#include <stdint.h>

/* The result has `result_bytes`.  1, 0: the data is damaged, or -1: there is no memory. */
int tn_lzma_decompress(const uint8_t *data, size_t bytes, uint8_t *result, size_t result_bytes);

#endif
