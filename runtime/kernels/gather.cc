// Kernels that read at indices: gather, take_along, gather_nd.
#include <cstring>

#include "runtime/kernels/indexing.h"
#include "runtime/kernels/table.h"

namespace partita::runtime {
namespace {

template <typename I>
void gather_rows(const std::byte* x, const I* indices, std::byte* y, int64_t outer, int64_t n, int64_t count,
                 int64_t row_bytes) {
#pragma omp parallel for schedule(static) if (worth_threads(outer * count * row_bytes / 4))
  for (int64_t r = 0; r < outer * count; ++r) {
    if (n == 0) {
      std::memset(y + r * row_bytes, 0, static_cast<size_t>(row_bytes));
    } else {
      std::memcpy(y + r * row_bytes, x + (r / count * n + clamp_index(indices[r % count], n)) * row_bytes,
                  static_cast<size_t>(row_bytes));
    }
  }
}

template <typename T, typename I>
void take_along(const T* x, const I* indices, T* y, const AlongLayout& layout) {
#pragma omp parallel for schedule(static) if (worth_threads(layout.columns * layout.count))
  for (int64_t c = 0; c < layout.columns; ++c) {
    const auto [at_x, at_i] = layout.column(c);
    for (int64_t j = 0; j < layout.count; ++j) {
      const int64_t e = at_i + j * layout.inner;
      y[e] = layout.size == 0 ? T{} : x[at_x + clamp_index(indices[e], layout.size) * layout.x_stride];
    }
  }
}

template <typename I>
void gather_slices(const std::byte* x, const I* indices, std::byte* y, const SliceLayout& layout,
                   int64_t element_bytes) {
  const int64_t bytes = layout.slice * element_bytes;
#pragma omp parallel for schedule(static) if (worth_threads(layout.batches * layout.count * bytes / 4))
  for (int64_t r = 0; r < layout.batches * layout.count; ++r) {
    if (layout.empty) {
      std::memset(y + r * bytes, 0, static_cast<size_t>(bytes));
    } else {
      std::memcpy(y + r * bytes, x + layout.offset(indices, r) * element_bytes, static_cast<size_t>(bytes));
    }
  }
}

}  // namespace

Kernel make_gather(const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(2, 2, 1));
  const Shape& x = r.in(0).shape;
  const int64_t dim = resolve_dim(r.i("dim", 0), x.size()), count = product(r.in(1).shape);
  if (dim < 0 || r.out(0).dtype != r.dtype()) return r.error("a dim inside x and an output of its dtype");
  const size_t d = static_cast<size_t>(dim);
  const int64_t outer = product(x, 0, d), n = x[d], inner = product(x, d + 1, x.size());
  if (*element_count(r.out(0).shape) != outer * count * inner)
    return r.error("an output with the indices' dims in place of the gathered one");
  const int64_t row_bytes = inner * dtype_size(r.dtype());
  Kernel kernel = r.unsupported();
  with_index_type(r.dtype(1), [&]<typename I>(I) {
    kernel = make_kernel(
        [=](std::span<std::byte* const> b) { gather_rows(b[0], as<I>(b[1]), b[2], outer, n, count, row_bytes); });
  });
  return kernel;
}

// Block `coordinate` (second input, an i64 scalar) of `parts` equal blocks along `dim`.
Kernel make_shard_slice(const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(2, 2, 1));
  const Shape& x = r.in(0).shape;
  const int64_t dim = resolve_dim(r.i("dim", 0), x.size()), parts = r.i("parts", 1);
  if (dim < 0 || parts < 1 || x[static_cast<size_t>(dim)] % parts != 0 || r.dtype(1) != DType::kI64 ||
      *element_count(r.in(1).shape) != 1)
    return r.error("a dim that parts divide and an i64 coordinate");
  const size_t d = static_cast<size_t>(dim);
  const int64_t outer = product(x, 0, d), block = x[d] / parts * product(x, d + 1, x.size()) * dtype_size(r.dtype());
  if (r.out(0).dtype != r.dtype() || *element_count(r.out(0).shape) * parts != *element_count(x))
    return r.error("an output of one block");
  return make_kernel([=](std::span<std::byte* const> b) {
    const int64_t at = clamp_index(*as<int64_t>(b[1]), parts);
#pragma omp parallel for schedule(static) if (worth_threads(outer * block / 4))
    for (int64_t o = 0; o < outer; ++o)
      std::memcpy(b[2] + o * block, b[0] + (o * parts + at) * block, static_cast<size_t>(block));
  });
}

Kernel make_take_along(const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(2, 2, 1));
  PARTITA_ASSIGN_OR_RETURN(AlongLayout layout, AlongLayout::make(r, r.in(0).shape, r.in(1).shape));
  if (r.out(0).shape != r.in(1).shape || r.out(0).dtype != r.dtype()) return r.error("an output of the indices' shape");
  Kernel kernel = r.unsupported();
  with_storage_type(r.dtype(), [&]<typename T>(T) {
    with_index_type(r.dtype(1), [&]<typename I>(I) {
      kernel = make_kernel(
          [layout](std::span<std::byte* const> b) { take_along(as<T>(b[0]), as<I>(b[1]), as<T>(b[2]), layout); });
    });
  });
  return kernel;
}

Kernel make_gather_nd(const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(2, 2, 1));
  PARTITA_ASSIGN_OR_RETURN(SliceLayout layout, SliceLayout::make(r, r.in(0).shape, r.in(1).shape));
  if (*element_count(r.out(0).shape) != layout.batches * layout.count * layout.slice || r.out(0).dtype != r.dtype())
    return r.error("an output of one slice per index");
  Kernel kernel = r.unsupported();
  with_index_type(r.dtype(1), [&]<typename I>(I) {
    kernel = make_kernel([layout, size = dtype_size(r.dtype())](std::span<std::byte* const> b) {
      gather_slices(b[0], as<I>(b[1]), b[2], layout, size);
    });
  });
  return kernel;
}

}  // namespace partita::runtime
