// Loads and stores, and copies into shared memory (PTX ISA, "ld", "st", "cp.async").
#include <algorithm>
#include <cstring>

#include "tests/ptx/decode.h"
#include "tests/ptx/lanes.h"
#include "tests/ptx/traffic.h"

namespace partita::ptx {
namespace {

using enum Type;

enum class Space { kGlobal, kShared, kLocal };

// The row of addresses is 32 or 64 bits wide: at[12] has the one, at[13] the other.
uint64_t address_in(Warp& w, const Instruction& i, int lane) {
  const uint64_t base = i.at[13] != kNoRow   ? w.row<uint64_t>(i.at[13])[lane]
                        : i.at[12] != kNoRow ? uint64_t{w.row<uint32_t>(i.at[12])[lane]}
                                             : 0;
  return base + static_cast<uint64_t>(i.value);
}

template <Space space>
std::byte* memory_at(Warp& w, const Instruction& i, int lane, uint64_t address, int each, Access access) {
  const int bytes = each * i.count;
  if constexpr (space == Space::kGlobal) return w.global(i, lane, address, bytes, each, access);
  if constexpr (space == Space::kShared) return w.shared(i, lane, address, bytes, each, access);
  return w.local(i, lane, address, bytes);
}

template <Space space>
void count(Warp& w, const Instruction& i, uint32_t lanes, int each, bool reads) {
  Running& r = w.running();
  if constexpr (space == Space::kLocal) {
    ++r.counters.local_accesses;
  } else if (r.options.counts_traffic) {
    std::array<uint64_t, kLanes> addresses;
    for_lanes(lanes, [&](int l) { addresses[static_cast<size_t>(l)] = address_in(w, i, l); });
    if constexpr (space == Space::kGlobal)
      count_global(r, w.block().number, addresses, lanes, each * i.count, reads);
    else
      count_passes(r.counters, addresses, lanes, each * i.count);
  }
}

// M: an element in memory, R: in its register, which may be wider.
template <Space space, typename M, typename R>
void run_load(Warp& w, const Instruction& i, uint32_t lanes) {
  count<space>(w, i, lanes, sizeof(M), true);
  for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    const int l = std::countr_zero(rest);
    const std::byte* from = memory_at<space>(w, i, l, address_in(w, i, l), sizeof(M), Access::kRead);
    if (from == nullptr) return;
    M values[4];
    std::memcpy(values, from, sizeof(M) * i.count);
    for (size_t v = 0; v < i.count; ++v) {
      if (i.at[v] != kNoRow) w.row<R>(i.at[v])[l] = static_cast<R>(values[v]);
    }
  }
}
template <Space space, typename M, typename R>
void run_store(Warp& w, const Instruction& i, uint32_t lanes) {
  count<space>(w, i, lanes, sizeof(M), false);
  for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    const int l = std::countr_zero(rest);
    std::byte* to = memory_at<space>(w, i, l, address_in(w, i, l), sizeof(M), Access::kWrite);
    if (to == nullptr) return;
    M values[4];
    for (size_t v = 0; v < i.count; ++v) values[v] = static_cast<M>(w.row<R>(i.at[v])[l]);
    std::memcpy(to, values, sizeof(M) * i.count);
  }
}

// Of parameters: the same for all lanes but where they are addressed by a register.
template <typename M, typename R>
void run_load_parameter(Warp& w, const Instruction& i, uint32_t lanes) {
  const std::vector<std::byte>& all = w.running().parameters;
  for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    const int l = std::countr_zero(rest);
    const uint64_t at = address_in(w, i, l);
    if (at % (sizeof(M) * i.count) != 0 || at + sizeof(M) * i.count > all.size())
      return w.fail(i, l, absl::StatusCode::kOutOfRange, "is outside of the parameters, or not aligned");
    for (size_t v = 0; v < i.count; ++v) {
      M value;
      std::memcpy(&value, all.data() + at + v * sizeof(M), sizeof(M));
      w.row<R>(i.at[v])[l] = static_cast<R>(value);
    }
  }
}

