// A communicator that hands everything on to another one, and, while asked to, keeps a checksum of what this rank put
// into each operation and of each message that it received. Runs are deterministic: the same step has the same list.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/communicate/collective.h"

namespace partita::runtime {

struct CollectiveRecord {
  uint64_t checksum = 0;
  bool received = false;  // a message's bytes on arrival; else what went in
  int peer = kNoPeer;     // world rank, of sends and receives
  uint64_t lane = 0;      // of messages: those of one lane between two ranks arrive in the order in which they left
  std::string what;       // describe(op)
};

class RecordingCommunicator : public Communicator {
 public:
  // `inner` outlives it, and may be used beside it. Buffers are on the host.
  explicit RecordingCommunicator(Communicator& inner) : inner_(inner) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::string_view backend() const override { return inner_.backend(); }
  std::chrono::milliseconds timeout() const override { return inner_.timeout(); }
  void set_timeout(std::chrono::milliseconds timeout) override { inner_.set_timeout(timeout); }
  absl::StatusOr<GroupId> create_group(const std::vector<int>& world_ranks) override;
  absl::Status connect(std::span<const CollectiveOp> operations) override { return inner_.connect(operations); }
  Ticket start(CollectiveOp op) override;
  absl::Status wait(Ticket ticket) override;
  void abort(std::string_view reason) override { inner_.abort(reason); }
  absl::Status failure() const override { return inner_.failure(); }

  // Not while an operation is under way.
  void record(bool on);
  // Since record(true), in the order of the calls of start(). Messages must have been waited for.
  std::vector<CollectiveRecord> take();

 private:
  // A group as all its members know it.
  struct Group {
    std::vector<int> ranks;
    uint64_t lane = 0;
  };
  struct Arrival {
    std::span<const std::byte> bytes;
    size_t record = 0;
  };
  int64_t group_size(GroupId group) const;
  void set_lane(CollectiveRecord& record, GroupId group, int place) const;

  Communicator& inner_;
  std::mutex mutex_;  // guards what follows: operations are started and waited for from any thread
  std::map<GroupId, Group> groups_;
  std::map<std::vector<int>, uint64_t> made_;  // groups of these ranks so far
  bool on_ = false;
  std::vector<CollectiveRecord> records_;
  std::map<Ticket, Arrival> arrivals_;  // not waited for yet
};

}  // namespace partita::runtime
