// attention_grad: P is computed again from lse, tile by tile (FlashAttention-2). With delta = rows of sum(g * out):
//   P = exp(S - lse);  dv += P^T g;  dP = g v^T;  dS = P (dP - delta) scale;  dk += dS^T q;  dq += dS k
// One task owns a key-value head: no two tasks write one element. Where there are fewer of those than threads, dk and
// dv are computed by blocks of keys and dq by blocks of queries in a second pass (S and dP are computed twice). Sums
// run in the same order both ways: the bits do not depend on the threads.
#include <vector>

#include "runtime/kernels/attention.h"
#include "runtime/kernels/table.h"

namespace partita::runtime {
namespace {

template <typename T>
struct Backward {
  AttentionShape shape;
  const T *g, *q, *k, *v;
  const std::byte* mask;
  const T* out;
  const std::byte* lse;
  DType lse_dtype;
  T *dq, *dk, *dv, *delta;

  struct Scratch {
    std::vector<T> keys, values, p, ds;
  };

  // Tiles of the keys and values of one block, transposed.
  struct Packed {
    const T *keys, *values;
    int64_t columns;
  };

  T lse_at(int64_t i) const {
    return lse_dtype == DType::kF64 ? static_cast<T>(reinterpret_cast<const double*>(lse)[i])
                                    : static_cast<T>(reinterpret_cast<const float*>(lse)[i]);
  }

  void resize(Scratch& s, int64_t columns) const {
    s.keys.resize(static_cast<size_t>(shape.d * columns));
    s.values.resize(static_cast<size_t>(shape.e * columns));
    s.p.resize(kQueryTile * kKeyTile);
    s.ds.resize(kQueryTile * kKeyTile);
  }

  // P and dS of one tile, into scratch.
  void scores(int64_t b, int64_t h, int64_t i0, int64_t rows, int64_t j0, int64_t columns, const Packed& packed,
              Scratch& s) const {
    const TileOps<T>& ops = tile_ops<T>();
    const int64_t head = b * shape.heads + h, first = head * shape.s + i0, padded = std::min(kKeyTile, packed.columns);
    ops.gemm(s.p.data(), kKeyTile, q + shape.q.at(b, h, i0), shape.q.row, 1, packed.keys, packed.columns, rows, padded,
             shape.d, false);
    ops.gemm(s.ds.data(), kKeyTile, g + shape.g.at(b, h, i0), shape.g.row, 1, packed.values, packed.columns, rows,
             padded, shape.e, false);
    const T factor = mask_tile(shape, mask_of_head(shape, mask, b, h), i0, rows, j0, columns, s.p.data(), kKeyTile);
    for (int64_t i = 0; i < rows; ++i) {
      T *p = s.p.data() + i * kKeyTile, *ds = s.ds.data() + i * kKeyTile;
      const T shift = lse_at(first + i);
      if (shift == -std::numeric_limits<T>::infinity()) {
        std::fill_n(p, columns, T(0));
      } else {
        ops.exp_row(p, columns, factor, shift);
      }
      ops.softmax_grad_row(ds, p, ds, columns, delta[first + i], static_cast<T>(shape.scale));
    }
  }

  void add_keys(int64_t b, int64_t h, int64_t i0, int64_t rows, int64_t j0, int64_t columns, const Scratch& s) const {
    const TileOps<T>& ops = tile_ops<T>();
    const int64_t kv = h / shape.group();
    ops.gemm(dv + shape.dv.at(b, kv, j0), shape.dv.row, s.p.data(), 1, kKeyTile, g + shape.g.at(b, h, i0), shape.g.row,
             columns, shape.e, rows, true);
    ops.gemm(dk + shape.dk.at(b, kv, j0), shape.dk.row, s.ds.data(), 1, kKeyTile, q + shape.q.at(b, h, i0), shape.q.row,
             columns, shape.d, rows, true);
  }
  void add_queries(int64_t b, int64_t h, int64_t i0, int64_t rows, int64_t j0, int64_t columns,
                   const Scratch& s) const {
    tile_ops<T>().gemm(dq + shape.dq.at(b, h, i0), shape.dq.row, s.ds.data(), kKeyTile, 1,
                       k + shape.k.at(b, h / shape.group(), j0), shape.k.row, rows, shape.d, columns, true);
  }

