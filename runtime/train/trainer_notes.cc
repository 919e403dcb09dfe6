#include "runtime/train/trainer_notes.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <map>
#include <set>

#include "base/cat.h"
#include "base/checksum.h"
#include "base/mapped_file.h"
#include "base/quote.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "runtime/data/data_config_json.h"
#include "runtime/data/fingerprint.h"

namespace partita::runtime {
namespace {

constexpr double kLongWait = 0.05;  // of the time

namespace fs = std::filesystem;

// What a step does and when something is done beside it; not where a rank's files lie.
std::string deciding(const TrainOptions& o) {
  const CheckpointOptions& c = o.checkpoint;
  nlohmann::json all = {o.steps,
                        o.seed,
                        o.audit,
                        o.evaluate.every,
                        o.evaluate.batches,
                        o.evaluate.patience,
                        o.evaluate.min_gain,
                        c.every,
                        c.keep_best,
                        c.mirror.every,
                        enum_name(o.divergence.on_nonfinite)};
  for (const std::string* path : {&c.folder, &c.to, &c.resume, &c.init, &c.init_optimizer, &o.save, &o.save_gradients})
    all.push_back(!path->empty());
  if (const auto& spike = o.divergence.spike) all.push_back({spike->factor, spike->window, enum_name(spike->action)});
  for (const SkippedSamples& s : o.skipped) all.push_back({s.first, s.count});
  return all.dump();
}

// Of a file, of a checkpoint's manifest, or of the safetensors files of a folder; "" where there is none of them, which
// is told when it is read.
std::string weights_fingerprint(const std::string& path) {
  std::vector<std::string> files;
  std::error_code ignored;
  if (fs::is_regular_file(path, ignored)) {
    files.push_back(path);
  } else if (fs::is_regular_file(path + "/manifest.json", ignored)) {
    files.push_back(path + "/manifest.json");
  } else {
    for (const fs::directory_entry& entry : fs::directory_iterator(path, ignored)) {
      if (entry.path().extension() == ".safetensors") files.push_back(entry.path().string());
    }
    std::sort(files.begin(), files.end());
  }
  std::string all;
  for (const std::string& file : files) {
    const auto mapped = MappedFile::open(file);
    if (mapped.ok()) append(all, fs::path(file).filename().string(), " ", fingerprint_of(mapped->bytes()), "; ");
  }
  return all;
}

std::string of_stream(const DataConfig& config, const std::string& samples) {
  return config.feed != nullptr ? "" : cat(settings_of(config), samples);
}

// "optimizer {kind: adamw, …}, not {kind: adam, …}; ema none, not {decay: 0.99}"
std::string other_keys(const std::map<std::string, std::string>& before,
                       const std::map<std::string, std::string>& now) {
  std::set<std::string> keys;
  for (const auto* recipe : {&before, &now})
    for (const auto& [key, value] : *recipe) keys.insert(key);
  const auto value = [](const auto& recipe, const std::string& key) {
    const auto at = recipe.find(key);
    return at == recipe.end() ? "none" : at->second;
  };
  std::string text;
  for (const std::string& key : keys) {
    const std::string is = value(now, key), was = value(before, key);
    if (is != was) append(text, text.empty() ? "" : "; ", key, " ", is, ", not ", was);
  }
  return text;
}

}  // namespace

bool tell_slow_checkpoint(const Checkpointer::Cost& cost, double waited, double step, int64_t every) {
  const double interval = static_cast<double>(every) * step, gigabytes = static_cast<double>(cost.bytes) / 1e9;
  if (interval == 0 || waited <= kLongWait * interval) return false;
  std::fprintf(stderr,
               "note: %.3g GB of checkpoint take %.3g s to write (%.3g GB/s), %.3g s longer than a step takes, and "
               "training waits for it: %.0f %% of the time; with --every %.0f it would be %.0f %%\n",
               gigabytes, cost.seconds, gigabytes / cost.seconds, waited, 100 * waited / (interval + waited),
               std::ceil(waited / step / kLongWait), 100 * kLongWait);
  return true;
}

void tell_data(const StepPrograms& programs, int64_t first_step, const Evaluator* evaluator) {
  for (const std::string& line : programs.told()) std::fprintf(stderr, "%s\n", line.c_str());
  const int64_t all = programs.epoch_samples(), step = programs.samples(first_step);
  if (all > 0 && all < step)
    std::fprintf(stderr, "warning: the data hold %lld samples, fewer than the %lld of a step, which takes some twice\n",
                 static_cast<long long>(all), static_cast<long long>(step));
  const int64_t left = evaluator == nullptr ? 0 : evaluator->left_out();
  if (left > 0)
    std::fprintf(stderr, "note: the last %lld of the %lld samples to evaluate fill no batch of %lld and are left out\n",
                 static_cast<long long>(left), static_cast<long long>(evaluator->data().samples_per_epoch()),
                 static_cast<long long>(evaluator->data().global_batch()));
}

std::string start_note(int64_t steps, int64_t samples, int64_t tokens, const std::string& changes) {
  return cat(steps, steps == 1 ? " step of " : " steps of ", samples, samples == 1 ? " sample" : " samples",
             tokens > 0 ? cat(" (", tokens, " tokens)") : "", changes);
}

std::string origin_note(int64_t first_step, const CheckpointOptions& options) {
  const bool newest = options.resume == "auto";
  if (first_step > 0)
    return cat("; resumed at step ", first_step, " from ", quote(newest ? options.folder : options.resume, 1000));
  return options.init.empty() ? "" : cat("; first values from ", quote(options.init, 1000));
}

void warn_of_changes(const CheckpointManifest& from, const CheckpointManifest& now, bool new_data) {
  const auto warn = [](const std::string& what) {
    std::fprintf(stderr, "warning: %s than in the run that wrote the checkpoint; results will differ\n", what.c_str());
  };
  const auto differ = [](int64_t a, int64_t b) { return a > 0 && b > 0 && a != b; };
  if (!new_data) {
    if (from.data != now.data) warn("the data or their order are others");
    if (differ(from.epoch_samples, now.epoch_samples))
      warn(cat("the data hold another number of samples (", now.epoch_samples, ", not ", from.epoch_samples, ")"));
    else if (from.data == now.data && !from.data_fingerprint.empty() && from.data_fingerprint != now.data_fingerprint)
      warn("the data are as many samples, but others,");
  }
  if (from.seed != now.seed) warn("the seed is another");
  if (from.samples_per_step != now.samples_per_step) warn("the global batch is another");
  if (!from.recipe.empty() && !now.recipe.empty() && from.recipe != now.recipe)
    warn(cat("the recipe is another (", other_keys(from.recipe, now.recipe), ")"));
}

void tell_early_stop(int64_t taken, int64_t evaluations, double best) {
  std::fprintf(stderr, "early stop after step %lld: no evaluation in the last %lld below %.6g\n",
               static_cast<long long>(taken), static_cast<long long>(evaluations), best);
}

void tell_rollback(const std::string& why, int64_t step, const SkippedSamples& skip) {
  std::fprintf(stderr, "note: %s; back to step %lld, and on without its samples, %lld to %lld of the stream\n",
               why.c_str(), static_cast<long long>(step), static_cast<long long>(skip.first),
               static_cast<long long>(skip.first + skip.count - 1));
}

std::vector<SkippedSamples> skipped_besides(const std::vector<SkippedSamples>& all,
                                            const std::vector<SkippedSamples>& others) {
  std::vector<SkippedSamples> left;
  std::copy_if(all.begin(), all.end(), std::back_inserter(left),
               [&](const SkippedSamples& s) { return std::find(others.begin(), others.end(), s) == others.end(); });
  return left;
}

absl::Status agree_on_run(Communicator& communicator, const TrainOptions& options, const StepPrograms& programs,
                          const Evaluator* evaluator) {
  auto agree = [&](const char* what, const std::string& text) { return communicator.agree(what, as_byte_span(text)); };
  const CheckpointOptions& c = options.checkpoint;
  PARTITA_RETURN_IF_ERROR(
      agree("the flags that decide what a step does (--steps, --every, --checkpoint, …)", deciding(options)));
  PARTITA_RETURN_IF_ERROR(
      agree("the data, their number, content or order", of_stream(options.data, programs.fingerprint())));
  PARTITA_RETURN_IF_ERROR(
      agree("the data of the evaluation",
            evaluator == nullptr ? "" : of_stream(options.evaluate.data, evaluator->data().fingerprint())));
  std::string weights;
  for (const std::string& path : {c.init, c.init_optimizer})
    if (!path.empty()) append(weights, weights_fingerprint(path), "; ");
  return agree("the weights of --init", weights);
}

absl::Status check_classes(const StepPrograms& programs, const Evaluator& evaluator) {
  const std::vector<std::string> trained = programs.classes(), judged = evaluator.data().classes();
  if (trained.empty() || judged.empty() || trained == judged) return absl::OkStatus();
  const auto differ = std::mismatch(trained.begin(), trained.end(), judged.begin(), judged.end());
  const auto name = [](auto at, const auto& all) { return at == all.end() ? std::string("none") : quote(*at); };
  return absl::InvalidArgumentError(cat(
      "evaluate: the data have ", judged.size(), " classes and training's ", trained.size(), "; number ",
      differ.first - trained.begin(), " is ", name(differ.second, judged), " there and ", name(differ.first, trained),
      " in training: classes are numbered by the order of their names, so that labels would mean other ones; give "
      "both folders the same classes"));
}

}  // namespace partita::runtime
