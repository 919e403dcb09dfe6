// The collectives, written once over Transport's messages.
//
// Every member exchanges directly with every other (no rings, no trees): each byte crosses a link once per receiver
// that needs it, which is the bandwidth optimum for reduce-scatter, all-gather and all-to-all; a long all-reduce is the
// first two and a long broadcast a scatter and an all-gather. Each rank waits for the very ranks it misses, so a
// timeout names the guilty one. The order of a sum is a tree over the group's order, whichever
// rank computes it.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "runtime/communicate/collective.h"
#include "runtime/communicate/transport.h"

namespace partita::runtime {

struct Group {
  std::vector<int> ranks;  // world ranks by group rank
  int mine = -1;           // this rank's group rank, -1 outside
  uint64_t id = 0;         // the same on all members
  uint32_t operations = 0;
  std::map<int, uint32_t> sent, received;  // messages per group rank

  int size() const { return static_cast<int>(ranks.size()); }
};

// The transfers of one operation.
class Exchange {
 public:
  // `tick` runs after every step of progress; its error ends the wait.
  // `timeout` may change meanwhile.
  Exchange(Transport& transport, const Group& group, CollectiveOp op,
           const std::atomic<std::chrono::milliseconds>& timeout, std::function<absl::Status()> tick);
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  const CollectiveOp& op() const { return op_; }
  const Group& group() const { return group_; }
  int size() const { return group_.size(); }
  int mine() const { return group_.mine; }

  // Posts messages to or from a group rank other than mine(), cut at kMaxMessageBytes and numbered from `piece`.
  void send(int member, const std::byte* data, size_t bytes, uint32_t piece = 0);
  void recv(int member, std::byte* data, size_t bytes, uint32_t piece = 0);
  // Later messages belong to the next phase of the operation.
  void next_phase() { ++envelope_.phase; }
  void set_sequence(uint32_t sequence) { envelope_.sequence = sequence; }

  // Zeroed memory for messages, in place as long as this is: after an error too the transport may still move them,
  // until it has been aborted.
  std::byte* scratch(size_t bytes) { return scratch_.emplace_back(bytes).data(); }

  // Position after the transfers posted so far, for wait().
  size_t posted() const { return transfers_.size(); }
  // Waits for the transfers [begin, end), or for all; Unavailable naming the missing ranks after the timeout.
  absl::Status wait(size_t begin, size_t end);
  absl::Status wait_all() { return wait(0, posted()); }

  // For operations that run in the background: the same without waiting.
  bool finished();
  absl::Status overdue(SteadyTime now);
  // When a transfer was last done, and the world ranks of those that are not: of receives, else of sends.
  SteadyTime moved() const { return moved_; }
  std::vector<int> missing() const;

 private:
  void post(int member, std::byte* data, size_t bytes, uint32_t piece, bool is_send);
  absl::Status timeout_error() const;

  struct Entry {
    Transfer transfer;
    bool is_send = false;
    bool counted = false;
  };
  Transport& transport_;
  const Group& group_;
  const CollectiveOp op_;
  const std::atomic<std::chrono::milliseconds>& timeout_;
  const std::function<absl::Status()> tick_;
  Envelope envelope_;
  std::deque<Entry> transfers_;
  std::deque<std::vector<std::byte>> scratch_;
  size_t first_open_ = 0;  // all before it are done
  SteadyTime moved_;
};

// InvalidArgument where the operation cannot run in `group`.
absl::Status check_operation(const CollectiveOp& op, const Group& group);

// Runs a barrier, all_reduce, reduce_scatter, all_gather, broadcast or all_to_all to its end.
absl::Status run_collective(Exchange& exchange);

// Posts a send, recv or permute; done when exchange.finished().
void post_point_to_point(Exchange& exchange, Group& group);

}  // namespace partita::runtime
