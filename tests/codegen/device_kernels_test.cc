// That whatever a GPU's program can ask of its runtime is there.
#include <gtest/gtest.h>

#include "ir/op/op_def.h"
#include "runtime/program/library_kernels.h"

namespace partita {
namespace {

// A recipe that has sums in a fixed order is refused for GPUs (partitioner/layout/fixed_parts.h).
bool is_for_fixed_order(const OpDef& op) { return op.name == "accumulate_tree" || op.name == "block_squares"; }

TEST(DeviceKernels, EveryOpThatIsAKernelHasOne) {
  int kernels = 0;
  for (const OpDef* op : all_ops()) {
    if (!op->kernel || is_for_fixed_order(*op)) continue;
    EXPECT_TRUE(runtime::has_device_kernel(op->name)) << op->name;
    ++kernels;
  }
  EXPECT_EQ(kernels, std::size(runtime::kDeviceKernels));
}

}  // namespace
}  // namespace partita
