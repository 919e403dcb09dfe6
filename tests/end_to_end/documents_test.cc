// README.md and docs: their commands run and print what they show, their links and paths lead somewhere.
#include <gtest/gtest.h>

#include <string>

#include "tests/support/command.h"

namespace partita {
namespace {

TEST(Documents, SayWhatIs) {
  const Outcome o = run_command(std::string(PARTITA_TEST_DATA) + "/../../tools/check_documents --build " PARTITA_BUILD);
  EXPECT_EQ(o.code, 0) << o.text;
}

}  // namespace
}  // namespace partita
