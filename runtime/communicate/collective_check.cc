// Element i of rank r's input is a fixed function of (r, i), so every rank can compute any result by itself.
#include "runtime/communicate/collective_check.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <deque>
#include <span>

#include "base/cat.h"
#include "base/float16.h"
#include "base/mix64.h"
#include "base/status.h"

namespace partita::runtime {
namespace {

// Element types as the check sees them: how an input is made of random bits, and how values are folded.
template <typename T>
struct Integer {
  using Stored = T;
  using Wide = T;
  static Stored make(uint64_t bits) { return static_cast<T>(bits); }
  static Wide widen(Stored v) { return v; }
  static Stored narrow(Wide v) { return v; }
  static Wide sum(Wide a, Wide b) { return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b)); }
};
template <typename T>
struct Real {
  using Stored = T;
  using Wide = T;
  static Stored make(uint64_t bits) { return static_cast<T>((static_cast<double>(bits >> 11) * 0x1p-53 - 0.5) * 8.0); }
  static Wide widen(Stored v) { return v; }
  static Stored narrow(Wide v) { return v; }
  static Wide sum(Wide a, Wide b) { return a + b; }
};
template <float (*kWiden)(uint16_t), uint16_t (*kNarrow)(float)>
struct Short {
  using Stored = uint16_t;
  using Wide = float;
  static Stored make(uint64_t bits) { return kNarrow(Real<float>::make(bits)); }
  static Wide widen(Stored v) { return kWiden(v); }
  static Stored narrow(Wide v) { return kNarrow(v); }
  static Wide sum(Wide a, Wide b) { return a + b; }
};

template <typename Body>
void with_element(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kF32:
      return body(Real<float>());
    case DType::kF64:
      return body(Real<double>());
    case DType::kF16:
      return body(Short<f16_to_float, float_to_f16>());
    case DType::kBF16:
      return body(Short<bf16_to_float, float_to_bf16>());
    case DType::kI64:
      return body(Integer<int64_t>());
    case DType::kI32:
      return body(Integer<int32_t>());
    case DType::kU8:
      return body(Integer<uint8_t>());
    default:
      PARTITA_CHECK(false, "the check does not know this dtype");
  }
}

using Bytes = std::vector<std::byte>;

Bytes make_input(DType dtype, int rank, int64_t count) {
  Bytes bytes(static_cast<size_t>(count * dtype_size(dtype)));
  with_element(dtype, [&](auto element) {
    for (int64_t i = 0; i < count; ++i) {
      const auto value = element.make(mix64(static_cast<uint64_t>(rank), static_cast<uint64_t>(i)));
      std::memcpy(bytes.data() + static_cast<size_t>(i) * sizeof value, &value, sizeof value);
    }
  });
  return bytes;
}

// The tree over `values`, which are cut where the largest power of two below their number ends.
template <typename Element, typename Wide>
Wide reduce_tree(const Element& element, ReduceOp op, std::span<const Wide> values) {
  if (values.size() == 1) return values[0];
  const size_t half = std::bit_floor(values.size() - 1);
  const Wide left = reduce_tree(element, op, values.first(half)),
             right = reduce_tree(element, op, values.subspan(half));
  if (op == ReduceOp::kSum) return element.sum(left, right);
  return op == ReduceOp::kMax ? std::max(left, right) : std::min(left, right);
}

// The inputs' elements [first, first + count), reduced in order.
Bytes reduce_directly(DType dtype, ReduceOp op, const std::vector<Bytes>& inputs, int64_t first, int64_t count) {
  Bytes bytes(static_cast<size_t>(count * dtype_size(dtype)));
  with_element(dtype, [&](auto element) {
    using Stored = typename decltype(element)::Stored;
    using Wide = typename decltype(element)::Wide;
    std::vector<Wide> values(inputs.size());
    for (int64_t i = 0; i < count; ++i) {
      for (size_t r = 0; r < inputs.size(); ++r) {
        Stored stored;
        std::memcpy(&stored, inputs[r].data() + static_cast<size_t>(first + i) * sizeof stored, sizeof stored);
        values[r] = element.widen(stored);
      }
      const Stored result = element.narrow(reduce_tree(element, op, std::span<const Wide>(values)));
      std::memcpy(bytes.data() + static_cast<size_t>(i) * sizeof result, &result, sizeof result);
    }
  });
  return bytes;
}

