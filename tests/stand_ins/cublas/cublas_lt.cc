// cuBLASLt's interface, as far as Partita calls it, for the GPU that is this machine: column-major products by their
// definition. Strict where the library is lenient or undefined: matrices must fit together, leading dimensions must
// hold their columns, addresses (of a bias and of what goes with a GELU too) must be as aligned as the heuristics were
// told, the workspace as large as the algorithm said, and epilogues such as cublasLt.h documents them: of one type all,
// the matrix that goes with a GELU in rows of a multiple of 8; of fp8 what a Hopper has: scales for blocks of 128, both
// operands in rows of the dimension that is summed over.
#include <cublasLt.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/stand_ins/cuda/elements.h"
#include "tests/stand_ins/cuda/kernels.h"

namespace {

using partita::stand_in::is_fp8;
using partita::stand_in::load;
using partita::stand_in::size_of;
using partita::stand_in::store;

constexpr size_t kWorkspace = 4096;  // what every algorithm asks for
// Algorithms differ in the order of their sums, so that results tell which one was taken. The second does not run.
constexpr uint64_t kAlgorithms = 4;
std::atomic<int64_t> products = 0;
std::atomic<int64_t> fused = 0;
std::atomic<bool> slow_choices = false, no_epilogues = false, slow_epilogues = false;

struct Desc {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N, epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  void* aux = nullptr;
  int64_t aux_leading = 0;
  int32_t scale_modes[2] = {CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F};
  const float* scales[2] = {nullptr, nullptr};  // of A and B
};
struct Layout {
  cudaDataType_t type;
  uint64_t rows, columns;
  int64_t leading, stride = 0;
  int32_t batch = 1;
};
struct Preference {
  size_t workspace = 0;
  uint32_t alignment[4] = {256, 256, 256, 256};  // of A, B, C and D
};
struct Algorithm {
  uint64_t mark = 0, workspace = 0, number = 0;
  uint32_t alignment[4], others[2];  // of A, B, C and D; of the bias and the auxiliary matrix
};
constexpr uint64_t kMark = 0x636f6c756d6e73;
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

cublasStatus_t refuse(const char* what) {
  std::fprintf(stderr, "cuBLASLt stand-in: %s\n", what);
  return CUBLAS_STATUS_INVALID_VALUE;
}

Desc& of(cublasLtMatmulDesc_t d) { return *reinterpret_cast<Desc*>(d); }
Layout& of(cublasLtMatrixLayout_t l) { return *reinterpret_cast<Layout*>(l); }
Preference& of(cublasLtMatmulPreference_t p) { return *reinterpret_cast<Preference*>(p); }

template <typename T>
cublasStatus_t take(T& to, const void* from, size_t bytes) {
  if (bytes != sizeof to) return refuse("an attribute of another size");
  std::memcpy(&to, from, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

struct Product {
  Desc desc;
  Layout a, b, c, d;
  const void *at_a, *at_b, *at_c;
  void* at_d;
  double alpha, beta;
  uint64_t algorithm = 0;
};

// Of element x of a row of A's, or of a column of B's, of so many.
double scale_of(const Desc& desc, int operand, int64_t row, int64_t rows, int64_t x, int64_t inner) {
  const int64_t blocks = (inner + 127) / 128;
  switch (desc.scale_modes[operand]) {
    case CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F:
      return desc.scales[operand][x / 128 * rows + row];
    case CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F:
      return desc.scales[operand][row / 128 * ((blocks + 3) / 4 * 4) + x / 128];
    default:
      return 1;
  }
}

constexpr int32_t kAux = 128, kSums = CUBLASLT_EPILOGUE_BGRADA | CUBLASLT_EPILOGUE_BGRADB;

double activated(double x, int32_t epilogue) {
  if (epilogue & CUBLASLT_EPILOGUE_RELU) return std::max(x, 0.0);
  if (epilogue & CUBLASLT_EPILOGUE_GELU)
    return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
  return x;
}

double gelu_slope(double x) {
  const double t = std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * x * x);
}

// op(A) or op(B) summed over k, for each row of op(A) or column of op(B).
void sum_over_k(const Product& p) {
  const bool of_a = p.desc.epilogue == CUBLASLT_EPILOGUE_BGRADA;
  const Layout& l = of_a ? p.a : p.b;
  const bool k_is_rows = of_a ? p.desc.transpose_a != CUBLAS_OP_N : p.desc.transpose_b == CUBLAS_OP_N;
  const auto rows = static_cast<int64_t>(l.rows), columns = static_cast<int64_t>(l.columns);
  for (int64_t i = 0; i < (k_is_rows ? columns : rows); ++i) {
    double sum = 0;
    for (int64_t k = 0; k < (k_is_rows ? rows : columns); ++k)
      sum += load(of_a ? p.at_a : p.at_b, l.type, k_is_rows ? i * l.leading + k : k * l.leading + i);
    store(const_cast<void*>(p.desc.bias), p.d.type, i, sum);
  }
}

// D = epilogue(alpha op(A) op(B) + beta C), for each of the batch.
void multiply(const Product& p) {
  const bool ta = p.desc.transpose_a != CUBLAS_OP_N, tb = p.desc.transpose_b != CUBLAS_OP_N;
  const auto m = static_cast<int64_t>(p.d.rows), n = static_cast<int64_t>(p.d.columns),
             k = static_cast<int64_t>(ta ? p.a.rows : p.a.columns);
  for (int64_t z = 0; z < p.d.batch; ++z) {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = 0; i < m; ++i) {
        double sum = 0;
        for (int64_t step = 0; step < k; ++step) {
          const int64_t x = (step + static_cast<int64_t>(p.algorithm)) % k;
          sum += load(p.at_a, p.a.type, z * p.a.stride + (ta ? i * p.a.leading + x : x * p.a.leading + i)) *
                 load(p.at_b, p.b.type, z * p.b.stride + (tb ? x * p.b.leading + j : j * p.b.leading + x)) *
                 scale_of(p.desc, 0, i, m, x, k) * scale_of(p.desc, 1, j, n, x, k);
        }
        sum *= p.alpha;
        if (p.beta != 0) sum += p.beta * load(p.at_c, p.c.type, z * p.c.stride + j * p.c.leading + i);
        const int32_t epilogue = p.desc.epilogue;
        const int64_t at_aux = j * p.desc.aux_leading + i;
        if (epilogue & CUBLASLT_EPILOGUE_BIAS) sum += load(p.desc.bias, p.d.type, i);
        if (epilogue == CUBLASLT_EPILOGUE_DGELU)
          sum *= gelu_slope(load(p.desc.aux, p.d.type, at_aux));
        else if (epilogue & kAux)
          store(p.desc.aux, p.d.type, at_aux, sum);
        store(p.at_d, p.d.type, z * p.d.stride + j * p.d.leading + i, activated(sum, p.desc.epilogue));
      }
    }
  }
  if (p.desc.epilogue & kSums) sum_over_k(p);
}

