// conv and its gradients by cuDNN, by algorithms that add in one order: f64, and f32 without leave for tf32, in full
// precision, 16-bit types on the tensor cores with sums in f32. cuDNN knows two and three spatial dimensions, padded
// alike on both sides: one dimension gets another of 1 in front, and what one side is padded with beyond the other
// becomes part of x, in a copy.
#include <array>

#include "base/status.h"
#include "runtime/cuda/kernels.h"
#include "runtime/kernels/window.h"

namespace partita::runtime {
namespace {

enum class Direction { kForward, kGradData, kGradWeight };

class Convolution final : public LibraryKernel {
 public:
  static CudaKernel make(CudaDevice& device, const KernelRequest& r, Direction direction, const Shape& x,
                         const Shape& weight, const Shape& y) {
    if (weight.size() != x.size() || y.size() != x.size() || !is_float(r.dtype())) return r.unsupported();
    if (r.dtype(1) != r.dtype() || r.out(0).dtype != r.dtype()) return r.error("operands of one dtype");
    PARTITA_ASSIGN_OR_RETURN(Window w, Window::make(r, x, y, Shape(weight.begin() + 2, weight.end()), true));
    PARTITA_ASSIGN_OR_RETURN(const Cudnn* dnn, Cudnn::load());
    std::unique_ptr<Convolution> made(new Convolution(device, *dnn, direction, r.dtype()));
    PARTITA_ASSIGN_OR_RETURN(made->handle_, device.cudnn());
    PARTITA_RETURN_IF_ERROR(
        with_context(made->describe(w, r.i("groups", 1), r.i("tf32", 0) != 0, weight[0], weight[1], y[1]), r.types()));
    return made;
  }
  ~Convolution() override {
    if (x_ != nullptr) dnn_.tensor_destroy(x_);
    if (y_ != nullptr) dnn_.tensor_destroy(y_);
    if (weight_ != nullptr) dnn_.filter_destroy(weight_);
    if (desc_ != nullptr) dnn_.conv_destroy(desc_);
  }

  // Operands: x, w -> y; g, w -> dx; g, x -> dw.
  void run(std::span<std::byte* const> b) override {
    const float one32 = 1, zero32 = 0;
    const double one64 = 1, zero64 = 0;
    const bool wide = type_ == CUDNN_DATA_DOUBLE;
    const void *one = wide ? static_cast<const void*>(&one64) : &one32,
               *zero = wide ? static_cast<const void*>(&zero64) : &zero32;
    void* scratch = device_.scratch();
    device_.stream();  // which cuDNN was given: behind the copies from now on
    std::byte* padded = device_.scratch() + padded_at_;
    switch (direction_) {
      case Direction::kForward:
        device_.note(check(dnn_.forward(handle_, one, x_, wide_ ? pad(b[0], padded) : b[0], weight_, b[1], desc_,
                                        kForward[algorithm_], scratch, workspace_, zero, y_, b[2]),
                           "cudnnConvolutionForward"));
        return;
      case Direction::kGradData:
        device_.note(check(dnn_.backward_data(handle_, one, weight_, b[1], y_, b[0], desc_, kData[algorithm_], scratch,
                                              workspace_, zero, x_, wide_ ? padded : b[2]),
                           "cudnnConvolutionBackwardData"));
        if (wide_) copy_inside(padded, b[2], false);
        return;
      case Direction::kGradWeight:
        device_.note(check(dnn_.backward_filter(handle_, one, x_, wide_ ? pad(b[1], padded) : b[1], y_, b[0], desc_,
                                                kWeight[algorithm_], scratch, workspace_, zero, weight_, b[2]),
                           "cudnnConvolutionBackwardFilter"));
        return;
    }
  }

 private:
  // Those that cuDNN documents as deterministic; the first that it has for the shapes is taken.
  static constexpr std::array kForward = {CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM,
                                          CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, CUDNN_CONVOLUTION_FWD_ALGO_GEMM};
  static constexpr std::array kData = {CUDNN_CONVOLUTION_BWD_DATA_ALGO_1,
                                       CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED,
                                       CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT_TILING};
  static constexpr std::array kWeight = {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1,
                                         CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED,
                                         CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT_TILING};

  Convolution(CudaDevice& device, const Cudnn& dnn, Direction direction, DType dtype)
      : device_(device), dnn_(dnn), direction_(direction), type_(type_of(dtype)) {}

