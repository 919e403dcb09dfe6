// A campaign of other orders of summation.
#include <algorithm>

#include "base/atomic_file.h"
#include "base/cat.h"
#include "base/status.h"
#include "base/temporary_folder.h"
#include "frontend/generate/gpt.h"
#include "ir/recipe/pins.h"
#include "ir/recipe/read_recipe.h"
#include "tools/mutation/compile_stages.h"
#include "tools/mutation/tree_mutations.h"
#include "tools/verify/certificate.h"

namespace partita {
namespace {

constexpr int64_t kParts = 8, kBlocks = 4;

// Two ranks with four micro-batches each; sums over two axes; gradients that are scattered with each micro-batch; a
// pipeline whose ends share a table; kernels and collectives of GPUs; products over whose inner dimensions ranks add
// up.
struct TreeLayout {
  std::string_view name;
  std::vector<std::string> presets, pins;
  std::string gpu = "";  // for processors where it is empty
  int64_t blocks = 1;    // of inner dimensions
};
const std::vector<TreeLayout>& layouts() {
  static const std::vector<TreeLayout> all = {
      {"ddp", {"ddp"}, {"data=2"}},
      {"hsdp", {"zero3"}, {"data=4", "zero_group=2"}},
      {"zero2", {"zero2"}, {"data=2"}},
      {"pipeline", {}, {"data=2", "pipeline=2"}},
      {"zero2 on GPUs", {"zero2"}, {"data=2"}, "sm_80"},
      {"tensor", {}, {"data=2", "tensor=2"}, "", kBlocks},
  };
  return all;
}

// A layout's partition and its bundle as it should be.
struct Sample {
  int64_t blocks;
  TargetOptions target;
  Partition partition;
  verifier::Bundle bundle;
};

nlohmann::json run_of(int64_t blocks) {
  if (blocks == 1) return {{"reproducible", kParts}};
  return {{"reproducible", {{"samples", kParts}, {"tensor", blocks}}}};
}

absl::StatusOr<Sample> make_sample(const TreeLayout& layout, const std::string& model, Recipe recipe) {
  for (const std::string& preset : layout.presets) PARTITA_RETURN_IF_ERROR(apply_preset(recipe, preset));
  for (const std::string& pin : layout.pins) PARTITA_RETURN_IF_ERROR(apply_pin(recipe, pin));
  recipe.reproducible->tensor = layout.blocks;
  ModelSource source(model, recipe);
  PassRun run = PassRun::unchecked();
  PhaseTimes times;
  Sample s{.blocks = layout.blocks, .target = {.gpu = layout.gpu, .strict = true}, .partition = {}, .bundle = {}};
  PARTITA_ASSIGN_OR_RETURN(s.partition,
                           partition_model(source, recipe, {.row_bytes = s.target.row_bytes()}, run, times));
  PARTITA_ASSIGN_OR_RETURN(s.bundle, compile_stages(s.partition, s.partition.programs.stages, s.target));
  s.bundle.run = run_of(s.blocks);
  const auto verdict = verifier::check_bundle(s.bundle);
  if (!verdict.ok())
    return absl::FailedPreconditionError(cat(layout.name, ": rejected as it should be: ", verdict.status().message()));
  return s;
}

// The sample with the fault in it; NotFound where it has nothing of the kind.
absl::StatusOr<verifier::Bundle> broken(const Sample& s, const TreeMutation& m, std::mt19937& rng) {
  verifier::Bundle bundle = s.bundle;
  if (m.in_programs != nullptr) {
    if (m.in_programs(bundle, rng)) return bundle;
    return absl::NotFoundError(std::string(m.name));
  }
  std::vector<LocalProgram> stages = s.partition.programs.stages;
  if (!m.in_graphs(stages, rng)) return absl::NotFoundError(std::string(m.name));
  PARTITA_ASSIGN_OR_RETURN(bundle, compile_stages(s.partition, stages, s.target));
  bundle.run = run_of(s.blocks);
  return bundle;
}

absl::StatusOr<std::vector<Sample>> make_samples() {
  PARTITA_ASSIGN_OR_RETURN(const TemporaryFolder folder, TemporaryFolder::create("the model"));
  const std::string model = folder.path() + "/model.onnx", recipe_file = folder.path() + "/train.yaml";
  PARTITA_ASSIGN_OR_RETURN(GraphWriter gpt,
                           generate_gpt({.layers = 2, .hidden = 32, .heads = 4, .vocab = 64, .sequence = 16}));
  PARTITA_RETURN_IF_ERROR(write_generated(gpt, model, 0));
  PARTITA_RETURN_IF_ERROR(write_file_atomically(
      recipe_file, cat("loss: {kind: output, output: loss}\noptimizer: {kind: adamw, lr: 0.001}\nbatch: {global: 16}\n"
                       "clip_grad_norm: 1.0\nreproducible: ",
                       kParts, "\n")));
  PARTITA_ASSIGN_OR_RETURN(const Recipe recipe, load_recipe(recipe_file));
  std::vector<Sample> samples;
  for (const TreeLayout& layout : layouts()) {
    PARTITA_ASSIGN_OR_RETURN(Sample s, make_sample(layout, model, recipe));
    samples.push_back(std::move(s));
  }
  return samples;
}

}  // namespace

absl::StatusOr<TreeReport> run_tree_campaign(int mutations, uint32_t seed) {
  std::vector<TreeMutation> kinds(tree_graph_mutations().begin(), tree_graph_mutations().end());
  kinds.insert(kinds.end(), tree_program_mutations().begin(), tree_program_mutations().end());
  PARTITA_ASSIGN_OR_RETURN(const std::vector<Sample> samples, make_samples());
  TreeReport report;
  for (int k = 0; k < mutations; ++k) {
    std::mt19937 rng(seed + static_cast<uint32_t>(k));
    // Not every layout has something of every kind; the same draws lead on to one that has.
    const size_t drawn = rng() % kinds.size();
    for (size_t tries = 0;; ++tries) {
      const size_t at = rng() % samples.size();
      const TreeMutation& kind = kinds[(drawn + tries / (8 * samples.size())) % kinds.size()];
      const auto bundle = broken(samples[at], kind, rng);
      if (absl::IsNotFound(bundle.status())) continue;
      PARTITA_RETURN_IF_ERROR(bundle.status());
      if (verifier::check_bundle(*bundle).ok()) {
        report.accepted.push_back(cat(seed + static_cast<uint32_t>(k), ": ", layouts()[at].name, ": ", kind.name));
      } else {
        ++report.rejected[std::string(kind.name)];
      }
      break;
    }
  }
  return report;
}

}  // namespace partita
