// Collectives over NCCL. Those of whole groups run on one stream, in the order of start(), whatever their group: NCCL
// wants one order on all ranks. Messages from one rank to another must not hold back anything but later ones between
// the same two in the same group (collective.h), so each such pair has a lane and a communicator of NCCL's to itself,
// made by connect() and used there once, since NCCL connects two ranks with their first message.
//
// A communicator of NCCL's belongs to the lane that issues on it, whose thread also asks it for errors. A watchdog
// looks at the control plane and at what the lanes say; when either fails, or an operation does not end in time, it
// stops the lanes and aborts NCCL's communicators, which ends the kernels that wait for the lost.
#include <algorithm>
#include <atomic>
#include <thread>
#include <tuple>
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
      : DeviceCommunicator(device, control), nccl_(nccl), sums_(device) {}

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
        {}, [this](const CollectiveOp& op) { return link_of(op.group); }, [this] { return group_error(); }, &sums_));
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

  // One pair after the other, in an order that is the same for all ranks: whoever waits does so for a pair that comes
  // before all that its other rank waits for.
  absl::Status connect(std::span<const CollectiveOp> operations) override {
    std::lock_guard lock(start_mutex_);
    PARTITA_RETURN_IF_ERROR(sums_.prepare(operations));
    std::map<std::tuple<int, int, GroupId>, Message> wanted;
    for (const CollectiveOp& op : operations) {
      PARTITA_ASSIGN_OR_RETURN(const std::vector<Message> messages, messages_of(op));
      for (const Message& m : messages) {
        const std::vector<int>& ranks = ranks_.at(m.pair.group);
        wanted[{ranks[static_cast<size_t>(m.pair.from)], ranks[static_cast<size_t>(m.pair.to)], m.pair.group}] = m;
      }
    }
    for (const auto& [order, message] : wanted) {
      if (!lanes_.contains(message.pair)) PARTITA_RETURN_IF_ERROR(connect(message));
    }
    return absl::OkStatus();
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

  // One of an operation's messages; this rank is one of the pair.
  struct Message {
    Pair pair;
    bool sends = false;
  };

  // What goes from rank to rank; nothing for a collective.
  absl::StatusOr<std::vector<Message>> messages_of(const CollectiveOp& op) const {
    auto members = ranks_.find(op.group);
    if (members == ranks_.end()) return absl::InvalidArgumentError("a group that this rank is no member of");
    const std::vector<int>& ranks = members->second;
    const int mine = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank()) - ranks.begin());
    std::vector<Message> messages;
    const bool permutes = op.kind == CollectiveKind::kPermute && op.to != mine;
    if ((op.kind == CollectiveKind::kSend || permutes) && op.to != kNoPeer)
      messages.push_back({{op.group, mine, op.to}, true});
    if ((op.kind == CollectiveKind::kRecv || permutes) && op.from != kNoPeer)
      messages.push_back({{op.group, op.from, mine}, false});
    return messages;
  }

  absl::Status connect(const Message& m) {
    PARTITA_ASSIGN_OR_RETURN(std::unique_ptr<NcclLink> made, link_pair(m.pair, m.sends));
    NcclLink* link = made.get();
    {
      std::lock_guard lock(lanes_mutex_);
      pair_links_[m.pair] = std::move(made);
    }
    PARTITA_RETURN_IF_ERROR(add_lane(
        m.pair, [link](const CollectiveOp&) { return link; }, [link] { return link->error(); }));
    void* word = nullptr;
    if (cudaError_t e = cudaMalloc(&word, 1); e != cudaSuccess) return cuda_error("cudaMalloc", e);
    const CollectiveOp first{.kind = m.sends ? CollectiveKind::kSend : CollectiveKind::kRecv,
                             .group = m.pair.group,
                             .dtype = DType::kU8,
                             .count = 1,
                             .input = m.sends ? word : nullptr,
                             .output = m.sends ? nullptr : word,
                             .to = m.sends ? 1 : kNoPeer,
                             .from = m.sends ? kNoPeer : 0,
                             .label = "first message between two ranks"};
    NcclLane& lane = *lanes_[m.pair];
    PARTITA_ASSIGN_OR_RETURN(const uint64_t number, lane.push(first));
    while (!lane.is_over(number)) {
      PARTITA_RETURN_IF_ERROR(DeviceCommunicator::failure());
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    cudaFree(word);
    return absl::OkStatus();
  }

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

  // The sender makes the id. The communicator has rank 0 for it and rank 1 for the receiver.
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

  absl::Status add_lane(const Pair& pair, NcclLane::Find find, NcclLane::Look look, const OrderedSums* sums = nullptr) {
    auto lane = std::make_unique<NcclLane>(
        device_, std::move(find), std::move(look), [this](absl::Status s) { fail(std::move(s)); }, sums);
    PARTITA_RETURN_IF_ERROR(lane->open());
    std::lock_guard lock(lanes_mutex_);
    lanes_[pair] = std::move(lane);
    return absl::OkStatus();
  }

  absl::Status launch(const CollectiveOp& op, std::vector<Part>& parts) {
    PARTITA_ASSIGN_OR_RETURN(const std::vector<Message> messages, messages_of(op));
    if (op.kind == CollectiveKind::kBarrier) {
      parts.push_back({nullptr, control_.start(op)});
      return absl::OkStatus();
    }
    for (const Message& m : messages) {
      auto lane = lanes_.find(m.pair);
      if (lane == lanes_.end()) return absl::InternalError("a message between ranks that were not connected");
      CollectiveOp one = op;
      one.to = m.sends ? 1 : kNoPeer, one.from = m.sends ? kNoPeer : 0;
      PARTITA_RETURN_IF_ERROR(push(*lane->second, one, parts));
    }
    const bool moves = op.kind == CollectiveKind::kSend || op.kind == CollectiveKind::kRecv ||
                       (op.kind == CollectiveKind::kPermute && op.to == kNoPeer && op.from == kNoPeer);
    return messages.empty() && !moves ? push(*lanes_[{}], op, parts) : absl::OkStatus();
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
  OrderedSums sums_;        // of the lane of collectives, which does one after the other
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
