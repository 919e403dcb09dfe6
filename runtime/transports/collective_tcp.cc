// Data connections carry frames: a header with the envelope, then the bytes. A socket is read only while a receive is
// posted on it, so the kernel holds back a sender that is ahead; only what comes before it on another lane is stored
// until its own receive is posted. Control
// connections are always read. Rank 0 passes an abort on, and turns a connection that closes without a goodbye into an
// abort that names the dead rank.
#include "runtime/transports/collective_tcp.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>

#include "base/cat.h"
#include "base/status.h"
#include "runtime/communicate/lost_ranks.h"
#include "runtime/communicate/transport_communicator.h"

namespace partita::runtime {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr uint32_t kFrameMagic = 0x50415246, kControlMagic = 0x50414354;
constexpr uint32_t kMaxControlBytes = 8192;
// A data connection that closes may be the first sign of an abort whose reason is still on its way.
constexpr milliseconds kGrace{500};
constexpr milliseconds kLinger{5000};

struct FrameHeader {
  uint32_t magic = kFrameMagic;
  uint32_t reserved = 0;
  uint64_t size = 0;
  Envelope envelope;
};
static_assert(sizeof(FrameHeader) == 56);

enum class Word : uint32_t { kAbort = 1, kGoodbye = 2, kLost = 3 };  // kLost: an abort, for a rank that died
struct ControlHeader {
  uint32_t magic = kControlMagic;
  Word word = Word::kGoodbye;
  uint32_t length = 0;
};

class TcpTransport final : public Transport {
 public:
  static absl::StatusOr<std::unique_ptr<Transport>> open(const TcpWorld& world, milliseconds timeout);

  std::string_view name() const override { return "tcp"; }
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }
  void post_send(Transfer& transfer) override;
  void post_recv(Transfer& transfer) override;
  absl::Status progress(SteadyTime until) override;
  void wake() override;
  std::string diagnose(int peer) override;
  void abort(std::string_view reason) override;
  void close() override;

 private:
  // A frame that came before a receive of its lane was posted.
  struct Early {
    FrameHeader header;
    std::vector<std::byte> data;
  };
  static size_t held(size_t bytes) { return sizeof(Early) + bytes; }
  struct Peer {
    Channel data;
    std::deque<Transfer*> sends, recvs;
    std::deque<Early> early;
    FrameHeader out, in;
    Transfer* into = nullptr;            // what the frame that is coming in is for; none: `coming`
    std::vector<std::byte> coming;       // its bytes then
    size_t out_moved = 0, in_moved = 0;  // of the frames that go out and come in
    bool lost = false;
    bool wants() const { return !recvs.empty() || into != nullptr; }
  };
  struct Control {
    Channel channel;
    std::string received;
    bool goodbye = false;
  };

  TcpTransport(const TcpWorld& world, TcpMesh mesh, Fd wake_fd);
  void pump_sends(int rank);
  void pump_recvs(int rank);
  bool accept_header(int rank);
  static Transfer* take_recv(Peer& peer, uint64_t lane);
  void finish(Transfer& transfer);
  void finish_frame(int rank);
  bool fits(int rank, const Transfer& transfer, const FrameHeader& header);
  void lose(int rank);
  void read_control(int rank);
  void hear(int rank, Word word, std::string_view text);
  void lose_control(int rank);
  void tell(int rank, Word word, std::string_view text);
  void tell_others(int except, Word word, std::string_view text);
  void poll_once(SteadyTime until);
  void fail(absl::Status status) {
    if (failure_.ok()) failure_ = std::move(status);
  }

  const int rank_;
  const size_t early_limit_;
  size_t early_bytes_ = 0;  // of all `early` and `coming`
  std::vector<Peer> peers_;
  std::vector<Control> controls_;  // by rank, as in TcpMesh
  Fd wake_fd_;
  bool event_ = false;
  bool told_ = false;  // the others know of the failure
  absl::Status failure_;
  absl::Status suspicion_;  // becomes the failure at suspicion_until_
  SteadyTime suspicion_until_;
};

absl::StatusOr<std::unique_ptr<Transport>> TcpTransport::open(const TcpWorld& world, milliseconds timeout) {
  Fd wake_fd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!wake_fd.valid()) return absl::UnavailableError("no descriptor for an eventfd");
  PARTITA_ASSIGN_OR_RETURN(TcpMesh mesh, open_tcp_mesh(world, timeout));
  return std::unique_ptr<Transport>(new TcpTransport(world, std::move(mesh), std::move(wake_fd)));
}

