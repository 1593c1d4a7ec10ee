// The system's functions for programs.

#ifndef MACE_PORT_ENV_H_
#define MACE_PORT_ENV_H_

#include <sys/stat.h>
#if defined(__linux__)
#include <sched.h>
#endif

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <sstream>
#include <string>
#include <vector>
#ifdef _WIN32
#include <malloc.h>
#endif

#include "mace/port/file_system.h"
#include "mace/port/logger.h"
#include "mace/public/mace.h"

#define CRC32SIZE 4

namespace mace {
namespace port {

class MallocLogger {
 public:
  MallocLogger() = default;
  virtual ~MallocLogger() = default;
};

class Env {
 public:
  Env() = default;
  virtual ~Env() = default;

  virtual int64_t NowMicros() { return mace_core_micros(); }

  // The checksum of zlib and PNG.
  virtual uint32_t CalculateCRC32(const unsigned char *data, uint64_t length) {
    uint32_t crc = 0xFFFFFFFFu;
    for (uint64_t i = 0; i < length; ++i) {
      crc ^= data[i];
      for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0u);
    }
    return ~crc;
  }

  // Whether the last four bytes are the CRC of those before.
  virtual bool CheckArrayCRC32(const unsigned char *data, uint64_t length) {
    if (data == nullptr || length < CRC32SIZE) return false;
    const uint32_t crc = CalculateCRC32(data, length - CRC32SIZE);
    return std::memcmp(&crc, data + length - CRC32SIZE, CRC32SIZE) == 0;
  }

  virtual MaceStatus AdviseFree(void *, size_t) { return MaceStatus::MACE_UNSUPPORTED; }
  virtual MaceStatus GetCPUMaxFreq(std::vector<float> *) { return MaceStatus::MACE_UNSUPPORTED; }
  // Pins the calling thread to these processors; MACE_UNSUPPORTED where the system cannot.
  virtual MaceStatus SchedSetAffinity(const std::vector<size_t> &processors) {
#if defined(__linux__)
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const size_t processor : processors) {
      if (processor >= CPU_SETSIZE) return MaceStatus(MaceStatus::MACE_INVALID_ARGS, "there is no such processor");
      CPU_SET(processor, &set);
    }
    if (sched_setaffinity(0, sizeof set, &set) == 0) return MaceStatus();
    return MaceStatus(MaceStatus::MACE_INVALID_ARGS, std::string("SchedSetAffinity failed: ") + std::strerror(errno));
#else
    static_cast<void>(processors);
    return MaceStatus::MACE_UNSUPPORTED;
#endif
  }
  virtual FileSystem *GetFileSystem() {
    static file_internal::Disk disk;
    return &disk;
  }
  virtual LogWriter *GetLogWriter() { return DefaultLogWriter(); }
  virtual std::vector<std::string> GetBackTraceUnsafe(int) { return std::vector<std::string>(); }
  virtual std::unique_ptr<MallocLogger> NewMallocLogger(std::ostringstream *, const std::string &) {
    return std::unique_ptr<MallocLogger>(new MallocLogger());
  }

  static Env *Default() {
    static Env env;
    return &env;
  }
};

}  // namespace port

inline int64_t NowMicros() { return port::Env::Default()->NowMicros(); }

inline uint32_t CalculateCRC32(const unsigned char *data, uint64_t length) {
  return port::Env::Default()->CalculateCRC32(data, length);
}

inline bool CheckArrayCRC32(const unsigned char *data, uint64_t length) {
  return port::Env::Default()->CheckArrayCRC32(data, length);
}

inline MaceStatus AdviseFree(void *address, size_t length) {
  return port::Env::Default()->AdviseFree(address, length);
}

inline MaceStatus GetCPUMaxFreq(std::vector<float> *frequencies) {
  return port::Env::Default()->GetCPUMaxFreq(frequencies);
}

inline MaceStatus SchedSetAffinity(const std::vector<size_t> &processors) {
  return port::Env::Default()->SchedSetAffinity(processors);
}

inline port::FileSystem *GetFileSystem() { return port::Env::Default()->GetFileSystem(); }

// To be released by free(), on Windows by _aligned_free().
inline MaceStatus Memalign(void **memory, size_t alignment, size_t size) {
#ifdef _WIN32
  *memory = _aligned_malloc(size, alignment);
#else
  if (posix_memalign(memory, alignment, size) != 0) *memory = nullptr;
#endif
  return *memory != nullptr ? MaceStatus::MACE_SUCCESS : MaceStatus::MACE_OUT_OF_RESOURCES;
}

// The value stays as it is where the variable is not set.
inline MaceStatus GetEnv(const char *name, std::string *value) {
  const char *found = std::getenv(name);
  if (found != nullptr) *value = found;
  return MaceStatus();
}

}  // namespace mace

#endif  // MACE_PORT_ENV_H_