  // Keys and values of a block, transposed.
  Packed pack(int64_t b, int64_t kv, int64_t j0, int64_t columns, Scratch& s) const {
    const int64_t padded = (columns + 31) / 32 * 32;
    pack_transposed(k + shape.k.at(b, kv, j0), columns, shape.d, shape.k.row, s.keys.data(), padded);
    pack_transposed(v + shape.v.at(b, kv, j0), columns, shape.e, shape.v.row, s.values.data(), padded);
    return {s.keys.data(), s.values.data(), padded};
  }

  // One block of keys of a key-value head, against all queries of its group; `queries` says whether dq is written too.
  void key_block(int64_t b, int64_t kv_head, int64_t j0, bool queries, Scratch& s) const {
    const int64_t columns = std::min(kKeyTile, shape.t - j0);
    resize(s, kKeyTile);
    for (int64_t j = j0; j < j0 + columns; ++j) {
      std::fill_n(dk + shape.dk.at(b, kv_head, j), shape.d, T(0));
      std::fill_n(dv + shape.dv.at(b, kv_head, j), shape.e, T(0));
    }
    const Packed packed = pack(b, kv_head, j0, columns, s);
    for (int64_t h = kv_head * shape.group(); h < (kv_head + 1) * shape.group(); ++h) {
      for (int64_t i0 = shape.query_begin(j0) / kQueryTile * kQueryTile; i0 < shape.s; i0 += kQueryTile) {
        const int64_t rows = std::min(kQueryTile, shape.s - i0);
        const int64_t seen = std::min(columns, shape.key_end(i0, rows) - j0);
        if (seen <= 0) continue;
        scores(b, h, i0, rows, j0, seen, packed, s);
        add_keys(b, h, i0, rows, j0, seen, s);
        if (queries) add_queries(b, h, i0, rows, j0, seen, s);
      }
    }
  }

  void query_block(int64_t b, int64_t h, int64_t i0, Scratch& s) const {
    const int64_t rows = std::min(kQueryTile, shape.s - i0);
    resize(s, kKeyTile);
    const int64_t keys = shape.key_end(i0, rows);
    for (int64_t j0 = 0; j0 < keys; j0 += kKeyTile) {
      const int64_t columns = std::min(kKeyTile, keys - j0);
      scores(b, h, i0, rows, j0, columns, pack(b, h / shape.group(), j0, columns, s), s);
      add_queries(b, h, i0, rows, j0, columns, s);
    }
  }
};

template <typename T>
void backward(const Backward<T>& f, int threads) {
  const AttentionShape& shape = f.shape;
  const int64_t rows = shape.batch * shape.heads * shape.s, kv_heads = shape.batch * shape.kv_heads;
  const int64_t key_blocks = (shape.t + kKeyTile - 1) / kKeyTile,
                query_blocks = (shape.s + kQueryTile - 1) / kQueryTile;
  const TileOps<T>& ops = tile_ops<T>();
  const bool one_pass = kv_heads >= threads;
#pragma omp parallel
  {
    typename Backward<T>::Scratch scratch;
#pragma omp for schedule(static)
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t head = i / shape.s, b = head / shape.heads, h = head % shape.heads, row = i % shape.s;
      f.delta[i] = ops.dot_row(f.g + shape.g.at(b, h, row), f.out + shape.out.at(b, h, row), shape.e);
      std::fill_n(f.dq + shape.dq.at(b, h, row), shape.d, T(0));
    }
    if (one_pass) {
#pragma omp for schedule(dynamic, 1)
      for (int64_t head = 0; head < kv_heads; ++head) {
        for (int64_t block = 0; block < key_blocks; ++block)
          f.key_block(head / shape.kv_heads, head % shape.kv_heads, block * kKeyTile, true, scratch);
      }
    } else {
#pragma omp for schedule(dynamic, 1)
      for (int64_t task = 0; task < kv_heads * key_blocks; ++task) {
        const int64_t head = task / key_blocks;
        f.key_block(head / shape.kv_heads, head % shape.kv_heads, task % key_blocks * kKeyTile, false, scratch);
      }
#pragma omp for schedule(dynamic, 1)
      for (int64_t task = 0; task < shape.batch * shape.heads * query_blocks; ++task) {
        const int64_t head = task / query_blocks;
        f.query_block(head / shape.heads, head % shape.heads, task % query_blocks * kQueryTile, scratch);
      }
    }
  }
}

}  // namespace

