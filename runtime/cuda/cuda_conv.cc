// conv and its gradients by cuDNN, by algorithms that add in one order: f64, and f32 without leave for tf32, in full
// precision, 16-bit types on the tensor cores with sums in f32. cuDNN knows two and three spatial dimensions, padded
// alike on both sides: one dimension gets another of 1 in front, and what one side is padded with beyond the other
// becomes part of x, in a copy. Operands with their channels last are cuDNN's NHWC; where it has no algorithm for that,
// they are turned in copies.
#include <array>
#include <vector>

#include "base/status.h"
#include "runtime/cuda/kernels.h"
#include "runtime/kernels/window.h"
#include "runtime/program/library_kernels.h"

namespace partita::runtime {
namespace {

using Direction = ConvDirection;
enum Side : size_t { kX, kW, kY };

class Convolution final : public LibraryKernel {
 public:
  static CudaKernel make(CudaDevice& device, const KernelRequest& r, Direction direction, Shape x, Shape weight,
                         Shape y) {
    if (weight.size() != x.size() || y.size() != x.size() || !is_float(r.dtype())) return r.unsupported();
    if (r.dtype(1) != r.dtype() || r.out(0).dtype != r.dtype()) return r.error("operands of one dtype");
    const bool last = r.i("channels_last", 0) != 0;
    if (last && (x.size() != kChannelsLast.size() || dtype_size(r.dtype()) > 4)) return r.unsupported();
    if (last) x = channels_second(x), weight = channels_second(weight), y = channels_second(y);
    PARTITA_ASSIGN_OR_RETURN(Window w, Window::make(r, x, y, Shape(weight.begin() + 2, weight.end()), true));
    PARTITA_ASSIGN_OR_RETURN(const Cudnn* dnn, Cudnn::load());
    std::unique_ptr<Convolution> made(new Convolution(device, *dnn, direction, r.dtype()));
    PARTITA_ASSIGN_OR_RETURN(made->handle_, device.cudnn());
    made->last_ = last;
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
    device_.stream();  // which cuDNN was given: behind the copies from now on
    std::array<std::byte*, 3> at = direction_ == Direction::kForward    ? std::array{b[0], b[1], b[2]}
                                   : direction_ == Direction::kGradData ? std::array{b[2], b[1], b[0]}
                                                                        : std::array{b[1], b[2], b[0]};
    const Side result = direction_ == Direction::kForward ? kY : direction_ == Direction::kGradData ? kX : kW;
    const std::array<std::byte*, 3> given = at;
    for (const Side k : {kX, kW, kY}) {
      if (turn_ == nullptr) break;
      at[k] = device_.scratch() + turned_at_[k];
      if (k != result) turn(k, given[k], at[k], true);
    }
    std::byte *padded = device_.scratch() + padded_at_, *x = at[kX];
    if (wide_) x = padded;
    if (wide_ && result != kX) pad(at[kX], padded);
    convolve(x, at[kW], at[kY]);
    if (wide_ && result == kX) copy_inside(padded, at[kX], false);
    if (turn_ != nullptr) turn(result, at[result], given[result], false);
  }

 private:
  // Those that cuDNN documents as deterministic; where its heuristics know none, the first that it has for the shapes
  // is taken.
  static constexpr std::array kForward = {CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM,
                                          CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, CUDNN_CONVOLUTION_FWD_ALGO_GEMM};
  static constexpr std::array kData = {CUDNN_CONVOLUTION_BWD_DATA_ALGO_1,
                                       CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED,
                                       CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT_TILING};
  static constexpr std::array kWeight = {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1,
                                         CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED,
                                         CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT_TILING};

  Convolution(CudaDevice& device, const Cudnn& dnn, Direction direction, DType dtype)
      : device_(device), dnn_(dnn), direction_(direction), dtype_(dtype), type_(type_of(dtype)) {}

