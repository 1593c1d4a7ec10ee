/* Main program for running a bundle without a C library, and on Cortex-M and RISC-V without an operating system.

   Until the input ends: receive the whole mutable region, run the network, send the mutable region back.
    The activations start as NaN bytes: nothing may rely on them.

   With TENON_STEPS defined it measures time instead: receive the numbers of rounds and of warm-up runs (32 bits each)
   and one mutable region, run the network so often, and send nanoseconds (64 bits) for every round: before and after
   it, or with TENON_STEPS above 0 before the first step and after every one, as if all iterations of a step in a loop
   followed each other.  TENON_EVICTED are bytes to read and
   write before every run, so that the network's own are not in the caches.

   The input is the file input.bin, the output the file output.bin: on Linux those of the current folder, without an
   operating system those of the machine that debugs or emulates it, by semihosting. */

#include "network.h"

enum { OK = 0, NETWORK_FAILED = 1, TRANSFER_FAILED = 2, FAULT = 3, NO_CLOCK = 4 };

static void open_files(void);
/* Bytes that one call of the system moved; 0 at the end of the input, and on an error. */
static size_t receive_some(uint8_t *to, size_t count);
static size_t send_some(const uint8_t *from, size_t count);
static void leave(int status) __attribute__((noreturn));

void tenon_probe(void);

/* Bytes received: fewer at the end of the input. */
static size_t receive(uint8_t *to, size_t count) {
  size_t done = 0, got;
  while (done < count && (got = receive_some(to + done, count - done)) > 0) done += got;
  return done;
}

/* Bytes sent: fewer on an error. */
static size_t send(const uint8_t *from, size_t count) {
  size_t done = 0, sent;
  while (done < count && (sent = send_some(from + done, count - done)) > 0) done += sent;
  return done;
}

#ifdef TENON_STEPS

static uint64_t nanoseconds(void);

static void evict(void) {
#ifdef TENON_EVICTED
  static volatile uint8_t others[TENON_EVICTED];
  for (size_t i = 0; i < TENON_EVICTED; i += 32) others[i]++;
  const volatile uint8_t *const own[] = {tenon_mutable, tenon_activations};
  const size_t sizes[] = {tenon_mutable_size, tenon_activations_size};
  for (int r = 0; r < 2; r++)
    for (size_t i = 0; i < sizes[r]; i += 32) (void)own[r][i];
#endif
}

/* Sizes that are states, which every run makes larger: what the first one is given, for each. */
static void keep_sizes(int is_first) {
  static uint64_t kept[8];
  size_t count = 0;
  for (int i = 0; i < tenon_input_count && count < sizeof kept / sizeof *kept; i++) {
    uint64_t *size = (uint64_t *)(tenon_mutable + tenon_inputs[i].offset);
    if (tenon_inputs[i].rank != 0 || tenon_inputs[i].bytes != sizeof *size || !tenon_is_state(&tenon_inputs[i])) continue;
    if (is_first) kept[count] = *size;
    else *size = kept[count];
    count++;
  }
}

void tenon_probe(void) {
  static uint64_t stamps[TENON_STEPS ? TENON_STEPS + 1 : 2];
  uint32_t counts[2]; /* rounds, warm-up runs */
  open_files();
  if (receive((uint8_t *)counts, sizeof counts) != sizeof counts) leave(TRANSFER_FAILED);
  if (receive(tenon_mutable, tenon_mutable_size) != tenon_mutable_size) leave(TRANSFER_FAILED);
  for (uint32_t run = 0; run < counts[0] + counts[1]; run++) {
    keep_sizes(run == 0);
    evict();
    stamps[0] = nanoseconds();
#if TENON_STEPS > 0
    uint64_t last = stamps[0];
    for (int step = 0; step < TENON_STEPS; step++) stamps[step + 1] = 0;
    for (int step = tenon_next_step(-1); step >= 0; step = tenon_next_step(step)) {
      tenon_step(step);
      const uint64_t now = nanoseconds();
      stamps[step + 1] += now - last;
      last = now;
    }
    for (int step = 0; step < TENON_STEPS; step++) stamps[step + 1] += stamps[step];
#else
    if (tenon_run() != 0) leave(NETWORK_FAILED);
    stamps[1] = nanoseconds();
#endif
    if (run >= counts[1] && send((const uint8_t *)stamps, sizeof stamps) != sizeof stamps) leave(TRANSFER_FAILED);
  }
  leave(OK);
}

#else

void tenon_probe(void) {
  volatile uint8_t *const scratch = tenon_activations;
  open_files();
  for (;;) {
    const size_t got = receive(tenon_mutable, tenon_mutable_size);
    if (got == 0) leave(OK);
    if (got != tenon_mutable_size) leave(TRANSFER_FAILED);
    for (size_t i = 0; i < tenon_activations_size; i++) scratch[i] = 0xff;
    if (tenon_run() != 0) leave(NETWORK_FAILED);
    if (send(tenon_mutable, tenon_mutable_size) != tenon_mutable_size) leave(TRANSFER_FAILED);
  }
}

