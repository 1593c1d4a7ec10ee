// Messages on standard output, from the level that MACE_CPP_MIN_LOG_LEVEL names (I, W, E, F or in full; unset: W).

#ifndef MACE_PORT_LOGGER_H_
#define MACE_PORT_LOGGER_H_

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>

namespace mace {

enum LogLevel { INVALID_MIN = 0, INFO = 1, WARNING = 2, ERROR = 3, FATAL = 4, INVALID_MAX };

namespace port {

inline bool LogLevelPassThreashold(const LogLevel level, const LogLevel threshold) { return level >= threshold; }

// INVALID_MIN for what is no level.
inline LogLevel LogLevelFromStr(const char *text) {
  static const char *const names[] = {"INFO", "WARNING", "ERROR", "FATAL"};
  for (int level = 0; text != nullptr && level < 4; ++level) {
    std::size_t i = 0;
    while (text[i] != 0 && (text[i] & ~32) == names[level][i]) ++i;
    if (text[i] == 0 && (i == 1 || (i > 1 && names[level][i] == 0))) return static_cast<LogLevel>(level + 1);
  }
  return INVALID_MIN;
}

inline int VLogLevelFromStr(const char *text) { return text != nullptr ? std::atoi(text) : 0; }

// Read once.
inline LogLevel MinLogLevelFromEnv() {
  static const char *const text = std::getenv("MACE_CPP_MIN_LOG_LEVEL");
  static const LogLevel level = text != nullptr ? LogLevelFromStr(text) : WARNING;
  return level;
}

inline int MinVLogLevelFromEnv() {
  static const int level = VLogLevelFromStr(std::getenv("MACE_CPP_MIN_VLOG_LEVEL"));
  return level;
}

class LogWriter {
 public:
  LogWriter() = default;
  virtual ~LogWriter() = default;
  virtual void WriteLogMessage(const char *file, const int line, const LogLevel severity, const char *message) {
    const bool known = severity > INVALID_MIN && severity < INVALID_MAX;
    std::printf("%c %s:%d] %s\n", "IWEF"[known ? severity - 1 : 0], file, line, message);
    std::fflush(stdout);
  }
};

LogWriter *DefaultLogWriter();

// A stream whose text becomes a message at its end; FATAL ends the program.
class Logger : public std::ostringstream {
 public:
  Logger(const char *file, int line, LogLevel severity) : file_(file), line_(line), severity_(severity) {}
  ~Logger() override {
    if (LogLevelPassThreashold(severity_, MinLogLevelFromEnv()))
      DefaultLogWriter()->WriteLogMessage(file_, line_, severity_, str().c_str());
    if (severity_ == FATAL) std::abort();
  }

 private:
  const char *file_;
  int line_;
  LogLevel severity_;
};

inline LogWriter *DefaultLogWriter() {
  static LogWriter writer;
  return &writer;
}

}  // namespace port

inline bool ShouldGenerateLogMessage(LogLevel severity) {
  return port::LogLevelPassThreashold(severity, port::MinLogLevelFromEnv());
}

inline bool ShouldGenerateVLogMessage(int level) {
  return ShouldGenerateLogMessage(INFO) && level <= port::MinVLogLevelFromEnv();
}

}  // namespace mace

#endif  // MACE_PORT_LOGGER_H_
