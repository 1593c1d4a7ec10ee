/* Features of the processor, by the names that Linux gives to features (targets/: Host.features). */

#define _GNU_SOURCE
#include "processor.h"

#include <stdio.h>
#include <string.h>

static void add_feature(char *text, size_t size, const char *name) {
  const size_t used = strlen(text);
  snprintf(text + used, size - used, "%s%s", used ? " " : "", name);
}

#if (defined(__x86_64__) || defined(__i386__)) && defined(__GNUC__)
#include <cpuid.h>

enum { EAX, EBX, ECX, EDX };
enum { ANY, YMM = 0x06, ZMM = 0xe6, TILES = 0x60000 }; /* registers that the system has to save (XCR0) */

static const struct {
  char name[12];
  uint8_t leaf, subleaf, in, bit;
  uint32_t saved;
} features[] = { /* TN_AVX2 and so on are places in it */
    {"fma", 1, 0, ECX, 12, YMM},         {"f16c", 1, 0, ECX, 29, YMM},        {"bmi1", 7, 0, EBX, 3, ANY},
    {"avx2", 7, 0, EBX, 5, YMM},         {"bmi2", 7, 0, EBX, 8, ANY},         {"avx512f", 7, 0, EBX, 16, ZMM},
    {"avx512dq", 7, 0, EBX, 17, ZMM},    {"avx512cd", 7, 0, EBX, 28, ZMM},    {"avx512bw", 7, 0, EBX, 30, ZMM},
    {"avx512vl", 7, 0, EBX, 31, ZMM},    {"avx512vbmi", 7, 0, ECX, 1, ZMM},   {"avx512_vnni", 7, 0, ECX, 11, ZMM},
    {"avx_vnni", 7, 1, EAX, 4, YMM},     {"avx512_bf16", 7, 1, EAX, 5, ZMM},  {"amx_bf16", 7, 0, EDX, 22, TILES},
    {"amx_tile", 7, 0, EDX, 24, TILES},  {"amx_int8", 7, 0, EDX, 25, TILES},  {"amx_fp16", 7, 1, EAX, 21, TILES},
};

enum { OSXSAVE = 27 };
#if defined(__x86_64__)
enum { HAS_CPUID = 1 };
#else
#define HAS_CPUID (__get_cpuid_max(0, NULL) >= 1)
#endif

static unsigned saved_registers(unsigned flags) {
  unsigned low = 0, high;
  if (flags >> OSXSAVE & 1) __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

/* A virtual machine takes microseconds for each CPUID: every leaf is read once in the life of the process, and not leaf 0
   for the number of leaves, because what has XSAVE has leaf 13. */
static uint32_t read_features(void) {
  unsigned r[3][4] = {{0}};
  uint32_t found = 1u << TN_KNOWN;
  if (HAS_CPUID) __cpuid(1, r[0][EAX], r[0][EBX], r[0][ECX], r[0][EDX]);
  const int has_leaf_7 = r[0][ECX] >> OSXSAVE & 1;
  if (has_leaf_7) __cpuid_count(7, 0, r[1][EAX], r[1][EBX], r[1][ECX], r[1][EDX]);
  if (has_leaf_7 && r[1][EAX] >= 1) __cpuid_count(7, 1, r[2][EAX], r[2][EBX], r[2][ECX], r[2][EDX]);
  const unsigned saved = saved_registers(r[0][ECX]);
  for (size_t i = 0; i < sizeof features / sizeof *features; i++) {
    const unsigned needed = features[i].saved, leaf = features[i].leaf == 1 ? 0 : 1u + features[i].subleaf;
    if ((saved & needed) == needed && r[leaf][features[i].in] >> features[i].bit & 1) found |= 1u << i;
  }
  return found;
}

uint32_t tn_processor_bits(void) {
  static uint32_t known;
  uint32_t found = __atomic_load_n(&known, __ATOMIC_RELAXED);
  if (found == 0) __atomic_store_n(&known, found = read_features(), __ATOMIC_RELAXED);
  return found;
}

void tn_processor_features(char *text, size_t size) {
  const uint32_t found = tn_processor_bits();
  text[0] = 0;
  for (size_t i = 0; i < sizeof features / sizeof *features; i++)
    if (found >> i & 1) add_feature(text, size, features[i].name);
}

#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { HWCAP = 16, HWCAP2 = 26 }; /* of the auxiliary vector */

static const struct {
  char name[9];
  uint8_t word, bit;
} features[] = {
    {"fphp", HWCAP, 9},     {"asimdhp", HWCAP, 10}, {"asimddp", HWCAP, 20}, {"sve", HWCAP, 22},
    {"asimdfhm", HWCAP, 23}, {"sve2", HWCAP2, 1},    {"i8mm", HWCAP2, 13},   {"bf16", HWCAP2, 14},
    {"sme", HWCAP2, 23},     {"sme2", HWCAP2, 37},
};

/* The length of registers in bits, behind the name of the instruction set whose vectors they are. */
static void add_length(char *text, size_t size, const char *name, long question) {
  enum { BYTES = 0xffff };
  char length[32];
  const long vector = syscall(SYS_prctl, question, 0, 0, 0, 0);
  if (vector <= 0) return;
  snprintf(length, sizeof length, "%s%ld", name, 8 * (vector & BYTES));
  add_feature(text, size, length);
}

/* The length of SVE's registers comes with them, "sve256", and that of the streaming mode's. */
void tn_processor_features(char *text, size_t size) {
  enum { SVE_GET_VL = 51, SME_GET_VL = 64 };
  text[0] = 0;
  for (size_t i = 0; i < sizeof features / sizeof *features; i++)
    if (getauxval(features[i].word) >> features[i].bit & 1) add_feature(text, size, features[i].name);
  add_length(text, size, "sve", SVE_GET_VL);
  add_length(text, size, "sme", SME_GET_VL);
}

#elif defined(__riscv) && defined(__linux__)
#include <unistd.h>

/* The extensions that targets ask for; systems before Linux 6.4 do not say (riscv_hwprobe). */
void tn_processor_features(char *text, size_t size) {
  enum { HWPROBE = 258, KEY_EXTENSIONS = 4 };
  static const struct {
    const char *name;
    int bit;
  } features[] = {{"v", 2}, {"zfh", 27}, {"zvfh", 30}};
  struct {
    int64_t key;
    uint64_t value;
  } pair = {KEY_EXTENSIONS, 0};
  text[0] = 0;
  if (syscall(HWPROBE, &pair, 1L, 0L, NULL, 0L) != 0 || pair.key != KEY_EXTENSIONS) return;
  for (size_t i = 0; i < sizeof features / sizeof *features; i++)
    if (pair.value >> features[i].bit & 1) add_feature(text, size, features[i].name);
}

#else

void tn_processor_features(char *text, size_t size) { (void)size, (void)add_feature, text[0] = 0; }

#endif
