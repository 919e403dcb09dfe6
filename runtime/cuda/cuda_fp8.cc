// Products of fp8 numbers with scales for blocks of 128, and what makes such numbers of bf16.
#include "base/math/quantized.h"
#include "base/status.h"
#include "runtime/cuda/cuda_matmul.h"
#include "runtime/cuda/kernels.h"

namespace partita::runtime {
namespace {

constexpr int kThreads = 256;  // kernels/fp8.cu

bool is_format(const std::string& name) { return name == "e4m3" || name == "e5m2"; }

bool holds(const Operand& operand, const QuantizedMatrix& m) {
  return m.fits() && operand.dtype == DType::kU8 && operand.shape == Shape{m.bytes()};
}

}  // namespace

// x [rows, columns]. Its blocks lie along the rows; with `transpose` along the columns, which are the result's rows;
// with `tiles` they are as long one way as the other. `both`: the first result is that, the second its transpose's.
CudaKernel make_cuda_quantize_fp8(CudaDevice& device, const KernelRequest& r) {
  const bool both = r.i("both", 0) != 0, columns = both || r.i("transpose", 0) != 0;
  PARTITA_RETURN_IF_ERROR(r.expect_operands(1, 1, both ? 2 : 1));
  const Shape& shape = r.in(0).shape;
  const std::string format = r.s("format", "");
  if (shape.size() != 2 || !is_format(format)) return r.error("a matrix, and a format e4m3 or e5m2");
  if (r.dtype() != DType::kBF16) return r.unsupported();
  int tiles = r.i("tiles", 0) != 0;
  const QuantizedMatrix as_rows{shape[0], shape[1], tiles != 0}, turned{shape[1], shape[0], tiles != 0};
  const QuantizedMatrix& last = columns ? turned : as_rows;
  if (!holds(r.out(both ? 1 : 0), last) || (both && !holds(r.out(0), as_rows)))
    return r.error(cat("a matrix in whole blocks of ", kFp8Block, ", other dimensions multiples of 16, and u8[",
                       last.bytes(), "]"));
  PARTITA_ASSIGN_OR_RETURN(cudaKernel_t kernel, device.own_kernel(cat("quantize_",
                                                                      both      ? "both_"
                                                                      : columns ? "columns_"
                                                                                : "rows_",
                                                                      format)));
  const auto blocks_of = [](int64_t size) { return (size + kFp8Block - 1) / kFp8Block; };
  const dim3 blocks(static_cast<unsigned>(blocks_of(shape[0]) * blocks_of(shape[1])));
  if (both) {
    return make_kernel([&device, kernel, blocks, as_rows, turned, rows = shape[0], across = shape[1],
                        tiles](std::span<std::byte* const> b) mutable {
      void *x = b[0], *y = b[1], *scales = b[1] + as_rows.first_scale(), *other = b[2],
           *other_scales = b[2] + turned.first_scale();
      void* arguments[] = {&x, &y, &scales, &other, &other_scales, &rows, &across, &tiles};
      device.launch(kernel, blocks, kThreads, arguments);
    });
  }
  return make_kernel([&device, kernel, blocks, last, rows = shape[0], across = shape[1],
                      tiles](std::span<std::byte* const> b) mutable {
    void *x = b[0], *y = b[1], *scales = b[1] + last.first_scale();
    void* arguments[] = {&x, &y, &scales, &rows, &across, &tiles};
    device.launch(kernel, blocks, kThreads, arguments);
  });
}

// A [m, k] by B [n, k], its transpose.
CudaKernel make_cuda_multiply_fp8(CudaDevice& device, const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(2, 2, 1));
  const std::string a = r.s("a", ""), b = r.s("b", ""), epilogue = r.s("epilogue", "");
  const int64_t m = r.i("m", 0), n = r.i("n", 0), k = r.i("k", 0);
  const QuantizedMatrix rows{m, k, r.i("tiles_a", 0) != 0}, columns{n, k, r.i("tiles_b", 0) != 0};
  const DType out = r.out(0).dtype;
  if (!is_format(a) || !is_format(b) || !holds(r.in(0), rows) || !holds(r.in(1), columns) ||
      r.out(0).shape != Shape{m, n} || (out != DType::kBF16 && out != DType::kF32) ||
      (!epilogue.empty() && epilogue != "accumulate"))
    return r.error(cat("u8[", rows.bytes(), "], u8[", columns.bytes(), "] -> bf16 or f32 [", m, ", ", n,
                       "], formats e4m3 or e5m2, and no epilogue but accumulate"));
  CudaProduct p{.dtype = DType::kU8,
                .out = out,
                .fp8 = Fp8Operands{a == "e5m2", b == "e5m2", rows.tiles, columns.tiles},
                .m = m,
                .n = n,
                .k = k,
                .transpose_b = true,
                .accumulate = !epilogue.empty()};
  absl::StatusOr<std::shared_ptr<CudaMatmul>> matmul = CudaMatmul::make(device, p);
  if (!matmul.ok())
    return absl::Status(
        matmul.status().code(),
        cat(matmul.status().message(), ": a product of fp8 numbers with scales of blocks of ", kFp8Block, ", ", m,
            " x ", n, " x ", k, ", needs Hopper (sm_90) and cuBLAS 12.9 or newer; found ", device.name(),
            "; install a newer cuBLAS, or say precision: bf16 in train.yaml"));
  return make_kernel([matmul = *std::move(matmul), rows, columns](std::span<std::byte* const> at) {
    matmul->run(at[0], at[1], at[2],
                {.scales_a = at[0] + rows.first_scale(), .scales_b = at[1] + columns.first_scale()});
  });
}

}  // namespace partita::runtime
