#include "base/cat.h"
#include "base/status.h"
#include "runtime/program_image.h"
#include "tools/cli/command.h"
#include "tools/verify/certificate.h"

namespace partita {

absl::Status run_bundle(const std::string& folder, const runtime::RunFlags& flags) {
  PARTITA_RETURN_IF_ERROR(verifier::check_certificate(folder, /*thorough=*/false));
  PARTITA_ASSIGN_OR_RETURN(runtime::TrainOptions options, flags.options(folder));
  PARTITA_ASSIGN_OR_RETURN(runtime::Program program, runtime::load_image(cat(folder, "/", runtime::kImageName)));
  PARTITA_ASSIGN_OR_RETURN(auto loaded, runtime::LoadedProgram::load(std::move(program)));
  PARTITA_ASSIGN_OR_RETURN(auto sink, flags.sink(std::max<int64_t>(options.steps, 0)));
  PARTITA_RETURN_IF_ERROR(runtime::train_local(loaded, options, sink.get()));
  return sink->close();
}

void add_run(CLI::App& app, absl::Status& result) {
  struct Flags {
    std::string bundle;
    runtime::RunFlags run;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* verb = app.add_subcommand("run", "run a bundle with all its ranks as threads of this process");
  verb->add_option("bundle", flags->bundle, "folder that `partita compile` wrote")->required();
  flags->run.add(*verb);
  verb->callback([flags, &result] { result = run_bundle(flags->bundle, flags->run); });
}

}  // namespace partita
