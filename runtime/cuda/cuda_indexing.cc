// gather, take_along, scatter, shard_slice and the gradients of what gathers (kernels/indexing.cu).
#include <bit>

#include "base/status.h"
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/kernels_device.h"
#include "runtime/kernels/indexing.h"

namespace partita::runtime {
namespace {

constexpr int kSortThreads = 512;  // as in kernels/indexing.cu

std::string index_suffix(DType t) { return t == DType::kI32 ? "_i32" : "_i64"; }
bool is_index(DType t) { return t == DType::kI32 || t == DType::kI64; }
bool is_summed(DType t) { return is_float(t); }

// The largest word that divides rows of so many bytes; buffers are aligned to more.
int64_t word_of(int64_t row_bytes) {
  for (int64_t word : {8, 4, 2}) {
    if (row_bytes % word == 0) return word;
  }
  return 1;
}

absl::StatusOr<AlongDevice> along(const KernelRequest& r, const AlongLayout& layout) {
  AlongDevice a{layout.size, layout.x_stride, layout.count, layout.inner, layout.columns, 0, {}, {}, {}};
  if (layout.extents.size() > kMostDims) return r.unsupported();
  a.dims = static_cast<int32_t>(layout.extents.size());
  std::copy(layout.extents.begin(), layout.extents.end(), a.extents);
  std::copy(layout.x_strides.begin(), layout.x_strides.end(), a.x_strides);
  std::copy(layout.index_strides.begin(), layout.index_strides.end(), a.index_strides);
  return a;
}

// Rows gathered along a dimension: x [outer, n, inner], indices [count].
struct Rows {
  int64_t outer = 1, n = 1, inner = 1, count = 1;

  static absl::StatusOr<Rows> make(const KernelRequest& r, const Shape& x, const Shape& indices, const Shape& y) {
    const int64_t dim = resolve_dim(r.i("dim", 0), x.size());
    if (dim < 0 || !is_index(r.dtype(1))) return r.error("a dim inside x, and indices of i32 or i64");
    const size_t d = static_cast<size_t>(dim);
    Rows rows{product(x, 0, d), x[d], product(x, d + 1, x.size()), product(indices)};
    if (product(y) != rows.outer * rows.count * rows.inner)
      return r.error("rows with the indices' dims in place of the gathered one");
    return rows;
  }
};

// The kernels of rows, for indices from elsewhere.
class RowKernels {
 public:
  static absl::StatusOr<RowKernels> gather(CudaDevice& device, const Rows& rows, int64_t element, DType index) {
    RowKernels k(device, rows);
    const int64_t bytes = rows.inner * element, word = word_of(bytes);
    k.words_ = bytes / word;
    PARTITA_ASSIGN_OR_RETURN(k.first_, device.own_kernel(cat("gather_", word * 8, index_suffix(index))));
    return k;
  }
  // Sorted by row, stable; then the rows of a run are added in their order.
  static absl::StatusOr<RowKernels> grad(CudaDevice& device, const Rows& rows, DType dtype, DType index,
                                         const KernelRequest& r) {
    constexpr int64_t kLimit = int64_t{1} << 31;
    if (!is_summed(dtype) || rows.n >= kLimit || rows.count >= kLimit) return r.unsupported();
    RowKernels k(device, rows);
    k.passes_ = (static_cast<int>(std::bit_width(static_cast<uint64_t>(std::max<int64_t>(rows.n - 1, 1)))) + 3) / 4;
    k.passes_ += k.passes_ % 2;
    k.bytes_ = rows.outer * rows.n * rows.inner * dtype_size(dtype);
    PARTITA_ASSIGN_OR_RETURN(k.first_, device.own_kernel(cat("sort_rows", index_suffix(index))));
    PARTITA_ASSIGN_OR_RETURN(k.second_, device.own_kernel(cat("add_runs_", dtype_name(dtype))));
    return k;
  }
  static int64_t scratch_bytes(const Rows& rows) { return rows.count * 16; }

  void gather(std::byte* x, std::byte* indices, std::byte* y) {
    void* arguments[] = {&x, &indices, &y, &rows_.outer, &rows_.n, &rows_.count, &words_};
    device_->launch_items(first_, rows_.outer * rows_.count * words_, arguments);
  }
  void grad(std::byte* g, std::byte* indices, std::byte* dx, std::byte* scratch) {
    if (bytes_ == 0) return;
    device_->note("cudaMemset", cudaMemsetAsync(dx, 0, static_cast<size_t>(bytes_), device_->stream()));
    if (rows_.count == 0) return;
    std::byte *keys = scratch, *order = scratch + rows_.count * 8;
    void* sorted[] = {&indices, &rows_.n, &rows_.count, &passes_, &keys, &order};
    device_->launch(first_, dim3(1), kSortThreads, sorted);
    void* added[] = {&g, &keys, &order, &dx, &rows_.outer, &rows_.n, &rows_.count, &rows_.inner};
    constexpr int64_t kMostThreads = 256, kOfThread = 8, kMostBlocks = 65535;  // along y and z
    const int64_t threads = std::clamp<int64_t>((rows_.inner + 31) / 32 * 32, 32, kMostThreads),
                  shares = std::clamp<int64_t>(rows_.inner / (threads * kOfThread), 1, kMostBlocks);
    const dim3 blocks(static_cast<unsigned>(rows_.count), static_cast<unsigned>(std::min(rows_.outer, kMostBlocks)),
                      static_cast<unsigned>(shares));
    device_->launch(second_, blocks, static_cast<int>(threads), added);
  }