const char* fault_of_epilogue(const Desc& desc, const Layout& a, const Layout& d) {
  constexpr int32_t kKnown[] = {
      CUBLASLT_EPILOGUE_DEFAULT,   CUBLASLT_EPILOGUE_RELU,          CUBLASLT_EPILOGUE_BIAS,
      CUBLASLT_EPILOGUE_RELU_BIAS, CUBLASLT_EPILOGUE_GELU,          CUBLASLT_EPILOGUE_GELU_BIAS,
      CUBLASLT_EPILOGUE_GELU_AUX,  CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU,
      CUBLASLT_EPILOGUE_BGRADA,    CUBLASLT_EPILOGUE_BGRADB};
  if (std::find(std::begin(kKnown), std::end(kKnown), desc.epilogue) == std::end(kKnown))
    return "an epilogue that it does not know";
  if (desc.epilogue == CUBLASLT_EPILOGUE_DEFAULT) return nullptr;
  if (d.type == CUDA_R_64F || a.type != d.type || d.batch != 1) return "an epilogue of f64, of two types or of a batch";
  if ((desc.epilogue & (CUBLASLT_EPILOGUE_BIAS | kSums)) != 0 && desc.bias == nullptr)
    return "no address of a bias, which tells its alignment";
  if ((desc.epilogue & kAux) == 0) return nullptr;
  if (desc.aux == nullptr) return "no address of the auxiliary matrix, which tells its alignment";
  if (desc.aux_leading % 8 != 0 || desc.aux_leading < static_cast<int64_t>(d.rows))
    return "a leading dimension of the auxiliary matrix that is no multiple of 8, or below its rows";
  return nullptr;
}

