// Comparisons and choices (PTX ISA, "Comparison and Selection Instructions").
#include "tests/ptx/decode.h"
#include "tests/ptx/lanes.h"

namespace partita::ptx {
namespace {

using enum Type;

enum class Relation { kLess, kEqual, kGreater, kUnordered };

template <typename T>
Relation relation(T a, T b) {
  if constexpr (std::is_same_v<T, F16>)
    return relation(to_float(a), to_float(b));
  else
    return a < b ? Relation::kLess : a == b ? Relation::kEqual : a > b ? Relation::kGreater : Relation::kUnordered;
}

// The relations under which a comparison holds, as bits.
constexpr uint32_t bit(Relation r) { return uint32_t{1} << static_cast<int>(r); }
constexpr uint32_t kLt = bit(Relation::kLess), kEq = bit(Relation::kEqual), kGt = bit(Relation::kGreater),
                   kNan = bit(Relation::kUnordered);
uint32_t relations_of(Decoder& d) {
  constexpr std::pair<std::string_view, uint32_t> kAll[] = {{"eq", kEq},
                                                            {"ne", kLt | kGt},
                                                            {"lt", kLt},
                                                            {"le", kLt | kEq},
                                                            {"gt", kGt},
                                                            {"ge", kGt | kEq},
                                                            {"lo", kLt},
                                                            {"ls", kLt | kEq},
                                                            {"hi", kGt},
                                                            {"hs", kGt | kEq},
                                                            {"equ", kEq | kNan},
                                                            {"neu", kLt | kGt | kNan},
                                                            {"ltu", kLt | kNan},
                                                            {"leu", kLt | kEq | kNan},
                                                            {"gtu", kGt | kNan},
                                                            {"geu", kGt | kEq | kNan},
                                                            {"num", kLt | kEq | kGt},
                                                            {"nan", kNan}};
  for (const auto& [name, relations] : kAll) {
    if (d.take(name)) return relations;
  }
  return 0;
}

template <typename T>
void run_compare(Warp& w, const Instruction& i, uint32_t lanes) {
  const T *a = w.row<T>(i.at[1]), *b = w.row<T>(i.at[2]);
  const auto holds = static_cast<uint32_t>(i.value);
  uint32_t result = 0;
  for (int l = 0; l < kLanes; ++l) result |= (holds >> static_cast<int>(relation(a[l], b[l])) & 1) << l;
  uint32_t& to = *w.mask(i.at[0]);
  to = (to & ~lanes) | (result & lanes);
}
template <Type... types>
Run comparison(Type t) {
  Run run = nullptr;
  ((t == types ? void(run = run_compare<held<types>>) : void()), ...);
  return run;
}
void compare(Decoder& d) {
  d.made.value = relations_of(d);
  const Type t = d.take_type().value_or(kPred);
  d.made.at[0] = d.result(0, kPred);
  for (size_t k = 1; k < 3; ++k) d.made.at[k] = d.source(k, t);
  const Run run = comparison<kB16, kU16, kS16, kF16, kB32, kU32, kS32, kF32, kB64, kU64, kS64, kF64>(t);
  d.finish(Kind::kCompare, Flow::kNext, d.made.value == 0 ? nullptr : run, 3);
}

template <typename T>
void run_select(Warp& w, const Instruction& i, uint32_t lanes) {
  T* to = w.row<T>(i.at[0]);
  const T *a = w.row<T>(i.at[1]), *b = w.row<T>(i.at[2]);
  const uint32_t which = *w.mask(i.at[3]);
  for_lanes(lanes, [=](int l) { to[l] = which >> l & 1 ? a[l] : b[l]; });
}
void select(Decoder& d) {
  const Type t = d.take_type().value_or(kPred);
  d.made.at[0] = d.result(0, t);
  for (size_t k = 1; k < 3; ++k) d.made.at[k] = d.source(k, t);
  d.made.at[3] = d.source(3, kPred);
  const int bytes = t == kPred ? 0 : bytes_of(t);
  d.finish(Kind::kCompare, Flow::kNext,
           bytes == 2   ? run_select<uint16_t>
           : bytes == 4 ? run_select<uint32_t>
           : bytes == 8 ? run_select<uint64_t>
                        : nullptr,
           4);
}

}  // namespace

void add_comparisons(Decoders& to) {
  to["setp"] = compare;
  to["selp"] = select;
}

}  // namespace partita::ptx
