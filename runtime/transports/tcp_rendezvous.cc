#include "runtime/transports/tcp_rendezvous.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <list>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"

namespace partita::runtime {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::seconds;

constexpr uint64_t kMagic = 0x5041525449544131ull;  // "PARTITA1"
constexpr size_t kMaxAddressBytes = 64;
constexpr size_t kMaxRefusalBytes = 4096;

struct Hello {
  uint64_t magic = kMagic;
  uint64_t job = 0;
  int32_t world = 0;
  int32_t rank = 0;
  uint16_t control = 0;  // 1 for a control connection, 0 for data
  uint16_t port = 0;     // where the rank listens
  uint32_t reserved = 0;
};
static_assert(sizeof(Hello) == 32);

// Before rank 0's answer: a table (code 0) or the text of a refusal (the status code).
struct Answer {
  uint64_t magic = kMagic;
  uint32_t code = 0;
  uint32_t length = 0;
};

struct Guest {
  Fd fd;
  Hello hello;
};

uint64_t job_hash(std::string_view job) {
  uint64_t hash = 14695981039346656037ull;
  for (unsigned char c : job) hash = (hash ^ c) * 1099511628211ull;
  return hash;
}

template <typename T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

void refuse(const Fd& fd, absl::StatusCode code, std::string_view text) {
  text = text.substr(0, kMaxRefusalBytes);
  const Answer answer{.code = static_cast<uint32_t>(code), .length = static_cast<uint32_t>(text.size())};
  // Best effort: whoever does not hear it finds the connection closed.
  tcp_send_some(fd, bytes_of(answer), std::as_bytes(std::span(text)));
}

// Takes in connections until every rank from `first` on has said its hello.
class Doorkeeper {
 public:
  Doorkeeper(const TcpWorld& world, const Fd& listener, bool control, int first)
      : world_(world),
        listener_(listener),
        control_(control),
        first_(first),
        guests_(static_cast<size_t>(world.size)) {}

  // `watched[rank]`: connections that must stay open meanwhile.
  absl::Status run(const std::vector<Fd>& watched, SteadyTime deadline);
  std::vector<Guest>& guests() { return guests_; }

 private:
  struct Newcomer {
    Fd fd;
    std::array<std::byte, sizeof(Hello)> bytes{};
    size_t got = 0;
    SteadyTime deadline;
  };
  std::vector<int> missing() const;
  bool read(Newcomer& newcomer);  // false when it is to be dropped
  void welcome(Newcomer& newcomer);