// One operation under way, with its buffers and what must come out.
struct Trial {
  CollectiveOp op;
  Bytes input, output, expected;
  Ticket ticket = 0;
};

class Checker {
 public:
  Checker(Communicator& communicator, std::vector<int> ranks, GroupId group, DType dtype, int64_t count)
      : communicator_(communicator),
        ranks_(std::move(ranks)),
        group_(group),
        dtype_(dtype),
        count_(count),
        n_(static_cast<int>(ranks_.size())) {
    mine_ = static_cast<int>(std::find(ranks_.begin(), ranks_.end(), communicator.rank()) - ranks_.begin());
    for (int rank : ranks_) inputs_.push_back(make_input(dtype, rank, count * n_));
  }

  absl::Status run() {
    add_collectives();
    add_point_to_point();
    std::vector<CollectiveOp> operations;
    for (const Trial& trial : trials_) operations.push_back(trial.op);
    PARTITA_RETURN_IF_ERROR(communicator_.connect(operations));
    // All are started before the first is waited for.
    for (Trial& trial : trials_) trial.ticket = communicator_.start(trial.op);
    for (const Trial& trial : trials_) PARTITA_RETURN_IF_ERROR(communicator_.wait(trial.ticket));
    for (const Trial& trial : trials_) PARTITA_RETURN_IF_ERROR(compare(trial));
    return absl::OkStatus();
  }

