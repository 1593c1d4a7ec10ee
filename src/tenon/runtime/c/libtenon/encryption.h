/* Encryption by AES-256-GCM, and signatures by Ed25519. */

#ifndef TENON_ENCRYPTION_H
#define TENON_ENCRYPTION_H

#include "tenon.h"

/* A sealed text: a nonce (12 bytes), the encrypted text and its tag (16 bytes). */
enum { SEAL_BYTES = 12 + 16 };
/* Verifies, then decrypts size - SEAL_BYTES bytes; `name` is authenticated as well.  0: another key, or a change. */
int tn_decrypt(const uint8_t key[TENON_KEY_BYTES], const char *name, const uint8_t *sealed, size_t size, uint8_t *text);
void tn_wipe(void *memory, size_t bytes);

/* Whether an Ed25519 signature (64 bytes) of a message is genuine. */
int tn_is_signed(const uint8_t *public_key, const uint8_t *signature, const uint8_t *message, size_t bytes);

#endif
