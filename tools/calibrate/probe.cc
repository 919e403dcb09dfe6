#include "tools/calibrate/probe.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/cat.h"
#include "base/mapped_file.h"
#include "base/status.h"
#include "base/temporary_folder.h"
#include "ir/recipe/read_recipe.h"
#include "nlohmann/json.hpp"
#include "runtime/program/bundle_files.h"
#include "runtime/program/bundle_names.h"
#include "runtime/run_flags.h"
#include "runtime/train/trainer.h"
#include "tools/flow/compile.h"
#include "tools/flow/plan.h"
#include "tools/flow/write_bundle.h"
#include "tools/machine/cuda_toolkit.h"

namespace partita {
namespace {

class StepTimeSink final : public runtime::MetricsSink {
 public:
  absl::Status write(const runtime::StepMetrics& metrics) override {
    seconds_.push_back(metrics.seconds);
    return absl::OkStatus();
  }
  double median() {
    std::sort(seconds_.begin(), seconds_.end());
    return seconds_.empty() ? 0 : seconds_[seconds_.size() / 2];
  }

 private:
  std::vector<double> seconds_;
};

}  // namespace

absl::StatusOr<ProbeResult> run_probe(GraphWriter graph, const Probe& probe, const std::string& runner) {
  PARTITA_RETURN_IF_ERROR(graph.status());
  PARTITA_ASSIGN_OR_RETURN(TemporaryFolder folder, TemporaryFolder::create("a probe"));
  const std::string model = folder.file("model.onnx"), bundle = folder.file("bundle");
  PARTITA_RETURN_IF_ERROR(write_generated(graph, model, std::nullopt));
  CompileRequest request;
  request.model = model;
  PARTITA_ASSIGN_OR_RETURN(
      request.recipe,
      parse_recipe(cat(probe.recipe, "batch: {global: ", probe.samples * probe.ranks,
                       "}\ndata: {kind: synthetic}\ninit: [{match: '*', normal: {std: 0.02}}]\npin: {data: ",
                       probe.ranks, "}\n"),
                   "probe"));
  request.ranks = probe.ranks;
  if (!probe.gpu.empty()) {
    request.target.gpu = probe.gpu;
    PARTITA_ASSIGN_OR_RETURN(request.target.assembler, find_assembler());
  }
  {
    PARTITA_ASSIGN_OR_RETURN(Compiled compiled, compile_model(request));
    PARTITA_RETURN_IF_ERROR(write_bundle(compiled, runner, bundle));
  }
  runtime::RunFlags flags;
  flags.steps = probe.steps;
  flags.quiet = true;
  PARTITA_ASSIGN_OR_RETURN(const auto files, runtime::BundleFiles::open(bundle));
  PARTITA_ASSIGN_OR_RETURN(runtime::TrainOptions options, flags.options(*files));
  PARTITA_ASSIGN_OR_RETURN(std::vector<runtime::Program> programs, files->programs(runtime::kImageName));
  PARTITA_ASSIGN_OR_RETURN(auto loaded, runtime::LoadedPrograms::load(std::move(programs)));
  StepTimeSink plain;
  if (!probe.gpu.empty()) PARTITA_RETURN_IF_ERROR(runtime::train_local(loaded, options, &plain));
  options.profile = folder.file("trace.json"), options.profile_tables = false;
  PARTITA_RETURN_IF_ERROR(runtime::train_local(loaded, options, nullptr));
  ProbeResult result;
  PARTITA_ASSIGN_OR_RETURN(MappedFile trace, MappedFile::open(options.profile));
  PARTITA_ASSIGN_OR_RETURN(result.run, read_measured_run(trace.text(), options.profile));
  result.gap_seconds = result.run.gap_seconds;
  if (!probe.gpu.empty()) {
    const double kernels = std::accumulate(result.run.class_seconds.begin(), result.run.class_seconds.end(), 0.0);
    result.gap_seconds = std::max(0.0, plain.median() - kernels);
  }
  ModelSource source(model, request.recipe);
  PARTITA_ASSIGN_OR_RETURN(result.workload, analyse_model(source));
  return result;
}

}  // namespace partita
