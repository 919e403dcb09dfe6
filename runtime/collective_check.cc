// Element i of rank r's input is a fixed function of (r, i), so every rank can compute any result by itself.
#include "runtime/collective_check.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "base/cat.h"
#include "base/float16.h"
#include "base/status.h"

namespace partita::runtime {
namespace {

uint64_t scramble(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

double real_input(int rank, int64_t i) {
  const uint64_t bits = scramble((static_cast<uint64_t>(rank) << 40) + static_cast<uint64_t>(i));
  return (static_cast<double>(bits >> 11) * 0x1p-53 - 0.5) * 8.0;
}
int64_t integer_input(int rank, int64_t i) {
  return static_cast<int64_t>(scramble((static_cast<uint64_t>(rank) << 40) + static_cast<uint64_t>(i)));
}

template <typename Wide>
Wide fold(ReduceOp op, Wide a, Wide b) {
  if (op == ReduceOp::kMax) return std::max(a, b);
  if (op == ReduceOp::kMin) return std::min(a, b);
  if constexpr (std::is_integral_v<Wide>) {
    return static_cast<Wide>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  } else {
    return a + b;
  }
}

// Writes the reduction over `ranks`, in order, of element i of their inputs; one rank gives its input.
void write_element(DType dtype, ReduceOp op, const std::vector<int>& ranks, int64_t i, std::byte* to) {
  const auto reduce = [&](auto input) {
    auto total = input(ranks[0]);
    for (size_t r = 1; r < ranks.size(); ++r) total = fold(op, total, input(ranks[r]));
    return total;
  };
  const auto put = [&](auto value) { std::memcpy(to, &value, sizeof value); };
  const auto narrow_half = [&](auto to_half, auto from_half) {
    return to_half(reduce([&](int r) { return from_half(to_half(static_cast<float>(real_input(r, i)))); }));
  };
  switch (dtype) {
    case DType::kF32: return put(reduce([&](int r) { return static_cast<float>(real_input(r, i)); }));
    case DType::kF64: return put(reduce([&](int r) { return real_input(r, i); }));
    case DType::kF16: return put(narrow_half(float_to_f16, f16_to_float));
    case DType::kBF16: return put(narrow_half(float_to_bf16, bf16_to_float));
    case DType::kI64: return put(reduce([&](int r) { return integer_input(r, i); }));
    case DType::kI32: return put(reduce([&](int r) { return static_cast<int32_t>(integer_input(r, i)); }));
    case DType::kU8: return put(reduce([&](int r) { return static_cast<uint8_t>(integer_input(r, i)); }));
    default: PARTITA_CHECK(false, "the check does not know this dtype");
  }
}

using ElementWriter = std::function<void(int64_t, std::byte*)>;

std::vector<std::byte> make_bytes(DType dtype, int64_t count, const ElementWriter& write) {
  const int64_t element = dtype_size(dtype);
  std::vector<std::byte> bytes(static_cast<size_t>(count * element));
  for (int64_t i = 0; i < count; ++i) write(i, bytes.data() + i * element);
  return bytes;
}

// One operation under way, with its buffers and what must come out.
struct Trial {
  CollectiveOp op;
  std::vector<std::byte> input, output, expected;
  Ticket ticket = 0;
};

class Checker {
 public:
  Checker(Communicator& communicator, std::vector<int> ranks, GroupId group, DType dtype, int64_t count)
      : communicator_(communicator), ranks_(std::move(ranks)), group_(group), dtype_(dtype), count_(count), n_(static_cast<int>(ranks_.size())) {
    mine_ = static_cast<int>(std::find(ranks_.begin(), ranks_.end(), communicator.rank()) - ranks_.begin());
  }

  absl::Status run() {
    add_collectives();
    add_point_to_point();
    // All are started before the first is waited for.
    for (Trial& trial : trials_) trial.ticket = communicator_.start(trial.op);
    for (const Trial& trial : trials_) PARTITA_RETURN_IF_ERROR(communicator_.wait(trial.ticket));
    for (const Trial& trial : trials_) PARTITA_RETURN_IF_ERROR(compare(trial));
    return absl::OkStatus();
  }

 private:
  ElementWriter input_of(int member, int64_t offset = 0) const {
    return [=, this](int64_t i, std::byte* to) { write_element(dtype_, ReduceOp::kSum, {ranks_[static_cast<size_t>(member)]}, i + offset, to); };
  }
  // Element i of a buffer of chunks: chunk j comes from member j's input at `offset`.
  ElementWriter chunks(int64_t offset) const {
    return [=, this](int64_t i, std::byte* to) { input_of(static_cast<int>(i / count_), offset)(i % count_, to); };
  }
  ElementWriter reduced(ReduceOp op, int64_t offset) const {
    return [=, this](int64_t i, std::byte* to) { write_element(dtype_, op, ranks_, i + offset, to); };
  }
  Trial& add(CollectiveKind kind, int64_t inputs, int64_t outputs, const ElementWriter& expected) {
    Trial& trial = trials_.emplace_back();
    trial.input = make_bytes(dtype_, inputs, input_of(mine_));
    trial.output.resize(static_cast<size_t>(outputs * dtype_size(dtype_)));
    trial.expected = make_bytes(dtype_, outputs, expected);
    trial.op = {.kind = kind, .group = group_, .dtype = dtype_, .count = count_, .step_id = static_cast<int64_t>(trials_.size()), .label = "check"};
    trial.op.input = inputs > 0 ? trial.input.data() : nullptr;
    trial.op.output = outputs > 0 ? trial.output.data() : nullptr;
    return trial;
  }
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
  std::vector<Trial> trials_;
};

void Checker::add_collectives() {
  for (ReduceOp reduce : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
    add(CollectiveKind::kAllReduce, count_, count_, reduced(reduce, 0)).op.reduce = reduce;
    Trial& in_place = add(CollectiveKind::kAllReduce, 0, count_, reduced(reduce, 0));
    in_place.op.reduce = reduce;
    in_place.output = make_bytes(dtype_, count_, input_of(mine_));
    in_place.op.output = in_place.output.data();
    add(CollectiveKind::kReduceScatter, n_ * count_, count_, reduced(reduce, mine_ * count_)).op.reduce = reduce;
  }
  add(CollectiveKind::kAllGather, count_, n_ * count_, chunks(0));
  add(CollectiveKind::kAllToAll, n_ * count_, n_ * count_, chunks(mine_ * count_));
  for (int root : {0, n_ - 1}) {
    Trial& trial = add(CollectiveKind::kBroadcast, 0, count_, input_of(root));
    trial.op.root = root;
    if (mine_ == root && count_ > 0) std::memcpy(trial.output.data(), trial.expected.data(), trial.expected.size());
  }
  add(CollectiveKind::kBarrier, 0, 0, {}).op.count = 0;
}

void Checker::add_point_to_point() {
  const int next = (mine_ + 1) % n_, previous = (mine_ + n_ - 1) % n_;
  Trial& shift = add(CollectiveKind::kPermute, count_, count_, input_of(previous));
  shift.op.to = next;
  shift.op.from = previous;
  if (n_ == 1) return;
  // A line rather than a ring, by a permute with open ends and by separate sends and receives.
  Trial& line = add(CollectiveKind::kPermute, count_, mine_ > 0 ? count_ : 0, input_of(previous));
  line.op.to = mine_ + 1 < n_ ? next : kNoPeer;
  line.op.from = mine_ > 0 ? previous : kNoPeer;
  if (mine_ + 1 < n_) add(CollectiveKind::kSend, count_, 0, {}).op.to = next;
  if (mine_ > 0) add(CollectiveKind::kRecv, 0, count_, input_of(previous)).op.from = previous;
}

absl::Status Checker::compare(const Trial& trial) const {
  if (trial.output == trial.expected) return absl::OkStatus();
  const auto element = static_cast<size_t>(dtype_size(dtype_));
  const auto differs = std::mismatch(trial.output.begin(), trial.output.end(), trial.expected.begin()).first;
  return absl::AbortedError(cat(collective_name(trial.op.kind), " ", reduce_name(trial.op.reduce), " of ", count_, " x ", dtype_name(dtype_), " in a group of ",
                                describe_ranks(ranks_), " is wrong on rank ", communicator_.rank(), " from element ",
                                static_cast<size_t>(differs - trial.output.begin()) / element, " on"));
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
  return communicator.run({.kind = CollectiveKind::kBarrier, .label = "end of the check"});
}

}  // namespace partita::runtime
