// Kernels along one dimension of x seen as [outer, n, inner]: cumsum, argmax, topk.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "runtime/kernels/table.h"

namespace partita::runtime {
namespace {

struct Extent {
  int64_t outer = 1, n = 1, inner = 1;
};

absl::StatusOr<Extent> extent_along_dim(const KernelRequest& r) {
  const Shape& shape = r.in(0).shape;
  const int64_t dim = resolve_dim(r.i("dim", 0), shape.size());
  if (dim < 0) return r.error(cat("a dim inside its input, not ", r.i("dim", 0)));
  const size_t d = static_cast<size_t>(dim);
  return Extent{product(shape, 0, d), shape[d], product(shape, d + 1, shape.size())};
}

// NaN counts as the largest value and equals itself, so that this is a strict order.
template <typename T>
bool greater(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return a > b;
  } else {
    const Accumulator<T> x = a, y = b;
    return x > y || (std::isnan(x) && !std::isnan(y));
  }
}

template <typename T>
void cumsum(const T* x, T* y, const Extent& e, bool exclusive, bool reverse) {
  constexpr int64_t kBlock = 64;
  const int64_t blocks = (e.inner + kBlock - 1) / kBlock;
#pragma omp parallel for schedule(static) if (worth_threads(e.outer * e.n * e.inner))
  for (int64_t b = 0; b < e.outer * blocks; ++b) {
    const int64_t column = b % blocks * kBlock, width = std::min(kBlock, e.inner - column);
    Accumulator<T> sum[kBlock] = {};
    for (int64_t j = 0; j < e.n; ++j) {
      const int64_t at = (b / blocks * e.n + (reverse ? e.n - 1 - j : j)) * e.inner + column;
      for (int64_t i = 0; i < width; ++i) {
        const Accumulator<T> before = sum[i], value = x[at + i];
        sum[i] = static_cast<Accumulator<T>>(before + value);
        y[at + i] = static_cast<T>(exclusive ? before : sum[i]);
      }
    }
  }
}

template <typename T>
void argmax(const T* x, int64_t* y, const Extent& e, bool last) {
#pragma omp parallel for schedule(static) if (worth_threads(e.outer * e.n * e.inner))
  for (int64_t c = 0; c < e.outer * e.inner; ++c) {
    const T* column = x + c / e.inner * e.n * e.inner + c % e.inner;
    int64_t best = 0;
    for (int64_t j = 1; j < e.n; ++j) {
      const bool better = last ? !greater(column[best * e.inner], column[j * e.inner])
                               : greater(column[j * e.inner], column[best * e.inner]);
      if (better) best = j;
    }
    y[c] = best;
  }
}

template <typename T>
void topk(const T* x, T* values, int64_t* indices, const Extent& e, int64_t k, bool largest) {
#pragma omp parallel if (worth_threads(e.outer * e.n * e.inner))
  {
    std::vector<int64_t> order(static_cast<size_t>(e.n));
#pragma omp for schedule(static)
    for (int64_t c = 0; c < e.outer * e.inner; ++c) {
      const T* column = x + c / e.inner * e.n * e.inner + c % e.inner;
      std::iota(order.begin(), order.end(), int64_t{0});
      std::partial_sort(order.begin(), order.begin() + k, order.end(), [&](int64_t a, int64_t b) {
        const T &va = column[a * e.inner], &vb = column[b * e.inner];
        if (largest ? greater(va, vb) : greater(vb, va)) return true;
        return (largest ? !greater(vb, va) : !greater(va, vb)) && a < b;
      });
      for (int64_t j = 0; j < k; ++j) {
        const int64_t to = (c / e.inner * k + j) * e.inner + c % e.inner;
        values[to] = column[order[static_cast<size_t>(j)] * e.inner];
        indices[to] = order[static_cast<size_t>(j)];
      }
    }
  }
}

}  // namespace

Kernel make_cumsum(const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(1, 1, 1));
  if (r.in(0).shape != r.out(0).shape || r.dtype(0) != r.dtype(1)) return r.error("equal types");
  PARTITA_ASSIGN_OR_RETURN(const Extent e, extent_along_dim(r));
  const bool exclusive = r.i("exclusive", 0) != 0, reverse = r.i("reverse", 0) != 0;
  Kernel kernel = r.unsupported();
  with_number_type(r.dtype(), [&]<typename T>(T) {
    kernel =
        make_kernel([=](std::span<std::byte* const> b) { cumsum(as<T>(b[0]), as<T>(b[1]), e, exclusive, reverse); });
  });
  return kernel;
}

Kernel make_argmax(const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(1, 1, 1));
  PARTITA_ASSIGN_OR_RETURN(const Extent e, extent_along_dim(r));
  if (e.n == 0 || r.out(0).dtype != DType::kI64 || *element_count(r.out(0).shape) != e.outer * e.inner)
    return r.error("x with a dim that is not empty, i64 indices without it");
  const bool last = r.i("last", 0) != 0;
  Kernel kernel = r.unsupported();
  with_number_type(r.dtype() == DType::kBool ? DType::kU8 : r.dtype(), [&]<typename T>(T) {
    kernel = make_kernel([=](std::span<std::byte* const> b) { argmax(as<T>(b[0]), as<int64_t>(b[1]), e, last); });
  });
  return kernel;
}

Kernel make_topk(const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(1, 1, 2));
  PARTITA_ASSIGN_OR_RETURN(const Extent e, extent_along_dim(r));
  const int64_t k = r.i("k", 0), count = e.outer * k * e.inner;
  if (k < 0 || k > e.n || r.out(0).dtype != r.dtype() || r.out(1).dtype != DType::kI64 ||
      *element_count(r.out(0).shape) != count || *element_count(r.out(1).shape) != count) {
    return r.error(cat("k <= the dim's size, values and i64 indices with k = ", k, " in its place"));
  }
  const bool largest = r.i("largest", 1) != 0;
  Kernel kernel = r.unsupported();
  with_number_type(r.dtype(), [&]<typename T>(T) {
    kernel = make_kernel(
        [=](std::span<std::byte* const> b) { topk(as<T>(b[0]), as<T>(b[1]), as<int64_t>(b[2]), e, k, largest); });
  });
  return kernel;
}

}  // namespace partita::runtime
