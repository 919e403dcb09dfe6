// grouped_matmul, grouped_matmul_grad: rows are put in order of the matrix that their index names, and each matrix is
// multiplied with its own rows by what matmul uses, some rows at a time. Products of 16-bit operands are f32 ones of
// copies, rounded once.
#include <cstring>

#include "runtime/kernels/grouped_sizes.h"
#include "runtime/kernels/plain_product.h"
#include "runtime/kernels/table.h"

namespace partita::runtime {
namespace {

constexpr int64_t kRowsAtOnce = 1024;

// Rows in order of their matrix, and of their number within one.
class RowOrder {
 public:
  RowOrder(int64_t rows, int64_t matrices)
      : rows_(rows), matrices_(matrices), order_(static_cast<size_t>(rows)), ends_(static_cast<size_t>(matrices) + 1) {}

  template <typename I>
  void sort(const I* indices) {
    std::fill(ends_.begin(), ends_.end(), 0);
    for (int64_t r = 0; r < rows_; ++r) ++ends_[place(indices[r]) + 1];
    for (size_t e = 1; e < ends_.size(); ++e) ends_[e] += ends_[e - 1];
    for (int64_t r = 0; r < rows_; ++r) order_[static_cast<size_t>(ends_[place(indices[r])]++)] = r;
  }
  // f(matrix, its rows), matrices without rows too.
  template <typename F>
  void for_each(F f) const {
    int64_t begin = 0;
    for (int64_t e = 0; e < matrices_; ++e) {
      const int64_t end = ends_[static_cast<size_t>(e)];
      f(e, std::span(order_).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
      begin = end;
    }
  }

 private:
  template <typename I>
  size_t place(I index) const {
    return static_cast<size_t>(clamp_index(index, matrices_));
  }
  int64_t rows_, matrices_;
  std::vector<int64_t> order_;
  std::vector<int64_t> ends_;  // of each matrix's rows in the order, once they are in it
};

template <typename T, typename A>
void convert(const T* from, A* to, int64_t count) {
#pragma omp parallel for schedule(static) if (worth_threads(count))
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<A>(static_cast<Accumulator<T>>(from[i]));
}

// Row k of `to` is row rows[k] of `from`.
template <typename T>
void pack_rows(const T* from, std::span<const int64_t> rows, int64_t width, Accumulator<T>* to) {
  const int64_t count = static_cast<int64_t>(rows.size());
#pragma omp parallel for schedule(static) if (worth_threads(count * width))
  for (int64_t k = 0; k < count; ++k) {
    const T* row = from + rows[static_cast<size_t>(k)] * width;
    for (int64_t i = 0; i < width; ++i) to[k * width + i] = row[i];
  }
}

template <typename T>
void unpack_rows(const Accumulator<T>* from, std::span<const int64_t> rows, int64_t width, T* to) {
  const int64_t count = static_cast<int64_t>(rows.size());
#pragma omp parallel for schedule(static) if (worth_threads(count * width))
  for (int64_t k = 0; k < count; ++k) {
    T* row = to + rows[static_cast<size_t>(k)] * width;
    for (int64_t i = 0; i < width; ++i) row[i] = static_cast<T>(from[k * width + i]);
  }
}

template <typename F>
void for_chunks(std::span<const int64_t> rows, F f) {
  for (size_t at = 0; at < rows.size(); at += kRowsAtOnce)
    f(at == 0, rows.subspan(at, std::min<size_t>(kRowsAtOnce, rows.size() - at)));
}

// A float type and its products' type.
template <typename T>
class GroupedProduct {
 public:
  using A = Accumulator<T>;
  static constexpr bool kWidened = !std::is_same_v<T, A>;

  GroupedProduct(const KernelRequest& r, const GroupedSizes& sizes)
      : sizes_(sizes), threads_(r.threads()), order_(sizes.rows, sizes.matrices), memory_(r.scratch()) {
    ScratchLayout layout;
    const int64_t chunk = std::min(sizes.rows, kRowsAtOnce);
    const auto take = [&](int64_t count) { return layout.take(count * static_cast<int64_t>(sizeof(A))); };
    left_at_ = take(chunk * sizes.inner);
    right_at_ = take(chunk * sizes.columns);
    if (kWidened) matrix_at_ = take(sizes.matrix());
    memory_->reserve(layout.bytes());
  }

  // y[r] = x[r] w[indices[r]]
  template <typename I>
  void run(const T* x, const T* w, const I* indices, bool transposed, T* y) {
    if (sizes_.matrices == 0 || sizes_.inner == 0) {
      std::fill_n(y, sizes_.rows * sizes_.columns, T{});
      return;
    }
    A *left = at(left_at_), *result = at(right_at_);
    order_.sort(indices);
    order_.for_each([&](int64_t e, std::span<const int64_t> own) {
      if (own.empty()) return;
      const A* matrix = wide(w + e * sizes_.matrix());
      for_chunks(own, [&](bool, std::span<const int64_t> rows) {
        pack_rows(x, rows, sizes_.inner, left);
        MatmulPlan plan;
        plan.m = static_cast<int64_t>(rows.size()), plan.n = sizes_.columns, plan.k = sizes_.inner;
        plan.transpose_b = transposed;
        multiply(plan, threads_, left, matrix, result);
        unpack_rows(result, rows, sizes_.columns, y);
      });
    });
  }

