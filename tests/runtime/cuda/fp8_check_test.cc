// partita_fp8_check on the GPU that is this machine.
#ifdef PARTITA_STAND_INS
#include <gtest/gtest.h>

#include "nlohmann/json.hpp"
#include "tests/runtime/transports/rank_process.h"

namespace partita::runtime {
namespace {

const std::string kCheck = PARTITA_STAND_INS "/fp8_check_on_host";

TEST(Fp8Check, HoldsForProductsOfALayer) {
  const Ended ended = Process({kCheck, "60", "64x128x128"}, {{"LD_LIBRARY_PATH", PARTITA_STAND_INS}}).wait(60);
  EXPECT_EQ(ended.code, 0) << ended.output;
  const auto line = nlohmann::json::parse(ended.output, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(line.is_object()) << ended.output;
  EXPECT_EQ(line["case"], "forward 64x128x128");
  EXPECT_EQ(line["wrong_a"], 0);
  EXPECT_EQ(line["wrong_b"], 0);
  EXPECT_LT(line["error"], 0.005);
}

}  // namespace
}  // namespace partita::runtime
#endif
