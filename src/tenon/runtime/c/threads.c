/* Thread pool that runs the parts of every phase of a network.

   A phase has several parts for each thread.  A thread first runs its own, always the same ones, for cache locality: half
   of them as one, then half of the rest, to the last one.  Then, unless the phase ends soon, it takes parts of others that
   no thread has started, in the same way, so that processors of different speeds, or that other programs use, too, finish
   together (Polychronopoulos and Kuck, "Guided Self-Scheduling", 1987).  The thread that finishes the last part asks the
   network for the next phase and opens it.  Who finishes last is counted by groups of threads, and then the groups: many
   processors that change one number wait for each other.

   What is opened has a number, a turn, counted over all runs: every phase, as often as it comes, and the idle time after a
   run.  Waiting threads spin on the number for a few microseconds, the usual wait for evenly distributed work, and then
   sleep.

   Waking threads takes longer than short networks run, and the processor that a thread is woken on is slow at first.  Where
   workers sleep, the caller runs a network alone that takes less than WORTH_WAKING; the pool measures that.  In runs that
   follow each other within SOON the workers are woken once and stay awake.

   Linux may wake a thread on the processor of the one that wakes it, where both then share the time of a run although
   other processors are idle.  Where there is one for each thread, the workers are therefore kept off the caller's. */

#define _GNU_SOURCE
#include "threads.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#if !defined(SYS_futex) /* 32-bit machines whose times have 64 bits; no time is given here */
#define SYS_futex SYS_futex_time64
#endif
#endif

enum { CACHE_LINE = 64, SPINS = 2000, STACK = 1 << 20 };
enum { GROUP = 4 }; /* threads whose parts are counted together */
enum { EACH = 8 };  /* parts of a phase for each thread, a power of two */
enum { GRACE = 40 }; /* spins before a thread takes parts of others, most of which have been started by then */
enum { WORTH_WAKING = 200000, SOON = 20000 }; /* nanoseconds; SOON is about as long as threads spin */

#define OWN_LINE __attribute__((aligned(CACHE_LINE)))

typedef struct {
  uint32_t claimed OWN_LINE; /* how many of this thread's parts any thread has started, counted over all turns */
  TenonThreadPool *pool;
  pthread_t id;
  int index;
#if defined(__linux__)
  pid_t system_id; /* 0 until the thread runs */
#endif
} Worker;

typedef struct {
  uint32_t left OWN_LINE; /* unfinished parts of the open phase */
  uint32_t parts;         /* all parts */
} PartGroup;

struct TenonThreadPool {
  uint32_t turn OWN_LINE;  /* the number of the open turn */
  int phase;               /* the network's phase in it; -1: idle */
  uint32_t sleeping;       /* threads that sleep, or are about to */
  uint32_t left OWN_LINE;  /* groups with unfinished parts */
  uint32_t idle OWN_LINE;  /* the turn in which the last run ended */
  const uint8_t *constantWeight;
  uint8_t *mutableWeight, *activations;
  TenonPhase *run;
  TenonNext *next;
  TenonWatch *watch;
  void *watched;
  uint32_t stopped;
  int threads, started, groups;
  Worker *workers;
  PartGroup *group;
  uint64_t alone;    /* the duration of a run by the caller alone, in nanoseconds, or until there is one the last run's */
  uint64_t ended;    /* when the last run ended */
  uint32_t measured; /* whether there was a run by the caller alone */
#if defined(__linux__)
  cpu_set_t processors; /* of the thread that started the pool */
  int avoided;          /* the processor that workers are kept off, or -1 */
#endif
};

static void pause_processor(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__) || defined(__arm__)
  __asm__ volatile("yield");
#endif
}

static void sleep_in(TenonThreadPool *pool, uint32_t turn) {
#if defined(__linux__)
  syscall(SYS_futex, &pool->turn, FUTEX_WAIT_PRIVATE, turn, NULL, NULL, 0);
#else
  (void)pool, (void)turn;
  sched_yield();
#endif
}

