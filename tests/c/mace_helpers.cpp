// The helpers of mace/port and mace/utils: mace_helpers FILE COPY
#include "mace/port/port.h"
#include "mace/utils/mace_engine_config.h"

namespace helpers {

static mace::MaceStatus passed_on(mace::MaceStatus::Code code) {
  MACE_RETURN_IF_ERROR(mace::MaceStatus(code, "why"));
  return mace::MaceStatus();
}

static void texts() {
  MACE_CHECK(mace::MakeString("a", 1, '-', 2.5) == "a1-2.5");
  MACE_CHECK(mace::MakeString(std::vector<int>{1, 2}) == "[1, 2]");
  MACE_CHECK(mace::Split("a,,b,", ',') == (std::vector<std::string>{"a", "", "b"}) && mace::Split("", ',').empty());
  MACE_CHECK(mace::ToUpper("aZ1") == "AZ1" && mace::ToLower("aZ1") == "az1");
  std::string text = " \tword \n";
  mace::StripString(&text);
  MACE_CHECK(text == "word");
  MACE_CHECK(mace::GetStrAfterPattern("Hardware : SDM845 rest", "Hardware :") == "SDM845");
  MACE_CHECK(mace::ObfuscateString(mace::ObfuscateString("secret")) == "secret" &&
             mace::ObfuscateString("secret") != "secret");
  const std::string table = mace::string_util::StringFormatter::Table("T", {"ab", "c"}, {{"1", "222"}});
  MACE_CHECK(table.find("| ab |   c |\n") != std::string::npos && table.find("|  1 | 222 |\n") != std::string::npos, table);
}

static void system_calls() {
  const unsigned char data[] = {'1', '2', '3', '4', '5', '6', '7', '8', '9', 0x26, 0x39, 0xf4, 0xcb};
  MACE_CHECK(mace::CalculateCRC32(data, 9) == 0xcbf43926u);
  MACE_CHECK(mace::CheckArrayCRC32(data, 13) && !mace::CheckArrayCRC32(data, 12) && !mace::CheckArrayCRC32(data, 3));
  const int64_t begin = mace::NowMicros();
  MACE_CHECK(begin > 0 && mace::NowMicros() >= begin);
  void *memory = nullptr;
  MACE_CHECK_SUCCESS(mace::Memalign(&memory, 64, 100));
  MACE_CHECK(reinterpret_cast<uintptr_t>(memory) % 64 == 0);
  free(memory);
  std::string value = "kept";
  MACE_CHECK_SUCCESS(mace::GetEnv("MACE_NOT_SET", &value));
  MACE_CHECK(value == "kept");
  MACE_CHECK(mace::AdviseFree(nullptr, 0) == mace::MaceStatus::MACE_UNSUPPORTED);
  MACE_CHECK_NOTNULL(mace::port::Env::Default()->NewMallocLogger(nullptr, "").get());
}

static bool performs(mace::DeviceType device, float exec_time, float quantized, bool supported) {
  const mace::Capability found = mace::GetCapability(device, 3.f);
  return found.float32_performance.exec_time == exec_time && found.quantized8_performance.exec_time == quantized &&
         found.supported == supported;
}

static void capabilities() {
  const mace::Capability cpu = mace::GetCapability(mace::CPU);
  MACE_CHECK(cpu.supported && cpu.float32_performance.exec_time > 0);
  MACE_CHECK(cpu.quantized8_performance.exec_time == .6f);
  MACE_CHECK(performs(mace::GPU, 1.f, -1.f, false) && performs(mace::HEXAGON, -1.f, 1.f, false));
  MACE_CHECK(performs(mace::APU, -1.f, -1.f, false));
}

static int client(int count, char **words) {
  if (count < 3) return 1;
  std::unique_ptr<mace::port::ReadOnlyMemoryRegion> content = mace::make_unique<mace::port::ReadOnlyBufferMemoryRegion>();
  MACE_CHECK_SUCCESS(mace::GetFileSystem()->NewReadOnlyMemoryRegionFromFile(words[1], &content));
  std::unique_ptr<mace::port::WritableFile> copy;
  MACE_CHECK_SUCCESS(mace::GetFileSystem()->NewWritableFile(words[2], &copy));
  MACE_CHECK_SUCCESS(copy->Append(static_cast<const char *>(content->data()), content->length()));
  MACE_CHECK_SUCCESS(copy->Close());
  texts();
  system_calls();
  capabilities();
  mace::MaceEngineCfgImpl config;
  MACE_CHECK(config.num_threads() == -1 && config.runtime_type("default_graph") == mace::RT_NONE);
  if (passed_on(mace::MaceStatus::MACE_UNSUPPORTED).information() != "Unsupported: why") return 2;
  LOG(INFO) << "informed";
  LOG(WARNING) << "warned " << 3;
  VLOG(2) << "in detail";
  return 0;
}

}  // namespace helpers