TcpTransport::TcpTransport(const TcpWorld& world, TcpMesh mesh, Fd wake_fd)
    : rank_(world.rank),
      early_limit_(world.early_bytes),
      peers_(mesh.data.size()),
      controls_(mesh.control.size()),
      wake_fd_(std::move(wake_fd)) {
  for (size_t i = 0; i < mesh.data.size(); ++i) peers_[i].data = std::move(mesh.data[i]);
  for (size_t i = 0; i < mesh.control.size(); ++i) controls_[i].channel = std::move(mesh.control[i]);
}

void TcpTransport::post_send(Transfer& transfer) {
  Peer& peer = peers_[static_cast<size_t>(transfer.peer)];
  peer.sends.push_back(&transfer);
  if (peer.lost) return lose(transfer.peer);
  if (peer.sends.size() == 1) pump_sends(transfer.peer);
}

void TcpTransport::post_recv(Transfer& transfer) {
  Peer& peer = peers_[static_cast<size_t>(transfer.peer)];
  auto of_lane = [&](const Early& e) { return lane_of(e.header.envelope) == lane_of(transfer.envelope); };
  if (auto early = std::find_if(peer.early.begin(), peer.early.end(), of_lane); early != peer.early.end()) {
    if (!fits(transfer.peer, transfer, early->header)) return;
    std::copy(early->data.begin(), early->data.end(), transfer.data);
    early_bytes_ -= held(early->data.size());
    peer.early.erase(early);
    return finish(transfer);
  }
  peer.recvs.push_back(&transfer);
  if (peer.lost) lose(transfer.peer);
}

// The oldest receive of a lane, which is waiting no longer.
Transfer* TcpTransport::take_recv(Peer& peer, uint64_t lane) {
  auto at = std::find_if(peer.recvs.begin(), peer.recvs.end(),
                         [&](const Transfer* t) { return lane_of(t->envelope) == lane; });
  if (at == peer.recvs.end()) return nullptr;
  Transfer* transfer = *at;
  peer.recvs.erase(at);
  return transfer;
}

void TcpTransport::finish(Transfer& transfer) {
  transfer.done.store(true, std::memory_order_release);
  event_ = true;
}

void TcpTransport::pump_sends(int rank) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  while (!peer.sends.empty()) {
    const Transfer& transfer = *peer.sends.front();
    if (peer.out_moved == 0) peer.out = {.size = transfer.size, .envelope = transfer.envelope};
    const size_t in_header = std::min(peer.out_moved, sizeof(FrameHeader)), in_data = peer.out_moved - in_header;
    const ptrdiff_t moved =
        peer.data.send_some(std::as_bytes(std::span(&peer.out, 1)).subspan(in_header),
                            std::span<const std::byte>(transfer.data, transfer.size).subspan(in_data));
    if (moved < 0) return lose(rank);
    if (moved == 0) return;
    peer.out_moved += static_cast<size_t>(moved);
    if (peer.out_moved < sizeof(FrameHeader) + transfer.size) continue;
    finish(*peer.sends.front());
    peer.sends.pop_front();
    peer.out_moved = 0;
  }
}

bool TcpTransport::fits(int rank, const Transfer& transfer, const FrameHeader& header) {
  if (!matches(header.envelope, transfer.envelope) || header.size != transfer.size)
    fail(mismatch_error(rank, transfer.envelope, transfer.size, header.envelope, header.size));
  return failure_.ok();
}

bool TcpTransport::accept_header(int rank) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  if (peer.in.magic != kFrameMagic || peer.in.size > kMaxMessageBytes) {
    fail(absl::UnavailableError(cat("rank ", rank, " sent something that is not a message")));
    return false;
  }
  peer.into = take_recv(peer, lane_of(peer.in.envelope));
  if (peer.into != nullptr) return fits(rank, *peer.into, peer.in);
  if (early_bytes_ + held(peer.in.size) > early_limit_) {
    fail(absl::FailedPreconditionError(cat(
        "rank ", rank, " is more than ", early_limit_ >> 20,
        " MiB ahead of what this rank receives: ", describe(peer.in.envelope, peer.in.size), " is not expected yet")));
    return false;
  }
  early_bytes_ += held(peer.in.size);
  peer.coming.resize(peer.in.size);
  return true;
}

void TcpTransport::finish_frame(int rank) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  peer.in_moved = 0;
  if (peer.into != nullptr) return finish(*std::exchange(peer.into, nullptr));
  std::vector<std::byte> data = std::exchange(peer.coming, {});
  Transfer* posted = take_recv(peer, lane_of(peer.in.envelope));  // meanwhile
  if (posted == nullptr) {
    peer.early.push_back({peer.in, std::move(data)});
  } else if (fits(rank, *posted, peer.in)) {
    std::copy(data.begin(), data.end(), posted->data);
    early_bytes_ -= held(data.size());
    finish(*posted);
  }
}