/* Whether a turn ends within so many spins. */
static int ends_within(const TenonThreadPool *pool, uint32_t turn, int spins) {
  for (int i = 0; i < spins; i++) {
    if (__atomic_load_n(&pool->turn, __ATOMIC_ACQUIRE) != turn) return 1;
    pause_processor();
  }
  return 0;
}

static void wait_while(TenonThreadPool *pool, uint32_t turn) {
  if (ends_within(pool, turn, SPINS)) return;
  /* Sequentially consistent, as in open_turn: either open_turn sees the count, or this thread the new number.  Each
     thread takes itself off the count, because who opens a turn cannot tell those that it wakes from those that have
     finished its part already and are about to sleep. */
  __atomic_add_fetch(&pool->sleeping, 1, __ATOMIC_SEQ_CST);
  while (__atomic_load_n(&pool->turn, __ATOMIC_SEQ_CST) == turn) sleep_in(pool, turn);
  __atomic_sub_fetch(&pool->sleeping, 1, __ATOMIC_RELAXED);
}

/* A thread may read the phase of this turn before it sees the turn's number.  Then it has to see that all parts of the turn
   before were claimed, for which the phase is released, too; and that the phase is -1 does not mean yet that the run has
   ended. */
static void open_turn(TenonThreadPool *pool, uint32_t turn, int phase) {
  if (pool->watch != NULL) pool->watch(pool->watched, phase);
  __atomic_store_n(&pool->phase, phase, __ATOMIC_RELEASE);
  if (phase < 0) __atomic_store_n(&pool->idle, turn, __ATOMIC_RELAXED);
  __atomic_store_n(&pool->turn, turn, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&pool->sleeping, __ATOMIC_SEQ_CST) == 0) return;
#if defined(__linux__)
  syscall(SYS_futex, &pool->turn, FUTEX_WAKE_PRIVATE, 1 << 30, NULL, NULL, 0);
#endif
}

static int phase_after(const TenonThreadPool *pool, int phase) {
  return pool->next(pool->constantWeight, pool->mutableWeight, pool->activations, phase);
}

/* Count finished parts of a thread; returns whether one of them was the last.  Who finishes a group sets its number for the
   next turn, which is not open before all groups are finished. */
static int were_last(TenonThreadPool *pool, int owner, uint32_t finished) {
  PartGroup *group = &pool->group[owner / GROUP];
  if (__atomic_sub_fetch(&group->left, finished, __ATOMIC_ACQ_REL) != 0) return 0;
  __atomic_store_n(&group->left, group->parts, __ATOMIC_RELAXED);
  if (pool->groups == 1) return 1;
  if (__atomic_sub_fetch(&pool->left, 1, __ATOMIC_ACQ_REL) != 0) return 0;
  __atomic_store_n(&pool->left, (uint32_t)pool->groups, __ATOMIC_RELAXED);
  return 1;
}

/* Run the parts of a thread in a turn's phase that no thread has started.  Where the turn has ended, all are.  Parts that are
   claimed at once are run as one of fewer: how many they are divides the number of the first. */
