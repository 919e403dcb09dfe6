#include "base/cat.h"
#include "base/status.h"
#include "runtime/program/bundle_names.h"
#include "tools/cli/command.h"
#include "tools/flow/describe_choices.h"
#include "tools/flow/device_code_summary.h"
#include "tools/flow/write_bundle.h"

namespace partita {

void add_compile(CLI::App& app, absl::Status& result) {
  struct Flags {
    ModelFlags model;
    std::string output;
    bool keep_gradients = false;
    bool quiet = false;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* verb = app.add_subcommand(
      "compile", "compile a model into a bundle: a folder with an executable for the ranks and the first weights");
  flags->model.add(*verb);
  verb->add_option("-o,--output", flags->output, "folder of the bundle")->required();
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
      PARTITA_RETURN_IF_ERROR(write_bundle(compiled, runner, flags->output));
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
      }
      return absl::OkStatus();
    };
    result = compile();
  });
}

}  // namespace partita
