// matmul: oneDNN for f32, bf16, f16; packed panels for f64, and for f32 without AVX-512; plain loops for integers.
#include <omp.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>
#include <unordered_map>

#include "runtime/kernels/compute_operand.h"
#include "runtime/kernels/matmul_plan.h"
#include "runtime/kernels/onednn.h"
#include "runtime/kernels/packed_matmul.h"
#include "runtime/kernels/table.h"
#include "runtime/kernels/thin_matmul.h"
#include "runtime/kernels/tile_ops.h"

namespace partita::runtime {
namespace {

using Plan = MatmulPlan;

class OneDnnMatmul final : public LibraryKernel {
 public:
  OneDnnMatmul(const Plan& plan, DType dtype, DType out) {
    using dnnl::memory;
    memory::dims a, b, c, a_strides, b_strides, c_strides;
    for (const Plan::Batch& dim : plan.batch) {
      a.push_back(dim.a == 0 ? 1 : dim.size);
      b.push_back(dim.b == 0 ? 1 : dim.size);
      c.push_back(dim.size);
      a_strides.push_back(dim.a == 0 ? plan.m * plan.k : dim.a);
      b_strides.push_back(dim.b == 0 ? plan.k * plan.n : dim.b);
      c_strides.push_back(dim.c);
    }
    auto add = [](memory::dims& dims, int64_t x, int64_t y) { dims.insert(dims.end(), {x, y}); };
    add(a, plan.m, plan.k);
    add(b, plan.k, plan.n);
    add(c, plan.m, plan.n);
    add(a_strides, plan.a_row(), plan.a_column());
    add(b_strides, plan.b_row(), plan.b_column());
    add(c_strides, plan.n, 1);
    memory::dims bias(c.size(), 1);
    bias.back() = plan.n;
    const memory::desc a_desc(a, onednn_type(dtype), a_strides), b_desc(b, onednn_type(dtype), b_strides),
        c_desc(c, onednn_type(out), c_strides);
    memory::dims bias_strides(c.size(), plan.n);
    bias_strides.back() = 1;
    const memory::desc bias_desc(bias, onednn_type(dtype), bias_strides);

    dnnl::post_ops post;
    if (plan.accumulate) post.append_sum(1.0f);
    if (plan.activation == Activation::kRelu) post.append_eltwise(dnnl::algorithm::eltwise_relu, 0, 0);
    if (plan.activation == Activation::kGeluErf) post.append_eltwise(dnnl::algorithm::eltwise_gelu_erf, 0, 0);
    if (plan.activation == Activation::kGeluTanh) post.append_eltwise(dnnl::algorithm::eltwise_gelu_tanh, 0, 0);
    dnnl::primitive_attr attributes;
    attributes.set_post_ops(post);
    const auto desc = plan.bias
                          ? dnnl::matmul::primitive_desc(onednn_.engine, a_desc, b_desc, bias_desc, c_desc, attributes)
                          : dnnl::matmul::primitive_desc(onednn_.engine, a_desc, b_desc, c_desc, attributes);
    refuse_reference(desc, onednn_type(dtype));
    primitive_ = dnnl::matmul(desc);
    a_ = memory(a_desc, onednn_.engine, nullptr);
    b_ = memory(b_desc, onednn_.engine, nullptr);
    c_ = memory(c_desc, onednn_.engine, nullptr);
    arguments_ = {{DNNL_ARG_SRC, a_}, {DNNL_ARG_WEIGHTS, b_}, {DNNL_ARG_DST, c_}};
    if (plan.bias) {
      bias_ = memory(bias_desc, onednn_.engine, nullptr);
      arguments_.emplace(DNNL_ARG_BIAS, bias_);
    }
  }

  void run(std::span<std::byte* const> buffers) override {
    a_.set_data_handle(buffers[0]);
    b_.set_data_handle(buffers[1]);
    c_.set_data_handle(buffers.back());
    if (bias_) bias_.set_data_handle(buffers[2]);
    primitive_.execute(onednn_.stream, arguments_);
    onednn_.stream.wait();
  }

 private:
  OneDnn onednn_;
  dnnl::matmul primitive_;
  dnnl::memory a_, b_, c_, bias_;
  std::unordered_map<int, dnnl::memory> arguments_;
};

// One f32 product without a bias or an activation: the BLAS entry of oneDNN, which is some 10% faster than its
// primitive on plain layouts. Each thread has a block of C and calls it alone: its own division among threads is slower
// where B is transposed and k is long, and makes the order of sums depend on the threads. Without AVX-512 that order
// depends on a block's size as well: what is to have the same bits for any number of threads is one block then, or
// packed (packed_matmul.h).
struct Blocks {
  static constexpr int64_t kUnit = 16;  // elements of a cache line
  // With more products in a sum, copying operands into panels costs more than the caches save.
  static constexpr int64_t kFewProducts = 64;