static void run_parts(TenonThreadPool *pool, uint32_t turn, int phase, int owner, int thread) {
  uint32_t *claimed = &pool->workers[owner].claimed, finished = 0, next;
  while ((next = __atomic_load_n(claimed, __ATOMIC_RELAXED)) - turn * EACH < EACH) {
    const int first = (int)(next - turn * EACH), left = EACH - first, count = left > 1 ? left / 2 : 1;
    if (!__atomic_compare_exchange_n(claimed, &next, next + (uint32_t)count, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) continue;
    const int part = (owner * EACH + first) / count, parts = pool->threads * EACH / count;
    pool->run(pool->constantWeight, pool->mutableWeight, pool->activations, phase, part, parts, thread);
    finished += (uint32_t)count;
  }
  if (finished != 0 && were_last(pool, owner, finished)) open_turn(pool, turn + 1, phase_after(pool, phase));
}

static void take_parts(TenonThreadPool *pool, uint32_t turn, int phase, int index) {
  run_parts(pool, turn, phase, index, index);
  if (ends_within(pool, turn, GRACE)) return;
  for (int i = 1; i < pool->threads; i++) run_parts(pool, turn, phase, (index + i) % pool->threads, index);
}

static uint64_t nanoseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Whether to share the run that starts at `start`. */
static int worth_sharing(const TenonThreadPool *pool, uint64_t start) {
  if (__atomic_load_n(&pool->sleeping, __ATOMIC_RELAXED) == 0) return 1;
  return pool->ended == 0 || start - pool->ended < SOON || pool->alone >= WORTH_WAKING;
}

/* A run alone that was interrupted seems long.  It counts as twice the one before at most, and after a first one, where runs
   are shared from then on, the number falls slowly, so that it is measured again. */
static void learn(TenonThreadPool *pool, int shared, uint64_t start) {
  pool->ended = nanoseconds();
  const uint64_t taken = pool->ended - start;
  if (!pool->measured)
    pool->alone = taken;
  else if (shared)
    pool->alone -= pool->alone >> 10;
  else
    pool->alone = taken < 2 * pool->alone ? taken : 2 * pool->alone;
  if (!shared) pool->measured = 1;
}

#if defined(__linux__)
static void avoid_own_processor(TenonThreadPool *pool) {
  const int own = sched_getcpu();
  if (own < 0 || own == pool->avoided || CPU_COUNT(&pool->processors) < pool->threads) return;
  cpu_set_t others = pool->processors;
  CPU_CLR(own, &others);
  for (int i = 1; i < pool->started; i++) {
    const pid_t id = __atomic_load_n(&pool->workers[i].system_id, __ATOMIC_RELAXED);
    if (id == 0 || sched_setaffinity(id, sizeof(others), &others) != 0) return;
  }
  pool->avoided = own;
}
#endif

static void *work(void *argument) {
  Worker *self = argument;
  TenonThreadPool *pool = self->pool;
#if defined(__linux__)
  __atomic_store_n(&self->system_id, (pid_t)syscall(SYS_gettid), __ATOMIC_RELAXED);
#endif
  for (;;) {
    const uint32_t turn = __atomic_load_n(&pool->turn, __ATOMIC_ACQUIRE);
    const int phase = __atomic_load_n(&pool->phase, __ATOMIC_ACQUIRE);
    if (__atomic_load_n(&pool->stopped, __ATOMIC_RELAXED)) return NULL;
    if (phase >= 0) take_parts(pool, turn, phase, self->index);
    wait_while(pool, turn);
  }
}

/* Worker threads block all signals: they are handled by the program's own threads. */
static int start_worker(Worker *worker) {
  /* Compiled with the headers of another C library than it runs with, the type may be smaller than what the library
     clears: on AArch64 musl's has 56 bytes, glibc's 64. */
  union {
    pthread_attr_t attributes;
    char room[128];
  } own;
  sigset_t all, before;
  if (pthread_attr_init(&own.attributes) != 0) return -1;
  pthread_attr_setstacksize(&own.attributes, STACK);
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int status = pthread_create(&worker->id, &own.attributes, work, worker);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&own.attributes);
  return status;
}

