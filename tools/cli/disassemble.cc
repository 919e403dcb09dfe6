#include <cstdio>

#include "base/atomic_file.h"
#include "base/status.h"
#include "runtime/program/bundle_files.h"
#include "tools/assembly/assembly.h"
#include "tools/assembly/listing.h"
#include "tools/cli/command.h"
#include "tools/verify/bundle/bundle.h"

namespace partita {

void add_disassemble(CLI::App& app, absl::Status& result) {
  struct Flags {
    std::string bundle, file;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* verb = app.add_subcommand("disassemble", "a bundle's programs, step by step, or all of them as JSON");
  verb->add_option("bundle", flags->bundle, "folder that `partita compile` wrote")->required();
  verb->add_option("-o,--output", flags->file, "write the programs whole, as JSON that `partita assemble` reads");
  verb->callback([flags, &result] {
    auto run = [&]() -> absl::Status {
      if (!flags->file.empty()) {
        PARTITA_ASSIGN_OR_RETURN(const std::string text, disassemble(flags->bundle));
        return write_file_atomically(flags->file, text, Durable::kNo);
      }
      PARTITA_ASSIGN_OR_RETURN(const auto files, runtime::BundleFiles::open_unproved(flags->bundle));
      PARTITA_ASSIGN_OR_RETURN(const verifier::Bundle bundle, verifier::read_bundle(*files));
      std::fputs(listing(bundle).c_str(), stdout);
      return absl::OkStatus();
    };
    result = run();
  });
}

}  // namespace partita
