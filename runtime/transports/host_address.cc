#include "runtime/transports/host_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/str_join.h"
#include "base/cat.h"
#include "base/quote.h"
#include "runtime/transports/tcp_socket.h"

namespace partita::runtime {
namespace {

std::string numeric(const sockaddr* address, socklen_t length) {
  std::array<char, NI_MAXHOST> text{};
  const int error = ::getnameinfo(address, length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  return error == 0 ? text.data() : "";
}

constexpr const char* kNoHost = "192.0.2.1";  // far away (RFC 5737)

bool is_loopback(std::string_view address) { return address == "::1" || address.starts_with("127."); }

// The addresses of a name, as this host knows it.
std::vector<std::string> addresses_of(const std::string& name) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(name.c_str(), nullptr, &hints, &found) != 0) return {};
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> guard(found, &::freeaddrinfo);
  std::vector<std::string> addresses;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next)
    addresses.push_back(numeric(at->ai_addr, at->ai_addrlen));
  return addresses;
}

bool is_numeric(const std::string& text) {
  std::array<unsigned char, 16> bytes;
  return ::inet_pton(AF_INET, text.c_str(), bytes.data()) == 1 ||
         ::inet_pton(AF_INET6, text.c_str(), bytes.data()) == 1;
}

// Where a packet to `name` would start from; none is sent.
std::string route_address(const std::string& name) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(name.c_str(), "9", &hints, &found) != 0) return "";
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> guard(found, &::freeaddrinfo);
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    const Fd fd(::socket(at->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage here{};
    socklen_t length = sizeof here;
    if (::connect(fd.get(), at->ai_addr, at->ai_addrlen) == 0 &&
        ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&here), &length) == 0)
      return numeric(reinterpret_cast<const sockaddr*>(&here), length);
  }
  return "";
}

}  // namespace

absl::StatusOr<std::string> interface_address(const std::string& interface) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return absl::UnavailableError("this host does not tell its interfaces");
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> guard(list, &::freeifaddrs);
  std::string chosen;
  std::vector<std::string> known;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
      if (at->ifa_addr == nullptr || at->ifa_addr->sa_family != family) continue;
      const std::string address = numeric(at->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
      known.push_back(cat(at->ifa_name, " (", address, ")"));
      if (chosen.empty() && (interface == at->ifa_name || interface == address)) chosen = address;
    }
  }
  if (!chosen.empty()) return chosen;
  return absl::InvalidArgumentError(
      cat("--interface ", quote(interface), " is none of this host: ", absl::StrJoin(known, ", ")));
}

absl::StatusOr<std::string> own_address(const std::string& name) {
  std::string loopback;
  const std::vector<std::string> known = addresses_of(name);
  for (const std::string& address : known) {
    if (!tcp_listen({.address = address}).ok()) continue;  // another host's
    if (!is_loopback(address) || is_numeric(name)) return address;
    loopback = address;
  }
  if (!loopback.empty()) {
    if (std::string address = route_address(kNoHost); !address.empty()) return address;
  }
  return absl::FailedPreconditionError(
      cat("MASTER_ADDR ", quote(name),
          known.empty() ? " is no name that this host, where rank 0 runs, can look up"
                        : " is no address of this host, where rank 0 runs",
          "; set it to this host's name "
          "on all hosts (in a file of hosts: address=), or say --interface with the one to listen on"));
}

absl::StatusOr<std::string> await_own_address(const std::string& name, SteadyTime until) {
  constexpr auto kPause = std::chrono::milliseconds(200);
  for (bool told = false;; told = true) {
    auto address = own_address(name);
    const SteadyTime now = std::chrono::steady_clock::now();
    if (address.ok() || now >= until || is_numeric(name)) return address;
    if (!told)
      std::fprintf(stderr, "warning: %s. It is looked up again for %.0f s, for names of new hosts come late\n",
                   std::string(address.status().message()).c_str(),
                   std::ceil(std::chrono::duration<double>(until - now).count()));
    std::this_thread::sleep_for(kPause);
  }
}

absl::StatusOr<std::string> address_towards(const std::string& name) {
  std::string address = route_address(name);
  if (address.empty()) return absl::UnavailableError(cat("this host knows no way to ", quote(name)));
  return is_loopback(address) ? own_address(name) : address;
}

}  // namespace partita::runtime