  const TcpWorld& world_;
  const Fd& listener_;
  const bool control_;
  const int first_;
  std::vector<Guest> guests_;
  std::list<Newcomer> newcomers_;
};

std::vector<int> Doorkeeper::missing() const {
  std::vector<int> ranks;
  for (int rank = first_; rank < world_.size; ++rank) {
    if (!guests_[static_cast<size_t>(rank)].fd.valid()) ranks.push_back(rank);
  }
  return ranks;
}

void Doorkeeper::welcome(Newcomer& newcomer) {
  Hello hello;
  std::memcpy(&hello, newcomer.bytes.data(), sizeof hello);
  if (hello.magic != kMagic || hello.control != (control_ ? 1 : 0)) return;
  const auto no = [&](const auto&... parts) {
    refuse(newcomer.fd, absl::StatusCode::kFailedPrecondition, cat(parts...));
  };
  if (hello.job != job_hash(world_.job_id))
    return no("port ", world_.master.port, " belongs to another run; choose another MASTER_PORT");
  if (hello.world != world_.size)
    return no("rank 0 runs with ", world_.size, " ranks, rank ", hello.rank, " with ", hello.world);
  if (hello.rank < first_ || hello.rank >= world_.size) return no("rank ", hello.rank, " is not expected here");
  Guest& guest = guests_[static_cast<size_t>(hello.rank)];
  if (guest.fd.valid()) return no("two processes say that they are rank ", hello.rank);
  guest.fd = std::move(newcomer.fd);
  guest.hello = hello;
}

bool Doorkeeper::read(Newcomer& newcomer) {
  const ptrdiff_t moved = tcp_recv_some(newcomer.fd, std::span(newcomer.bytes).subspan(newcomer.got));
  if (moved < 0) return false;
  newcomer.got += static_cast<size_t>(moved);
  if (newcomer.got < sizeof(Hello)) return true;
  welcome(newcomer);
  return false;
}

absl::Status Doorkeeper::run(const std::vector<Fd>& watched, SteadyTime deadline) {
  const size_t limit = 2 * guests_.size() + 64;  // strangers cannot use up our descriptors
  while (true) {
    const std::vector<int> absent = missing();
    if (absent.empty()) return absl::OkStatus();
    const SteadyTime now = Clock::now();
    if (now >= deadline) return absl::UnavailableError(cat(describe_ranks(absent), " did not come"));
    newcomers_.remove_if([&](const Newcomer& n) { return n.deadline <= now; });
    std::vector<pollfd> polls{{listener_.get(), POLLIN, 0}};
    for (const Newcomer& newcomer : newcomers_) polls.push_back({newcomer.fd.get(), POLLIN, 0});
    for (const Fd& fd : watched) polls.push_back({fd.get(), POLLRDHUP, 0});
    if (::poll(polls.data(), polls.size(), std::min(poll_timeout(deadline), 1000)) < 0 && errno != EINTR) {
      return absl::UnavailableError("poll failed while ranks were coming in");
    }
    size_t next = 1;
    for (auto newcomer = newcomers_.begin(); newcomer != newcomers_.end(); ++next) {
      newcomer = polls[next].revents != 0 && !read(*newcomer) ? newcomers_.erase(newcomer) : std::next(newcomer);
    }
    for (size_t rank = 0; rank < watched.size(); ++rank, ++next) {
      if (polls[next].revents != 0)
        return absl::UnavailableError(cat("rank ", rank, " died while the connections were made"));
    }
    for (Fd fd = tcp_accept(listener_); fd.valid(); fd = tcp_accept(listener_)) {
      if (newcomers_.size() >= limit) newcomers_.pop_front();
      newcomers_.push_back({.fd = std::move(fd), .deadline = now + seconds(10)});
    }
  }
}

// Per rank: port, length of the address, address. Without an address it is on rank 0's host: reached at the master's.
absl::StatusOr<std::string> write_table(const std::vector<Guest>& guests, uint16_t master_port) {
  std::string table;
  for (size_t rank = 0; rank < guests.size(); ++rank) {
    std::string address;
    if (rank > 0) {
      PARTITA_ASSIGN_OR_RETURN(address, tcp_peer_address(guests[rank].fd));
      if (is_loopback(address) || address.size() > kMaxAddressBytes) address.clear();
    }
    const uint16_t head[2] = {rank == 0 ? master_port : guests[rank].hello.port, static_cast<uint16_t>(address.size())};
    table.append(reinterpret_cast<const char*>(head), sizeof head);
    table += address;
  }
  return table;
}

absl::StatusOr<std::vector<TcpEndpoint>> read_table(std::string_view table, const TcpWorld& world) {
  std::vector<TcpEndpoint> endpoints;
  for (int rank = 0; rank < world.size; ++rank) {
    uint16_t head[2];
    if (table.size() < sizeof head) return absl::UnavailableError("rank 0 sent a broken table");
    std::memcpy(head, table.data(), sizeof head);
    table.remove_prefix(sizeof head);
    if (table.size() < head[1]) return absl::UnavailableError("rank 0 sent a broken table");
    endpoints.push_back(
        {.address = head[1] == 0 ? world.master.address : std::string(table.substr(0, head[1])), .port = head[0]});
    table.remove_prefix(head[1]);
  }
  return endpoints;
}

absl::Status receive_guests(const TcpWorld& world, const Fd& listener, std::vector<Fd>& control, SteadyTime deadline) {
  Doorkeeper door(world, listener, true, 1);
  if (const absl::Status status = door.run({}, deadline); !status.ok()) {
    for (const Guest& guest : door.guests()) {
      if (guest.fd.valid()) refuse(guest.fd, status.code(), std::string(status.message()));
    }
    return status;
  }
  PARTITA_ASSIGN_OR_RETURN(const std::string table, write_table(door.guests(), world.master.port));
  const Answer answer{.length = static_cast<uint32_t>(table.size())};
  for (int rank = 1; rank < world.size; ++rank) {
    Fd& fd = control[static_cast<size_t>(rank)] = std::move(door.guests()[static_cast<size_t>(rank)].fd);
    absl::Status sent = tcp_send_all(fd, bytes_of(answer), deadline);
    if (sent.ok()) sent = tcp_send_all(fd, std::as_bytes(std::span(table)), deadline);
    PARTITA_RETURN_IF_ERROR(with_context(sent, cat("rank ", rank)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TcpEndpoint>> visit_master(const TcpWorld& world, const Fd& listener, Fd& control,
                                                      SteadyTime deadline) {
  PARTITA_ASSIGN_OR_RETURN(const uint16_t port, tcp_local_port(listener));
  PARTITA_ASSIGN_OR_RETURN(control, tcp_connect(world.master, deadline));
  const Hello hello{.job = job_hash(world.job_id), .world = world.size, .rank = world.rank, .control = 1, .port = port};
  PARTITA_RETURN_IF_ERROR(tcp_send_all(control, bytes_of(hello), deadline));
  Answer answer;
  // Rank 0's own deadline may be a little later, and it knows who is missing.
  const SteadyTime patience = deadline + seconds(5);
  PARTITA_RETURN_IF_ERROR(tcp_recv_all(control, std::as_writable_bytes(std::span(&answer, 1)), patience));
  const size_t limit = answer.code == 0 ? static_cast<size_t>(world.size) * (kMaxAddressBytes + 4) : kMaxRefusalBytes;
  if (answer.magic != kMagic || answer.length > limit)
    return absl::UnavailableError("something that is not Partita answers");
  std::string text(answer.length, '\0');
  PARTITA_RETURN_IF_ERROR(tcp_recv_all(control, std::as_writable_bytes(std::span(text)), patience));
  if (answer.code == static_cast<uint32_t>(absl::StatusCode::kFailedPrecondition))
    return absl::FailedPreconditionError(printable(text));
  if (answer.code != 0) return absl::UnavailableError(printable(text));
  return read_table(text, world);
}

absl::Status connect_data(const TcpWorld& world, const std::vector<TcpEndpoint>& endpoints, const Fd& listener,
                          TcpMesh& mesh, SteadyTime deadline) {
  const Hello hello{.job = job_hash(world.job_id), .world = world.size, .rank = world.rank};
  for (int rank = 0; rank < world.rank; ++rank) {
    // It listens already, so a refusal means that it died.
    absl::StatusOr<Fd> fd =
        tcp_connect(endpoints[static_cast<size_t>(rank)], std::min(deadline, Clock::now() + seconds(10)));
    if (!fd.ok()) return with_context(fd.status(), cat("rank ", rank));
    PARTITA_RETURN_IF_ERROR(with_context(tcp_send_all(*fd, bytes_of(hello), deadline), cat("rank ", rank)));
    mesh.data[static_cast<size_t>(rank)] = *std::move(fd);
  }
  Doorkeeper door(world, listener, false, world.rank + 1);
  PARTITA_RETURN_IF_ERROR(door.run(mesh.control, deadline));
  for (int rank = world.rank + 1; rank < world.size; ++rank) {
    mesh.data[static_cast<size_t>(rank)] = std::move(door.guests()[static_cast<size_t>(rank)].fd);
  }
  return absl::OkStatus();
}

// Nobody goes on before everybody is connected: from then on a closed connection means a death or an abort.
absl::Status meet(const TcpWorld& world, const TcpMesh& mesh, SteadyTime deadline) {
  std::byte word{1};
  const auto broken = [](const absl::Status& status, int rank) {
    return with_context(status, cat("rank ", rank, " died while the connections were made"));
  };
  if (world.rank > 0) {
    PARTITA_RETURN_IF_ERROR(broken(tcp_send_all(mesh.control[0], {&word, 1}, deadline), 0));
    return broken(tcp_recv_all(mesh.control[0], {&word, 1}, deadline + seconds(5)), 0);
  }
  for (int rank = 1; rank < world.size; ++rank)
    PARTITA_RETURN_IF_ERROR(broken(tcp_recv_all(mesh.control[static_cast<size_t>(rank)], {&word, 1}, deadline), rank));
  for (int rank = 1; rank < world.size; ++rank)
    PARTITA_RETURN_IF_ERROR(broken(tcp_send_all(mesh.control[static_cast<size_t>(rank)], {&word, 1}, deadline), rank));
  return absl::OkStatus();
}

absl::Status open_mesh(const TcpWorld& world, TcpMesh& mesh, SteadyTime deadline) {
  PARTITA_ASSIGN_OR_RETURN(const Fd listener, tcp_listen(world.rank == 0 ? world.master.port : 0));
  std::vector<TcpEndpoint> endpoints;
  if (world.rank == 0) {
    PARTITA_RETURN_IF_ERROR(receive_guests(world, listener, mesh.control, deadline));
  } else {
    PARTITA_ASSIGN_OR_RETURN(endpoints, visit_master(world, listener, mesh.control[0], deadline));
  }
  for (const Fd& fd : mesh.control) {
    if (fd.valid()) tcp_watch_host(fd);
  }
  PARTITA_RETURN_IF_ERROR(connect_data(world, endpoints, listener, mesh, deadline));
  return meet(world, mesh, deadline);
}

}  // namespace

absl::StatusOr<TcpMesh> open_tcp_mesh(const TcpWorld& world, std::chrono::milliseconds timeout) {
  TcpMesh mesh;
  mesh.data.resize(static_cast<size_t>(world.size));
  mesh.control.resize(static_cast<size_t>(world.rank == 0 ? world.size : 1));
  if (world.size == 1) return mesh;
  const absl::Status status = open_mesh(world, mesh, Clock::now() + timeout);
  if (status.ok()) return mesh;
  return with_context(status, cat("opening the TCP connections of rank ", world.rank, " of ", world.size,
                                  " (rank 0 at ", quote(world.master.address), " port ", world.master.port,
                                  ", timeout ", std::chrono::duration<double>(timeout).count(), " s)"));
}

}  // namespace partita::runtime