  int64_t rows = 1, columns = 1;  // of blocks

  // The division among `threads` whose blocks are nearest to squares.
  Blocks(const Plan& p, int threads) {
    if (p.m * p.n * p.k < kWorthThreads) return;
    // Where few products go into a sum, the result is most of what moves, and a thread gets whole rows of it: what
    // reads them next is divided by rows.
    if (p.k <= kFewProducts && p.m * p.n > (p.m + p.n) * p.k && p.m >= kUnit * threads) {
      rows = threads;
      return;
    }
    double best = std::numeric_limits<double>::infinity();
    for (int64_t r = 1; r <= threads; ++r) {
      if (threads % r != 0) continue;
      const int64_t c = threads / r;
      const double border =
          static_cast<double>(p.m) / static_cast<double>(r) + static_cast<double>(p.n) / static_cast<double>(c);
      if (border < best) std::tie(best, rows, columns) = std::make_tuple(border, r, c);
    }
  }
};

// Where block i of `count` begins, along `size` elements in units of a cache line.
int64_t block_begin(int64_t i, int64_t count, int64_t size) {
  constexpr int64_t kUnit = Blocks::kUnit;
  return std::min(size, (size + kUnit - 1) / kUnit * i / count * kUnit);
}

void sgemm(const Plan& p, const Blocks& blocks, const float* a, const float* b, float* c) {
  auto block = [&](int64_t m0, int64_t m1, int64_t n0, int64_t n1) {
    if (m0 >= m1 || n0 >= n1) return;
    onednn_sgemm(p.transpose_a, p.transpose_b, m1 - m0, n1 - n0, p.k, a + m0 * p.a_row(), p.transpose_a ? p.m : p.k,
                 b + n0 * p.b_column(), p.transpose_b ? p.k : p.n, p.accumulate, c + m0 * p.n + n0, p.n);
  };
  if (blocks.rows * blocks.columns == 1) {
    const int threads = omp_get_max_threads();
    omp_set_num_threads(1);  // else it would start a team of its own
    block(0, p.m, 0, p.n);
    omp_set_num_threads(threads);
    return;
  }
#pragma omp parallel
  {
    const int64_t team = omp_get_num_threads(), thread = omp_get_thread_num();
    for (int64_t i = thread; i < blocks.rows * blocks.columns; i += team) {
      const int64_t r = i / blocks.columns, s = i % blocks.columns;
      block(block_begin(r, blocks.rows, p.m), block_begin(r + 1, blocks.rows, p.m), block_begin(s, blocks.columns, p.n),
            block_begin(s + 1, blocks.columns, p.n));
    }
  }
}

// Products so small that the BLAS entry takes as long to begin, or to copy B, as they take: multiplications (more where
// all of B stays in the first-level cache), and columns of C in whole vectors.
constexpr int64_t kTiny = 1 << 17, kTinyCached = 1 << 19, kCached = 32 << 10, kTinyColumns = 16;

bool is_tiny(const Plan& p) {
  const bool cached = p.k * p.n * static_cast<int64_t>(sizeof(float)) <= kCached;
  return p.batch.empty() && !p.transpose_b && p.n % kTinyColumns == 0 && p.k != 0 &&
         p.m * p.n * p.k <= (cached ? kTinyCached : kTiny);
}

template <typename A>
A activate(A x, Activation activation) {
  if constexpr (std::is_floating_point_v<A>) {
    if (activation == Activation::kGeluErf) return A(0.5) * x * (A(1) + std::erf(x * A(0.70710678118654752440)));
    if (activation == Activation::kGeluTanh)
      return A(0.5) * x * (A(1) + std::tanh(A(0.79788456080286535588) * (x + A(0.044715) * x * x * x)));
  }
  return activation == Activation::kRelu && x < A(0) ? A(0) : x;
}

// Any type, one output row at a time.
template <typename T>
void plain_matmul(const Plan& p, const T* a, const T* b, const T* bias, T* c) {
  using A = Accumulator<T>;
  const int64_t rows = p.batches() * p.m;
#pragma omp parallel if (worth_threads(rows * p.n * p.k))
  {
    std::vector<A> sum(static_cast<size_t>(p.n));
#pragma omp for schedule(static)
    for (int64_t row = 0; row < rows; ++row) {
      const Plan::Batch at = p.offsets(row / p.m);
      const T* left = a + at.a + row % p.m * p.a_row();
      T* to = c + at.c + row % p.m * p.n;
      std::fill(sum.begin(), sum.end(), A(0));
      for (int64_t z = 0; z < p.k; ++z) {
        const A x = left[z * p.a_column()];
        const T* right = b + at.b + z * p.b_row();
        for (int64_t y = 0; y < p.n; ++y)
          sum[static_cast<size_t>(y)] += static_cast<A>(x * static_cast<A>(right[y * p.b_column()]));
      }
      for (int64_t y = 0; y < p.n; ++y) {
        A value = sum[static_cast<size_t>(y)];
        if (bias != nullptr) value += static_cast<A>(bias[y]);
        if (p.accumulate) value += static_cast<A>(to[y]);
        to[y] = static_cast<T>(activate(value, p.activation));
      }
    }
  }
}

// What follows a product that is there.
void apply_epilogue(const Plan& p, const double* bias, double* c) {
  const int64_t rows = p.batches() * p.m;
#pragma omp parallel for schedule(static) if (worth_threads(rows * p.n))
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < p.n; ++j)
      c[i * p.n + j] = activate(c[i * p.n + j] + (bias != nullptr ? bias[j] : 0.0), p.activation);
  }
}

}  // namespace

