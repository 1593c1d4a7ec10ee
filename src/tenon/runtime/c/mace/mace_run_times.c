/* The tables of mace_run --benchmark. */

#include "mace_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int mr_add_times(Statistics *statistics, const MaceCoreStep *steps, size_t count) {
  if (statistics->count != count) {
    free(statistics->sums);
    free(statistics->firsts);
    statistics->sums = calloc(count + 1, sizeof *statistics->sums);
    statistics->firsts = calloc(count + 1, sizeof *statistics->firsts);
    statistics->count = statistics->sums != NULL && statistics->firsts != NULL ? count : 0;
    statistics->rounds = 0;
    if (statistics->count != count) return 0;
  }
  for (size_t i = 0; i < count; i++) {
    const double time = (double)(steps[i].end_micros - steps[i].start_micros);
    statistics->sums[i] += time;
    if (statistics->rounds == 0) statistics->firsts[i] = time;
  }
  statistics->steps = steps;
  statistics->rounds++;
  return 1;
}

static double total_of(const Statistics *statistics) {
  double total = 0;
  for (size_t i = 0; i < statistics->count; i++) total += statistics->sums[i];
  return total > 0 ? total : 1;
}

static void print_line(void) {
  for (int i = 0; i < 96; i++) printf("-");
  printf("\n");
}

static void print_title(const char *title, const char *header) {
  print_line();
  printf("%*s\n", 48 + (int)strlen(title) / 2, title);
  print_line();
  printf("%s\n", header);
  print_line();
}

/* In the order of execution, or the `most` that took longest. */
static void print_steps(const Statistics *statistics, const char *title, int sorted, size_t most) {
  const double total = total_of(statistics), rounds = (double)statistics->rounds;
  double passed = 0, start = 0;
  char *printed = calloc(statistics->count + 1, 1);
  print_title(title, "|              Op Type |    Start |    First |  Avg(ms) |       % |    cdf% | name");
  for (size_t i = 0; printed != NULL && i < statistics->count && i < most; i++) {
    size_t at = i;
    if (sorted) {
      at = statistics->count;
      for (size_t j = 0; j < statistics->count; j++)
        if (!printed[j] && (at == statistics->count || statistics->sums[j] > statistics->sums[at])) at = j;
      printed[at] = 1;
      start = 0;
      for (size_t j = 0; j < at; j++) start += statistics->sums[j];
    }
    passed += statistics->sums[at];
    printf("| %20.20s | %8.3f | %8.3f | %8.3f | %7.3f | %7.3f | %s\n", statistics->steps[at].op, start / rounds / 1000,
           statistics->firsts[at] / 1000, statistics->sums[at] / rounds / 1000, 100 * statistics->sums[at] / total,
           100 * passed / total, statistics->steps[at].layer);
    start += statistics->sums[at];
  }
  print_line();
  free(printed);
}

static void print_types(const Statistics *statistics) {
  const double total = total_of(statistics), rounds = (double)statistics->rounds;
  print_title("Stat by Op Type", "|              Op Type |    Count |  Avg(ms) |       % | Called times");
  for (size_t i = 0; i < statistics->count; i++) {
    const char *op = statistics->steps[i].op;
    size_t count = 0, before = 0;
    double sum = 0;
    for (size_t j = 0; j < statistics->count; j++) {
      if (strcmp(statistics->steps[j].op, op) != 0) continue;
      before += j < i;
      count++;
      sum += statistics->sums[j];
    }
    if (before == 0)
      printf("| %20.20s | %8zu | %8.3f | %7.3f | %12zu\n", op, count, sum / rounds / 1000, 100 * sum / total, count);
  }
  print_line();
}

void mr_print_times(const Statistics *statistics) {
  if (statistics->count == 0 || statistics->rounds == 0) {
    mr_log('W', "there are no times of kernel calls: the bundle was compiled without --profile");
    return;
  }
  print_steps(statistics, "Sort by Run Order", 0, statistics->count);
  print_steps(statistics, "Sort by Computation Time", 1, 10);
  print_types(statistics);
  printf("%zu ops total.\n", statistics->count);
}
