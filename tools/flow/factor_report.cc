#include "tools/flow/factor_report.h"

#include <chrono>
#include <filesystem>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "partitioner/prepare/fold_blocks.h"
#include "passes/pipeline.h"
#include "tools/flow/compile.h"
#include "tools/flow/model_source.h"

namespace partita {
namespace {

// "all-reduce 1 + 1": forward + backward.
std::string moves_text(const SplitOutcome& o) {
  std::string text;
  auto both = [&](std::string_view name, int forward, int backward) {
    if (forward + backward > 0) append(text, text.empty() ? "" : ", ", name, " ", forward, " + ", backward);
  };
  both("all-reduce", o.forward.all_reduce, o.backward.all_reduce);
  both("all-gather", o.forward.all_gather, o.backward.all_gather);
  both("reduce-scatter", o.forward.reduce_scatter, o.backward.reduce_scatter);
  both("all-to-all", o.forward.all_to_all, o.backward.all_to_all);
  auto one = [&](std::string_view name, int n) {
    if (n > 0) append(text, text.empty() ? "" : ", ", name, " ", n);
  };
  one("rows", o.rows);
  one("gradients", o.gradients);
  one("update", o.update);
  return text.empty() ? "nothing" : text;
}

std::string cell(const std::optional<SplitOutcome>& outcome) {
  if (!outcome) return "–";
  return cat(outcome->textbook ? "yes" : "**no**", outcome->ways > 2 ? cat(" (", outcome->ways, " ways)") : "", ": ",
             moves_text(*outcome));
}

// Safe inside a cell of a Markdown table.
std::string markdown(const std::string& name) {
  std::string text = name.empty() ? "" : quote(name, 60);
  for (char& c : text) {
    if (c == '|' || c == '`' || c == '<' || c == '>') c = '_';
  }
  return text;
}

int64_t graph_batch(const Graph& graph) {
  for (const GraphInput& in : graph.inputs) {
    if (in.kind == InputKind::kData && !graph.type(in.value).shape.empty()) return graph.type(in.value).shape[0];
  }
  return 1;
}

absl::StatusOr<FactorTable> analyse(Graph forward, const TrainingSpec& spec, const Recipe& recipe) {
  PassContext context;
  context.recipe = recipe;
  context.recipe.optimizer = default_optimizer(OptimizerKind::kSgd);
  context.recipe.clip_grad_norm = context.recipe.clip_grad_value = std::nullopt;
  context.recipe.schedule = {};
  context.training = spec;
  context.training.groups.clear();
  context.micro_batches = graph_batch(forward) > 1 ? 1 : 2;
  const std::vector<Pass> all = graph_passes(PassUse::kTraining);
  const std::span<const Pass> passes = all;
  size_t tagged = 0;
  while (tagged < passes.size() && passes[tagged].name != "tag_blocks") ++tagged;
  PARTITA_CHECK(tagged < passes.size(), "the pipeline tags no blocks");
  PassRun run;
  PARTITA_ASSIGN_OR_RETURN(Graph graph, run_passes(passes.first(tagged + 1), std::move(forward), context, run));
  FoldedGraph folded = fold_blocks(graph);
  PARTITA_ASSIGN_OR_RETURN(graph, run_passes(passes.subspan(tagged + 1), std::move(folded.graph), context, run));
  return factor_table(graph, folded.repeats, context.micro_batches);
}

}  // namespace

absl::StatusOr<FactorReport> factor_report(const std::string& model, const Recipe& recipe) {
  auto start = std::chrono::steady_clock::now();
  ImportOptions options = import_options(recipe);
  options.batch = recipe.batch.global.value_or(2);
  PARTITA_ASSIGN_OR_RETURN(ImportedModel imported, import_onnx(model, options));
  FactorReport report;
  std::filesystem::path path = std::filesystem::path(model).lexically_normal();
  if (path.filename() == "model.onnx" || path.filename().empty()) path = path.parent_path();
  report.model = path.filename().string();
  PARTITA_ASSIGN_OR_RETURN(report.table,
                           analyse(std::move(imported.graph), imported.training.value_or(TrainingSpec{}), recipe));
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

std::string to_text(const FactorReport& report) {
  std::string text = cat(quote(report.model), ": ", report.table.passed(), " of ", report.table.tried(),
                         " splits go through with the textbook's communication\n");
  for (const FactorSite& site : report.table.sites) {
    append(text, "  ", site_name(site.kind), site.repeats > 1 ? cat(" x ", site.repeats) : "",
           site.name.empty() ? "" : cat(" at ", quote(site.name, 80)), "\n");
    for (int k = 0; k < kSplitKinds; ++k) {
      if (site.splits[k]) append(text, "    ", split_name(static_cast<SplitKind>(k)), " ", cell(site.splits[k]), "\n");
    }
  }
  return text;
}

std::string to_markdown(const FactorReport& report) {
  std::string text = cat("## ", markdown(report.model), "\n\n", report.table.passed(), " of ", report.table.tried(),
                         " splits go through.\n\n| site | at | times |");
  for (int k = 0; k < kSplitKinds; ++k) append(text, " ", split_name(static_cast<SplitKind>(k)), " |");
  append(text, "\n|---|---|---|---|---|---|---|---|\n");
  for (const FactorSite& site : report.table.sites) {
    append(text, "| ", site_name(site.kind), " | ", markdown(site.name), " | ", site.repeats, " |");
    for (const auto& outcome : site.splits) append(text, " ", cell(outcome), " |");
    append(text, "\n");
  }
  return text + "\n";
}

std::string to_json(const FactorReport& report) {
  nlohmann::json sites = nlohmann::json::array();
  for (const FactorSite& site : report.table.sites) {
    nlohmann::json splits = nlohmann::json::object();
    for (int k = 0; k < kSplitKinds; ++k) {
      if (!site.splits[k]) continue;
      const SplitOutcome& o = *site.splits[k];
      splits[std::string(split_name(static_cast<SplitKind>(k)))] = {
          {"textbook", o.textbook}, {"ways", o.ways}, {"communication", moves_text(o)}};
    }
    sites.push_back({{"kind", site_name(site.kind)}, {"at", site.name}, {"times", site.repeats}, {"splits", splits}});
  }
  nlohmann::json out = {{"model", report.model},
                        {"tried", report.table.tried()},
                        {"passed", report.table.passed()},
                        {"seconds", report.seconds},
                        {"sites", sites}};
  return out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace partita