// Inputs g, q, k, v, mask (may be left out), out, lse; outputs dq, dk, dv, or one in which all of them lie.
Kernel make_attention_grad(const KernelRequest& r) {
  const bool together = r.has_param("together");
  PARTITA_RETURN_IF_ERROR(r.expect_operands(6, 7, together ? 1 : 3, 4));
  const bool masked = r.inputs() == 7 && r.in(4).dtype != DType::kInvalid;
  const size_t out_at = r.inputs() - 2, lse_at = r.inputs() - 1, first = r.inputs();
  PARTITA_ASSIGN_OR_RETURN(AttentionShape shape,
                           AttentionShape::make(r, r.in(1), r.in(2), r.in(3), masked ? &r.in(4) : nullptr));
  const DType dtype = r.dtype(), lse_dtype = r.in(lse_at).dtype;
  const int64_t rows = shape.batch * shape.heads * shape.s, keys = shape.batch * shape.kv_heads * shape.t;
  const auto has = [&](const Operand& o, int64_t count) {
    return o.dtype == dtype && (r.has_param("sizes") || *element_count(o.shape) == count);  // else make() has looked
  };
  const auto result = [&](size_t k) -> const Operand& { return r.out(together ? 0 : k); };
  const bool fits = has(r.in(0), rows * shape.e) && has(r.in(1), rows * shape.d) && has(r.in(out_at), rows * shape.e) &&
                    *element_count(r.in(lse_at).shape) == rows &&
                    (lse_dtype == DType::kF32 || lse_dtype == DType::kF64) && has(result(0), rows * shape.d) &&
                    has(result(1), keys * shape.d) && has(result(2), keys * shape.e);
  if (!fits) return r.error("g, q, k, v, mask, out, lse -> dq, dk, dv");
  const DType compute = attention_compute_type(dtype);
  if (compute == DType::kInvalid) return r.unsupported();
  ScratchLayout layout;
  std::vector<ComputeOperand> operands;
  for (const Operand& operand : r.step().operands)
    operands.emplace_back(operand, compute, &operand == &r.in(lse_at), layout);
  const int64_t delta = layout.take(rows * dtype_size(compute));
  r.scratch()->reserve(layout.bytes());
  return make_kernel([=, threads = r.threads(), memory = r.scratch()](std::span<std::byte* const> b) {
    std::byte* scratch = memory->data();
    auto run = [&]<typename T>(T) {
      auto in = [&](size_t i) { return as<T>(operands[i].input(b[i], scratch)); };
      auto out = [&](size_t i) { return as<T>(operands[i].output(b[i], scratch)); };
      const std::byte* mask = masked ? operands[4].input(b[4], scratch) : nullptr;
      T *dq = out(first), *dk = together ? dq : out(first + 1), *dv = together ? dq : out(first + 2);
      backward(Backward<T>{shape, in(0), in(1), in(2), in(3), mask, in(out_at), b[lse_at], lse_dtype, dq, dk, dv,
                           as<T>(scratch + delta)},
               threads);
      for (size_t i = first; i < b.size(); ++i) operands[i].finish(b[i], scratch);
    };
    if (compute == DType::kF64)
      run(double{});
    else
      run(float{});
  });
}

}  // namespace partita::runtime