#endif

#if defined(__linux__)

/* A processor: the numbers of its calls (OPEN is openat, TIME clock_gettime, with fields of 64 bits clock_gettime64),
   what _start does, the instructions that enter the system (and negate the number of an error where the system tells
   one by a flag), the registers of the call's number and arguments, the one that holds the result, and what else is
   lost. */
#if defined(__x86_64__)
enum { READ = 0, WRITE = 1, EXIT = 60, OPEN = 257, TIME = 228 };
#define START "xor %ebp, %ebp\n and $-16, %rsp\n call tenon_probe\n"
#define ENTER "syscall"
#define NUMBER "rax"
#define FIRST "rdi"
#define SECOND "rsi"
#define THIRD "rdx"
#define FOURTH "r10"
#define RESULT x
#define LOST "rcx", "r11", "memory"
#elif defined(__aarch64__)
enum { READ = 63, WRITE = 64, EXIT = 93, OPEN = 56, TIME = 113 };
#define START "mov x29, #0\n bl tenon_probe\n"
#define ENTER "svc #0"
#define NUMBER "x8"
#define FIRST "x0"
#define SECOND "x1"
#define THIRD "x2"
#define FOURTH "x3"
#elif defined(__arm__)
enum { READ = 3, WRITE = 4, EXIT = 1, OPEN = 322, TIME = 263 };
#define START "bl tenon_probe\n"
#define ENTER "svc #0"
#define NUMBER "r7"
#define FIRST "r0"
#define SECOND "r1"
#define THIRD "r2"
#define FOURTH "r3"
#elif defined(__riscv)
#if __riscv_xlen == 32
enum { READ = 63, WRITE = 64, EXIT = 93, OPEN = 56, TIME = 403 };
#define TIME_FIELD int64_t
#else
enum { READ = 63, WRITE = 64, EXIT = 93, OPEN = 56, TIME = 113 };
#endif
#define START "call tenon_probe\n"
#define ENTER "ecall"
#define NUMBER "a7"
#define FIRST "a0"
#define SECOND "a1"
#define THIRD "a2"
#define FOURTH "a3"
#elif defined(__mips__)
enum { READ = 4003, WRITE = 4004, EXIT = 4001, OPEN = 4288, TIME = 4263 };
/* The linker's default entry point; position-independent functions expect their address in $25. */
#define START \
  ".globl __start\n__start:\n addiu $29, $29, -32\n lui $25, %hi(tenon_probe)\n" \
  " addiu $25, $25, %lo(tenon_probe)\n jalr $25\n nop\n"
#define ENTER "syscall\n beqz $7, 1f\n negu $2, $2\n1:"
#define NUMBER "$2"
#define FIRST "$4"
#define SECOND "$5"
#define THIRD "$6"
#define FOURTH "$7"
#define RESULT x
#define LOST "$1", "$3", "$8", "$9", "$10", "$11", "$12", "$13", "$14", "$15", "$24", "$25", "hi", "lo", "memory"
#define CREATE 0x100
#define TRUNCATE 0x200
#elif defined(__powerpc__)
enum { READ = 3, WRITE = 4, EXIT = 1, OPEN = 286, TIME = 246 };
#if defined(__powerpc64__) /* ELFv2: the entry point's address is in r12, that of the table of contents goes to r2 */
#define START \
  "addis 2, 12, .TOC. - _start@ha\n addi 2, 2, .TOC. - _start@l\n li 0, 0\n stdu 0, -64(1)\n bl tenon_probe\n nop\n"
#else
#define START "li 0, 0\n stwu 0, -32(1)\n bl tenon_probe\n"
#endif
#define ENTER "sc\n bns+ 1f\n neg 3, 3\n1:"
#define NUMBER "r0"
#define FIRST "r3"
#define SECOND "r4"
#define THIRD "r5"
#define FOURTH "r6"
#define LOST "r7", "r8", "r9", "r10", "r11", "r12", "cr0", "ctr", "memory"
#elif defined(__s390x__)
enum { READ = 3, WRITE = 4, EXIT = 1, OPEN = 288, TIME = 260 };
#define START "aghi %r15, -160\n brasl %r14, tenon_probe\n"
#define ENTER "svc 0"
#define NUMBER "r1"
#define FIRST "r2"
#define SECOND "r3"
#define THIRD "r4"
#define FOURTH "r5"
#else
#error "no system calls for this processor"
#endif
#ifndef RESULT
#define RESULT x0
#endif
#ifndef LOST
#define LOST "memory"
#endif
#ifndef CREATE
#define CREATE 0100
#define TRUNCATE 01000
#endif
#ifndef TIME_FIELD
#define TIME_FIELD long
#endif

