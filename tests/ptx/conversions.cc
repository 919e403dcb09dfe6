// Moves and conversions (PTX ISA, "Data Movement and Conversion Instructions": mov, cvt, cvta).
#include <cstring>

#include "tests/ptx/decode.h"
#include "tests/ptx/lanes.h"

namespace partita::ptx {
namespace {

using enum Type;

template <typename T>
void run_move(Warp& w, const Instruction& i, uint32_t lanes) {
  T* to = w.row<T>(i.at[0]);
  const T* from = w.row<T>(i.at[1]);
  for_lanes(lanes, [=](int l) { to[l] = from[l]; });
}
void run_move_predicate(Warp& w, const Instruction& i, uint32_t lanes) {
  uint32_t& to = *w.mask(i.at[0]);
  to = (to & ~lanes) | (*w.mask(i.at[1]) & lanes);
}
Run move_of(Type t) {
  switch (register_bytes(t)) {
    case 2:
      return run_move<uint16_t>;
    case 8:
      return run_move<uint64_t>;
    default:
      return t == kPred ? run_move_predicate : run_move<uint32_t>;
  }
}

// mov {a, b, …}, d and mov d, {a, b, …}: `count` parts, the low one first.
template <typename Part, typename Whole>
void run_unpack(Warp& w, const Instruction& i, uint32_t lanes) {
  const Whole* whole = w.row<Whole>(i.at[13]);
  for (int p = 0; p < i.count; ++p) {
    Part* part = w.row<Part>(i.at[static_cast<size_t>(p)]);
    for_lanes(lanes,
              [=](int l) { part[l] = static_cast<Part>(whole[l] >> (8 * sizeof(Part) * static_cast<size_t>(p))); });
  }
}
template <typename Part, typename Whole>
void run_pack(Warp& w, const Instruction& i, uint32_t lanes) {
  Whole* whole = w.row<Whole>(i.at[13]);
  for_lanes(lanes, [&](int l) {
    Whole made = 0;
    for (int p = 0; p < i.count; ++p)
      made |= static_cast<Whole>(Whole{w.row<Part>(i.at[static_cast<size_t>(p)])[l]}
                                 << (8 * sizeof(Part) * static_cast<size_t>(p)));
    whole[l] = made;
  });
}
void move_parts(Decoder& d, Type t) {
  const bool unpacks = d.operand_at(0).kind == Operand::Kind::kList;
  const Operand& list = d.operand_at(unpacks ? 0 : 1);
  d.made.at[13] = unpacks ? d.source(1, t) : d.result(0, t);
  d.made.count = static_cast<uint8_t>(list.parts.size());
  const int bytes = bytes_of(t) / std::max<int>(1, d.made.count);
  Run run = nullptr;
  if (bytes_of(t) == 4 && bytes == 2)
    run = unpacks ? run_unpack<uint16_t, uint32_t> : run_pack<uint16_t, uint32_t>;
  else if (bytes_of(t) == 8 && bytes == 4)
    run = unpacks ? run_unpack<uint32_t, uint64_t> : run_pack<uint32_t, uint64_t>;
  else if (bytes_of(t) == 8 && bytes == 2)
    run = unpacks ? run_unpack<uint16_t, uint64_t> : run_pack<uint16_t, uint64_t>;
  const Type part = bytes == 2 ? kB16 : kB32;
  for (size_t k = 0; run != nullptr && k < list.parts.size(); ++k)
    d.made.at[k] = d.row_of(list.parts[k], part, !unpacks);
  d.finish(Kind::kMove, Flow::kNext, run, 2);
}

// Special registers: of the grid, of the block, of the warp.
enum Special : int64_t {
  kTidX,
  kTidY,
  kTidZ,
  kNtidX,
  kNtidY,
  kNtidZ,
  kCtaidX,
  kCtaidY,
  kCtaidZ,
  kNctaidX,
  kNctaidY,
  kNctaidZ,
  kLane,
  kWarp
};
constexpr std::string_view kSpecials[] = {"%tid.x",    "%tid.y",    "%tid.z",   "%ntid.x",  "%ntid.y",
                                          "%ntid.z",   "%ctaid.x",  "%ctaid.y", "%ctaid.z", "%nctaid.x",
                                          "%nctaid.y", "%nctaid.z", "%laneid",  "%warpid"};
uint32_t part(const Index3& i, int64_t which) { return which == 0 ? i.x : which == 1 ? i.y : i.z; }
void run_special(Warp& w, const Instruction& i, uint32_t lanes) {
  uint32_t* to = w.row<uint32_t>(i.at[0]);
  const Running& r = w.running();
  for_lanes(lanes, [&](int l) {
    to[l] = i.value == kLane     ? static_cast<uint32_t>(l)
            : i.value == kWarp   ? w.index()
            : i.value < kNtidX   ? part(w.thread_index(l), i.value)
            : i.value < kCtaidX  ? part(r.grid.threads, i.value - kNtidX)
            : i.value < kNctaidX ? part(w.block().index, i.value - kCtaidX)
                                 : part(r.grid.blocks, i.value - kNctaidX);
  });
}

void move(Decoder& d) {
  const auto type = d.take_type();
  if (!type) return;
  if (d.operand_at(0).kind == Operand::Kind::kList || d.operand_at(1).kind == Operand::Kind::kList)
    return move_parts(d, *type);
  d.made.at[0] = d.result(0, *type);
  const std::string& name = d.operand_at(1).name;
  for (size_t k = 0; k < std::size(kSpecials); ++k) {
    if (name != kSpecials[k]) continue;
    d.made.value = static_cast<int64_t>(k);
    return d.finish(Kind::kMove, Flow::kNext, bytes_of(*type) == 4 ? run_special : nullptr, 2);
  }
  if (d.operand_at(1).kind == Operand::Kind::kName && !d.type_of(d.operand_at(1))) {
    for (const auto* variables : {&d.names().shared, &d.names().local, &d.names().parameters}) {
      if (auto address = d.address_of(name, *variables)) {
        d.made.at[1] = d.constant(static_cast<uint64_t>(*address), bytes_of(*type));
        return d.finish(Kind::kMove, Flow::kNext, move_of(*type), 2);
      }
    }
  }
  d.made.at[1] = d.source(1, *type);
  d.finish(Kind::kMove, Flow::kNext, move_of(*type), 2);
}

// Addresses in a space of their own are its offsets, those of global memory are the host's.
void convert_address(Decoder& d) {
  const bool global = d.take("to") ? d.take("global") : d.take("global");
  const auto type = d.take_type();
  d.made.at[0] = d.result(0, kU64), d.made.at[1] = d.source(1, kU64);
  d.finish(Kind::kMove, Flow::kNext, global && type == kU64 ? run_move<uint64_t> : nullptr, 2);
}

enum class Rounding { kNearest, kZero, kDown, kUp };

double round_to_integral(double x, Rounding r) {
  switch (r) {
    case Rounding::kNearest:
      return std::nearbyint(x);
    case Rounding::kZero:
      return std::trunc(x);
    case Rounding::kDown:
      return std::floor(x);
    default:
      return std::ceil(x);
  }
}

template <typename T>
constexpr bool kIsFloating = std::is_floating_point_v<T> || std::is_same_v<T, F16> || std::is_same_v<T, Bf16>;

template <typename T>
auto number(T x) {
  if constexpr (std::is_same_v<T, F16> || std::is_same_v<T, Bf16>)
    return to_float(x);
  else
    return x;
}

// From a number to another type. To float from integers, and to narrower floats: to nearest.
template <typename D, typename S, Rounding rounding, bool integral, bool saturates>
D converted(S from) {
  auto x = number(from);
  if constexpr (kIsFloating<D>) {
    if constexpr (integral) x = static_cast<decltype(x)>(round_to_integral(static_cast<double>(x), rounding));
    if constexpr (saturates) x = x > 0 ? (x < 1 ? x : 1) : 0;  // a NaN becomes 0
    if constexpr (std::is_same_v<D, F16>)
      return to_f16(static_cast<double>(x));
    else if constexpr (std::is_same_v<D, Bf16>)
      return to_bf16(static_cast<float>(x));
    else
      return static_cast<D>(x);
  } else if constexpr (kIsFloating<S>) {
    return saturated<D>(round_to_integral(static_cast<double>(x), rounding));
  } else {
    return static_cast<D>(x);
  }
}

// Registers may be wider than the types: the source's low bits count, the result is extended.
template <typename D, typename S, typename To, typename From, Rounding rounding, bool integral, bool saturates>
void run_convert(Warp& w, const Instruction& i, uint32_t lanes) {
  To* to = w.row<To>(i.at[0]);
  const From* from = w.row<From>(i.at[1]);
  const auto one = [=](int l) {
    if constexpr (std::is_same_v<From, S> && std::is_same_v<To, D>) {
      to[l] = converted<D, S, rounding, integral, saturates>(from[l]);
    } else {
      S x;
      std::memcpy(&x, &from[l], sizeof x);
      const D made = converted<D, S, rounding, integral, saturates>(x);
      if constexpr (std::is_integral_v<D>)
        to[l] = static_cast<To>(made);
      else
        std::memcpy(&to[l], &made, sizeof made);
    }
  };
  for_lanes(lanes, one);
}

template <typename T>
using in_register = std::conditional_t<std::is_integral_v<T> && sizeof(T) == 1,
                                       std::conditional_t<std::is_signed_v<T>, int16_t, uint16_t>, T>;

template <typename D, typename S, Rounding rounding, bool integral, bool saturates>
Run with_widths(int to, int from) {
  using To = in_register<D>;
  using From = in_register<S>;
  if (to == sizeof(To) && from == sizeof(From)) return run_convert<D, S, To, From, rounding, integral, saturates>;
  if constexpr (std::is_integral_v<D> && std::is_integral_v<S>) {
    using Wide32 = std::conditional_t<std::is_signed_v<D>, int32_t, uint32_t>;
    using Wide64 = std::conditional_t<std::is_signed_v<D>, int64_t, uint64_t>;
    if (from == sizeof(From) && to == 4) return run_convert<D, S, Wide32, From, rounding, integral, saturates>;
    if (from == sizeof(From) && to == 8) return run_convert<D, S, Wide64, From, rounding, integral, saturates>;
    if (to == sizeof(To) && from == 4) return run_convert<D, S, To, uint32_t, rounding, integral, saturates>;
    if (to == sizeof(To) && from == 8) return run_convert<D, S, To, uint64_t, rounding, integral, saturates>;
    if (to == 4 && from == 4) return run_convert<D, S, Wide32, uint32_t, rounding, integral, saturates>;
  }
  return nullptr;
}

struct Manner {
  Rounding rounding = Rounding::kNearest;
  bool rounds = false, integral = false, saturates = false;
};

template <typename D, typename S>
Run to_integral(Rounding rounding, int to, int from) {
  switch (rounding) {
    case Rounding::kNearest:
      return with_widths<D, S, Rounding::kNearest, true, false>(to, from);
    case Rounding::kZero:
      return with_widths<D, S, Rounding::kZero, true, false>(to, from);
    case Rounding::kDown:
      return with_widths<D, S, Rounding::kDown, true, false>(to, from);
    default:
      return with_widths<D, S, Rounding::kUp, true, false>(to, from);
  }
}

template <typename D, typename S>
Run conversion(const Manner& m, int to, int from) {
  constexpr bool kNarrows = kIsFloating<D> && (!kIsFloating<S> || sizeof(D) < sizeof(S));
  if constexpr (!kIsFloating<S> && !kIsFloating<D>) {
    return m.rounds || m.integral || m.saturates ? nullptr : with_widths<D, S, Rounding::kZero, false, false>(to, from);
  } else if constexpr (!kIsFloating<D>) {
    if (!m.integral || m.saturates) return nullptr;
    return to_integral<D, S>(m.rounding, to, from);
  } else if constexpr (std::is_same_v<D, S>) {
    if (m.rounds) return nullptr;
    if (m.saturates) return m.integral ? nullptr : with_widths<D, S, Rounding::kNearest, false, true>(to, from);
    if (!m.integral) return with_widths<D, S, Rounding::kNearest, false, false>(to, from);
    return to_integral<D, S>(m.rounding, to, from);
  } else {
    if (m.integral || m.saturates || m.rounds != kNarrows || m.rounding != Rounding::kNearest) return nullptr;
    return with_widths<D, S, Rounding::kNearest, false, false>(to, from);
  }
}

template <typename D, Type... sources>
Run from_one_of(Type from, const Manner& m, int to_bytes, int from_bytes) {
  Run run = nullptr;
  ((from == sources ? void(run = conversion<D, held<sources>>(m, to_bytes, from_bytes)) : void()), ...);
  return run;
}
template <Type... results>
Run to_one_of(Type to, Type from, const Manner& m, int to_bytes, int from_bytes) {
  Run run = nullptr;
  ((to == results
        ? void(run = from_one_of<held<results>, kU8, kS8, kU16, kS16, kF16, kBf16, kU32, kS32, kF32, kU64, kS64, kF64>(
                   from, m, to_bytes, from_bytes))
        : void()),
   ...);
  return run;
}

template <typename T>
void run_convert_pair(Warp& w, const Instruction& i, uint32_t lanes) {
  uint32_t* to = w.row<uint32_t>(i.at[0]);
  const float *high = w.row<float>(i.at[1]), *low = w.row<float>(i.at[2]);
  for_lanes(lanes, [=](int l) {
    if constexpr (std::is_same_v<T, F16>)
      to[l] = uint32_t{to_f16(high[l]).bits} << 16 | to_f16(low[l]).bits;
    else
      to[l] = uint32_t{to_bf16(high[l]).bits} << 16 | to_bf16(low[l]).bits;
  });
}

void convert(Decoder& d) {
  Manner m;
  constexpr std::pair<std::string_view, Rounding> kFloating[] = {{"rn", Rounding::kNearest}};
  constexpr std::pair<std::string_view, Rounding> kIntegral[] = {
      {"rni", Rounding::kNearest}, {"rzi", Rounding::kZero}, {"rmi", Rounding::kDown}, {"rpi", Rounding::kUp}};
  for (const auto& [name, rounding] : kFloating) {
    if (d.take(name)) m.rounding = rounding, m.rounds = true;
  }
  for (const auto& [name, rounding] : kIntegral) {
    if (d.take(name)) m.rounding = rounding, m.integral = true;
  }
  m.saturates = d.take("sat");
  const bool f16x2 = d.take("f16x2");
  if (f16x2 || d.take("bf16x2")) {
    const bool known = d.take("f32") && m.rounds && !m.saturates;
    d.made.at[0] = d.result(0, kB32), d.made.at[1] = d.source(1, kF32), d.made.at[2] = d.source(2, kF32);
    return d.finish(Kind::kConvert, Flow::kNext,
                    !known  ? nullptr
                    : f16x2 ? run_convert_pair<F16>
                            : run_convert_pair<Bf16>,
                    3);
  }
  const auto to = d.take_type(), from = d.take_type();
  if (!to || !from) return;
  const auto to_register = d.type_of(d.operand_at(0)), from_register = d.type_of(d.operand_at(1));
  d.made.at[0] = d.wide_row(d.operand_at(0), *to);
  d.made.at[1] = from_register ? d.wide_row(d.operand_at(1), *from) : d.source(1, *from);
  const int to_bytes = to_register ? register_bytes(*to_register) : 0;
  const int from_bytes = register_bytes(from_register.value_or(*from));
  d.finish(Kind::kConvert, Flow::kNext,
           to_one_of<kU8, kS8, kU16, kS16, kF16, kBf16, kU32, kS32, kF32, kU64, kS64, kF64>(*to, *from, m, to_bytes,
                                                                                            from_bytes),
           2);
}

}  // namespace

void add_conversions(Decoders& to) {
  to["mov"] = move;
  to["cvt"] = convert;
  to["cvta"] = convert_address;
}

}  // namespace partita::ptx
