#include "runtime/run_flags.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>

#include "CLI/App.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "base/cat.h"
#include "base/host/processors.h"
#include "base/quote.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "runtime/data/data_config_json.h"
#include "runtime/program/bundle_files.h"
#include "runtime/program/bundle_names.h"
#include "runtime/program/bundle_plans.h"

namespace partita::runtime {
namespace {

constexpr int64_t kLongestWindow = 100000;  // losses that a spike is measured against, kept in checkpoints

// FACTOR[,WINDOW[,ACTION]].
absl::StatusOr<LossSpike> parse_loss_spike(const std::string& flag) {
  const std::vector<std::string> parts = absl::StrSplit(flag, ',');
  LossSpike spike;
  const auto action = parts.size() > 2 ? parse_enum<DivergenceAction>(parts[2]) : DivergenceAction::kWarn;
  const bool read = absl::SimpleAtod(parts[0], &spike.factor) &&
                    (parts.size() < 2 || absl::SimpleAtoi(parts[1], &spike.window)) && action &&
                    *action != DivergenceAction::kSkip && parts.size() <= 3;
  if (!read || !(spike.factor > 1) || spike.window < 1 || spike.window > kLongestWindow)
    return absl::InvalidArgumentError(cat("--loss-spike ", quote(flag),
                                          ": expected a factor > 1, a number of steps from 1 to ", kLongestWindow,
                                          ", and warn, rollback or stop, as in 3,100,rollback"));
  spike.action = *action;
  return spike;
}

}  // namespace

void RunFlags::add(CLI::App& app) {
  app.add_option(
      "--data", data,
      "where the samples are: an .npz with one array per input, a folder of .npy files, a token file "
      "(FILE:uint16 says the type of its ids), any text (one byte a token), or shards: a folder with an index "
      "that `partita data index` made, or s3://BUCKET/PREFIX");
  app.add_option("--data-cache", cache.folder,
                 "the folder for shards that are fetched from an object store; default: ~/.cache/partita/data");
  app.add_option("--data-cache-bytes", cache.bytes,
                 "how much of them, as 500GB: what was needed longest ago goes; default: 64 GiB")
      ->transform(CLI::AsSizeValue(false));
  app.add_option("--steps", steps, "optimizer steps; default: as many as the data have")->check(CLI::NonNegativeNumber);
  app.add_option("--epochs", epochs, "passes over the data, where --steps does not say where to end")
      ->check(CLI::PositiveNumber);
  app.add_option("--log-every", log_every, "steps from one line of numbers to the next; default: 40 lines a run")
      ->check(CLI::PositiveNumber);
  app.add_option("--metrics", metrics,
                 "also write each step's numbers to this file: .jsonl, .csv, .prom, or a folder for TensorBoard")
      ->allow_extra_args(false);
  app.add_option("--save", save, "write the trained parameters to this safetensors file");
  app.add_option("--save-gradients", save_gradients,
                 "write the first step's gradients, before clipping, to this safetensors file");
  app.add_option(
      "--profile", profile,
      "time every step of the program: tables to stderr, rank 0's Chrome trace to this file, others' beside FILE.json");
  app.add_option(
      "--tune", tune,
      "on GPUs: time the candidates for each matrix product at the first start, and keep the choices in this "
      "file for the next ones");
  app.add_option(
      "--checkpoint", checkpoint,
      "write checkpoints into this folder: after the last step, on SIGTERM, SIGINT and SIGUSR1, and as --every says");
  app.add_option(
      "--checkpoint-to", checkpoint_to,
      "where complete checkpoints are copied to while training goes on, and fetched from where --checkpoint's "
      "folder has less: a folder, or s3://BUCKET/PREFIX");
  app.add_option("--every", every, "steps from one checkpoint to the next")->check(CLI::PositiveNumber);
  app.add_option("--mirror", mirror.every,
                 "every so many steps, copy the states into another host's memory: a run that loses one host goes on "
                 "from there")
      ->check(CLI::PositiveNumber);
  app.add_option("--mirror-in", mirror.in, "the folder in each host's memory that holds the copies; default: /dev/shm");
  app.add_option("--keep", keep, "checkpoints to keep, the newest; 0: all")->check(CLI::NonNegativeNumber);
  app.add_option("--keep-best", keep_best, "keep this many of lowest evaluation loss besides")
      ->check(CLI::NonNegativeNumber);
  app.add_option_function<std::vector<std::string>>(
         "--resume", [this](const std::vector<std::string>& values) { resume = values.empty() ? "" : values.front(); },
         "go on from the newest checkpoint in --checkpoint's folder, if there is one, or from this one; --steps counts "
         "those already taken")
      ->expected(0, 1)
      ->type_name("[auto|PATH]");
  app.add_flag("--new-pass", new_pass,
               "with --resume: begin a pass over the data, if they are others than the checkpoint's, or used up");
  app.add_option(
         "--audit", audit,
         "every so many steps, and before checkpoints, compare what ranks hold alike, and run every second such "
         "step twice: ends with 4 where bits differ")
      ->check(CLI::PositiveNumber);
  app.add_option(
         "--on-nonfinite", on_nonfinite,
         "when a step's loss or gradients are not finite: stop (with code 5), skip its update (of programs that "
         "were compiled so), roll back to the newest good checkpoint and leave out its samples, or warn and go "
         "on; default: the recipe's run.on_nonfinite, else stop")
      ->check(CLI::IsMember({"stop", "skip", "rollback", "warn"}));
  app.add_option(
         "--find-bad-value", find_bad_value,
         "when a step that was not finite ends the run or takes it back: take the steps again, for so many seconds at "
         "most, and name the first value that went wrong; 0: do not")
      ->check(CLI::Range(0, 1000000))
      ->capture_default_str();
  app.add_option(
         "--loss-spike", loss_spike,
         "what is a spike of the loss, and what is done about one: more than FACTOR times the mean of the WINDOW "
         "(100) losses before it; warn, rollback or stop; off: none is looked for; default: the recipe's "
         "run.loss_spike")
      ->type_name("FACTOR[,WINDOW[,ACTION]]");
  app.add_option(
      "--init", init,
      "start a new run from the parameters of this checkpoint, of a PyTorch module's safetensors file, or of "
      "a folder that save_pretrained() wrote (model.safetensors, or its index and shards)");
  app.add_option("--init-optimizer", init_optimizer,
                 "start with these optimizer states: a safetensors file of NAME.exp_avg and the like");
  app.add_option("--strip-prefix", renaming.strip,
                 "taken from the front of the model's names to find those of --init and --init-optimizer");
  app.add_option("--add-prefix", renaming.add, "put before the model's names to find those");
  app.add_option("--patience", patience,
                 "end early after this many evaluations in a row whose loss is not below the best")
      ->check(CLI::PositiveNumber);
  app.add_option("--min-gain", min_gain, "by which an evaluation's loss must be below the best to count")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--fast-dev-run", fast_dev_run,
               "one step and one batch of evaluation, no checkpoint: does everything work?");
  app.add_option("--threads", threads, "threads of each rank at most; default: the cores divided among the ranks")
      ->check(CLI::Range(1, 4096));
  bind = enum_name(BindMode::kAuto);
  app.add_option(
         "--bind", bind,
         "auto: of ranks that share a host, bind each to its part of the cores, within a NUMA node where it can "
         "be, and near its GPU; none: leave them to the system. What a launcher has bound stays as it is")
      ->check(CLI::IsMember({"auto", "none"}))
      ->capture_default_str();
  app.add_option("--listen-metrics", listen_metrics,
                 "serve the newest step's numbers to Prometheus at /metrics: PORT, for this host alone, or HOST:PORT");
  app.add_option("--peak-flops", peak_flops,
                 "what one rank's device can do in a second, for MFU: 989e12; default: the plan's, else there is none")
      ->check(CLI::PositiveNumber);
  app.add_option(
         "--timeout", timeouts,
         "give the run up where a phase takes longer: PHASE=SECONDS, of start, data, step, collective, "
         "checkpoint, evaluation; default: the recipe's run.timeout, else ten median steps, and at least 30 s to 30 "
         "minutes")
      ->allow_extra_args(false);
  app.add_option("--log-dir", log_folder,
                 "each rank's output goes into a file in this folder, and its flight record beside it (`partita "
                 "autopsy`)");
  app.add_flag("--shuffle", shuffle, "take samples in a random order, another one each epoch");
  app.add_option(
         "--progress", progress,
         "bar, or lines; default: a bar on a terminal (mpirun hands on what ranks say, which see none: say bar)")
      ->check(CLI::IsMember({"auto", "bar", "lines"}));
  app.add_flag("--quiet", quiet, "say nothing but warnings and errors");
  app.add_flag("--require-certificate", require_certificate, "refuse a bundle that `partita verify` has not proved");
  app.add_option("--trust", trust_key,
                 "refuse a bundle whose certificate is not signed by this key: a PEM file with an Ed25519 public key "
                 "(`partita verify --sign`)");
}

