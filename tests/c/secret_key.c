/* Decrypts what standard input has, a key, then a sealed text: for valgrind, which reports branches and addresses that
   depend on either. */

#include "aes_gcm.c"

#include <stdio.h>
#include <valgrind/memcheck.h>

int main(void) {
  static uint8_t key[TENON_KEY_BYTES], sealed[4096], text[4096];
  if (fread(key, 1, sizeof key, stdin) != sizeof key) return 2;
  const size_t size = fread(sealed, 1, sizeof sealed, stdin);
  VALGRIND_MAKE_MEM_UNDEFINED(key, sizeof key);
  VALGRIND_MAKE_MEM_UNDEFINED(sealed, sizeof sealed);
  int genuine = tn_decrypt(key, "name", sealed, size, text);
  VALGRIND_MAKE_MEM_DEFINED(&genuine, sizeof genuine);
  VALGRIND_MAKE_MEM_DEFINED(text, sizeof text);
  if (genuine) fwrite(text, 1, size - SEAL_BYTES, stdout);
  return genuine ? 0 : 3;
}
