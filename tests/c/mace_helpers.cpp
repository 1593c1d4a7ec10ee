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
  MACE_CHECK(mace::ObfuscateSymbol("conv1/Weights_Z9:0") == "c44Ck/A0546IIrL3:w" && mace::ObfuscateSymbol("").empty());
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
  cpu_set_t before, now;
  MACE_CHECK(sched_getaffinity(0, sizeof before, &before) == 0);
  std::size_t first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  MACE_CHECK_SUCCESS(mace::SchedSetAffinity({first}));
  MACE_CHECK(sched_getaffinity(0, sizeof now, &now) == 0 && CPU_COUNT(&now) == 1 && CPU_ISSET(first, &now));
  MACE_CHECK(mace::SchedSetAffinity({1u << 20}) == mace::MaceStatus::MACE_INVALID_ARGS);
  MACE_CHECK(sched_setaffinity(0, sizeof before, &before) == 0);
}

// Settings for devices that are not there are stored.
static void absent_devices() {
  mace::MaceEngineCfgImpl config;
  MACE_CHECK(config.hexagon_performance() == mace::HEXAGON_SYSTEM_SETTINGS && config.apu_boost_hint() == 100);
  MACE_CHECK(config.SetHexagonPower(mace::HEXAGON_NN_CORNER_SVS, false, 7) == mace::MaceStatus::MACE_RUNTIME_ERROR);
  MACE_CHECK(config.SetQnnPerformance(mace::HEXAGON_BURST) == mace::MaceStatus::MACE_RUNTIME_ERROR);
  MACE_CHECK(config.SetAcceleratorCache(mace::ACCELERATOR_CACHE_STORE, "a", "b") == mace::MaceStatus::MACE_RUNTIME_ERROR);
  MACE_CHECK(config.SetAPUHints(3, mace::NEURON_PREFER_LOW_POWER) == mace::MaceStatus::MACE_RUNTIME_ERROR);
  MACE_CHECK(config.hexagon_corner() == mace::HEXAGON_NN_CORNER_SVS && !config.hexagon_dcvs_enable());
  MACE_CHECK(config.hexagon_latency() == 7 && config.hexagon_performance() == mace::HEXAGON_BURST);
  MACE_CHECK(config.accelerator_cache_policy() == mace::ACCELERATOR_CACHE_STORE);
  MACE_CHECK(config.accelerator_binary_file() == "a" && config.accelerator_storage_file() == "b");
  MACE_CHECK(config.apu_boost_hint() == 3 && config.apu_preference_hint() == mace::NEURON_PREFER_LOW_POWER);
}

static bool performs(mace::DeviceType device, float exec_time, float quantized, bool supported) {
  const mace::Capability capability = mace::GetCapability(device, 3.f);
  return capability.float32_performance.exec_time == exec_time && capability.quantized8_performance.exec_time == quantized &&
         capability.supported == supported;
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
  absent_devices();
  mace::MaceEngineCfgImpl config;
  MACE_CHECK(config.num_threads() == -1 && config.runtime_type("default_graph") == mace::RT_NONE);
  if (passed_on(mace::MaceStatus::MACE_UNSUPPORTED).information() != "Unsupported: why") return 2;
  LOG(INFO) << "informed";
  LOG(WARNING) << "warned " << 3;
  VLOG(2) << "in detail";
  return 0;
}

}  // namespace helpers
