// Example, all_reduce of 10 elements over 3 ranks, rank 1's view: its slice is [3, 6).
//   phase 0: sends [0, 3) to rank 0 and [6, 10) to rank 2, receives their [3, 6), sums all three there in rank order
//   phase 1: sends [3, 6) to both, receives [0, 3) from rank 0 and [6, 10) from rank 2
// Phase 0 goes in rounds of pieces with two rounds under way, so the scratch memory stays small whatever the buffers'
// size. A round holds the pieces of many small buffers: an operation over several costs one latency.
#include "runtime/communicate/collective_algorithms.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/cat.h"
#include "base/status.h"
#include "runtime/communicate/lost_ranks.h"
#include "runtime/communicate/reduce_kernels.h"
#include "runtime/communicate/reduce_rounds.h"

namespace partita::runtime {
namespace {

using Clock = std::chrono::steady_clock;

// Up to here the root sends the whole buffer to everybody.
constexpr size_t kSmallBroadcastBytes = 65536;

// Group ranks other than mine, starting after me so that not everybody talks to rank 0 first.
std::vector<int> others(const Exchange& x) {
  std::vector<int> members;
  for (int i = 1; i < x.size(); ++i) members.push_back((x.mine() + i) % x.size());
  return members;
}

int64_t piece_elements(const Exchange& x) {
  const int64_t bytes = std::clamp<int64_t>((int64_t{8} << 20) / x.size(), 32768, 1 << 20);
  return bytes / dtype_size(x.op().dtype);
}

// Reduces all ranks' copies of the slices this rank owns, in group order.
absl::Status reduce_slices(Exchange& x, const std::vector<Reduction>& buffers) {
  const auto element = static_cast<size_t>(dtype_size(x.op().dtype));
  const std::vector<int> peers = others(x);
  const std::vector<Round> rounds = rounds_of(buffers, piece_elements(x));
  int64_t longest = 0;
  for (const Round& round : rounds) longest = std::max(longest, round.back().at + round.back().length);
  const size_t stride = static_cast<size_t>(longest) * element;
  std::byte* const scratch = x.scratch(std::min<size_t>(rounds.size(), 2) * peers.size() * stride);
  std::vector<size_t> begins(rounds.size()), ends(rounds.size());
  const auto length_of = [&](const Run& run, int member) { return run.length_of(buffers[run.buffer].of(member)); };
  const auto source = [&](const Run& run, int member) {
    const Reduction& r = buffers[run.buffer];
    return r.input + static_cast<size_t>(r.of(member).begin + run.begin) * element;
  };
  const auto received = [&](size_t round, size_t peer, const Run& run) {
    return scratch + (round % 2 * peers.size() + peer) * stride + static_cast<size_t>(run.at) * element;
  };
  const auto post = [&](size_t k) {
    for (const Run& run : rounds[k]) {
      for (int peer : peers) {
        const int64_t length = length_of(run, peer);
        if (length > 0) x.send(peer, source(run, peer), static_cast<size_t>(length) * element, run.number);
      }
    }
    begins[k] = x.posted();
    for (const Run& run : rounds[k]) {
      const int64_t length = length_of(run, x.mine());
      for (size_t i = 0; i < peers.size() && length > 0; ++i)
        x.recv(peers[i], received(k, i, run), static_cast<size_t>(length) * element, run.number);
    }
    ends[k] = x.posted();
  };
  if (!rounds.empty()) post(0);
  std::vector<const std::byte*> sources(static_cast<size_t>(x.size()));
  for (size_t k = 0; k < rounds.size(); ++k) {
    if (k + 1 < rounds.size()) post(k + 1);
    PARTITA_RETURN_IF_ERROR(x.wait(begins[k], ends[k]));
    for (const Run& run : rounds[k]) {
      const int64_t length = length_of(run, x.mine());
      if (length == 0) continue;
      for (size_t i = 0; i < peers.size(); ++i) sources[static_cast<size_t>(peers[i])] = received(k, i, run);
      sources[static_cast<size_t>(x.mine())] = source(run, x.mine());
      reduce_in_order(x.op().dtype, x.op().reduce, sources,
                      buffers[run.buffer].output + static_cast<size_t>(run.begin) * element, length);
    }
  }
  return x.wait_all();
}

// That Exchange::send cuts `bytes` into.
uint32_t messages_of(size_t bytes) {
  return static_cast<uint32_t>(std::max<size_t>(1, (bytes + kMaxMessageBytes - 1) / kMaxMessageBytes));
}

// Posts everybody's slice of `buffer` to everybody but, where it is the source of them all, `skip`. `number` counts the
// operation's messages.
void gather_slices(Exchange& x, std::byte* buffer, const std::vector<Slice>& slices, uint32_t& number, int skip = -1) {
  const auto element = static_cast<size_t>(dtype_size(x.op().dtype));
  const auto bytes = [&](int member) {
    return static_cast<size_t>(slices[static_cast<size_t>(member)].length) * element;
  };
  const auto at = [&](int member) {
    return buffer + static_cast<size_t>(slices[static_cast<size_t>(member)].begin) * element;
  };
  size_t longest = bytes(x.mine());
  for (int peer : others(x)) {
    if (peer != skip) x.send(peer, at(x.mine()), bytes(x.mine()), number);
    if (x.mine() != skip) x.recv(peer, at(peer), bytes(peer), number);
    longest = std::max(longest, bytes(peer));
  }
  number += messages_of(longest);
}

const std::byte* input_of(const CollectiveBuffers& b) {
  return static_cast<const std::byte*>(b.input == nullptr ? b.output : b.input);
}

// Everybody gets all inputs and reduces for itself.
absl::Status all_reduce_small(Exchange& x) {
  const auto element = static_cast<size_t>(dtype_size(x.op().dtype));
  const std::vector<CollectiveBuffers> buffers = buffers_of(x.op());
  std::vector<std::byte*> inputs;
  for (uint32_t b = 0; b < buffers.size(); ++b) {
    const size_t bytes = static_cast<size_t>(buffers[b].count) * element;
    inputs.push_back(x.scratch(bytes * static_cast<size_t>(x.size())));
    for (int peer : others(x)) {
      x.send(peer, input_of(buffers[b]), bytes, b);
      x.recv(peer, inputs.back() + bytes * static_cast<size_t>(peer), bytes, b);
    }
  }
  PARTITA_RETURN_IF_ERROR(x.wait_all());
  for (size_t b = 0; b < buffers.size(); ++b) {
    const size_t bytes = static_cast<size_t>(buffers[b].count) * element;
    std::vector<const std::byte*> sources;
    for (int i = 0; i < x.size(); ++i) sources.push_back(inputs[b] + bytes * static_cast<size_t>(i));
    sources[static_cast<size_t>(x.mine())] = input_of(buffers[b]);
    reduce_in_order(x.op().dtype, x.op().reduce, sources, static_cast<std::byte*>(buffers[b].output), buffers[b].count);
  }
  return absl::OkStatus();
}

absl::Status all_reduce(Exchange& x) {
  const int64_t element = dtype_size(x.op().dtype);
  int64_t bytes = 0;
  for (const CollectiveBuffers& b : buffers_of(x.op())) bytes += b.count * element;
  if (x.size() > 1 && bytes <= kSmallReduceBytes) return all_reduce_small(x);
  const std::vector<Reduction> reductions = reductions_of(x.op(), x.size(), x.mine());
  PARTITA_RETURN_IF_ERROR(reduce_slices(x, reductions));
  x.next_phase();
  uint32_t number = 0;
  for (const Reduction& r : reductions) gather_slices(x, r.output - r.of(x.mine()).begin * element, r.slices, number);
  return x.wait_all();
}

absl::Status all_gather(Exchange& x) {
  uint32_t number = 0;
  for (const CollectiveBuffers& b : buffers_of(x.op())) {
    const size_t bytes = static_cast<size_t>(b.count * dtype_size(x.op().dtype));
    auto* output = static_cast<std::byte*>(b.output);
    if (bytes > 0) std::memmove(output + bytes * static_cast<size_t>(x.mine()), b.input, bytes);
    gather_slices(x, output, equal_chunks(b.count, x.size()), number);
  }
  return x.wait_all();
}

absl::Status broadcast(Exchange& x) {
  const CollectiveOp& op = x.op();
  const size_t element = static_cast<size_t>(dtype_size(op.dtype)), bytes = static_cast<size_t>(op.count) * element;
  auto* data = static_cast<std::byte*>(op.output);
  const bool whole = bytes <= kSmallBroadcastBytes || x.size() == 2;
  const std::vector<Slice> slices =
      whole ? std::vector<Slice>(static_cast<size_t>(x.size()), {0, op.count}) : even_slices(op.count, x.size());
  const auto part = [&](int member) { return slices[static_cast<size_t>(member)]; };
  if (x.mine() == op.root) {
    for (int peer : others(x))
      x.send(peer, data + static_cast<size_t>(part(peer).begin) * element,
             static_cast<size_t>(part(peer).length) * element);
  } else {
    x.recv(op.root, data + static_cast<size_t>(part(x.mine()).begin) * element,
           static_cast<size_t>(part(x.mine()).length) * element);
  }
  PARTITA_RETURN_IF_ERROR(x.wait_all());
  if (whole) return absl::OkStatus();
  x.next_phase();
  uint32_t number = 0;
  gather_slices(x, data, slices, number, op.root);
  return x.wait_all();
}

absl::Status all_to_all(Exchange& x) {
  uint32_t number = 0;
  for (const CollectiveBuffers& b : buffers_of(x.op())) {
    const size_t bytes = static_cast<size_t>(b.count * dtype_size(x.op().dtype));
    const auto* input = static_cast<const std::byte*>(b.input);
    auto* output = static_cast<std::byte*>(b.output);
    const auto offset = [&](int member) { return bytes * static_cast<size_t>(member); };
    if (bytes > 0) std::memcpy(output + offset(x.mine()), input + offset(x.mine()), bytes);
    for (int peer : others(x)) {
      x.send(peer, input + offset(peer), bytes, number);
      x.recv(peer, output + offset(peer), bytes, number);
    }
    number += messages_of(bytes);
  }
  return x.wait_all();
}

absl::Status reduce_scatter(Exchange& x) { return reduce_slices(x, reductions_of(x.op(), x.size(), x.mine())); }

absl::Status barrier(Exchange& x) {
  for (int peer : others(x)) {
    x.send(peer, nullptr, 0);
    x.recv(peer, nullptr, 0);
  }
  return x.wait_all();
}

}  // namespace

Exchange::Exchange(Transport& transport, const Group& group, CollectiveOp op,
                   const std::atomic<std::chrono::milliseconds>& timeout, std::function<absl::Status()> tick)
    : transport_(transport),
      group_(group),
      op_(std::move(op)),
      timeout_(timeout),
      tick_(std::move(tick)),
      moved_(Clock::now()) {
  envelope_.group = group.id;
  envelope_.step_id = op_.step_id;
  if (op_.kind != CollectiveKind::kBarrier) {
    for (const CollectiveBuffers& b : buffers_of(op_)) envelope_.count += b.count;
  }
  // A permute may meet a send or a recv.
  envelope_.kind = static_cast<uint8_t>(std::min(op_.kind, CollectiveKind::kSend));
  if (op_.kind != CollectiveKind::kBarrier) envelope_.dtype = static_cast<uint8_t>(op_.dtype);
  const bool reduces = op_.kind == CollectiveKind::kAllReduce || op_.kind == CollectiveKind::kReduceScatter;
  if (reduces) envelope_.reduce = static_cast<uint8_t>(op_.reduce);
}

void Exchange::post(int member, std::byte* data, size_t bytes, uint32_t piece, bool is_send) {
  for (size_t offset = 0; offset < bytes || offset == 0; offset += kMaxMessageBytes, ++piece) {
    Entry& entry = transfers_.emplace_back();
    entry.is_send = is_send;
    entry.transfer.peer = group_.ranks[static_cast<size_t>(member)];
    entry.transfer.envelope = envelope_;
    entry.transfer.envelope.piece = piece;
    entry.transfer.data = data + offset;
    entry.transfer.size = std::min(bytes - offset, kMaxMessageBytes);
    is_send ? transport_.post_send(entry.transfer) : transport_.post_recv(entry.transfer);
  }
}

void Exchange::send(int member, const std::byte* data, size_t bytes, uint32_t piece) {
  post(member, const_cast<std::byte*>(data), bytes, piece, true);
}
void Exchange::recv(int member, std::byte* data, size_t bytes, uint32_t piece) {
  post(member, data, bytes, piece, false);
}

bool Exchange::finished() {
  bool moved = false, open = false;
  for (size_t i = first_open_; i < transfers_.size(); ++i) {
    Entry& entry = transfers_[i];
    if (!entry.transfer.done.load(std::memory_order_acquire)) {
      open = true;
      continue;
    }
    moved |= !entry.counted;
    entry.counted = true;
    if (!open) first_open_ = i + 1;
  }
  if (moved) moved_ = Clock::now();
  return !open;
}

absl::Status Exchange::overdue(SteadyTime now) {
  return now < moved_ + timeout_.load() ? absl::OkStatus() : timeout_error();
}

absl::Status Exchange::wait(size_t begin, size_t end) {
  const auto done = [&] {
    for (; begin < end && transfers_[begin].transfer.done.load(std::memory_order_acquire); ++begin) {
    }
    return begin == end;
  };
  while (!done()) {
    // Not straight to the deadline: tick_ looks after others' deadlines.
    PARTITA_RETURN_IF_ERROR(transport_.progress(std::min(moved_ + timeout_.load(), Clock::now() + kTick)));
    PARTITA_RETURN_IF_ERROR(tick_());
    if (!finished()) PARTITA_RETURN_IF_ERROR(overdue(Clock::now()));
  }
  return absl::OkStatus();
}

std::vector<int> Exchange::missing() const {
  std::vector<int> silent, deaf;
  for (const Entry& entry : transfers_) {
    if (!entry.transfer.done) (entry.is_send ? deaf : silent).push_back(entry.transfer.peer);
  }
  std::vector<int>& ranks = silent.empty() ? deaf : silent;
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

absl::Status Exchange::timeout_error() const {
  const bool receives =
      std::any_of(transfers_.begin(), transfers_.end(), [](const Entry& e) { return !e.transfer.done && !e.is_send; });
  const std::vector<int> ranks = missing();
  std::string text =
      cat(receives ? "nothing from " : "no receiver at ", describe_ranks(ranks), " for ",
          std::chrono::duration<double>(timeout_.load()).count(), " s, in a group of ", describe_ranks(group_.ranks));
  for (int peer : ranks) {
    if (const std::string more = transport_.diagnose(peer); !more.empty()) append(text, "; ", more);
  }
  return lost_error(text, {cat(describe_ranks(ranks), ranks.size() == 1 ? " does" : " do", " not answer for ",
                               std::chrono::duration<double>(timeout_.load()).count(), " s"),
                           false});
}

absl::Status check_operation(const CollectiveOp& op, const Group& group) {
  const int n = group.size();
  const auto bad = [](const auto&... parts) { return absl::InvalidArgumentError(cat(parts...)); };
  if (op.kind > CollectiveKind::kPermute) return bad("unknown operation ", static_cast<int>(op.kind));
  if (group.mine < 0) return bad("this rank is not in the group of ", describe_ranks(group.ranks));
  if (op.kind == CollectiveKind::kBarrier) return absl::OkStatus();
  const int64_t element = dtype_size(op.dtype);
  if (element == 0) return bad("the dtype is not valid");
  const std::vector<CollectiveBuffers> buffers = buffers_of(op);
  int64_t room = std::numeric_limits<int64_t>::max() / element / n;
  for (const CollectiveBuffers& b : buffers) {
    if (b.count < 0 || b.count > room) return bad("count ", b.count, " is out of range");
    room -= b.count;
  }
  if (!op.more.empty() && op.kind != CollectiveKind::kAllReduce && op.kind != CollectiveKind::kReduceScatter &&
      op.kind != CollectiveKind::kAllGather && op.kind != CollectiveKind::kAllToAll)
    return bad(buffers.size(), " buffers, expected one");
  const bool reduces = op.kind == CollectiveKind::kAllReduce || op.kind == CollectiveKind::kReduceScatter;
  if (reduces && !can_reduce(op.dtype, op.reduce))
    return bad("cannot reduce ", dtype_name(op.dtype), " by ", reduce_name(op.reduce));
  if (op.kind == CollectiveKind::kBroadcast && (op.root < 0 || op.root >= n))
    return bad("root ", op.root, " is outside the group of ", n);
  const bool sends = op.kind == CollectiveKind::kSend || (op.kind == CollectiveKind::kPermute && op.to != kNoPeer);
  const bool receives = op.kind == CollectiveKind::kRecv || (op.kind == CollectiveKind::kPermute && op.from != kNoPeer);
  if (sends && (op.to < 0 || op.to >= n)) return bad("destination ", op.to, " is outside the group of ", n);
  if (receives && (op.from < 0 || op.from >= n)) return bad("source ", op.from, " is outside the group of ", n);
  if (op.kind != CollectiveKind::kPermute && ((sends && op.to == group.mine) || (receives && op.from == group.mine))) {
    return bad("a rank cannot send to itself; use permute");
  }
  if (sends != receives && op.kind == CollectiveKind::kPermute && (op.to == group.mine || op.from == group.mine)) {
    return bad("a permute with itself needs both sides");
  }
  if (sends && receives && (op.to == group.mine) != (op.from == group.mine))
    return bad("a permute with itself needs both sides");
  const bool point_to_point = op.kind >= CollectiveKind::kSend;
  const bool reads =
      point_to_point ? sends : op.kind != CollectiveKind::kAllReduce && op.kind != CollectiveKind::kBroadcast;
  const bool writes = point_to_point ? receives : true;
  for (const CollectiveBuffers& b : buffers) {
    if (b.count > 0 && reads && b.input == nullptr) return bad("input is null");
    if (b.count > 0 && writes && b.output == nullptr) return bad("output is null");
  }
  return absl::OkStatus();
}

absl::Status run_collective(Exchange& exchange) {
  const std::vector<CollectiveBuffers> buffers = buffers_of(exchange.op());
  const bool empty = std::all_of(buffers.begin(), buffers.end(), [](const auto& b) { return b.count == 0; });
  if (empty && exchange.op().kind != CollectiveKind::kBarrier) return absl::OkStatus();
  switch (exchange.op().kind) {
    case CollectiveKind::kBarrier:
      return barrier(exchange);
    case CollectiveKind::kAllReduce:
      return all_reduce(exchange);
    case CollectiveKind::kReduceScatter:
      return reduce_scatter(exchange);
    case CollectiveKind::kAllGather:
      return all_gather(exchange);
    case CollectiveKind::kBroadcast:
      return broadcast(exchange);
    case CollectiveKind::kAllToAll:
      return all_to_all(exchange);
    case CollectiveKind::kSend:
    case CollectiveKind::kRecv:
    case CollectiveKind::kPermute:
      break;
  }
  return absl::InternalError("not a collective");
}

void post_point_to_point(Exchange& exchange, Group& group) {
  const CollectiveOp& op = exchange.op();
  if (op.count == 0) return;
  const size_t bytes = static_cast<size_t>(op.count * dtype_size(op.dtype));
  const bool sends = op.kind != CollectiveKind::kRecv && op.to != kNoPeer;
  const bool receives = op.kind != CollectiveKind::kSend && op.from != kNoPeer;
  if (sends && receives && op.to == group.mine) {
    std::memmove(op.output, op.input, bytes);
    return;
  }
  if (sends) {
    exchange.set_sequence(group.sent[op.to]++);
    exchange.send(op.to, static_cast<const std::byte*>(op.input), bytes);
  }
  if (receives) {
    exchange.set_sequence(group.received[op.from]++);
    exchange.recv(op.from, static_cast<std::byte*>(op.output), bytes);
  }
}

}  // namespace partita::runtime
