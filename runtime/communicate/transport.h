// What a back end provides: messages between world ranks. The collectives above it are written once
// (collective_algorithms.h), and so are the order of operations, tickets and failures (transport_communicator.h).
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>

#include "absl/status/status.h"
#include "runtime/communicate/collective.h"

namespace partita::runtime {

using SteadyTime = std::chrono::steady_clock::time_point;

// Which message of which operation this is. Sender and receiver must name the same one.
struct Envelope {
  uint64_t group = 0;     // hash of the members
  int64_t step_id = 0;    // of the sender's program; for errors, not compared
  int64_t count = 0;      // the operation's elements
  uint32_t sequence = 0;  // of the operation in its group; of the message for send and recv
  uint32_t piece = 0;     // long transfers are cut into pieces
  uint8_t kind = 0;       // CollectiveKind
  uint8_t dtype = 0;
  uint8_t reduce = 0;
  uint8_t phase = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(Envelope) == 40 && std::is_trivially_copyable_v<Envelope>);

inline bool matches(const Envelope& a, const Envelope& b) {
  return a.group == b.group && a.count == b.count && a.sequence == b.sequence && a.piece == b.piece &&
         a.kind == b.kind && a.dtype == b.dtype && a.reduce == b.reduce && a.phase == b.phase;
}

// Messages of one lane are received in the order in which they were sent: those of all collectives, and for each group
// those of its sends and receives.
inline uint64_t lane_of(const Envelope& e) {
  return static_cast<CollectiveKind>(e.kind) == CollectiveKind::kSend ? e.group : 0;
}

// FNV-1a over what matches() compares, for back ends whose messages carry only a number.
inline uint64_t envelope_hash(const Envelope& e) {
  uint64_t hash = 14695981039346656037ull;
  for (uint64_t word : {e.group, static_cast<uint64_t>(e.count), (uint64_t{e.sequence} << 32) | e.piece,
                        (uint64_t{e.kind} << 24) | (uint64_t{e.dtype} << 16) | (uint64_t{e.reduce} << 8) | e.phase}) {
    for (int i = 0; i < 8; ++i) hash = (hash ^ ((word >> (8 * i)) & 0xff)) * 1099511628211ull;
  }
  return hash;
}

// A message in words, for errors.
std::string describe(const Envelope& envelope, size_t bytes);
// FailedPrecondition saying what `peer` sent and what this rank expected.
absl::Status mismatch_error(int peer, const Envelope& expected, size_t expected_bytes, const Envelope& got,
                            size_t got_bytes);

// One message under way. Owned by the caller, who keeps it and its bytes in place until `done` or Transport::abort().
struct Transfer {
  int peer = 0;  // world rank, never the transport's own
  Envelope envelope;
  std::byte* data = nullptr;  // read only, for a send
  size_t size = 0;            // at most kMaxMessageBytes
  std::atomic<bool> done{false};
  size_t moved = 0;  // the transport's
};

// How often waits look at deadlines.
inline constexpr std::chrono::milliseconds kTick{200};

inline constexpr size_t kMaxMessageBytes = size_t{8} << 20;

// All calls come from one thread, which also created the transport and destroys it, except wake() (any thread).
// Messages of one lane from one rank to another are received in the order in which they were sent; lanes do not wait
// for each other's receives.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string_view name() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  virtual void post_send(Transfer& transfer) = 0;
  virtual void post_recv(Transfer& transfer) = 0;

  // Moves data, blocking (not spinning) until a transfer has become done since the last call, wake() was called, or
  // `until` has come. Unavailable when a peer died, left amid a transfer or aborted: says which. FailedPrecondition
  // when a message is not the expected one. After an error only abort() may follow.
  virtual absl::Status progress(SteadyTime until) = 0;
  virtual void wake() = 0;

  // Something to add to a timeout's message about `peer`, or "".
  virtual std::string diagnose(int /*peer*/) { return ""; }

  // Tells every peer that this rank gives up. No transfer is touched after it returns. Bounded in time.
  virtual void abort(std::string_view reason) = 0;
  // Leaves in order; no transfer is under way.
  virtual void close() = 0;
};

// Text that came from a peer, control characters replaced.
inline std::string printable(std::string_view text) {
  std::string shown(text);
  for (char& c : shown) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return shown;
}

// The one symbol of a plug-in module: returns a Transport, or null with `error` filled. Runs on the progress thread.
inline constexpr uint32_t kTransportPluginVersion = 1;
inline constexpr char kTransportPluginSymbol[] = "partita_open_transport";
using OpenTransportPlugin = Transport*(uint32_t version, int64_t timeout_milliseconds, std::string* error);

}  // namespace partita::runtime
