#include "runtime/transports/doorkeeper.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/cat.h"
#include "runtime/transports/local_socket.h"

namespace partita::runtime {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::seconds;

constexpr seconds kPatience{10}, kHandshakePatience{3};
// OpenSSL takes some 50 KB for each.
constexpr int kMaxHandshakes = 8;
constexpr int kAcceptsPerTurn = 64;

uint64_t job_hash(std::string_view job) {
  uint64_t hash = 14695981039346656037ull;
  for (unsigned char c : job) hash = (hash ^ c) * 1099511628211ull;
  return hash;
}

enum class Look { kWaiting, kWhole, kStranger };

// Whether one record, a handshake's, and no more has come. It stays in the kernel.
Look look_for_client_hello(const Fd& fd) {
  std::array<unsigned char, kMaxClientHelloBytes + 1> bytes;
  const ssize_t size = ::recv(fd.get(), bytes.data(), bytes.size(), MSG_PEEK | MSG_DONTWAIT);
  if (size == 0) return Look::kStranger;
  if (size < 0) return errno == EAGAIN || errno == EINTR ? Look::kWaiting : Look::kStranger;
  constexpr ssize_t kHeader = 5;  // 22, version 3.x, two bytes of length
  const bool handshake = bytes[0] == 22 && (size < 2 || bytes[1] == 3);
  const ssize_t whole = size < kHeader ? kHeader : kHeader + (bytes[3] << 8 | bytes[4]);
  if (!handshake || size > whole || whole > static_cast<ssize_t>(kMaxClientHelloBytes)) return Look::kStranger;
  if (size == whole && size > kHeader) return Look::kWhole;
  // Until then poll(2) keeps quiet about it.
  const int wanted = static_cast<int>(whole);
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVLOWAT, &wanted, sizeof wanted);
  return Look::kWaiting;
}

}  // namespace

Hello make_hello(const TcpWorld& world, int to, bool control) {
  Hello hello;
  hello.job = job_hash(world.job_id);
  hello.world = world.size;
  hello.rank = world.rank;
  hello.to = to;
  hello.control = control ? 1 : 0;
  hello.encrypt = world.encrypt ? 1 : 0;
  return hello;
}

void refuse(Channel& channel, absl::StatusCode code, std::string_view text) {
  text = text.substr(0, kMaxRefusalBytes);
  const Answer answer{.code = static_cast<uint32_t>(code), .length = static_cast<uint32_t>(text.size())};
  // Best effort: whoever does not hear it finds the connection closed.
  channel.send_some(std::as_bytes(std::span(&answer, 1)), std::as_bytes(std::span(text)));
}

std::vector<int> Doorkeeper::missing() const {
  std::vector<int> ranks;
  for (int rank = first_; rank < world_.size; ++rank) {
    if (!guests_[static_cast<size_t>(rank)].channel.valid()) ranks.push_back(rank);
  }
  return ranks;
}

bool Doorkeeper::is_full() const {
  return std::count_if(newcomers_.begin(), newcomers_.end(),
                       [](const Newcomer& n) { return n.stage != Stage::kSilent; }) >= kMaxHandshakes;
}

void Doorkeeper::welcome(Newcomer& newcomer) {
  Hello hello;
  std::memcpy(&hello, newcomer.bytes.data(), sizeof hello);
  hello.address.back() = '\0';
  // One that means another rank was led here by somebody.
  if (hello.magic != kRendezvousMagic || hello.control != (control_ ? 1 : 0) || hello.to != world_.rank) return;
  const auto no = [&](const auto&... parts) {
    refuse(newcomer.channel, absl::StatusCode::kFailedPrecondition, cat(parts...));
  };
  if (hello.job != job_hash(world_.job_id))
    return no("port ", world_.master.port, " belongs to another run; choose another MASTER_PORT");
  if (hello.world != world_.size)
    return no("rank 0 runs with ", world_.size, " ranks, rank ", hello.rank, " with ", hello.world);
  if (hello.encrypt != (world_.encrypt ? 1 : 0)) return no("some ranks have --encrypt and others not; say it to all");
  if (hello.rank < first_ || hello.rank >= world_.size) return no("rank ", hello.rank, " is not expected here");
  Guest& guest = guests_[static_cast<size_t>(hello.rank)];
  if (guest.channel.valid()) return no("two processes say that they are rank ", hello.rank);
  guest.channel = std::move(newcomer.channel);
  guest.hello = hello;
}