 private:
  RowKernels(CudaDevice& device, const Rows& rows) : device_(&device), rows_(rows) {}
  CudaDevice* device_;
  Rows rows_;
  cudaKernel_t first_ = nullptr, second_ = nullptr;
  int64_t words_ = 0, bytes_ = 0;
  int passes_ = 0;
};

// gather_nd's slices as rows of all of x.
struct Slices {
  SlicesDevice device{};
  Rows rows;

  static absl::StatusOr<Slices> make(const KernelRequest& r, const Operand& x, const Operand& y) {
    PARTITA_ASSIGN_OR_RETURN(SliceLayout layout, SliceLayout::make(r, x.shape, r.in(1).shape));
    if (product(y.shape) != layout.batches * layout.count * layout.slice || x.dtype != y.dtype || !is_index(r.dtype(1)))
      return r.error("one slice per index");
    if (layout.depth > kMostDims || layout.empty || layout.slice == 0) return r.unsupported();
    Slices s;
    s.device = {
        layout.batches, layout.count, layout.batch_elements / layout.slice, static_cast<int32_t>(layout.depth), {}, {}};
    std::copy(layout.extents.begin(), layout.extents.end(), s.device.extents);
    for (size_t d = 0; d < layout.strides.size(); ++d) s.device.strides[d] = layout.strides[d] / layout.slice;
    s.rows = {1, product(x.shape) / layout.slice, layout.slice, layout.batches * layout.count};
    return s;
  }
};

// A scatter's kernels by what an update does.
struct Update {
  UpdateMode mode = kReplace;
  std::string type;  // of the kernel's name

  static absl::StatusOr<Update> make(const KernelRequest& r) {
    constexpr std::pair<std::string_view, UpdateMode> kModes[] = {
        {"none", kReplace}, {"add", kAddUpdate}, {"mul", kMulUpdate}, {"max", kMaxUpdate}, {"min", kMinUpdate}};
    const DType t = r.dtype();
    if (r.out(0).shape != r.in(0).shape || r.out(0).dtype != t || r.dtype(2) != t || !is_index(r.dtype(1)))
      return r.error("an output like x, updates of its type, and indices of i32 or i64");
    for (const auto& [name, mode] : kModes) {
      if (r.s("mode", "none") != name) continue;
      if (mode == kReplace) return Update{mode, std::to_string(dtype_size(t) * 8)};
      if (!is_float(t) && t != DType::kI32 && t != DType::kI64) return r.unsupported();
      return Update{mode, std::string(dtype_name(t))};
    }
    return r.error("mode none, add, mul, max or min");
  }
};

void copy_all(CudaDevice& device, std::byte* to, const std::byte* from, int64_t bytes) {
  if (to == from || bytes == 0) return;
  device.note("cudaMemcpy", cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, device.stream()));
}

}  // namespace

CudaKernel make_cuda_gather(CudaDevice& device, const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(2, 2, 1));
  PARTITA_ASSIGN_OR_RETURN(Rows rows, Rows::make(r, r.in(0).shape, r.in(1).shape, r.out(0).shape));
  if (r.out(0).dtype != r.dtype()) return r.error("an output of x's dtype");
  PARTITA_ASSIGN_OR_RETURN(RowKernels k, RowKernels::gather(device, rows, dtype_size(r.dtype()), r.dtype(1)));
  return make_kernel([k](std::span<std::byte* const> b) mutable { k.gather(b[0], b[1], b[2]); });
}

CudaKernel make_cuda_gather_grad(CudaDevice& device, const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(2, 2, 1));
  PARTITA_ASSIGN_OR_RETURN(Rows rows, Rows::make(r, r.out(0).shape, r.in(1).shape, r.in(0).shape));
  if (r.out(0).dtype != r.dtype()) return r.error("an output of the gradient's dtype");
  PARTITA_ASSIGN_OR_RETURN(RowKernels k, RowKernels::grad(device, rows, r.dtype(), r.dtype(1), r));
  PARTITA_ASSIGN_OR_RETURN(auto scratch, DeviceScratch::make(device, RowKernels::scratch_bytes(rows)));
  return make_kernel(
      [k, scratch](std::span<std::byte* const> b) mutable { k.grad(b[0], b[1], b[2], scratch->data()); });
}

