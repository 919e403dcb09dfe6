#include <algorithm>
#include <cstdio>

#include "absl/strings/numbers.h"
#include "base/cat.h"
#include "base/kinds.h"
#include "base/quote.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "runtime/checkpoint/checkpoint_manifest.h"
#include "runtime/program/bundle_files.h"
#include "runtime/program/bundle_plans.h"
#include "tools/cli/command.h"
#include "tools/compare/compare.h"

namespace partita {
namespace {

struct Flags {
  std::string a, b;
  std::vector<std::string> skipped;
  CompareOptions options;
  bool reference = false;
  runtime::RunFlags run;
};

absl::StatusOr<ComparedBundle> read_side(const std::string& folder, const runtime::RunFlags& run,
                                         bool nonfinite = false) {
  PARTITA_ASSIGN_OR_RETURN(const auto files, runtime::BundleFiles::open_unproved(folder));
  PARTITA_RETURN_IF_ERROR(files->check(run.threads_of(1), /*weights=*/true));
  ComparedBundle side{.name = quote(folder, 1000), .bundle = {}, .train = {}};
  PARTITA_ASSIGN_OR_RETURN(side.bundle, verifier::read_bundle(*files));
  // Of a run that nobody has ended, to its end.
  PARTITA_ASSIGN_OR_RETURN(side.train, run.steps ? checked_run(*files, run) : run.options(*files));
  PARTITA_ASSIGN_OR_RETURN(const std::vector<int64_t> lengths, runtime::lengths_of(*files));
  if (nonfinite && !lengths.empty())
    return absl::InvalidArgumentError(
        cat(side.name,
            " is for samples of several lengths (bind), a program for each; --nonfinite looks into runs of "
            "one length"));
  side.train.lengths.clear();  // the programs of the largest one
  return side;
}

absl::Status check_flags(const Flags& flags) {
  const int others = !flags.b.empty() + flags.reference + !flags.options.dump.empty() + flags.options.nonfinite;
  if (others == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "compare with one thing: another bundle (compare A B), the reference evaluator (compare A --reference), or "
      "tensors of another program (compare A --dump FILE); or look for what is not finite (compare A --nonfinite)");
}

// As the run that ended: for a step that is not finite, or for a spike where it looked for those.
absl::StatusOr<runtime::DivergenceOptions> ends_of(const std::string& folder, runtime::RunFlags run) {
  PARTITA_ASSIGN_OR_RETURN(const auto files, runtime::BundleFiles::open_unproved(folder));
  run.on_nonfinite = enum_name(DivergenceAction::kStop);
  PARTITA_ASSIGN_OR_RETURN(runtime::DivergenceOptions ends,
                           run.divergence_options(files->manifest().value("run", nlohmann::json::object())));
  if (ends.spike && ends.spike->action == DivergenceAction::kWarn) ends.spike.reset();
  if (ends.spike) ends.spike->action = DivergenceAction::kStop;
  return ends;
}

absl::StatusOr<std::vector<runtime::SkippedSamples>> skipped_of(const std::vector<std::string>& flags) {
  std::vector<runtime::SkippedSamples> all;
  for (const std::string& flag : flags) {
    runtime::SkippedSamples s;
    const size_t colon = std::min(flag.find(':'), flag.size());
    if (!absl::SimpleAtoi(flag.substr(0, colon), &s.first) ||
        !absl::SimpleAtoi(flag.substr(std::min(colon + 1, flag.size())), &s.count) || s.first < 0 || s.count < 1)
      return absl::InvalidArgumentError(cat("--skip-samples ", quote(flag), " is not FIRST:COUNT"));
    all.push_back(s);
  }
  return all;
}

absl::Status run(Flags& flags) {
  PARTITA_RETURN_IF_ERROR(check_flags(flags));
  if (!flags.options.dump.empty() && !flags.run.steps) flags.options.steps = 1;
  if (flags.options.nonfinite) {
    PARTITA_ASSIGN_OR_RETURN(flags.options.ends, ends_of(flags.a, flags.run));
    flags.options.steps = -1;
  }
  if (flags.run.steps) flags.options.steps = *flags.run.steps;
  if (flags.options.steps >= 0) flags.run.steps = flags.options.steps;
  if (flags.run.resume) {
    PARTITA_ASSIGN_OR_RETURN(flags.run.resume, runtime::find_checkpoint(*flags.run.resume));
    PARTITA_ASSIGN_OR_RETURN(const runtime::CheckpointManifest from, runtime::read_manifest(*flags.run.resume));
    flags.options.first_step = from.step;
  }
  flags.run.only_warn();
  PARTITA_ASSIGN_OR_RETURN(ComparedBundle a, read_side(flags.a, flags.run, flags.options.nonfinite));
  PARTITA_ASSIGN_OR_RETURN(a.train.skipped, skipped_of(flags.skipped));
  std::optional<ComparedBundle> b;
  if (!flags.b.empty()) {
    PARTITA_ASSIGN_OR_RETURN(b, read_side(flags.b, flags.run));
  }
  PARTITA_ASSIGN_OR_RETURN(const Comparison c, compare_apart(a, b, flags.options));
  std::fputs(c.text.c_str(), stdout);
  if (flags.options.nonfinite) return absl::OkStatus();
  return c.differs ? absl::AbortedError("compare: a value differs by more than rounding") : absl::OkStatus();
}

}  // namespace

void add_compare(CLI::App& app, absl::Status& result) {
  auto flags = std::make_shared<Flags>();
  CLI::App* verb =
      app.add_subcommand("compare",
                         "the first value of a training step that is not what it must be: two bundles of one "
                         "model, or a bundle and a reference, run on the same samples");
  verb->add_option("a", flags->a, "a bundle")->required();
  verb->add_option("b", flags->b, "another bundle of the same model: any layout, precision or target");
  verb->add_flag("--reference", flags->reference, "in place of b: the reference evaluator, in double precision");
  verb->add_option("--dump", flags->options.dump,
                   "in place of b: tensors of the first step under the names of ONNX values (safetensors)");
  verb->add_flag(
      "--nonfinite", flags->options.nonfinite,
      "in place of b: the first value that is nan or infinite; a run that ended with code 5 says the command");
  verb->add_option("--resume", flags->run.resume, "with --nonfinite: a checkpoint to begin with")->needs("--nonfinite");
  for (const auto& [name, value] : {std::pair{"--init", &flags->run.init},
                                    {"--init-optimizer", &flags->run.init_optimizer},
                                    {"--strip-prefix", &flags->run.renaming.strip},
                                    {"--add-prefix", &flags->run.renaming.add},
                                    {"--loss-spike", &flags->run.loss_spike}})
    verb->add_option(name, *value, "with --nonfinite: as in the run")->needs("--nonfinite");
  verb->add_option("--skip-samples", flags->skipped,
                   "with --nonfinite: samples that the run had left out besides those that the checkpoint says, as its "
                   "message has them")
      ->needs("--nonfinite")
      ->type_name("FIRST:COUNT");
  verb->add_option("--epochs", flags->run.epochs, "with --nonfinite: as in the run")->needs("--nonfinite");
  verb->add_flag("--shuffle", flags->run.shuffle, "as in the run");
  verb->add_option("--data", flags->run.data,
                   "what to run on; default: the first bundle's own data, else synthetic data");
  verb->add_option("--steps", flags->run.steps,
                   "training steps to compare; default: 2, with --dump 1, with --nonfinite all that there are")
      ->check(CLI::PositiveNumber);
  verb->add_option("--threads", flags->run.threads, "threads of each rank")->check(CLI::Range(1, 4096));
  verb->callback([flags, &result] { result = run(*flags); });
}

}  // namespace partita