__asm__(".globl _start\n.type _start, %function\n_start:\n " START);

static long system_call(long number, long a, long b, long c, long d) {
  register long x __asm__(NUMBER) = number, x0 __asm__(FIRST) = a, x1 __asm__(SECOND) = b, x2 __asm__(THIRD) = c;
  register long x3 __asm__(FOURTH) = d;
  __asm__ volatile(ENTER : "+r"(x), "+r"(x0), "+r"(x1), "+r"(x2), "+r"(x3) : : LOST);
  return RESULT;
}

enum { HERE = -100, READ_ONLY = 0, WRITE_NEW = 01 | CREATE | TRUNCATE, OWNERS = 0600, MONOTONIC = 1 };
static long input, output;

static void open_files(void) {
  input = system_call(OPEN, HERE, (long)"input.bin", READ_ONLY, 0);
  output = system_call(OPEN, HERE, (long)"output.bin", WRITE_NEW, OWNERS);
  if (input < 0 || output < 0) leave(TRANSFER_FAILED);
}

#ifdef TENON_STEPS
static uint64_t nanoseconds(void) {
  struct {
    TIME_FIELD seconds, nanoseconds;
  } now;
  if (system_call(TIME, MONOTONIC, (long)&now, 0, 0) != 0) leave(NO_CLOCK);
  return (uint64_t)now.seconds * 1000000000u + (uint64_t)now.nanoseconds;
}
#endif

static size_t receive_some(uint8_t *to, size_t count) {
  const long got = system_call(READ, input, (long)to, (long)count, 0);
  return got > 0 ? (size_t)got : 0;
}

static size_t send_some(const uint8_t *from, size_t count) {
  const long sent = system_call(WRITE, output, (long)from, (long)count, 0);
  return sent > 0 ? (size_t)sent : 0;
}

static void leave(int status) {
  for (;;) system_call(EXIT, status, 0, 0, 0);
}

#elif defined(_WIN32)

/* Functions of kernel32.dll; declared here and not by windows.h, which wants the headers of a C library. */
__declspec(dllimport) void *__stdcall CreateFileA(
    const char *name, unsigned access, unsigned sharing, void *security, unsigned creation, unsigned flags, void *like);
__declspec(dllimport) int __stdcall ReadFile(void *file, void *to, unsigned count, unsigned *got, void *overlapped);
__declspec(dllimport) int __stdcall WriteFile(
    void *file, const void *from, unsigned count, unsigned *sent, void *overlapped);
__declspec(dllimport) int __stdcall CloseHandle(void *file);
__declspec(dllimport) void __stdcall ExitProcess(unsigned status);

enum { OPEN_EXISTING = 3, CREATE_ALWAYS = 2, NORMAL = 0x80, MOST = 1 << 30 };
static const unsigned GENERIC_READ = 0x80000000u, GENERIC_WRITE = 0x40000000u;
static void *input, *output;

static void open_files(void) {
  void *const invalid = (void *)(intptr_t)-1;
  input = CreateFileA("input.bin", GENERIC_READ, 0, 0, OPEN_EXISTING, NORMAL, 0);
  output = CreateFileA("output.bin", GENERIC_WRITE, 0, 0, CREATE_ALWAYS, NORMAL, 0);
  if (input == invalid || output == invalid) leave(TRANSFER_FAILED);
}

#ifdef TENON_STEPS
__declspec(dllimport) int __stdcall QueryPerformanceCounter(long long *ticks);
__declspec(dllimport) int __stdcall QueryPerformanceFrequency(long long *ticks);

static uint64_t nanoseconds(void) {
  long long ticks, frequency;
  if (!QueryPerformanceCounter(&ticks) || !QueryPerformanceFrequency(&frequency)) leave(NO_CLOCK);
  return (uint64_t)(ticks / frequency) * 1000000000u + (uint64_t)(ticks % frequency) * 1000000000u / (uint64_t)frequency;
}
#endif

static size_t receive_some(uint8_t *to, size_t count) {
  unsigned got = 0;
  return ReadFile(input, to, count < MOST ? (unsigned)count : MOST, &got, 0) ? got : 0;
}

static size_t send_some(const uint8_t *from, size_t count) {
  unsigned sent = 0;
  return WriteFile(output, from, count < MOST ? (unsigned)count : MOST, &sent, 0) ? sent : 0;
}

static void leave(int status) {
  CloseHandle(output);
  ExitProcess((unsigned)status);
  for (;;) {
  }
}

#elif defined(__arm__) || defined(__riscv)

/* Arm semihosting 2.0, which RISC-V adopted: the operation in a register, its arguments in memory at the next one, then
   an instruction that debuggers know. */
