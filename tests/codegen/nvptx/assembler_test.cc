// What ptxas says of kernels, and what is asked of it then.
#include "codegen/nvptx/assembler.h"

#include <gtest/gtest.h>

namespace partita {
namespace {

constexpr const char* kReport =
    "ptxas info    : Compiling entry function 'k1' for 'sm_90'\n"
    "ptxas info    : Function properties for k1\n"
    "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
    "ptxas info    : Used 40 registers, used 1 barriers\n"
    "ptxas info    : Compiling entry function 'k12' for 'sm_90'\n"
    "ptxas info    : Function properties for k12\n"
    "    16 bytes stack frame, 16 bytes spill stores, 20 bytes spill loads\n"
    "ptxas info    : Used 72 registers, used 0 barriers, 16 bytes cumulative stack size\n";

std::string entry(const std::string& name, const std::string& limits) {
  return ".visible .entry " + name + "(\n\t.param .u64 " + name + "_param_0\n)\n" + limits + "{\n\tret;\n}\n";
}

TEST(AssemblerReport_OfTwoKernels, SaysWhatEachTakes) {
  const std::vector<DeviceKernel> kernels = parse_assembler_report(kReport);
  ASSERT_EQ(kernels.size(), 2u);
  EXPECT_EQ(kernels[0].name, "k1");
  EXPECT_EQ(kernels[0].registers, 40);
  EXPECT_EQ(kernels[0].spilled_bytes, 0);
  EXPECT_EQ(kernels[1].name, "k12");
  EXPECT_EQ(kernels[1].registers, 72);
  EXPECT_EQ(kernels[1].spilled_bytes, 36);
}

TEST(AssemblerInput_WhereAKernelSpilled, AsksForOneBlockOfThatKernel) {
  const std::string limit = ".maxntid 128, 1, 1\n", one = ".minnctapersm 1\n";
  const std::vector<DeviceKernel> kernels = parse_assembler_report(kReport);
  EXPECT_EQ(ask_for_one_block(entry("k1", limit) + entry("k12", limit), kernels),
            entry("k1", limit) + entry("k12", one + limit));
  EXPECT_EQ(ask_for_one_block(entry("k1", limit), {kernels[0]}), entry("k1", limit));
  const std::string four = limit + ".minnctapersm 4\n";
  EXPECT_EQ(ask_for_one_block(entry("k12", four) + entry("k1", four), kernels),
            entry("k12", one + limit) + entry("k1", four));
}

}  // namespace
}  // namespace partita
