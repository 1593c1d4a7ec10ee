/* Loops whose number of iterations a run computes.  It stands behind device_numbers.c. */

/* Whether a loop of `count` iterations makes another one after `finished` ones, which may be no more than `limit`. */
static int device_repeats(int64_t count, int finished, int limit, int *status) {
  if (*status || finished >= count) return 0;
  if (finished < limit) return 1;
  *status = device_failed(DEVICE_TOO_MANY, "for these inputs a loop would run more often than it was compiled for");
  return 0;
}