Kernel make_matmul(const KernelRequest& r) {
  PARTITA_ASSIGN_OR_RETURN(const Plan plan, Plan::make(r));
  if (plan.is_extended()) return r.unsupported();
  if (plan.ordered) return make_ordered_matmul(r);
  const DType dtype = r.dtype(), out = r.out(0).dtype;
  if (r.dtype(1) != dtype || (out != dtype && out != DType::kF32)) return r.error("operands of one dtype");
  const int64_t bytes = *element_count(r.out(0).shape) * dtype_size(out);
  if (bytes == 0) return make_kernel([](std::span<std::byte* const>) {});
  if (plan.k == 0 && !plan.bias && !plan.accumulate)
    return make_kernel(
        [bytes](std::span<std::byte* const> b) { std::memset(b.back(), 0, static_cast<size_t>(bytes)); });
  if (is_thin(plan, dtype)) return make_thin_matmul(r, plan);
  if (dtype == DType::kF32 && is_tiny(plan) && !plan.bias && plan.activation == Activation::kNone) {
    return make_kernel([plan](std::span<std::byte* const> b) {
      tile_ops<float>().gemm(as<float>(b[2]), plan.n, as<float>(b[0]), plan.a_row(), plan.a_column(), as<float>(b[1]),
                             plan.n, plan.m, plan.n, plan.k, plan.accumulate);
    });
  }
  // Few rows against a transposed B: to copy B into panels, as the BLAS entry does, is most of the work.
  const bool few_rows = plan.transpose_b && !plan.transpose_a && plan.m <= 64;
  if (dtype == DType::kF32 && plan.batch.empty() && !plan.bias && plan.activation == Activation::kNone && plan.k != 0 &&
      !few_rows) {
    if (is_packed(plan, r.reproducible())) return make_packed_matmul(r, plan);
    const int threads = r.reproducible() && !has_avx512() ? 1 : r.threads();
    return make_kernel([plan, blocks = Blocks(plan, threads)](std::span<std::byte* const> b) {
      sgemm(plan, blocks, as<float>(b[0]), as<float>(b[1]), as<float>(b.back()));
    });
  }
  if (dtype == DType::kBF16 && plan.k != 0 && is_bf16_slow()) return make_widened(r, make_matmul);
  if (onednn_type(dtype) != dnnl::memory::data_type::undef && plan.k != 0) {
    try {
      return std::make_unique<OneDnnMatmul>(plan, dtype, out);
    } catch (const dnnl::error& e) {
      if (e.status != dnnl_unimplemented) throw;  // 16-bit types on processors without them
      if (dtype != DType::kF32) return make_widened(r, make_matmul);
    }
  }
  if (out != dtype) return r.unsupported();
  if (dtype == DType::kF64 && plan.k != 0) {
    PARTITA_ASSIGN_OR_RETURN(std::unique_ptr<LibraryKernel> product, make_packed_matmul(r, plan));
    if (!plan.bias && plan.activation == Activation::kNone) return product;
    return make_kernel([plan, product = std::shared_ptr(std::move(product))](std::span<std::byte* const> b) {
      product->run(b);
      apply_epilogue(plan, plan.bias ? as<double>(b[2]) : nullptr, as<double>(b.back()));
    });
  }
  Kernel kernel = r.unsupported();
  with_number_type(dtype, [&]<typename T>(T) {
    kernel = make_kernel([plan](std::span<std::byte* const> b) {
      plain_matmul(plan, as<T>(b[0]), as<T>(b[1]), plan.bias ? as<T>(b[2]) : nullptr, as<T>(b.back()));
    });
  });
  return kernel;
}

}  // namespace partita::runtime
