#include <cstdio>

#include "base/cat.h"
#include "base/status.h"
#include "tools/cli/command.h"
#include "tools/flow/kernel_code.h"
#include "tools/flow/numeric_check.h"
#include "tools/verify/certificate.h"

namespace partita {
namespace {

// The bundle's data where it has some, else numbers made up.
absl::StatusOr<runtime::TrainOptions> numeric_run(const std::string& folder, runtime::RunFlags flags) {
  if (!flags.steps) flags.steps = 2;
  auto options = flags.options(folder);
  if (options.ok() || options.status().code() != absl::StatusCode::kInvalidArgument || !flags.data.empty())
    return options;
  flags.data = "synthetic";
  PARTITA_ASSIGN_OR_RETURN(runtime::TrainOptions made, flags.options(folder));
  made.data = {.kind = DataKind::kSynthetic, .seed = made.data.seed, .epochs = 0};
  return made;
}

}  // namespace

void add_verify(CLI::App& app, absl::Status& result) {
  struct Flags {
    std::string bundle;
    bool numeric = false, quiet = false;
    NumericOptions options;
    runtime::RunFlags run;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* verb = app.add_subcommand("verify",
                                      "prove that a bundle's ranks together compute the serial program; writes "
                                      "certificate.json into it");
  verb->add_option("bundle", flags->bundle, "folder that `partita compile` wrote")->required();
  verb->add_flag("--numeric", flags->numeric,
                 "also run all ranks in this process and compare with the serial program: loss, gradients, parameters");
  verb->add_option("--data", flags->run.data, "what to run on; default: the bundle's own data, else synthetic data");
  verb->add_option("--steps", flags->run.steps, "optimizer steps to compare; default: 2")->check(CLI::PositiveNumber);
  verb->add_option("--tolerance", flags->options.tolerance, "largest relative difference")->capture_default_str();
  verb->add_option("--threads", flags->run.threads, "threads of each rank")->check(CLI::Range(1, 4096));
  verb->add_flag("--quiet", flags->quiet, "say nothing but errors");
  verb->callback([flags, &result] {
    auto run = [&]() -> absl::Status {
      PARTITA_ASSIGN_OR_RETURN(verifier::Bundle bundle, verifier::read_bundle(flags->bundle));
      PARTITA_ASSIGN_OR_RETURN(verifier::Verdict v, verifier::check_bundle(bundle));
      PARTITA_ASSIGN_OR_RETURN(KernelCode code, compile_again(bundle));
      v.kernels.compiled = code.compiled;
      v.kernels.unknown = std::move(code.unknown);
      std::optional<verifier::NumericVerdict> numeric;
      if (flags->numeric) {
        PARTITA_ASSIGN_OR_RETURN(flags->options.train, numeric_run(flags->bundle, flags->run));
        PARTITA_ASSIGN_OR_RETURN(numeric, check_numeric(bundle, flags->options));
      }
      PARTITA_RETURN_IF_ERROR(verifier::write_certificate(flags->bundle, v, numeric));
      if (!flags->quiet) {
        std::string stages = v.programs > 1 ? cat(" in ", v.programs, " stages") : "";
        std::string but;
        if (v.statistic_groups > 1)
          but = cat(" (whose batch statistics are of ", v.statistic_groups, " groups of samples, by choice)");
        if (v.compress != "none")
          but += cat(" but for compress: ", v.compress, ", which compresses ", v.compressed_sums,
                     " sums of gradients (they are NOT equal, by choice)");
        if (!v.delays.empty()) {
          std::string delays;
          for (int64_t d : v.delays) append(delays, delays.empty() ? "" : ", ", d);
          but += cat(" but for schedule: pipedream, whose stages compute with weights that are up to ", delays,
                     " updates behind (they are NOT equal, by choice; with one micro-batch a step they would be)");
        }
        std::printf(
            "verified: %lld rank%s%s, %lld values, %lld states and %lld outputs equal to the serial program%s; %lld "
            "steps, %lld collectives\n",
            static_cast<long long>(v.ranks), v.ranks == 1 ? "" : "s", stages.c_str(), static_cast<long long>(v.values),
            static_cast<long long>(v.states), static_cast<long long>(v.outputs), but.c_str(),
            static_cast<long long>(v.steps), static_cast<long long>(v.collectives));
        std::printf("kernels: %lld proved by their loop nests; the code of %lld compiled again and equal%s%s\n",
                    static_cast<long long>(v.kernels.nests), static_cast<long long>(v.kernels.compiled),
                    v.kernels.unknown.empty() ? "" : "; ", v.kernels.unknown.c_str());
        if (v.evaluation)
          std::printf("evaluation: %lld values, equal to the serial evaluation program%s; %lld steps\n",
                      static_cast<long long>(v.evaluation->values),
                      v.evaluation->random_nodes == 0 ? ", which draws no random numbers" : "",
                      static_cast<long long>(v.evaluation->steps));
        if (numeric && !numeric->kink.empty())
          std::printf("run: %s; not so on two other draws of synthetic samples, so a value lies at a kink there\n",
                      numeric->kink.c_str());
        if (numeric)
          std::printf("run: %lld steps, %lld tensors; largest relative difference %.2g of a loss, %.2g of a tensor%s\n",
                      static_cast<long long>(numeric->steps), static_cast<long long>(numeric->tensors),
                      numeric->loss_error, numeric->tensor_error,
                      v.compress == "none" && v.delays.empty() ? "" : " (not held to a limit after the first loss)");
      }
      return absl::OkStatus();
    };
    result = run();
  });
}

}  // namespace partita
