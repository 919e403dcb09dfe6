// Collectives over NCCL. Those of whole groups run on one stream, in the order of start(), whatever their group: NCCL
// wants one order on all ranks. Messages from one rank to another must not hold back anything but later ones between
// the same two in the same group (collective.h), so each such pair has a lane and a communicator of NCCL's to itself,
// made when it is first used.
//
// A communicator of NCCL's belongs to the lane that issues on it, whose thread also asks it for errors. A watchdog
// looks at the control plane and at what the lanes say; when either fails, or an operation does not end in time, it
// stops the lanes and aborts NCCL's communicators, which ends the kernels that wait for the lost.
#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "base/status.h"
#include "runtime/cuda/communicator_base.h"
#include "runtime/cuda/nccl_lane.h"
#include "runtime/cuda/nccl_link.h"

namespace partita::runtime {
namespace {

constexpr std::chrono::milliseconds kLook{50};

class NcclCommunicator final : public DeviceCommunicator {
 public:
  NcclCommunicator(CudaDevice& device, Communicator& control, const Nccl& nccl)
      : DeviceCommunicator(device, control), nccl_(nccl) {}

  ~NcclCommunicator() override {
    stop_ = true;
    if (watchdog_.joinable()) watchdog_.join();
    cudaSetDevice(device_.ordinal());
    end_lanes(!failure().ok());
  }

  absl::Status open() {
    std::vector<int> all(static_cast<size_t>(size()));
    for (int r = 0; r < size(); ++r) all[static_cast<size_t>(r)] = r;
    PARTITA_ASSIGN_OR_RETURN(links_[kWorldGroup], link_group(kWorldGroup, rank(), size()));
    ranks_[kWorldGroup] = all;
    PARTITA_RETURN_IF_ERROR(add_lane(
        {}, [this](const CollectiveOp& op) { return link_of(op.group); }, [this] { return group_error(); }));
    watchdog_ = std::thread([this] { watch(); });
    return absl::OkStatus();
  }

  std::string_view backend() const override { return "nccl"; }

  absl::StatusOr<GroupId> create_group(const std::vector<int>& ranks) override {
    PARTITA_ASSIGN_OR_RETURN(GroupId id, control_.create_group(ranks));
    auto mine = std::find(ranks.begin(), ranks.end(), rank());
    if (mine == ranks.end()) return id;
    PARTITA_ASSIGN_OR_RETURN(std::unique_ptr<NcclLink> link,
                             link_group(id, static_cast<int>(mine - ranks.begin()), static_cast<int>(ranks.size())));
    std::lock_guard lock(lanes_mutex_);
    links_[id] = std::move(link);
    ranks_[id] = ranks;
    return id;
  }

  // NCCL is asked too, by the lanes: what it has found must be known before results are used.
  absl::Status failure() const override {
    PARTITA_RETURN_IF_ERROR(DeviceCommunicator::failure());
    std::vector<NcclLane*> lanes;
    {
      std::lock_guard lock(lanes_mutex_);
      for (const auto& [pair, lane] : lanes_) lanes.push_back(lane.get());
    }
    for (NcclLane* lane : lanes) lane->look();
    return DeviceCommunicator::failure();
  }

  Ticket start(CollectiveOp op) override {
    std::lock_guard lock(start_mutex_);
    while (!flights_.empty() && is_over(flights_.begin()->second)) flights_.erase(flights_.begin());
    const Ticket ticket = ++last_;
    absl::Status status = DeviceCommunicator::failure();
    if (status.ok()) status = launch(op, flights_[ticket]);
    if (!status.ok()) fail(with_context(status, describe(op)));
    return ticket;
  }

  absl::Status wait(Ticket ticket) override {
    PARTITA_RETURN_IF_ERROR(DeviceCommunicator::failure());
    std::vector<Part> parts;
    {
      std::lock_guard lock(start_mutex_);
      if (auto at = flights_.find(ticket); at != flights_.end()) parts = at->second;
    }
    for (const Part& part : parts) {
      const absl::Status status = part.lane != nullptr ? part.lane->wait(part.number) : control_.wait(part.number);
      if (!status.ok()) return failure().ok() ? status : failure();
    }
    return absl::OkStatus();
  }

