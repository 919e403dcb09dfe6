// partita import-config
#include <cstdio>

#include "base/atomic_file.h"
#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "base/text_file.h"
#include "ir/recipe/read_recipe.h"
#include "tools/cli/command.h"
#include "tools/import_config/import_config.h"

namespace partita {
namespace {

struct Flags {
  std::string file, format, output;
};

absl::Status run(const Flags& flags) {
  PARTITA_ASSIGN_OR_RETURN(const ImportedConfig config, import_config(flags.file, flags.format));
  std::fputs(format_report(config, flags.file).c_str(), stdout);
  if (const absl::Status refused = first_refusal(config.keys); !refused.ok())
    return absl::InvalidArgumentError(cat(shown_path(flags.file), ":", std::string(refused.message()),
                                          flags.output.empty() ? "" : cat("; ", flags.output, " is not written")));
  PARTITA_RETURN_IF_ERROR(check_recipe(config.recipe, shown_path(flags.file)));
  const std::string to = flags.output.empty() ? "train.yaml" : flags.output;
  if (flags.output.empty())
    std::printf("\ntrain.yaml\n%s", format_train_yaml(config, flags.file).c_str());
  else
    PARTITA_RETURN_IF_ERROR(write_file_atomically(flags.output, format_train_yaml(config, flags.file)));
  std::printf("\n%s\n", command_of(config, to).c_str());
  return absl::OkStatus();
}

}  // namespace

void add_import_config(CLI::App& app, absl::Status& result) {
  auto flags = std::make_shared<Flags>();
  CLI::App* verb = app.add_subcommand(
      "import-config", "a train.yaml from another program's configuration, and what becomes of each of its keys");
  verb->add_option("file", flags->file,
                   "DeepSpeed's ds_config.json, accelerate's YAML, torchtitan's TOML, or a script with Megatron-LM's "
                   "arguments")
      ->required();
  verb->add_option("--format", flags->format, "which of them it is, where its name and keys do not tell")
      ->check(CLI::IsMember({"deepspeed", "accelerate", "torchtitan", "megatron"}));
  verb->add_option("-o,--output", flags->output, "train.yaml to write; by default it is printed");
  verb->callback([flags, &result] { result = run(*flags); });
}

}  // namespace partita
