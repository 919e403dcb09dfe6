#include "tools/assembly/assembly.h"
#include "tools/cli/command.h"

namespace partita {

void add_assemble(CLI::App& app, absl::Status& result) {
  struct Flags {
    std::string file, like, bundle;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* verb =
      app.add_subcommand("assemble",
                         "a bundle of programs in JSON, for tests: nothing is checked but that they can be "
                         "written; `partita verify` does");
  verb->add_option("file", flags->file, "JSON that `partita disassemble` wrote, changed or not")->required();
  verb->add_option("--like", flags->like,
                   "the bundle that all else is taken from; default: the one that was disassembled, where it was");
  verb->add_option("-o,--output", flags->bundle, "folder to write")->required();
  verb->callback([flags, &result] { result = assemble(flags->file, flags->like, flags->bundle); });
}

}  // namespace partita
