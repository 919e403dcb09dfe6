#include "runtime/record/diagnosis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "runtime/record/flight_recorder.h"
#include "tests/support/temp_folder.h"

namespace partita::runtime {
namespace {

using testing::HasSubstr;

constexpr int64_t kSecond = 1'000'000'000;

// Of another host, so that no process here is looked at.
FlightView rank(int number, FlightEnd end, int64_t time) {
  FlightView v;
  v.rank = number, v.size = 3, v.host = "far";
  v.phase = Phase::kStep;
  v.heartbeat = v.end_time = time;
  v.end = end;
  return v;
}

void waits(FlightView& v, std::vector<int> peers) {
  FlightEvent e;
  e.kind = FlightEventKind::kWaits, e.ticket = 7, e.peers = static_cast<uint8_t>(peers.size());
  std::copy(peers.begin(), peers.end(), e.peer);
  v.waiting = 7;
  v.events.push_back(e);
}

// A rank's own clock begins with its host, and is never set; folders may have records of several hosts.
TEST(FlightRecords, OfAFolder_HaveTimesSince1970) {
  const TempFolder folder;
  const auto recorder = FlightRecorder::create(flight_file(folder.path(), 0), 0, 1);
  ASSERT_TRUE(recorder.ok()) << recorder.status();
  (*recorder)->enter(Phase::kStep, 3);
  (*recorder)->idle();
  const auto views = read_flight_records(folder.path());
  ASSERT_TRUE(views.ok()) << views.status();
  for (const int64_t time : {(*views)[0].started, (*views)[0].phase_since, (*views)[0].events.back().time})
    EXPECT_LT(std::abs(wall_clock() - time), 60 * kSecond) << time;
}

// What an earlier start left of a rank that the last one does not have; and a host whose clock is a year late.
TEST(FlightRecords, OfOneStart_HaveTheClockOfItsFirstRank) {
  const TempFolder folder;
  for (const auto& [number, start] : {std::pair{0, 8}, {1, 8}, {2, 7}}) {
    const auto recorder = FlightRecorder::create(flight_file(folder.path(), number), number, 2);
    ASSERT_TRUE(recorder.ok()) << recorder.status();
    (*recorder)->meet(static_cast<uint64_t>(start));
    (*recorder)->beat();
    const_cast<FlightHeader&>((*recorder)->header()).wall -= number * 365 * 86400 * kSecond;
  }
  const auto views = read_flight_records(folder.path());
  ASSERT_TRUE(views.ok()) << views.status();
  ASSERT_EQ(views->size(), 2U);
  EXPECT_LT(std::abs((*views)[0].heartbeat - (*views)[1].heartbeat), 60 * kSecond);
}

TEST(Diagnose, OfTwoFailures_TheEarlierIsTheCause) {
  std::vector<FlightView> views = {rank(0, FlightEnd::kFollowed, 12 * kSecond),
                                   rank(1, FlightEnd::kFailed, 13 * kSecond),
                                   rank(2, FlightEnd::kFailed, 11 * kSecond)};
  views[2].message = "disk full";
  views[2].end_code = 3;
  const Diagnosis d = diagnose(views, {}, 20 * kSecond);
  EXPECT_EQ(d.root_text(), "rank 2 on host 'far' failed with code 3: disk full; training step 1");
  EXPECT_THAT(d.other_text(d.others[0]), HasSubstr("rank 0: followed: lost rank 2"));
  EXPECT_THAT(d.other_text(d.others[1]), HasSubstr("rank 1: followed: lost rank 2; it failed with code"));
}

TEST(Diagnose, WithoutAWord_IsKilledOrSilent_ByItsHeartbeat) {
  std::vector<FlightView> views = {rank(0, FlightEnd::kFollowed, 50 * kSecond),
                                   rank(1, FlightEnd::kRunning, 49 * kSecond)};
  EXPECT_THAT(diagnose(views, {{{.rank = 1, .signal = 9}}}, 60 * kSecond).root_text(),
              HasSubstr("was killed by signal 9"));
  views[1].heartbeat = 20 * kSecond;
  EXPECT_THAT(diagnose(views, {{{.rank = 1, .signal = 9, .by_supervisor = true}}}, 60 * kSecond).root_text(),
              HasSubstr("silent for 30 s before the others ended"));
}

// Of one host's records, whose ranks wait for each other and for those of another host.
TEST(Diagnose, WhereTheAwaitedIsOfAnotherHost_ThatOneIsNamed) {
  std::vector<FlightView> views = {rank(2, FlightEnd::kFollowed, 50 * kSecond),
                                   rank(3, FlightEnd::kFollowed, 50 * kSecond)};
  waits(views[0], {3});
  waits(views[1], {1});
  EXPECT_EQ(diagnose(views, {}, 60 * kSecond).root_text(),
            "rank 1 did not come, of which there is no record here: the others waited for it");
}

TEST(Diagnose, WhereNobodyDied_TheAwaitedWhoWaitsForNobodyHangs) {
  std::vector<FlightView> views = {rank(0, FlightEnd::kFollowed, 50 * kSecond),
                                   rank(1, FlightEnd::kFollowed, 50 * kSecond),
                                   rank(2, FlightEnd::kFollowed, 50 * kSecond)};
  waits(views[0], {1});
  waits(views[1], {2});
  const Diagnosis d = diagnose(views, {}, 60 * kSecond);
  ASSERT_TRUE(d.root);
  EXPECT_EQ(d.root->rank, 2);
  EXPECT_THAT(d.other_text(d.others[0]), HasSubstr("waiting for rank 1"));
}

// Of two hosts with two ranks each, the second of which is lost with a record that ends in the middle of it.
std::vector<FlightView> of_two_hosts() {
  std::vector<FlightView> views;
  for (int r = 0; r < 4; ++r) {
    views.push_back(rank(r, FlightEnd::kFollowed, 50 * kSecond));
    views.back().host = r < 2 ? "near" : "far";
  }
  return views;
}

TEST(Diagnose, WhereAllRanksOfAHostFallSilentAtOnce_TheHostIsTheCause) {
  std::vector<FlightView> views = of_two_hosts();
  for (const int r : {2, 3}) views[static_cast<size_t>(r)].end = FlightEnd::kRunning, views[r].heartbeat = 45 * kSecond;
  views[2].heartbeat += kSecond / 10;
  EXPECT_EQ(diagnose(views, {}, 60 * kSecond, RunState::kIsOver).root_text(),
            "ranks 2, 3 on host 'far' fell silent at once, 5 s before the others ended: the host was lost, stopped or "
            "cut off; training step 1");
  // The others, too, were ended before they could speak: later, by the scheduler.
  for (const int r : {0, 1}) views[static_cast<size_t>(r)].end = FlightEnd::kRunning;
  const Diagnosis d = diagnose(views, {}, 60 * kSecond, RunState::kIsOver);
  EXPECT_THAT(d.root_text(), HasSubstr("ranks 2, 3 on host 'far' fell silent at once, 5 s before"));
  EXPECT_THAT(d.other_text(d.others[0]), HasSubstr("rank 0: followed: lost rank 3"));
  // One rank of a host is no host.
  views[2].end = FlightEnd::kFollowed;
  views[2].end_time = 50 * kSecond;
  EXPECT_THAT(diagnose(views, {}, 60 * kSecond, RunState::kIsOver).root_text(),
              HasSubstr("rank 3 on host 'far' was stopped, hung or was lost: silent for 5 s before the others ended"));
}

TEST(Diagnose, WhereAllEndAtOnceWithoutAWord_NoneIsTheCause) {
  std::vector<FlightView> views = of_two_hosts();
  for (FlightView& v : views) v.end = FlightEnd::kRunning;
  views[1].heartbeat -= kSecond;
  const Diagnosis d = diagnose(views, {}, 60 * kSecond, RunState::kIsOver);
  EXPECT_FALSE(d.root);
  EXPECT_THAT(d.root_text(), HasSubstr("all 4 ranks ended at once without a word"));
  // While the run may go on, nothing is known of processes elsewhere.
  EXPECT_EQ(diagnose(views, {}, 50 * kSecond + kSecond / 2).root_text(), "no rank failed");
}

// A rank that hangs lives until its launcher ends it.
TEST(Diagnose, WhoIsEndedAfterOthersGaveUp_IsWhoTheyWaitedFor) {
  std::vector<FlightView> views = of_two_hosts();
  views[3].end = FlightEnd::kRunning;
  views[3].heartbeat = 51 * kSecond;
  for (const int r : {0, 1, 2}) waits(views[static_cast<size_t>(r)], {3});
  EXPECT_THAT(diagnose(views, {}, 60 * kSecond, RunState::kIsOver).root_text(),
              HasSubstr("rank 3 on host 'far' did not come: the others waited for it"));
}

TEST(Diagnose, WhereEachWaitsForAnotherHost_TheOneThatAllHaveInCommonWasCutOff) {
  std::vector<FlightView> views = of_two_hosts();
  for (int r = 4; r < 6; ++r) views.push_back(rank(r, FlightEnd::kFollowed, 50 * kSecond)), views.back().host = "third";
  waits(views[0], {3});
  waits(views[1], {0});
  waits(views[2], {4, 1});
  waits(views[3], {0});
  waits(views[4], {5});
  waits(views[5], {2});
  EXPECT_EQ(diagnose(views, {}, 60 * kSecond, RunState::kIsOver).root_text(),
            "ranks 2, 3 on host 'far' and the other hosts waited for each other: it was cut off; training step 1, in "
            " (step -1), waiting for ranks 4, 1");
  // Had the third one no word with it, it could be either.
  waits(views[2], {1});
  waits(views[4], {2});
  EXPECT_THAT(
      diagnose(views, {}, 60 * kSecond, RunState::kIsOver).root_text(),
      HasSubstr("ranks 2, 3 on host 'far' and ranks 0, 1 on host 'near' waited for each other: one of them was"));
}

TEST(Diagnose, WhoWasEndedWithTheOthers_IsNoCause) {
  std::vector<FlightView> views = {rank(0, FlightEnd::kRunning, 50 * kSecond),
                                   rank(1, FlightEnd::kFailed, 49 * kSecond)};
  const Diagnosis d = diagnose(views, {{{.rank = 0, .signal = 9, .by_supervisor = true}}}, 60 * kSecond);
  ASSERT_TRUE(d.root);
  EXPECT_EQ(d.root->rank, 1);
}

TEST(FlightRecord, KeepsTheLastEvents_AndIsGoneAfterACleanEnd) {
  const std::string folder = testing::TempDir() + "/flight_record_test", path = flight_file(folder, 0);
  {
    auto recorder = FlightRecorder::create(path, 0, 1);
    ASSERT_TRUE(recorder.ok()) << recorder.status();
    (*recorder)->adopt_thread();
    (*recorder)->enter(Phase::kStep, 41);
    for (int k = 0; k < 5000; ++k) (*recorder)->step(k, 0);
    (*recorder)->issued(5, 12, "all_reduce", "Gemm 'fc1'");
    (*recorder)->waiting(5);
    (*recorder)->waits(5, 12, "all_reduce", "Gemm 'fc1'", std::vector<int>{1, 3});
    auto reader = FlightReader::open(path);
    ASSERT_TRUE(reader.ok()) << reader.status();
    const FlightView v = (*reader)->view();
    EXPECT_EQ(v.events.size(), kFlightEvents);
    EXPECT_EQ(v.events.back().kind, FlightEventKind::kWaits);
    EXPECT_EQ(v.program_step()->step, 4999);
    EXPECT_EQ(v.where(), "training step 42, in all_reduce 'Gemm \\'fc1\\'' (step 12), waiting for ranks 1, 3");
    (*recorder)->done(5);
    (*recorder)->waiting(0);
    EXPECT_EQ((*reader)->view().where(), "training step 42, in step 4999");
    (*recorder)->end(FlightEnd::kClean, 0, "");
  }
  EXPECT_FALSE(FlightReader::open(path).ok());
}

TEST(FlightRecord, FolderThatCannotBeMade_IsNamed) {
  const TempFolder folder;
  const std::string file = folder.write("file", "");
  const auto recorder = FlightRecorder::create(flight_file(file + "/flight", 0), 0, 1);
  EXPECT_EQ(recorder.status().message(), "cannot create the folder '" + file + "/flight': Not a directory");
}

}  // namespace
}  // namespace partita::runtime