 private:
  // Chunk `chunk` of a member's input.
  Bytes input_of(int member, int chunk = 0) const {
    const auto begin = inputs_[static_cast<size_t>(member)].begin() + chunk * count_ * dtype_size(dtype_);
    return Bytes(begin, begin + count_ * dtype_size(dtype_));
  }
  // Everybody's chunk `chunk`, one after the other.
  Bytes gathered(int chunk) const {
    Bytes all;
    for (int member = 0; member < n_; ++member) {
      const Bytes part = input_of(member, chunk);
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }
  // `inputs` elements of this rank's input go in; the output, as long as `expected`, starts as zeros.
  Trial& add(CollectiveKind kind, int64_t inputs, Bytes expected) {
    Trial& trial = trials_.emplace_back();
    const Bytes& mine = inputs_[static_cast<size_t>(mine_)];
    trial.input.assign(mine.begin(), mine.begin() + inputs * dtype_size(dtype_));
    trial.output.resize(expected.size());
    trial.expected = std::move(expected);
    trial.op = {.kind = kind,
                .group = group_,
                .dtype = dtype_,
                .count = count_,
                .step_id = static_cast<int64_t>(trials_.size()),
                .label = "check"};
    trial.op.input = trial.input.empty() ? nullptr : trial.input.data();
    trial.op.output = trial.output.empty() ? nullptr : trial.output.data();
    return trial;
  }
  // Every back end has one order for these where it is asked to.
  bool has_order() const { return dtype_ == DType::kF32 || dtype_ == DType::kF64; }
  void add_merged(CollectiveKind kind, ReduceOp reduce);
  void add_collectives();
  void add_point_to_point();
  absl::Status compare(const Trial& trial) const;

  Communicator& communicator_;
  const std::vector<int> ranks_;
  const GroupId group_;
  const DType dtype_;
  const int64_t count_;
  const int n_;
  int mine_ = 0;
  std::vector<Bytes> inputs_;  // of every member
  std::deque<Trial> trials_;
};

// Several buffers of one operation: of the inputs' first elements each, long, short and empty.
void Checker::add_merged(CollectiveKind kind, ReduceOp reduce) {
  Trial& trial = add(kind, 0, {});
  trial.op.reduce = reduce;
  trial.op.in_order = has_order();
  std::vector<CollectiveBuffers> buffers;
  std::vector<std::pair<size_t, size_t>> places;
  for (int64_t count : {count_ - count_ / 3, std::min<int64_t>(count_, 3), int64_t{0}, count_}) {
    const bool blocks = kind == CollectiveKind::kReduceScatter || kind == CollectiveKind::kAllToAll;
    const int64_t taken = blocks ? n_ * count : count, size = dtype_size(dtype_);
    const Bytes& mine = inputs_[static_cast<size_t>(mine_)];
    places.emplace_back(trial.input.size(), trial.expected.size());
    trial.input.insert(trial.input.end(), mine.begin(), mine.begin() + taken * size);
    Bytes result;
    if (kind == CollectiveKind::kAllGather || kind == CollectiveKind::kAllToAll) {
      const int64_t first = blocks ? mine_ * count * size : 0;
      for (const Bytes& input : inputs_)
        result.insert(result.end(), input.begin() + first, input.begin() + first + count * size);
    } else {
      const int64_t first = kind == CollectiveKind::kReduceScatter ? mine_ * count : 0;
      result = reduce_directly(dtype_, reduce, inputs_, first, count);
    }
    trial.expected.insert(trial.expected.end(), result.begin(), result.end());
    buffers.push_back({.count = count});
  }
  trial.output.resize(trial.expected.size());
  for (size_t k = 0; k < buffers.size(); ++k) {
    buffers[k].input = trial.input.data() + places[k].first;
    buffers[k].output = trial.output.data() + places[k].second;
  }
  trial.op.count = buffers[0].count;
  trial.op.input = buffers[0].input;
  trial.op.output = buffers[0].output;
  trial.op.more.assign(buffers.begin() + 1, buffers.end());
}

void Checker::add_collectives() {
  for (ReduceOp reduce : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
    const Bytes total = reduce_directly(dtype_, reduce, inputs_, 0, count_);
    add(CollectiveKind::kAllReduce, count_, total).op.reduce = reduce;
    Trial& in_place = add(CollectiveKind::kAllReduce, 0, total);
    in_place.op.reduce = reduce;
    in_place.op.in_order = has_order();
    const Bytes mine = input_of(mine_);
    std::copy(mine.begin(), mine.end(), in_place.output.begin());
    add(CollectiveKind::kReduceScatter, n_ * count_, reduce_directly(dtype_, reduce, inputs_, mine_ * count_, count_))
        .op.reduce = reduce;
    add_merged(CollectiveKind::kAllReduce, reduce);
    add_merged(CollectiveKind::kReduceScatter, reduce);
  }
  add_merged(CollectiveKind::kAllGather, ReduceOp::kSum);
  add_merged(CollectiveKind::kAllToAll, ReduceOp::kSum);
  add(CollectiveKind::kAllGather, count_, gathered(0));
  add(CollectiveKind::kAllToAll, n_ * count_, gathered(mine_));
  for (int root : {0, n_ - 1}) {
    Trial& trial = add(CollectiveKind::kBroadcast, 0, input_of(root));
    trial.op.root = root;
    if (mine_ == root) std::copy(trial.expected.begin(), trial.expected.end(), trial.output.begin());
  }
  add(CollectiveKind::kBarrier, 0, {}).op.count = 0;
}

void Checker::add_point_to_point() {
  const int next = (mine_ + 1) % n_, previous = (mine_ + n_ - 1) % n_;
  Trial& shift = add(CollectiveKind::kPermute, count_, input_of(previous));
  shift.op.to = next;
  shift.op.from = previous;
  if (n_ == 1) return;
  // A line rather than a ring, by a permute with open ends and by separate sends and receives.
  Trial& line = add(CollectiveKind::kPermute, count_, mine_ > 0 ? input_of(previous) : Bytes());
  line.op.to = mine_ + 1 < n_ ? next : kNoPeer;
  line.op.from = mine_ > 0 ? previous : kNoPeer;
  if (mine_ + 1 < n_) add(CollectiveKind::kSend, count_, {}).op.to = next;
  if (mine_ > 0) add(CollectiveKind::kRecv, 0, input_of(previous)).op.from = previous;
}

absl::Status Checker::compare(const Trial& trial) const {
  if (trial.output == trial.expected) return absl::OkStatus();
  const auto element = static_cast<size_t>(dtype_size(dtype_));
  const auto differs = std::mismatch(trial.output.begin(), trial.output.end(), trial.expected.begin()).first;
  return absl::AbortedError(cat(collective_name(trial.op.kind), " ", reduce_name(trial.op.reduce), " of ", count_,
                                " x ", dtype_name(dtype_), " in a group of ", describe_ranks(ranks_),
                                " is wrong on rank ", communicator_.rank(), " from element ",
                                static_cast<size_t>(differs - trial.output.begin()) / element, " on"));
}

// Two groups of the same ranks have lanes of their own: what is sent first on one of them may be asked for last.
absl::Status check_lanes(Communicator& communicator, const std::vector<int>& world) {
  const int n = communicator.size(), mine = communicator.rank();
  if (n == 1) return absl::OkStatus();
  const int to = (mine + 1) % n, from = (mine + n - 1) % n;
  GroupId groups[2];
  std::vector<CollectiveOp> messages;
  for (GroupId& group : groups) {
    PARTITA_ASSIGN_OR_RETURN(group, communicator.create_group(world));
    messages.push_back({.kind = CollectiveKind::kSend, .group = group, .to = to});
    messages.push_back({.kind = CollectiveKind::kRecv, .group = group, .from = from});
  }
  PARTITA_RETURN_IF_ERROR(communicator.connect(messages));
  std::vector<float> out[2], in[2];
  std::vector<Ticket> sends;
  for (int k = 0; k < 2; ++k) {
    in[k].resize(100003);
    out[k].assign(in[k].size(), static_cast<float>(10 * mine + k));
    sends.push_back(communicator.start({.kind = CollectiveKind::kSend,
                                        .group = groups[k],
                                        .count = static_cast<int64_t>(out[k].size()),
                                        .input = out[k].data(),
                                        .to = to}));
  }
  for (int k : {1, 0}) {
    PARTITA_RETURN_IF_ERROR(communicator.run({.kind = CollectiveKind::kRecv,
                                              .group = groups[k],
                                              .count = static_cast<int64_t>(in[k].size()),
                                              .output = in[k].data(),
                                              .from = from}));
    if (in[k] != std::vector<float>(in[k].size(), static_cast<float>(10 * from + k)))
      return absl::AbortedError(cat("rank ", mine, " received something else on lane ", k));
  }
  for (Ticket send : sends) PARTITA_RETURN_IF_ERROR(communicator.wait(send));
  return absl::OkStatus();
}

}  // namespace

absl::Status check_collectives(Communicator& communicator, const CollectiveCheck& check) {
  std::vector<int> world, even;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    world.push_back(rank);
    if (rank % 2 == 0) even.push_back(rank);
  }
  std::vector<std::vector<int>> groups = {world, {world.rbegin(), world.rend()}, even};
  if (world.size() > 1) groups.push_back({world.back(), world.front()});
  for (size_t g = 0; g < groups.size(); ++g) {
    const std::vector<int>& ranks = groups[g];
    if (std::find(ranks.begin(), ranks.end(), communicator.rank()) == ranks.end()) continue;
    GroupId group = kWorldGroup;
    if (g > 0) {
      PARTITA_ASSIGN_OR_RETURN(group, communicator.create_group(ranks));
    }
    for (DType dtype : check.dtypes) {
      for (int64_t count : check.counts) {
        PARTITA_RETURN_IF_ERROR(Checker(communicator, ranks, group, dtype, count).run());
      }
    }
  }
  PARTITA_RETURN_IF_ERROR(check_lanes(communicator, world));
  return communicator.run({.kind = CollectiveKind::kBarrier, .label = "end of the check"});
}

}  // namespace partita::runtime