const char* fault_of_fp8(const Desc& desc, const Layout& a, const Layout& b, const Layout& d) {
  if (!is_fp8(a.type) || !is_fp8(b.type) || (a.type == CUDA_R_8F_E5M2 && b.type == CUDA_R_8F_E5M2))
    return "two operands of fp8, one of them e4m3, are what algorithms have";
  if (d.type != CUDA_R_16BF && d.type != CUDA_R_16F && d.type != CUDA_R_32F) return "a result of fp8 of another type";
  if (desc.transpose_a != CUBLAS_OP_T || desc.transpose_b != CUBLAS_OP_N) return "fp8 in another order than TN";
  constexpr int32_t kVectors = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F,
                    kTiles = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
  for (int k = 0; k < 2; ++k) {
    if (desc.scale_modes[k] != kVectors && desc.scale_modes[k] != kTiles) return "scales that a Hopper has not";
    if (desc.scales[k] == nullptr || reinterpret_cast<uintptr_t>(desc.scales[k]) % 16 != 0)
      return "scales that are not aligned to 16 bytes";
  }
  if (desc.scale_modes[0] == kTiles && desc.scale_modes[1] == kTiles) return "scales of tiles for both operands";
  const auto size = static_cast<int64_t>(size_of(d.type));
  if (a.leading % 16 != 0 || b.leading % 16 != 0 || d.leading * size % 16 != 0 || d.rows % 4 != 0 || d.columns % 4 != 0)
    return "rows of fp8 that are no multiple of 16 bytes, or results no multiple of 4";
  return desc.epilogue == CUBLASLT_EPILOGUE_DEFAULT ? nullptr : "an epilogue of fp8";
}

uint32_t alignment_of(const void* at) {
  constexpr uintptr_t kMost = 256;
  const auto address = reinterpret_cast<uintptr_t>(at) | kMost;
  return static_cast<uint32_t>(address & (~address + 1));
}

const char* fault_of(const Desc& desc, const Layout& a, const Layout& b, const Layout& c, const Layout& d) {
  const bool ta = desc.transpose_a != CUBLAS_OP_N, tb = desc.transpose_b != CUBLAS_OP_N;
  if ((ta ? a.columns : a.rows) != d.rows || (tb ? b.rows : b.columns) != d.columns ||
      (ta ? a.rows : a.columns) != (tb ? b.columns : b.rows))
    return "matrices that do not fit together";
  if (c.rows != d.rows || c.columns != d.columns || c.type != d.type) return "C and D are not alike";
  const bool fp8 = is_fp8(a.type) || is_fp8(b.type);
  if (!fp8 && (a.type != b.type || (d.type != a.type && d.type != CUDA_R_32F))) return "types that no algorithm has";
  for (const Layout* l : {&a, &b, &c, &d}) {
    if (l->leading < static_cast<int64_t>(l->rows)) return "a leading dimension below the rows";
    if (l->batch != d.batch) return "batches of different sizes";
  }
  const bool wide = a.type == CUDA_R_64F;
  const bool tf32 = desc.compute == CUBLAS_COMPUTE_32F_FAST_TF32 && a.type == CUDA_R_32F;
  if (desc.compute != (wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F) && !tf32) return "a compute type for others";
  if (desc.scale != (wide ? CUDA_R_64F : CUDA_R_32F)) return "a scale type for others";
  return fp8 ? fault_of_fp8(desc, a, b, d) : fault_of_epilogue(desc, a, d);
}

}  // namespace

