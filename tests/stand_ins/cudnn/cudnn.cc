// cuDNN's interface, as far as Partita calls it, for the GPU that is this machine: convolutions by their definition.
// Strict where the library is lenient or undefined: descriptors must fit together, tensors be packed, of one type, in
// one order of dimensions and of two or three spatial ones, the workspace as large as the algorithm asked for, and the
// algorithm one of those that cuDNN documents as deterministic. As the library's, algorithms lack shapes: the first of
// each direction knows no groups, none knows groups with channels last or a dilation of 5, and what is lacking is said
// in the last digits of the status.
#include <cudnn.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "tests/stand_ins/cuda/elements.h"
#include "tests/stand_ins/cuda/kernels.h"

namespace {

using Dims = std::vector<int>;
constexpr size_t kWorkspace = 1000;  // what every algorithm asks for

struct Tensor {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  Dims dims;
  bool channels_last = false;
};
struct Convolution {
  Dims pad, stride, dilation;
  cudnnDataType_t compute = CUDNN_DATA_FLOAT;
  int groups = 1;
};
struct Handle {
  cudaStream_t stream = nullptr;
};

cudnnStatus_t refuse(const char* what) {
  std::fprintf(stderr, "cuDNN stand-in: %s\n", what);
  return CUDNN_STATUS_BAD_PARAM;
}

const Tensor& of(cudnnTensorDescriptor_t d) { return *reinterpret_cast<const Tensor*>(d); }
const Tensor& of(cudnnFilterDescriptor_t d) { return *reinterpret_cast<const Tensor*>(d); }
Convolution& of(cudnnConvolutionDescriptor_t d) { return *reinterpret_cast<Convolution*>(d); }

template <typename T, typename D>
cudnnStatus_t make(D* made) {
  *made = reinterpret_cast<D>(new T);
  return CUDNN_STATUS_SUCCESS;
}
template <typename T, typename D>
cudnnStatus_t destroy(D made) {
  delete reinterpret_cast<T*>(made);
  return CUDNN_STATUS_SUCCESS;
}

cudaDataType_t type_of(cudnnDataType_t type) {
  return type == CUDNN_DATA_DOUBLE  ? CUDA_R_64F
         : type == CUDNN_DATA_FLOAT ? CUDA_R_32F
         : type == CUDNN_DATA_HALF  ? CUDA_R_16F
                                    : CUDA_R_16BF;
}

struct Shapes {
  Tensor x, w, y;
  Convolution c;
};

int64_t count(const Tensor& t) {
  int64_t n = 1;
  for (int d : t.dims) n *= d;
  return n;
}

const char* fault_of(const Shapes& s) {
  const size_t rank = s.x.dims.size();
  if (rank < 4 || rank > 5) return "neither two nor three spatial dimensions";
  if (s.w.dims.size() != rank || s.y.dims.size() != rank || s.c.pad.size() != rank - 2) return "ranks that differ";
  if (s.x.type != s.w.type || s.x.type != s.y.type) return "operands of several types";
  for (const Tensor* t : {&s.x, &s.y}) {  // one element a sample is in every order
    if (t->channels_last != s.w.channels_last && count(*t) > t->dims[0]) return "operands in several orders";
  }
  if (s.w.channels_last && s.x.type == CUDNN_DATA_DOUBLE) return "channels last in f64";
  if (s.c.compute != (s.x.type == CUDNN_DATA_DOUBLE ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT))
    return "sums in another type";
  if (s.x.dims[0] != s.y.dims[0] || s.w.dims[0] != s.y.dims[1] || s.w.dims[1] * s.c.groups != s.x.dims[1] ||
      s.w.dims[0] % s.c.groups != 0)
    return "samples, channels or groups that do not fit together";
  for (size_t d = 0; d + 2 < rank; ++d) {
    const int room = s.x.dims[d + 2] + 2 * s.c.pad[d] - s.c.dilation[d] * (s.w.dims[d + 2] - 1) - 1;
    if (room < 0 || room / s.c.stride[d] + 1 != s.y.dims[d + 2]) return "an output of another size";
  }
  return nullptr;
}

cudnnStatus_t ask(const Shapes& s, bool first, bool deterministic, size_t* bytes) {
  if (const char* fault = fault_of(s)) return refuse(fault);
  if (!deterministic) return refuse("an algorithm whose sums have no order");
  if ((first || s.w.channels_last) && s.c.groups > 1) return CUDNN_STATUS_NOT_SUPPORTED_SHAPE;
  if (std::count(s.c.dilation.begin(), s.c.dilation.end(), 5) > 0) return CUDNN_STATUS_NOT_SUPPORTED_PADDING;
  *bytes = kWorkspace;
  return CUDNN_STATUS_SUCCESS;
}

// Where element `k` of a tensor, in the order of its dimensions, lies in memory.
int64_t place(const Tensor& t, int64_t k) {
  if (!t.channels_last) return k;
  const int64_t plane = count(t) / t.dims[0] / t.dims[1], pixel = k % plane, channel = k / plane % t.dims[1];
  return (k / plane / t.dims[1] * plane + pixel) * t.dims[1] + channel;
}

// Visits every (element of x, of w, of y) that meet.
template <typename F>
void for_each_tap(const Shapes& s, F visit) {
  const size_t spatial = s.x.dims.size() - 2;
  const int out_per_group = s.w.dims[0] / s.c.groups;
  for (int64_t y = 0; y < count(s.y); ++y) {
    Dims at(s.y.dims.size());
    int64_t rest = y;
    for (size_t d = at.size(); d-- > 0; rest /= s.y.dims[d]) at[d] = static_cast<int>(rest % s.y.dims[d]);
    for (int64_t tap = 0; tap < count(s.w) / s.w.dims[0]; ++tap) {
      Dims k(spatial + 1);  // channel of the group, kernel
      int64_t left = tap;
      for (size_t d = k.size(); d-- > 0; left /= s.w.dims[d + 1]) k[d] = static_cast<int>(left % s.w.dims[d + 1]);
      int64_t x = int64_t{at[0]} * s.x.dims[1] + at[1] / out_per_group * s.w.dims[1] + k[0];
      bool inside = true;
      for (size_t d = 0; d < spatial; ++d) {
        const int i = at[d + 2] * s.c.stride[d] - s.c.pad[d] + k[d + 1] * s.c.dilation[d];
        inside = inside && i >= 0 && i < s.x.dims[d + 2];
        x = x * s.x.dims[d + 2] + i;
      }
      if (inside) visit(place(s.x, x), place(s.w, at[1] * (count(s.w) / s.w.dims[0]) + tap), place(s.y, y));
    }
  }
}

enum class Result { kX, kW, kY };

cudnnStatus_t run(cudnnHandle_t handle, const Shapes& s, Result result, const void* x, const void* w, const void* y,
                  bool first, bool deterministic, size_t workspace) {
  size_t bytes = 0;
  if (cudnnStatus_t status = ask(s, first, deterministic, &bytes); status != CUDNN_STATUS_SUCCESS) return status;
  if (workspace < bytes) return refuse("less workspace than the algorithm asks for");
  const cudaDataType_t type = type_of(s.x.type);
  const auto work = [=] {
    using partita::stand_in::load;
    const Tensor& made = result == Result::kX ? s.x : result == Result::kW ? s.w : s.y;
    std::vector<double> sums(static_cast<size_t>(count(made)));
    for_each_tap(s, [&](int64_t i, int64_t k, int64_t o) {
      if (result == Result::kX)
        sums[static_cast<size_t>(i)] += load(w, type, k) * load(y, type, o);
      else if (result == Result::kW)
        sums[static_cast<size_t>(k)] += load(x, type, i) * load(y, type, o);
      else
        sums[static_cast<size_t>(o)] += load(x, type, i) * load(w, type, k);
    });
    void* to = const_cast<void*>(result == Result::kX ? x : result == Result::kW ? w : y);
    for (size_t k = 0; k < sums.size(); ++k) partita::stand_in::store(to, type, static_cast<int64_t>(k), sums[k]);
  };
  const bool queued = partita::stand_in::queue_work(reinterpret_cast<Handle*>(handle)->stream, work) == cudaSuccess;
  return queued ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_EXECUTION_FAILED;
}

bool is_first(cudnnConvolutionFwdAlgo_t a) { return a == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM; }
bool is_first(cudnnConvolutionBwdDataAlgo_t a) { return a == CUDNN_CONVOLUTION_BWD_DATA_ALGO_1; }
bool is_first(cudnnConvolutionBwdFilterAlgo_t a) { return a == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1; }
bool is_deterministic(cudnnConvolutionFwdAlgo_t) { return true; }
bool is_deterministic(cudnnConvolutionBwdDataAlgo_t a) { return a != CUDNN_CONVOLUTION_BWD_DATA_ALGO_0; }
bool is_deterministic(cudnnConvolutionBwdFilterAlgo_t a) {
  return a != CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0 && a != CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3;
}

// What the library's heuristics know, fastest first: one that is not deterministic, one that lacks these shapes where
// the first does, and the others.
template <typename Performance, typename Algorithm>
cudnnStatus_t choose(const Shapes& s, std::initializer_list<Algorithm> algorithms, int most, int* found,
                     Performance* all) {
  *found = 0;
  for (const Algorithm a : algorithms) {
    if (*found >= most) break;
    Performance& p = all[(*found)++];
    p = {};
    p.algo = a;
    p.determinism = is_deterministic(a) ? CUDNN_DETERMINISTIC : CUDNN_NON_DETERMINISTIC;
    p.mathType = CUDNN_TENSOR_OP_MATH;
    p.status = ask(s, is_first(a), true, &p.memory);
    if (p.status == CUDNN_STATUS_BAD_PARAM) return p.status;
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t take(Tensor& t, cudnnDataType_t type, int rank, const int* dims, bool channels_last) {
  if (rank < 4) return refuse("a tensor of fewer than four dimensions");
  t = {type, Dims(dims, dims + rank), channels_last};
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace

extern "C" {

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) { return make<Handle>(handle); }
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) { return destroy<Handle>(handle); }
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  reinterpret_cast<Handle*>(handle)->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}
const char* cudnnGetErrorString(cudnnStatus_t status) {
  return status == CUDNN_STATUS_SUCCESS     ? "success"
         : status == CUDNN_STATUS_BAD_PARAM ? "bad parameter"
                                            : "not supported";
}
size_t cudnnGetVersion() { return CUDNN_VERSION; }

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* d) { return make<Tensor>(d); }
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t d) { return destroy<Tensor>(d); }
cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t d, cudnnDataType_t type, int rank, const int dims[],
                                         const int strides[]) {
  for (const bool channels_last : {false, true}) {
    bool is_packed = true;
    int packed = 1;
    const auto holds = [&](int k) {
      is_packed = is_packed && strides[k] == packed;
      packed *= dims[k];
    };
    if (channels_last) holds(1);
    for (int k = rank; k-- > 0;) {
      if (k != 1 || !channels_last) holds(k);
    }
    if (is_packed) return take(*reinterpret_cast<Tensor*>(d), type, rank, dims, channels_last);
  }
  return refuse("a tensor that is not packed");
}
cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t* d) { return make<Tensor>(d); }
cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t d) { return destroy<Tensor>(d); }
cudnnStatus_t cudnnSetFilterNdDescriptor(cudnnFilterDescriptor_t d, cudnnDataType_t type, cudnnTensorFormat_t format,
                                         int rank, const int dims[]) {
  if (format != CUDNN_TENSOR_NCHW && format != CUDNN_TENSOR_NHWC) return refuse("a filter in an unknown order");
  return take(*reinterpret_cast<Tensor*>(d), type, rank, dims, format == CUDNN_TENSOR_NHWC);
}
cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t* d) { return make<Convolution>(d); }
cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t d) { return destroy<Convolution>(d); }
cudnnStatus_t cudnnSetConvolutionNdDescriptor(cudnnConvolutionDescriptor_t d, int rank, const int pad[],
                                              const int stride[], const int dilation[], cudnnConvolutionMode_t mode,
                                              cudnnDataType_t compute) {
  if (mode != CUDNN_CROSS_CORRELATION) return refuse("a convolution that turns its kernel");
  of(d) = {Dims(pad, pad + rank), Dims(stride, stride + rank), Dims(dilation, dilation + rank), compute, 1};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t d, int groups) {
  of(d).groups = groups;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t, cudnnMathType_t) {
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t, const cudnnTensorDescriptor_t x,
                                                      const cudnnFilterDescriptor_t w,
                                                      const cudnnConvolutionDescriptor_t c,
                                                      const cudnnTensorDescriptor_t y,
                                                      cudnnConvolutionFwdAlgo_t algorithm, size_t* bytes) {
  return ask({of(x), of(w), of(y), of(c)}, is_first(algorithm), is_deterministic(algorithm), bytes);
}
cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(cudnnHandle_t, const cudnnFilterDescriptor_t w,
                                                           const cudnnTensorDescriptor_t y,
                                                           const cudnnConvolutionDescriptor_t c,
                                                           const cudnnTensorDescriptor_t x,
                                                           cudnnConvolutionBwdDataAlgo_t algorithm, size_t* bytes) {
  return ask({of(x), of(w), of(y), of(c)}, is_first(algorithm), is_deterministic(algorithm), bytes);
}
cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(cudnnHandle_t, const cudnnTensorDescriptor_t x,
                                                             const cudnnTensorDescriptor_t y,
                                                             const cudnnConvolutionDescriptor_t c,
                                                             const cudnnFilterDescriptor_t w,
                                                             cudnnConvolutionBwdFilterAlgo_t algorithm, size_t* bytes) {
  return ask({of(x), of(w), of(y), of(c)}, is_first(algorithm), is_deterministic(algorithm), bytes);
}

cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(cudnnHandle_t, const cudnnTensorDescriptor_t x,
                                                     const cudnnFilterDescriptor_t w,
                                                     const cudnnConvolutionDescriptor_t c,
                                                     const cudnnTensorDescriptor_t y, int most, int* found,
                                                     cudnnConvolutionFwdAlgoPerf_t* all) {
  return choose({of(x), of(w), of(y), of(c)},
                {CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM}, most,
                found, all);
}
cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(cudnnHandle_t, const cudnnFilterDescriptor_t w,
                                                          const cudnnTensorDescriptor_t y,
                                                          const cudnnConvolutionDescriptor_t c,
                                                          const cudnnTensorDescriptor_t x, int most, int* found,
                                                          cudnnConvolutionBwdDataAlgoPerf_t* all) {
  return choose({of(x), of(w), of(y), of(c)}, {CUDNN_CONVOLUTION_BWD_DATA_ALGO_0, CUDNN_CONVOLUTION_BWD_DATA_ALGO_1},
                most, found, all);
}
cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(cudnnHandle_t, const cudnnTensorDescriptor_t x,
                                                            const cudnnTensorDescriptor_t y,
                                                            const cudnnConvolutionDescriptor_t c,
                                                            const cudnnFilterDescriptor_t w, int most, int* found,
                                                            cudnnConvolutionBwdFilterAlgoPerf_t* all) {
  return choose({of(x), of(w), of(y), of(c)},
                {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1}, most, found, all);
}

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void*, const cudnnTensorDescriptor_t x_desc,
                                      const void* x, const cudnnFilterDescriptor_t w_desc, const void* w,
                                      const cudnnConvolutionDescriptor_t c, cudnnConvolutionFwdAlgo_t algorithm, void*,
                                      size_t workspace, const void*, const cudnnTensorDescriptor_t y_desc, void* y) {
  return run(handle, {of(x_desc), of(w_desc), of(y_desc), of(c)}, Result::kY, x, w, y, is_first(algorithm),
             is_deterministic(algorithm), workspace);
}
cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void*, const cudnnFilterDescriptor_t w_desc,
                                           const void* w, const cudnnTensorDescriptor_t y_desc, const void* y,
                                           const cudnnConvolutionDescriptor_t c,
                                           cudnnConvolutionBwdDataAlgo_t algorithm, void*, size_t workspace,
                                           const void*, const cudnnTensorDescriptor_t x_desc, void* x) {
  return run(handle, {of(x_desc), of(w_desc), of(y_desc), of(c)}, Result::kX, x, w, y, is_first(algorithm),
             is_deterministic(algorithm), workspace);
}
cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void*, const cudnnTensorDescriptor_t x_desc,
                                             const void* x, const cudnnTensorDescriptor_t y_desc, const void* y,
                                             const cudnnConvolutionDescriptor_t c,
                                             cudnnConvolutionBwdFilterAlgo_t algorithm, void*, size_t workspace,
                                             const void*, const cudnnFilterDescriptor_t w_desc, void* w) {
  return run(handle, {of(x_desc), of(w_desc), of(y_desc), of(c)}, Result::kW, x, w, y, is_first(algorithm),
             is_deterministic(algorithm), workspace);
}

}  // extern "C"