enum class What { kGlobalLoad, kGlobalStore, kSharedLoad, kSharedStore, kLocalLoad, kLocalStore, kParameterLoad };
template <typename M, typename R>
Run access_of(What what) {
  switch (what) {
    case What::kGlobalLoad:
      return run_load<Space::kGlobal, M, R>;
    case What::kGlobalStore:
      return run_store<Space::kGlobal, M, R>;
    case What::kSharedLoad:
      return run_load<Space::kShared, M, R>;
    case What::kSharedStore:
      return run_store<Space::kShared, M, R>;
    case What::kLocalLoad:
      return run_load<Space::kLocal, M, R>;
    case What::kLocalStore:
      return run_store<Space::kLocal, M, R>;
    default:
      return run_load_parameter<M, R>;
  }
}
template <typename M>
Run into_register(What what, int bytes) {
  using R32 = std::conditional_t<std::is_signed_v<M>, int32_t, uint32_t>;
  using R64 = std::conditional_t<std::is_signed_v<M>, int64_t, uint64_t>;
  using R16 = std::conditional_t<std::is_signed_v<M>, int16_t, uint16_t>;
  if (bytes == 8) return access_of<M, R64>(what);
  if constexpr (sizeof(M) <= 4) {
    if (bytes == 4) return access_of<M, R32>(what);
  }
  if constexpr (sizeof(M) <= 2) {
    if (bytes == 2) return access_of<M, R16>(what);
  }
  return nullptr;
}
Run access_run(What what, Type t, int register_width) {
  switch (bytes_of(t)) {
    case 1:
      return is_signed(t) ? into_register<int8_t>(what, register_width) : into_register<uint8_t>(what, register_width);
    case 2:
      return is_signed(t) ? into_register<int16_t>(what, register_width)
                          : into_register<uint16_t>(what, register_width);
    case 4:
      return is_signed(t) ? into_register<int32_t>(what, register_width)
                          : into_register<uint32_t>(what, register_width);
    default:
      return into_register<uint64_t>(what, register_width);
  }
}

// The address of an operand [base+offset].
void set_address(Decoder& d, const Operand& o, const std::map<std::string, int64_t>& variables) {
  if (o.kind != Operand::Kind::kAddress) return d.refuse("no address");
  d.made.value = static_cast<int64_t>(o.bits);
  if (o.name.empty()) return;
  if (auto at = d.address_of(o.name, variables)) {
    d.made.value += *at;
    return;
  }
  Operand base;
  base.name = o.name;
  const auto type = d.type_of(base);
  if (!type) return d.refuse("no register or variable: " + o.name);
  d.made.at[register_bytes(*type) == 8 ? 13 : 12] = d.row_of(base, *type, false);
}

// Of a function's own parameters and what calls are given: a move.
void move_parameter(Decoder& d, Type t, bool loads) {
  Operand variable;
  variable.name = d.operand_at(loads ? 1 : 0).name;
  if (d.operand_at(loads ? 1 : 0).bits != 0 || bytes_of(t) < 4) return d.refuse("a part of a parameter");
  const uint32_t row = d.row_of(variable, t, false);
  d.made.at[0] = loads ? d.result(0, t) : row;
  d.made.at[1] = loads ? row : d.source(1, t);
  struct Same {
    static uint32_t of(uint32_t x) { return x; }
    static uint64_t of(uint64_t x) { return x; }
  };
  d.finish(Kind::kMove, Flow::kNext,
           bytes_of(t) == 8 ? run_lanes<Same, uint64_t, uint64_t> : run_lanes<Same, uint32_t, uint32_t>, 2);
}

void access(Decoder& d, bool loads) {
  What what = What::kParameterLoad;
  Kind kind = Kind::kParameter;
  const bool parameter = d.take("param");
  if (!parameter) {
    if (d.take("global")) {
      what = loads ? What::kGlobalLoad : What::kGlobalStore;
      kind = Kind::kGlobal;
    } else if (d.take("shared")) {
      what = loads ? What::kSharedLoad : What::kSharedStore;
      kind = Kind::kShared;
    } else if (d.take("local")) {
      what = loads ? What::kLocalLoad : What::kLocalStore;
      kind = Kind::kLocal;
    } else {
      return d.refuse("a space that is not known");
    }
  }
  if (loads) d.take("nc");
  const int count = d.take("v2") ? 2 : d.take("v4") ? 4 : 1;
  const auto type = d.take_type();
  if (!type || *type == kPred) return d.refuse("unknown variant");
  const Operand& address = d.operand_at(loads ? 1 : 0);
  const Operand& value = d.operand_at(loads ? 0 : 1);
  if (parameter && d.names().in_registers.count(address.name) > 0) return move_parameter(d, *type, loads);
  if (parameter && !loads) return d.refuse("no parameter of a call");
  const auto& variables = kind == Kind::kShared  ? d.names().shared
                          : kind == Kind::kLocal ? d.names().local
                                                 : d.names().parameters;
  set_address(d, address, kind == Kind::kGlobal ? std::map<std::string, int64_t>{} : variables);
  d.made.count = static_cast<uint8_t>(count);
  std::vector<Operand> parts = value.kind == Operand::Kind::kList ? value.parts : std::vector<Operand>{value};
  if (static_cast<int>(parts.size()) != count) return d.refuse("another number of elements");
  int width = register_bytes(*type);
  for (size_t k = 0; k < parts.size(); ++k) {
    if (loads && parts[k].name == "_") continue;
    const auto held = d.type_of(parts[k]);
    if (held) width = register_bytes(*held);
    d.made.at[k] = held ? d.wide_row(parts[k], *type) : d.row_of(parts[k], *type, !loads);
  }
  d.finish(kind, Flow::kMemory, access_run(what, *type, width), 2);
}
void load(Decoder& d) { access(d, true); }
void store(Decoder& d) { access(d, false); }