TenonThreadPool *tenon_thread_pool_start(TenonPhase *run, TenonNext *next, int threads) {
  void *memory, *workers, *parts;
  const int groups = (threads + GROUP - 1) / GROUP;
  if (posix_memalign(&memory, CACHE_LINE, sizeof(TenonThreadPool)) != 0) return NULL;
  if (posix_memalign(&workers, CACHE_LINE, sizeof(Worker) * (size_t)threads) != 0) {
    free(memory);
    return NULL;
  }
  if (posix_memalign(&parts, CACHE_LINE, sizeof(PartGroup) * (size_t)groups) != 0) {
    free(workers);
    free(memory);
    return NULL;
  }
  TenonThreadPool *pool = memory;
  *pool = (TenonThreadPool){.phase = -1, .run = run, .next = next, .threads = threads, .groups = groups};
  pool->workers = workers;
  pool->group = parts;
  pool->left = (uint32_t)groups;
  for (int i = 0; i < groups; i++) {
    const uint32_t count = (uint32_t)(threads - i * GROUP < GROUP ? threads - i * GROUP : GROUP);
    pool->group[i] = (PartGroup){.left = count * EACH, .parts = count * EACH};
  }
#if defined(__linux__)
  pool->avoided = -1;
  if (sched_getaffinity(0, sizeof(pool->processors), &pool->processors) != 0) CPU_ZERO(&pool->processors);
#endif
  for (int i = 0; i < threads; i++) pool->workers[i] = (Worker){.pool = pool, .index = i};
  for (pool->started = 1; pool->started < threads; pool->started++)
    if (start_worker(&pool->workers[pool->started]) != 0) {
      tenon_thread_pool_stop(pool);
      return NULL;
    }
  return pool;
}

/* Returns the last phase: -1 - status. */
static int run_alone(TenonThreadPool *pool) {
  int phase = -1;
  do {
    phase = phase_after(pool, phase);
    if (pool->watch != NULL) pool->watch(pool->watched, phase);
    if (phase >= 0) pool->run(pool->constantWeight, pool->mutableWeight, pool->activations, phase, 0, 1, 0);
  } while (phase >= 0);
  return phase;
}

static int run_shared(TenonThreadPool *pool) {
  uint32_t turn = __atomic_load_n(&pool->turn, __ATOMIC_RELAXED);
  for (int i = 0; i < pool->threads; i++) __atomic_store_n(&pool->workers[i].claimed, (turn + 1) * EACH, __ATOMIC_RELAXED);
#if defined(__linux__)
  if (__atomic_load_n(&pool->sleeping, __ATOMIC_RELAXED) != 0) avoid_own_processor(pool);
#endif
  open_turn(pool, turn + 1, phase_after(pool, -1));
  while ((turn = __atomic_load_n(&pool->turn, __ATOMIC_ACQUIRE)) != __atomic_load_n(&pool->idle, __ATOMIC_RELAXED)) {
    const int phase = __atomic_load_n(&pool->phase, __ATOMIC_ACQUIRE);
    if (phase >= 0) take_parts(pool, turn, phase, 0);
    wait_while(pool, turn);
  }
  return __atomic_load_n(&pool->phase, __ATOMIC_ACQUIRE);
}

int tenon_thread_pool_run(TenonThreadPool *pool, const uint8_t *constantWeight, uint8_t *mutableWeight,
                          uint8_t *activations) {
  const uint64_t start = nanoseconds();
  const int shared = worth_sharing(pool, start);
  pool->constantWeight = constantWeight;
  pool->mutableWeight = mutableWeight;
  pool->activations = activations;
  const int last = (shared ? run_shared : run_alone)(pool);
  learn(pool, shared, start);
  return -1 - last;
}

void tenon_thread_pool_watch(TenonThreadPool *pool, TenonWatch *watch, void *context) {
  pool->watch = watch;
  pool->watched = context;
}

void tenon_thread_pool_stop(TenonThreadPool *pool) {
  pool->watch = NULL;
  __atomic_store_n(&pool->stopped, 1, __ATOMIC_RELAXED);
  open_turn(pool, pool->turn + 1, -1);
  for (int i = 1; i < pool->started; i++) pthread_join(pool->workers[i].id, NULL);
  free(pool->workers);
  free(pool->group);
  free(pool);
}
