/* Verification of Ed25519 signatures (RFC 8032) with SHA-512 (FIPS 180-4).

   Nothing here is secret, so time may depend on the data.  Numbers modulo p = 2^255 - 19 have 16 limbs of 16 bits, signed
   and wide enough for sums of products. */

#include "encryption.h"

#include <string.h>

/* --------------------------------------------------------------------------------------------------------- SHA-512 */

static const uint64_t round_constants[80] = {
    0x428a2f98d728ae22u, 0x7137449123ef65cdu, 0xb5c0fbcfec4d3b2fu, 0xe9b5dba58189dbbcu,
    0x3956c25bf348b538u, 0x59f111f1b605d019u, 0x923f82a4af194f9bu, 0xab1c5ed5da6d8118u,
    0xd807aa98a3030242u, 0x12835b0145706fbeu, 0x243185be4ee4b28cu, 0x550c7dc3d5ffb4e2u,
    0x72be5d74f27b896fu, 0x80deb1fe3b1696b1u, 0x9bdc06a725c71235u, 0xc19bf174cf692694u,
    0xe49b69c19ef14ad2u, 0xefbe4786384f25e3u, 0x0fc19dc68b8cd5b5u, 0x240ca1cc77ac9c65u,
    0x2de92c6f592b0275u, 0x4a7484aa6ea6e483u, 0x5cb0a9dcbd41fbd4u, 0x76f988da831153b5u,
    0x983e5152ee66dfabu, 0xa831c66d2db43210u, 0xb00327c898fb213fu, 0xbf597fc7beef0ee4u,
    0xc6e00bf33da88fc2u, 0xd5a79147930aa725u, 0x06ca6351e003826fu, 0x142929670a0e6e70u,
    0x27b70a8546d22ffcu, 0x2e1b21385c26c926u, 0x4d2c6dfc5ac42aedu, 0x53380d139d95b3dfu,
    0x650a73548baf63deu, 0x766a0abb3c77b2a8u, 0x81c2c92e47edaee6u, 0x92722c851482353bu,
    0xa2bfe8a14cf10364u, 0xa81a664bbc423001u, 0xc24b8b70d0f89791u, 0xc76c51a30654be30u,
    0xd192e819d6ef5218u, 0xd69906245565a910u, 0xf40e35855771202au, 0x106aa07032bbd1b8u,
    0x19a4c116b8d2d0c8u, 0x1e376c085141ab53u, 0x2748774cdf8eeb99u, 0x34b0bcb5e19b48a8u,
    0x391c0cb3c5c95a63u, 0x4ed8aa4ae3418acbu, 0x5b9cca4f7763e373u, 0x682e6ff3d6b2b8a3u,
    0x748f82ee5defb2fcu, 0x78a5636f43172f60u, 0x84c87814a1f0ab72u, 0x8cc702081a6439ecu,
    0x90befffa23631e28u, 0xa4506cebde82bde9u, 0xbef9a3f7b2c67915u, 0xc67178f2e372532bu,
    0xca273eceea26619cu, 0xd186b8c721c0c207u, 0xeada7dd6cde0eb1eu, 0xf57d4f7fee6ed178u,
    0x06f067aa72176fbau, 0x0a637dc5a2c898a6u, 0x113f9804bef90daeu, 0x1b710b35131c471bu,
    0x28db77f523047d84u, 0x32caab7b40c72493u, 0x3c9ebe0a15c9bebcu, 0x431d67c49c100d4cu,
    0x4cc5d4becb3e42b6u, 0x597f299cfc657e2au, 0x5fcb6fab3ad6faecu, 0x6c44198c4a475817u,
};

static uint64_t rotated(uint64_t x, int by) { return x >> by | x << (64 - by); }

static void compress(uint64_t *state, const uint8_t *block) {
  uint64_t w[80], v[8];
  for (int i = 0; i < 16; i++) {
    w[i] = 0;
    for (int b = 0; b < 8; b++) w[i] = w[i] << 8 | block[8 * i + b];
  }
  for (int i = 16; i < 80; i++) {
    const uint64_t a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + w[i - 7] + (rotated(a, 1) ^ rotated(a, 8) ^ a >> 7) + (rotated(b, 19) ^ rotated(b, 61) ^ b >> 6);
  }
  memcpy(v, state, sizeof v);
  for (int i = 0; i < 80; i++) {
    const uint64_t e = v[4], a = v[0];
    const uint64_t first = v[7] + (rotated(e, 14) ^ rotated(e, 18) ^ rotated(e, 41)) + ((e & v[5]) ^ (~e & v[6])) +
                           round_constants[i] + w[i];
    const uint64_t second =
        (rotated(a, 28) ^ rotated(a, 34) ^ rotated(a, 39)) + ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
    memmove(v + 1, v, 7 * sizeof *v);
    v[4] += first;
    v[0] = first + second;
  }
  for (int i = 0; i < 8; i++) state[i] += v[i];
}

typedef struct {
  uint64_t state[8], total;
  uint8_t block[128];
} Sha512;