CudaKernel make_cuda_gather_nd(CudaDevice& device, const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(2, 2, 1));
  PARTITA_ASSIGN_OR_RETURN(Slices s, Slices::make(r, r.in(0), r.out(0)));
  PARTITA_ASSIGN_OR_RETURN(RowKernels k, RowKernels::gather(device, s.rows, dtype_size(r.dtype()), DType::kI64));
  PARTITA_ASSIGN_OR_RETURN(cudaKernel_t number, device.own_kernel(cat("slice_rows", index_suffix(r.dtype(1)))));
  PARTITA_ASSIGN_OR_RETURN(auto scratch, DeviceScratch::make(device, s.rows.count * 8));
  return make_kernel([&device, k, s, number, scratch](std::span<std::byte* const> b) mutable {
    std::byte *indices = b[1], *rows = scratch->data();
    void* arguments[] = {&indices, &rows, &s.device};
    device.launch_items(number, s.rows.count, arguments);
    k.gather(b[0], rows, b[2]);
  });
}

CudaKernel make_cuda_gather_nd_grad(CudaDevice& device, const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(2, 2, 1));
  PARTITA_ASSIGN_OR_RETURN(Slices s, Slices::make(r, r.out(0), r.in(0)));
  PARTITA_ASSIGN_OR_RETURN(RowKernels k, RowKernels::grad(device, s.rows, r.dtype(), DType::kI64, r));
  PARTITA_ASSIGN_OR_RETURN(cudaKernel_t number, device.own_kernel(cat("slice_rows", index_suffix(r.dtype(1)))));
  const int64_t row_bytes = s.rows.count * 8;
  PARTITA_ASSIGN_OR_RETURN(auto scratch, DeviceScratch::make(device, row_bytes + RowKernels::scratch_bytes(s.rows)));
  return make_kernel([&device, k, s, number, scratch, row_bytes](std::span<std::byte* const> b) mutable {
    std::byte *indices = b[1], *rows = scratch->data();
    void* arguments[] = {&indices, &rows, &s.device};
    device.launch_items(number, s.rows.count, arguments);
    k.grad(b[0], rows, b[2], rows + row_bytes);
  });
}

CudaKernel make_cuda_take_along(CudaDevice& device, const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(2, 2, 1));
  PARTITA_ASSIGN_OR_RETURN(AlongLayout layout, AlongLayout::make(r, r.in(0).shape, r.in(1).shape));
  if (r.out(0).shape != r.in(1).shape || r.out(0).dtype != r.dtype() || !is_index(r.dtype(1)))
    return r.error("an output of the indices' shape");
  PARTITA_ASSIGN_OR_RETURN(AlongDevice a, along(r, layout));
  PARTITA_ASSIGN_OR_RETURN(cudaKernel_t kernel,
                           device.own_kernel(cat("take_along_", dtype_size(r.dtype()) * 8, index_suffix(r.dtype(1)))));
  return make_kernel([&device, kernel, a](std::span<std::byte* const> b) mutable {
    void *x = b[0], *i = b[1], *y = b[2];
    void* arguments[] = {&x, &i, &y, &a};
    device.launch_items(kernel, a.columns * a.count, arguments);
  });
}

CudaKernel make_cuda_take_along_grad(CudaDevice& device, const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(2, 2, 1));
  PARTITA_ASSIGN_OR_RETURN(AlongLayout layout, AlongLayout::make(r, r.out(0).shape, r.in(1).shape));
  if (r.in(0).shape != r.in(1).shape || r.out(0).dtype != r.dtype() || !is_index(r.dtype(1)))
    return r.error("a gradient of the indices' shape");
  if (!is_summed(r.dtype())) return r.unsupported();
  PARTITA_ASSIGN_OR_RETURN(AlongDevice a, along(r, layout));
  PARTITA_ASSIGN_OR_RETURN(cudaKernel_t kernel,
                           device.own_kernel(cat("take_along_grad_", dtype_name(r.dtype()), index_suffix(r.dtype(1)))));
  // 16-bit elements are summed in f32 beside, and rounded at the end.
  const bool rounded = dtype_size(r.dtype()) == 2;
  int64_t count = product(r.out(0).shape);
  const int64_t bytes = count * (rounded ? 4 : dtype_size(r.dtype()));
  cudaKernel_t round = nullptr;
  if (rounded) {
    PARTITA_ASSIGN_OR_RETURN(round, device.own_kernel(cat("round_sums_", dtype_name(r.dtype()))));
  }
  PARTITA_ASSIGN_OR_RETURN(auto scratch, DeviceScratch::make(device, rounded ? bytes : 0));
  return make_kernel([&device, kernel, round, scratch, a, count, bytes](std::span<std::byte* const> b) mutable {
    void *g = b[0], *i = b[1], *dx = b[2], *sums = round == nullptr ? dx : scratch->data();
    device.note("cudaMemset", cudaMemsetAsync(sums, 0, static_cast<size_t>(bytes), device.stream()));
    void* arguments[] = {&g, &i, &sums, &a};
    device.launch_items(kernel, a.columns, arguments);
    if (round == nullptr) return;
    void* rounding[] = {&sums, &dx, &count};
    device.launch_items(round, count, rounding);
  });
}

