#include "base/atomic_file.h"
#include "base/cat.h"
#include "base/mapped_file.h"
#include "base/quote.h"
#include "base/status.h"
#include "base/temporary_folder.h"
#include "ir/recipe/read_recipe.h"
#include "ir/recipe/write_recipe.h"
#include "partitioner/planner/report/plan_file.h"
#include "runtime/device/device.h"
#include "runtime/launch/plugin.h"
#include "tools/cli/command.h"
#include "tools/cli/find_rate.h"
#include "tools/flow/describe_choices.h"
#include "tools/flow/plan.h"
#include "tools/flow/write_bundle.h"
#include "tools/machine/cuda_toolkit.h"
#include "tools/machine/local_gpus.h"

namespace partita {
namespace {

struct Flags {
  ModelFlags model;
  runtime::RunFlags run;
  LaunchFlags launch;
  std::string bundle;
  std::string cluster, profiles;
  double find_rate = 0;  // highest rate to try; 0: train
  bool print_config = false;
};

constexpr int64_t kRateSteps = 100;

// The rate rises in a straight line over the run: a warm-up as long as the run.
absl::Status prepare_rate_test(Flags& flags, CompileRequest& request, const std::string& metrics) {
  if (!flags.run.checkpoint.empty() || flags.run.resume)
    return absl::InvalidArgumentError("--find-lr is a test run: it keeps no checkpoints");
  if (!flags.run.steps) flags.run.steps = kRateSteps;
  flags.run.only_warn();  // too high a rate is to be found
  Recipe& recipe = request.recipe;
  if (!recipe.optimizer) recipe.optimizer = default_optimizer(OptimizerKind::kAdamW);
  OptimizerRecipe& optimizer = *recipe.optimizer;
  if (optimizer.lr > 0) {  // all others in the same proportion
    const double proportion = flags.find_rate / optimizer.lr;
    optimizer.adamw.lr *= proportion;
    for (ParameterGroup& group : optimizer.groups) group.lr *= proportion, group.adamw.lr *= proportion;
  }
  optimizer.lr = flags.find_rate;
  recipe.schedule = {.kind = ScheduleKind::kConstant, .warmup = *flags.run.steps};
  flags.run.metrics.push_back(metrics);
  return absl::OkStatus();
}

absl::Status tell_rate(const std::string& metrics) {
  PARTITA_ASSIGN_OR_RETURN(std::vector<RatePoint> points, read_rate_points(metrics));
  PARTITA_ASSIGN_OR_RETURN(RateAdvice advice, advise_rate(points));
  std::printf(
      "learning rate: %.3g (the loss falls fastest at %.3g, and a tenth of the rate of its lowest value is %.3g; %zu "
      "of "
      "%zu steps used)\n",
      std::min(advice.steepest, advice.highest), advice.steepest, advice.highest, advice.used, points.size());
  return absl::OkStatus();
}

// Whether train.yaml says a part of the layout.
absl::StatusOr<bool> recipe_says_layout(const ModelFlags& model) {
  if (model.train_file.empty() && model.sets.empty()) return false;
  PARTITA_ASSIGN_OR_RETURN(Recipe recipe, load_recipe(model.train_file, model.sets));
  return !(recipe.pin == PinRecipe{});
}

// The GPUs that a run without --target is for; none where there are none, or where this build cannot use them.
absl::StatusOr<LocalGpus> usable_gpus(bool quiet) {
  PARTITA_ASSIGN_OR_RETURN(LocalGpus gpus, find_local_gpus());
  if (gpus.count == 0) return gpus;
  const auto module = runtime::find_plugin(runtime::kCudaModule, runtime::default_plugin_directories());
  const absl::Status usable = module.ok() ? find_assembler().status() : module.status();
  if (usable.ok()) return gpus;
  if (!quiet)
    std::fprintf(stderr, "note: training on the processors, not on %d x %s: %s\n", gpus.count, gpus.name.c_str(),
                 std::string(usable.message()).c_str());
  return LocalGpus{};
}

// Searches a layout for the devices of --cluster, or, where nothing is said of the layout, for this machine's GPUs, and
// has it compiled. Nothing where there are neither: one rank then, or what the flags and train.yaml say.
absl::Status plan_for_devices(Flags& flags) {
  ModelFlags& m = flags.model;
  LocalGpus gpus;
  if (m.target.empty()) {
    PARTITA_ASSIGN_OR_RETURN(gpus, usable_gpus(flags.run.quiet));
  }
  PlanRequest request{.model = m.model,
                      .train_file = m.train_file,
                      .cluster_file = flags.cluster,
                      .profile_file = flags.profiles,
                      .pins = m.pins,
                      .like = m.like,
                      .precision = m.precision,
                      .sets = m.sets};
  PARTITA_ASSIGN_OR_RETURN(const ProfileLibrary library, load_profiles(flags.profiles));
  if (!flags.cluster.empty()) {
    if (!m.plan.empty() || m.ranks)
      return absl::InvalidArgumentError(
          "--cluster has the layout searched; leave out --plan and --ranks, or --cluster");
    PARTITA_ASSIGN_OR_RETURN(Cluster cluster, load_cluster(flags.cluster, library));
    const bool on_host = cluster.groups[0].device.host_update_rate == 0;
    if (cluster.groups.size() > 1 || cluster.groups[0].nodes > 1)
      return absl::InvalidArgumentError(
          cat(quote(flags.cluster),
              ": expected one node, this one; for more plan, compile, and start BUNDLE/rank on "
              "each with mpirun, torchrun or srun"));
    if (!on_host && m.target.empty()) {
      if (gpus.count == 0)
        return absl::FailedPreconditionError(cat(quote(flags.cluster), " is of ", cluster.groups[0].device.name,
                                                 ", and no GPU was found here; say --target"));
      m.target = cat("cuda:", gpus.architecture);
    }
  } else {
    if (gpus.count == 0) return absl::OkStatus();
    m.target = cat("cuda:", gpus.architecture);
    PARTITA_ASSIGN_OR_RETURN(bool said, recipe_says_layout(m));
    if (said || m.says_layout()) return absl::OkStatus();
    const auto cluster = cluster_of_gpus(gpus, library);
    if (!cluster.ok()) {
      m.ranks = gpus.count;
      if (!flags.run.quiet)
        std::fprintf(stderr, "note: data parallel over %d GPUs, without a search: %s\n", gpus.count,
                     std::string(cluster.status().message()).c_str());
      return absl::OkStatus();
    }
    request.cluster = *cluster;
    if (!flags.run.quiet) std::printf("%d x %s\n", gpus.count, gpus.name.c_str());
  }
  PARTITA_ASSIGN_OR_RETURN(m.made, search_plan(request, flags.run.quiet));
  m.pins.clear(), m.like.clear();  // the plan has them
  return absl::OkStatus();
}

// The plan that was built, for explain, simulate and report.
absl::Status keep_plan(const ModelFlags& model, const std::string& path) {
  if (model.made) return write_file_atomically(path, plan_text(*model.made));
  if (model.plan.empty()) return absl::OkStatus();
  PARTITA_ASSIGN_OR_RETURN(MappedFile plan, MappedFile::open(model.plan));
  return write_file_atomically(path, plan.text());
}

void tell_training(const Flags& flags, const Compiled& compiled) {
  std::fputs(describe_training(compiled).c_str(), stdout);
  if (flags.model.made) std::printf("predicted: %.3g s a step\n", flags.model.made->predicted.step_seconds);
  std::fflush(stdout);
}

absl::Status train(Flags& flags) {
  PARTITA_ASSIGN_OR_RETURN(std::string runner, find_runner());
  PARTITA_ASSIGN_OR_RETURN(TemporaryFolder temporary, TemporaryFolder::create("the bundle"));
  PARTITA_RETURN_IF_ERROR(plan_for_devices(flags));
  PARTITA_ASSIGN_OR_RETURN(CompileRequest request, flags.model.request());
  request.keep_gradients = !flags.run.save_gradients.empty();
  const std::string folder = flags.bundle.empty() ? temporary.file("bundle") : flags.bundle,
                    metrics = folder + "/rates.jsonl";
  if (flags.find_rate > 0) PARTITA_RETURN_IF_ERROR(prepare_rate_test(flags, request, metrics));
  if (flags.print_config) {
    std::fputs(format_recipe(request.recipe).c_str(), stdout);
    return absl::OkStatus();
  }
  {
    PARTITA_ASSIGN_OR_RETURN(Compiled compiled, compile_model(request));
    print_warnings(compiled);
    if (flags.model.time_passes) print_seconds(compiled);
    if (compiled.stopped) return absl::OkStatus();
    if (!flags.run.quiet) tell_training(flags, compiled);
    PARTITA_RETURN_IF_ERROR(write_bundle(compiled, runner, folder));
  }
  if (!flags.bundle.empty()) PARTITA_RETURN_IF_ERROR(keep_plan(flags.model, folder + "/plan.json"));
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
  CLI::Option* cluster = verb->add_option(
      "--cluster", flags->cluster,
      "search the layout for the devices of this cluster.yaml, one node; default: this machine's GPUs, if it has some "
      "and nothing says the layout");
  verb->add_option("--profiles", flags->profiles, "YAML of devices and links that replaces built-in values")
      ->needs(cluster);
  verb->add_option("--bundle", flags->bundle, "keep the compiled bundle, and the plan, in this folder");
  verb->add_option("--find-lr", flags->find_rate,
                   "instead of training, raise the learning rate step by step up to this one and say which is good")
      ->check(CLI::PositiveNumber);
  verb->add_flag("--print-config", flags->print_config,
                 "instead of training, write the recipe with all that plan and flags say: a train.yaml");
  verb->callback([flags, &result] { result = train(*flags); });
}

}  // namespace partita
