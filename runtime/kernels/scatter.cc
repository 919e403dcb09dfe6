// Kernels that write at indices: gather_grad, take_along_grad, gather_nd_grad, scatter_nd, scatter_elements.
//
// Several updates may hit one element. They are applied in the order of the updates, whatever the number of threads:
// the work is divided into parts of the output that no two updates of different threads share (batches, columns of a
// slice), never by updates.
#include <cmath>
#include <cstring>

#include "runtime/kernels/indexing.h"
#include "runtime/kernels/table.h"

namespace partita::runtime {
namespace {

enum class Mode { kNone, kAdd, kMul, kMax, kMin };

absl::StatusOr<Mode> mode_of(const KernelRequest& r) {
  const std::string mode = r.s("mode", "none");
  if (mode == "none") return Mode::kNone;
  if (mode == "add") return Mode::kAdd;
  if (mode == "mul") return Mode::kMul;
  if (mode == "max") return Mode::kMax;
  if (mode == "min") return Mode::kMin;
  return r.error("mode none, add, mul, max or min");
}

template <Mode kMode, typename T>
void combine(T& to, T update) {
  using A = Accumulator<T>;
  const A x = to, u = update;
  if constexpr (kMode == Mode::kNone)
    to = update;
  else if constexpr (kMode == Mode::kAdd)
    to = static_cast<T>(static_cast<A>(x + u));
  else if constexpr (kMode == Mode::kMul)
    to = static_cast<T>(static_cast<A>(x * u));
  else if constexpr (kMode == Mode::kMax)
    to = static_cast<T>(u > x || u != u ? u : x);
  else
    to = static_cast<T>(u < x || u != u ? u : x);
}

template <typename F>
void with_mode(Mode mode, F&& f) {
  switch (mode) {
    case Mode::kNone:
      return f.template operator()<Mode::kNone>();
    case Mode::kAdd:
      return f.template operator()<Mode::kAdd>();
    case Mode::kMul:
      return f.template operator()<Mode::kMul>();
    case Mode::kMax:
      return f.template operator()<Mode::kMax>();
    case Mode::kMin:
      return f.template operator()<Mode::kMin>();
  }
}

void fill_zero(std::byte* to, int64_t bytes) {
  constexpr int64_t kPiece = 1 << 20;
#pragma omp parallel for schedule(static) if (bytes >= 4 * kPiece)
  for (int64_t at = 0; at < bytes; at += kPiece)
    std::memset(to + at, 0, static_cast<size_t>(std::min(kPiece, bytes - at)));
}

void copy_all(std::byte* to, const std::byte* from, int64_t bytes) {
  if (to == from) return;
  constexpr int64_t kPiece = 1 << 20;
#pragma omp parallel for schedule(static) if (bytes >= 4 * kPiece)
  for (int64_t at = 0; at < bytes; at += kPiece)
    std::memcpy(to + at, from + at, static_cast<size_t>(std::min(kPiece, bytes - at)));
}

// Columns of a slice that one task takes, for at least `threads` tasks where the slice is wide enough.
int64_t column_block(int64_t parts, int64_t width, int threads) {
  if (parts >= 2 * threads) return std::max<int64_t>(width, 1);
  const int64_t wanted = (threads + parts - 1) / std::max<int64_t>(parts, 1);
  return std::max<int64_t>(((width + wanted - 1) / std::max<int64_t>(wanted, 1) + 15) / 16 * 16, 16);
}

// rows: for update row r of batch p, its slice of `out` begins at offset(p, r).
template <Mode kMode, typename T, typename Offset>
void scatter_slices(T* out, const T* updates, int64_t batches, int64_t rows, int64_t slice, int threads,
                    Offset offset) {
  const int64_t block = column_block(batches, slice, threads), blocks = (slice + block - 1) / block;
#pragma omp parallel for schedule(static) if (worth_threads(batches * rows * slice))
  for (int64_t task = 0; task < batches * blocks; ++task) {
    const int64_t p = task / blocks, begin = task % blocks * block, end = std::min(begin + block, slice);
    for (int64_t r = 0; r < rows; ++r) {
      T* to = out + offset(p, r);
      const T* from = updates + (p * rows + r) * slice;
      for (int64_t i = begin; i < end; ++i) combine<kMode>(to[i], from[i]);
    }
  }
}

template <Mode kMode, typename T, typename I>
void scatter_along(T* out, const I* indices, const T* updates, const AlongLayout& layout) {
  if (layout.size == 0) return;
#pragma omp parallel for schedule(static) if (worth_threads(layout.columns * layout.count))
  for (int64_t c = 0; c < layout.columns; ++c) {
    const auto [at_x, at_i] = layout.column(c);
    for (int64_t j = 0; j < layout.count; ++j) {
      const int64_t e = at_i + j * layout.inner;
      combine<kMode>(out[at_x + clamp_index(indices[e], layout.size) * layout.x_stride], updates[e]);
    }
  }
}

template <typename F>
bool with_scatter_type(DType dtype, Mode mode, F&& f) {
  return mode == Mode::kNone ? with_storage_type(dtype, f) : with_number_type(dtype, f);
}

}  // namespace

Kernel make_gather_grad(const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(2, 3, 1));
  const Shape& x = r.out(0).shape;
  const bool accumulates = r.s("epilogue", "") == "accumulate";
  if (accumulates != (r.inputs() == 3)) return r.error("epilogue 'accumulate' and a third operand, or neither");
  if (accumulates && (r.in(2).shape != x || r.dtype(2) != r.dtype())) return r.error("a third operand like the output");
  const int64_t dim = resolve_dim(r.i("dim", 0), x.size()), count = product(r.in(1).shape);
  if (dim < 0 || r.out(0).dtype != r.dtype()) return r.error("a dim inside the output");
  const size_t d = static_cast<size_t>(dim);
  const int64_t outer = product(x, 0, d), n = x[d], inner = product(x, d + 1, x.size()),
                bytes = outer * n * inner * dtype_size(r.dtype());
  if (*element_count(r.in(0).shape) != outer * count * inner)
    return r.error("a gradient with the indices' dims in place of the gathered one");
  Kernel kernel = r.unsupported();
  with_number_type(r.dtype(), [&]<typename T>(T) {
    with_index_type(r.dtype(1), [&]<typename I>(I) {
      kernel = make_kernel([=, threads = r.threads()](std::span<std::byte* const> b) {
        std::byte* const sums = b.back();
        if (accumulates) {
          copy_all(sums, b[2], bytes);
        } else {
          fill_zero(sums, bytes);
        }
        if (n == 0) return;
        const I* indices = as<I>(b[1]);
        scatter_slices<Mode::kAdd>(as<T>(sums), as<T>(b[0]), outer, count, inner, threads, [=](int64_t p, int64_t row) {
          return (p * n + clamp_index(indices[row], n)) * inner;
        });
      });
    });
  });
  return kernel;
}