enum { SYS_OPEN = 0x01, SYS_WRITE = 0x05, SYS_READ = 0x06, SYS_EXIT_EXTENDED = 0x20, SYS_ELAPSED = 0x30, SYS_TICKFREQ };
enum { READ_BINARY = 1, WRITE_BINARY = 5, STOPPED_BY_EXIT = 0x20026 };
static uintptr_t input, output;

#if defined(__arm__)
#define OPERATION "r0"
#define ARGUMENTS "r1"
#define SEMIHOST "bkpt 0xab"
#else
#define OPERATION "a0"
#define ARGUMENTS "a1"
#define SEMIHOST \
  ".balign 16\n .option push\n .option norvc\n slli x0, x0, 0x1f\n ebreak\n srai x0, x0, 7\n .option pop"
#endif

static uintptr_t semihost(uintptr_t operation, const uintptr_t *arguments) {
  register uintptr_t first __asm__(OPERATION) = operation;
  register const uintptr_t *second __asm__(ARGUMENTS) = arguments;
  __asm__ volatile(SEMIHOST : "+r"(first) : "r"(second) : "memory");
  return first;
}

static uintptr_t open_file(const char *name, uintptr_t length, uintptr_t mode) {
  const uintptr_t arguments[] = {(uintptr_t)name, mode, length};
  return semihost(SYS_OPEN, arguments);
}

static void open_files(void) {
  input = open_file("input.bin", 9, READ_BINARY);
  output = open_file("output.bin", 10, WRITE_BINARY);
}

#ifdef TENON_STEPS
/* Only where ticks are nanoseconds, as in QEMU: a division of 64 bits would need a library. */
static uint64_t nanoseconds(void) {
  uintptr_t ticks[2];
  if (semihost(SYS_TICKFREQ, 0) != 1000000000 || semihost(SYS_ELAPSED, ticks) != 0) leave(NO_CLOCK);
  return (uint64_t)ticks[1] << 32 | ticks[0];
}
#endif

/* Both transfers answer with the number of bytes that were left over. */
static size_t receive_some(uint8_t *to, size_t count) {
  const uintptr_t arguments[] = {input, (uintptr_t)to, count};
  const uintptr_t left = semihost(SYS_READ, arguments);
  return left > count ? 0 : count - left;
}

static size_t send_some(const uint8_t *from, size_t count) {
  const uintptr_t arguments[] = {output, (uintptr_t)from, count};
  const uintptr_t left = semihost(SYS_WRITE, arguments);
  return left > count ? 0 : count - left;
}

static void leave(int status) {
  const uintptr_t arguments[] = {STOPPED_BY_EXIT, (uintptr_t)status};
  for (;;) semihost(SYS_EXIT_EXTENDED, arguments);
}

void tenon_fault(void);
void tenon_fault(void) { leave(FAULT); }

#if defined(__arm__)

/* The FPU is off at reset: turned on (CPACR, full access to CP10 and CP11) before any code that could use it. */
__asm__(".syntax unified\n"
        ".thumb\n"
        ".globl tenon_reset\n"
        ".thumb_func\n"
        "tenon_reset:\n"
        "  ldr r0, =0xe000ed88\n"
        "  ldr r1, [r0]\n"
        "  ldr r2, =0x00f00000\n"
        "  orrs r1, r2\n"
        "  str r1, [r0]\n"
        "  dsb\n"
        "  isb\n"
        "  bl tenon_probe\n"
        ".ltorg\n");

void tenon_reset(void);
extern uint8_t tenon_stack_top[];

/* The first words of the vector table: stack, reset, and the faults (NMI, hard, memory, bus, usage). */
typedef void (*handler)(void);
__attribute__((section(".vectors"), used)) static const handler vectors[7] = {
    (handler)(uintptr_t)tenon_stack_top, tenon_reset, tenon_fault, tenon_fault, tenon_fault, tenon_fault, tenon_fault,
};

#else

/* Where execution begins: the stack, the handler of traps, the floating-point unit if there is one (mstatus.FS). */
__asm__(".section .vectors, \"ax\", @progbits\n"
        ".globl tenon_reset\n"
        "tenon_reset:\n"
        "  la sp, tenon_stack_top\n"
        "  la t0, tenon_trap\n"
        "  .insn i 0x73, 1, x0, t0, 0x305\n" /* csrw mtvec, t0 */
#if defined(__riscv_flen)
        "  li t0, 0x2000\n"
        "  .insn i 0x73, 2, x0, t0, 0x300\n" /* csrs mstatus, t0 */
#endif
        "  call tenon_probe\n"
        "  .balign 4\n"
        "tenon_trap:\n"
        "  call tenon_fault\n"
        ".text\n");

#endif

#else
#error "no probe for this machine"
#endif