namespace {

// A path, or a path of raw ids and their type.
absl::Status take_path(const std::string& flag, DataConfig& config) {
  config.path = flag;
  const size_t colon = flag.rfind(':');
  std::error_code ignored;
  if (colon == flag.npos || colon == 0 || std::filesystem::exists(flag, ignored)) return absl::OkStatus();
  config.path = flag.substr(0, colon);
  if (!std::filesystem::exists(config.path, ignored)) {
    config.path = flag;
    return absl::OkStatus();
  }
  config.dtype = parse_element_type(flag.substr(colon + 1));
  if (!is_integer(config.dtype))
    return absl::InvalidArgumentError(cat("--data ", quote(flag, 1000), ": ", quote(flag.substr(colon + 1)),
                                          " is no type of ids; expected uint8, uint16, int32, …"));
  return absl::OkStatus();
}

}  // namespace

absl::Status take_data_flag(const std::string& flag, DataConfig& config) {
  config.sources.clear();
  PARTITA_RETURN_IF_ERROR(take_path(flag, config));
  // Synthetic samples have no file: the kind is that of the one that takes their place.
  if (config.kind == DataKind::kSynthetic) config.kind = guess_data_kind(config.path);
  return absl::OkStatus();
}

BundleTrust RunFlags::trust() const { return {require_certificate, trust_key}; }