Kernel make_take_along_grad(const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(2, 2, 1));
  PARTITA_ASSIGN_OR_RETURN(AlongLayout layout, AlongLayout::make(r, r.out(0).shape, r.in(1).shape));
  if (r.in(0).shape != r.in(1).shape || r.out(0).dtype != r.dtype()) return r.error("a gradient of the indices' shape");
  const int64_t bytes = product(r.out(0).shape) * dtype_size(r.dtype());
  Kernel kernel = r.unsupported();
  with_number_type(r.dtype(), [&]<typename T>(T) {
    with_index_type(r.dtype(1), [&]<typename I>(I) {
      kernel = make_kernel([layout, bytes](std::span<std::byte* const> b) {
        fill_zero(b[2], bytes);
        scatter_along<Mode::kAdd>(as<T>(b[2]), as<I>(b[1]), as<T>(b[0]), layout);
      });
    });
  });
  return kernel;
}

Kernel make_gather_nd_grad(const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(2, 2, 1));
  PARTITA_ASSIGN_OR_RETURN(SliceLayout layout, SliceLayout::make(r, r.out(0).shape, r.in(1).shape));
  if (*element_count(r.in(0).shape) != layout.batches * layout.count * layout.slice || r.out(0).dtype != r.dtype())
    return r.error("a gradient of one slice per index");
  const int64_t bytes = product(r.out(0).shape) * dtype_size(r.dtype());
  Kernel kernel = r.unsupported();
  with_number_type(r.dtype(), [&]<typename T>(T) {
    with_index_type(r.dtype(1), [&]<typename I>(I) {
      kernel = make_kernel([layout, bytes, threads = r.threads()](std::span<std::byte* const> b) {
        fill_zero(b[2], bytes);
        if (layout.empty) return;
        const I* indices = as<I>(b[1]);
        scatter_slices<Mode::kAdd>(
            as<T>(b[2]), as<T>(b[0]), layout.batches, layout.count, layout.slice, threads,
            [&](int64_t p, int64_t row) { return layout.offset(indices, p * layout.count + row); });
      });
    });
  });
  return kernel;
}

