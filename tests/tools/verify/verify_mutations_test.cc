// Seeded faults of programs, 200 of each kind or 1000: all found, by the half of the verifier that is to find them; the
// programs as they were pass. A change that passes is none: a step that makes a value again, which nobody reads before
// it is made once more.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/cat.h"
#include "base/status.h"
#include "codegen/llvm/object_code.h"
#include "runtime/train/trainer.h"
#include "tests/support/test_options.h"
#include "tests/tools/support/verify_samples.h"
#include "tests/tools/verify/verify_mutations.h"
#include "tools/verify/bundle/pad_serial.h"
#include "tools/verify/certificate.h"
#include "tools/verify/check_evaluation.h"
#include "tools/verify/graph/check_graph.h"
#include "tools/verify/stages/join_stages.h"
#include "tools/verify/steps/check_steps.h"
#include "tools/verify/steps/check_versions.h"

namespace partita {
namespace {

int seeds() { return sample_or_all(200, 1000); }

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
      if (s.initial.kind == runtime::InitialKind::kFile) s.initial = {runtime::InitialKind::kUniform, -0.1, 0.1};
    }
  }
  TempFolder out;
  runtime::TrainOptions options;
  options.steps = 2;
  options.threads = 1;
  options.data = {.kind = DataKind::kSynthetic, .epochs = 0};
  options.save = out / "states.safetensors";
  Losses losses;
  auto loaded = runtime::LoadedPrograms::load(std::move(programs));
  if (!loaded.ok() || !runtime::train_local(*loaded, options, &losses).ok()) return {};
  return losses.text + TempFolder::read(options.save);
}

// The bundle with the code of the nests that it now has.
verifier::Bundle compiled(verifier::Bundle bundle) {
  for (verifier::RankProgram& p : bundle.programs) {
    std::vector<NamedNest> nests;
    for (const KernelNest& k : p.nests.kernels) nests.push_back({k.name, &k.nest});
    auto code = compile_nests(nests, p.nests.target);
    EXPECT_TRUE(code.ok()) << code.status();
    if (code.ok()) p.program.kernels = *std::move(code);
  }
  return bundle;
}