 private:
  // Of an operation under way.
  struct Part {
    NcclLane* lane = nullptr;  // null: on the control plane
    uint64_t number = 0;
  };
  // Of a lane for messages; none for the lane of collectives.
  struct Pair {
    GroupId group = kWorldGroup;
    int from = kNoPeer, to = kNoPeer;
    auto operator<=>(const Pair&) const = default;
  };

  // The first of the group makes the id and tells the others over the control plane.
  absl::StatusOr<std::unique_ptr<NcclLink>> link_group(GroupId group, int mine, int ranks) {
    ncclUniqueId id{};
    if (mine == 0) {
      PARTITA_ASSIGN_OR_RETURN(id, NcclLink::new_id(nccl_));
    }
    PARTITA_RETURN_IF_ERROR(control_.run({.kind = CollectiveKind::kBroadcast,
                                          .group = group,
                                          .dtype = DType::kU8,
                                          .count = sizeof id,
                                          .output = &id,
                                          .label = "id of a NCCL communicator"}));
    return NcclLink::open(nccl_, id, mine, ranks, timeout(), [this] { return DeviceCommunicator::failure(); });
  }

  // In the lane's thread: the sender makes the id. The communicator has rank 0 for it and rank 1 for the receiver.
  absl::StatusOr<std::unique_ptr<NcclLink>> link_pair(const Pair& pair, bool sends) {
    ncclUniqueId id{};
    CollectiveOp op{.kind = sends ? CollectiveKind::kSend : CollectiveKind::kRecv,
                    .group = pair.group,
                    .dtype = DType::kU8,
                    .count = sizeof id,
                    .label = "id of a NCCL communicator for messages"};
    if (sends) {
      PARTITA_ASSIGN_OR_RETURN(id, NcclLink::new_id(nccl_));
      op.input = &id, op.to = pair.to;
    } else {
      op.output = &id, op.from = pair.from;
    }
    PARTITA_RETURN_IF_ERROR(control_.run(op));
    return NcclLink::open(nccl_, id, sends ? 0 : 1, 2, timeout(), [this] { return DeviceCommunicator::failure(); });
  }

  absl::StatusOr<NcclLink*> link_of(GroupId group) {
    std::lock_guard lock(lanes_mutex_);
    auto at = links_.find(group);
    if (at == links_.end()) return absl::InvalidArgumentError("a group that this rank is no member of");
    return at->second.get();
  }

  // Null before the pair's lane has made it.
  NcclLink* link_of(const Pair& pair) {
    std::lock_guard lock(lanes_mutex_);
    auto at = pair_links_.find(pair);
    return at == pair_links_.end() ? nullptr : at->second.get();
  }

  // In the thread of the collectives' lane, to which these links belong.
  absl::Status group_error() {
    std::vector<NcclLink*> links;
    {
      std::lock_guard lock(lanes_mutex_);
      for (const auto& [id, link] : links_) links.push_back(link.get());
    }
    for (NcclLink* link : links) PARTITA_RETURN_IF_ERROR(link->error());
    return absl::OkStatus();
  }

  absl::Status add_lane(const Pair& pair, NcclLane::Find find, NcclLane::Look look) {
    auto lane = std::make_unique<NcclLane>(device_, std::move(find), std::move(look),
                                           [this](absl::Status s) { fail(std::move(s)); });
    PARTITA_RETURN_IF_ERROR(lane->open());
    std::lock_guard lock(lanes_mutex_);
    lanes_[pair] = std::move(lane);
    return absl::OkStatus();
  }

  // The lane for messages of a pair, of which this rank is one.
  absl::StatusOr<NcclLane*> lane_of(const Pair& pair, bool sends) {
    if (!lanes_.contains(pair)) {
      const auto find = [this, pair, sends](const CollectiveOp&) -> absl::StatusOr<NcclLink*> {
        if (NcclLink* link = link_of(pair)) return link;
        PARTITA_ASSIGN_OR_RETURN(std::unique_ptr<NcclLink> made, link_pair(pair, sends));
        std::lock_guard lock(lanes_mutex_);
        return (pair_links_[pair] = std::move(made)).get();
      };
      const auto look = [this, pair] {
        const NcclLink* link = link_of(pair);
        return link == nullptr ? absl::OkStatus() : link->error();
      };
      PARTITA_RETURN_IF_ERROR(add_lane(pair, find, look));
    }
    return lanes_[pair].get();
  }

