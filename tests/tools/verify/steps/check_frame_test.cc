#include "tools/verify/steps/check_frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/tools/support/verify_samples.h"
#include "tools/mutation/mutations.h"
#include "tools/verify/certificate.h"

namespace partita {
namespace {

using runtime::Program;
using runtime::Region;
using ::testing::HasSubstr;
using verifier::Bundle;

class CheckFrame : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto bundle = sample_bundle(std::string(PARTITA_TEST_DATA) + "/gpt2", {.ranks = 2, .evaluate = true});
    ASSERT_TRUE(bundle.ok()) << bundle.status();
    bundle_ = *std::move(bundle);
    ASSERT_TRUE(verifier::check_bundle(bundle_).ok()) << verifier::check_bundle(bundle_).status();
  }
  static void TearDownTestSuite() { bundle_ = {}; }
  static std::string verdict(const Bundle& b) { return std::string(verifier::check_bundle(b).status().message()); }

  static inline Bundle bundle_;
};

runtime::Step& first_of(Program& p, runtime::StepKind kind) {
  for (auto& segment : p.segments) {
    for (runtime::Step& s : segment.steps) {
      if (s.kind == kind) return s;
    }
  }
  ADD_FAILURE() << "no such step";
  return p.segments[0].steps[0];
}

// The model has 601 tokens.
runtime::ProgramInput& bounded(Program& p) {
  return *std::find_if(p.inputs.begin(), p.inputs.end(), [](const auto& in) { return in.bounds.known(); });
}

TEST_F(CheckFrame, EachFaultIsFound) {
  using runtime::StepKind;
  const std::pair<const char*, void (*)(Program&)> faults[] = {
      {"expected 1 slots, as the schedule uses, found 2", [](Program& p) { p.slots = 2; }},
      {"region arena: expected ", [](Program& p) { p.region_bytes[static_cast<int>(Region::kArena)] += 64; }},
      {"expected constants of ", [](Program& p) { p.constants.push_back(0); }},
      {", found no bounds", [](Program& p) { bounded(p).bounds = {}; }},
      {" to 600, found from ", [](Program& p) { ++bounded(p).bounds.high; }},
      {"expected another first value", [](Program& p) { p.states[0].initial.b = 1; }},
      {"expected it to be of ",
       [](Program& p) {
         runtime::Step& s = first_of(p, StepKind::kLibrary);
         s.origin = s.origin == 0 ? 1 : 0;
       }},
      {"expected block ", [](Program& p) { ++first_of(p, StepKind::kLibrary).block; }},
      {"expected it on the device",
       [](Program& p) { first_of(p, StepKind::kLibrary).device = runtime::DeviceTag::kHost; }},
      {" bytes, found ", [](Program& p) { ++first_of(p, StepKind::kKernel).bytes; }},
      {"expected no parameter 'threads' of a kernel",
       [](Program& p) { first_of(p, StepKind::kKernel).params["threads"] = int64_t{64}; }},
      {"expected no parameter 'root' of a all_reduce",
       [](Program& p) { first_of(p, StepKind::kCollectiveStart).params["root"] = int64_t{0}; }},
      {"expected group 0, over [0] and of channel 0, found group 1 over [0]",
       [](Program& p) {
         p.groups.push_back(p.groups[0]);
         first_of(p, StepKind::kCollectiveStart).params["group"] = int64_t{1};
       }},
  };
  for (const auto& [expected, make] : faults) {
    Bundle b = bundle_;
    make(b.programs[0].program);
    EXPECT_THAT(verdict(b), HasSubstr(expected));
  }
  Bundle b = bundle_;
  bounded(b.evaluation->programs[0].program).bounds = {};
  EXPECT_THAT(verdict(b), HasSubstr("evaluation: input "));
  b = bundle_;
  b.evaluation->programs[0].program.target = "cpu:x86-64-v2";
  EXPECT_THAT(verdict(b), HasSubstr("as in training, found 'cpu:x86-64-v2'"));
}

// Memory that two inputs or states share, though no step sees it.
TEST_F(CheckFrame, SharedMemoryIsFound) {
  Bundle b = bundle_;
  Program& p = b.programs[0].program;
  p.inputs[1].operand.address = p.inputs[0].operand.address;
  EXPECT_FALSE(verifier::check_bundle(b).ok());
  b = bundle_;
  auto& states = b.programs[0].program.states;
  states[1].operand.address = states[0].operand.address;
  EXPECT_FALSE(verifier::check_bundle(b).ok());
}

// The rank's graph, which is no more than a claim, begins as the serial one.
TEST_F(CheckFrame, FirstValueOfTheSerialGraphIsHeld) {
  Bundle b = bundle_;
  for (size_t k = 0; k < b.programs[0].rank.states.size(); ++k) {
    State& s = b.programs[0].rank.states[k];
    if (s.kind != StateKind::kOptimizer) continue;
    s.initial = InitialRule{.a = 1};
    for (State& code : b.programs[0].code.states) {
      if (code.name == s.name) code.initial = s.initial;
    }
    b.programs[0].program.states[k].initial.a = 1;
    break;
  }
  EXPECT_THAT(verdict(b), HasSubstr("expected the first value of the serial program, found another"));
}

// What writes over its operand may not be done once more: an update, a sum.
TEST_F(CheckFrame, StepInPlaceDoneTwiceIsFound) {
  std::vector<uint32_t> in_place;
  for (const auto& segment : bundle_.programs[0].program.segments) {
    for (const runtime::Step& s : segment.steps) {
      const auto outputs = s.operands.begin() + s.inputs;
      const bool over = std::any_of(outputs, s.operands.end(), [&](const auto& out) {
        return std::any_of(s.operands.begin(), outputs, [&](const auto& in) { return in.address == out.address; });
      });
      if (over) in_place.push_back(s.id);
    }
  }
  ASSERT_GT(in_place.size(), 20u);
  for (uint32_t id : in_place) {
    Bundle b = bundle_;
    repeat_step(b, id);
    EXPECT_THAT(verdict(b), HasSubstr("expected value %")) << "step " << id;
  }
}

}  // namespace
}  // namespace partita