CudaKernel make_cuda_scatter_elements(CudaDevice& device, const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(3, 3, 1));
  PARTITA_ASSIGN_OR_RETURN(AlongLayout layout, AlongLayout::make(r, r.in(0).shape, r.in(1).shape));
  PARTITA_ASSIGN_OR_RETURN(Update update, Update::make(r));
  if (r.in(2).shape != r.in(1).shape) return r.error("updates like the indices");
  PARTITA_ASSIGN_OR_RETURN(AlongDevice a, along(r, layout));
  PARTITA_ASSIGN_OR_RETURN(cudaKernel_t kernel,
                           device.own_kernel(cat("scatter_elements_", update.type, index_suffix(r.dtype(1)))));
  const int64_t bytes = product(r.out(0).shape) * dtype_size(r.dtype());
  int mode = update.mode;
  return make_kernel([&device, kernel, a, bytes, mode](std::span<std::byte* const> b) mutable {
    void *i = b[1], *updates = b[2], *y = b[3];
    copy_all(device, b[3], b[0], bytes);
    void* arguments[] = {&i, &updates, &y, &a, &mode};
    device.launch_items(kernel, a.columns, arguments);
  });
}

CudaKernel make_cuda_scatter_nd(CudaDevice& device, const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(3, 3, 1));
  PARTITA_ASSIGN_OR_RETURN(Update update, Update::make(r));
  PARTITA_ASSIGN_OR_RETURN(Slices s, Slices::make(r, r.in(0), r.in(2)));
  PARTITA_ASSIGN_OR_RETURN(cudaKernel_t number, device.own_kernel(cat("slice_rows", index_suffix(r.dtype(1)))));
  PARTITA_ASSIGN_OR_RETURN(cudaKernel_t kernel, device.own_kernel(cat("scatter_slices_", update.type)));
  PARTITA_ASSIGN_OR_RETURN(auto scratch, DeviceScratch::make(device, s.rows.count * 8));
  const int64_t bytes = product(r.out(0).shape) * dtype_size(r.dtype());
  int mode = update.mode;
  return make_kernel([&device, s, number, kernel, scratch, bytes, mode](std::span<std::byte* const> b) mutable {
    void *indices = b[1], *updates = b[2], *y = b[3], *rows = scratch->data();
    copy_all(device, b[3], b[0], bytes);
    void* numbering[] = {&indices, &rows, &s.device};
    device.launch_items(number, s.rows.count, numbering);
    void* arguments[] = {&rows, &updates, &y, &s.device.batches, &s.device.count, &s.rows.inner, &mode};
    device.launch_items(kernel, s.device.batches * s.rows.inner, arguments);
  });
}

CudaKernel make_cuda_shard_slice(CudaDevice& device, const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(2, 2, 1));
  const Shape& x = r.in(0).shape;
  const int64_t dim = resolve_dim(r.i("dim", 0), x.size());
  int64_t parts = r.i("parts", 1);
  if (dim < 0 || parts < 1 || x[static_cast<size_t>(dim)] % parts != 0 || r.dtype(1) != DType::kI64)
    return r.error("a dim that parts divide and an i64 coordinate");
  const size_t d = static_cast<size_t>(dim);
  int64_t outer = product(x, 0, d);
  const int64_t bytes = x[d] / parts * product(x, d + 1, x.size()) * dtype_size(r.dtype()), word = word_of(bytes);
  if (r.out(0).dtype != r.dtype() || product(r.out(0).shape) * parts != product(x))
    return r.error("an output of one block");
  PARTITA_ASSIGN_OR_RETURN(cudaKernel_t kernel, device.own_kernel(cat("shard_slice_", word * 8)));
  return make_kernel([&device, kernel, outer, parts, words = bytes / word](std::span<std::byte* const> b) mutable {
    void *from = b[0], *at = b[1], *to = b[2];
    void* arguments[] = {&from, &at, &to, &outer, &parts, &words};
    device.launch_items(kernel, outer * words, arguments);
  });
}

}  // namespace partita::runtime
