// Instructions that do the same in every lane by itself, from what they do to one number.
#pragma once

#include <bit>

#include "tests/ptx/numbers.h"
#include "tests/ptx/warp.h"

namespace partita::ptx {

// What a register of a type holds.
template <Type t>
struct Held;
#define PARTITA_HELD(TYPE, HELD) \
  template <>                    \
  struct Held<TYPE> {            \
    using type = HELD;           \
  };
PARTITA_HELD(Type::kB8, uint8_t)
PARTITA_HELD(Type::kU8, uint8_t)
PARTITA_HELD(Type::kS8, int8_t)
PARTITA_HELD(Type::kB16, uint16_t)
PARTITA_HELD(Type::kU16, uint16_t)
PARTITA_HELD(Type::kS16, int16_t)
PARTITA_HELD(Type::kF16, F16)
PARTITA_HELD(Type::kBf16, Bf16)
PARTITA_HELD(Type::kB32, uint32_t)
PARTITA_HELD(Type::kU32, uint32_t)
PARTITA_HELD(Type::kS32, int32_t)
PARTITA_HELD(Type::kF32, float)
PARTITA_HELD(Type::kB64, uint64_t)
PARTITA_HELD(Type::kU64, uint64_t)
PARTITA_HELD(Type::kS64, int64_t)
PARTITA_HELD(Type::kF64, double)
#undef PARTITA_HELD
template <Type t>
using held = typename Held<t>::type;

// All lanes in one loop, which the compiler makes vectors of; some lanes one by one. Rows are the same or apart.
template <typename F>
inline void for_lanes(uint32_t lanes, F&& f) {
  if (lanes == kAllLanes) {
#pragma GCC ivdep
    for (int lane = 0; lane < kLanes; ++lane) f(lane);
  } else {
    for (; lanes != 0; lanes &= lanes - 1) f(std::countr_zero(lanes));
  }
}

template <typename Op, typename R, typename... A>
void run_lanes(Warp& w, const Instruction& i, uint32_t lanes) {
  R* to = w.row<R>(i.at[0]);
  if constexpr (sizeof...(A) == 1) {
    auto* a = w.row<std::tuple_element_t<0, std::tuple<A...>>>(i.at[1]);
    for_lanes(lanes, [=](int l) { to[l] = Op::of(a[l]); });
  } else if constexpr (sizeof...(A) == 2) {
    auto* a = w.row<std::tuple_element_t<0, std::tuple<A...>>>(i.at[1]);
    auto* b = w.row<std::tuple_element_t<1, std::tuple<A...>>>(i.at[2]);
    for_lanes(lanes, [=](int l) { to[l] = Op::of(a[l], b[l]); });
  } else {
    auto* a = w.row<std::tuple_element_t<0, std::tuple<A...>>>(i.at[1]);
    auto* b = w.row<std::tuple_element_t<1, std::tuple<A...>>>(i.at[2]);
    auto* c = w.row<std::tuple_element_t<2, std::tuple<A...>>>(i.at[3]);
    for_lanes(lanes, [=](int l) { to[l] = Op::of(a[l], b[l], c[l]); });
  }
}

// Of the types listed the one that is asked for; null: none of them.
template <typename Op, Type... types>
Run unary(Type asked) {
  Run run = nullptr;
  ((asked == types ? void(run = run_lanes<Op, held<types>, held<types>>) : void()), ...);
  return run;
}
template <typename Op, Type... types>
Run binary(Type asked) {
  Run run = nullptr;
  ((asked == types ? void(run = run_lanes<Op, held<types>, held<types>, held<types>>) : void()), ...);
  return run;
}
template <typename Op, Type... types>
Run ternary(Type asked) {
  Run run = nullptr;
  ((asked == types ? void(run = run_lanes<Op, held<types>, held<types>, held<types>, held<types>>) : void()), ...);
  return run;
}

}  // namespace partita::ptx
