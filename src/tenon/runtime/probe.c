/* Runs a bundle where there is nothing else: no C library, and on Cortex-M no operating system either.

   Again and again: receive the whole mutable region, run the network, send the mutable region back, until the
   input ends.  Linux: standard input and output.  Cortex-M: the files input.bin and output.bin of the machine
   that debugs or emulates it, by semihosting.  The activations start as NaN bytes: nothing may rely on them. */

#include "network.h"

enum { OK = 0, NETWORK_FAILED = 1, TRANSFER_FAILED = 2, FAULT = 3 };

static void open_files(void);
static size_t receive(uint8_t *to, size_t count);        /* bytes received: fewer at the end of the input */
static size_t send(const uint8_t *from, size_t count);   /* bytes sent: fewer on an error */
static void leave(int status) __attribute__((noreturn));

void tenon_probe(void);
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

#if defined(__linux__)

/* A processor: the numbers of its calls, what _start does, the instruction that enters the system, the registers of
   the call's number and arguments, the one that holds the result, and what else is lost. */
#if defined(__x86_64__)
enum { READ = 0, WRITE = 1, EXIT = 60 };
#define START "xor %ebp, %ebp\n and $-16, %rsp\n call tenon_probe\n"
#define ENTER "syscall"
#define NUMBER "rax"
#define FIRST "rdi"
#define SECOND "rsi"
#define THIRD "rdx"
#define RESULT x
#define LOST "rcx", "r11", "memory"
#elif defined(__aarch64__)
enum { READ = 63, WRITE = 64, EXIT = 93 };
#define START "mov x29, #0\n bl tenon_probe\n"
#define ENTER "svc #0"
#define NUMBER "x8"
#define FIRST "x0"
#define SECOND "x1"
#define THIRD "x2"
#elif defined(__arm__)
enum { READ = 3, WRITE = 4, EXIT = 1 };
#define START "bl tenon_probe\n"
#define ENTER "svc #0"
#define NUMBER "r7"
#define FIRST "r0"
#define SECOND "r1"
#define THIRD "r2"
#elif defined(__riscv)
enum { READ = 63, WRITE = 64, EXIT = 93 };
#define START "call tenon_probe\n"
#define ENTER "ecall"
#define NUMBER "a7"
#define FIRST "a0"
#define SECOND "a1"
#define THIRD "a2"
#else
#error "no system calls for this processor"
#endif
#ifndef RESULT
#define RESULT x0
#define LOST "memory"
#endif

__asm__(".globl _start\n.type _start, %function\n_start:\n " START);

static long system_call(long number, long a, long b, long c) {
  register long x __asm__(NUMBER) = number, x0 __asm__(FIRST) = a, x1 __asm__(SECOND) = b, x2 __asm__(THIRD) = c;
  __asm__ volatile(ENTER : "+r"(x), "+r"(x0) : "r"(x1), "r"(x2) : LOST);
  return RESULT;
}

static void open_files(void) {}

static size_t receive(uint8_t *to, size_t count) {
  size_t done = 0;
  while (done < count) {
    const long got = system_call(READ, 0, (long)(to + done), (long)(count - done));
    if (got <= 0) break;
    done += (size_t)got;
  }
  return done;
}

static size_t send(const uint8_t *from, size_t count) {
  size_t done = 0;
  while (done < count) {
    const long sent = system_call(WRITE, 1, (long)(from + done), (long)(count - done));
    if (sent <= 0) break;
    done += (size_t)sent;
  }
  return done;
}

static void leave(int status) {
  for (;;) system_call(EXIT, status, 0, 0);
}

#elif defined(__arm__)

/* ARM semihosting 2.0: the operation in r0, its arguments in memory at r1, then BKPT 0xAB. */
enum { SYS_OPEN = 0x01, SYS_WRITE = 0x05, SYS_READ = 0x06, SYS_EXIT_EXTENDED = 0x20 };
enum { READ_BINARY = 1, WRITE_BINARY = 5, STOPPED_BY_EXIT = 0x20026 };
static uintptr_t input, output;

static uintptr_t semihost(uintptr_t operation, const uintptr_t *arguments) {
  register uintptr_t r0 __asm__("r0") = operation;
  register const uintptr_t *r1 __asm__("r1") = arguments;
  __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
  return r0;
}

static uintptr_t open_file(const char *name, uintptr_t length, uintptr_t mode) {
  const uintptr_t arguments[] = {(uintptr_t)name, mode, length};
  return semihost(SYS_OPEN, arguments);
}

static void open_files(void) {
  input = open_file("input.bin", 9, READ_BINARY);
  output = open_file("output.bin", 10, WRITE_BINARY);
}

/* Both transfers answer with the number of bytes that were left over. */
static size_t receive(uint8_t *to, size_t count) {
  const uintptr_t arguments[] = {input, (uintptr_t)to, count};
  const uintptr_t left = semihost(SYS_READ, arguments);
  return left > count ? 0 : count - left;
}

static size_t send(const uint8_t *from, size_t count) {
  const uintptr_t arguments[] = {output, (uintptr_t)from, count};
  const uintptr_t left = semihost(SYS_WRITE, arguments);
  return left > count ? 0 : count - left;
}

static void leave(int status) {
  const uintptr_t arguments[] = {STOPPED_BY_EXIT, (uintptr_t)status};
  for (;;) semihost(SYS_EXIT_EXTENDED, arguments);
}

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

static void fault(void) { leave(FAULT); }

/* The first words of the vector table: stack, reset, and the faults (NMI, hard, memory, bus, usage). */
typedef void (*handler)(void);
__attribute__((section(".vectors"), used)) static const handler vectors[7] = {
    (handler)(uintptr_t)tenon_stack_top, tenon_reset, fault, fault, fault, fault, fault,
};

#else
#error "no probe for this machine"
#endif
