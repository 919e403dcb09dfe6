// A sample of tools/layout_campaign, which in full is a command of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/command.h"
#include "tests/support/temp_folder.h"
#include "tools/machine/cuda_toolkit.h"

namespace partita {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(LayoutCampaign, BundlesOfRandomLayoutsAreProved) {
  TempFolder out;
  const std::string targets = find_assembler().ok() ? "cpu,cuda" : "cpu";
  const Outcome campaign =
      run_command(std::string(PARTITA_TEST_DATA) + "/../../tools/layout_campaign --draws 8 --seed 11 --target " +
                  targets + " --partita " + partita_program() + " --keep " + (out / "kept"));
  EXPECT_EQ(campaign.code, 0) << campaign.text;
  EXPECT_THAT(campaign.text, AllOf(HasSubstr(" proved"), HasSubstr(" gone on")));
}

}  // namespace
}  // namespace partita
