// The models of the faults of the field, and the compiler that makes one of them.
#include <sstream>

#include "base/atomic_file.h"
#include "base/cat.h"
#include "base/status.h"
#include "frontend/generate/gpt.h"
#include "frontend/generate/layers.h"
#include "ir/recipe/pins.h"
#include "ir/recipe/read_recipe.h"
#include "tools/flow/partition.h"
#include "tools/mutation/compile_stages.h"
#include "tools/mutation/field_faults.h"

namespace partita {
namespace {

// y = W2 dropout(relu(W1 x)), dropped out again.
absl::StatusOr<GraphWriter> dropout_model() {
  GraphWriter g("dropout");
  const std::string training = g.cast(g.integer(1), Element::kBool), ratio = g.number(0.5F);
  std::string x = g.input("x", Element::kFloat, {kBatchSymbol, 16});
  x = g.add_node("Relu", {dense(g, "up", x, 16, 32, 0.1)});
  x = g.add_node("Dropout", {x, ratio, training});
  x = dense(g, "down", x, 32, 16, 0.1);
  g.output(g.add_node("Dropout", {x, ratio, training}, {}, "y"), {kBatchSymbol, 16});
  PARTITA_RETURN_IF_ERROR(g.status());
  return g;
}

absl::Status write(const std::string& folder, const std::string& name, absl::StatusOr<GraphWriter> model,
                   const std::string& loss) {
  PARTITA_RETURN_IF_ERROR(model.status());
  PARTITA_RETURN_IF_ERROR(write_generated(*model, cat(folder, "/", name, ".onnx"), 0));
  const std::string optimizer =
      name == "muon" ? "{kind: muon, lr: 0.001, adamw: {match: ['*wte*', '*wpe*']}}" : "{kind: adamw, lr: 0.001}";
  return write_file_atomically(cat(folder, "/", name, ".yaml"),
                               cat("loss: ", loss, "\noptimizer: ", optimizer, "\nbatch: {global: 16}\nbind: {batch: ",
                                   name == "dropout" ? 16 : 4, "}\n", name == "untied" ? "" : "clip_grad_norm: 1.0\n"));
}

// "pin tensor=2 like zero1 gpu sm_90" -> flags.
absl::Status take_layout(std::string_view layout, Recipe& recipe, TargetOptions& target) {
  std::istringstream words{std::string(layout)};
  for (std::string flag, value; words >> flag >> value;) {
    if (flag == "pin") PARTITA_RETURN_IF_ERROR(apply_pin(recipe, value));
    if (flag == "like") PARTITA_RETURN_IF_ERROR(apply_preset(recipe, value));
    if (flag == "gpu") target.gpu = value;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status write_field_models(const std::string& folder) {
  GptSpec small{.layers = 1, .hidden = 32, .heads = 4, .vocab = 64, .sequence = 16};
  const std::string loss = "{kind: output, output: loss}";
  PARTITA_RETURN_IF_ERROR(write(folder, "gpt", generate_gpt(small), loss));
  GptSpec untied = small, odd = small, moe = small;
  untied.tied = false;
  untied.layers = 2;
  odd.vocab = 61;
  moe.moe = MoeSpec{.experts = 4, .top_k = 2};
  PARTITA_RETURN_IF_ERROR(write(folder, "muon", generate_gpt(small), loss));
  PARTITA_RETURN_IF_ERROR(write(folder, "untied", generate_gpt(untied), loss));
  PARTITA_RETURN_IF_ERROR(write(folder, "odd", generate_gpt(odd), loss));
  PARTITA_RETURN_IF_ERROR(write(folder, "moe", generate_gpt(moe), loss));
  return write(folder, "dropout", dropout_model(), "{kind: mse, output: y}");
}

absl::StatusOr<verifier::Bundle> compile_field(const FieldFault& fault, const std::string& folder, bool faulty) {
  const std::string file = cat(folder, "/", fault.model);
  PARTITA_ASSIGN_OR_RETURN(Recipe recipe, load_recipe(file + ".yaml"));
  TargetOptions target;
  PARTITA_RETURN_IF_ERROR(take_layout(fault.layout, recipe, target));
  ModelSource source(file + ".onnx", recipe);
  PassRun run = PassRun::unchecked();
  PhaseTimes times;
  PARTITA_ASSIGN_OR_RETURN(Partition partition,
                           partition_model(source, recipe, {.row_bytes = target.row_bytes()}, run, times));
  const absl::Status none = absl::NotFoundError(cat("nothing of the kind: ", fault.name));
  std::vector<LocalProgram> stages = std::move(partition.programs.stages);
  if (faulty && fault.in_graphs != nullptr && !fault.in_graphs(stages)) return none;
  PARTITA_ASSIGN_OR_RETURN(verifier::Bundle bundle, compile_stages(partition, stages, target));
  if (faulty && fault.in_programs != nullptr && !fault.in_programs(bundle)) return none;
  return bundle;
}

}  // namespace partita
