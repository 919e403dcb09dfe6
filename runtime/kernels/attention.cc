// attention: tiles of scores that never leave the cache (FlashAttention-2, Dao 2023). For a block of queries, with
// running maximum m and sum l per row:
//   for each block of keys:  S = scale q k^T + mask;  m' = max(m, rows of S);  P = exp(S - m');
//                            l = l exp(m - m') + sum P;  out = out exp(m - m') + P v
// out / l is the result, m + log l the saved lse. Blocks that causality hides are skipped.
#include <vector>

#include "runtime/kernels/attention.h"
#include "runtime/kernels/table.h"

namespace partita::runtime {
namespace {

template <typename T>
struct Forward {
  AttentionShape shape;
  const T *q, *k, *v;
  const std::byte* mask;
  T* out;
  std::byte* lse;
  DType lse_dtype;

  struct Scratch {
    std::vector<T> keys, scores, out, maximum, sum;
  };

  // Queries [begin, end) of one head.
  void run(int64_t b, int64_t h, int64_t begin, int64_t end, Scratch& scratch) const {
    const int64_t kv = h / shape.group();
    const int64_t keys = shape.key_end(begin, end - begin), columns = (std::max<int64_t>(keys, 1) + 31) / 32 * 32;
    scratch.keys.resize(static_cast<size_t>(shape.d * columns));
    scratch.scores.resize(kQueryTile * kKeyTile);
    scratch.out.resize(static_cast<size_t>(kQueryTile * shape.e));
    scratch.maximum.resize(kQueryTile);
    scratch.sum.resize(kQueryTile);
    pack_transposed(k + shape.k.at(b, kv, 0), keys, shape.d, shape.k.row, scratch.keys.data(), columns);
    for (int64_t i = begin; i < end; i += kQueryTile) {
      query_block(b, h, mask_of_head(shape, mask, b, h), i, std::min(kQueryTile, end - i), columns, scratch);
    }
  }

 private:
  void query_block(int64_t b, int64_t h, const std::byte* head_mask, int64_t i0, int64_t rows, int64_t key_columns,
                   Scratch& scratch) const {
    constexpr T kNever = -std::numeric_limits<T>::infinity();
    const TileOps<T>& ops = tile_ops<T>();
    const T *queries = q + shape.q.at(b, h, i0), *values = v + shape.v.at(b, h / shape.group(), 0);
    T *scores = scratch.scores.data(), *result = scratch.out.data();
    std::fill_n(result, rows * shape.e, T(0));
    std::fill_n(scratch.maximum.begin(), rows, kNever);
    std::fill_n(scratch.sum.begin(), rows, T(0));
    const int64_t keys = shape.key_end(i0, rows);
    for (int64_t j0 = 0; j0 < keys; j0 += kKeyTile) {
      const int64_t columns = std::min(kKeyTile, keys - j0), padded = std::min(kKeyTile, key_columns - j0);
      ops.gemm(scores, kKeyTile, queries, shape.q.row, 1, scratch.keys.data() + j0, key_columns, rows, padded, shape.d,
               false);
      const T factor = mask_tile(shape, head_mask, i0, rows, j0, columns, scores, kKeyTile);
      for (int64_t i = 0; i < rows; ++i)
        soften_row(ops, scores + i * kKeyTile, columns, factor, scratch.maximum[static_cast<size_t>(i)],
                   scratch.sum[static_cast<size_t>(i)], result + i * shape.e);
      ops.gemm(result, shape.e, scores, kKeyTile, 1, values + j0 * shape.v.row, shape.v.row, rows, shape.e, columns,
               true);
    }
    for (int64_t i = 0; i < rows; ++i) {
      const T sum = scratch.sum[static_cast<size_t>(i)], factor = sum > T(0) ? T(1) / sum : sum == T(0) ? T(0) : sum;
      T* to = out + shape.out.at(b, h, i0 + i);
      for (int64_t c = 0; c < shape.e; ++c) to[c] = result[i * shape.e + c] * factor;
      const T value = sum == T(0) ? kNever : scratch.maximum[static_cast<size_t>(i)] + std::log(sum);
      const int64_t at = (b * shape.heads + h) * shape.s + i0 + i;
      if (lse_dtype == DType::kF64)
        as<double>(lse)[at] = static_cast<double>(value);
      else
        as<float>(lse)[at] = static_cast<float>(value);
    }
  }

