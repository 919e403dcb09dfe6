// grouped_matmul, grouped_matmul_grad: rows are put in order of the matrix that their index names, and each matrix is
// multiplied with its own rows, a block of rows and columns at a time, packed or by oneDNN's BLAS entry. Products of
// 16-bit operands are f32 ones of copies, rounded once.
#include <omp.h>

#include "runtime/kernels/grouped_sizes.h"
#include "runtime/kernels/onednn.h"
#include "runtime/kernels/packed_matmul.h"
#include "runtime/kernels/table.h"
#include "runtime/kernels/tile_ops.h"

namespace partita::runtime {
namespace {

// Rows in order of their matrix, and of their number within one; those that no matrix here takes come last.
class RowOrder {
 public:
  explicit RowOrder(const GroupedSizes& sizes)
      : sizes_(sizes), order_(static_cast<size_t>(sizes.rows())), ends_(static_cast<size_t>(sizes.matrices) + 2) {}

  // `first`: null where there is one part.
  template <typename I>
  void sort(const I* indices, const int64_t* first) {
    std::fill(ends_.begin(), ends_.end(), 0);
    for_places(indices, first, [&](int64_t, size_t e) { ++ends_[e + 1]; });
    for (size_t e = 1; e < ends_.size(); ++e) ends_[e] += ends_[e - 1];
    for_places(indices, first, [&](int64_t row, size_t e) { order_[static_cast<size_t>(ends_[e]++)] = row; });
  }
  // f(matrix, its rows), matrices without rows too.
  template <typename F>
  void for_each(F f) const {
    int64_t begin = 0;
    for (int64_t e = 0; e < sizes_.matrices; ++e) {
      const int64_t end = ends_[static_cast<size_t>(e)];
      f(e, std::span(order_).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
      begin = end;
    }
  }

  std::span<const int64_t> rows_of_none() const {
    const int64_t begin = sizes_.matrices == 0 ? 0 : ends_[static_cast<size_t>(sizes_.matrices) - 1];
    return std::span(order_).subspan(static_cast<size_t>(begin));
  }

 private:
  // f(row, its matrix, or the number of all where it has none here)
  template <typename I, typename F>
  void for_places(const I* indices, const int64_t* first, F f) const {
    const int64_t each = sizes_.matrices / sizes_.parts;
    for (int64_t p = 0; p < sizes_.parts; ++p) {
      for (int64_t i = 0; i < sizes_.indices; ++i) {
        const int64_t e = clamp_index(indices[i], sizes_.total) - (first == nullptr ? 0 : first[p]);
        f(p * sizes_.indices + i, static_cast<size_t>(e >= 0 && e < each ? p * each + e : sizes_.matrices));
      }
    }
  }

  GroupedSizes sizes_;
  std::vector<int64_t> order_;
  std::vector<int64_t> ends_;  // of each matrix's rows in the order, once they are in it
};

// What a task does at once, of a matrix's rows and of its columns.
constexpr int64_t kRows = 256, kColumns = 512;

// Whether a task's product is one of packed operands (packed_matmul.h). f64 has nothing else.
template <typename A>
bool packs_operands() {
  return std::is_same_v<A, double> || !has_avx512();
}

// On the calling thread alone; `scratch` is for what is packed.
template <typename A>
void multiply(const PackedShape& p, const A* a, const A* b, A* c, std::byte* scratch) {
  if (packs_operands<A>()) return multiply_packed(p, a, b, c, scratch);
  if constexpr (std::is_same_v<A, float>) {
    const bool turned_a = p.a_row == 1 && p.a_column != 1, turned_b = p.b_row == 1 && p.b_column != 1;
    onednn_sgemm(turned_a, turned_b, p.m, p.n, p.k, a, turned_a ? p.a_column : std::max(p.a_row, p.k), b,
                 turned_b ? p.b_column : std::max(p.b_row, p.n), p.accumulate, c, p.c_row);
  }
}

// Columns [first, first + width) of an operand's rows of `stride` elements, for these rows, as matrix of that width.
template <typename T>
void pack_rows(const T* from, const GroupedSizes::Rows& of, std::span<const int64_t> rows, int64_t stride,
               int64_t first, int64_t width, Accumulator<T>* to) {
  for (size_t k = 0; k < rows.size(); ++k) {
    const T* row = from + of(rows[k]) * stride + first;
    for (int64_t i = 0; i < width; ++i) *to++ = row[i];
  }
}

// A float type and its products' type. Tasks are independent and each element is one task's, so that the threads may
// take them in any order.
template <typename T>
class GroupedProduct {
 public:
  using A = Accumulator<T>;
  static constexpr bool kWidened = !std::is_same_v<T, A>;

