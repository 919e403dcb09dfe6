// Works in blocks of kBlock elements: sources are widened into accumulators on the stack, one a level of the tree, and
// the block is narrowed into the output. That keeps each element's order fixed whatever the block boundaries are, and
// lets the compiler vectorize across elements.
#include "runtime/communicate/reduce_kernels.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/float16.h"
#include "base/status.h"

namespace partita::runtime {
namespace {

constexpr int64_t kBlock = 512;
constexpr int kLevels = 32;  // of a tree over as many sources as an int counts

template <typename T>
struct Plain {
  using Stored = T;
  using Wide = T;
  static Wide widen(Stored v) { return v; }
  static Stored narrow(Wide v) { return v; }
};
struct Half {
  using Stored = uint16_t;
  using Wide = float;
  static Wide widen(Stored v) { return f16_to_float(v); }
  static Stored narrow(Wide v) { return float_to_f16(v); }
};
struct BFloat {
  using Stored = uint16_t;
  using Wide = float;
  static Wide widen(Stored v) { return bf16_to_float(v); }
  static Stored narrow(Wide v) { return float_to_bf16(v); }
};

template <typename T>
T add(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    return a + b;
  } else {  // through the unsigned type, where overflow is defined
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
  }
}

template <ReduceOp kOp, typename T>
T combine(T a, T b) {
  if constexpr (kOp == ReduceOp::kSum) return add(a, b);
  if constexpr (std::is_floating_point_v<T>) {
    if (a != a) return a;
    if (b != b) return b;
  }
  if constexpr (kOp == ReduceOp::kMax) return a < b ? b : a;
  return b < a ? b : a;
}

// The nodes of a balanced binary tree over the sources that still wait for their right neighbours, the lowest last: of
// 7 sources, (s0 + s1) + (s2 + s3), s4 + s5, s6.
template <typename Format, ReduceOp kOp>
class Tree {
 public:
  using Wide = typename Format::Wide;

  // Source number `s`, `length` elements from `data`.
  void add(const std::byte* data, size_t s, int64_t length) {
    typename Format::Stored block[kBlock];
    std::memcpy(block, data, static_cast<size_t>(length) * sizeof(block[0]));
    Wide* const leaf = nodes_[depth_++];
    for (int64_t i = 0; i < length; ++i) leaf[i] = Format::widen(block[i]);
    for (; s % 2 == 1; s /= 2) join(length);
  }
  const Wide* root(int64_t length) {
    while (depth_ > 1) join(length);
    return nodes_[--depth_];
  }

 private:
  void join(int64_t length) {
    Wide *const left = nodes_[depth_ - 2], *const right = nodes_[depth_ - 1];
    for (int64_t i = 0; i < length; ++i) left[i] = combine<kOp>(left[i], right[i]);
    --depth_;
  }

  Wide nodes_[kLevels][kBlock];
  int depth_ = 0;
};

template <typename Format, ReduceOp kOp>
void reduce_blocks(std::span<const std::byte* const> sources, std::byte* output, int64_t count) {
  using Stored = typename Format::Stored;
  Tree<Format, kOp> tree;
  Stored block[kBlock];
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t length = std::min(kBlock, count - begin);
    const size_t offset = static_cast<size_t>(begin) * sizeof(Stored);
    for (size_t s = 0; s < sources.size(); ++s) tree.add(sources[s] + offset, s, length);
    const auto* total = tree.root(length);
    for (int64_t i = 0; i < length; ++i) block[i] = Format::narrow(total[i]);
    std::memcpy(output + offset, block, static_cast<size_t>(length) * sizeof(Stored));
  }
}

template <typename Format>
void reduce_format(ReduceOp op, std::span<const std::byte* const> sources, std::byte* output, int64_t count) {
  switch (op) {
    case ReduceOp::kSum:
      return reduce_blocks<Format, ReduceOp::kSum>(sources, output, count);
    case ReduceOp::kMax:
      return reduce_blocks<Format, ReduceOp::kMax>(sources, output, count);
    case ReduceOp::kMin:
      return reduce_blocks<Format, ReduceOp::kMin>(sources, output, count);
  }
}

}  // namespace

bool can_reduce(DType dtype, ReduceOp op) {
  if (op != ReduceOp::kSum && op != ReduceOp::kMax && op != ReduceOp::kMin) return false;
  if (dtype_size(dtype) == 0) return false;
  return dtype != DType::kBool || op != ReduceOp::kSum;
}

void reduce_in_order(DType dtype, ReduceOp op, std::span<const std::byte* const> sources, std::byte* output,
                     int64_t count) {
  PARTITA_CHECK(!sources.empty() && can_reduce(dtype, op), "the caller checks what it reduces");
  switch (dtype) {
    case DType::kBool:
    case DType::kU8:
      return reduce_format<Plain<uint8_t>>(op, sources, output, count);
    case DType::kI8:
      return reduce_format<Plain<int8_t>>(op, sources, output, count);
    case DType::kI16:
      return reduce_format<Plain<int16_t>>(op, sources, output, count);
    case DType::kU16:
      return reduce_format<Plain<uint16_t>>(op, sources, output, count);
    case DType::kI32:
      return reduce_format<Plain<int32_t>>(op, sources, output, count);
    case DType::kU32:
      return reduce_format<Plain<uint32_t>>(op, sources, output, count);
    case DType::kI64:
      return reduce_format<Plain<int64_t>>(op, sources, output, count);
    case DType::kU64:
      return reduce_format<Plain<uint64_t>>(op, sources, output, count);
    case DType::kF16:
      return reduce_format<Half>(op, sources, output, count);
    case DType::kBF16:
      return reduce_format<BFloat>(op, sources, output, count);
    case DType::kF32:
      return reduce_format<Plain<float>>(op, sources, output, count);
    case DType::kF64:
      return reduce_format<Plain<double>>(op, sources, output, count);
    case DType::kInvalid:
      return;
  }
}

}  // namespace partita::runtime
