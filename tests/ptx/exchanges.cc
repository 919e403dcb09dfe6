// What lanes of a warp do together, and barriers (PTX ISA, "shfl.sync", "vote.sync", "bar", "ldmatrix", "mma").
#include <cstring>

#include "tests/ptx/decode.h"
#include "tests/ptx/lanes.h"
#include "tests/ptx/traffic.h"

namespace partita::ptx {
namespace {

using enum Type;

enum class Mode : int64_t { kUp, kDown, kButterfly, kIndex };

// at: result, result's predicate, value, b, c, and the member mask at [13].
void run_shuffle(Warp& w, const Instruction& i, uint32_t lanes) {
  std::array<uint32_t, kLanes> given;
  std::memcpy(given.data(), w.row<uint32_t>(i.at[2]), sizeof given);
  uint32_t* to = w.row<uint32_t>(i.at[0]);
  const uint32_t *bs = w.row<uint32_t>(i.at[3]), *cs = w.row<uint32_t>(i.at[4]);
  uint32_t in_range = 0;
  std::array<uint32_t, kLanes> made;
  for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const int b = static_cast<int>(bs[lane] & 31), limit = static_cast<int>(cs[lane] & 31),
              segment = static_cast<int>(cs[lane] >> 8 & 31);
    const int last = (lane & segment) | (limit & ~segment), first = lane & segment;
    int from = lane;
    bool fits = false;
    switch (static_cast<Mode>(i.value)) {
      case Mode::kUp:
        from = lane - b;
        fits = from >= last;
        break;
      case Mode::kDown:
        from = lane + b;
        fits = from <= last;
        break;
      case Mode::kButterfly:
        from = lane ^ b;
        fits = from <= last;
        break;
      case Mode::kIndex:
        from = first | (b & ~segment);
        fits = from <= last;
        break;
    }
    if (!fits) from = lane;
    if ((lanes >> from & 1) == 0)
      return w.fail(i, lane, absl::StatusCode::kFailedPrecondition, "reads a lane that takes no part");
    made[static_cast<size_t>(lane)] = given[static_cast<size_t>(from)];
    in_range |= uint32_t{fits} << lane;
  }
  for_lanes(lanes, [&](int l) { to[l] = made[static_cast<size_t>(l)]; });
  if (i.at[1] != kNoRow) *w.mask(i.at[1]) = (*w.mask(i.at[1]) & ~lanes) | (in_range & lanes);
}
void shuffle(Decoder& d) {
  constexpr std::pair<std::string_view, Mode> kModes[] = {
      {"up", Mode::kUp}, {"down", Mode::kDown}, {"bfly", Mode::kButterfly}, {"idx", Mode::kIndex}};
  if (!d.take("sync")) return d.refuse("only .sync is known");
  bool known = false;
  for (const auto& [name, mode] : kModes) {
    if (d.take(name)) known = true, d.made.value = static_cast<int64_t>(mode);
  }
  known = known && d.take("b32");
  const Operand& to = d.operand_at(0);
  if (to.kind == Operand::Kind::kPair) {
    d.made.at[0] = d.row_of(to.parts[0], kB32, false);
    d.made.at[1] = d.row_of(to.parts[1], kPred, false);
  } else {
    d.made.at[0] = d.result(0, kB32);
  }
  for (size_t k = 1; k < 4; ++k) d.made.at[k + 1] = d.source(k, kB32);
  d.made.at[13] = d.source(4, kB32);
  d.finish(Kind::kExchange, Flow::kTogether, known ? run_shuffle : nullptr, 5);
}

enum class Vote : int64_t { kAll, kAny, kUniform, kBallot };
void run_vote(Warp& w, const Instruction& i, uint32_t lanes) {
  const uint32_t ayes = (i.at[2] != kNoRow ? ~*w.mask(i.at[1]) : *w.mask(i.at[1])) & lanes;
  if (static_cast<Vote>(i.value) == Vote::kBallot) {
    uint32_t* to = w.row<uint32_t>(i.at[0]);
    return for_lanes(lanes, [=](int l) { to[l] = ayes; });
  }
  const bool all = ayes == lanes, any = ayes != 0;
  const bool result = static_cast<Vote>(i.value) == Vote::kAll   ? all
                      : static_cast<Vote>(i.value) == Vote::kAny ? any
                                                                 : all || !any;
  uint32_t& to = *w.mask(i.at[0]);
  to = (to & ~lanes) | (result ? lanes : 0);
}
void vote(Decoder& d) {
  constexpr std::pair<std::string_view, Vote> kVotes[] = {
      {"all", Vote::kAll}, {"any", Vote::kAny}, {"uni", Vote::kUniform}, {"ballot", Vote::kBallot}};
  bool known = d.take("sync"), ballot = false;
  for (const auto& [name, vote] : kVotes) {
    if (d.take(name)) d.made.value = static_cast<int64_t>(vote), ballot = vote == Vote::kBallot;
  }
  known = known && d.take(ballot ? "b32" : "pred");
  d.made.at[0] = d.result(0, ballot ? kB32 : kPred);
  d.made.at[1] = d.source(1, kPred);
  d.made.at[13] = d.source(2, kB32);
  d.finish(Kind::kExchange, Flow::kTogether, known ? run_vote : nullptr, 3);
}

void run_active(Warp& w, const Instruction& i, uint32_t lanes) {
  uint32_t* to = w.row<uint32_t>(i.at[0]);
  for_lanes(lanes, [=](int l) { to[l] = lanes; });
}
void active(Decoder& d) {
  const bool known = d.take("b32");
  d.made.at[0] = d.result(0, kB32);
  d.finish(Kind::kExchange, Flow::kNext, known ? run_active : nullptr, 1);
}

// bar.sync a{, b}; bar.arrive a, b; bar.warp.sync mask.
void run_barrier(Warp& w, const Instruction& i, uint32_t lanes) {
  const int first = std::countr_zero(lanes);
  const uint32_t count = i.at[1] == kNoRow ? 0 : w.row<uint32_t>(i.at[1])[first];
  w.block().arrive(w, i, w.row<uint32_t>(i.at[0])[first], count, i.value != 0);
}
// Memory is in order between all lanes of the warp, or, where it names fewer, between none that this can tell.
void run_warp_barrier(Warp& w, const Instruction&, uint32_t lanes) {
  if (lanes == w.live()) w.clock.known[w.index()] = w.clock.now++;
}
void barrier(Decoder& d) {
  if (d.take("warp")) {
    const bool known = d.take("sync");
    d.made.at[13] = d.source(0, kB32);
    return d.finish(Kind::kBarrier, Flow::kTogether, known ? run_warp_barrier : nullptr, 1);
  }
  d.take("cta");
  const bool waits = d.take("sync");
  const bool known = waits || (d.take("arrive") && d.operands() == 2);
  d.made.value = waits;
  d.made.at[0] = d.source(0, kB32);
  if (d.operands() == 2) d.made.at[1] = d.source(1, kB32);
  d.finish(Kind::kBarrier, Flow::kBarrier, known ? run_barrier : nullptr, d.operands() == 2 ? 2 : 1);
}

// Matrices of 8 x 8 elements of 16 bits, i.count of them: lane 8 m + r gives the address of row r of matrix m; of each,
// lane l gets elements 2 (l % 4) and the next of row l / 4, or, transposed, of column l / 4.
template <bool transposes>
void run_load_matrices(Warp& w, const Instruction& i, uint32_t) {
  Running& r = w.running();
  std::array<std::array<uint16_t, 8>, kLanes> rows;
  std::array<uint64_t, kLanes> addresses{};
  const int count = 8 * i.count;
  for (int l = 0; l < count; ++l) {
    const uint64_t address = uint64_t{w.row<uint32_t>(i.at[12])[l]} + static_cast<uint64_t>(i.value);
    addresses[static_cast<size_t>(l)] = address;
    const std::byte* from = w.shared(i, l, address, 16, 2, Access::kRead);
    if (from == nullptr) return;
    std::memcpy(rows[static_cast<size_t>(l)].data(), from, 16);
  }
  if (r.options.counts_traffic) count_passes(r.counters, addresses, count == 32 ? kAllLanes : (1u << count) - 1, 16);
  for (size_t m = 0; m < i.count; ++m) {
    uint32_t* to = w.row<uint32_t>(i.at[m]);
    for (size_t l = 0; l < kLanes; ++l) {
      const size_t a = l / 4, b = 2 * (l % 4);
      const uint16_t low = transposes ? rows[8 * m + b][a] : rows[8 * m + a][b],
                     high = transposes ? rows[8 * m + b + 1][a] : rows[8 * m + a][b + 1];
      to[l] = uint32_t{high} << 16 | low;
    }
  }
}
void load_matrices(Decoder& d) {
  bool known = d.take("sync") && d.take("aligned") && d.take("m8n8");
  const int count = d.take("x1") ? 1 : d.take("x2") ? 2 : d.take("x4") ? 4 : 0;
  const bool transposes = d.take("trans");
  known = known && count != 0 && d.take("shared") && d.take("b16");
  const Operand &to = d.operand_at(0), &from = d.operand_at(1);
  if (to.kind != Operand::Kind::kList || static_cast<int>(to.parts.size()) != count) return d.refuse("other results");
  d.made.count = static_cast<uint8_t>(count);
  for (size_t m = 0; m < to.parts.size(); ++m) d.made.at[m] = d.row_of(to.parts[m], kB32, false);
  d.made.value = static_cast<int64_t>(from.bits);
  d.made.at[12] = d.row_of({.name = from.name}, kB32, false);
  d.finish(Kind::kMatrix, Flow::kAligned,
           !known       ? nullptr
           : transposes ? run_load_matrices<true>
                        : run_load_matrices<false>,
           2);
}

// d [16, 8] = a [16, 16] b [16, 8] + c. Fragments, with g = l / 4 and t = l % 4: a: (g, 2t), (g + 8, 2t), (g, 2t + 8),
// (g + 8, 2t + 8), each with the next column; b: (2t, g), (2t + 8, g), each with the next row; c and d: (g, 2t), (g, 2t
// + 1), (g + 8, 2t), (g + 8, 2t + 1). Products are exact in float; how they are summed up is not specified.
template <typename T>
void run_multiply(Warp& w, const Instruction& i, uint32_t) {
  float a[16][16], b[16][8], c[16][8];
  const auto pair = [](uint32_t bits, float* low, float* high) {
    *low = to_float(T{static_cast<uint16_t>(bits)});
    *high = to_float(T{static_cast<uint16_t>(bits >> 16)});
  };
  for (size_t l = 0; l < kLanes; ++l) {
    const size_t g = l / 4, t = 2 * (l % 4);
    for (size_t k = 0; k < 4; ++k) {
      const size_t row = g + 8 * (k % 2), column = t + 8 * (k / 2);
      pair(w.row<uint32_t>(i.at[4 + k])[l], &a[row][column], &a[row][column + 1]);
      c[g + 8 * (k / 2)][t + k % 2] = w.row<float>(i.at[10 + k])[l];
    }
    for (size_t k = 0; k < 2; ++k) pair(w.row<uint32_t>(i.at[8 + k])[l], &b[t + 8 * k][g], &b[t + 8 * k + 1][g]);
  }
  for (size_t row = 0; row < 16; ++row) {
    for (size_t k = 0; k < 16; ++k) {
      for (size_t column = 0; column < 8; ++column) c[row][column] += a[row][k] * b[k][column];
    }
  }
  for (size_t l = 0; l < kLanes; ++l) {
    const size_t g = l / 4, t = 2 * (l % 4);
    for (size_t k = 0; k < 4; ++k) w.row<float>(i.at[k])[l] = c[g + 8 * (k / 2)][t + k % 2];
  }
}
void multiply(Decoder& d) {
  bool known =
      d.take("sync") && d.take("aligned") && d.take("m16n8k16") && d.take("row") && d.take("col") && d.take("f32");
  const bool bf16 = d.take("bf16"), f16 = !bf16 && d.take("f16");
  known = known && (bf16 ? d.take("bf16") : f16 && d.take("f16")) && d.take("f32");
  constexpr size_t kSizes[] = {4, 4, 2, 4};
  constexpr Type kTypes[] = {kF32, kB32, kB32, kF32};
  size_t at = 0;
  for (size_t k = 0; known && k < 4; ++k) {
    const Operand& o = d.operand_at(k);
    if (o.kind != Operand::Kind::kList || o.parts.size() != kSizes[k]) return d.refuse("other fragments");
    for (const Operand& part : o.parts) d.made.at[at++] = d.row_of(part, kTypes[k], k != 0);
  }
  d.finish(Kind::kMatrix, Flow::kAligned, !known ? nullptr : bf16 ? run_multiply<Bf16> : run_multiply<F16>, 4);
}

}  // namespace

void add_exchanges(Decoders& to) {
  to["shfl"] = shuffle;
  to["vote"] = vote;
  to["activemask"] = active;
  to["bar"] = barrier;
  to["barrier"] = barrier;
  to["ldmatrix"] = load_matrices;
  to["mma"] = multiply;
}

}  // namespace partita::ptx
