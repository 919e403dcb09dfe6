#include "base/cat.h"
#include "base/status.h"
#include "base/temporary_folder.h"
#include "tools/cli/command.h"
#include "tools/cli/find_rate.h"
#include "tools/write_bundle.h"

namespace partita {
namespace {

struct Flags {
  ModelFlags model;
  runtime::RunFlags run;
  LaunchFlags launch;
  std::string bundle;
  double find_rate = 0;  // highest rate to try; 0: train
};

constexpr int64_t kRateSteps = 100;

// The rate rises in a straight line over the run: a warm-up as long as the run.
absl::Status prepare_rate_test(Flags& flags, CompileRequest& request, const std::string& metrics) {
  if (!flags.run.checkpoint.empty() || flags.run.resume)
    return absl::InvalidArgumentError("--find-lr is a test run: it keeps no checkpoints");
  if (!flags.run.steps) flags.run.steps = kRateSteps;
  Recipe& recipe = request.recipe;
  if (!recipe.optimizer) recipe.optimizer = default_optimizer(OptimizerKind::kAdamW);
  recipe.optimizer->lr = flags.find_rate;
  recipe.schedule = {.kind = ScheduleKind::kConstant, .warmup = *flags.run.steps};
  flags.run.metrics.push_back(metrics);
  return absl::OkStatus();
}

absl::Status tell_rate(const std::string& metrics) {
  PARTITA_ASSIGN_OR_RETURN(std::vector<RatePoint> points, read_rate_points(metrics));
  PARTITA_ASSIGN_OR_RETURN(RateAdvice advice, advise_rate(points));
  std::printf(
      "learning rate: the loss falls fastest at %.3g; a tenth of the rate of its lowest value is %.3g (%zu of %zu "
      "steps used)\n",
      advice.steepest, advice.highest, advice.used, points.size());
  return absl::OkStatus();
}

absl::Status train(Flags& flags) {
  PARTITA_ASSIGN_OR_RETURN(std::string runner, find_runner());
  PARTITA_ASSIGN_OR_RETURN(CompileRequest request, flags.model.request());
  request.keep_gradients = !flags.run.save_gradients.empty();
  PARTITA_ASSIGN_OR_RETURN(TemporaryFolder temporary, TemporaryFolder::create("the bundle"));
  const std::string folder = flags.bundle.empty() ? temporary.file("bundle") : flags.bundle,
                    metrics = folder + "/rates.jsonl";
  if (flags.find_rate > 0) PARTITA_RETURN_IF_ERROR(prepare_rate_test(flags, request, metrics));
  {
    PARTITA_ASSIGN_OR_RETURN(Compiled compiled, compile_model(request));
    print_warnings(compiled);
    if (flags.model.time_passes) print_seconds(compiled);
    if (compiled.stopped) return absl::OkStatus();
    if (!flags.run.quiet) std::fputs(describe_choices(compiled).c_str(), stdout);
    PARTITA_RETURN_IF_ERROR(write_bundle(compiled, runner, folder));
  }
  PARTITA_RETURN_IF_ERROR(run_bundle(folder, flags.run, flags.launch));
  return flags.find_rate > 0 ? tell_rate(metrics) : absl::OkStatus();
}

}  // namespace

void add_train(CLI::App& app, absl::Status& result) {
  auto flags = std::make_shared<Flags>();
  CLI::App* verb = app.add_subcommand("train", "plan, compile and train in one go");
  flags->model.add(*verb);
  flags->run.add(*verb);
  flags->launch.add(*verb);
  verb->add_option("--bundle", flags->bundle, "keep the compiled bundle in this folder");
  verb->add_option("--find-lr", flags->find_rate,
                   "instead of training, raise the learning rate step by step up to this one and say which is good")
      ->check(CLI::PositiveNumber);
  verb->callback([flags, &result] { result = train(*flags); });
}

}  // namespace partita
