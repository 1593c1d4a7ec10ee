/* Threads that wait between runs, and a barrier for those within one.

   Whoever waits watches a counter for some microseconds, which is how long a well-shared layer makes it wait, and
   then sleeps until the counter moves, so that a thread whose processor somebody else wants does not make things
   worse.  A counter that only grows tells every wait from the next one. */

#define _GNU_SOURCE
#include "threads.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#else
#include <sched.h>
#endif

enum { CACHE_LINE = 64, SPINS = 2000, STACK = 1 << 20 };

/* A counter and how many threads sleep until it moves, on a cache line of their own. */
typedef struct {
  uint32_t count __attribute__((aligned(CACHE_LINE)));
  uint32_t sleepers;
} Gate;

typedef struct {
  TenonTeam *team;
  pthread_t id;
  int index;
} Worker;

struct TenonTeam {
  Gate job;                                                  /* counts runs */
  Gate meeting;                                              /* counts barriers */
  uint32_t arrived __attribute__((aligned(CACHE_LINE)));     /* at the present barrier */
  TenonEntry *entry __attribute__((aligned(CACHE_LINE)));
  uint8_t *regions[3];
  void (*watch)(void *);
  void *watched;
  int threads, started, stopped;
  Worker *workers;
};

static void pause_processor(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__) || defined(__arm__)
  __asm__ volatile("yield");
#endif
}

static void sleep_while(Gate *gate, uint32_t seen) {
#if defined(__linux__)
  syscall(SYS_futex, &gate->count, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
#else
  (void)gate, (void)seen;
  sched_yield();
#endif
}

/* Wait until the gate's count is no longer `seen`. */
static void pass(Gate *gate, uint32_t seen) {
  for (int i = 0; i < SPINS; i++) {
    if (__atomic_load_n(&gate->count, __ATOMIC_ACQUIRE) != seen) return;
    pause_processor();
  }
  /* Sequentially consistent on both sides: either the opener sees the sleeper, or the sleeper sees the new count. */
  __atomic_fetch_add(&gate->sleepers, 1, __ATOMIC_SEQ_CST);
  while (__atomic_load_n(&gate->count, __ATOMIC_SEQ_CST) == seen) sleep_while(gate, seen);
  __atomic_fetch_sub(&gate->sleepers, 1, __ATOMIC_RELAXED);
}

static void open_gate(Gate *gate) {
  __atomic_fetch_add(&gate->count, 1, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&gate->sleepers, __ATOMIC_SEQ_CST) == 0) return;
#if defined(__linux__)
  syscall(SYS_futex, &gate->count, FUTEX_WAKE_PRIVATE, 1 << 30, NULL, NULL, 0);
#endif
}

static void meet(void *context) {
  TenonTeam *team = context;
  const uint32_t seen = __atomic_load_n(&team->meeting.count, __ATOMIC_RELAXED);
  if (__atomic_add_fetch(&team->arrived, 1, __ATOMIC_ACQ_REL) < (uint32_t)team->threads) {
    pass(&team->meeting, seen);
  } else {
    if (team->watch != NULL) team->watch(team->watched);
    __atomic_store_n(&team->arrived, 0, __ATOMIC_RELAXED);
    open_gate(&team->meeting);
  }
}

static int take_part(TenonTeam *team, int index) {
  uint8_t **r = team->regions;
  return team->entry(r[0], r[1], r[2], index, team->threads, meet, team);
}

static void *work(void *argument) {
  const Worker *self = argument;
  TenonTeam *team = self->team;
  for (uint32_t seen = 0;; seen++) {
    pass(&team->job, seen);
    if (team->stopped) return NULL;
    take_part(team, self->index);
  }
}

/* Signals are the business of the threads that the program made itself. */
static int start_worker(Worker *worker) {
  pthread_attr_t attributes;
  sigset_t all, before;
  if (pthread_attr_init(&attributes) != 0) return -1;
  pthread_attr_setstacksize(&attributes, STACK);
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int status = pthread_create(&worker->id, &attributes, work, worker);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&attributes);
  return status;
}

TenonTeam *tenon_team_start(TenonEntry *entry, int threads) {
  void *memory = NULL;
  if (posix_memalign(&memory, CACHE_LINE, sizeof(TenonTeam)) != 0) return NULL;
  TenonTeam *team = memory;
  *team = (TenonTeam){.entry = entry, .threads = threads, .started = 1};
  team->workers = calloc((size_t)threads, sizeof *team->workers);
  for (; team->workers != NULL && team->started < threads; team->started++) {
    Worker *worker = &team->workers[team->started];
    worker->team = team;
    worker->index = team->started;
    if (start_worker(worker) != 0) break;
  }
  if (team->workers != NULL && team->started == threads) return team;
  tenon_team_stop(team);
  return NULL;
}

int tenon_team_run(TenonTeam *team, uint8_t *constantWeight, uint8_t *mutableWeight, uint8_t *activations) {
  team->regions[0] = constantWeight;
  team->regions[1] = mutableWeight;
  team->regions[2] = activations;
  open_gate(&team->job);
  return take_part(team, 0);
}

void tenon_team_watch(TenonTeam *team, void (*watch)(void *), void *context) {
  team->watch = watch;
  team->watched = context;
}

void tenon_team_stop(TenonTeam *team) {
  team->stopped = 1;
  open_gate(&team->job);
  for (int i = 1; i < team->started; i++) pthread_join(team->workers[i].id, NULL);
  free(team->workers);
  free(team);
}