Kernel make_scatter_nd(const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(3, 3, 1));
  PARTITA_ASSIGN_OR_RETURN(SliceLayout layout, SliceLayout::make(r, r.in(0).shape, r.in(1).shape));
  PARTITA_ASSIGN_OR_RETURN(const Mode mode, mode_of(r));
  if (r.out(0).shape != r.in(0).shape || r.out(0).dtype != r.dtype() || r.dtype(2) != r.dtype() ||
      *element_count(r.in(2).shape) != layout.batches * layout.count * layout.slice) {
    return r.error("an output like x and one slice of updates per index");
  }
  const int64_t bytes = product(r.out(0).shape) * dtype_size(r.dtype());
  Kernel kernel = r.unsupported();
  with_scatter_type(r.dtype(), mode, [&]<typename T>(T) {
    with_index_type(r.dtype(1), [&]<typename I>(I) {
      kernel = make_kernel([layout, bytes, mode, threads = r.threads()](std::span<std::byte* const> b) {
        copy_all(b[3], b[0], bytes);
        if (layout.empty) return;
        const I* indices = as<I>(b[1]);
        with_mode(mode, [&]<Mode kMode>() {
          scatter_slices<kMode>(as<T>(b[3]), as<T>(b[2]), layout.batches, layout.count, layout.slice, threads,
                                [&](int64_t p, int64_t row) { return layout.offset(indices, p * layout.count + row); });
        });
      });
    });
  });
  return kernel;
}

Kernel make_scatter_elements(const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(3, 3, 1));
  PARTITA_ASSIGN_OR_RETURN(AlongLayout layout, AlongLayout::make(r, r.in(0).shape, r.in(1).shape));
  PARTITA_ASSIGN_OR_RETURN(const Mode mode, mode_of(r));
  if (r.out(0).shape != r.in(0).shape || r.out(0).dtype != r.dtype() || r.dtype(2) != r.dtype() ||
      r.in(2).shape != r.in(1).shape)
    return r.error("an output like x and updates like the indices");
  const int64_t bytes = product(r.out(0).shape) * dtype_size(r.dtype());
  Kernel kernel = r.unsupported();
  with_scatter_type(r.dtype(), mode, [&]<typename T>(T) {
    with_index_type(r.dtype(1), [&]<typename I>(I) {
      kernel = make_kernel([layout, bytes, mode](std::span<std::byte* const> b) {
        copy_all(b[3], b[0], bytes);
        with_mode(mode, [&]<Mode kMode>() { scatter_along<kMode>(as<T>(b[3]), as<I>(b[1]), as<T>(b[2]), layout); });
      });
    });
  });
  return kernel;
}

}  // namespace partita::runtime
