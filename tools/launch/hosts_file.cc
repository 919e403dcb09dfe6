#include "tools/launch/hosts_file.h"

#include <algorithm>
#include <cctype>
#include <numeric>
#include <sstream>

#include "absl/strings/numbers.h"
#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"

namespace partita {
namespace {

constexpr int kMaxSlots = 4096;

// Nothing that ssh or a shell could take for something else.
bool is_host_name(const std::string& text) {
  return !text.empty() && text[0] != '-' && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '.' || c == '_' || c == ':' || c == '@';
  });
}

bool read_slots(const std::string& text, int& slots) {
  return absl::SimpleAtoi(text, &slots) && slots >= 1 && slots <= kMaxSlots;
}

bool read_host(const std::string& line, Host& host) {
  std::istringstream words(line);
  words >> host.name;
  // "gpu01:8", but not an address of IPv6.
  if (const size_t colon = host.name.find(':'); colon != std::string::npos && colon == host.name.rfind(':')) {
    if (!read_slots(host.name.substr(colon + 1), host.slots)) return false;
    host.name.resize(colon);
  }
  for (std::string word; words >> word;) {
    if (word.rfind("slots=", 0) == 0) {
      if (!read_slots(word.substr(6), host.slots)) return false;
    } else if (word.rfind("address=", 0) == 0) {
      host.address = word.substr(8);
      if (!is_host_name(host.address)) return false;
    } else {
      return false;
    }
  }
  if (host.address.empty()) host.address = host.name.substr(host.name.find('@') + 1);
  return is_host_name(host.name);
}

}  // namespace

absl::StatusOr<std::vector<Host>> parse_hosts(const std::string& text, const std::string& path) {
  std::vector<Host> hosts;
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    line = line.substr(0, line.find('#'));
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    Host host;
    if (!read_host(line, host))
      return absl::InvalidArgumentError(
          cat(quote(path), " line ", number, ": expected NAME [slots=N] [address=A], got ", quote(line)));
    hosts.push_back(std::move(host));
  }
  if (hosts.empty()) return absl::InvalidArgumentError(cat(quote(path), " names no host"));
  return hosts;
}

int slots_of(const std::vector<Host>& hosts) {
  return std::accumulate(hosts.begin(), hosts.end(), 0, [](int sum, const Host& h) { return sum + h.slots; });
}

absl::StatusOr<std::vector<Host>> hosts_for(std::vector<Host> hosts, int ranks) {
  int left = ranks;
  std::vector<Host> used;
  for (Host& host : hosts) {
    if (left == 0) break;
    host.slots = std::min(host.slots, left);
    left -= host.slots;
    used.push_back(std::move(host));
  }
  if (left == 0) return used;
  return absl::InvalidArgumentError(
      cat("the bundle is for ", ranks, " ranks, and the hosts have slots for ", ranks - left));
}

}  // namespace partita
