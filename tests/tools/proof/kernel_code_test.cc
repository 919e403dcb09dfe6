#include "tools/proof/kernel_code.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/tools/support/verify_samples.h"

namespace partita {
namespace {

using testing::HasSubstr;

class KernelCodeTest : public testing::TestWithParam<const char*> {
 protected:
  static verifier::Bundle sample() {
    auto bundle = sample_bundle(std::string(PARTITA_TEST_DATA) + "/gpt2",
                                {.ranks = 2, .pins = {"pipeline=2", "micro_batch=1"}, .gpu = GetParam()});
    EXPECT_TRUE(bundle.ok()) << bundle.status();
    return *std::move(bundle);
  }
};
INSTANTIATE_TEST_SUITE_P(OfACpuAndAGpu, KernelCodeTest, testing::Values("", "sm_90"));

TEST_P(KernelCodeTest, IsThatOfItsNests) {
  verifier::Bundle bundle = sample();
  auto code = compile_again(bundle);
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(code->compiled,
            static_cast<int64_t>(bundle.programs[0].nests.kernels.size() + bundle.programs[1].nests.kernels.size()));
  EXPECT_EQ(code->unknown, "");
  // One bit; one stage's code for another's.
  runtime::Program& program = bundle.programs[1].program;
  std::vector<uint8_t>& bytes = program.portable_kernels.empty() ? program.kernels : program.portable_kernels;
  bytes[bytes.size() / 2] ^= 1;
  EXPECT_EQ(compile_again(bundle).status().code(), absl::StatusCode::kAborted);
  bytes[bytes.size() / 2] ^= 1;
  std::swap(bundle.programs[0].program.kernels, bundle.programs[1].program.kernels);
  std::swap(bundle.programs[0].program.portable_kernels, bundle.programs[1].program.portable_kernels);
  EXPECT_THAT(std::string(compile_again(bundle).status().message()), HasSubstr("as compiled from their nests"));
}

TEST_P(KernelCodeTest, OfAnotherCompilerIsNotKnown) {
  verifier::Bundle bundle = sample();
  bundle.programs[0].nests.compiler = "partita 0.0.1, LLVM 3";
  auto code = compile_again(bundle);
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_THAT(code->unknown, HasSubstr("compiled by 'partita 0.0.1, LLVM 3', this is partita"));
  EXPECT_EQ(code->compiled, static_cast<int64_t>(bundle.programs[1].nests.kernels.size()));
}

}  // namespace
}  // namespace partita
