// Files in memory, and files to write.

#ifndef MACE_PORT_FILE_SYSTEM_H_
#define MACE_PORT_FILE_SYSTEM_H_

#include <cerrno>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "mace/public/mace.h"
#include "mace/utils/macros.h"

namespace mace {
namespace port {

class ReadOnlyMemoryRegion {
 public:
  ReadOnlyMemoryRegion() = default;
  virtual ~ReadOnlyMemoryRegion() = default;
  virtual const void *data() const = 0;
  virtual uint64_t length() const = 0;

 private:
  MACE_DISABLE_COPY_AND_ASSIGN(ReadOnlyMemoryRegion);
};

class ReadOnlyBufferMemoryRegion : public ReadOnlyMemoryRegion {
 public:
  ReadOnlyBufferMemoryRegion() : data_(nullptr), length_(0) {}
  ReadOnlyBufferMemoryRegion(const void *data, uint64_t length) : data_(data), length_(length) {}
  const void *data() const override { return data_; }
  uint64_t length() const override { return length_; }

 private:
  const void *data_;
  uint64_t length_;
};

class WritableFile {
 public:
  WritableFile() = default;
  virtual ~WritableFile() = default;
  virtual MaceStatus Append(const char *data, size_t length) = 0;
  virtual MaceStatus Close() = 0;
  virtual MaceStatus Flush() = 0;

 private:
  MACE_DISABLE_COPY_AND_ASSIGN(WritableFile);
};

class FileSystem {
 public:
  FileSystem() = default;
  virtual ~FileSystem() = default;
  virtual MaceStatus NewReadOnlyMemoryRegionFromFile(const char *name,
                                                     std::unique_ptr<ReadOnlyMemoryRegion> *result) = 0;
  virtual MaceStatus NewWritableFile(const char *name, std::unique_ptr<WritableFile> *result) = 0;
};

namespace file_internal {

struct Closer {
  void operator()(std::FILE *file) const { std::fclose(file); }
};
typedef std::unique_ptr<std::FILE, Closer> File;

class Content : public ReadOnlyMemoryRegion {
 public:
  explicit Content(std::vector<unsigned char> bytes) : bytes_(std::move(bytes)) {}
  const void *data() const override { return bytes_.data(); }
  uint64_t length() const override { return bytes_.size(); }

 private:
  std::vector<unsigned char> bytes_;
};

class Written : public WritableFile {
 public:
  explicit Written(File file) : file_(std::move(file)) {}
  MaceStatus Append(const char *data, size_t length) override {
    return file_ && std::fwrite(data, 1, length, file_.get()) == length ? MaceStatus() : Failed();
  }
  MaceStatus Close() override {
    return !file_ || std::fclose(file_.release()) == 0 ? MaceStatus() : Failed();
  }
  MaceStatus Flush() override { return file_ && std::fflush(file_.get()) == 0 ? MaceStatus() : Failed(); }

 private:
  static MaceStatus Failed() { return MaceStatus(MaceStatus::MACE_RUNTIME_ERROR, "the file cannot be written"); }
  File file_;
};

class Disk : public FileSystem {
 public:
  MaceStatus NewReadOnlyMemoryRegionFromFile(const char *name, std::unique_ptr<ReadOnlyMemoryRegion> *result) override {
    if (name == nullptr || result == nullptr) return MaceStatus(MaceStatus::MACE_INVALID_ARGS, "an argument is NULL");
    const File file(std::fopen(name, "rb"));
    if (!file) return MaceStatus(MaceStatus::MACE_RUNTIME_ERROR, std::string(name) + " cannot be opened");
    std::vector<unsigned char> bytes;
    unsigned char part[4096];
    for (size_t count; (count = std::fread(part, 1, sizeof part, file.get())) > 0;)
      bytes.insert(bytes.end(), part, part + count);
    if (std::ferror(file.get())) return MaceStatus(MaceStatus::MACE_RUNTIME_ERROR, std::string(name) + " cannot be read");
    result->reset(new Content(std::move(bytes)));
    return MaceStatus();
  }
  MaceStatus NewWritableFile(const char *name, std::unique_ptr<WritableFile> *result) override {
    if (name == nullptr || result == nullptr) return MaceStatus(MaceStatus::MACE_INVALID_ARGS, "an argument is NULL");
    File file(std::fopen(name, "wb"));
    if (!file) return MaceStatus(MaceStatus::MACE_RUNTIME_ERROR, std::string(name) + " cannot be created");
    result->reset(new Written(std::move(file)));
    return MaceStatus();
  }
};

}  // namespace file_internal
}  // namespace port
}  // namespace mace

#endif  // MACE_PORT_FILE_SYSTEM_H_