  static cudnnDataType_t type_of(DType dtype) {
    return dtype == DType::kF64    ? CUDNN_DATA_DOUBLE
           : dtype == DType::kF32  ? CUDNN_DATA_FLOAT
           : dtype == DType::kBF16 ? CUDNN_DATA_BFLOAT16
                                   : CUDNN_DATA_HALF;
  }
  void convolve(std::byte* x, std::byte* w, std::byte* y) {
    if (plan_ != nullptr) return device_.note(plan_->run(x, w, y, device_.scratch()));
    const float one32 = 1, zero32 = 0;
    const double one64 = 1, zero64 = 0;
    const bool wide = type_ == CUDNN_DATA_DOUBLE;
    const void *one = wide ? static_cast<const void*>(&one64) : &one32,
               *zero = wide ? static_cast<const void*>(&zero64) : &zero32;
    void* scratch = device_.scratch();
    switch (direction_) {
      case Direction::kForward:
        device_.note(
            check(dnn_.forward(handle_, one, x_, x, weight_, w, desc_,
                               static_cast<cudnnConvolutionFwdAlgo_t>(algorithm_), scratch, workspace_, zero, y_, y),
                  "cudnnConvolutionForward"));
        return;
      case Direction::kGradData:
        device_.note(check(dnn_.backward_data(handle_, one, weight_, w, y_, y, desc_,
                                              static_cast<cudnnConvolutionBwdDataAlgo_t>(algorithm_), scratch,
                                              workspace_, zero, x_, x),
                           "cudnnConvolutionBackwardData"));
        return;
      case Direction::kGradWeight:
        device_.note(check(dnn_.backward_filter(handle_, one, x_, x, y_, y, desc_,
                                                static_cast<cudnnConvolutionBwdFilterAlgo_t>(algorithm_), scratch,
                                                workspace_, zero, weight_, w),
                           "cudnnConvolutionBackwardFilter"));
        return;
    }
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
    in_ = w.in, planes_ = w.batch * w.channels;
    Window::Dims both{};
    for (size_t d = 0; d < 3; ++d) {
      both[d] = std::min(w.low[d], w.high[d]);
      before_[d] = w.low[d] - both[d];
      padded_[d] = w.in[d] + before_[d] + w.high[d] - both[d];
      wide_ = wide_ || padded_[d] != w.in[d];
    }
    dims_ = {narrow({w.batch, w.channels}, padded_), narrow({filters, filter_channels}, w.kernel),
             narrow({w.batch, out_channels}, w.out)};
    const std::vector<int> pads = narrow({}, both), stride = narrow({}, w.stride), dilation = narrow({}, w.dilation);
    if (last_ && is_narrow() && make_plan(pads, stride, dilation)) return reserve(w, plan_->workspace_bytes());
    PARTITA_RETURN_IF_ERROR(check(dnn_.tensor_create(&x_), "cudnnCreateTensorDescriptor"));
    PARTITA_RETURN_IF_ERROR(check(dnn_.tensor_create(&y_), "cudnnCreateTensorDescriptor"));
    PARTITA_RETURN_IF_ERROR(check(dnn_.filter_create(&weight_), "cudnnCreateFilterDescriptor"));
    PARTITA_RETURN_IF_ERROR(check(dnn_.conv_create(&desc_), "cudnnCreateConvolutionDescriptor"));
    PARTITA_RETURN_IF_ERROR(
        check(dnn_.conv_set(desc_, static_cast<int>(pads.size()), pads.data(), stride.data(), dilation.data(),
                            CUDNN_CROSS_CORRELATION, is_narrow() ? CUDNN_DATA_FLOAT : type_),
              "cudnnSetConvolutionNdDescriptor"));
    PARTITA_RETURN_IF_ERROR(check(dnn_.conv_groups(desc_, static_cast<int>(groups)), "cudnnSetConvolutionGroupCount"));
    // Without more said, cuDNN takes tf32 for f32.
    const cudnnMathType_t math = is_narrow() ? CUDNN_TENSOR_OP_MATH : tf32 ? CUDNN_DEFAULT_MATH : CUDNN_FMA_MATH;
    PARTITA_RETURN_IF_ERROR(describe_tensors());
    absl::Status status = choose_algorithm(math, is_narrow() || tf32);
    if (last_ && absl::IsUnimplemented(status)) {
      PARTITA_ASSIGN_OR_RETURN(turn_, device_.own_kernel(cat("turn_", element_bytes())));
      PARTITA_RETURN_IF_ERROR(describe_tensors());
      status = choose_algorithm(math, true);
    }
    PARTITA_RETURN_IF_ERROR(status);
    return reserve(w, static_cast<int64_t>(workspace_));
  }

  // By the graph API, where it has a plan; the older interface has its own way otherwise.
  bool make_plan(const std::vector<int>& pads, const std::vector<int>& stride, const std::vector<int>& dilation) {
    const auto wide = [](const std::vector<int>& x) { return std::vector<int64_t>(x.begin(), x.end()); };
    CudnnConvShape shape{direction_, dtype_, {}, wide(pads), wide(stride), wide(dilation)};
    for (const Side k : {kX, kW, kY}) shape.dims[k] = wide(dims_[k]);
    absl::StatusOr<std::shared_ptr<const CudnnConv>> plan = device_.convolutions().plan(handle_, shape);
    device_.count_convolution(plan.status());
    if (plan.ok()) plan_ = *std::move(plan);
    return plan_ != nullptr;
  }