static void sha512_add(Sha512 *sha, const uint8_t *data, size_t bytes) {
  for (size_t i = 0; i < bytes; i++) {
    sha->block[sha->total++ % 128] = data[i];
    if (sha->total % 128 == 0) compress(sha->state, sha->block);
  }
}

static void sha512_end(Sha512 *sha, uint8_t *digest) {
  static const uint8_t one = 0x80, zero = 0;
  const uint64_t bits = sha->total * 8;
  uint8_t length[8];
  for (int i = 0; i < 8; i++) length[i] = (uint8_t)(bits >> (56 - 8 * i));
  sha512_add(sha, &one, 1);
  while (sha->total % 128 != 120) sha512_add(sha, &zero, 1);
  sha512_add(sha, length, 8);
  for (int i = 0; i < 64; i++) digest[i] = (uint8_t)(sha->state[i / 8] >> (56 - 8 * (i % 8)));
}

/* ----------------------------------------------------------------------------------------------- numbers modulo p */

typedef struct {
  int64_t limb[16];
} Number;

/* A point of the curve -x^2 + y^2 = 1 + d x^2 y^2 in extended coordinates: x = X / Z, y = Y / Z, x y = T / Z. */
typedef struct {
  Number x, y, z, t;
} Point;

static const Number zero, one = {{1}};
static const Number d = {{0x78a3, 0x1359, 0x4dca, 0x75eb, 0xd8ab, 0x4141, 0x0a4d, 0x0070, 0xe898, 0x7779, 0x4079, 0x8cc7, 0xfe73, 0x2b6f, 0x6cee, 0x5203}};
static const Number root_of_minus_1 = {{0xa0b0, 0x4a0e, 0x1b27, 0xc4ee, 0xe478, 0xad2f, 0x1806, 0x2f43, 0xd7a7, 0x3dfb, 0x0099, 0x2b4d, 0xdf0b, 0x4fc1, 0x2480, 0x2b83}};
static const Number base_x = {{0xd51a, 0x8f25, 0x2d60, 0xc956, 0xa7b2, 0x9525, 0xc760, 0x692c, 0xdc5c, 0xfdd6, 0xe231, 0xc0a4, 0x53fe, 0xcd6e, 0x36d3, 0x2169}};
static const Number base_y = {{0x6658, 0x6666, 0x6666, 0x6666, 0x6666, 0x6666, 0x6666, 0x6666, 0x6666, 0x6666, 0x6666, 0x6666, 0x6666, 0x6666, 0x6666, 0x6666}};

/* Limbs of 16 bits, of which the lowest may be a little larger. */
static void carry(Number *a) {
  for (int i = 0; i < 16; i++) {
    const int64_t over = a->limb[i] >> 16;
    a->limb[i] -= over * 65536;
    a->limb[(i + 1) % 16] += i == 15 ? 38 * over : over; /* 2^256 is 38 */
  }
}

static Number sum(const Number *a, const Number *b) {
  Number r;
  for (int i = 0; i < 16; i++) r.limb[i] = a->limb[i] + b->limb[i];
  return r;
}

static Number difference(const Number *a, const Number *b) {
  Number r;
  for (int i = 0; i < 16; i++) r.limb[i] = a->limb[i] - b->limb[i];
  return r;
}

static Number product(const Number *a, const Number *b) {
  int64_t wide[31] = {0};
  Number r;
  for (int i = 0; i < 16; i++)
    for (int j = 0; j < 16; j++) wide[i + j] += a->limb[i] * b->limb[j];
  for (int i = 0; i < 15; i++) wide[i] += 38 * wide[i + 16];
  memcpy(r.limb, wide, sizeof r.limb);
  carry(&r);
  carry(&r);
  return r;
}

/* a to the power of a number whose bits 0 to `highest` are ones, except those in `zeros`. */
static Number power(const Number *a, int highest, uint32_t zeros) {
  Number r = *a;
  for (int bit = highest - 1; bit >= 0; bit--) {
    r = product(&r, &r);
    if (bit >= 32 || !(zeros >> bit & 1)) r = product(&r, a);
  }
  return r;
}

static void to_bytes(const Number *a, uint8_t *bytes) {
  Number r = *a;
  for (int i = 0; i < 3; i++) carry(&r);
  for (int turn = 0; turn < 2; turn++) { /* subtracts p where it can be */
    Number less;
    int64_t borrow = 0;
    for (int i = 0; i < 16; i++) {
      const int64_t p = i == 0 ? 0xffed : i == 15 ? 0x7fff : 0xffff;
      less.limb[i] = r.limb[i] - p + borrow;
      borrow = less.limb[i] >> 16;
      less.limb[i] &= 0xffff;
    }
    if (borrow == 0) r = less;
  }
  for (int i = 0; i < 16; i++) bytes[2 * i] = (uint8_t)r.limb[i], bytes[2 * i + 1] = (uint8_t)(r.limb[i] >> 8);
}

static int same(const Number *a, const Number *b) {
  uint8_t first[32], second[32];
  to_bytes(a, first);
  to_bytes(b, second);
  return memcmp(first, second, sizeof first) == 0;
}

