/* A plug-in of QEMU (interface 1, QEMU 4.2 and later): instructions of a program between a call and its return.

     -plugin libinstruction_count.so,enter=tenon_run,caller=tenon_probe,out=counts.txt

   A window opens when the function `enter` is called and closes when control is back in the function `caller`.  `out`
   gets a line "run INSTRUCTIONS" for every window, and for the first one "function NAME INSTRUCTIONS" for each function
   that ran, with `stack=LOW:HIGH` also "stack BYTES": from the highest to the lowest address that it stored to
   there.  Names are those of the program's symbol table.  No header of QEMU is needed: what is used of it is declared
   here. */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

typedef uint64_t PluginId;
typedef struct qemu_plugin_tb Block;
typedef struct qemu_plugin_insn Instruction;
enum { NO_REGISTERS = 0, ADD_U64 = 0, STORES = 2 };

EXPORT int qemu_plugin_version = 1;
void qemu_plugin_register_vcpu_tb_trans_cb(PluginId, void (*)(PluginId, Block *));
void qemu_plugin_register_vcpu_tb_exec_cb(Block *, void (*)(unsigned, void *), int, void *);
void qemu_plugin_register_vcpu_tb_exec_inline(Block *, int, void *, uint64_t);
void qemu_plugin_register_vcpu_mem_cb(Instruction *, void (*)(unsigned, uint32_t, uint64_t, void *), int, int, void *);
void qemu_plugin_register_atexit_cb(PluginId, void (*)(PluginId, void *), void *);
size_t qemu_plugin_tb_n_insns(const Block *);
uint64_t qemu_plugin_tb_vaddr(const Block *);
Instruction *qemu_plugin_tb_get_insn(const Block *, size_t);
const char *qemu_plugin_insn_symbol(const Instruction *);
unsigned qemu_plugin_mem_size_shift(uint32_t);

/* A translated block: how often it was executed, in all, before the window and inside the first one. */
typedef struct Counter {
  struct Counter *next;
  char *function;
  uint64_t address, instructions, executed, before, inside;
} Counter;

static Counter *counters;
static uint64_t total, opened, stack_low, stack_high, deepest, highest;
static unsigned runs;
static int is_open;
static const char *enter = "tenon_run", *caller = "tenon_probe", *out_name = "counts.txt";
static FILE *out;

static void open_window(unsigned cpu, void *unused) {
  (void)cpu, (void)unused;
  if (is_open) return;
  is_open = 1, opened = total, deepest = UINT64_MAX, highest = 0;
  if (runs == 0)
    for (Counter *c = counters; c; c = c->next) c->before = c->executed;
}

static void close_window(unsigned cpu, void *unused) {
  (void)cpu, (void)unused;
  if (!is_open) return;
  is_open = 0;
  fprintf(out, "run %" PRIu64 "\n", total - opened);
  if (runs == 0) {
    for (Counter *c = counters; c; c = c->next) c->inside = c->executed - c->before;
    if (stack_high) fprintf(out, "stack %" PRIu64 "\n", highest ? highest - deepest : 0);
  }
  runs++;
}

static void stored(unsigned cpu, uint32_t info, uint64_t address, void *unused) {
  (void)cpu, (void)unused;
  if (!is_open || address < stack_low || address >= stack_high) return;
  const uint64_t end = address + (UINT64_C(1) << qemu_plugin_mem_size_shift(info));
  if (address < deepest) deepest = address;
  if (end > highest) highest = end;
}

/* A block may be translated again: one counter for all of its translations. */
static Counter *counter(const Block *block, const char *function) {
  const uint64_t address = qemu_plugin_tb_vaddr(block), n = qemu_plugin_tb_n_insns(block);
  for (Counter *c = counters; c; c = c->next)
    if (c->address == address && c->instructions == n) return c;
  Counter *made = calloc(1, sizeof *made);
  if (!made) abort();
  made->function = strdup(function), made->address = address, made->instructions = n;
  made->next = counters;
  return counters = made;
}

static void translated(PluginId id, Block *block) {
  (void)id;
  const char *name = qemu_plugin_insn_symbol(qemu_plugin_tb_get_insn(block, 0));
  if (!name) name = "?";
  /* Callbacks run before what is added inline: the first block of a window counts, the one that closes it does not. */
  if (!strcmp(name, enter)) qemu_plugin_register_vcpu_tb_exec_cb(block, open_window, NO_REGISTERS, 0);
  if (!strcmp(name, caller)) qemu_plugin_register_vcpu_tb_exec_cb(block, close_window, NO_REGISTERS, 0);
  Counter *c = counter(block, name);
  qemu_plugin_register_vcpu_tb_exec_inline(block, ADD_U64, &total, c->instructions);
  qemu_plugin_register_vcpu_tb_exec_inline(block, ADD_U64, &c->executed, 1);
  for (size_t i = 0; stack_high && i < c->instructions; i++)
    qemu_plugin_register_vcpu_mem_cb(qemu_plugin_tb_get_insn(block, i), stored, NO_REGISTERS, STORES, 0);
}

static void finish(PluginId id, void *unused) {
  (void)id, (void)unused;
  for (Counter *c = counters; c; c = c->next) {
    uint64_t sum = 0;
    for (Counter *d = c; d; d = d->next)
      if (!strcmp(c->function, d->function)) sum += d->inside * d->instructions, d->inside = 0;
    if (sum) fprintf(out, "function %s %" PRIu64 "\n", c->function, sum);
  }
  fclose(out);
}

EXPORT int qemu_plugin_install(PluginId id, const void *info, int argc, char **argv) {
  (void)info;
  for (int i = 0; i < argc; i++) {
    char *equals = strchr(argv[i], '='), *value = equals ? equals + 1 : "", *rest;
    const size_t length = equals ? (size_t)(equals - argv[i]) : 0;
    if (length == 5 && !strncmp(argv[i], "enter", 5)) enter = strdup(value);
    if (length == 6 && !strncmp(argv[i], "caller", 6)) caller = strdup(value);
    if (length == 3 && !strncmp(argv[i], "out", 3)) out_name = strdup(value);
    if (length == 5 && !strncmp(argv[i], "stack", 5)) {
      stack_low = strtoull(value, &rest, 0);
      stack_high = *rest == ':' ? strtoull(rest + 1, 0, 0) : 0;
    }
  }
  out = fopen(out_name, "w");
  if (!out) return 1;
  qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
  qemu_plugin_register_atexit_cb(id, finish, 0);
  return 0;
}