  // dw[e] = sum of a[r]^T b[r] over the rows r of e
  template <typename I>
  void run_grad(const T* a, const T* b, const I* indices, T* dw) {
    if (sizes_.matrices == 0) return;
    A *left = at(left_at_), *right = at(right_at_);
    order_.sort(indices);
    order_.for_each([&](int64_t e, std::span<const int64_t> own) {
      T* to = dw + e * sizes_.matrix();
      if (own.empty()) {
        std::fill_n(to, sizes_.matrix(), T{});
        return;
      }
      A* sum = kWidened ? at(matrix_at_) : reinterpret_cast<A*>(to);
      for_chunks(own, [&](bool first, std::span<const int64_t> rows) {
        pack_rows(a, rows, sizes_.inner, left);
        pack_rows(b, rows, sizes_.columns, right);
        MatmulPlan plan;
        plan.m = sizes_.inner, plan.n = sizes_.columns, plan.k = static_cast<int64_t>(rows.size());
        plan.transpose_a = true;
        plan.accumulate = !first;
        multiply(plan, threads_, left, right, sum);
      });
      if (kWidened) convert(sum, to, sizes_.matrix());
    });
  }

 private:
  A* at(int64_t offset) const { return as<A>(memory_->data() + offset); }
  const A* wide(const T* matrix) const {
    if constexpr (kWidened) {
      convert(matrix, at(matrix_at_), sizes_.matrix());
      return at(matrix_at_);
    } else {
      return matrix;
    }
  }

  GroupedSizes sizes_;
  int threads_;
  RowOrder order_;
  std::shared_ptr<KernelScratch> memory_;
  int64_t left_at_ = 0, right_at_ = 0, matrix_at_ = 0;
};

// f(a product of the request's type, an index of its type).
template <typename F>
Kernel make_grouped(const KernelRequest& r, const GroupedSizes& sizes, F f) {
  Kernel kernel = r.unsupported();
  with_float_type(r.dtype(), [&]<typename T>(T) {
    with_index_type(r.dtype(2), [&]<typename I>(I) { kernel = f(GroupedProduct<T>(r, sizes), T{}, I{}); });
  });
  return kernel;
}

}  // namespace

absl::StatusOr<GroupedSizes> GroupedSizes::of_product(const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(3, 3, 1));
  const Shape &x = r.in(0).shape, &w = r.in(1).shape;
  const bool transposed = r.i("transpose_b", 0) != 0;
  if (x.size() != 2 || w.size() != 3 || r.in(2).shape != Shape{x[0]} || w[transposed ? 2 : 1] != x[1] ||
      r.out(0).shape != Shape{x[0], w[transposed ? 1 : 2]})
    return r.error("rows, matrices of their width and an index for each row");
  if (r.dtype(1) != r.dtype() || r.out(0).dtype != r.dtype()) return r.error("operands of one dtype");
  return GroupedSizes{x[0], x[1], r.out(0).shape[1], w[0], transposed};
}

absl::StatusOr<GroupedSizes> GroupedSizes::of_gradient(const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(3, 3, 1));
  const Shape &a = r.in(0).shape, &g = r.in(1).shape, &dw = r.out(0).shape;
  if (a.size() != 2 || g.size() != 2 || dw.size() != 3 || r.in(2).shape != Shape{a[0]} || g[0] != a[0] ||
      dw[1] != a[1] || dw[2] != g[1])
    return r.error("rows of both operands and an index for each, and a matrix for each index");
  if (r.dtype(1) != r.dtype() || r.out(0).dtype != r.dtype()) return r.error("operands of one dtype");
  return GroupedSizes{a[0], a[1], g[1], dw[0]};
}

Kernel make_grouped_matmul(const KernelRequest& r) {
  PARTITA_ASSIGN_OR_RETURN(const GroupedSizes sizes, GroupedSizes::of_product(r));
  return make_grouped(r, sizes, [&]<typename T, typename I>(GroupedProduct<T> product, T, I) {
    return make_kernel([product, transposed = sizes.transposed](std::span<std::byte* const> b) mutable {
      product.run(as<T>(b[0]), as<T>(b[1]), as<I>(b[2]), transposed, as<T>(b[3]));
    });
  });
}

Kernel make_grouped_matmul_grad(const KernelRequest& r) {
  PARTITA_ASSIGN_OR_RETURN(const GroupedSizes sizes, GroupedSizes::of_gradient(r));
  return make_grouped(r, sizes, [&]<typename T, typename I>(GroupedProduct<T> product, T, I) {
    return make_kernel([product](std::span<std::byte* const> b) mutable {
      product.run_grad(as<T>(b[0]), as<T>(b[1]), as<I>(b[2]), as<T>(b[3]));
    });
  });
}

}  // namespace partita::runtime