  GroupedProduct(const KernelRequest& r, const GroupedSizes& sizes)
      : sizes_(sizes), threads_(r.threads()), order_(sizes), memory_(r.scratch()) {
    ScratchLayout layout;
    const auto take = [&](int64_t count) { return layout.take(count * static_cast<int64_t>(sizeof(A))); };
    const int64_t rows = std::min(sizes.rows(), kRows), inner = std::min(sizes.inner, kColumns),
                  columns = std::min(sizes.columns, kColumns);
    left_at_ = take(rows * sizes.inner);  // of a product all of it, of a gradient some columns
    right_at_ = take(rows * columns);
    matrix_at_ = take(kWidened ? sizes.inner * columns : 0);
    packed_at_ = layout.take(packs_operands<A>() ? most_packed(rows, inner, columns) : 0);
    thread_bytes_ = layout.bytes();
    memory_->reserve(thread_bytes_ * threads_);
  }

  // y[r] = x[r] w[indices[r]]
  template <typename I>
  void run(const T* x, const T* w, const I* indices, const int64_t* first, T* y) {
    if (sizes_.matrices == 0 || sizes_.inner == 0) {
      std::fill_n(y, sizes_.rows() * sizes_.columns, T{});
      return;
    }
    order_.sort(indices, first);
    for (int64_t row : order_.rows_of_none()) std::fill_n(y + row * sizes_.columns, sizes_.columns, T{});
    tasks_.clear();
    order_.for_each([&](int64_t e, std::span<const int64_t> own) {
      for (size_t at = 0; at < own.size(); at += kRows) {
        for (int64_t c = 0; c < sizes_.columns; c += kColumns)
          tasks_.push_back({e, own.subspan(at, std::min<size_t>(kRows, own.size() - at)), 0, c});
      }
    });
    for_tasks([&](const Task& t, std::byte* scratch) {
      A *left = as<A>(scratch + left_at_), *result = as<A>(scratch + right_at_);
      const int64_t rows = static_cast<int64_t>(t.rows.size()), inner = sizes_.inner, stride = sizes_.columns,
                    width = std::min(kColumns, stride - t.column);
      const bool turned = sizes_.transposed;
      const T* matrix = w + t.matrix * sizes_.matrix() + t.column * (turned ? inner : 1);
      pack_rows(x, sizes_.a, t.rows, inner, 0, inner, left);
      const auto product = [&](const A* right, int64_t row) {
        multiply({.m = rows,
                  .n = width,
                  .k = inner,
                  .a_row = inner,
                  .a_column = 1,
                  .b_row = turned ? 1 : row,
                  .b_column = turned ? row : 1,
                  .c_row = width},
                 left, right, result, scratch + packed_at_);
      };
      if constexpr (kWidened) {
        A* copy = as<A>(scratch + matrix_at_);
        const int64_t lines = turned ? width : inner, line = turned ? inner : width;
        for (int64_t i = 0; i < lines; ++i) std::copy_n(matrix + i * (turned ? inner : stride), line, copy + i * line);
        product(copy, line);
      } else {
        product(matrix, turned ? inner : stride);
      }
      for (int64_t k = 0; k < rows; ++k)
        std::copy_n(result + k * width, width, y + t.rows[static_cast<size_t>(k)] * stride + t.column);
    });
  }