  static cudnnDataType_t type_of(DType dtype) {
    return dtype == DType::kF64    ? CUDNN_DATA_DOUBLE
           : dtype == DType::kF32  ? CUDNN_DATA_FLOAT
           : dtype == DType::kBF16 ? CUDNN_DATA_BFLOAT16
                                   : CUDNN_DATA_HALF;
  }
  bool is_narrow() const { return type_ == CUDNN_DATA_BFLOAT16 || type_ == CUDNN_DATA_HALF; }

  // cuDNN says in the last digits why it does not support something.
  static bool is_lacking(cudnnStatus_t status) {
    return CUDNN_STATUS_CATEGORY(static_cast<int>(status)) == CUDNN_STATUS_NOT_SUPPORTED;
  }

  absl::Status check(cudnnStatus_t status, const char* call) const {
    if (status == CUDNN_STATUS_SUCCESS) return absl::OkStatus();
    const std::string text = cat(call, ": ", dnn_.error_text(status));
    return is_lacking(status) ? absl::UnimplementedError(text) : absl::InternalError(text);
  }

  absl::Status describe(const Window& w, int64_t groups, bool tf32, int64_t filters, int64_t filter_channels,
                        int64_t out_channels) {
    const size_t rank = std::max<size_t>(w.rank, 2);
    // With the dimensions that cuDNN wants in front.
    auto narrow = [&](std::vector<int64_t> front, const Window::Dims& d) {
      std::vector<int> dims(front.begin(), front.end());
      dims.insert(dims.end(), d.end() - static_cast<long>(rank), d.end());
      return dims;
    };
    auto tensor = [&](cudnnTensorDescriptor_t& made, const std::vector<int>& dims) {
      std::vector<int> strides(dims.size(), 1);
      for (size_t k = dims.size() - 1; k-- > 0;) strides[k] = strides[k + 1] * dims[k + 1];
      PARTITA_RETURN_IF_ERROR(check(dnn_.tensor_create(&made), "cudnnCreateTensorDescriptor"));
      return check(dnn_.tensor_set(made, type_, static_cast<int>(dims.size()), dims.data(), strides.data()),
                   "cudnnSetTensorNdDescriptor");
    };
    in_ = w.in, planes_ = w.batch * w.channels;
    Window::Dims both{};
    for (size_t d = 0; d < 3; ++d) {
      both[d] = std::min(w.low[d], w.high[d]);
      before_[d] = w.low[d] - both[d];
      padded_[d] = w.in[d] + before_[d] + w.high[d] - both[d];
      wide_ = wide_ || padded_[d] != w.in[d];
    }
    PARTITA_RETURN_IF_ERROR(tensor(x_, narrow({w.batch, w.channels}, padded_)));
    PARTITA_RETURN_IF_ERROR(tensor(y_, narrow({w.batch, out_channels}, w.out)));
    PARTITA_RETURN_IF_ERROR(check(dnn_.filter_create(&weight_), "cudnnCreateFilterDescriptor"));
    const std::vector<int> filter = narrow({filters, filter_channels}, w.kernel), pads = narrow({}, both),
                           stride = narrow({}, w.stride), dilation = narrow({}, w.dilation);
    PARTITA_RETURN_IF_ERROR(
        check(dnn_.filter_set(weight_, type_, CUDNN_TENSOR_NCHW, static_cast<int>(filter.size()), filter.data()),
              "cudnnSetFilterNdDescriptor"));
    PARTITA_RETURN_IF_ERROR(check(dnn_.conv_create(&desc_), "cudnnCreateConvolutionDescriptor"));
    PARTITA_RETURN_IF_ERROR(
        check(dnn_.conv_set(desc_, static_cast<int>(pads.size()), pads.data(), stride.data(), dilation.data(),
                            CUDNN_CROSS_CORRELATION, is_narrow() ? CUDNN_DATA_FLOAT : type_),
              "cudnnSetConvolutionNdDescriptor"));
    PARTITA_RETURN_IF_ERROR(check(dnn_.conv_groups(desc_, static_cast<int>(groups)), "cudnnSetConvolutionGroupCount"));
    // Without more said, cuDNN takes tf32 for f32.
    const cudnnMathType_t math = is_narrow() ? CUDNN_TENSOR_OP_MATH : tf32 ? CUDNN_DEFAULT_MATH : CUDNN_FMA_MATH;
    PARTITA_RETURN_IF_ERROR(check(dnn_.conv_math(desc_, math), "cudnnSetConvolutionMathType"));
    PARTITA_RETURN_IF_ERROR(choose_algorithm());
    padded_at_ = (static_cast<int64_t>(workspace_) + 255) / 256 * 256;
    device_.reserve_scratch(padded_at_ + (wide_ ? padded_bytes() : 0));
    return absl::OkStatus();
  }

