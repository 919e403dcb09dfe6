// Rows' gradients that a kernel adds to another term: proved, and refused once a piece of them is another.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "tests/tools/support/verify_samples.h"
#include "tools/verify/steps/check_steps.h"

namespace partita {
namespace {

using runtime::Step;
using ::testing::HasSubstr;
using verifier::RankProgram;

absl::Status proved(const RankProgram& p) {
  return verifier::check_steps(p.code, p.program, p.claims, p.nests).status();
}

Step* added_rows(RankProgram& p) {
  for (auto& segment : p.program.segments) {
    for (Step& s : segment.steps) {
      if (s.name == "gather_grad" && s.inputs == 3) return &s;
    }
  }
  return nullptr;
}

// The model's embedding is its head too.
TEST(CheckAddedRows, EachFaultIsFound) {
  auto bundle = sample_bundle(std::string(PARTITA_TEST_DATA) + "/gpt2", {.ranks = 1});
  ASSERT_TRUE(bundle.ok()) << bundle.status();
  RankProgram whole = bundle->programs[0];
  EXPECT_EQ(proved(whole), absl::OkStatus());
  ASSERT_NE(added_rows(whole), nullptr);
  EXPECT_EQ(added_rows(whole)->operands[3].address, added_rows(whole)->operands[2].address);
  const struct {
    std::function<void(RankProgram&, Step&)> change;
    const char* message;
  } faults[] = {
      {[](RankProgram&, Step& s) { s.params.erase("epilogue"); }, "operand 3 lies over operand 2"},
      {[](RankProgram&, Step& s) { s.params["size"] = int64_t{7}; }, "parameter 'size' as its node has it"},
      {[](RankProgram&, Step& s) { s.params["wish"] = int64_t{7}; }, "found more"},
      {[](RankProgram& p, Step& s) {
         s.operands.erase(s.operands.begin());
         p.claims[s.id].values.erase(p.claims[s.id].values.begin());
         s.inputs = 2;
       },
       "expected rows, their indices, a term and a sum"},
      {[](RankProgram&, Step& s) { s.operands[2].address.offset += 64; }, "operand 3 lies over operand 2"},
      {[](RankProgram&, Step& s) { s.operands[2].address = s.operands[3].address = s.operands[0].address; },
       "operand 3 lies over operand 0"},
      {[](RankProgram&, Step& s) { s.operands[1].address.offset += 64; }, "operand 1: expected "},
      {[](RankProgram&, Step& s) { std::swap(s.operands[2].shape[0], s.operands[2].shape[1]); }, "operand 2: expected"},
      // The term and the sum are each other's; the rows are another value's.
      {[](RankProgram& p, Step& s) { std::swap(p.claims[s.id].values[2], p.claims[s.id].values[3]); },
       "expected a sum of gathered rows' gradient"},
      {[](RankProgram& p, Step& s) { p.claims[s.id].values[3] = p.claims[s.id].values[0]; },
       "expected a sum of gathered rows' gradient"},
      {[](RankProgram& p, Step& s) { p.claims[s.id].values[0] = p.claims[s.id].values[2]; }, "operand 0: expected "},
  };
  for (const auto& fault : faults) {
    RankProgram p = whole;
    fault.change(p, *added_rows(p));
    EXPECT_THAT(std::string(proved(p).message()), HasSubstr(fault.message));
  }
}

}  // namespace
}  // namespace partita