bool Doorkeeper::open_handshake(Newcomer& newcomer) {
  const Look look = look_for_client_hello(newcomer.channel.fd());
  if (look != Look::kWhole || is_full()) return look != Look::kStranger;
  const int any = 1;
  Fd fd = newcomer.channel.take_fd();
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVLOWAT, &any, sizeof any);
  newcomer.channel = Channel(std::move(fd), *key_, TlsRole::kServer);
  newcomer.stage = Stage::kProving;
  newcomer.deadline = Clock::now() + kHandshakePatience;
  return true;
}

bool Doorkeeper::step(Newcomer& newcomer) {
  if (newcomer.stage == Stage::kSilent) {
    if (!open_handshake(newcomer)) return false;
  }
  if (newcomer.stage == Stage::kProving) {
    const absl::StatusOr<bool> proved = newcomer.channel.handshake();
    if (absl::IsPermissionDenied(proved.status())) ++unproved_;
    if (!proved.ok()) return false;
    if (*proved) newcomer.stage = Stage::kSaying;
  }
  if (newcomer.stage != Stage::kSaying) return true;
  const ptrdiff_t moved = newcomer.channel.recv_some(std::span(newcomer.bytes).subspan(newcomer.got));
  if (moved < 0) return false;
  newcomer.got += static_cast<size_t>(moved);
  if (newcomer.got < sizeof(Hello)) return true;
  welcome(newcomer);
  return false;
}

void Doorkeeper::accept() {
  const size_t limit = 2 * guests_.size() + 64;  // strangers cannot use up our descriptors
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    Fd fd = tcp_accept(listener_);
    if (!fd.valid()) return;
    if (key_ == nullptr && !is_own_user(fd)) continue;
    if (newcomers_.size() >= limit) {
      // The oldest of those who have proved nothing.
      newcomers_.erase(std::find_if(newcomers_.begin(), newcomers_.end(),
                                    [&](const Newcomer& n) { return key_ == nullptr || n.stage == Stage::kSilent; }));
    }
    Newcomer newcomer{.channel = Channel(std::move(fd)), .deadline = Clock::now() + kPatience};
    if (key_ == nullptr) newcomer.stage = Stage::kSaying;
    if (step(newcomer)) newcomers_.push_back(std::move(newcomer));
  }
}

short Doorkeeper::events(const Newcomer& newcomer) const {
  if (newcomer.stage == Stage::kSilent && is_full()) return 0;
  return newcomer.stage == Stage::kProving ? newcomer.channel.events() : POLLIN;
}

absl::Status Doorkeeper::run(const std::vector<Channel>& watched, SteadyTime deadline) {
  while (true) {
    const std::vector<int> absent = missing();
    if (absent.empty()) return absl::OkStatus();
    const SteadyTime now = Clock::now();
    if (now >= deadline) {
      const std::string strangers =
          unproved_ > 0 ? cat("; ", unproved_, " connections came that did not know the job's secret") : "";
      return absl::UnavailableError(cat(describe_ranks(absent), " did not come", strangers));
    }
    newcomers_.remove_if([&](const Newcomer& n) { return n.deadline <= now; });
    std::vector<pollfd> polls{{listener_.get(), POLLIN, 0}};
    for (const Newcomer& newcomer : newcomers_) polls.push_back({newcomer.channel.fd().get(), events(newcomer), 0});
    for (const Channel& channel : watched) polls.push_back({channel.fd().get(), POLLRDHUP, 0});
    if (::poll(polls.data(), polls.size(), std::min(poll_timeout(deadline), 1000)) < 0 && errno != EINTR) {
      return absl::UnavailableError("poll failed while ranks were coming in");
    }
    size_t next = 1;
    for (auto newcomer = newcomers_.begin(); newcomer != newcomers_.end(); ++next) {
      newcomer = polls[next].revents != 0 && !step(*newcomer) ? newcomers_.erase(newcomer) : std::next(newcomer);
    }
    for (size_t rank = 0; rank < watched.size(); ++rank, ++next) {
      if (polls[next].revents != 0)
        return absl::UnavailableError(cat("rank ", rank, " died while the connections were made"));
    }
    accept();
  }
}

}  // namespace partita::runtime
