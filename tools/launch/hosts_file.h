// The hosts that ranks are started on.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace partita {

struct Host {
  std::string name;     // as ssh knows it
  int slots = 1;        // ranks
  std::string address;  // as the other hosts reach it; its name where the file says none
  bool operator==(const Host&) const = default;
};

// Lines as of Open MPI: "gpu01 slots=8", or "gpu01:8"; "address=10.0.0.1" where ssh's name is not the network's. Empty
// lines and what follows a # do not count. InvalidArgument names the line.
absl::StatusOr<std::vector<Host>> parse_hosts(const std::string& text, const std::string& path);

int slots_of(const std::vector<Host>& hosts);

// So many of the first slots as there are ranks. InvalidArgument where the hosts have fewer.
absl::StatusOr<std::vector<Host>> hosts_for(std::vector<Host> hosts, int ranks);

}  // namespace partita
