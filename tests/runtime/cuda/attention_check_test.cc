// partita_attention_check on the GPU that is this machine, whose cuDNN has no graph API.
#ifdef PARTITA_STAND_INS
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nlohmann/json.hpp"
#include "tests/runtime/transports/rank_process.h"

namespace partita::runtime {
namespace {

const std::string kCheck = PARTITA_STAND_INS "/attention_check_on_host";

TEST(AttentionCheck, OwnKernelsHold_AndCudnnSaysWhyItCannot) {
  const Ended ended = Process({kCheck, "60", "17x32"}, {{"LD_LIBRARY_PATH", PARTITA_STAND_INS}}).wait(60);
  EXPECT_EQ(ended.code, 1);
  const auto line = nlohmann::json::parse(ended.output, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(line.is_object()) << ended.output;
  EXPECT_EQ(line["case"], "bf16 1x2(1)x17x32 causal");
  EXPECT_EQ(line["holds"], false);
  EXPECT_EQ(line["own"]["same_bits"], true);
  for (const char* result : {"out", "lse", "dq", "dk", "dv"}) EXPECT_LT(line["own"]["error"][result], 0.01) << result;
  EXPECT_THAT(line["cudnn"]["error"].get<std::string>(), testing::HasSubstr("q [1, 2, 17, 32], k [1, 1, 17, 32]"));
}

TEST(AttentionCheck, WithoutSuchACase_OrWithoutTime_Fails) {
  EXPECT_EQ(Process({kCheck, "60", "no such case"}, {}).wait(60).code, 2);
  EXPECT_EQ(Process({kCheck, "never"}, {}).wait(60).code, 2);
}

}  // namespace
}  // namespace partita::runtime
#endif
