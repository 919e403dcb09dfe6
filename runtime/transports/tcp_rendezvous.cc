#include "runtime/transports/tcp_rendezvous.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <thread>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/transports/doorkeeper.h"
#include "runtime/transports/host_address.h"
#include "runtime/transports/local_socket.h"

namespace partita::runtime {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::seconds;

constexpr size_t kMaxAddressBytes = sizeof(Hello::address);
// A cluster's names are kept by their servers for 30 s, also that there is none.
constexpr auto kNameComes = seconds(60);

template <typename T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

// The name of a rank's socket, on one host.
std::string local_name(const TcpWorld& world, int rank) { return cat(world.master.port, "/", rank); }

// Per rank: port, length of the address, address. Without an address it is reached at the master's.
std::string write_table(const std::vector<Guest>& guests, uint16_t master_port) {
  std::string table;
  for (size_t rank = 0; rank < guests.size(); ++rank) {
    const std::string address = rank == 0 ? "" : guests[rank].hello.address.data();
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

// One rank's part in the meeting.
class Meeting {
 public:
  Meeting(const TcpWorld& world, SteadyTime deadline) : world_(world), deadline_(deadline) {
    mesh_.data.resize(static_cast<size_t>(world.size));
    mesh_.control.resize(static_cast<size_t>(world.rank == 0 ? world.size : 1));
  }
  absl::Status open();
  TcpMesh& mesh() { return mesh_; }

 private:
  absl::Status receive_guests();
  absl::StatusOr<std::vector<TcpEndpoint>> visit_master();
  absl::Status connect_data(const std::vector<TcpEndpoint>& endpoints);
  absl::Status meet();
  absl::Status listen(const std::string& address);
  absl::StatusOr<Channel> reach(int rank, const TcpEndpoint& at, SteadyTime deadline) const;

  const TcpWorld& world_;
  const SteadyTime deadline_;
  std::unique_ptr<TlsKey> key_;  // none on one host
  Fd listener_;
  TcpMesh mesh_;
};

absl::Status Meeting::listen(const std::string& address) {
  if (world_.one_host) {
    PARTITA_ASSIGN_OR_RETURN(listener_, local_listen(local_name(world_, world_.rank)));
    return absl::OkStatus();
  }
  const uint16_t port = world_.rank == 0 ? world_.master.port : 0;
  PARTITA_ASSIGN_OR_RETURN(listener_, tcp_listen({.address = address, .port = port}));
  return absl::OkStatus();
}

// Connected to a rank, and sure that it is one of this job. One that is pressed by strangers may close the connection
// before that.
absl::StatusOr<Channel> Meeting::reach(int rank, const TcpEndpoint& at, SteadyTime deadline) const {
  if (world_.one_host) {
    absl::StatusOr<Fd> fd = local_connect(local_name(world_, rank), deadline);
    if (fd.ok()) return Channel(*std::move(fd));
    return with_context(fd.status(), cat("cannot connect to rank ", rank, " of port ", world_.master.port));
  }
  absl::Status status;
  for (int attempt = 0; attempt < 5; ++attempt) {
    PARTITA_ASSIGN_OR_RETURN(Fd fd, tcp_connect(at, deadline));
    Channel channel(std::move(fd), *key_, TlsRole::kClient);
    status = channel.handshake_until(deadline_);
    if (status.ok()) return channel;
    if (absl::IsPermissionDenied(status)) {
      return absl::FailedPreconditionError(cat("what listens at ", quote(at.address), " port ", at.port,
                                               " does not know this job's secret (", status.message(),
                                               "): all hosts need the same, and a MASTER_PORT of their own"));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return with_context(status, cat("connecting to ", quote(at.address), " port ", at.port));
}

absl::Status Meeting::receive_guests() {
  std::string address;
  if (!world_.one_host) {
    const SteadyTime until = std::min(deadline_, std::chrono::steady_clock::now() + kNameComes);
    PARTITA_ASSIGN_OR_RETURN(address, world_.interface.empty() ? await_own_address(world_.master.address, until)
                                                               : interface_address(world_.interface));
  }
  PARTITA_RETURN_IF_ERROR(listen(address));
  Doorkeeper door(world_, key_.get(), listener_, true, 1);
  if (const absl::Status status = door.run({}, deadline_); !status.ok()) {
    for (Guest& guest : door.guests()) {
      if (guest.channel.valid()) refuse(guest.channel, status.code(), std::string(status.message()));
    }
    return status;
  }
  const std::string table = write_table(door.guests(), world_.master.port);
  const Answer answer{.length = static_cast<uint32_t>(table.size())};
  for (int rank = 1; rank < world_.size; ++rank) {
    Channel& channel = mesh_.control[static_cast<size_t>(rank)] =
        std::move(door.guests()[static_cast<size_t>(rank)].channel);
    absl::Status sent = channel.send_all(bytes_of(answer), deadline_);
    if (sent.ok()) sent = channel.send_all(std::as_bytes(std::span(table)), deadline_);
    PARTITA_RETURN_IF_ERROR(with_context(sent, cat("rank ", rank)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TcpEndpoint>> Meeting::visit_master() {
  Channel& control = mesh_.control[0];
  PARTITA_ASSIGN_OR_RETURN(control, reach(0, world_.master, deadline_));
  TcpEndpoint here;
  if (!world_.one_host) {
    PARTITA_ASSIGN_OR_RETURN(here, tcp_local_endpoint(control.fd()));
    if (!world_.interface.empty()) {
      PARTITA_ASSIGN_OR_RETURN(here.address, interface_address(world_.interface));
    }
  }
  PARTITA_RETURN_IF_ERROR(listen(here.address));
  Hello hello = make_hello(world_, 0, true);
  if (!world_.one_host) {
    PARTITA_ASSIGN_OR_RETURN(here, tcp_local_endpoint(listener_));
    hello.port = here.port;
    here.address.copy(hello.address.data(), hello.address.size() - 1);
  }
  PARTITA_RETURN_IF_ERROR(control.send_all(bytes_of(hello), deadline_));
  Answer answer;
  // Rank 0's own deadline may be a little later, and it knows who is missing.
  const SteadyTime patience = deadline_ + seconds(5);
  PARTITA_RETURN_IF_ERROR(control.recv_all(std::as_writable_bytes(std::span(&answer, 1)), patience));
  const size_t limit = answer.code == 0 ? static_cast<size_t>(world_.size) * (kMaxAddressBytes + 4) : kMaxRefusalBytes;
  if (answer.magic != kRendezvousMagic || answer.length > limit)
    return absl::UnavailableError("something that is not Partita answers");
  std::string text(answer.length, '\0');
  PARTITA_RETURN_IF_ERROR(control.recv_all(std::as_writable_bytes(std::span(text)), patience));
  if (answer.code == static_cast<uint32_t>(absl::StatusCode::kFailedPrecondition))
    return absl::FailedPreconditionError(printable(text));
  if (answer.code != 0) return absl::UnavailableError(printable(text));
  return read_table(text, world_);
}

absl::Status Meeting::connect_data(const std::vector<TcpEndpoint>& endpoints) {
  for (int rank = 0; rank < world_.rank; ++rank) {
    // It listens already, so a refusal means that it died.
    absl::StatusOr<Channel> channel =
        reach(rank, endpoints[static_cast<size_t>(rank)], std::min(deadline_, Clock::now() + seconds(10)));
    if (!channel.ok()) return with_context(channel.status(), cat("rank ", rank));
    const Hello hello = make_hello(world_, rank, false);
    PARTITA_RETURN_IF_ERROR(with_context(channel->send_all(bytes_of(hello), deadline_), cat("rank ", rank)));
    mesh_.data[static_cast<size_t>(rank)] = *std::move(channel);
  }
  Doorkeeper door(world_, key_.get(), listener_, false, world_.rank + 1);
  PARTITA_RETURN_IF_ERROR(door.run(mesh_.control, deadline_));
  for (int rank = world_.rank + 1; rank < world_.size; ++rank) {
    mesh_.data[static_cast<size_t>(rank)] = std::move(door.guests()[static_cast<size_t>(rank)].channel);
  }
  if (!world_.encrypt) {
    for (Channel& channel : mesh_.data) channel.leave_tls();
  }
  return absl::OkStatus();
}

// Nobody goes on before everybody is connected: from then on a closed connection means a death or an abort.
absl::Status Meeting::meet() {
  std::byte word{1};
  const auto broken = [](const absl::Status& status, int rank) {
    return with_context(status, cat("rank ", rank, " died while the connections were made"));
  };
  std::vector<Channel>& control = mesh_.control;
  if (world_.rank > 0) {
    PARTITA_RETURN_IF_ERROR(broken(control[0].send_all({&word, 1}, deadline_), 0));
    return broken(control[0].recv_all({&word, 1}, deadline_ + seconds(5)), 0);
  }
  for (int rank = 1; rank < world_.size; ++rank)
    PARTITA_RETURN_IF_ERROR(broken(control[static_cast<size_t>(rank)].recv_all({&word, 1}, deadline_), rank));
  for (int rank = 1; rank < world_.size; ++rank)
    PARTITA_RETURN_IF_ERROR(broken(control[static_cast<size_t>(rank)].send_all({&word, 1}, deadline_), rank));
  return absl::OkStatus();
}

absl::Status Meeting::open() {
  if (!world_.one_host) {
    PARTITA_ASSIGN_OR_RETURN(key_, TlsKey::make(world_.secret));
  }
  std::vector<TcpEndpoint> endpoints(static_cast<size_t>(world_.size));
  if (world_.rank == 0) {
    PARTITA_RETURN_IF_ERROR(receive_guests());
  } else {
    PARTITA_ASSIGN_OR_RETURN(endpoints, visit_master());
  }
  for (const Channel& channel : mesh_.control) {
    if (channel.valid() && !world_.one_host) tcp_watch_host(channel.fd());
  }
  PARTITA_RETURN_IF_ERROR(connect_data(endpoints));
  return meet();
}

}  // namespace

absl::StatusOr<TcpMesh> open_tcp_mesh(const TcpWorld& world, std::chrono::milliseconds timeout) {
  Meeting meeting(world, Clock::now() + timeout);
  if (world.size == 1) return std::move(meeting.mesh());
  const absl::Status status = meeting.open();
  if (status.ok()) return std::move(meeting.mesh());
  return with_context(status, cat("opening the TCP connections of rank ", world.rank, " of ", world.size,
                                  " (rank 0 at ", quote(world.master.address), " port ", world.master.port,
                                  ", timeout ", std::chrono::duration<double>(timeout).count(), " s)"));
}

}  // namespace partita::runtime