  // dw[e] = sum of a[r]^T b[r] over the rows r of e
  template <typename I>
  void run_grad(const T* a, const T* b, const I* indices, const int64_t* first, T* dw) {
    if (sizes_.matrices == 0) return;
    order_.sort(indices, first);
    tasks_.clear();
    order_.for_each([&](int64_t e, std::span<const int64_t> own) {
      for (int64_t k = 0; k < sizes_.inner; k += kColumns) {
        for (int64_t c = 0; c < sizes_.columns; c += kColumns) tasks_.push_back({e, own, k, c});
      }
    });
    for_tasks([&](const Task& t, std::byte* scratch) {
      A *left = as<A>(scratch + left_at_), *right = as<A>(scratch + right_at_);
      const int64_t stride = sizes_.columns, height = std::min(kColumns, sizes_.inner - t.row),
                    width = std::min(kColumns, stride - t.column);
      T* to = dw + t.matrix * sizes_.matrix() + t.row * stride + t.column;
      A* sum = kWidened ? as<A>(scratch + matrix_at_) : reinterpret_cast<A*>(to);
      const int64_t sum_stride = kWidened ? width : stride;
      for (size_t at = 0; at < t.rows.size(); at += kRows) {
        const auto rows = t.rows.subspan(at, std::min<size_t>(kRows, t.rows.size() - at));
        pack_rows(a, sizes_.a, rows, sizes_.inner, t.row, height, left);
        pack_rows(b, sizes_.b, rows, stride, t.column, width, right);
        multiply({.m = height,
                  .n = width,
                  .k = static_cast<int64_t>(rows.size()),
                  .a_row = 1,
                  .a_column = height,
                  .b_row = width,
                  .b_column = 1,
                  .c_row = sum_stride,
                  .accumulate = at > 0},
                 left, right, sum, scratch + packed_at_);
      }
      for (int64_t k = 0; k < height; ++k) {
        if (t.rows.empty()) {
          std::fill_n(to + k * stride, width, T{});
        } else if (kWidened) {
          std::copy_n(sum + k * width, width, to + k * stride);
        }
      }
    });
  }

 private:
  // Of matrix `matrix`: these rows, from these of its rows and columns on.
  struct Task {
    int64_t matrix;
    std::span<const int64_t> rows;
    int64_t row, column;
  };

  // Bytes that any task packs at most: of a product as many rows as there are or fewer, of a gradient any sizes' ends.
  int64_t most_packed(int64_t rows, int64_t inner, int64_t columns) const {
    int64_t most = 0;
    const auto count = [&](int64_t m, int64_t n, int64_t k) {
      if (std::min({m, n, k}) > 0) most = std::max(most, packed_scratch<A>({.m = m, .n = n, .k = k}));
    };
    for (int64_t n : {columns, sizes_.columns % kColumns}) {
      for (int64_t m = 1; m <= rows; ++m) count(m, n, sizes_.inner);
      for (int64_t m : {inner, sizes_.inner % kColumns}) count(m, n, rows);
    }
    return most;
  }

  // f(task, this thread's scratch memory)
  template <typename F>
  void for_tasks(F f) {
    const int64_t work = sizes_.indices * sizes_.matrix(), count = static_cast<int64_t>(tasks_.size());
    const int threads = omp_get_max_threads(), team = work < kWorthThreads ? 1 : std::min(threads_, threads);
    omp_set_num_threads(1);  // in the products: else those of a team of one would start teams of their own
#pragma omp parallel for schedule(dynamic) num_threads(team)
    for (int64_t i = 0; i < count; ++i)
      f(tasks_[static_cast<size_t>(i)], memory_->data() + omp_get_thread_num() * thread_bytes_);
    omp_set_num_threads(threads);
  }

