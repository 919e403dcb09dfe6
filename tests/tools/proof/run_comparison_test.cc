#include "tools/proof/run_comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "base/cat.h"
#include "base/mix64.h"
#include "ir/graph/builder.h"
#include "tests/support/bundle.h"
#include "tests/support/command.h"
#include "tests/support/temp_folder.h"
#include "tools/proof/reference_run.h"

namespace partita {
namespace {

using testing::Each;
using testing::HasSubstr;

// One weight's gradient is larger by a factor.
Graph with_factor(const Graph& graph, double factor) {
  Rewriter r(graph);
  bool done = false;
  for (const Node& n : graph.nodes) {
    r.copy(n);
    const ValueId made = n.outputs[0];
    if (done || !n.weight_gradient || graph.type(made).rank() != 2) continue;
    r.replace(made, r.builder().scale(r(made), factor));
    done = true;
  }
  EXPECT_TRUE(done);
  return std::move(r).finish();
}

// model.onnx, a GPT of one layer, and train.yaml for it.
void write_gpt(const TempFolder& out, const std::string& optimizer) {
  const Outcome model = run_partita(cat("model gpt --layers 1 --hidden 32 --heads 2 --vocab 60 --seq 16 --with-weights",
                                        " --quiet -o ", out / "model.onnx"));
  ASSERT_EQ(model.code, 0) << model.text;
  out.write(
      "train.yaml",
      cat("loss: {kind: output, output: loss}\nbatch: {global: 4}\nbind: {batch: 4}\noptimizer: ", optimizer, "\n"));
}

// What code generation makes of an op is the same in the ranks and in the serial program compiled, with fusion and
// without. Where it is not what the definition says, the reference evaluator alone tells.
TEST(RunComparison, AFaultOfAllCompiledProgramsIsFound) {
  TempFolder out;
  ASSERT_NO_FATAL_FAILURE(write_gpt(out, "{kind: adamw, lr: 0.003}"));
  const std::string yaml = out / "train.yaml";
  for (const auto& [precision, factor] : {std::pair{"bf16", 1.03}, {"fp16", 1.01}, {"fp32", 1.0003}}) {
    SCOPED_TRACE(precision);
    const Outcome compiled = run_partita(cat("compile ", out / "model.onnx", " --train ", yaml, " --precision ",
                                             precision, " --pin tensor=2 --quiet -o ", out / "b"));
    ASSERT_EQ(compiled.code, 0) << compiled.text;
    auto bundle = read_bundle(out / "b");
    ASSERT_TRUE(bundle.ok()) << bundle.status();
    runtime::TrainOptions train{.steps = 2, .initial = open_weights(out / "b/initial.safetensors"), .threads = 1};
    train.data.kind = DataKind::kSynthetic;
    const double tolerance = std::max(1e-5, rounding(bundle->serial));

    const NumericRuns made(*bundle, train, out.path());
    auto runs = made.all();
    ASSERT_TRUE(runs.ok()) << runs.status();
    RunComparison sound(made, *runs, tolerance, true);
    ASSERT_TRUE(made.add_reference(*runs, 1).ok());
    ASSERT_TRUE(runs->reference);
    absl::Status agree = sound.compare(*runs->reference);
    EXPECT_TRUE(agree.ok()) << agree;

    verifier::Bundle other = *bundle;
    other.serial = with_factor(bundle->serial, factor);
    const NumericRuns defined(other, train, out.path());
    ASSERT_TRUE(defined.add_reference(*runs, 1).ok());
    RunComparison faulty(defined, *runs, tolerance, true);
    EXPECT_TRUE(faulty.compare(runs->compiled).ok());
    const absl::Status found = faulty.compare(*runs->reference);
    EXPECT_EQ(found.code(), absl::StatusCode::kAborted);
    EXPECT_THAT(std::string(found.message()), HasSubstr("by the reference evaluator"));
  }
}

// What is no number on either side tells nothing.
TEST(RunComparison, TrainingThatDivergesIsNotCompared) {
  TempFolder out;
  ASSERT_NO_FATAL_FAILURE(write_gpt(out, "{kind: sgd, lr: 1.0e30}"));
  const std::string yaml = out / "train.yaml";
  const Outcome compiled =
      run_partita(cat("compile ", out / "model.onnx", " --train ", yaml, " --pin data=2 --quiet -o ", out / "b"));
  ASSERT_EQ(compiled.code, 0) << compiled.text;
  const Outcome verified = run_partita(cat("verify ", out / "b", " --numeric --steps 3 --threads 1"));
  EXPECT_EQ(verified.code, 2) << verified.text;
  EXPECT_THAT(verified.text, HasSubstr("training diverges"));
}

TEST(RoundValues, SixteenBitsAlwaysAndAllTypesWhereItIsDrawn) {
  const auto rounded = [](DType type, double x, const std::function<uint64_t()>& random) {
    Tensor t{{type, {1000}}, std::vector<double>(1000, x), {}};
    round_values(t, random);
    return t.f;
  };
  const double third = 1.0 / 3, below = 0x154p-10, above = 0x156p-10;  // in bf16
  EXPECT_THAT(rounded(DType::kF32, third, {}), Each(third));
  EXPECT_THAT(rounded(DType::kBF16, third, {}), Each(above));
  uint64_t n = 0;
  const auto random = [&] { return mix64(++n); };
  EXPECT_THAT(rounded(DType::kBF16, above, random), Each(above));  // what a type has is left as it is
  EXPECT_THAT(rounded(DType::kF32, static_cast<float>(third), random), Each(static_cast<float>(third)));
  EXPECT_THAT(rounded(DType::kBF16, -0.25, random), Each(-0.25));
  EXPECT_THAT(rounded(DType::kBF16, 0, random), Each(0.0));
  double mean = 0;
  for (double x : rounded(DType::kBF16, third, random)) {
    EXPECT_TRUE(x == below || x == above) << x;
    mean += x / 1000;
  }
  EXPECT_NEAR(mean, third, 0.1 * (above - below));
}

}  // namespace
}  // namespace partita