absl::StatusOr<TrainOptions> RunFlags::options(const BundleFiles& bundle) const {
  const nlohmann::json& manifest = bundle.manifest();
  const std::string path = cat(bundle.folder(), "/", kManifestName);
  if (!manifest.contains("data"))
    return absl::DataLossError(cat(quote(path), " is damaged: it says nothing of data; compile the bundle again"));
  TrainOptions o;
  auto config = data_config_from_json(manifest["data"]);
  if (!config.ok()) return with_context(config.status(), quote(path));
  o.data = *std::move(config);
  if (!data.empty()) {
    PARTITA_RETURN_IF_ERROR(take_data_flag(data, o.data));
  }
  o.data.feed = feed;
  o.data.cache = cache;
  if (!manifest["data"].contains("kind") && !o.data.path.empty()) o.data.kind = guess_data_kind(o.data.path);
  if (feed == nullptr && o.data.path.empty() && o.data.sources.empty() && o.data.kind != DataKind::kSynthetic) {
    return absl::InvalidArgumentError(
        "no data: say --data FILE, or data: {path: …} in train.yaml, or data: {kind: synthetic}");
  }
  if (shuffle) o.data.shuffle = true;
  o.new_pass = new_pass;
  if (steps && *steps > 0 && o.data.kind != DataKind::kNpz && o.data.kind != DataKind::kNpy) o.data.epochs = 0;
  if (o.data.shuffle) o.data.epochs = steps ? 0 : o.data.epochs;
  if (epochs > 0 && !steps) o.data.epochs = epochs;
  o.steps = feed != nullptr ? std::numeric_limits<int64_t>::max() : steps.value_or(-1);
  PARTITA_ASSIGN_OR_RETURN(auto weights, bundle.file(kInitialName));
  PARTITA_ASSIGN_OR_RETURN(SafetensorsFile first, SafetensorsFile::open(std::move(weights)));
  o.initial = std::make_shared<const SafetensorsFile>(std::move(first));
  o.save = save;
  o.save_gradients = save_gradients;
  o.profile = profile;
  o.profile_tables = o.tell = !quiet;
  o.tune = tune;
  o.audit = audit;
  o.seed = manifest.value("seed", uint64_t{0});
  o.recipe = manifest.value("recipe", o.recipe);
  const nlohmann::json plan = manifest.value("plan", nlohmann::json::object());
  o.figures = {.flops = manifest.value("flops", 0.0),
               .peak_flops = peak_flops > 0 ? peak_flops * manifest.value("ranks", 1.0) : plan.value("peak_flops", 0.0),
               .planned_seconds = plan.value("step_seconds", 0.0),
               .planned_bytes = plan.value("memory_bytes", int64_t{0}),
               .price_per_hour = plan.value("price_per_hour", 0.0)};
  o.threads = threads;
  o.bind = binds_threads(read_environment()) ? BindMode::kNone : parse_enum<BindMode>(bind).value_or(o.bind);
  o.records = records();
  const nlohmann::json run = manifest.value("run", nlohmann::json::object());
  PARTITA_ASSIGN_OR_RETURN(o.timeouts, limits(run));
  PARTITA_ASSIGN_OR_RETURN(o.checkpoint, checkpoint_options());
  PARTITA_ASSIGN_OR_RETURN(o.divergence, divergence_options(run));
  if (o.divergence.rolls_back() && o.checkpoint.folder.empty() && !fast_dev_run)
    return absl::InvalidArgumentError("rollback goes back to checkpoints; say --checkpoint FOLDER");
  PARTITA_RETURN_IF_ERROR(add_ramp(bundle, o));
  PARTITA_RETURN_IF_ERROR(add_lengths(bundle, o));
  if (manifest.contains("evaluate")) PARTITA_RETURN_IF_ERROR(with_context(add_evaluation(bundle, o), quote(path)));
  if (o.evaluate.programs.empty() && (patience > 0 || keep_best > 0)) {
    return absl::InvalidArgumentError(
        "--patience and --keep-best go by the evaluation's loss; say `evaluate` in train.yaml");
  }
  if (fast_dev_run) {
    o.steps = 1;
    o.evaluate.batches = 1;
    o.checkpoint.folder.clear();
    if (o.divergence.rolls_back()) o.divergence = {};
  }
  return o;
}

