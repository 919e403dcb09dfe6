// Products in parts of rows beside collectives of the tensor axis: every bit is the same where a product's sums do not
// follow its sizes, and the programs are proved.
#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "runtime/kernels/tile_ops.h"
#include "tests/support/pinned_training.h"
#include "tests/support/training_bits.h"

namespace partita {
namespace {

class OverlapProducts : public PinnedTraining {
 protected:
  void make(const std::string& model, const std::string& recipe) {
    PinnedTraining::make(model, recipe + "optimizer: {kind: adamw, lr: 0.001}\ndata: {kind: synthetic}\n");
  }
  static void expect_near(const TrainingBits& a, const TrainingBits& b, const std::string& pins);
  void expect_same_bits_and_proved(int ranks, const std::string& pins, int parts) {
    const auto in_parts = [&](int n) { return pins + " --pin overlap_products=" + std::to_string(n); };
    const TrainingBits cut = bits(ranks, in_parts(parts)), whole = bits(ranks, in_parts(1));
    if (runtime::has_avx512()) {
      EXPECT_EQ(cut, whole) << pins;
    } else {  // the library's sums follow the sizes of a product
      expect_near(cut, whole, pins);
    }
    const std::string said = expect_proved(ranks, in_parts(parts));
    EXPECT_EQ(said.find("overlap_products:"), std::string::npos) << said;  // something is cut
  }
};

// Losses and norms of gradients.
void OverlapProducts::expect_near(const TrainingBits& a, const TrainingBits& b, const std::string& pins) {
  ASSERT_EQ(a.metrics.size(), b.metrics.size()) << pins;
  for (const auto& [step, line] : a.metrics) {
    std::istringstream found(line), right(b.metrics.at(step));
    double x = 0, y = 0;
    while (found >> x && right >> y) EXPECT_NEAR(x / y, 1, 1e-3) << pins << " step " << step;
  }
}

constexpr const char* kLlama =
    "gpt --layers 2 --hidden 32 --heads 4 --vocab 64 --seq 16 --gated-mlp --no-bias --no-tied --norm rmsnorm "
    "--positions rotary";
constexpr const char* kGpt = "gpt --layers 2 --hidden 32 --heads 4 --vocab 64 --seq 16";

// The rows of ranks are samples; with fewer of them, positions, which lie apart in what is gathered.
TEST_F(OverlapProducts, GathersAndScattersHaveTheSameBits) {
  make(kLlama, "batch: {global: 4, micro: 4}\n");
  expect_same_bits_and_proved(2, "--pin tensor=2 --pin sequence_parallel=true", 2);
  make(kLlama, "batch: {global: 2, micro: 1}\nprecision: bf16\n");
  expect_same_bits_and_proved(2, "--pin tensor=2 --pin sequence_parallel=true", 4);
}

TEST_F(OverlapProducts, SumsHaveTheSameBits) {
  make(kGpt, "batch: {global: 8, micro: 2}\nclip_grad_norm: 1\n");
  expect_same_bits_and_proved(4, "--pin tensor=4", 2);
}

TEST_F(OverlapProducts, GoesWithStagesTurnsAndRecomputation) {
  make(kGpt, "batch: {global: 4, micro: 1}\n");
  expect_same_bits_and_proved(4, "--pin tensor=2 --pin pipeline=2 --pin schedule=zero_bubble --pin recompute=full", 2);
  expect_same_bits_and_proved(
      4, "--pin tensor=2 --pin data=2 --pin zero=3 --pin sequence_parallel=true --pin overlap_micro_batches=2", 2);
}

TEST_F(OverlapProducts, SaysWhereNothingIsCut) {
  make(kGpt, "batch: {global: 4, micro: 2}\n");
  for (const char* pins : {"--pin data=2 --pin overlap_products=2", "--pin tensor=2 --pin overlap_products=5"}) {
    const Outcome made = run_partita(command("compile", 2, pins) + " -o " + (out_ / "bundle"));
    EXPECT_EQ(made.code, 0) << made.text;
    EXPECT_NE(made.text.find("products stay whole"), std::string::npos) << made.text;
  }
  out_.write("train.yaml",
             "batch: {global: 4}\nreproducible: 2\noptimizer: {kind: sgd, lr: 0.1}\ndata: {kind: synthetic}\n");
  const Outcome refused =
      run_partita(command("compile", 2, "--pin data=2 --pin overlap_products=2") + " -o " + (out_ / "bundle"));
  EXPECT_EQ(refused.code, 2) << refused.text;
  EXPECT_NE(refused.text.find("overlap_products 2"), std::string::npos) << refused.text;
}

}  // namespace
}  // namespace partita
