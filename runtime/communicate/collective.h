// Collectives between the ranks of one run, on host buffers. One Communicator per rank and no globals, so many ranks
// may be threads of one process.
//
// Order: the operations of a rank form one total order, the order of start(). The members of a group must issue that
// group's operations in the same order with the same kind, dtype, reduction and count; a mismatch is an error, not a
// hang. Messages (sends, receives, permutes) are posted in order, beside collectives; those run one after the other.
// An operation's inputs must be complete when it is started: wait for what produces them.
//
// Reductions are a balanced binary tree over the group's ranks in group order, neighbours first (f16 and bf16 are
// accumulated in f32 and rounded once, integers wrap, max/min pass NaN on), so all ranks get the same bits, run after
// run; on hosts, with every back end. On GPUs sums of f32 and f64 have that order where an operation asks for it.
//
// Failure is final: the first failed operation ends the communicator on this rank and, within 10 s, on all others.
// Unavailable = a peer is missing, died or gave up (worth a retry); InvalidArgument = this rank's own misuse;
// FailedPrecondition = the ranks' operations do not match.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "base/enum_names.h"

namespace partita::runtime {

enum class CollectiveKind : uint8_t {
  kBarrier = 0,
  kAllReduce = 1,
  kReduceScatter = 2,
  kAllGather = 3,
  kBroadcast = 4,
  kAllToAll = 5,
  kSend = 6,
  kRecv = 7,
  kPermute = 8,
};
enum class ReduceOp : uint8_t { kSum = 0, kMax = 1, kMin = 2 };
}  // namespace partita::runtime

// As a program's steps name them.
template <>
inline constexpr auto partita::kEnumNames<partita::runtime::CollectiveKind> = partita::name_table(
    "barrier", "all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "send", "recv", "permute");
template <>
inline constexpr auto partita::kEnumNames<partita::runtime::ReduceOp> = partita::name_table("sum", "max", "min");

namespace partita::runtime {

// Their names; "unknown" for a value outside the enumeration, as another rank may send it.
std::string_view collective_name(CollectiveKind kind);
std::string_view reduce_name(ReduceOp op);

using GroupId = int32_t;
inline constexpr GroupId kWorldGroup = 0;

// Numbers the operations of one communicator from 1, in issue order.
using Ticket = uint64_t;

inline constexpr int kNoPeer = -1;

// With n = group size, the buffers hold, in elements of `dtype`:
//   all_reduce      input count (null: in place), output count
//   reduce_scatter  input n*count, output count (may be input's own chunk)
//   all_gather      input count (may be output's own chunk), output n*count
//   broadcast       output count, read on the root and written elsewhere
//   all_to_all      input n*count, output n*count: chunk j goes to group rank j; no overlap
//   send            input count, to `to`;  recv: output count, from `from`
//   permute         input count to `to` and output count from `from`; kNoPeer skips a side and leaves its buffer alone
//   barrier         none
// all_reduce, reduce_scatter, all_gather and all_to_all may have several such buffers, which travel together and cost
// one latency.
// Reductions take any dtype but bool sums. Buffers stay alive and untouched until wait() returns; after a failure,
// until the communicator is destroyed.
struct CollectiveBuffers {
  int64_t count = 0;
  const void* input = nullptr;
  void* output = nullptr;
};

struct CollectiveOp {
  CollectiveKind kind = CollectiveKind::kBarrier;
  GroupId group = kWorldGroup;
  DType dtype = DType::kF32;
  ReduceOp reduce = ReduceOp::kSum;
  bool in_order = false;  // a sum: by the tree, also where the back end has an order of its own
  int64_t count = 0;
  const void* input = nullptr;
  void* output = nullptr;
  std::vector<CollectiveBuffers> more = {};  // beside the first
  std::vector<int64_t> elements = {};        // of each of several values in the buffer of an all_reduce: they begin at
                                             // multiples of 64 bytes, and what lies between them has no meaning
  int root = 0;                              // group rank
  int to = kNoPeer;                          // group rank
  int from = kNoPeer;                        // group rank
  int64_t step_id = 0;
  std::string label;  // the op it serves, for errors: "grad bucket 3"
};

// The first and the others.
std::vector<CollectiveBuffers> buffers_of(const CollectiveOp& op);

// Elements of one of an operation's buffers of `count`, by the table above; a permute as if it had both sides.
struct BufferCounts {
  int64_t input = 0, output = 0;
};
BufferCounts buffer_counts(CollectiveKind kind, int64_t count, int64_t group_size);

// `all_reduce 'grad bucket 3' (step 12)`, with control characters escaped.
std::string describe(const CollectiveOp& op);

// "rank 3", "ranks 0-2, 5": sorted, runs folded.
std::string describe_ranks(std::vector<int> ranks);

class FlightRecorder;

struct CommunicatorOptions {
  // An operation fails after this long without a message (of up to 8 MiB) to or from its peers; so does opening when
  // ranks are missing. Counted from when the operation's turn comes, so it bounds how far ranks may drift apart as
  // well. A run sets it anew by its phases (Communicator::set_timeout).
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  FlightRecorder* recorder = nullptr;  // of this rank's operations; outlives the communicator
};

class Communicator {
 public:
  // Leaves the run. With operations still unfinished this is an abort: the others get Unavailable.
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string_view backend() const = 0;  // "threads", "tcp", "mpi"
  virtual std::chrono::milliseconds timeout() const { return CommunicatorOptions().timeout; }
  // For operations under way and later ones, of this rank. Thread-safe.
  virtual void set_timeout(std::chrono::milliseconds /*timeout*/) {}

  // A group of distinct world ranks; position in the list = group rank. Local, nothing is sent: only members need to
  // call, with the same list; groups made again from the same list are told apart by the order of the calls.
  // Non-members may call too and get an id that no operation accepts. InvalidArgument for an empty list, a repeated
  // rank or one outside.
  virtual absl::StatusOr<GroupId> create_group(const std::vector<int>& world_ranks) = 0;

  // Makes what the messages among these operations of this rank need, before any is started: a device that connects two
  // ranks amid its work may wait for that work, which may wait for another rank. Every rank calls it with all messages
  // that it will send or receive, before them; what is there already is not made again. Nothing, by default.
  virtual absl::Status connect(std::span<const CollectiveOp> /*operations*/) { return absl::OkStatus(); }

  // Issues an operation and returns at once. Any error, misuse included, comes from wait(). Thread-safe.
  virtual Ticket start(CollectiveOp op) = 0;
  // Blocks until the operation has finished here. May be called again and from any thread; every ticket needs no wait.
  virtual absl::Status wait(Ticket ticket) = 0;
  absl::Status run(CollectiveOp op) { return wait(start(std::move(op))); }

  // Ends the run on all ranks: every unfinished or later operation is Unavailable with `reason`.
  virtual void abort(std::string_view reason) = 0;
  // Ok while the communicator works, else what ended it. A cheap look, for ranks that are computing.
  virtual absl::Status failure() const = 0;

  // Collective over the world: all ranks must hold the same bytes. FailedPrecondition, on all ranks, naming the ranks
  // that differ from the majority (the lowest rank's side where it is a tie).
  absl::Status agree(std::string_view what, std::span<const std::byte> bytes);
};

}  // namespace partita::runtime
