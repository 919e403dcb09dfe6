// 200 seeded faults of programs: all found, by the half of the verifier that is to find them; the programs as they were
// pass. A change that passes is none: a step that makes a value again, which nobody reads before it is made once more.
#include <gtest/gtest.h>

#include <map>

#include "base/cat.h"
#include "runtime/trainer.h"
#include "tests/tools/verify_mutations.h"
#include "tests/tools/verify_samples.h"
#include "tools/verify/certificate.h"
#include "tools/verify/check_graph.h"
#include "tools/verify/check_steps.h"
#include "tools/verify/pad_serial.h"

namespace partita {
namespace {

constexpr int kSeeds = 200;

std::string no_place(NodeId n) { return "node " + std::to_string(n); }

// What the ranks' programs leave after two steps, from random first values: losses, parameters and running statistics,
// to the bit. Empty where they do not run.
std::string results(const verifier::Bundle& bundle) {
  class Losses : public runtime::MetricsSink {
   public:
    absl::Status write(const runtime::StepMetrics& metrics) override {
      text += cat(metrics.loss.value_or(0), " ");
      return absl::OkStatus();
    }
    std::string text;
  };
  std::vector<runtime::Program> programs;
  for (const verifier::RankProgram& p : bundle.programs) {
    programs.push_back(p.program);
    for (runtime::ProgramState& s : programs.back().states) {
      if (s.initial.kind == "file") s.initial = {"uniform", -0.1, 0.1};
    }
  }
  TempFolder out;
  runtime::TrainOptions options;
  options.steps = 2;
  options.threads = 1;
  options.data = {.kind = runtime::DataKind::kSynthetic, .epochs = 0};
  options.save = out / "states.safetensors";
  Losses losses;
  auto loaded = runtime::LoadedPrograms::load(std::move(programs));
  if (!loaded.ok() || !runtime::train_local(*loaded, options, &losses).ok()) return {};
  return losses.text + TempFolder::read(options.save);
}

class Mutations : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    TempFolder out, odd_out;
    std::string gpt2 = std::string(PARTITA_TEST_DATA) + "/gpt2", made = made_model(out);
    std::string odd = made_model(odd_out, "--vocab 97");  // padded under tensor=2
    const std::pair<std::string, SampleLayout> samples[] = {
        {gpt2, {.ranks = 2}},
        {gpt2, {.ranks = 4, .like = {"zero3"}}},
        {made, {.ranks = 2, .like = {"zero1"}}},
        {made, {.ranks = 8, .keep_gradients = true}},
        {made, {.ranks = 4, .like = {"megatron:tp2"}}},
        {odd, {.ranks = 2, .like = {"megatron:tp2"}}},
    };
    for (const auto& [folder, layout] : samples) {
      auto bundle = sample_bundle(folder, layout);
      ASSERT_TRUE(bundle.ok()) << bundle.status();
      ASSERT_TRUE(verifier::check_bundle(*bundle).ok()) << verifier::check_bundle(*bundle).status();
      bundles_.push_back(*std::move(bundle));
      auto padded = verifier::pad_serial(bundles_.back().serial, bundles_.back().programs[0].program);
      ASSERT_TRUE(padded.ok()) << padded.status();
      auto serial = verifier::SerialValues::create(padded->graph);
      ASSERT_TRUE(serial.ok());
      serials_.push_back(*std::move(serial));
    }
  }
  static void TearDownTestSuite() {
    bundles_.clear();
    serials_.clear();
  }

  template <typename Check>
  void expect_all_found(std::span<const Mutation> mutations, Check check) {
    std::map<std::string_view, int> applied;
    int harmless = 0;
    for (int seed = 0; seed < kSeeds; ++seed) {
      std::mt19937 rng(static_cast<uint32_t>(seed));
      size_t which = rng() % bundles_.size();
      for (size_t k = static_cast<size_t>(seed);; ++k) {
        ASSERT_LT(k, static_cast<size_t>(seed) + mutations.size()) << "nothing applies";
        verifier::Bundle broken = bundles_[which];
        const Mutation& m = mutations[k % mutations.size()];
        if (!m.apply(broken, rng)) continue;
        ++applied[m.name];
        absl::Status status = check(which, broken);
        if (status.ok()) {  // then it is no fault: the ranks compute what they did, to the bit
          std::string expected = results(bundles_[which]);
          ASSERT_FALSE(expected.empty());
          EXPECT_TRUE(results(broken) == expected) << "seed " << seed << ", " << m.name;
          ++harmless;
          break;
        }
        EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << "seed " << seed << ", " << m.name << ": " << status;
        break;
      }
    }
    EXPECT_LE(harmless, kSeeds / 50);
    for (const Mutation& m : mutations) EXPECT_GT(applied[m.name], 0) << m.name;
  }

  static inline std::vector<verifier::Bundle> bundles_;
  static inline std::vector<verifier::SerialValues> serials_;
};

TEST_F(Mutations, OfGraphsAreFound) {
  expect_all_found(graph_mutations(), [](size_t which, const verifier::Bundle& b) {
    auto padded = verifier::pad_serial(b.serial, b.programs[0].program);
    if (!padded.ok()) return padded.status();
    return verifier::check_graph(serials_[which], b.programs[0].rank, padded->program, no_place).status();
  });
}

TEST_F(Mutations, OfProgramsAreFound) {
  expect_all_found(program_mutations(), [](size_t, const verifier::Bundle& b) {
    return verifier::check_steps(b.programs[0].code, b.programs[0].program, b.programs[0].claims).status();
  });
}

}  // namespace
}  // namespace partita
