// conv and its gradients by cuDNN, by algorithms that add in one order: f64, and f32 without leave for tf32, in full
// precision, 16-bit types on the tensor cores with sums in f32.
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
    if (x.size() < 4 || x.size() > 5 || weight.size() != x.size() || y.size() != x.size() || !is_float(r.dtype()))
      return r.unsupported();
    if (r.dtype(1) != r.dtype() || r.out(0).dtype != r.dtype()) return r.error("operands of one dtype");
    PARTITA_ASSIGN_OR_RETURN(Window w, Window::make(r, x, y, Shape(weight.begin() + 2, weight.end()), true));
    if (w.low != w.high) return r.error("the same padding on both sides, which is what cuDNN knows");
    PARTITA_ASSIGN_OR_RETURN(const Cudnn* dnn, Cudnn::load());
    std::unique_ptr<Convolution> made(new Convolution(device, *dnn, direction, r.dtype()));
    PARTITA_ASSIGN_OR_RETURN(made->handle_, device.cudnn());
    PARTITA_RETURN_IF_ERROR(made->describe(w, r.i("groups", 1), r.i("tf32", 0) != 0, x, weight, y));
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
    switch (direction_) {
      case Direction::kForward:
        device_.note(check(dnn_.forward(handle_, one, x_, b[0], weight_, b[1], desc_, kForwardAlgorithm, scratch,
                                        workspace_, zero, y_, b[2]),
                           "cudnnConvolutionForward"));
        return;
      case Direction::kGradData:
        device_.note(check(dnn_.backward_data(handle_, one, weight_, b[1], y_, b[0], desc_, kDataAlgorithm, scratch,
                                              workspace_, zero, x_, b[2]),
                           "cudnnConvolutionBackwardData"));
        return;
      case Direction::kGradWeight:
        device_.note(check(dnn_.backward_filter(handle_, one, x_, b[1], y_, b[0], desc_, kWeightAlgorithm, scratch,
                                                workspace_, zero, weight_, b[2]),
                           "cudnnConvolutionBackwardFilter"));
        return;
    }
  }

 private:
  // Those that cuDNN documents as deterministic.
  static constexpr cudnnConvolutionFwdAlgo_t kForwardAlgorithm = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
  static constexpr cudnnConvolutionBwdDataAlgo_t kDataAlgorithm = CUDNN_CONVOLUTION_BWD_DATA_ALGO_1;
  static constexpr cudnnConvolutionBwdFilterAlgo_t kWeightAlgorithm = CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1;

  Convolution(CudaDevice& device, const Cudnn& dnn, Direction direction, DType dtype)
      : device_(device), dnn_(dnn), direction_(direction), type_(type_of(dtype)) {}

  static cudnnDataType_t type_of(DType dtype) {
    return dtype == DType::kF64    ? CUDNN_DATA_DOUBLE
           : dtype == DType::kF32  ? CUDNN_DATA_FLOAT
           : dtype == DType::kBF16 ? CUDNN_DATA_BFLOAT16
                                   : CUDNN_DATA_HALF;
  }
  bool is_narrow() const { return type_ == CUDNN_DATA_BFLOAT16 || type_ == CUDNN_DATA_HALF; }

  absl::Status check(cudnnStatus_t status, const char* call) const {
    if (status == CUDNN_STATUS_SUCCESS) return absl::OkStatus();
    const std::string text = cat(call, ": ", dnn_.error_text(status));
    return status == CUDNN_STATUS_NOT_SUPPORTED ? absl::UnimplementedError(text) : absl::InternalError(text);
  }

  absl::Status describe(const Window& w, int64_t groups, bool tf32, const Shape& x, const Shape& weight,
                        const Shape& y) {
    auto narrow = [](const Shape& s) { return std::vector<int>(s.begin(), s.end()); };
    auto spatial = [&](const Window::Dims& d) {
      return std::vector<int>(d.end() - static_cast<long>(w.rank), d.end());
    };
    auto tensor = [&](cudnnTensorDescriptor_t& made, const Shape& s) {
      std::vector<int> dims = narrow(s), strides(dims.size(), 1);
      for (size_t k = dims.size() - 1; k-- > 0;) strides[k] = strides[k + 1] * dims[k + 1];
      PARTITA_RETURN_IF_ERROR(check(dnn_.tensor_create(&made), "cudnnCreateTensorDescriptor"));
      return check(dnn_.tensor_set(made, type_, static_cast<int>(dims.size()), dims.data(), strides.data()),
                   "cudnnSetTensorNdDescriptor");
    };
    PARTITA_RETURN_IF_ERROR(tensor(x_, x));
    PARTITA_RETURN_IF_ERROR(tensor(y_, y));
    PARTITA_RETURN_IF_ERROR(check(dnn_.filter_create(&weight_), "cudnnCreateFilterDescriptor"));
    const std::vector<int> filter = narrow(weight), pad = spatial(w.low), stride = spatial(w.stride),
                           dilation = spatial(w.dilation);
    PARTITA_RETURN_IF_ERROR(
        check(dnn_.filter_set(weight_, type_, CUDNN_TENSOR_NCHW, static_cast<int>(filter.size()), filter.data()),
              "cudnnSetFilterNdDescriptor"));
    PARTITA_RETURN_IF_ERROR(check(dnn_.conv_create(&desc_), "cudnnCreateConvolutionDescriptor"));
    PARTITA_RETURN_IF_ERROR(
        check(dnn_.conv_set(desc_, static_cast<int>(pad.size()), pad.data(), stride.data(), dilation.data(),
                            CUDNN_CROSS_CORRELATION, is_narrow() ? CUDNN_DATA_FLOAT : type_),
              "cudnnSetConvolutionNdDescriptor"));
    PARTITA_RETURN_IF_ERROR(check(dnn_.conv_groups(desc_, static_cast<int>(groups)), "cudnnSetConvolutionGroupCount"));
    // Without more said, cuDNN takes tf32 for f32.
    const cudnnMathType_t math = is_narrow() ? CUDNN_TENSOR_OP_MATH : tf32 ? CUDNN_DEFAULT_MATH : CUDNN_FMA_MATH;
    PARTITA_RETURN_IF_ERROR(check(dnn_.conv_math(desc_, math), "cudnnSetConvolutionMathType"));
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    if (direction_ == Direction::kForward)
      status = dnn_.forward_workspace(handle_, x_, weight_, desc_, y_, kForwardAlgorithm, &workspace_);
    else if (direction_ == Direction::kGradData)
      status = dnn_.data_workspace(handle_, weight_, y_, desc_, x_, kDataAlgorithm, &workspace_);
    else
      status = dnn_.filter_workspace(handle_, x_, y_, desc_, weight_, kWeightAlgorithm, &workspace_);
    PARTITA_RETURN_IF_ERROR(check(status, "cuDNN's workspace"));
    device_.reserve_scratch(static_cast<int64_t>(workspace_));
    return absl::OkStatus();
  }

  CudaDevice& device_;
  const Cudnn& dnn_;
  Direction direction_;
  cudnnDataType_t type_;
  cudnnHandle_t handle_ = nullptr;
  cudnnTensorDescriptor_t x_ = nullptr, y_ = nullptr;
  cudnnFilterDescriptor_t weight_ = nullptr;
  cudnnConvolutionDescriptor_t desc_ = nullptr;
  size_t workspace_ = 0;
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
