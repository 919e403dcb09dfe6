// The inner loops of our own contractions and poolings, compiled for several instruction sets and chosen once by what
// the processor has. Serial.
#pragma once

#include <cstdint>

namespace partita::runtime {

// Whether the processor has all of AVX-512 that the widest of them take.
bool has_avx512();

// A part of a product's inner dimension: where it begins in the panels of A and of B, in elements, and how long it is.
struct PanelRun {
  int64_t a, b, k;
};

template <typename T>
struct TileOps {
  // C[m, n] (+)= A[m, k] B[k, n]. B and C have contiguous rows; A any strides. Meant for tiles that fit the caches.
  // Sums over k in order.
  void (*gemm)(T* c, int64_t c_row, const T* a, int64_t a_row, int64_t a_column, const T* b, int64_t b_row, int64_t m,
               int64_t n, int64_t k, bool accumulate);
  // The block of C that the registers hold.
  int64_t rows, columns;
  // Packs [extent, inner] elements, `across` apart and `along` apart, one of which is 1, into panels of `rows`, or of
  // `columns`, of the former: one panel after the other, each [inner, line], of which the first `rows` or `columns` are
  // written. What is missing of the last one is zero.
  void (*pack_rows)(T* to, int64_t line, const T* from, int64_t across, int64_t along, int64_t extent, int64_t inner);
  void (*pack_columns)(T* to, int64_t line, const T* from, int64_t across, int64_t along, int64_t extent,
                       int64_t inner);
  // C[rows, columns] (+)= a panel of A by one of B, along `count` runs, one after the other. The bits are gemm's.
  void (*panels)(T* c, int64_t c_row, const T* a, const T* b, const PanelRun* runs, int64_t count, bool accumulate);
  // The same with an A of any strides.
  void (*rows_by_panel)(T* c, int64_t c_row, const T* a, int64_t a_row, int64_t a_column, const T* b,
                        const PanelRun* runs, int64_t count, bool accumulate);
  // to[i] += from[i]; n a multiple of `columns`.
  void (*add)(T* to, const T* from, int64_t n);
  // row[i] = exp(scale * row[i] - shift) for finite scale and shift; returns the sum. An element of -infinity gives 0.
  T (*exp_row)(T* row, int64_t n, T scale, T shift);
  T (*max_row)(const T* row, int64_t n);
  // row[i] *= factor
  void (*scale_row)(T* row, int64_t n, T factor);
  // ds[i] = p[i] * (dp[i] - delta) * factor
  void (*softmax_grad_row)(T* ds, const T* p, const T* dp, int64_t n, T delta, T factor);
  T (*dot_row)(const T* a, const T* b, int64_t n);
  // Of max pooling: pool_rows.inc.
  void (*every)(T* to, const T* from, int64_t stride, int64_t n);
  void (*take_larger)(T* best, int32_t* at, const T* x, const int32_t* from, int32_t shift, int64_t n);
};

// The fastest version for this processor.
template <typename T>
const TileOps<T>& tile_ops();

extern const TileOps<float> kTileOpsGenericF32, kTileOpsAvx2F32, kTileOpsAvx512F32;
extern const TileOps<double> kTileOpsGenericF64, kTileOpsAvx2F64, kTileOpsAvx512F64;

}  // namespace partita::runtime
