/* Processor time of whisper.cpp: MODEL THREADS REPEATS, as JSON: seconds of the encoder for 30 s of sound and of a token
   behind 8 others, least of the repeats.  Link it with the libraries of a build of whisper.cpp. */

#include "whisper.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

static double seconds(clockid_t clock) {
  timespec time;
  clock_gettime(clock, &time);
  return double(time.tv_sec) + 1e-9 * double(time.tv_nsec);
}

int main(int count, char **words) {
  if (count != 4) return std::fprintf(stderr, "MODEL THREADS REPEATS\n"), 2;
  const int threads = std::atoi(words[2]), first = 8, tokens = 32;
  whisper_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
  whisper_context_params how = whisper_context_default_params();
  how.use_gpu = false;
  whisper_context *context = whisper_init_from_file_with_params(words[1], how);
  if (context == nullptr) return std::fprintf(stderr, "cannot open the model\n"), 1;
  std::vector<float> samples(480000);
  for (std::size_t i = 0; i < samples.size(); i++) samples[i] = i % 4000 > 640 ? 0.3f * std::sin(0.05f * float(i)) : 0;
  double encoder = 1e9, token = 1e9;
  for (int repeat = 0; repeat < std::atoi(words[3]); repeat++) {
    double start = seconds(CLOCK_PROCESS_CPUTIME_ID);
    whisper_pcm_to_mel(context, samples.data(), int(samples.size()), threads);
    whisper_encode(context, 0, threads);
    encoder = std::min(encoder, seconds(CLOCK_PROCESS_CPUTIME_ID) - start);
    whisper_token id = 7;
    for (int i = 0; i < first; i++) whisper_decode(context, &id, 1, i, threads);
    start = seconds(CLOCK_PROCESS_CPUTIME_ID);
    for (int i = first; i < first + tokens; i++) whisper_decode(context, &id, 1, i, threads);
    token = std::min(token, (seconds(CLOCK_PROCESS_CPUTIME_ID) - start) / tokens);
  }
  std::printf("{\"encoder\": %.4f, \"token\": %.6f}\n", encoder, token);
  return 0;
}