extern "C" {

size_t cublasLtGetVersion() { return 130000; }
const char* cublasLtGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED ? "not supported" : "invalid value";
}
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(new int);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete reinterpret_cast<int*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t compute, cudaDataType_t scale) {
  *made = reinterpret_cast<cublasLtMatmulDesc_t>(new Desc{compute, scale});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  delete &of(desc);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t what,
                                              const void* value, size_t bytes) {
  switch (what) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return take(of(desc).transpose_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return take(of(desc).transpose_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return take(of(desc).epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return take(of(desc).bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return take(of(desc).aux, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return take(of(desc).aux_leading, value, bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_MODE:
      return take(of(desc).scale_modes[0], value, bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_MODE:
      return take(of(desc).scale_modes[1], value, bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
      return take(of(desc).scales[0], value, bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
      return take(of(desc).scales[1], value, bytes);
    default:
      return refuse("an attribute of a product that it does not know");
  }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t leading) {
  *made = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{type, rows, columns, leading});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete &of(layout);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t what,
                                                const void* value, size_t bytes) {
  switch (what) {
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
      return take(of(layout).batch, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
      return take(of(layout).stride, value, bytes);
    default:
      return refuse("an attribute of a matrix that it does not know");
  }
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
  *made = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete &of(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t what, const void* value,
                                                    size_t bytes) {
  Preference& p = of(preference);
  if (what == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) return take(p.workspace, value, bytes);
  for (int k = 0; k < 4; ++k) {
    constexpr cublasLtMatmulPreferenceAttributes_t kAlignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    if (what == kAlignments[k]) return take(p.alignment[k], value, bytes);
  }
  return refuse("a preference that it does not know");
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference,
                                              int wanted, cublasLtMatmulHeuristicResult_t* results, int* count) {
  if (const char* fault = fault_of(of(desc), of(a), of(b), of(c), of(d))) return refuse(fault);
  if (wanted < 1) return refuse("no result is wanted");
  const Preference& p = of(preference);
  *count = 0;
  if (no_epilogues && of(desc).epilogue != CUBLASLT_EPILOGUE_DEFAULT) return CUBLAS_STATUS_NOT_SUPPORTED;
  for (uint64_t number = 0; number < std::min<uint64_t>(kAlgorithms, static_cast<uint64_t>(wanted)); ++number) {
    Algorithm algorithm{kMark, std::min(p.workspace, kWorkspace), number, {}, {}};
    algorithm.others[0] = alignment_of(of(desc).bias);
    algorithm.others[1] = alignment_of(of(desc).aux);
    std::copy_n(p.alignment, 4, algorithm.alignment);
    cublasLtMatmulHeuristicResult_t& result = results[(*count)++];
    result = {};
    std::memcpy(&result.algo, &algorithm, sizeof algorithm);
    result.workspaceSize = algorithm.workspace;
    result.state = number == 1 ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algo, cublasLtMatmulHeuristicResult_t* result) {
  if (const char* fault = fault_of(of(desc), of(a), of(b), of(c), of(d))) return refuse(fault);
  Algorithm algorithm;
  std::memcpy(static_cast<void*>(&algorithm), algo, sizeof algorithm);
  if (algorithm.mark != kMark || algorithm.number >= kAlgorithms) return CUBLAS_STATUS_NOT_SUPPORTED;
  *result = {};
  result->algo = *algo;
  result->workspaceSize = algorithm.workspace;
  result->state = CUBLAS_STATUS_SUCCESS;
  return CUBLAS_STATUS_SUCCESS;
}

// For tests: how many products were queued in this process; whether all algorithms but the last one take their time.
int64_t partita_cublas_products() { return products; }
// Those among them with an epilogue; whether these take their time, and whether there is no algorithm for them.
int64_t partita_cublas_epilogues() { return fused; }
void partita_cublas_slow_epilogues(int slow) { slow_epilogues = slow != 0; }
void partita_cublas_without_epilogues(int without) { no_epilogues = without != 0; }
void partita_cublas_slow(int slow) { slow_choices = slow != 0; }

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha, const void* at_a,
                              cublasLtMatrixLayout_t a, const void* at_b, cublasLtMatrixLayout_t b, const void* beta,
                              const void* at_c, cublasLtMatrixLayout_t c, void* at_d, cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t* algo, void* workspace, size_t workspace_bytes,
                              cudaStream_t stream) {
  const Desc& z = of(desc);
  if (const char* fault = fault_of(z, of(a), of(b), of(c), of(d))) return refuse(fault);
  Algorithm algorithm;
  std::memcpy(static_cast<void*>(&algorithm), algo, sizeof algorithm);
  if (algorithm.mark != kMark || algorithm.number == 1 || algorithm.number >= kAlgorithms)
    return refuse("an algorithm that the heuristics did not give");
  const void* addresses[] = {at_a, at_b, at_c, at_d};
  for (int k = 0; k < 4; ++k) {
    if (addresses[k] == nullptr || reinterpret_cast<uintptr_t>(addresses[k]) % algorithm.alignment[k] != 0)
      return refuse("an address less aligned than the heuristics were told");
  }
  if (workspace_bytes < algorithm.workspace || (workspace == nullptr && algorithm.workspace > 0) ||
      reinterpret_cast<uintptr_t>(workspace) % 256 != 0)
    return refuse("a workspace that is too small or not aligned");
  if ((z.epilogue & (CUBLASLT_EPILOGUE_BIAS | kSums)) != 0 && alignment_of(z.bias) < algorithm.others[0])
    return refuse("a bias less aligned than the heuristics were told");
  if ((z.epilogue & kAux) != 0 && alignment_of(z.aux) < algorithm.others[1])
    return refuse("an auxiliary matrix less aligned than the heuristics were told");
  const bool wide = z.scale == CUDA_R_64F;
  auto scalar = [&](const void* at) {
    return wide ? *static_cast<const double*>(at) : static_cast<double>(*static_cast<const float*>(at));
  };
  const Product product{z,    of(a), of(b), of(c),         of(d),        at_a,
                        at_b, at_c,  at_d,  scalar(alpha), scalar(beta), algorithm.number};
  ++products;
  fused += z.epilogue != CUBLASLT_EPILOGUE_DEFAULT;
  const cudaError_t code = partita::stand_in::queue_work(stream, [product] {
    multiply(product);
    if (slow_epilogues && product.desc.epilogue != CUBLASLT_EPILOGUE_DEFAULT)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (slow_choices && product.algorithm + 1 < kAlgorithms) std::this_thread::sleep_for(std::chrono::milliseconds(3));
  });
  return code == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
