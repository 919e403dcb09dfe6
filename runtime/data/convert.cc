#include "runtime/data/convert.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "base/cat.h"
#include "base/float16.h"
#include "base/status.h"

namespace partita::runtime {
namespace {

struct Bool {
  uint8_t bits;
};
struct F16 {
  uint16_t bits;
};
struct BF16 {
  uint16_t bits;
};

template <typename T>
constexpr bool kIsFloat = std::is_floating_point_v<T> || std::is_same_v<T, F16> || std::is_same_v<T, BF16>;
// Binary digits that a type keeps exactly.
template <typename T>
constexpr int kDigits = std::is_same_v<T, Bool>   ? 1
                        : std::is_same_v<T, F16>  ? 11
                        : std::is_same_v<T, BF16> ? 8
                                                  : std::numeric_limits<T>::digits;

// The value as a plain number: integers as they are, 16-bit floats as float.
template <typename T>
auto load(const std::byte* at) {
  T raw;
  std::memcpy(&raw, at, sizeof raw);
  if constexpr (std::is_same_v<T, Bool>)
    return static_cast<uint8_t>(raw.bits != 0);
  else if constexpr (std::is_same_v<T, F16>)
    return f16_to_float(raw.bits);
  else if constexpr (std::is_same_v<T, BF16>)
    return bf16_to_float(raw.bits);
  else
    return raw;
}

// False when the value is not kept (integers only).
template <typename D, typename V>
bool store(V value, std::byte* at) {
  D raw;
  if constexpr (std::is_same_v<D, Bool>) {
    if (value != 0 && value != 1) return false;
    raw.bits = static_cast<uint8_t>(value);
  } else if constexpr (std::is_same_v<D, F16>) {
    raw.bits = float_to_f16(static_cast<float>(value));
  } else if constexpr (std::is_same_v<D, BF16>) {
    raw.bits = float_to_bf16(static_cast<float>(value));
  } else if constexpr (std::is_integral_v<D> && std::is_integral_v<V>) {
    if (!std::in_range<D>(value)) return false;
    raw = static_cast<D>(value);
  } else {
    raw = static_cast<D>(value);
  }
  std::memcpy(at, &raw, sizeof raw);
  if constexpr (std::is_integral_v<V> && kIsFloat<D> && (std::numeric_limits<V>::digits > kDigits<D>)) {
    // long double has 64 digits: both sides are exact.
    return static_cast<long double>(load<D>(at)) == static_cast<long double>(value);
  }
  return true;
}

template <typename S, typename D>
int64_t convert(const std::byte* from, std::byte* to, int64_t count) {
  if constexpr (std::is_same_v<S, D> && !std::is_same_v<S, Bool>) {
    std::memcpy(to, from, static_cast<size_t>(count) * sizeof(S));
    return -1;
  }
  for (int64_t i = 0; i < count; ++i) {
    if (!store<D>(load<S>(from + i * static_cast<int64_t>(sizeof(S))), to + i * static_cast<int64_t>(sizeof(D))))
      return i;
  }
  return -1;
}

template <typename T>
struct Tag {
  using Type = T;
};

// Calls `use` with the tag of the element type.
template <typename Use>
auto with_type(DType dtype, Use use) {
  switch (dtype) {
    case DType::kBool:
      return use(Tag<Bool>());
    case DType::kI8:
      return use(Tag<int8_t>());
    case DType::kU8:
      return use(Tag<uint8_t>());
    case DType::kI16:
      return use(Tag<int16_t>());
    case DType::kU16:
      return use(Tag<uint16_t>());
    case DType::kI32:
      return use(Tag<int32_t>());
    case DType::kU32:
      return use(Tag<uint32_t>());
    case DType::kI64:
      return use(Tag<int64_t>());
    case DType::kU64:
      return use(Tag<uint64_t>());
    case DType::kF16:
      return use(Tag<F16>());
    case DType::kBF16:
      return use(Tag<BF16>());
    case DType::kF64:
      return use(Tag<double>());
    default:
      return use(Tag<float>());
  }
}

}  // namespace

absl::StatusOr<ConvertFunction> find_conversion(DType from, DType to) {
  if (from == DType::kInvalid || to == DType::kInvalid || (is_float(from) && !is_float(to))) {
    return absl::InvalidArgumentError(cat("has dtype ", dtype_name(from), ", expected ", dtype_name(to),
                                          "; it is not converted because values could be lost"));
  }
  return with_type(from, [to](auto source) {
    using S = typename decltype(source)::Type;
    return with_type(to, [](auto target) -> ConvertFunction {
      using D = typename decltype(target)::Type;
      if constexpr (kIsFloat<S> && !kIsFloat<D>)
        return nullptr;
      else
        return &convert<S, D>;
    });
  });
}

bool is_rounded_copy(StateKind kind, DType from, DType to) {
  return kind == StateKind::kFrozen && is_float(from) && dtype_size(from) < dtype_size(to);
}

absl::StatusOr<int64_t> take_rounded(DType narrow, const std::byte* given, DType type, std::byte* own, int64_t count) {
  constexpr int64_t kRun = 1024;
  PARTITA_ASSIGN_OR_RETURN(const ConvertFunction round, find_conversion(type, narrow));
  PARTITA_ASSIGN_OR_RETURN(const ConvertFunction widen, find_conversion(narrow, type));
  const int64_t size = dtype_size(type), given_size = dtype_size(narrow);
  std::byte rounded[kRun * sizeof(double)];
  int64_t taken = 0;
  for (int64_t first = 0; first < count; first += kRun) {
    const int64_t n = std::min(kRun, count - first);
    const std::byte* theirs = given + first * given_size;
    std::byte* mine = own + first * size;
    round(mine, rounded, n);
    for (int64_t k = 0; k < n; ++k) {
      if (std::memcmp(rounded + k * given_size, theirs + k * given_size, static_cast<size_t>(given_size)) == 0)
        continue;
      widen(theirs + k * given_size, mine + k * size, 1);
      ++taken;
    }
  }
  return taken;
}

std::string element_text(DType dtype, const std::byte* element) {
  if (dtype == DType::kInvalid) return "?";
  return with_type(dtype, [element](auto tag) {
    const auto value = load<typename decltype(tag)::Type>(element);
    if constexpr (std::is_floating_point_v<decltype(value)>)
      return cat(value);
    else if constexpr (sizeof(value) == 1)
      return cat(static_cast<int>(value));
    else
      return cat(value);
  });
}

namespace {

// Of `Bits` wide floats whose exponent is `exponent`: all its bits are set in NaN and infinity, a fraction only in NaN.
template <typename Bits>
int64_t first_unusable(std::span<const std::byte> bytes, Bits exponent, bool infinite) {
  constexpr int64_t kRun = 1024;  // elements looked at in one go
  const Bits magnitude = static_cast<Bits>(static_cast<Bits>(~Bits{0}) >> 1);
  const int64_t n = static_cast<int64_t>(bytes.size() / sizeof(Bits));
  const Bits least = infinite ? exponent : static_cast<Bits>(exponent + 1);
  // What is added carries a magnitude of at least that into the sign: a sum and an or of vectors for a comparison.
  const Bits sign = static_cast<Bits>(magnitude + 1), carry = static_cast<Bits>(sign - least);
  for (int64_t first = 0; first < n; first += kRun) {
    Bits run[kRun];
    const int64_t count = std::min(kRun, n - first);
    std::memcpy(run, bytes.data() + static_cast<size_t>(first) * sizeof(Bits),
                static_cast<size_t>(count) * sizeof(Bits));
    std::fill(run + count, run + kRun, Bits{0});
    Bits any = 0;
    for (int64_t k = 0; k < kRun; ++k) any = static_cast<Bits>(any | ((run[k] & magnitude) + carry));
    for (int64_t k = 0; (any & sign) != 0 && k < count; ++k) {
      if (static_cast<Bits>(run[k] & magnitude) >= least) return first + k;
    }
  }
  return -1;
}

}  // namespace

int64_t find_unusable(DType dtype, std::span<const std::byte> bytes, bool infinite) {
  switch (dtype) {
    case DType::kF64:
      return first_unusable<uint64_t>(bytes, uint64_t{0x7ff} << 52, infinite);
    case DType::kF32:
      return first_unusable<uint32_t>(bytes, uint32_t{0xff} << 23, infinite);
    case DType::kF16:
      return first_unusable<uint16_t>(bytes, uint16_t{0x1f << 10}, infinite);
    case DType::kBF16:
      return first_unusable<uint16_t>(bytes, uint16_t{0xff << 7}, infinite);
    default:
      return -1;
  }
}

}  // namespace partita::runtime
