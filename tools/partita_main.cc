// The command line: one verb, one file in tools/cli.
#include <cerrno>
#include <cstdio>
#include <new>
#include <stdexcept>
#include <string_view>
#include <system_error>

#include "CLI/CLI.hpp"
#include "base/cat.h"
#include "base/exit_code.h"
#include "base/fault.h"
#include "runtime/kernels/onednn.h"
#include "runtime/launch/launch_environment.h"
#include "runtime/launch/spinning.h"
#include "runtime/launch/stop_signal.h"
#include "tools/cli/command.h"
#include "tools/cli/version.h"

namespace partita {
namespace {

std::string exit_codes_text() {
  std::string text = "Exit codes: ";
  for (const ExitMeaning& m : kExitCodes) append(text, static_cast<int>(m.code), " ", m.meaning, ", ");
  return cat(text, kFirstRetryCode, " and above worth a retry.");
}

// Verbs that save a checkpoint on SIGUSR1.
bool takes_steps(std::string_view verb) { return verb == "run" || verb == "train"; }

// A result that nobody can read is none.
absl::Status output_status() {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      cat("cannot write to standard output", errno == 0 ? "" : cat(": ", std::generic_category().message(errno))));
}

}  // namespace
}  // namespace partita

int main(int argc, char** argv) {
  if (argc > 1 && partita::takes_steps(argv[1])) partita::runtime::hold_save_signal();
  partita::runtime::limit_spinning(argv);
  partita::exit_on_uncaught();
  partita::runtime::prepare_onednn(partita::runtime::chooses_onednn_instructions(partita::runtime::read_environment()));
  CLI::App app{"Partita: an auto-parallelizing compiler for training graphs", "partita"};
  app.require_subcommand(1);
  app.set_version_flag(
      "--version", [] { return partita::version_text(partita::kBuildInfo); }, "version, commit, libraries and modules");
  app.footer(partita::exit_codes_text());
  app.failure_message([](const CLI::App* root, const CLI::Error& e) {
    return partita::without_limits(*root, CLI::FailureMessage::simple(root, e));
  });
  absl::Status result;
  partita::add_train(app, result);
  partita::add_plan(app, result);
  partita::add_explain(app, result);
  partita::add_sweep(app, result);
  partita::add_simulate(app, result);
  partita::add_report(app, result);
  partita::add_watch(app, result);
  partita::add_diff(app, result);
  partita::add_compile(app, result);
  partita::add_run(app, result);
  partita::add_data(app, result);
  partita::add_launch(app, result);
  partita::add_verify(app, result);
  partita::add_compare(app, result);
  partita::add_disassemble(app, result);
  partita::add_assemble(app, result);
  partita::add_autopsy(app, result);
  partita::add_checkpoint(app, result);
  partita::add_import_config(app, result);
  partita::add_predict(app, result);
  partita::add_generate(app, result);
  partita::add_doctor(app, result);
  partita::add_model(app, result);
  partita::add_factors(app, result);
  partita::add_completion(app, result);
  partita::add_manual(app, result);
  partita::refuse_nan(app);
  try {
    if (result = partita::check_words(app, argc, argv); result.ok()) app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (app.exit(e) != 0) return static_cast<int>(partita::ExitCode::kUsage);
  } catch (const std::bad_alloc&) {
    result = absl::ResourceExhaustedError("out of memory");
  } catch (const std::exception& e) {
    result = absl::InternalError(e.what());
  }
  result.Update(partita::output_status());
  if (!result.ok()) std::fprintf(stderr, "partita: %s\n", std::string(result.message()).c_str());
  return partita::exit_code(result);
}
