#include "runtime/program/communicators.h"

#include <gtest/gtest.h>

namespace partita::runtime {
namespace {

Step start(const char* name, int64_t group, const char* param = nullptr, int64_t value = 0) {
  Step s;
  s.kind = StepKind::kCollectiveStart;
  s.name = name;
  s.params["group"] = group;
  if (param != nullptr) s.params[param] = value;
  return s;
}

Program program(std::vector<Step> steps) {
  Program p;
  p.mesh = {{"data", 2}, {"pipeline", 4}, {"tensor", 1}};
  p.groups = {{{0}}, {{1}}, {{0, 1}}, {{2}}};
  p.segments = {{Segment::kForward, 0, std::move(steps)}};
  return p;
}

TEST(CommunicatorMemory_Program, HasOneForEachGroupAndPeer) {
  const Communicators c =
      communicators(program({start("all_reduce", 0), start("all_gather", 0), start("all_reduce", 2),
                             start("all_reduce", 3), start("send", 1, "peer", 2), start("recv", 1, "peer", 0),
                             start("send", 1, "peer", 2), start("send", 1, "peer", 0)}));
  EXPECT_EQ(c.groups, 2);  // the third has one rank
  EXPECT_EQ(c.sends, 2);
  EXPECT_EQ(c.receives, 1);
}

TEST(CommunicatorMemory_Permutation, SendsAndReceives) {
  const Communicators c = communicators(program({start("permute", 1, "shift", 1), start("permute", 1, "shift", 1)}));
  EXPECT_EQ(c.groups, 0);
  EXPECT_EQ(c.sends, 1);
  EXPECT_EQ(c.receives, 1);
}

}  // namespace
}  // namespace partita::runtime