  absl::Status launch(const CollectiveOp& op, std::vector<Part>& parts) {
    auto members = ranks_.find(op.group);
    if (members == ranks_.end()) return absl::InvalidArgumentError("a group that this rank is no member of");
    if (op.kind == CollectiveKind::kBarrier) {
      parts.push_back({nullptr, control_.start(op)});
      return absl::OkStatus();
    }
    const std::vector<int>& ranks = members->second;
    const int mine = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank()) - ranks.begin());
    const bool messages = op.kind == CollectiveKind::kSend || op.kind == CollectiveKind::kRecv ||
                          (op.kind == CollectiveKind::kPermute && op.to != mine);
    if (!messages) return push(*lanes_[{}], op, parts);
    if (op.kind != CollectiveKind::kRecv && op.to != kNoPeer) {
      PARTITA_ASSIGN_OR_RETURN(NcclLane * lane, lane_of({op.group, mine, op.to}, true));
      CollectiveOp one = op;
      one.to = 1, one.from = kNoPeer;
      PARTITA_RETURN_IF_ERROR(push(*lane, one, parts));
    }
    if (op.kind != CollectiveKind::kSend && op.from != kNoPeer) {
      PARTITA_ASSIGN_OR_RETURN(NcclLane * lane, lane_of({op.group, op.from, mine}, false));
      CollectiveOp one = op;
      one.to = kNoPeer, one.from = 0;
      PARTITA_RETURN_IF_ERROR(push(*lane, one, parts));
    }
    return absl::OkStatus();
  }

  absl::Status push(NcclLane& lane, const CollectiveOp& op, std::vector<Part>& parts) {
    PARTITA_ASSIGN_OR_RETURN(uint64_t number, lane.push(op));
    parts.push_back({&lane, number});
    return absl::OkStatus();
  }

  bool is_over(const std::vector<Part>& parts) {
    return std::all_of(parts.begin(), parts.end(),
                       [](const Part& p) { return p.lane != nullptr && p.lane->is_over(p.number); });
  }

  // What is wrong by now.
  absl::Status look() {
    PARTITA_RETURN_IF_ERROR(DeviceCommunicator::failure());
    std::lock_guard lock(lanes_mutex_);
    for (auto& [pair, lane] : lanes_) {
      if (std::optional<CollectiveOp> op = lane->late(timeout()))
        return absl::UnavailableError(cat(describe(*op), " has not ended after ",
                                          std::chrono::duration<double>(timeout()).count(),
                                          " s: a rank is missing or hangs"));
    }
    return absl::OkStatus();
  }

  void watch() {
    cudaSetDevice(device_.ordinal());
    while (!stop_) {
      std::this_thread::sleep_for(kLook);
      const absl::Status status = look();
      if (status.ok()) continue;
      fail(status);
      control_.abort(std::string(status.message()));
      std::lock_guard lock(start_mutex_);
      end_lanes(true);
      return;
    }
  }

  // A lane's thread may be at a call: after a failure it comes back from there soon. Its links are this thread's then.
  void end_lanes(bool abort) {
    for (auto& [pair, lane] : lanes_) {
      lane->stop();
      if (!abort) lane->drain();
    }
    std::lock_guard lock(lanes_mutex_);
    std::vector<NcclLink*> links;
    for (auto& [id, link] : links_) links.push_back(link.get());
    for (auto& [pair, link] : pair_links_) links.push_back(link.get());
    for (NcclLink* link : links) abort ? link->abort() : link->begin_end();
    for (NcclLink* link : links) link->end();
  }

  const Nccl& nccl_;
  std::mutex start_mutex_;  // of the order of operations
  std::map<Ticket, std::vector<Part>> flights_;
  Ticket last_ = 0;
  std::map<GroupId, std::vector<int>> ranks_;  // world ranks of the groups that this rank is in
  mutable std::mutex lanes_mutex_;             // of what follows; lanes are added under both
  std::map<GroupId, std::unique_ptr<NcclLink>> links_;
  std::map<Pair, std::unique_ptr<NcclLink>> pair_links_;
  std::map<Pair, std::unique_ptr<NcclLane>> lanes_;
  std::atomic<bool> stop_ = false;
  std::thread watchdog_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> open_nccl(CudaDevice& device, Communicator& control) {
  PARTITA_ASSIGN_OR_RETURN(const Nccl* nccl, Nccl::load());
  auto made = std::make_unique<NcclCommunicator>(device, control, *nccl);
  PARTITA_RETURN_IF_ERROR(made->open());
  return made;
}

}  // namespace partita::runtime
