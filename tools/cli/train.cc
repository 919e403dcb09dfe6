#include <unistd.h>

#include <filesystem>

#include "base/cat.h"
#include "base/status.h"
#include "tools/cli/command.h"

namespace partita {
namespace {

// A folder that goes away with its owner.
class TemporaryFolder {
 public:
  TemporaryFolder() : path_((std::filesystem::temp_directory_path() / cat("partita-", getpid())).string()) {}
  ~TemporaryFolder() {
    std::error_code ec;
    std::filesystem::remove_all(path_, ec);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace

void add_train(CLI::App& app, absl::Status& result) {
  struct Flags {
    ModelFlags model;
    runtime::RunFlags run;
    std::string bundle;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* verb = app.add_subcommand("train", "plan, compile and train in one go");
  flags->model.add(*verb);
  flags->run.add(*verb);
  verb->add_option("--bundle", flags->bundle, "keep the compiled bundle in this folder");
  verb->callback([flags, &result] {
    auto train = [&]() -> absl::Status {
      PARTITA_ASSIGN_OR_RETURN(std::string runner, find_runner());
      PARTITA_ASSIGN_OR_RETURN(CompileRequest request, flags->model.request());
      request.keep_gradients = !flags->run.save_gradients.empty();
      TemporaryFolder temporary;
      std::string folder = flags->bundle.empty() ? temporary.path() : flags->bundle;
      {
        PARTITA_ASSIGN_OR_RETURN(Compiled compiled, compile_model(request));
        print_warnings(compiled, flags->run.quiet);
        if (flags->model.time_passes) print_seconds(compiled);
        if (compiled.stopped) return absl::OkStatus();
        PARTITA_RETURN_IF_ERROR(write_bundle(compiled, runner, folder));
      }
      return run_bundle(folder, flags->run);
    };
    result = train();
  });
}

}  // namespace partita