/* ---------------------------------------------------------------------------------------------------------- points */

/* RFC 8032, 5.1.4; complete: also for equal points and the neutral one. */
static Point added(const Point *p, const Point *q) {
  const Number left = difference(&p->y, &p->x), right = difference(&q->y, &q->x), above = sum(&p->y, &p->x);
  const Number beside = sum(&q->y, &q->x), a = product(&left, &right), b = product(&above, &beside);
  Number c = product(&p->t, &q->t), z = product(&p->z, &q->z);
  c = product(&c, &d);
  c = sum(&c, &c);
  z = sum(&z, &z);
  const Number e = difference(&b, &a), f = difference(&z, &c), g = sum(&z, &c), h = sum(&b, &a);
  return (Point){product(&e, &f), product(&g, &h), product(&f, &g), product(&e, &h)};
}

static Point times(const Point *p, const uint8_t *scalar) {
  Point r = {zero, one, one, zero};
  for (int bit = 255; bit >= 0; bit--) {
    r = added(&r, &r);
    if (scalar[bit / 8] >> bit % 8 & 1) r = added(&r, p);
  }
  return r;
}

/* RFC 8032, 5.1.3: x^2 = (y^2 - 1) / (d y^2 + 1).  0 if there is no such point. */
static int decoded(const uint8_t *bytes, Point *point) {
  Number y, x, root;
  uint8_t check[32];
  for (int i = 0; i < 16; i++) y.limb[i] = bytes[2 * i] | (int64_t)(i == 15 ? bytes[31] & 127 : bytes[2 * i + 1]) << 8;
  to_bytes(&y, check);
  check[31] |= bytes[31] & 128;
  if (memcmp(check, bytes, sizeof check) != 0) return 0; /* not below p */
  const Number square = product(&y, &y);
  const Number u = difference(&square, &one), dy = product(&d, &square), v = sum(&dy, &one);
  const Number v2 = product(&v, &v), v3 = product(&v2, &v), v4 = product(&v2, &v2), v7 = product(&v4, &v3);
  const Number uv3 = product(&u, &v3), uv7 = product(&u, &v7);
  root = power(&uv7, 251, 1u << 1); /* (p - 5) / 8 = 2^252 - 3 */
  x = product(&uv3, &root);
  Number found = product(&x, &x);
  found = product(&found, &v);
  if (!same(&found, &u)) {
    const Number minus_u = difference(&zero, &u);
    if (!same(&found, &minus_u)) return 0;
    x = product(&x, &root_of_minus_1);
  }
  const int sign = bytes[31] >> 7;
  to_bytes(&x, check);
  if (sign && same(&x, &zero)) return 0;
  if ((check[0] & 1) != sign) x = difference(&zero, &x);
  carry(&x);
  *point = (Point){x, y, one, product(&x, &y)};
  return 1;
}

/* -------------------------------------------------------------------------------------------------------- signatures */

static const uint8_t order[32] = {0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x10};

static int is_below_order(const uint8_t *scalar) {
  for (int i = 31; i >= 0; i--)
    if (scalar[i] != order[i]) return scalar[i] < order[i];
  return 0;
}

/* A number of 64 bytes modulo the order of the base point, bit by bit. */
static void reduced(const uint8_t *wide, uint8_t *scalar) {
  memset(scalar, 0, 32);
  for (int bit = 511; bit >= 0; bit--) {
    int over = wide[bit / 8] >> bit % 8 & 1;
    for (int i = 0; i < 32; i++) over |= scalar[i] << 1, scalar[i] = (uint8_t)over, over >>= 8;
    if (is_below_order(scalar)) continue;
    for (int i = 0, borrow = 0; i < 32; i++) {
      const int less = scalar[i] - order[i] - borrow;
      scalar[i] = (uint8_t)less;
      borrow = less < 0;
    }
  }
}

int tn_is_signed(const uint8_t *public_key, const uint8_t *signature, const uint8_t *message, size_t bytes) {
  Sha512 sha = {{0x6a09e667f3bcc908u, 0xbb67ae8584caa73bu, 0x3c6ef372fe94f82bu, 0xa54ff53a5f1d36f1u, 0x510e527fade682d1u, 0x9b05688c2b3e6c1fu, 0x1f83d9abfb41bd6bu, 0x5be0cd19137e2179u}, 0, {0}};
  uint8_t digest[64], k[32];
  Point a, r, base = {base_x, base_y, one, product(&base_x, &base_y)};
  if (!is_below_order(signature + 32) || !decoded(public_key, &a) || !decoded(signature, &r)) return 0;
  sha512_add(&sha, signature, 32);
  sha512_add(&sha, public_key, 32);
  sha512_add(&sha, message, bytes);
  sha512_end(&sha, digest);
  reduced(digest, k);
  const Point right = times(&a, k), whole = added(&r, &right), left = times(&base, signature + 32);
  const Number x1 = product(&left.x, &whole.z), x2 = product(&whole.x, &left.z);
  const Number y1 = product(&left.y, &whole.z), y2 = product(&whole.y, &left.z);
  return same(&x1, &x2) && same(&y1, &y2);
}