  void soften_row(const TileOps<T>& ops, T* row, int64_t columns, T factor, T& maximum, T& sum, T* result) const {
    const T next = std::max(maximum, ops.max_row(row, columns) * factor);
    if (next == kLowest) {  // nothing to attend yet: a sum of zeros; or NaN, which the sum passes on
      sum += ops.exp_row(row, columns, factor, T(0));
      return;
    }
    if (next > maximum) {
      const T shrink = maximum == kLowest ? T(0) : std::exp(maximum - next);
      sum *= shrink;
      ops.scale_row(result, shape.e, shrink);
      maximum = next;
    }
    sum += ops.exp_row(row, columns, factor, next);
  }
  static constexpr T kLowest = -std::numeric_limits<T>::infinity();
};

template <typename T>
void forward(const Forward<T>& f, int threads) {
  const AttentionShape& shape = f.shape;
  const int64_t heads = shape.batch * shape.heads, blocks = (shape.s + kQueryTile - 1) / kQueryTile;
  // Whole heads where there are enough of them; blocks of queries do not depend on each other, so any division gives
  // the same bits.
  const int64_t pieces =
      heads == 0 ? 1 : std::clamp<int64_t>((4 * threads + heads - 1) / heads, 1, std::max<int64_t>(blocks, 1));
  const int64_t per_piece = (blocks + pieces - 1) / pieces * kQueryTile;
#pragma omp parallel
  {
    typename Forward<T>::Scratch scratch;
#pragma omp for schedule(dynamic, 1)
    for (int64_t task = 0; task < heads * pieces; ++task) {
      const int64_t head = task / pieces, begin = task % pieces * per_piece, end = std::min(begin + per_piece, shape.s);
      if (begin < end) f.run(head / shape.heads, head % shape.heads, begin, end, scratch);
    }
  }
}

}  // namespace

Kernel make_attention(const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(3, 4, 2));
  PARTITA_ASSIGN_OR_RETURN(AttentionShape shape,
                           AttentionShape::make(r, r.in(0), r.in(1), r.in(2), r.has_input(3) ? &r.in(3) : nullptr));
  const Operand &out = r.out(0), &lse = r.out(1);
  const DType dtype = r.dtype();
  if (*element_count(out.shape) != shape.batch * shape.heads * shape.s * shape.e || out.dtype != dtype ||
      *element_count(lse.shape) != shape.batch * shape.heads * shape.s ||
      (lse.dtype != DType::kF32 && lse.dtype != DType::kF64)) {
    return r.error("out [b, h, s, e] and lse [b, h, s] in f32 or f64");
  }
  const DType compute = attention_compute_type(dtype);
  if (compute == DType::kInvalid) return r.unsupported();
  const bool masked = r.has_input(3);
  const size_t out_at = r.inputs();
  ScratchLayout layout;
  std::vector<ComputeOperand> operands;
  for (const Operand& operand : r.step().operands) operands.emplace_back(operand, compute, &operand == &lse, layout);
  r.scratch()->reserve(layout.bytes());
  return make_kernel(
      [=, threads = r.threads(), lse_dtype = lse.dtype, memory = r.scratch()](std::span<std::byte* const> b) {
        std::byte* scratch = memory->data();
        auto run = [&]<typename T>(T) {
          auto in = [&](size_t i) { return as<T>(operands[i].input(b[i], scratch)); };
          const std::byte* mask = masked ? operands[3].input(b[3], scratch) : nullptr;
          T* to = as<T>(operands[out_at].output(b[out_at], scratch));
          forward(Forward<T>{shape, in(0), in(1), in(2), mask, to, b[out_at + 1], lse_dtype}, threads);
          operands[out_at].finish(b[out_at], scratch);
        };
        if (compute == DType::kF64)
          run(double{});
        else
          run(float{});
      });
}

}  // namespace partita::runtime