// cp.async: to shared [at 12 or 13], from global at[0]; at[1]: how many bytes exist, else all.
void run_copy(Warp& w, const Instruction& i, uint32_t lanes) {
  Running& r = w.running();
  const int bytes = static_cast<int>(i.at[2]);
  if (r.options.counts_traffic) {
    std::array<uint64_t, kLanes> addresses{};
    uint32_t existing = 0;
    for_lanes(lanes, [&](int l) {
      addresses[static_cast<size_t>(l)] = w.row<uint64_t>(i.at[0])[l] + i.at[3];
      existing |= (i.at[1] == kNoRow || w.row<uint32_t>(i.at[1])[l] != 0 ? uint32_t{1} : 0) << l;
    });
    count_global(r, w.block().number, addresses, existing, bytes, true);
    for_lanes(lanes, [&](int l) { addresses[static_cast<size_t>(l)] = address_in(w, i, l); });
    count_passes(r.counters, addresses, lanes, bytes);
  }
  for (uint32_t rest = lanes; rest != 0 && r.fault.ok(); rest &= rest - 1) {
    const int l = std::countr_zero(rest);
    AsyncCopy copy{.to = address_in(w, i, l), .bytes = bytes, .existing = bytes};
    if (i.at[1] != kNoRow) copy.existing = static_cast<int>(std::min<uint32_t>(w.row<uint32_t>(i.at[1])[l], i.at[2]));
    const uint64_t from = w.row<uint64_t>(i.at[0])[l] + i.at[3];
    if (from % static_cast<uint64_t>(bytes) != 0 || copy.to % static_cast<uint64_t>(bytes) != 0 ||
        copy.to + static_cast<uint64_t>(bytes) > w.block().shared.size())
      return w.fail(i, l, absl::StatusCode::kOutOfRange, "copies to or from where it must not, or not aligned");
    if (copy.existing != 0) {
      copy.from = w.global(i, l, from, copy.existing, std::min(4, copy.existing), Access::kRead);
      if (copy.from == nullptr) return;
    }
    w.begin_copy(i, l, copy);
  }
}
void run_commit(Warp& w, const Instruction&, uint32_t lanes) { w.commit_copies(lanes); }
void run_wait(Warp& w, const Instruction& i, uint32_t lanes) { w.wait_for_copies(lanes, static_cast<size_t>(i.value)); }
void run_wait_all(Warp& w, const Instruction&, uint32_t lanes) {
  w.commit_copies(lanes);
  w.wait_for_copies(lanes, 0);
}

void copy(Decoder& d) {
  if (!d.take("async")) return d.refuse("only cp.async is known");
  if (d.take("commit_group")) return d.finish(Kind::kAsyncCopy, Flow::kNext, run_commit, 0);
  if (d.take("wait_all")) return d.finish(Kind::kAsyncCopy, Flow::kNext, run_wait_all, 0);
  if (d.take("wait_group")) {
    d.made.value = static_cast<int64_t>(d.operand_at(0).bits);
    return d.finish(Kind::kAsyncCopy, Flow::kNext, run_wait, 1);
  }
  const bool cg = d.take("cg");
  const bool known = (cg || d.take("ca")) && d.take("shared") && d.take("global");
  set_address(d, d.operand_at(0), d.names().shared);
  const Operand& from = d.operand_at(1);
  d.made.at[0] = d.row_of({.name = from.name}, kU64, false);
  const uint64_t bytes = d.operand_at(2).bits;
  d.made.at[2] = static_cast<uint32_t>(bytes), d.made.at[3] = static_cast<uint32_t>(from.bits);
  if (d.operands() == 4) d.made.at[1] = d.source(3, kU32);
  const bool fits = bytes == 16 || (!cg && (bytes == 4 || bytes == 8));
  d.finish(Kind::kAsyncCopy, Flow::kMemory, known && fits ? run_copy : nullptr, d.operands() == 4 ? 4 : 3);
}

}  // namespace

void add_memory(Decoders& to) {
  to["ld"] = load;
  to["st"] = store;
  to["cp"] = copy;
}

}  // namespace partita::ptx
