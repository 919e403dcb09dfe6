// Programs for a device: what is refused before anything runs, and how.
#include "runtime/device/device.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/device/gpu_address.h"
#include "runtime/execute/executor.h"
#include "runtime/launch/plugin.h"
#include "runtime/program/sides.h"

namespace partita::runtime {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

Program program_for(const std::string& target) {
  Program program;
  program.target = target;
  program.segments.resize(1);
  return program;
}

bool has_gpu() {
  using Count = int(int*);
  void* driver = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (driver == nullptr) return false;
  int count = 0;
  auto start = reinterpret_cast<int (*)(unsigned)>(::dlsym(driver, "cuInit"));
  auto ask = reinterpret_cast<Count*>(::dlsym(driver, "cuDeviceGetCount"));
  return start != nullptr && ask != nullptr && start(0) == 0 && ask(&count) == 0 && count > 0;
}

TEST(Device_OfACpuProgram, IsNone) {
  EXPECT_FALSE(needs_device(program_for("cpu:x86-64-v3")));
  EXPECT_TRUE(needs_device(program_for("cuda:sm_90")));
}

// Asked where a GPU is, the driver has read its environment: what runs of several ranks need is there before.
TEST(GpuAddress, IsAskedForWhenTheEnvironmentIsReady) {
  ::unsetenv("CUDA_MODULE_LOADING");
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "4", 1);
  (void)gpu_address(0, /*several_ranks=*/false);
  EXPECT_EQ(::getenv("CUDA_MODULE_LOADING"), nullptr);
  (void)gpu_address(0, /*several_ranks=*/true);
  EXPECT_STREQ(::getenv("CUDA_MODULE_LOADING"), "EAGER");
  EXPECT_STREQ(::getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "4") << "what somebody has said stays";
  ::unsetenv("CUDA_MODULE_LOADING"), ::unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
}

TEST(Device_WithoutModule, SaysWhereItWasLookedFor) {
  auto found = load_plugin("libpartita_nothing.so", kDevicePluginSymbol, {{"/nowhere", "/tmp"}});
  EXPECT_EQ(found.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(found.status().message()), HasSubstr("libpartita_nothing.so is in none of /nowhere, /tmp"));
}

// Every function that the module calls is in the libraries of this machine's toolkit.
TEST(Device_Libraries, HaveWhatIsCalled) {
  auto check = load_plugin(kCudaModule, "partita_check_libraries", {});
  if (!check.ok()) GTEST_SKIP() << check.status().message();
  absl::Status status;
  reinterpret_cast<void (*)(absl::Status*)> (*check)(&status);
  if (status.message().find("cannot open shared object file") != std::string::npos) GTEST_SKIP() << status.message();
  EXPECT_TRUE(status.ok()) << status;
}

// The module loads without a GPU, and says what it needs and what it found; so does a runtime without the module.
TEST(Device_WithoutGpu, IsRefusedAtTheStart) {
  if (has_gpu()) GTEST_SKIP() << "there is a GPU here";
  auto loaded = LoadedProgram::load(program_for("cuda:sm_90"));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  auto executor = Executor::create(*loaded, nullptr, {});
  EXPECT_EQ(executor.status().code(), absl::StatusCode::kFailedPrecondition) << executor.status();
  const std::string message(executor.status().message());
  EXPECT_THAT(message, HasSubstr("the program is compiled for"));
  EXPECT_THAT(message, HasSubstr("cuda:sm_90"));
  if (find_plugin(kCudaModule, default_plugin_directories()).ok()) {
    EXPECT_THAT(message, AnyOf(HasSubstr("it needs an NVIDIA driver"), HasSubstr("it needs a driver for CUDA"),
                               HasSubstr("it needs a GPU")));
  } else {
    EXPECT_THAT(message, HasSubstr("has no CUDA module"));
  }
}

}  // namespace
}  // namespace partita::runtime
