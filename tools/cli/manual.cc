// partita completion | manual: the command line's own definitions for shells and for man(1)
#include <cstdio>
#include <filesystem>

#include "base/atomic_file.h"
#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "tools/cli/command.h"
#include "tools/manual/command_tree.h"
#include "tools/manual/completions.h"
#include "tools/manual/man_page.h"

namespace partita {
namespace {

absl::Status write_below(const std::string& folder, const std::string& path, const std::string& text) {
  const std::filesystem::path file = std::filesystem::path(folder) / path;
  std::error_code ec;
  std::filesystem::create_directories(file.parent_path(), ec);
  if (ec)
    return absl::InvalidArgumentError(cat("cannot create ", quote(file.parent_path().string()), ": ", ec.message()));
  return write_file_atomically(file.string(), text, Durable::kNo);
}

// Where shells and man(1) look below a prefix's share/.
absl::Status write_manual(const CLI::App& app, const std::string& folder) {
  const Command root = describe(app);
  const std::string version = app.version(), named = version.substr(0, version.find(" ("));
  for (const Command* c : all_commands(root))
    PARTITA_RETURN_IF_ERROR(write_below(folder, cat("man/man1/", path_text(*c, "-"), ".1"), man_page(*c, named)));
  PARTITA_RETURN_IF_ERROR(write_below(folder, "bash-completion/completions/partita", bash_completion(root)));
  PARTITA_RETURN_IF_ERROR(write_below(folder, "zsh/vendor-completions/_partita", zsh_completion(root)));
  return write_below(folder, "fish/vendor_completions.d/partita.fish", fish_completion(root));
}

}  // namespace

void add_completion(CLI::App& app, absl::Status&) {
  auto shell = std::make_shared<std::string>();
  CLI::App* verb = app.add_subcommand("completion", "the completion script for a shell, on standard output");
  verb->add_option("shell", *shell, "bash, zsh or fish")->required()->check(CLI::IsMember({"bash", "zsh", "fish"}));
  verb->callback([shell, &app] {
    const Command root = describe(app);
    const std::string text = *shell == "bash"  ? bash_completion(root)
                             : *shell == "zsh" ? zsh_completion(root)
                                               : fish_completion(root);
    std::fputs(text.c_str(), stdout);
  });
}

void add_manual(CLI::App& app, absl::Status& result) {
  auto folder = std::make_shared<std::string>();
  CLI::App* verb = app.add_subcommand(
      "manual", "write manual pages and completions into a folder: man/, bash-completion/, zsh/, fish/ as in share/");
  verb->add_option("folder", *folder, "where to; made if it is not there")->required();
  verb->callback([folder, &app, &result] { result = write_manual(app, *folder); });
}

}  // namespace partita