void TcpTransport::pump_recvs(int rank) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  while (peer.wants()) {
    std::span<std::byte> into = std::as_writable_bytes(std::span(&peer.in, 1));
    if (peer.in_moved < sizeof(FrameHeader)) {
      into = into.subspan(peer.in_moved);
    } else {
      into = peer.into != nullptr ? std::span(peer.into->data, peer.into->size) : std::span(peer.coming);
      into = into.subspan(peer.in_moved - sizeof(FrameHeader));
    }
    const ptrdiff_t moved = peer.data.recv_some(into);
    if (moved < 0) return lose(rank);
    if (moved == 0) return;
    const bool header = peer.in_moved < sizeof(FrameHeader);
    peer.in_moved += static_cast<size_t>(moved);
    if (header && peer.in_moved == sizeof(FrameHeader) && !accept_header(rank)) return;
    if (peer.in_moved == sizeof(FrameHeader) + peer.in.size) finish_frame(rank);
  }
}

std::string TcpTransport::diagnose(int peer) {
  const std::deque<Early>& early = peers_[static_cast<size_t>(peer)].early;
  if (early.empty()) return "";
  return cat("rank ", peer, " has sent ", describe(early.front().header.envelope, early.front().header.size),
             ", which nothing here receives");
}

void TcpTransport::lose(int rank) {
  peers_[static_cast<size_t>(rank)].lost = true;
  const bool goodbye = static_cast<size_t>(rank) < controls_.size() && controls_[static_cast<size_t>(rank)].goodbye;
  if (!suspicion_.ok()) return;
  const std::string text =
      goodbye ? cat("rank ", rank, " has left the run") : cat("rank ", rank, " left or died: its connection is closed");
  suspicion_ = lost_error(text, {text, true});
  suspicion_until_ = Clock::now() + kGrace;
}

void TcpTransport::tell(int rank, Word word, std::string_view text) {
  Control& control = controls_[static_cast<size_t>(rank)];
  if (!control.channel.valid()) return;
  text = text.substr(0, kMaxControlBytes);
  const ControlHeader header{.word = word, .length = static_cast<uint32_t>(text.size())};
  const SteadyTime deadline = Clock::now() + milliseconds(1000);
  // Who cannot be told sees the connection close.
  if (control.channel.send_all(std::as_bytes(std::span(&header, 1)), deadline).ok()) {
    control.channel.send_all(std::as_bytes(std::span(text)), deadline).IgnoreError();
  }
}

void TcpTransport::tell_others(int except, Word word, std::string_view text) {
  for (int rank = 0; rank < static_cast<int>(controls_.size()); ++rank) {
    if (rank != except) tell(rank, word, text);
  }
}

void TcpTransport::hear(int rank, Word word, std::string_view text) {
  if (word == Word::kGoodbye) {
    controls_[static_cast<size_t>(rank)].goodbye = true;
    return;
  }
  if (rank_ == 0 && !told_) tell_others(rank, word, text);
  told_ = true;
  const std::string said = printable(text);
  fail(word == Word::kLost ? lost_error(said, {said, true}) : gave_up_error(text));
}

void TcpTransport::lose_control(int rank) {
  Control& control = controls_[static_cast<size_t>(rank)];
  control.channel.reset();
  if (control.goodbye) return;
  const std::string text = cat("rank ", rank, " died: its connection to rank ", rank_, " closed without a word");
  if (rank_ == 0) hear(rank, Word::kLost, text);
  fail(lost_error(text, {text, true}));
}

void TcpTransport::read_control(int rank) {
  Control& control = controls_[static_cast<size_t>(rank)];
  std::array<std::byte, 1024> buffer;
  ptrdiff_t moved;
  while ((moved = control.channel.recv_some(buffer)) > 0) {
    control.received.append(reinterpret_cast<const char*>(buffer.data()), static_cast<size_t>(moved));
    ControlHeader header;
    while (control.received.size() >= sizeof header) {
      std::memcpy(&header, control.received.data(), sizeof header);
      if (header.magic != kControlMagic || header.length > kMaxControlBytes) return lose_control(rank);
      if (control.received.size() < sizeof header + header.length) break;
      hear(rank, header.word, std::string_view(control.received).substr(sizeof header, header.length));
      control.received.erase(0, sizeof header + header.length);
    }
  }
  if (moved < 0) lose_control(rank);
}

