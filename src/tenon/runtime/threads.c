/* Thread pool that runs the parts of every phase of a network.

   Each thread first runs its own part, always the same one, for cache locality.  Then it takes parts that no thread has
   started, so that a descheduled or sleeping thread delays a phase by at most one part.  The thread that finishes the
   last part opens the next phase.

   Phases are numbered consecutively over all runs; the number after the last phase of a run means idle.  Waiting threads
   spin on the number for a few microseconds, the usual wait for evenly distributed work, and then sleep. */

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

#define OWN_LINE __attribute__((aligned(CACHE_LINE)))

typedef struct {
  uint32_t claimed OWN_LINE; /* the last phase in which this thread's part was started, by any thread */
  TenonTeam *team;
  pthread_t id;
  int index;
} Member;

struct TenonTeam {
  uint32_t phase OWN_LINE; /* the open phase */
  uint32_t sleeping;       /* whether a thread sleeps until the next phase */
  uint32_t left OWN_LINE;  /* unfinished parts of the open phase */
  uint32_t first OWN_LINE; /* the number of this run's first phase */
  uint8_t *regions[3];
  TenonPhase *run;
  void (*watch)(void *);
  void *watched;
  uint32_t phases, stopped;
  int threads, started;
  Member *members;
};

static void pause_processor(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__) || defined(__arm__)
  __asm__ volatile("yield");
#endif
}

static void sleep_in(TenonTeam *team, uint32_t phase) {
#if defined(__linux__)
  syscall(SYS_futex, &team->phase, FUTEX_WAIT_PRIVATE, phase, NULL, NULL, 0);
#else
  (void)team, (void)phase;
  sched_yield();
#endif
}

static void wait_while(TenonTeam *team, uint32_t phase) {
  for (int i = 0; i < SPINS; i++) {
    if (__atomic_load_n(&team->phase, __ATOMIC_ACQUIRE) != phase) return;
    pause_processor();
  }
  for (;;) {
    /* Sequentially consistent, as in open_phase: either open_phase sees the flag, or this thread the new number. */
    __atomic_store_n(&team->sleeping, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&team->phase, __ATOMIC_SEQ_CST) != phase) return;
    sleep_in(team, phase);
  }
}

static void open_phase(TenonTeam *team, uint32_t phase) {
  if (team->watch != NULL) team->watch(team->watched);
  __atomic_store_n(&team->left, (uint32_t)team->threads, __ATOMIC_RELAXED);
  __atomic_store_n(&team->phase, phase, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&team->sleeping, __ATOMIC_SEQ_CST) == 0) return;
  __atomic_store_n(&team->sleeping, 0, __ATOMIC_SEQ_CST);
#if defined(__linux__)
  syscall(SYS_futex, &team->phase, FUTEX_WAKE_PRIVATE, 1 << 30, NULL, NULL, 0);
#endif
}

/* Run the thread's own part of the open phase, then parts that no thread has started. */
static void take_part(TenonTeam *team, uint32_t phase, uint32_t first, int index) {
  for (int i = 0; i < team->threads; i++) {
    const int part = (index + i) % team->threads;
    uint32_t before = phase - 1;
    if (!__atomic_compare_exchange_n(&team->members[part].claimed, &before, phase, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
      continue;
    uint8_t **r = team->regions;
    team->run(r[0], r[1], r[2], (int)(phase - first), part, team->threads);
    if (__atomic_sub_fetch(&team->left, 1, __ATOMIC_ACQ_REL) == 0) open_phase(team, phase + 1);
  }
}

static void *work(void *argument) {
  const Member *self = argument;
  TenonTeam *team = self->team;
  for (;;) {
    const uint32_t phase = __atomic_load_n(&team->phase, __ATOMIC_ACQUIRE);
    const uint32_t first = __atomic_load_n(&team->first, __ATOMIC_RELAXED);
    if (__atomic_load_n(&team->stopped, __ATOMIC_RELAXED)) return NULL;
    if (phase - first < team->phases) take_part(team, phase, first, self->index);
    wait_while(team, phase);
  }
}

/* Worker threads block all signals: they are handled by the program's own threads. */
static int start_member(Member *member) {
  pthread_attr_t attributes;
  sigset_t all, before;
  if (pthread_attr_init(&attributes) != 0) return -1;
  pthread_attr_setstacksize(&attributes, STACK);
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int status = pthread_create(&member->id, &attributes, work, member);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&attributes);
  return status;
}

TenonTeam *tenon_team_start(TenonPhase *run, int phases, int threads) {
  void *memory, *members;
  if (posix_memalign(&memory, CACHE_LINE, sizeof(TenonTeam)) != 0) return NULL;
  if (posix_memalign(&members, CACHE_LINE, sizeof(Member) * (size_t)threads) != 0) {
    free(memory);
    return NULL;
  }
  TenonTeam *team = memory;
  /* The state after a run: all phases are finished. */
  *team = (TenonTeam){.phase = (uint32_t)phases, .run = run, .phases = (uint32_t)phases, .threads = threads};
  team->members = members;
  for (int i = 0; i < threads; i++) team->members[i] = (Member){.team = team, .index = i};
  for (team->started = 1; team->started < threads; team->started++)
    if (start_member(&team->members[team->started]) != 0) {
      tenon_team_stop(team);
      return NULL;
    }
  return team;
}

void tenon_team_run(TenonTeam *team, uint8_t *constantWeight, uint8_t *mutableWeight, uint8_t *activations) {
  team->regions[0] = constantWeight;
  team->regions[1] = mutableWeight;
  team->regions[2] = activations;
  uint32_t phase = __atomic_load_n(&team->phase, __ATOMIC_RELAXED);
  const uint32_t first = phase + 1;
  for (int i = 0; i < team->threads; i++) __atomic_store_n(&team->members[i].claimed, phase, __ATOMIC_RELAXED);
  __atomic_store_n(&team->first, first, __ATOMIC_RELAXED);
  open_phase(team, first);
  while ((phase = __atomic_load_n(&team->phase, __ATOMIC_ACQUIRE)) - first < team->phases) {
    take_part(team, phase, first, 0);
    wait_while(team, phase);
  }
}

void tenon_team_watch(TenonTeam *team, void (*watch)(void *), void *context) {
  team->watch = watch;
  team->watched = context;
}

void tenon_team_stop(TenonTeam *team) {
  team->watch = NULL;
  __atomic_store_n(&team->stopped, 1, __ATOMIC_RELAXED);
  open_phase(team, team->phase + 1);
  for (int i = 1; i < team->started; i++) pthread_join(team->members[i].id, NULL);
  free(team->members);
  free(team);
}
