// Atomic operations (PTX ISA, "atom", "red"): on 32 and 64 bits of global and shared memory, relaxed, of any scope.
#include <cstring>

#include "tests/ptx/decode.h"
#include "tests/ptx/lanes.h"
#include "tests/ptx/traffic.h"

namespace partita::ptx {
namespace {

using enum Type;

enum class Update : int64_t { kAdd, kMin, kMax, kAnd, kOr, kXor, kExchange, kCompareAndSwap };

template <typename T>
T updated(Update u, T old, T b, T c) {
  switch (u) {
    case Update::kAdd:
      if constexpr (std::is_floating_point_v<T>)
        return old + b;
      else
        return static_cast<T>(static_cast<uint64_t>(old) + static_cast<uint64_t>(b));
    case Update::kMin:
      return least(old, b);
    case Update::kMax:
      return greatest(old, b);
    case Update::kExchange:
      return b;
    case Update::kCompareAndSwap:
      return old == b ? c : old;
    default:
      if constexpr (std::is_integral_v<T>)
        return u == Update::kAnd ? T(old & b) : u == Update::kOr ? T(old | b) : T(old ^ b);
      return old;
  }
}

// at: the old value or none, b, c, and the address at [13]; shared memory's at [12].
template <typename T>
void run_atomic(Warp& w, const Instruction& i, uint32_t lanes) {
  if (Running& r = w.running(); r.options.counts_traffic && i.at[13] != kNoRow) {
    std::array<uint64_t, kLanes> addresses{};
    for_lanes(lanes, [&](int l) {
      addresses[static_cast<size_t>(l)] = w.row<uint64_t>(i.at[13])[l] + static_cast<uint64_t>(i.value);
    });
    for (bool reads : {true, false}) count_global(r, w.block().number, addresses, lanes, sizeof(T), reads);
  }
  for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    const int l = std::countr_zero(rest);
    const auto offset = static_cast<uint64_t>(i.value);
    std::byte* at = i.at[13] != kNoRow
                        ? w.global(i, l, w.row<uint64_t>(i.at[13])[l] + offset, sizeof(T), sizeof(T), Access::kAtomic)
                        : w.shared(i, l, w.row<uint32_t>(i.at[12])[l] + offset, sizeof(T), sizeof(T), Access::kAtomic);
    if (at == nullptr) return;
    T old;
    std::memcpy(&old, at, sizeof old);
    const T b = w.row<T>(i.at[1])[l], c = i.at[2] == kNoRow ? b : w.row<T>(i.at[2])[l];
    const T made = updated(static_cast<Update>(i.at[11]), old, b, c);
    std::memcpy(at, &made, sizeof made);
    if (i.at[0] != kNoRow) w.row<T>(i.at[0])[l] = old;
  }
}

void atomic(Decoder& d, bool returns) {
  constexpr std::pair<std::string_view, Update> kUpdates[] = {
      {"add", Update::kAdd}, {"min", Update::kMin}, {"max", Update::kMax},       {"and", Update::kAnd},
      {"or", Update::kOr},   {"xor", Update::kXor}, {"exch", Update::kExchange}, {"cas", Update::kCompareAndSwap}};
  d.take("relaxed");
  d.take_any("cta", "gpu");
  const bool global = d.take("global");
  bool known = global || d.take("shared");
  bool named = false;
  for (const auto& [name, update] : kUpdates) {
    if (!named && d.take(name)) named = true, d.made.at[11] = static_cast<uint32_t>(update);
  }
  const auto type = d.take_type();
  if (!named || !type) return d.refuse("unknown variant");
  const auto update = static_cast<Update>(d.made.at[11]);
  const bool swaps = update == Update::kCompareAndSwap;
  const bool of_bits = *type == kB32 || *type == kB64;
  known = known && of_bits == (update >= Update::kAnd) && (returns || update < Update::kExchange);
  const size_t first = returns ? 1 : 0;
  const Operand& address = d.operand_at(first);
  d.made.value = static_cast<int64_t>(address.bits);
  d.made.at[global ? 13 : 12] = d.row_of({.name = address.name}, global ? kU64 : kU32, false);
  if (returns) d.made.at[0] = d.result(0, *type);
  d.made.at[1] = d.source(first + 1, *type);
  if (swaps) d.made.at[2] = d.source(first + 2, *type);
  Run run = nullptr;
  if (*type == kU32 || *type == kB32) run = run_atomic<uint32_t>;
  if (*type == kS32) run = run_atomic<int32_t>;
  if (*type == kU64 || *type == kB64) run = run_atomic<uint64_t>;
  if (*type == kS64 && update != Update::kAdd) run = run_atomic<int64_t>;
  if (*type == kF32 && update == Update::kAdd) run = run_atomic<float>;
  if (*type == kF64 && update == Update::kAdd) run = run_atomic<double>;
  d.finish(Kind::kAtomic, Flow::kMemory, known ? run : nullptr, first + (swaps ? 3 : 2));
}
void atomic_with_result(Decoder& d) { atomic(d, true); }
void reduction(Decoder& d) { atomic(d, false); }

}  // namespace

void add_atomics(Decoders& to) {
  to["atom"] = atomic_with_result;
  to["red"] = reduction;
}

}  // namespace partita::ptx