  // Scratch memory: cuDNN's, then the copies'.
  absl::Status reserve(const Window& w, int64_t scratch) {
    const auto place = [&](int64_t bytes) {
      const int64_t at = (scratch + 255) / 256 * 256;
      scratch = at + bytes;
      return at;
    };
    if (wide_) padded_at_ = place(padded_bytes());
    const std::array<int64_t, 3> pixels = {w.in_plane(), w.kernel_size(), w.out_plane()};
    for (const Side k : {kX, kW, kY}) {
      matrices_[k] = {dims_[k][0], pixels[k], dims_[k][1]};
      if (turn_ != nullptr) turned_at_[k] = place(dims_[k][0] * pixels[k] * dims_[k][1] * element_bytes());
    }
    device_.reserve_scratch(scratch);
    return absl::OkStatus();
  }

  // Operands as cuDNN is given them have their channels last.
  bool is_last() const { return last_ && turn_ == nullptr; }

  absl::Status describe_tensors() {
    for (const auto& [tensor, side] : {std::pair{x_, kX}, std::pair{y_, kY}}) {
      const std::vector<int>& dims = dims_[side];
      std::vector<int> strides(dims.size(), 1);
      int stride = is_last() ? dims[1] : 1;
      for (size_t k = dims.size(); k-- > 0;) {
        if (is_last() && k == 1) continue;
        strides[k] = stride;
        stride *= dims[k];
      }
      PARTITA_RETURN_IF_ERROR(
          check(dnn_.tensor_set(tensor, type_, static_cast<int>(dims.size()), dims.data(), strides.data()),
                "cudnnSetTensorNdDescriptor"));
    }
    return check(dnn_.filter_set(weight_, type_, is_last() ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW,
                                 static_cast<int>(dims_[kW].size()), dims_[kW].data()),
                 "cudnnSetFilterNdDescriptor");
  }

  struct Choice {
    int algorithm;
    cudnnMathType_t math;
  };

  // What cuDNN's heuristics expect to be fastest, fastest first, of what adds in one order.
  template <typename Performance, typename Ask>
  absl::Status suggest(std::vector<Choice>& choices, Ask ask) const {
    constexpr size_t kMostWorkspace = size_t{1} << 30;
    std::array<Performance, 16> found;
    int count = 0;
    const cudnnStatus_t status = ask(static_cast<int>(found.size()), &count, found.data());
    if (is_lacking(status)) return absl::OkStatus();
    PARTITA_RETURN_IF_ERROR(check(status, "cuDNN's choice of an algorithm"));
    for (int k = 0; k < count; ++k) {
      const Performance& p = found[static_cast<size_t>(k)];
      if (p.status == CUDNN_STATUS_SUCCESS && p.determinism == CUDNN_DETERMINISTIC && p.memory <= kMostWorkspace)
        choices.push_back({static_cast<int>(p.algo), p.mathType});
    }
    return absl::OkStatus();
  }

  absl::Status choose_algorithm(cudnnMathType_t math, bool by_heuristics) {
    std::vector<Choice> choices;
    const auto known = [&](const auto& algorithms) {
      for (const auto a : algorithms) choices.push_back({static_cast<int>(a), math});
    };
    PARTITA_RETURN_IF_ERROR(check(dnn_.conv_math(desc_, math), "cudnnSetConvolutionMathType"));
    if (by_heuristics && direction_ == Direction::kForward) {
      PARTITA_RETURN_IF_ERROR(suggest<cudnnConvolutionFwdAlgoPerf_t>(choices, [&](int most, int* count, auto* found) {
        return dnn_.forward_choices(handle_, x_, weight_, desc_, y_, most, count, found);
      }));
    } else if (by_heuristics && direction_ == Direction::kGradData) {
      PARTITA_RETURN_IF_ERROR(
          suggest<cudnnConvolutionBwdDataAlgoPerf_t>(choices, [&](int most, int* count, auto* found) {
            return dnn_.data_choices(handle_, weight_, y_, desc_, x_, most, count, found);
          }));
    } else if (by_heuristics) {
      PARTITA_RETURN_IF_ERROR(
          suggest<cudnnConvolutionBwdFilterAlgoPerf_t>(choices, [&](int most, int* count, auto* found) {
            return dnn_.filter_choices(handle_, x_, y_, desc_, weight_, most, count, found);
          }));
    }
    if (direction_ == Direction::kForward) known(kForward);
    if (direction_ == Direction::kGradData) known(kData);
    if (direction_ == Direction::kGradWeight) known(kWeight);
    for (const Choice& c : choices) {
      PARTITA_RETURN_IF_ERROR(check(dnn_.conv_math(desc_, c.math), "cudnnSetConvolutionMathType"));
      const cudnnStatus_t status = workspace_of(c.algorithm);
      if (is_lacking(status)) continue;
      algorithm_ = c.algorithm;
      return check(status, "cuDNN's workspace");
    }
    return absl::UnimplementedError("cuDNN has no algorithm for these shapes that adds in one order");
  }

