// grouped_matmul and its gradient (kernels/grouped.cu).
#include <limits>

#include "base/status.h"
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/kernels_device.h"
#include "runtime/kernels/grouped_sizes.h"

namespace partita::runtime {
namespace {

unsigned tiles(int64_t count, int size) { return static_cast<unsigned>((count + size - 1) / size); }

// What both begin with: the rows in order of their matrix.
class GroupedKernels {
 public:
  // `name`: of the product's kernel, without its type.
  static absl::StatusOr<GroupedKernels> make(CudaDevice& device, const KernelRequest& r, const GroupedSizes& sizes,
                                             const char* name, bool a_inner_last, bool b_inner_last) {
    constexpr int64_t kMostBlocks = 65535, kMost = std::numeric_limits<int32_t>::max();
    const int element = static_cast<int>(dtype_size(r.dtype())), tile = grouped_tile(element);
    if (!is_float(r.dtype()) || (r.dtype(2) != DType::kI64 && r.dtype(2) != DType::kI32)) return r.unsupported();
    if (sizes.matrices > kMostBlocks || std::max(sizes.inner, sizes.columns) / tile >= kMostBlocks ||
        sizes.rows() + sizes.matrices * tile > kMost || sizes.total > kMost)
      return r.unsupported();
    GroupedKernels made(device, sizes, tile, element);
    made.shared_bytes_ = grouped_shared_bytes(element, a_inner_last, b_inner_last);
    PARTITA_ASSIGN_OR_RETURN(made.group_,
                             device.own_kernel(r.dtype(2) == DType::kI32 ? "group_rows_i32" : "group_rows_i64"));
    PARTITA_ASSIGN_OR_RETURN(made.product_,
                             device.own_kernel(cat(name, "_", dtype_name(r.dtype())), made.shared_bytes_));
    PARTITA_ASSIGN_OR_RETURN(made.scratch_, DeviceScratch::make(device, (sizes.rows() + sizes.matrices + 1) * 4));
    return made;
  }

  // Buffers: rows, matrices, indices, the first matrix of each part where there are parts, the result.
  void multiply(std::span<std::byte* const> buffers) {
    std::byte *x = buffers[0], *w = buffers[1], *y = buffers.back();
    if (buffers.size() > kPlain) {  // rows that take no matrix here
      const size_t bytes = static_cast<size_t>(sizes_.rows() * sizes_.columns) * element_;
      device_->note("cudaMemset", cudaMemsetAsync(y, 0, bytes, device_->stream()));
    }
    auto [order, begins] = group(buffers);
    GroupedRows of_x = rows_of(sizes_.a);
    int matrices = static_cast<int>(sizes_.matrices), inner = static_cast<int>(sizes_.inner),
        columns = static_cast<int>(sizes_.columns);
    void* arguments[] = {&x, &w, &order, &begins, &y, &of_x, &matrices, &inner, &columns};
    const dim3 blocks(static_cast<unsigned>(sizes_.rows() / tile_ + sizes_.matrices), tiles(sizes_.columns, tile_));
    device_->launch(product_, blocks, kGroupedThreads, arguments, shared_bytes_);
  }
  void add(std::span<std::byte* const> buffers) {
    std::byte *a = buffers[0], *b = buffers[1], *dw = buffers.back();
    auto [order, begins] = group(buffers);
    GroupedRows of_a = rows_of(sizes_.a), of_b = rows_of(sizes_.b);
    int inner = static_cast<int>(sizes_.inner), columns = static_cast<int>(sizes_.columns);
    void* arguments[] = {&a, &b, &order, &begins, &dw, &of_a, &of_b, &inner, &columns};
    const dim3 blocks(tiles(sizes_.inner, tile_), tiles(sizes_.columns, tile_), static_cast<unsigned>(sizes_.matrices));
    device_->launch(product_, blocks, kGroupedThreads, arguments, shared_bytes_);
  }

 private:
  static constexpr size_t kPlain = 4;  // buffers without parts

  GroupedKernels(CudaDevice& device, const GroupedSizes& sizes, int tile, int element)
      : device_(&device), sizes_(sizes), tile_(tile), element_(static_cast<size_t>(element)) {}

  static GroupedRows rows_of(const GroupedSizes::Rows& rows) {
    return {static_cast<int>(rows.modulo), static_cast<int>(rows.divisor)};
  }

  // The rows' order and where those of each matrix begin in it.
  std::pair<std::byte*, std::byte*> group(std::span<std::byte* const> buffers) {
    std::byte *indices = buffers[2], *first = buffers.size() > kPlain ? buffers[3] : nullptr, *order = scratch_->data(),
              *begins = order + sizes_.rows() * 4;
    int count = static_cast<int>(sizes_.indices), parts = static_cast<int>(sizes_.parts),
        matrices = static_cast<int>(sizes_.matrices), total = static_cast<int>(sizes_.total);
    void* arguments[] = {&indices, &first, &count, &parts, &matrices, &total, &order, &begins};
    device_->launch(group_, dim3(static_cast<unsigned>(matrices)), kGroupedThreads, arguments);
    return {order, begins};
  }

  CudaDevice* device_;
  GroupedSizes sizes_;
  int tile_, shared_bytes_ = 0;
  size_t element_;
  cudaKernel_t group_ = nullptr, product_ = nullptr;
  std::shared_ptr<DeviceScratch> scratch_;
};

CudaKernel make_empty() {
  return make_kernel([](std::span<std::byte* const>) {});
}

}  // namespace

CudaKernel make_cuda_grouped_matmul(CudaDevice& device, const KernelRequest& r) {
  PARTITA_ASSIGN_OR_RETURN(const GroupedSizes sizes, GroupedSizes::of_product(r));
  if (sizes.rows() * sizes.columns == 0) return make_empty();
  PARTITA_ASSIGN_OR_RETURN(
      GroupedKernels k,
      GroupedKernels::make(device, r, sizes, sizes.transposed ? "grouped_matmul_transposed" : "grouped_matmul", true,
                           sizes.transposed));
  return make_kernel([k](std::span<std::byte* const> b) mutable { k.multiply(b); });
}

CudaKernel make_cuda_grouped_matmul_grad(CudaDevice& device, const KernelRequest& r) {
  PARTITA_ASSIGN_OR_RETURN(const GroupedSizes sizes, GroupedSizes::of_gradient(r));
  if (sizes.matrices * sizes.matrix() == 0) return make_empty();
  PARTITA_ASSIGN_OR_RETURN(GroupedKernels k,
                           GroupedKernels::make(device, r, sizes, "grouped_matmul_grad", false, false));
  return make_kernel([k](std::span<std::byte* const> b) mutable { k.add(b); });
}

}  // namespace partita::runtime
