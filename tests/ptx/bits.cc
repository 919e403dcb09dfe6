// Bits (PTX ISA, "Logic and Shift Instructions", bfe, bfi, prmt).
#include "tests/ptx/decode.h"
#include "tests/ptx/lanes.h"

namespace partita::ptx {
namespace {

using enum Type;

template <typename T>
using unsigned_of = std::make_unsigned_t<T>;

struct And {
  template <typename T>
  static T of(T a, T b) {
    return a & b;
  }
};
struct Or {
  template <typename T>
  static T of(T a, T b) {
    return a | b;
  }
};
struct Xor {
  template <typename T>
  static T of(T a, T b) {
    return a ^ b;
  }
};
struct Not {
  template <typename T>
  static T of(T a) {
    return static_cast<T>(~a);
  }
};
// Distances of the width and beyond leave nothing but signs.
struct ShiftLeft {
  template <typename T>
  static T of(T a, uint32_t by) {
    return by < 8 * sizeof(T) ? static_cast<T>(a << by) : T(0);
  }
};
struct ShiftRight {
  template <typename T>
  static T of(T a, uint32_t by) {
    return by < 8 * sizeof(T) ? static_cast<T>(a >> by) : a < 0 ? static_cast<T>(-1) : T(0);
  }
};
// Positions and lengths count up to 255. A signed field beyond the number has the number's sign.
struct ExtractBits {
  template <typename T>
  static T of(T a, uint32_t from, uint32_t count) {
    constexpr uint32_t kBits = 8 * sizeof(T);
    from &= 255, count &= 255;
    if (count == 0) return 0;
    const T moved = ShiftRight::of(a, from);
    if (count >= kBits) return moved;
    const auto high = static_cast<T>(static_cast<unsigned_of<T>>(moved) << (kBits - count));
    return static_cast<T>(high >> (kBits - count));
  }
};
struct InsertBits {
  template <typename T>
  static T of(T field, T into, uint32_t from, uint32_t count) {
    constexpr uint32_t kBits = 8 * sizeof(T);
    from &= 255, count &= 255;
    if (from >= kBits || count == 0) return into;
    const T mask = (count >= kBits ? ~T{0} : (T{1} << count) - 1) << from;
    return (into & ~mask) | (field << from & mask);
  }
};
// Each byte of the result is one of the eight of b and a, or its sign.
struct Permute {
  static uint32_t of(uint32_t a, uint32_t b, uint32_t selectors) {
    const uint64_t bytes = uint64_t{b} << 32 | a;
    uint32_t made = 0;
    for (uint32_t k = 0; k < 4; ++k) {
      const uint32_t selector = selectors >> (4 * k) & 15;
      const auto byte = static_cast<uint32_t>(bytes >> (8 * (selector & 7)) & 255);
      made |= ((selector & 8) != 0 ? ((byte & 128) != 0 ? 255u : 0u) : byte) << (8 * k);
    }
    return made;
  }
};
// Predicates are bits of a row's one word.
template <typename Op>
void run_predicates(Warp& w, const Instruction& i, uint32_t lanes) {
  uint32_t& to = *w.mask(i.at[0]);
  to = (to & ~lanes) | (Op::of(*w.mask(i.at[1]), *w.mask(i.at[2])) & lanes);
}
template <typename Op>
void logic(Decoder& d) {
  const Type t = take_number(d);
  set_operands(d, t, 3);
  d.finish(t == kPred ? Kind::kCompare : Kind::kInteger, Flow::kNext,
           t == kPred ? run_predicates<Op> : binary<Op, kU16, kU32, kU64>(t), 3);
}
void run_not(Warp& w, const Instruction& i, uint32_t lanes) {
  uint32_t& to = *w.mask(i.at[0]);
  to = (to & ~lanes) | (~*w.mask(i.at[1]) & lanes);
}
void invert(Decoder& d) {
  const Type t = take_number(d);
  set_operands(d, t, 2);
  d.finish(t == kPred ? Kind::kCompare : Kind::kInteger, Flow::kNext,
           t == kPred ? run_not : unary<Not, kU16, kU32, kU64>(t), 2);
}

template <typename Op, Type... types>
Run shifting(Type t) {
  Run run = nullptr;
  ((t == types ? void(run = run_lanes<Op, held<types>, held<types>, uint32_t>) : void()), ...);
  return run;
}
template <typename Op>
void shift(Decoder& d) {
  const Type t = take_number(d);
  d.made.at[0] = d.result(0, t), d.made.at[1] = d.source(1, t), d.made.at[2] = d.source(2, kU32);
  d.finish(Kind::kInteger, Flow::kNext, shifting<Op, kU16, kS16, kU32, kS32, kU64, kS64>(t), 3);
}
template <Type... types>
Run extraction(Type t) {
  Run run = nullptr;
  ((t == types ? void(run = run_lanes<ExtractBits, held<types>, held<types>, uint32_t, uint32_t>) : void()), ...);
  return run;
}
void extract_bits(Decoder& d) {
  const Type t = take_number(d);
  d.made.at[0] = d.result(0, t), d.made.at[1] = d.source(1, t);
  d.made.at[2] = d.source(2, kU32), d.made.at[3] = d.source(3, kU32);
  d.finish(Kind::kInteger, Flow::kNext, extraction<kU32, kS32, kU64, kS64>(t), 4);
}
template <typename T>
void run_insert(Warp& w, const Instruction& i, uint32_t lanes) {
  T* to = w.row<T>(i.at[0]);
  const T *field = w.row<T>(i.at[1]), *into = w.row<T>(i.at[2]);
  const uint32_t *from = w.row<uint32_t>(i.at[3]), *count = w.row<uint32_t>(i.at[4]);
  for_lanes(lanes, [=](int l) { to[l] = InsertBits::of(field[l], into[l], from[l], count[l]); });
}
void insert_bits(Decoder& d) {
  const Type t = take_number(d);
  set_operands(d, t, 3);
  d.made.at[3] = d.source(3, kU32), d.made.at[4] = d.source(4, kU32);
  d.finish(Kind::kInteger, Flow::kNext,
           t == kU32   ? run_insert<uint32_t>
           : t == kU64 ? run_insert<uint64_t>
                       : nullptr,
           5);
}
void permute(Decoder& d) {
  const Type t = take_number(d);
  finish(d, t, t == kU32 ? run_lanes<Permute, uint32_t, uint32_t, uint32_t, uint32_t> : nullptr, 4);
}
}  // namespace

void add_bits(Decoders& to) {
  to["and"] = logic<And>;
  to["or"] = logic<Or>;
  to["xor"] = logic<Xor>;
  to["not"] = invert;
  to["shl"] = shift<ShiftLeft>;
  to["shr"] = shift<ShiftRight>;
  to["bfe"] = extract_bits;
  to["bfi"] = insert_bits;
  to["prmt"] = permute;
}

}  // namespace partita::ptx