class Mutations : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    TempFolder out, odd_out, untied_out;
    std::string gpt2 = std::string(PARTITA_TEST_DATA) + "/gpt2", made = made_model(out);
    std::string odd = made_model(odd_out, "--vocab 97");  // padded under tensor=2
    std::string untied = made_model(untied_out, "--vocab 64 --no-tied");
    untied_out.write("train.yaml",  // what stages can update by themselves
                     "loss: {kind: output, output: loss}\noptimizer: {kind: adamw, lr: 0.001}\nbatch: {global: 16}\n"
                     "bind: {batch: 4}\n");
    const std::string chunks = "cuts=[transformer.h.0.attn.c_attn.*, transformer.h.0.attn.c_proj.*, transformer.h.1.*]";
    const std::pair<std::string, SampleLayout> samples[] = {
        {gpt2, {.ranks = 2}},
        {gpt2, {.ranks = 4, .like = {"zero3"}}},
        {made, {.ranks = 2, .like = {"zero1"}}},
        {made, {.ranks = 8, .keep_gradients = true}},
        {made, {.ranks = 4, .like = {"megatron:tp2"}}},
        {odd, {.ranks = 2, .like = {"megatron:tp2"}}},
        {gpt2, {.ranks = 2, .pins = {"pipeline=2", "micro_batch=1"}}},
        {made, {.ranks = 4, .pins = {"pipeline=2", "zero=3"}}},
        {made, {.ranks = 2, .pins = {"pipeline=2", "schedule=interleaved"}}},
        // Its chunks share slots.
        {gpt2, {.ranks = 2, .pins = {"pipeline=2", "micro_batch=1", "schedule=interleaved", chunks}}},
        {made, {.ranks = 4, .pins = {"pipeline=2", "tensor=2", "schedule=zero_bubble"}}},
        {made, {.ranks = 4, .pins = {"stages=[{data: 2}, {tensor: 2}]"}}},
        {gpt2, {.ranks = 4, .pins = {"stages=[{tensor: 2}, {data: 2}]", "micro_batch=1", "zero=1"}}},
        {gpt2, {.ranks = 3, .pins = {"stages=[{tensor: 2}, {data: 1}]", "micro_batch=1"}}},
        {made, {.ranks = 6, .pins = {"stages=[{data: 2}, {data: 2, tensor: 2}]"}}},
        {gpt2, {.ranks = 4, .like = {"zero2"}, .pins = {"compress=int8"}}},
        {made, {.ranks = 4, .pins = {"compress=int8"}}},
        {gpt2, {.ranks = 2, .like = {"zero1"}, .pins = {"compress=powersgd"}}},
        {made, {.ranks = 2, .pins = {"compress=powersgd"}}},
        {untied, {.ranks = 2, .pins = {"pipeline=2", "schedule=pipedream"}}},
        {untied, {.ranks = 4, .pins = {"pipeline=2", "data=2", "zero=1", "schedule=pipedream"}}},
    };
    for (const auto& [folder, layout] : samples) {
      auto bundle = sample_bundle(folder, layout);
      ASSERT_TRUE(bundle.ok()) << bundle.status();
      ASSERT_TRUE(verifier::check_bundle(*bundle).ok()) << verifier::check_bundle(*bundle).status();
      bundles_.push_back(*std::move(bundle));
      const verifier::Bundle& b = bundles_.back();
      links_.emplace_back();
      serials_.emplace_back();
      if (b.compress != "none" || is_asynchronous(b)) continue;
      auto padded = verifier::pad_serial(b.serial, b.programs[0].program);
      if (b.programs.size() > 1) {
        auto stages = verifier::check_stages(b);
        ASSERT_TRUE(stages.ok()) << stages.status();
        links_.back() = stages->links;
        auto joined = verifier::join_stages(b, stages->links);
        ASSERT_TRUE(joined.ok()) << joined.status();
        padded = verifier::pad_serial(b.serial, joined->program);
      }
      ASSERT_TRUE(padded.ok()) << padded.status();
      auto serial = verifier::SerialValues::create(padded->graph);
      ASSERT_TRUE(serial.ok());
      serials_.back() = *std::move(serial);
    }
  }
  static void TearDownTestSuite() {
    bundles_.clear();
    serials_.clear();
    links_.clear();
  }

  // The links between the stages of a bundle in whose graphs a node may have been put in.
  static verifier::StageLinks links_in(size_t which, const verifier::Bundle& broken) {
    auto now = [&](verifier::StageNode n) {
      const auto &before = bundles_[which].programs[static_cast<size_t>(n.stage)].rank.nodes,
                 &after = broken.programs[static_cast<size_t>(n.stage)].rank.nodes;
      NodeId same = 0;
      while (same < n.node && before[same].op == after[same].op && before[same].outputs == after[same].outputs) ++same;
      if (after.size() > before.size() && (same < n.node || before[same].outputs != after[same].outputs)) ++n.node;
      return n;
    };
    verifier::StageLinks links;
    for (const auto& [receiver, sources] : links_[which].sources) {
      verifier::Sources moved = sources;
      for (NodeId& n : moved.nodes) n = now({sources.stage, n}).node;
      links.sources[now(receiver)] = std::move(moved);
    }
    for (const auto& sum : links_[which].sums) {
      std::vector<NodeId>& nodes = links.sums.emplace_back();
      for (size_t s = 0; s < sum.size(); ++s) nodes.push_back(now({static_cast<int>(s), sum[s]}).node);
    }
    return links;
  }

  // Its ranks compute the serial program with one micro-batch a step alone.
  static bool is_asynchronous(const verifier::Bundle& b) {
    return std::any_of(b.programs.begin(), b.programs.end(),
                       [](const verifier::RankProgram& p) { return verifier::updates_each(p.program); });
  }

  static absl::Status check_values(size_t which, const verifier::Bundle& b) {
    if (b.compress != "none" || is_asynchronous(b))
      return verifier::check_bundle(b).status();  // its steps are as they were
    Graph ranks = b.programs[0].rank;
    runtime::Program program = b.programs[0].program;
    if (b.programs.size() > 1) {
      PARTITA_ASSIGN_OR_RETURN(verifier::JoinedStages joined, verifier::join_stages(b, links_in(which, b)));
      ranks = std::move(joined.graph);
      program = std::move(joined.program);
    }
    PARTITA_ASSIGN_OR_RETURN(verifier::PaddedSerial padded, verifier::pad_serial(b.serial, program));
    return verifier::check_graph(*serials_[which], ranks, padded.program, /*fixed=*/{}, no_place).status();
  }

  static verifier::Bundle as_it_is(verifier::Bundle bundle) { return bundle; }

  // Of what passes, one in `most_harmless` at most; `runnable`: the ranks' programs as they would run.
  template <typename Check>
  void expect_all_found(std::span<const Mutation> mutations, Check check, int most_harmless = 50,
                        verifier::Bundle (*runnable)(verifier::Bundle) = as_it_is) {
    std::map<std::string_view, int> applied, harmless;
    for (int seed = 0; seed < seeds(); ++seed) {
      std::mt19937 rng(static_cast<uint32_t>(seed));
      const Mutation& m = mutations[static_cast<size_t>(seed) % mutations.size()];
      for (size_t first = rng() % bundles_.size(), k = 0;; ++k) {
        ASSERT_LT(k, 64 * bundles_.size()) << m.name << " applies to nothing";
        size_t which = (first + k) % bundles_.size();
        verifier::Bundle broken = bundles_[which];
        // A fault of any stage: mutations are of the first program.
        size_t stage = rng() % broken.programs.size();
        std::swap(broken.programs[0], broken.programs[stage]);
        bool applies = m.apply(broken, rng);
        std::swap(broken.programs[0], broken.programs[stage]);
        if (!applies) continue;
        ++applied[m.name];
        absl::Status status = check(which, broken);
        if (status.ok()) {  // then it is no fault: the ranks compute what they did, to the bit
          std::string expected = results(bundles_[which]);
          ASSERT_FALSE(expected.empty());
          EXPECT_TRUE(results(runnable(broken)) == expected)
              << "seed " << seed << ", " << m.name << ", bundle " << which;
          ++harmless[m.name];
          break;
        }
        EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << "seed " << seed << ", " << m.name << ": " << status;
        break;
      }
    }
    int passed = 0;
    std::string which;
    for (const auto& [name, count] : harmless) {
      passed += count;
      append(which, name, ": ", count, "; ");
    }
    EXPECT_LE(passed, seeds() / most_harmless) << which;
    RecordProperty("harmless", which);
    for (const Mutation& m : mutations) EXPECT_GT(applied[m.name], 0) << m.name;
  }

  static inline std::vector<verifier::Bundle> bundles_;
  static inline std::vector<std::optional<verifier::SerialValues>> serials_;  // of those that compress nothing
  static inline std::vector<verifier::StageLinks> links_;
};

