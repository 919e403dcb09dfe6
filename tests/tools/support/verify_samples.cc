#include "tests/tools/support/verify_samples.h"

#include <filesystem>

#include "base/cat.h"
#include "base/status.h"
#include "ir/recipe/pins.h"
#include "ir/recipe/read_recipe.h"
#include "ir/text/parse.h"
#include "ir/text/print.h"
#include "tests/support/command.h"
#include "tools/flow/compile.h"

namespace partita {
namespace {

// Through text, as a bundle on disk.
absl::Status take_programs(const Graph& serial, int64_t samples, const std::vector<ProgramClaims>& claims,
                           std::vector<runtime::Program> programs, verifier::ProgramSet& set) {
  PARTITA_ASSIGN_OR_RETURN(set.serial, parse_graph(print(serial)));
  set.samples = samples;
  for (size_t k = 0; k < programs.size(); ++k) {
    verifier::RankProgram& p = set.programs.emplace_back();
    PARTITA_ASSIGN_OR_RETURN(p.rank, parse_graph(print(verifier::without_weights(claims[k].graph))));
    PARTITA_RETURN_IF_ERROR(verifier::expand_rank(p));
    p.claims = claims[k].steps;
    PARTITA_ASSIGN_OR_RETURN(p.nests, parse_kernels(print_kernels(claims[k].nests)));
    p.program = std::move(programs[k]);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<verifier::Bundle> sample_bundle(const std::string& folder, const SampleLayout& layout) {
  CompileRequest request;
  request.model = folder + "/model.onnx";
  if (!std::filesystem::exists(request.model)) request.model = folder;
  PARTITA_ASSIGN_OR_RETURN(request.recipe, load_recipe(folder + "/train.yaml"));
  for (const std::string& preset : layout.like) PARTITA_RETURN_IF_ERROR(apply_preset(request.recipe, preset));
  for (const std::string& pin : layout.pins) PARTITA_RETURN_IF_ERROR(apply_pin(request.recipe, pin));
  request.ranks = layout.ranks;
  request.target.gpu = layout.gpu;
  if (layout.precision) request.recipe.precision = *layout.precision;
  request.keep_gradients = layout.keep_gradients;
  if (layout.evaluate) request.recipe.evaluate = EvaluateRecipe{.data = {.path = "text.bin"}};
  PARTITA_ASSIGN_OR_RETURN(Compiled compiled, compile_model(request));
  verifier::Bundle bundle;
  bundle.compress = enum_name(compiled.compress);
  PARTITA_RETURN_IF_ERROR(
      take_programs(compiled.serial, compiled.samples, compiled.claims, std::move(compiled.programs), bundle));
  if (layout.evaluate) {
    CompiledEvaluation& e = compiled.evaluation;
    PARTITA_RETURN_IF_ERROR(
        take_programs(e.serial, compiled.samples, e.claims, std::move(e.programs), bundle.evaluation.emplace()));
  }
  return bundle;
}

std::string made_model(const TempFolder& folder, const std::string& flags) {
  Outcome made =
      run_command(partita_program() + " model gpt --layers 2 --hidden 32 --heads 4 --seq 16 --quiet --with-weights " +
                  flags + " -o " + (folder / "model.onnx"));
  PARTITA_CHECK(made.code == 0, made.text);
  folder.write("train.yaml",
               "loss: {kind: output, output: loss}\noptimizer: {kind: adamw, lr: 0.001}\nbatch: {global: 16}\n"
               "bind: {batch: 4}\nclip_grad_norm: 1.0\n");
  return folder.path();
}

std::string describe(const SampleLayout& layout) {
  std::string s = cat(layout.ranks, " ranks");
  for (const std::string& l : layout.like) append(s, " --like ", l);
  for (const std::string& p : layout.pins) append(s, " --pin ", p);
  return s;
}

}  // namespace partita
