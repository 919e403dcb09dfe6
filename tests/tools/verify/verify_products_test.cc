// Products of GPU programs that do what follows them: proved, and refused once a piece of them is another.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "runtime/program/params.h"
#include "tests/tools/support/verify_samples.h"
#include "tools/verify/steps/check_steps.h"

namespace partita {
namespace {

using runtime::Step;
using testing::HasSubstr;
using verifier::RankProgram;

absl::Status proved(const RankProgram& p) {
  return verifier::check_steps(p.code, p.program, p.claims, p.nests).status();
}

std::string epilogue(const Step& s) { return runtime::text_param(s.params, "epilogue", ""); }

// The steps with this epilogue.
std::vector<Step*> steps_with(RankProgram& p, const std::string& wanted) {
  std::vector<Step*> found;
  for (auto& segment : p.program.segments) {
    for (Step& s : segment.steps) {
      if (epilogue(s) == wanted) found.push_back(&s);
    }
  }
  return found;
}

class VerifyProducts : public testing::Test {
 protected:
  static RankProgram sample(Precision precision, const char* micro_batch,
                            const std::string& model = std::string(PARTITA_TEST_DATA) + "/gpt2") {
    SampleLayout layout{.ranks = 2, .pins = {micro_batch}, .gpu = "sm_90", .precision = precision};
    auto bundle = sample_bundle(model, layout);
    EXPECT_TRUE(bundle.ok()) << bundle.status();
    return std::move(bundle->programs[0]);
  }
};
using VerifyProducts_GpuProgram = VerifyProducts;
using VerifyProducts_Mutation = VerifyProducts;

TEST_F(VerifyProducts_GpuProgram, IsProved) {
  std::map<std::string, size_t> found;
  RankProgram whole = sample(Precision::kFp32, "micro_batch=4"), parts = sample(Precision::kFp32, "micro_batch=2"),
              narrow = sample(Precision::kBf16, "micro_batch=4");
  for (RankProgram* p : {&whole, &parts, &narrow}) {
    EXPECT_EQ(proved(*p), absl::OkStatus());
    for (const auto& segment : p->program.segments) {
      for (const Step& s : segment.steps) ++found[epilogue(s)];
    }
  }
  for (const char* each : {"bias", "bias+gelu_tanh+aux", "gelu_tanh_grad", "sum_b", "accumulate+sum_b"})
    EXPECT_GT(found[each], 0u) << each;
}

// Biases of one number are constants of the code that rounds them, which reads nothing then.
TEST_F(VerifyProducts_GpuProgram, WithFrozenBiasesIsProved) {
  TempFolder folder;
  const std::string model = made_model(folder);
  folder.write("train.yaml", TempFolder::read(folder / "train.yaml") + "frozen: ['*.bias']\n");
  RankProgram p = sample(Precision::kBf16, "micro_batch=4", model);
  EXPECT_EQ(proved(p), absl::OkStatus());
  EXPECT_GT(steps_with(p, "bias").size(), 0u);
}

TEST_F(VerifyProducts_Mutation, IsRefused) {
  const auto set = [](const char* text) {
    return [text](RankProgram&, std::vector<Step*>& s) { s[0]->params["epilogue"] = std::string(text); };
  };
  const auto swap_operands = [](RankProgram& p, Step& s, size_t a, size_t b) {
    std::swap(s.operands[a], s.operands[b]);
    std::swap(p.claims[s.id].values[a], p.claims[s.id].values[b]);
  };
  const struct {
    const char* of;
    std::function<void(RankProgram&, std::vector<Step*>&)> change;
    const char* message;
  } cases[] = {
      {"bias", set("relu"), "expected a result of a product"},
      {"bias", set("bias+gelu_tanh"), "a result of gelu in its tanh form"},
      {"bias", set("bias+aux"), "expected a GELU behind"},
      {"bias", set("bias+wish"), "an epilogue of a product, found 'wish'"},
      {"bias+gelu_tanh+aux", set("bias+aux"), "a sum with a bias"},
      {"bias+gelu_tanh+aux", set("gelu_tanh+aux"), "a result of a product"},
      {"bias+gelu_tanh+aux", set("bias+gelu_tanh"), "1 outputs"},
      {"gelu_tanh_grad", set("gelu_tanh"), "a result of gelu in its tanh form"},
      {"sum_b", set("sum_a"), "the sum of"},
      {"sum_b", set("bias"), "a sum with a bias"},
      // The bias of another product of the same width, the GELU and what it was of, another weight.
      {"bias+gelu_tanh+aux",
       [](RankProgram& p, std::vector<Step*>& s) {
         s[0]->operands[2] = s[1]->operands[2];
         p.claims[s[0]->id].values[2] = p.claims[s[1]->id].values[2];
       },
       "operand 2: expected value"},
      {"bias+gelu_tanh+aux", [&](RankProgram& p, std::vector<Step*>& s) { swap_operands(p, *s[0], 3, 4); },
       "gelu in its tanh form"},
      {"bias+gelu_tanh+aux",
       [](RankProgram&, std::vector<Step*>& s) { std::swap(s[0]->operands[3].address, s[0]->operands[4].address); },
       "expected value"},
      {"bias+gelu_tanh+aux",
       [](RankProgram&, std::vector<Step*>& s) { s[0]->operands[1].address = s[1]->operands[1].address; },
       "operand 1: expected value"},
      {"gelu_tanh_grad",
       [](RankProgram&, std::vector<Step*>& s) { s[0]->operands[2].address = s[1]->operands[2].address; },
       "operand 2: expected value"},
      {"sum_b", [](RankProgram&, std::vector<Step*>& s) { s[0]->operands.pop_back(); }, "claims of"},
  };
  const RankProgram whole = sample(Precision::kFp32, "micro_batch=4");
  for (const auto& c : cases) {
    RankProgram p = whole;
    std::vector<Step*> steps = steps_with(p, c.of);
    ASSERT_GE(steps.size(), 2u) << c.of;
    c.change(p, steps);
    EXPECT_THAT(std::string(proved(p).message()), HasSubstr(c.message)) << c.of;
  }
}

// In 16 bits, a bias is what one step made of the right one alone.
TEST_F(VerifyProducts_Mutation, OfARoundedBiasIsRefused) {
  RankProgram p = sample(Precision::kBf16, "micro_batch=4");
  std::vector<Step*> steps = steps_with(p, "bias+gelu_tanh+aux");
  ASSERT_GE(steps.size(), 2u);
  const int mine = p.claims[steps[0]->id].values[2];
  ASSERT_LT(mine, -1);
  RankProgram other = p;
  Step& step = *steps_with(other, "bias+gelu_tanh+aux")[0];
  step.operands[2] = steps[1]->operands[2];
  other.claims[step.id].values[2] = p.claims[steps[1]->id].values[2];
  EXPECT_THAT(std::string(proved(other).message()), HasSubstr("in bf16, found temporary"));
  // The step that rounds reads another bias.
  RankProgram wrong = p;
  for (auto& segment : wrong.program.segments) {
    for (Step& s : segment.steps) {
      Claim& claim = wrong.claims[s.id];
      if (claim.values.empty() || claim.values.back() != mine) continue;
      for (const Claim& its : p.claims) {
        if (!its.values.empty() && its.values.back() == p.claims[steps[1]->id].values[2])
          claim.values[0] = its.values[0];
      }
    }
  }
  EXPECT_FALSE(proved(wrong).ok());
}

}  // namespace
}  // namespace partita