absl::StatusOr<DivergenceOptions> RunFlags::divergence_options(const nlohmann::json& run) const {
  DivergenceOptions o;
  const std::string said = run.value("on_nonfinite", "stop");
  if (const auto action = parse_enum<DivergenceAction>(on_nonfinite.empty() ? said : on_nonfinite))
    o.on_nonfinite = *action;
  if (o.on_nonfinite == DivergenceAction::kSkip && said != enum_name(DivergenceAction::kSkip))
    return absl::InvalidArgumentError(
        "--on-nonfinite skip: this program does every update before it is known whether the step is finite; compile it "
        "with run: {on_nonfinite: skip} in train.yaml (--set run.on_nonfinite=skip)");
  if (loss_spike == "off" || (loss_spike.empty() && !run.contains("loss_spike"))) return o;
  LossSpike spike;
  if (loss_spike.empty()) {
    const nlohmann::json& key = run.at("loss_spike");
    spike = {key.at("factor").get<double>(), key.at("window").get<int64_t>(),
             parse_enum<DivergenceAction>(key.at("action").get<std::string>()).value_or(spike.action)};
  } else {
    PARTITA_ASSIGN_OR_RETURN(spike, parse_loss_spike(loss_spike));
  }
  o.spike = spike;
  return o;
}

void RunFlags::only_warn() {
  if (on_nonfinite.empty()) on_nonfinite = enum_name(DivergenceAction::kWarn);
  if (loss_spike.empty()) loss_spike = "off";
}

int RunFlags::threads_of(int ranks_here) const {
  if (threads > 0) return threads;
  return std::max(1, usable_processors() / std::max(1, ranks_here));
}