  cudnnStatus_t workspace_of(int algorithm) {
    switch (direction_) {
      case Direction::kForward:
        return dnn_.forward_workspace(handle_, x_, weight_, desc_, y_,
                                      static_cast<cudnnConvolutionFwdAlgo_t>(algorithm), &workspace_);
      case Direction::kGradData:
        return dnn_.data_workspace(handle_, weight_, y_, desc_, x_,
                                   static_cast<cudnnConvolutionBwdDataAlgo_t>(algorithm), &workspace_);
      case Direction::kGradWeight:
        break;
    }
    return dnn_.filter_workspace(handle_, x_, y_, desc_, weight_,
                                 static_cast<cudnnConvolutionBwdFilterAlgo_t>(algorithm), &workspace_);
  }

  // Between an operand as the step has it and its copy with the channels second.
  void turn(Side side, std::byte* from, std::byte* to, bool into) {
    auto [planes, rows, columns] = matrices_[side];
    if (!into) std::swap(rows, columns);
    const int64_t tiles = planes * ((rows + 31) / 32) * ((columns + 31) / 32);
    void* arguments[] = {&from, &to, &planes, &rows, &columns};
    device_.launch(turn_, dim3(static_cast<unsigned>(std::min<int64_t>(tiles, 65536))), 256, arguments);
  }

  int64_t element_bytes() const { return type_ == CUDNN_DATA_DOUBLE ? 8 : is_narrow() ? 2 : 4; }
  int64_t padded_bytes() const { return planes_ * padded_[0] * padded_[1] * padded_[2] * element_bytes(); }

  void pad(std::byte* x, std::byte* padded) {
    device_.note("cudaMemset", cudaMemsetAsync(padded, 0, static_cast<size_t>(padded_bytes()), device_.stream()));
    copy_inside(padded, x, true);
  }

  // Between x and its place in the padded copy. Planes are copied together unless there is padding between them.
  void copy_inside(std::byte* padded, std::byte* x, bool into) {
    const bool together = padded_[0] == in_[0];
    const int64_t channels = is_last() ? dims_[kX][1] : 1, size = channels * element_bytes(),
                  planes = planes_ / channels;
    const int64_t copies = together ? 1 : planes, depth = together ? planes * in_[0] : in_[0];
    const auto pitched = [&](std::byte* at, const Window::Dims& d) {
      const size_t row = static_cast<size_t>(d[2] * size);
      return cudaPitchedPtr{at, row, row, static_cast<size_t>(d[1])};
    };
    for (int64_t k = 0; k < copies; ++k) {
      const cudaPitchedPtr inner = pitched(x + k * in_[0] * in_[1] * in_[2] * size, in_);
      const cudaPitchedPtr outer = pitched(padded + k * padded_[0] * padded_[1] * padded_[2] * size, padded_);
      const cudaPos place{static_cast<size_t>(before_[2] * size), static_cast<size_t>(before_[1]),
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
  DType dtype_;
  cudnnDataType_t type_;
  std::shared_ptr<const CudnnConv> plan_;  // of the graph API; null: by the older interface
  cudnnHandle_t handle_ = nullptr;
  cudnnTensorDescriptor_t x_ = nullptr, y_ = nullptr;
  cudnnFilterDescriptor_t weight_ = nullptr;
  cudnnConvolutionDescriptor_t desc_ = nullptr;
  std::array<std::vector<int>, 3> dims_;  // of x (its copy), weight and y as cuDNN is told them
  int algorithm_ = 0;
  size_t workspace_ = 0;
  Window::Dims in_{}, padded_{}, before_{};  // of x; of its copy; zeros of the copy in front of x
  int64_t planes_ = 0, padded_at_ = 0;       // samples times channels; the copy's place in the scratch, in bytes
  bool wide_ = false;                        // there is a copy
  bool last_ = false;                        // operands have their channels last
  cudaKernel_t turn_ = nullptr;              // which turns them, where cuDNN does not take them so
  std::array<std::array<int64_t, 3>, 3> matrices_{};  // of each operand: outermost dimension, pixels, channels
  std::array<int64_t, 3> turned_at_{};                // their copies' places in the scratch, in bytes
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
