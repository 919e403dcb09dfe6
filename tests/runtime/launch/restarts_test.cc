#include "runtime/launch/restarts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace partita::runtime {
namespace {

using ::testing::HasSubstr;

const absl::Status kLostRank = absl::UnavailableError("rank 2 was lost");

AttemptEnd at_step(std::optional<int64_t> step, bool killed = true) { return {kLostRank, step, killed}; }

TEST(Restarts, WaitLonger_WhileNoAttemptGetsFurther) {
  Restarts restarts({.most = 100, .per_hour = 100});
  EXPECT_EQ(restarts.next(at_step(10), 0).value(), 0);
  EXPECT_EQ(restarts.next(at_step(25), 1).value(), 0);
  for (double expected : {1, 2, 4, 8, 16, 32, 60, 60}) EXPECT_EQ(restarts.next(at_step({}), 2).value(), expected);
  EXPECT_EQ(restarts.next(at_step(30), 3).value(), 0);
  EXPECT_EQ(restarts.next(at_step(28), 4).value(), 1);  // it had been further
  EXPECT_EQ(restarts.next({kLostRank, std::nullopt, false, 700}, 5).value(), 0);
  AttemptEnd unseen = at_step({});
  unseen.saved = 40;
  EXPECT_EQ(restarts.next(unseen, 6).value(), 0);
  EXPECT_EQ(restarts.next(unseen, 7).value(), 1);
  EXPECT_EQ(restarts.count(), 15);
}

TEST(Restarts, End_WhereNoneIsLeft_OrAnotherIsNotWorthIt) {
  Restarts restarts({.most = 1});
  EXPECT_EQ(restarts.next({absl::InvalidArgumentError("a mistake")}, 0).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(restarts.next(at_step(1), 0).ok());
  EXPECT_EQ(restarts.next(at_step(2), 1).status(), kLostRank);
}

TEST(Restarts, AreLimitedWithinAnHour) {
  Restarts restarts({.most = 100, .per_hour = 3});
  int64_t step = 0;
  for (double now : {0, 1000, 2000}) EXPECT_TRUE(restarts.next(at_step(++step), now).ok());
  EXPECT_TRUE(restarts.next(at_step(++step), 3600).ok());  // the first is an hour ago
  const absl::Status ended = restarts.next(at_step(++step), 4599).status();
  EXPECT_EQ(ended.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(ended.message(), HasSubstr("rank 2 was lost; it was started again 3 times within an hour"));
}

TEST(Restarts, OneStepThatEndsThemAll_IsNoLostHost) {
  for (const bool killed : {false, true}) {
    Restarts restarts({.most = 100});
    EXPECT_TRUE(restarts.next(at_step(41, killed), 0).ok());
    EXPECT_TRUE(restarts.next(at_step({}, killed), 0).ok());  // in between something else
    EXPECT_TRUE(restarts.next(at_step(41, killed), 0).ok());
    EXPECT_TRUE(restarts.next(at_step(41, killed), 0).ok());
    const absl::Status ended = restarts.next(at_step(41, killed), 0).status();
    EXPECT_EQ(ended.code(), killed ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kInternal);
    EXPECT_THAT(ended.message(), HasSubstr("training step 42 has ended the run 3 times in a row"));
    restarts.forget_step();  // under another plan it may go well
    EXPECT_TRUE(restarts.next(at_step(41, killed), 0).ok());
  }
}

// Once in a while a copy that goes along with the steps holds them up a step later.
TEST(Restarts, OneOperationThatHangsThemAll_IsNoLostHost) {
  Restarts restarts({.most = 100});
  const auto hang = [](int64_t step, const std::string& where) {
    AttemptEnd end = at_step(step, false);
    end.hung = where;
    return end;
  };
  EXPECT_TRUE(restarts.next(hang(41, "send 'mirror'"), 0).ok());
  EXPECT_TRUE(restarts.next(hang(42, "send 'mirror'"), 0).ok());
  EXPECT_TRUE(restarts.next(hang(43, "all_reduce 'loss'"), 0).ok());  // another one
  EXPECT_TRUE(restarts.next(hang(44, "send 'mirror'"), 0).ok());
  EXPECT_TRUE(restarts.next(hang(90, "send 'mirror'"), 0).ok());  // got further
  EXPECT_TRUE(restarts.next(hang(91, "send 'mirror'"), 0).ok());
  EXPECT_FALSE(restarts.hangs_again(hang(95, "send 'mirror'")));
  EXPECT_TRUE(restarts.hangs_again(hang(92, "send 'mirror'")));
  const absl::Status ended = restarts.next(hang(92, "send 'mirror'"), 0).status();
  EXPECT_EQ(ended.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(ended.message(), HasSubstr("the run hung 3 times in a row in send 'mirror', and got no further than "
                                         "training step 93: it is that operation, and no host that was lost; rank 2"));
}

}  // namespace
}  // namespace partita::runtime
