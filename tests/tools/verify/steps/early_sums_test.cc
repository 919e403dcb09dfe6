// Sums over ranks of what micro-batches have added up, which start within the last one's backward part.
#include <gtest/gtest.h>

#include "tests/tools/support/verify_samples.h"
#include "tools/verify/steps/check_steps.h"

namespace partita {
namespace {

using Schedule = std::vector<runtime::ScheduleEntry>;

TEST(EarlySums, ReadOnceWhatAllMicroBatchesHaveAddedUp) {
  const TempFolder folder;
  const auto bundle = sample_bundle(made_model(folder), {.ranks = 2, .pins = {"micro_batch=2", "bucket_bytes=16384"}});
  ASSERT_TRUE(bundle.ok()) << bundle.status();
  const verifier::RankProgram& p = bundle->programs[0];
  const auto check = [&](Schedule schedule) {
    runtime::Program program = p.program;
    program.schedule = std::move(schedule);
    return verifier::check_steps(p.code, program, p.claims, p.nests).status();
  };
  const Schedule& whole = p.program.schedule;
  const auto kind = [&](size_t k) { return p.program.segments[static_cast<size_t>(whole[k].segment)].kind; };
  ASSERT_TRUE(check(whole).ok()) << check(whole);
  int sums = 0;
  for (size_t k = 1; k < whole.size(); ++k) {
    if (kind(k) != Segment::kReduce || kind(k - 1) != Segment::kBackward) continue;
    ++sums;
    const auto at = static_cast<Schedule::difference_type>(k);
    Schedule early = whole, before = whole, twice = whole, never = whole;
    std::swap(early[k - 1], early[k]);
    EXPECT_EQ(check(early).code(), absl::StatusCode::kAborted) << "before the last term is added: " << k;
    before.erase(before.begin() + at);
    auto part = before.begin();
    while (part->segment != whole[k - 1].segment || part->micro_batch != whole[k].micro_batch - 1) ++part;
    before.insert(part + 1, whole[k]);
    EXPECT_EQ(check(before).code(), absl::StatusCode::kAborted) << "behind the micro-batch before: " << k;
    twice.insert(twice.begin() + at, whole[k]);
    EXPECT_EQ(check(twice).code(), absl::StatusCode::kAborted) << k;
    never.erase(never.begin() + at);
    EXPECT_EQ(check(never).code(), absl::StatusCode::kAborted) << k;
  }
  EXPECT_GT(sums, 4);
  EXPECT_EQ(whole.back().micro_batch, 3);
}

}  // namespace
}  // namespace partita
