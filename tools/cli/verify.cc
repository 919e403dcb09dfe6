#include <cstdio>
#include <filesystem>
#include <set>

#include "base/atomic_file.h"
#include "base/cat.h"
#include "base/status.h"
#include "runtime/data/data_source.h"
#include "runtime/execute/input_stage.h"
#include "runtime/program/bundle_files.h"
#include "runtime/program/bundle_names.h"
#include "runtime/program/bundle_plans.h"
#include "runtime/program/signature.h"
#include "tools/cli/command.h"
#include "tools/proof/first_weights.h"
#include "tools/proof/kernel_code.h"
#include "tools/proof/numeric_check.h"
#include "tools/proof/sources_check.h"
#include "tools/verify/bundle/manifest.h"
#include "tools/verify/certificate.h"
#include "tools/verify/check_plans.h"

namespace partita {
namespace {

struct Flags {
  std::string bundle, sign;
  Sources sources;
  bool numeric = false, quiet = false;
  NumericOptions options;
  runtime::RunFlags run;
};

// What is not equal to the serial program, by the user's choice.
std::string choices(const verifier::Verdict& v) {
  std::string but;
  if (v.statistic_groups > 1)
    but = cat(" (whose batch statistics are of ", v.statistic_groups, " groups of samples, by choice)");
  if (v.compress != "none")
    but += cat(" but for compress: ", v.compress, ", which compresses ", v.compressed_sums,
               " sums of gradients (they are NOT equal, by choice)");
  if (v.delays.empty()) return but;
  std::string delays;
  for (int64_t d : v.delays) append(delays, delays.empty() ? "" : ", ", d);
  return but + cat(" but for schedule: pipedream, whose stages compute with weights that are up to ", delays,
                   " updates behind (they are NOT equal, by choice; with one micro-batch a step they would be)");
}

void tell(const verifier::Verdict& v, const std::optional<verifier::NumericVerdict>& numeric) {
  std::printf(
      "verified: %s%s, %s values, %s states and %s outputs equal to the serial program%s; %s steps, %s "
      "collectives\n",
      cat(v.ranks, v.ranks == 1 ? " rank" : " ranks").c_str(),
      v.programs > 1 ? cat(" in ", v.programs, " stages").c_str() : "", cat(v.values).c_str(), cat(v.states).c_str(),
      cat(v.outputs).c_str(), choices(v).c_str(), cat(v.steps).c_str(), cat(v.collectives).c_str());
  std::printf("kernels: %s proved by their loop nests; the code of %s compiled again and equal%s%s\n",
              cat(v.kernels.nests).c_str(), cat(v.kernels.compiled).c_str(), v.kernels.unknown.empty() ? "" : "; ",
              v.kernels.unknown.c_str());
  if (v.evaluation)
    std::printf("evaluation: %s values, equal to the serial evaluation program%s; %s steps\n",
                cat(v.evaluation->values).c_str(),
                v.evaluation->random_nodes == 0 ? ", which draws no random numbers" : "",
                cat(v.evaluation->steps).c_str());
  if (!numeric) return;
  if (!numeric->kink.empty())
    std::printf("run: %s; not so on two other draws of synthetic samples, so a value lies at a kink there\n",
                numeric->kink.c_str());
  std::printf("run: %s steps, %s tensors, against %s; largest relative difference %.2g of a loss, %.2g of a tensor%s\n",
              cat(numeric->steps).c_str(), cat(numeric->tensors).c_str(),
              numeric->by_reference ? "the serial program compiled and the reference evaluator in double precision"
                                    : "the serial program compiled",
              numeric->loss_error, numeric->tensor_error,
              v.compress == "none" && v.delays.empty() ? "" : " (not held to a limit after the first loss)");
  std::printf(
      "kernels: %s generated and %s of the library agree with the reference on drawn operands; %s draws, %s elements\n",
      cat(numeric->kernels.generated).c_str(), cat(numeric->kernels.library).c_str(),
      cat(numeric->kernels.draws).c_str(), cat(numeric->kernels.elements).c_str());
  for (const std::string& left_out : numeric->kernels.left_out)
    std::printf("kernels: not run on drawn operands: %s\n", left_out.c_str());
  for (const std::string& lacking : numeric->unconfined)
    std::printf("run: it was not held to this, which this system does not do: %s\n", lacking.c_str());
}

// The certificate, and its signature where a key is given: one that was there before is of another.
absl::Status write_certificate(const runtime::BundleFiles& bundle, const std::string& text, const std::string& key) {
  const std::string path = cat(bundle.folder(), "/", runtime::kCertificateName),
                    signature = cat(bundle.folder(), "/", runtime::kSignatureName);
  std::error_code ec;
  std::filesystem::remove(signature, ec);
  PARTITA_RETURN_IF_ERROR(write_file_atomically(path, text, Durable::kNo));
  if (key.empty()) return absl::OkStatus();
  PARTITA_ASSIGN_OR_RETURN(const std::string signed_by, runtime::sign(key, as_byte_span(text)));
  return write_file_atomically(signature, signed_by, Durable::kNo);
}

runtime::DataConfig synthetic_data(uint64_t seed) { return {.kind = DataKind::kSynthetic, .seed = seed, .epochs = 0}; }

bool is_of_arrays(const runtime::DataConfig& data) {
  return data.sources.empty() && (data.kind == DataKind::kNpz || data.kind == DataKind::kNpy);
}

// Of the part for one of several lengths but the largest: arrays are as long as the largest, and a run of all lengths
// cuts their samples. The part takes those that it holds, again and again where they are fewer than it needs, and
// synthetic ones where there are none. Evaluation is of the largest length, and arrays for it need not say more.
absl::Status take_length(const runtime::BundleFiles& part, const runtime::Program& program, runtime::TrainOptions& o) {
  PARTITA_ASSIGN_OR_RETURN(const std::vector<int64_t> lengths, runtime::lengths_of(part));
  const int64_t own = runtime::length_of(part);
  if (lengths.empty() || own == lengths.back()) return absl::OkStatus();
  if (is_of_arrays(o.evaluate.data)) {
    o.evaluate.data = synthetic_data(o.data.seed);
    if (o.evaluate.batches < 0) o.evaluate.batches = 1;
  }
  if (!is_of_arrays(o.data)) return absl::OkStatus();
  o.data.length = {.own = own, .largest = lengths.back()};
  o.data.epochs = 0;
  PARTITA_ASSIGN_OR_RETURN(const auto source,
                           runtime::DataSource::open(o.data, runtime::input_specs(program), program.samples_per_step));
  if (source->samples_per_epoch() == 0) o.data = synthetic_data(o.data.seed);
  return absl::OkStatus();
}

// Proves one plan of a bundle, and that it trains as `first` does (null: it is the first), and says so.
absl::StatusOr<verifier::Bundle> verify_plan(Flags& flags, const runtime::BundleFiles& files,
                                             const verifier::Bundle* first) {
  PARTITA_RETURN_IF_ERROR(files.check(flags.run.threads_of(1), /*weights=*/true));
  PARTITA_ASSIGN_OR_RETURN(verifier::Bundle bundle, verifier::read_bundle(files));
  PARTITA_RETURN_IF_ERROR(verifier::check_manifest(files.manifest(), bundle));
  PARTITA_RETURN_IF_ERROR(check_first_weights(files, bundle));
  PARTITA_ASSIGN_OR_RETURN(verifier::Verdict v, verifier::check_bundle(bundle));
  PARTITA_RETURN_IF_ERROR(verifier::check_choices(files.manifest(), v));
  if (first != nullptr) PARTITA_RETURN_IF_ERROR(verifier::check_same_training(*first, bundle));
  PARTITA_ASSIGN_OR_RETURN(KernelCode code, compile_again(bundle));
  v.kernels.compiled = code.compiled;
  v.kernels.unknown = std::move(code.unknown);
  std::optional<verifier::NumericVerdict> numeric;
  if (flags.numeric) {
    PARTITA_ASSIGN_OR_RETURN(flags.options.train, checked_run(files, flags.run));
    PARTITA_RETURN_IF_ERROR(take_length(files, bundle.programs.front().program, flags.options.train));
    PARTITA_ASSIGN_OR_RETURN(numeric, check_numeric_apart(bundle, flags.options));
  }
  nlohmann::json sources;
  if (!flags.sources.model.empty()) {
    PARTITA_ASSIGN_OR_RETURN(sources, check_sources(flags.sources, files, bundle));
  }
  PARTITA_RETURN_IF_ERROR(
      write_certificate(files, verifier::certificate_text(files.root(), v, numeric, sources), flags.sign));
  if (!flags.quiet) tell(v, numeric);
  if (!flags.quiet && !sources.is_null())
    std::printf("sources: the serial program and the first weights are those of %s\n", flags.sources.model.c_str());
  return bundle;
}

// Proves the programs of a plan for the other numbers of samples that its steps take.
absl::Status verify_batches(Flags& flags, const runtime::BundleFiles& plan, const verifier::Bundle& last) {
  PARTITA_ASSIGN_OR_RETURN(const std::vector<runtime::RampStep> ramp, runtime::ramp_of(plan));
  std::set<int64_t> known = {last.samples};
  for (const runtime::RampStep& step : ramp) {
    if (!known.insert(step.samples).second) continue;
    const std::string name = cat("the part for ", step.samples, " samples a step");
    PARTITA_ASSIGN_OR_RETURN(const auto files, runtime::open_batch(plan, step.samples, nullptr));
    if (!flags.quiet) std::printf("%s:\n", name.c_str());
    const absl::StatusOr<verifier::Bundle> part = verify_plan(flags, *files, nullptr);
    PARTITA_RETURN_IF_ERROR(with_context(part.status(), name));
    PARTITA_RETURN_IF_ERROR(with_context(verifier::check_same_states(last, *part), name));
  }
  return absl::OkStatus();
}

// Proves those for its samples of other lengths.
absl::Status verify_lengths(Flags& flags, const runtime::BundleFiles& plan, const verifier::Bundle& largest) {
  PARTITA_ASSIGN_OR_RETURN(std::vector<int64_t> lengths, runtime::lengths_of(plan));
  if (!lengths.empty() && runtime::length_of(plan) != lengths.back())
    return absl::AbortedError(cat(runtime::kManifestName, ": length: expected the largest, ", lengths.back(),
                                  ", found ", runtime::length_of(plan)));
  if (!lengths.empty()) lengths.pop_back();
  for (const int64_t length : lengths) {
    const std::string name = cat("the part for samples of length ", length);
    PARTITA_ASSIGN_OR_RETURN(const auto files, runtime::open_length(plan, length, nullptr));
    if (!flags.quiet) std::printf("%s:\n", name.c_str());
    const absl::StatusOr<verifier::Bundle> part = verify_plan(flags, *files, nullptr);
    PARTITA_RETURN_IF_ERROR(with_context(part.status(), name));
    PARTITA_RETURN_IF_ERROR(with_context(verifier::check_length(largest, *part, length), name));
  }
  return absl::OkStatus();
}

absl::Status verify_parts(Flags& flags, const runtime::BundleFiles& plan, const verifier::Bundle& last) {
  PARTITA_RETURN_IF_ERROR(verify_batches(flags, plan, last));
  return verify_lengths(flags, plan, last);
}

absl::Status verify(Flags& flags) {
  PARTITA_ASSIGN_OR_RETURN(const auto files, runtime::BundleFiles::open_unproved(flags.bundle));
  PARTITA_ASSIGN_OR_RETURN(const verifier::Bundle first, verify_plan(flags, *files, nullptr));
  PARTITA_RETURN_IF_ERROR(verify_parts(flags, *files, first));
  for (const int64_t ranks : runtime::plans_of(*files)) {
    if (ranks == runtime::ranks_of(*files)) continue;
    const std::string name = cat("the plan for ", ranks, ranks == 1 ? " rank" : " ranks");
    PARTITA_ASSIGN_OR_RETURN(const auto plan, runtime::open_plan(files, ranks, nullptr));
    if (!flags.quiet) std::printf("%s:\n", name.c_str());
    const absl::StatusOr<verifier::Bundle> proved = verify_plan(flags, *plan, &first);
    PARTITA_RETURN_IF_ERROR(with_context(proved.status(), name));
    PARTITA_RETURN_IF_ERROR(with_context(verify_parts(flags, *plan, *proved), name));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<runtime::TrainOptions> checked_run(const runtime::BundleFiles& bundle, runtime::RunFlags flags) {
  if (!flags.steps) flags.steps = 2;
  flags.only_warn();  // what is not finite is compared as well
  auto options = flags.options(bundle);
  if (options.ok()) options->ramp.clear(), options->lengths.clear();  // the programs that are proved
  if (options.ok() || options.status().code() != absl::StatusCode::kInvalidArgument || !flags.data.empty())
    return options;
  flags.data = "synthetic";
  PARTITA_ASSIGN_OR_RETURN(runtime::TrainOptions made, flags.options(bundle));
  made.data = synthetic_data(made.data.seed);
  made.evaluate.data = made.data;
  if (made.evaluate.batches < 0) made.evaluate.batches = 1;
  made.ramp.clear(), made.lengths.clear();
  return made;
}

void add_verify(CLI::App& app, absl::Status& result) {
  auto flags = std::make_shared<Flags>();
  CLI::App* verb = app.add_subcommand("verify",
                                      "prove that a bundle's ranks together compute the serial program; writes "
                                      "certificate.json into it");
  verb->add_option("bundle", flags->bundle, "folder that `partita compile` wrote")->required();
  verb->add_flag(
      "--numeric", flags->numeric,
      "also run all ranks, in a process that can harm nothing, and compare with the serial program: losses, rates, "
      "norms, gradients, states");
  verb->add_option("--data", flags->run.data, "what to run on; default: the bundle's own data, else synthetic data");
  verb->add_option("--steps", flags->run.steps, "optimizer steps to compare; default: 2")->check(CLI::PositiveNumber);
  verb->add_option("--tolerance", flags->options.tolerance, "largest relative difference")->capture_default_str();
  CLI::Option* model = verb->add_option(
      "--model", flags->sources.model,
      "also import this model and --train's recipe anew: the serial program and the first weights must be theirs");
  verb->add_option("--train", flags->sources.train_file, "the recipe that the bundle was compiled with")->needs(model);
  add_precision(*verb, flags->sources.precision);
  verb->add_option("--sign", flags->sign,
                   "sign the certificate with this key: a PEM file with an Ed25519 private key (`run --trust`)");
  verb->add_option("--threads", flags->run.threads, "threads of each rank")->check(CLI::Range(1, 4096));
  verb->add_flag("--quiet", flags->quiet, "say nothing but errors");
  verb->callback([flags, &result] { result = verify(*flags); });
}

}  // namespace partita