void TcpTransport::poll_once(SteadyTime until) {
  std::vector<pollfd> polls{{wake_fd_.get(), POLLIN, 0}};
  std::vector<std::pair<int, bool>> meaning{{0, false}};  // rank, is control
  for (int rank = 0; rank < static_cast<int>(controls_.size()); ++rank) {
    const Control& control = controls_[static_cast<size_t>(rank)];
    if (!control.channel.valid()) continue;
    polls.push_back({control.channel.fd().get(), POLLIN, 0});
    meaning.emplace_back(rank, true);
  }
  for (int rank = 0; rank < size(); ++rank) {
    Peer& peer = peers_[static_cast<size_t>(rank)];
    if (peer.wants() && !peer.lost && peer.data.holds_bytes()) pump_recvs(rank);
    const int events = (peer.wants() ? POLLIN : 0) | (peer.sends.empty() ? 0 : POLLOUT);
    if (events == 0 || peer.lost) continue;  // without interest even a hang-up is none of ours
    polls.push_back({peer.data.fd().get(), static_cast<short>(events), 0});
    meaning.emplace_back(rank, false);
  }
  // What was just read may have ended a transfer.
  if (::poll(polls.data(), polls.size(), event_ || !failure_.ok() ? 0 : poll_timeout(until)) < 0) {
    if (errno != EINTR) fail(absl::UnavailableError("poll failed"));
    return;
  }
  if (polls[0].revents != 0) {
    uint64_t count = 0;
    event_ |= ::read(wake_fd_.get(), &count, sizeof count) > 0;
  }
  for (size_t i = 1; i < polls.size() && failure_.ok(); ++i) {
    const auto [rank, is_control] = meaning[i];
    if (polls[i].revents == 0) continue;
    if (is_control) {
      read_control(rank);
      continue;
    }
    const int trouble = POLLERR | POLLHUP;
    if ((polls[i].revents & (POLLIN | trouble)) != 0) pump_recvs(rank);
    if ((polls[i].revents & (POLLOUT | trouble)) != 0 && !peers_[static_cast<size_t>(rank)].lost) pump_sends(rank);
  }
}

absl::Status TcpTransport::progress(SteadyTime until) {
  while (failure_.ok()) {
    if (std::exchange(event_, false)) return absl::OkStatus();
    poll_once(suspicion_.ok() ? until : std::min(until, suspicion_until_));
    const SteadyTime now = Clock::now();
    if (failure_.ok() && !suspicion_.ok() && now >= suspicion_until_) fail(suspicion_);
    if (failure_.ok() && now >= until) return absl::OkStatus();
  }
  return failure_;
}

void TcpTransport::wake() {
  const uint64_t one = 1;
  // Fails only when the counter is full, and then the thread is awake anyway.
  [[maybe_unused]] const ssize_t written = ::write(wake_fd_.get(), &one, sizeof one);
}

void TcpTransport::abort(std::string_view reason) {
  if (!std::exchange(told_, true)) tell_others(-1, Word::kAbort, reason);
  for (Peer& peer : peers_) peer = Peer();
  for (Control& control : controls_) {
    if (!control.channel.valid()) continue;
    // Closing with bytes unread would reset the connection and might overtake what was just said.
    ::shutdown(control.channel.fd().get(), SHUT_WR);
    std::array<std::byte, 1024> rest;
    while (control.channel.recv_some(rest) > 0) {
    }
    control.channel.reset();
  }
}

void TcpTransport::close() {
  tell_others(-1, Word::kGoodbye, "");
  const auto waiting = [&] {
    return std::any_of(controls_.begin(), controls_.end(),
                       [](const Control& c) { return c.channel.valid() && !c.goodbye; });
  };
  // Rank 0 stays a while for the others, who hear of deaths through it.
  const SteadyTime until = Clock::now() + kLinger;
  while (rank_ == 0 && waiting() && failure_.ok() && Clock::now() < until) poll_once(until);
  for (Control& control : controls_) control.channel.reset();
  for (Peer& peer : peers_) peer = Peer();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> open_tcp_communicator(const TcpWorld& world,
                                                                    const CommunicatorOptions& options) {
  if (world.size < 1 || world.rank < 0 || world.rank >= world.size) {
    return absl::InvalidArgumentError(cat("rank ", world.rank, " in a world of ", world.size));
  }
  if (world.size > 1 && (world.master.address.empty() || world.master.port == 0)) {
    return absl::InvalidArgumentError(
        "the TCP back end needs rank 0's address and port: set MASTER_ADDR and MASTER_PORT");
  }
  return open_transport_communicator([world, timeout = options.timeout] { return TcpTransport::open(world, timeout); },
                                     options);
}

}  // namespace partita::runtime