std::vector<std::string> RunFlags::arguments() const {
  std::vector<std::string> list;
  auto say = [&](const char* flag, const std::string& value) {
    if (!value.empty()) list.insert(list.end(), {flag, value});
  };
  say("--data", data);
  say("--data-cache", cache.folder);
  if (cache.bytes != DataCache().bytes) say("--data-cache-bytes", cat(cache.bytes));
  say("--save", save);
  say("--save-gradients", save_gradients);
  say("--profile", profile);
  say("--tune", tune);
  for (const std::string& m : metrics) say("--metrics", m);
  if (steps) say("--steps", cat(*steps));
  if (epochs > 0) say("--epochs", cat(epochs));
  if (log_every > 0) say("--log-every", cat(log_every));
  say("--checkpoint", checkpoint);
  say("--checkpoint-to", checkpoint_to);
  if (every > 0) say("--every", cat(every));
  if (mirror.every > 0) list.insert(list.end(), {"--mirror", cat(mirror.every), "--mirror-in", mirror.in});
  say("--keep", cat(keep));
  if (keep_best > 0) say("--keep-best", cat(keep_best));
  if (audit > 0) say("--audit", cat(audit));
  say("--on-nonfinite", on_nonfinite);
  say("--loss-spike", loss_spike);
  say("--find-bad-value", cat(find_bad_value));
  if (new_pass) list.emplace_back("--new-pass");
  say("--init", init);
  say("--init-optimizer", init_optimizer);
  say("--strip-prefix", renaming.strip);
  say("--add-prefix", renaming.add);
  if (patience > 0) say("--patience", cat(patience));
  if (min_gain > 0) say("--min-gain", cat(min_gain));
  if (fast_dev_run) list.emplace_back("--fast-dev-run");
  if (threads > 0) say("--threads", cat(threads));
  say("--bind", bind);
  say("--listen-metrics", listen_metrics);
  if (peak_flops > 0) say("--peak-flops", cat(peak_flops));
  for (const std::string& t : timeouts) say("--timeout", t);
  say("--log-dir", log_folder);
  if (shuffle) list.emplace_back("--shuffle");
  if (quiet) list.emplace_back("--quiet");
  if (require_certificate) list.emplace_back("--require-certificate");
  say("--trust", trust_key);
  if (progress != "auto") list.insert(list.end(), {"--progress", progress});
  if (resume) list.emplace_back("--resume");
  if (resume && !resume->empty()) list.push_back(*resume);
  return list;
}

absl::StatusOr<Timeouts> RunFlags::limits(const nlohmann::json& run) const {
  Timeouts limits;
  const nlohmann::json said = run.value("timeout", nlohmann::json::object());
  for (const auto& [phase, seconds] : said.items())
    PARTITA_RETURN_IF_ERROR(limits.set(cat(phase, "=", seconds.dump())));
  for (const std::string& t : timeouts) PARTITA_RETURN_IF_ERROR(limits.set(t));
  return limits;
}

std::string RunFlags::records() const {
  if (!log_folder.empty()) return log_folder;
  return checkpoint.empty() ? "" : cat(checkpoint, "/flight");
}

absl::Status RunFlags::add_evaluation(const BundleFiles& bundle, TrainOptions& o) const {
  try {
    const nlohmann::json& manifest = bundle.manifest()["evaluate"];
    o.evaluate.every = manifest.at("every").get<int64_t>();
    o.evaluate.batches = manifest.value("batches", int64_t{-1});
    auto config = data_config_from_json(manifest.at("data"));
    if (!config.ok()) return config.status();
    o.evaluate.data = *std::move(config);
    o.evaluate.data.cache = cache;
  } catch (const nlohmann::json::exception& e) {
    return absl::DataLossError(cat("evaluation settings: ", e.what()));
  }
  o.evaluate.patience = patience;
  o.evaluate.min_gain = min_gain;
  PARTITA_ASSIGN_OR_RETURN(std::vector<Program> programs, bundle.programs(kEvaluationName));
  PARTITA_ASSIGN_OR_RETURN(o.evaluate.programs, LoadedPrograms::load(std::move(programs)));
  return absl::OkStatus();
}

absl::Status RunFlags::add_ramp(const BundleFiles& bundle, TrainOptions& o) const {
  PARTITA_ASSIGN_OR_RETURN(const std::vector<RampStep> ramp, ramp_of(bundle));
  const int64_t own = samples_of(bundle);
  if (ramp.empty() || ramp.back().samples != own) return absl::OkStatus();  // it is one of a ramp's other parts
  if (feed != nullptr)
    return absl::InvalidArgumentError(
        "batch.global changes from step to step; batches that are handed over have one size: say one number");
  std::map<int64_t, LoadedPrograms> of;
  for (const RampStep& step : ramp) {
    if (step.samples != own && !of.contains(step.samples)) {
      PARTITA_ASSIGN_OR_RETURN(const SharedBundle part,
                               open_checked_batch(bundle, step.samples, trust(), threads_of(1)));
      PARTITA_ASSIGN_OR_RETURN(std::vector<Program> programs, programs_of(*part));
      PARTITA_ASSIGN_OR_RETURN(of[step.samples], LoadedPrograms::load(std::move(programs)));
    }
    o.ramp.push_back({step.from, step.samples, step.samples == own ? LoadedPrograms() : of[step.samples]});
  }
  return absl::OkStatus();
}

