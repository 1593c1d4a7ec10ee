// LOG(INFO) << ..., checks, and the macros with which MACE's programs pass statuses on.

#ifndef MACE_UTILS_LOGGING_H_
#define MACE_UTILS_LOGGING_H_

#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "mace/port/env.h"
#include "mace/port/logger.h"
#include "mace/utils/macros.h"
#include "mace/utils/memory.h"
#include "mace/utils/string_util.h"

#define LOG(severity) ::mace::port::Logger(__FILE__, __LINE__, mace::severity)
#define LOG_PTR(severity) ::mace::make_unique<mace::port::Logger>(__FILE__, __LINE__, mace::severity)

#define VLOG_IS_ON(level) (mace::ShouldGenerateVLogMessage(level))
#define VLOG(level) \
  if (VLOG_IS_ON(level)) LOG(INFO)

#define MACE_CHECK(condition, ...) \
  if (!(condition)) LOG(FATAL) << "Check failed: " #condition " " << mace::MakeString(__VA_ARGS__)

#ifndef NDEBUG
#define MACE_ASSERT(condition, ...) \
  if (!(condition)) LOG(FATAL) << "Assert failed: " #condition " " << mace::MakeString(__VA_ARGS__)
#else
#define MACE_ASSERT(condition, ...) ((void)0)
#endif

#define MACE_CHECK_NOTNULL(value) \
  ::mace::logging_internal::CheckNotNull(__FILE__, __LINE__, "'" #value "' Must not be NULL", (value))

#define MACE_NOT_IMPLEMENTED MACE_CHECK(false, "not implemented")

#define MACE_CHECK_SUCCESS(call)                                                                   \
  {                                                                                                \
    mace::MaceStatus status_of_call = (call);                                                      \
    if (status_of_call != mace::MaceStatus::MACE_SUCCESS)                                          \
      LOG(FATAL) << #call << " failed with error: " << status_of_call.information();               \
  }

#define MACE_RETURN_IF_ERROR(call)                                                                 \
  {                                                                                                \
    mace::MaceStatus status_of_call = (call);                                                      \
    if (status_of_call != mace::MaceStatus::MACE_SUCCESS) {                                        \
      VLOG(0) << #call << " failed with error: " << status_of_call.information();                  \
      return status_of_call;                                                                       \
    }                                                                                              \
  }

#define MACE_LATENCY_LOGGER(level, ...)                                                            \
  mace::logging_internal::LatencyLogger latency_logger(level, VLOG_IS_ON(level) ? mace::MakeString(__VA_ARGS__) : "")

#define MACE_MEMORY_LOGGING_GUARD()

namespace mace {
namespace logging_internal {

template <typename T>
T &&CheckNotNull(const char *file, int line, const char *text, T &&value) {
  if (value == nullptr) ::mace::port::Logger(file, line, FATAL) << text;
  return std::forward<T>(value);
}

class LatencyLogger {
 public:
  LatencyLogger(int level, const std::string &message) : level_(level), message_(message), start_(NowMicros()) {
    VLOG(level_) << message_ << " started";
  }
  ~LatencyLogger() { VLOG(level_) << message_ << " latency: " << NowMicros() - start_ << " us"; }

 private:
  const int level_;
  const std::string message_;
  const int64_t start_;

  MACE_DISABLE_COPY_AND_ASSIGN(LatencyLogger);
};

}  // namespace logging_internal
}  // namespace mace

#endif  // MACE_UTILS_LOGGING_H_