  GroupedSizes sizes_;
  int threads_;
  RowOrder order_;
  std::shared_ptr<KernelScratch> memory_;
  int64_t left_at_ = 0, right_at_ = 0, matrix_at_ = 0, packed_at_ = 0, thread_bytes_ = 0;
  std::vector<Task> tasks_;
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

// What both have: operands `a` (and `b`, of a gradient) of rows for `sizes`, indices, and where each part begins.
absl::StatusOr<GroupedSizes> with_rows(const KernelRequest& r, GroupedSizes sizes, bool gradient) {
  const std::string expected = "rows, an index for each and, with parts, the first matrix of each";
  const bool divided = r.inputs() > 3;
  if (r.in(2).shape.size() != 1 || (divided && (r.in(3).shape.size() != 1 || r.in(3).dtype != DType::kI64)))
    return r.error(expected);
  sizes.indices = r.in(2).shape[0];
  sizes.parts = divided ? r.in(3).shape[0] : 1;
  sizes.total = r.i("total", sizes.matrices);
  if (sizes.parts < 1 || sizes.matrices % sizes.parts != 0) return r.error(expected);
  for (int k = 0; k < (gradient ? 2 : 1); ++k) {
    const int64_t rows = r.in(k).shape[0];
    const bool all = rows == sizes.rows();
    if (!all && (rows == 0 || sizes.indices == 0 || sizes.indices % rows != 0)) return r.error(expected);
    GroupedSizes::Rows& of = k == 0 ? sizes.a : sizes.b;
    of.modulo = std::max(int64_t{1}, all ? rows : sizes.indices);
    of.divisor = all ? 1 : sizes.indices / rows;
  }
  return sizes;
}

// Of a kernel's buffers: inputs, then the result.
const int64_t* first_matrices(std::span<std::byte* const> buffers) {
  return buffers.size() > 4 ? as<int64_t>(buffers[3]) : nullptr;
}

}  // namespace

absl::StatusOr<GroupedSizes> GroupedSizes::of_product(const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(3, 4, 1));
  const Shape &x = r.in(0).shape, &w = r.in(1).shape, &y = r.out(0).shape;
  const bool transposed = r.i("transpose_b", 0) != 0;
  if (x.size() != 2 || w.size() != 3 || y.size() != 2 || w[transposed ? 2 : 1] != x[1] || y[1] != w[transposed ? 1 : 2])
    return r.error("rows, matrices of their width and an index for each row");
  if (r.dtype(1) != r.dtype() || r.out(0).dtype != r.dtype()) return r.error("operands of one dtype");
  PARTITA_ASSIGN_OR_RETURN(
      GroupedSizes sizes,
      with_rows(r, {.inner = x[1], .columns = y[1], .matrices = w[0], .transposed = transposed}, false));
  if (y[0] != sizes.rows()) return r.error("a result with a row for each index in each part");
  return sizes;
}

absl::StatusOr<GroupedSizes> GroupedSizes::of_gradient(const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(3, 4, 1));
  const Shape &a = r.in(0).shape, &g = r.in(1).shape, &dw = r.out(0).shape;
  if (a.size() != 2 || g.size() != 2 || dw.size() != 3 || dw[1] != a[1] || dw[2] != g[1])
    return r.error("rows of both operands and an index for each, and a matrix for each index");
  if (r.dtype(1) != r.dtype() || r.out(0).dtype != r.dtype()) return r.error("operands of one dtype");
  return with_rows(r, {.inner = a[1], .columns = g[1], .matrices = dw[0]}, true);
}

Kernel make_grouped_matmul(const KernelRequest& r) {
  PARTITA_ASSIGN_OR_RETURN(const GroupedSizes sizes, GroupedSizes::of_product(r));
  return make_grouped(r, sizes, [&]<typename T, typename I>(GroupedProduct<T> product, T, I) {
    return make_kernel([product](std::span<std::byte* const> b) mutable {
      product.run(as<T>(b[0]), as<T>(b[1]), as<I>(b[2]), first_matrices(b), as<T>(b.back()));
    });
  });
}

Kernel make_grouped_matmul_grad(const KernelRequest& r) {
  PARTITA_ASSIGN_OR_RETURN(const GroupedSizes sizes, GroupedSizes::of_gradient(r));
  return make_grouped(r, sizes, [&]<typename T, typename I>(GroupedProduct<T> product, T, I) {
    return make_kernel([product](std::span<std::byte* const> b) mutable {
      product.run_grad(as<T>(b[0]), as<T>(b[1]), as<I>(b[2]), first_matrices(b), as<T>(b.back()));
    });
  });
}

}  // namespace partita::runtime