absl::Status RunFlags::add_lengths(const BundleFiles& bundle, TrainOptions& o) const {
  PARTITA_ASSIGN_OR_RETURN(const std::vector<int64_t> lengths, lengths_of(bundle));
  const int64_t own = length_of(bundle);
  if (lengths.empty() || own != lengths.back()) return absl::OkStatus();  // it is the part for one of them
  if (feed != nullptr)
    return absl::InvalidArgumentError(
        "samples have several lengths (bind); batches that are handed over have one: bind one number");
  for (const int64_t length : lengths) {
    LengthPart& part = o.lengths.emplace_back(LengthPart{length, samples_of(bundle), o.figures.flops, {}});
    if (length == own) continue;
    const BundleTrust by = trust();
    PARTITA_ASSIGN_OR_RETURN(const SharedBundle other, open_length(bundle, length, &by));
    PARTITA_RETURN_IF_ERROR(other->check(threads_of(1), /*weights=*/false));
    PARTITA_ASSIGN_OR_RETURN(std::vector<Program> programs, programs_of(*other));
    PARTITA_ASSIGN_OR_RETURN(part.programs, LoadedPrograms::load(std::move(programs)));
    part.samples = samples_of(*other), part.flops = other->manifest().value("flops", 0.0);
  }
  return absl::OkStatus();
}

absl::StatusOr<CheckpointOptions> RunFlags::checkpoint_options() const {
  CheckpointOptions c{.folder = checkpoint,
                      .to = checkpoint_to,
                      .every = every,
                      .keep = keep,
                      .keep_best = keep_best,
                      .init = init,
                      .init_optimizer = init_optimizer,
                      .renaming = renaming,
                      .mirror = mirror};
  if (resume) c.resume = resume->empty() ? "auto" : *resume;
  if (!checkpoint_to.empty()) c.environment = read_environment();
  if (checkpoint.empty() && (every > 0 || keep_best > 0 || !checkpoint_to.empty() || mirror.every > 0))
    return absl::InvalidArgumentError(
        "--every, --keep-best, --mirror and --checkpoint-to say nothing without --checkpoint FOLDER");
  if (init.empty() && init_optimizer.empty() && !(renaming.strip.empty() && renaming.add.empty()))
    return absl::InvalidArgumentError("--strip-prefix and --add-prefix say nothing without --init");
  if (checkpoint.empty() && c.resume == "auto")
    return absl::InvalidArgumentError("--resume: from where? say --checkpoint FOLDER, or --resume PATH");
  return c;
}

absl::StatusOr<std::unique_ptr<MetricsSink>> RunFlags::sink(int64_t total, std::FILE* console) const {
  auto all = std::make_unique<MetricsFanOut>();
  int64_t every = log_every > 0 ? log_every : total > 0 ? std::max<int64_t>(1, total / 40) : 10;
  for (std::FILE* to : {console, stderr}) {
    if (to == nullptr) continue;
    const bool bar = progress == "auto" ? isatty(fileno(to)) != 0 : progress == "bar" && (to == console || !console);
    all->add(make_console_sink(to, {.bar = bar, .quiet = quiet, .total_steps = total, .every = every}));
  }
  for (const std::string& path : metrics) {
    PARTITA_ASSIGN_OR_RETURN(auto sink, open_metrics_sink(path, resume.has_value()));
    all->add(std::move(sink));
  }
  if (!listen_metrics.empty()) {
    PARTITA_ASSIGN_OR_RETURN(auto sink, make_http_sink(listen_metrics));
    all->add(std::move(sink));
  }
  return std::unique_ptr<MetricsSink>(std::move(all));
}

}  // namespace partita::runtime
