#include <set>

#include "absl/strings/numbers.h"
#include "base/cat.h"
#include "base/status.h"
#include "runtime/program/bundle_names.h"
#include "tools/cli/command.h"
#include "tools/flow/describe_choices.h"
#include "tools/flow/device_code_summary.h"
#include "tools/flow/write_bundle.h"
#include "tools/verify/check_plans.h"

namespace partita {
namespace {

struct Flags {
  ModelFlags model;
  std::string output;
  std::vector<std::string> also;
  bool keep_gradients = false;
  bool quiet = false;
};

// The same training on other ranks: as many as `also` says, under the pins but for the data axis, or as the plan.json
// of that name has it.
absl::StatusOr<Compiled> compile_also(const Flags& flags, const CompileRequest& first, const std::string& also) {
  CompileRequest request = first;
  int64_t ranks = 0;
  if (absl::SimpleAtoi(also, &ranks)) {
    request.ranks = ranks;
    request.recipe.pin.axes.erase("data");
    request.plan = nullptr;
  } else {
    ModelFlags model = flags.model;
    model.plan = also;
    model.ranks.reset();
    model.pins.clear(), model.like.clear();
    PARTITA_ASSIGN_OR_RETURN(request, model.request());
    request.keep_gradients = first.keep_gradients;
  }
  request.passes = {};
  return compile_model(request);
}

absl::StatusOr<std::vector<Compiled>> compile_all_also(const Flags& flags, CompileRequest request,
                                                       const Compiled& first) {
  std::vector<Compiled> all;
  if (!flags.also.empty() && first.schedule == PipelineSchedule::kPipedream)
    return absl::InvalidArgumentError("--also: schedule: pipedream trains differently on each number of ranks");
  if (request.recipe.batch.accumulation) {  // a step's samples are those of the first plan
    request.recipe.batch.global = first.samples;
    request.recipe.batch.accumulation.reset();
  }
  std::set<int64_t> known = {first.ranks};
  const verifier::Bundle serial = serial_part(first);
  for (const std::string& also : flags.also) {
    const std::string context = cat("--also ", also);
    auto compiled = compile_also(flags, request, also);
    if (!compiled.ok()) return with_context(compiled.status(), context);
    if (!known.insert(compiled->ranks).second)
      return absl::InvalidArgumentError(cat(context, ": there is a plan for ", compiled->ranks, " ranks already"));
    if (const absl::Status same = verifier::check_same_training(serial, serial_part(*compiled)); !same.ok())
      return absl::InvalidArgumentError(
          cat(context, ": on ", compiled->ranks, " ranks it would be another training: ", same.message()));
    all.push_back(*std::move(compiled));
  }
  return all;
}

}  // namespace

void add_compile(CLI::App& app, absl::Status& result) {
  auto flags = std::make_shared<Flags>();
  CLI::App* verb = app.add_subcommand(
      "compile", "compile a model into a bundle: a folder with an executable for the ranks and the first weights");
  flags->model.add(*verb);
  verb->add_option("-o,--output", flags->output, "folder of the bundle")->required();
  verb->add_option(
          "--also", flags->also,
          "compile plans for these numbers of ranks, too, 4,2,1, into the same bundle: a run takes the one for "
          "the ranks that it finds; or the plan.json of one")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("N,…");
  verb->add_flag("--keep-gradients", flags->keep_gradients,
                 "keep gradients to the end of the step, so that a run can save them");
  verb->add_flag("--quiet", flags->quiet, "say nothing but errors");
  verb->callback([flags, &result] {
    auto compile = [&]() -> absl::Status {
      PARTITA_ASSIGN_OR_RETURN(std::string runner, find_runner());
      PARTITA_ASSIGN_OR_RETURN(CompileRequest request, flags->model.request());
      request.keep_gradients = flags->keep_gradients;
      PARTITA_ASSIGN_OR_RETURN(Compiled compiled, compile_model(request));
      if (!flags->quiet) print_warnings(compiled);
      if (flags->model.time_passes) print_seconds(compiled);
      if (compiled.stopped) return absl::OkStatus();
      PARTITA_ASSIGN_OR_RETURN(const std::vector<Compiled> also, compile_all_also(*flags, request, compiled));
      PARTITA_RETURN_IF_ERROR(write_bundle(compiled, runner, flags->output, also));
      if (DeviceCodeSummary code = device_code(compiled.programs); code.kernels > 0 && !flags->quiet) {
        std::printf(
            "%lld GPU kernels, %lld registers at most, %lld of them spill (%lld bytes); %lld a step in %lld launches\n",
            static_cast<long long>(code.kernels), static_cast<long long>(code.most_registers),
            static_cast<long long>(code.spilling), static_cast<long long>(code.spilled_bytes),
            static_cast<long long>(code.steps), static_cast<long long>(code.launches));
      }
      if (!flags->quiet) {
        int64_t state = 0, working = 0;  // of the stage that has most
        for (const runtime::Program& p : compiled.programs) {
          state = std::max(state, p.region_bytes[0]);
          working = std::max(working, p.region_bytes[2]);
        }
        std::string gathered;
        if (compiled.gathered_bytes > 0)
          gathered = cat(" (up to ", compiled.gathered_bytes / 100000 / 10., " MB of it gathered parameters)");
        std::fputs(describe_choices(compiled).c_str(), stdout);
        std::printf(
            "%s: %lld parameters, %lld rank%s, %.1f MB of state and %.1f MB of working memory a rank%s\nrun it with: "
            "partita run %s --data FILE, or mpirun -n %lld %s/%s --data FILE\n",
            flags->output.c_str(), static_cast<long long>(compiled.parameters), static_cast<long long>(compiled.ranks),
            compiled.ranks == 1 ? "" : "s", static_cast<double>(state) / 1e6, static_cast<double>(working) / 1e6,
            gathered.c_str(), flags->output.c_str(), static_cast<long long>(compiled.ranks), flags->output.c_str(),
            runtime::kRankName);
        for (const Compiled& plan : also)
          std::printf("also for %lld rank%s: %s\n", static_cast<long long>(plan.ranks), plan.ranks == 1 ? "" : "s",
                      plan.layout.c_str());
      }
      return absl::OkStatus();
    };
    result = compile();
  });
}

}  // namespace partita