  absl::Status choose_algorithm() {
    for (algorithm_ = 0; algorithm_ < kForward.size(); ++algorithm_) {
      const cudnnStatus_t status =
          direction_ == Direction::kForward
              ? dnn_.forward_workspace(handle_, x_, weight_, desc_, y_, kForward[algorithm_], &workspace_)
          : direction_ == Direction::kGradData
              ? dnn_.data_workspace(handle_, weight_, y_, desc_, x_, kData[algorithm_], &workspace_)
              : dnn_.filter_workspace(handle_, x_, y_, desc_, weight_, kWeight[algorithm_], &workspace_);
      if (!is_lacking(status)) return check(status, "cuDNN's workspace");
    }
    return absl::UnimplementedError("cuDNN has no algorithm for these shapes that adds in one order");
  }

  int64_t element_bytes() const { return type_ == CUDNN_DATA_DOUBLE ? 8 : is_narrow() ? 2 : 4; }
  int64_t padded_bytes() const { return planes_ * padded_[0] * padded_[1] * padded_[2] * element_bytes(); }

  const std::byte* pad(std::byte* x, std::byte* padded) {
    device_.note("cudaMemset", cudaMemsetAsync(padded, 0, static_cast<size_t>(padded_bytes()), device_.stream()));
    copy_inside(padded, x, true);
    return padded;
  }

  // Between x and its place in the padded copy. Planes are copied together unless there is padding between them.
  void copy_inside(std::byte* padded, std::byte* x, bool into) {
    const bool together = padded_[0] == in_[0];
    const int64_t copies = together ? 1 : planes_, depth = together ? planes_ * in_[0] : in_[0];
    const auto pitched = [&](std::byte* at, const Window::Dims& d) {
      const size_t row = static_cast<size_t>(d[2] * element_bytes());
      return cudaPitchedPtr{at, row, row, static_cast<size_t>(d[1])};
    };
    for (int64_t k = 0; k < copies; ++k) {
      const cudaPitchedPtr inner = pitched(x + k * in_[0] * in_[1] * in_[2] * element_bytes(), in_);
      const cudaPitchedPtr outer =
          pitched(padded + k * padded_[0] * padded_[1] * padded_[2] * element_bytes(), padded_);
      const cudaPos place{static_cast<size_t>(before_[2] * element_bytes()), static_cast<size_t>(before_[1]),
                          static_cast<size_t>(before_[0])};
      cudaMemcpy3DParms copy{};
      (into ? copy.srcPtr : copy.dstPtr) = inner;
      (into ? copy.dstPtr : copy.srcPtr) = outer;
      (into ? copy.dstPos : copy.srcPos) = place;
      copy.extent = {inner.pitch, static_cast<size_t>(in_[1]), static_cast<size_t>(depth)};
      copy.kind = cudaMemcpyDeviceToDevice;
      device_.note("cudaMemcpy3D", cudaMemcpy3DAsync(&copy, device_.stream()));
    }
  }

  CudaDevice& device_;
  const Cudnn& dnn_;
  Direction direction_;
  cudnnDataType_t type_;
  cudnnHandle_t handle_ = nullptr;
  cudnnTensorDescriptor_t x_ = nullptr, y_ = nullptr;
  cudnnFilterDescriptor_t weight_ = nullptr;
  cudnnConvolutionDescriptor_t desc_ = nullptr;
  size_t algorithm_ = 0, workspace_ = 0;
  Window::Dims in_{}, padded_{}, before_{};  // of x; of its copy; zeros of the copy in front of x
  int64_t planes_ = 0, padded_at_ = 0;       // samples times channels; the copy's place in the scratch, in bytes
  bool wide_ = false;                        // there is a copy
};

}  // namespace

CudaKernel make_cuda_conv(CudaDevice& device, const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(2, 2, 1));
  return Convolution::make(device, r, Direction::kForward, r.in(0).shape, r.in(1).shape, r.out(0).shape);
}
CudaKernel make_cuda_conv_grad_data(CudaDevice& device, const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(2, 2, 1));
  return Convolution::make(device, r, Direction::kGradData, r.out(0).shape, r.in(1).shape, r.in(0).shape);
}
CudaKernel make_cuda_conv_grad_weight(CudaDevice& device, const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(2, 2, 1));
  return Convolution::make(device, r, Direction::kGradWeight, r.in(1).shape, r.out(0).shape, r.in(0).shape);
}

}  // namespace partita::runtime