TEST_F(Mutations, OfGraphsAreFound) { expect_all_found(graph_mutations(), check_values); }

// Faults of evaluation programs, of their graphs (which the steps no longer fit then), steps and schedules, alone and
// in stages.
TEST_F(Mutations, OfEvaluationAreFound) {
  const std::string gpt2 = std::string(PARTITA_TEST_DATA) + "/gpt2";
  int applied = 0, passed = 0;
  std::string harmless;
  for (const std::vector<std::string>& pins :
       std::vector<std::vector<std::string>>{{"tensor=2"}, {"pipeline=2", "micro_batch=1"}}) {
    auto bundle = sample_bundle(gpt2, {.ranks = 2, .pins = pins, .evaluate = true});
    ASSERT_TRUE(bundle.ok()) << bundle.status();
    ASSERT_TRUE(verifier::check_bundle(*bundle).ok()) << verifier::check_bundle(*bundle).status();
    for (int seed = 0; seed < 60; ++seed) {
      std::mt19937 rng(static_cast<uint32_t>(seed));
      std::span<const Mutation> mutations = seed % 3 == 0 ? graph_mutations() : program_mutations();
      const Mutation& m = mutations[static_cast<size_t>(seed / 3) % mutations.size()];
      verifier::Bundle evaluation, broken = *bundle;
      static_cast<verifier::ProgramSet&>(evaluation) = *bundle->evaluation;
      if (!m.apply(evaluation, rng)) continue;
      broken.evaluation = evaluation;
      absl::Status status = verifier::check_bundle(broken).status();
      ++applied;
      if (status.ok()) {
        append(harmless, m.name, "; ");
        ++passed;
        continue;
      }
      EXPECT_EQ(status.message().substr(0, 12), "evaluation: ") << m.name << ": " << status;
    }
    // Another part of a parameter than training keeps on the rank.
    verifier::Bundle other = *bundle;
    for (runtime::ProgramState& s : other.programs[0].program.states) s.operand.shape.push_back(1);
    EXPECT_FALSE(verifier::check_shared_states(other, *bundle->evaluation).ok());
    EXPECT_TRUE(verifier::check_shared_states(*bundle, *bundle->evaluation).ok());
    // Evaluation that trains.
    other = *bundle;
    State& s = other.evaluation->serial.states.front();
    s.next = other.evaluation->serial.outputs.front().value;
    EXPECT_FALSE(verifier::check_shared_states(other, *other.evaluation).ok());
  }
  EXPECT_GE(applied, 60);
  // Some changes are no faults: the peer of a sum, the slot of a micro-batch that leaves nothing behind.
  EXPECT_LE(passed, applied / 10) << harmless;
}

