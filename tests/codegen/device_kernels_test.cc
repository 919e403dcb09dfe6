// That whatever a GPU's program can ask of its runtime is there.
#include <gtest/gtest.h>

#include "ir/op/op_def.h"
#include "runtime/program/library_kernels.h"

namespace partita {
namespace {

TEST(DeviceKernels, EveryOpThatIsAKernelHasOne) {
  int kernels = 0;
  for (const OpDef* op : all_ops()) {
    if (!op->kernel) continue;
    EXPECT_TRUE(runtime::has_device_kernel(op->name)) << op->name;
    ++kernels;
  }
  EXPECT_EQ(kernels + 2, std::size(runtime::kDeviceKernels));  // and code generation's quantize_fp8, multiply_fp8
}

}  // namespace
}  // namespace partita
