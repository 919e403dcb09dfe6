// A communicator that hands everything on to another one, and keeps how long this rank has waited for each group.
#pragma once

#include <map>
#include <mutex>
#include <unordered_map>

#include "runtime/communicate/collective.h"

namespace partita::runtime {

class MeasuredCommunicator : public Communicator {
 public:
  // `inner` outlives it, and may be used beside it.
  explicit MeasuredCommunicator(Communicator& inner) : inner_(inner) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::string_view backend() const override { return inner_.backend(); }
  std::chrono::milliseconds timeout() const override { return inner_.timeout(); }
  void set_timeout(std::chrono::milliseconds timeout) override { inner_.set_timeout(timeout); }
  absl::StatusOr<GroupId> create_group(const std::vector<int>& world_ranks) override {
    return inner_.create_group(world_ranks);
  }
  absl::Status connect(std::span<const CollectiveOp> operations) override { return inner_.connect(operations); }
  Ticket start(CollectiveOp op) override;
  absl::Status wait(Ticket ticket) override;
  void abort(std::string_view reason) override { inner_.abort(reason); }
  absl::Status failure() const override { return inner_.failure(); }

  // Seconds that wait() took, of all threads, by group; what was over when it was asked for takes none.
  std::map<GroupId, double> waited() const;

 private:
  Communicator& inner_;
  mutable std::mutex mutex_;  // guards what follows: operations are started and waited for from any thread
  std::unordered_map<Ticket, GroupId> groups_;
  std::map<GroupId, double> waited_;
};

}  // namespace partita::runtime