// What compression keeps has no counterpart in the serial program; checkpoints have it in the shape that it says.
TEST_F(Mutations, OfWhatCompressionKeepsAreFound) {
  auto bundle = sample_bundle(std::string(PARTITA_TEST_DATA) + "/gpt2", {.ranks = 2, .pins = {"compress=int8"}});
  ASSERT_TRUE(bundle.ok()) << bundle.status();
  ASSERT_TRUE(verifier::check_bundle(*bundle).ok()) << verifier::check_bundle(*bundle).status();
  int changed = 0;
  for (runtime::ProgramState& s : bundle->programs[0].program.states) {
    std::vector<int64_t>& shape = s.placement.logical;
    if (!s.name.starts_with("compress/") || shape.size() < 3 || changed == 3) continue;
    const std::vector<int64_t> right = std::exchange(shape, {shape[0], shape[2]});
    EXPECT_FALSE(verifier::check_bundle(*bundle).ok()) << s.name;
    shape = right;
    ++changed;
  }
  EXPECT_EQ(changed, 3);
}

TEST_F(Mutations, OfProgramsAreFound) {
  expect_all_found(program_mutations(), [](size_t, const verifier::Bundle& b) {
    if (b.programs.size() > 1) return verifier::check_bundle(b).status();
    const verifier::RankProgram& p = b.programs[0];
    return verifier::check_steps(p.code, p.program, p.claims, p.nests).status();
  });
}

// Other rows of a unit, lanes along other loops, and keeping what nobody reads again compute the same.
TEST_F(Mutations, OfKernelsAreFound) {
  const auto check = [](size_t, const verifier::Bundle& b) -> absl::Status {
    for (const verifier::RankProgram& p : b.programs)
      PARTITA_RETURN_IF_ERROR(verifier::check_steps(p.code, p.program, p.claims, p.nests).status());
    return absl::OkStatus();
  };
  expect_all_found(kernel_mutations(), check, 8, compiled);
}

}  // namespace
}  // namespace partita
