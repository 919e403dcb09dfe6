#include "runtime/talk_flags.h"

#include "CLI/App.hpp"

namespace partita::runtime {

void TalkFlags::add(CLI::App& app) {
  app.add_option("--backend", backend, "how ranks talk: auto, mpi or tcp")
      ->check(CLI::IsMember({"auto", "mpi", "tcp"}));
  app.add_option("--interface", interface,
                 "with several hosts: the interface, or its address, to listen on; default: the one that the route to "
                 "rank 0 takes");
  app.add_flag("--encrypt", encrypt, "with several hosts: encrypt what goes between them (TCP only)");
}

std::vector<std::string> TalkFlags::arguments() const {
  std::vector<std::string> list;
  if (backend != "auto") list.insert(list.end(), {"--backend", backend});
  if (!interface.empty()) list.insert(list.end(), {"--interface", interface});
  if (encrypt) list.emplace_back("--encrypt");
  return list;
}

}  // namespace partita::runtime
