// The CUDA module's flash attention against the CPU's attention and its gradient, run thread by thread on the host.
#include "tests/runtime/support/cuda_kernels_host.h"

#include "runtime/cuda/kernels/flash.cu"
#include "tests/runtime/support/device_buffer.h"

namespace partita::runtime {
namespace {

// The kernels of one element type and head size.
template <typename T, int D>
struct Kernels;
#define PARTITA_KERNELS(T, DTYPE, NAME, HEAD)                              \
  template <>                                                              \
  struct Kernels<T, HEAD> {                                                \
    static constexpr DType kDType = DTYPE;                                 \
    static constexpr auto forward = flash_forward_##NAME##_##HEAD;         \
    static constexpr auto delta = flash_delta_##NAME;                      \
    static constexpr auto query_grads = flash_query_grads_##NAME##_##HEAD; \
    static constexpr auto key_grads = flash_key_grads_##NAME##_##HEAD;     \
  };
PARTITA_KERNELS(DeviceBf16, DType::kBF16, bf16, 64)
PARTITA_KERNELS(DeviceBf16, DType::kBF16, bf16, 128)
PARTITA_KERNELS(DeviceF16, DType::kF16, f16, 64)
PARTITA_KERNELS(DeviceF16, DType::kF16, f16, 128)
PARTITA_KERNELS(float, DType::kF32, f32, 64)
PARTITA_KERNELS(float, DType::kF32, f32, 128)
#undef PARTITA_KERNELS

struct Case {
  int64_t batch, kv_heads, group, s, t, d, e;
  bool causal = false;
  DType mask = DType::kInvalid;
  std::vector<int64_t> mask_shape = {};
  std::vector<HostOrder> orders = {HostOrder::kBackward};
  bool turned = false;  // rows of all heads side by side: [batch, rows, heads, width]
};
const std::vector<HostOrder> kAllOrders = {HostOrder::kBackward, HostOrder::kForward, HostOrder::kShuffled};

MaskKind kind_of(DType mask) {
  switch (mask) {
    case DType::kBool:
      return kBoolMask;
    case DType::kF32:
      return kF32Mask;
    case DType::kF64:
      return kF64Mask;
    case DType::kBF16:
      return kBf16Mask;
    case DType::kF16:
      return kF16Mask;
    default:
      return kNoMask;
  }
}

// [batch, heads, rows, width], or [batch, rows, heads, width].
RowsDevice rows_of(bool turned, int64_t heads, int64_t rows, int64_t width) {
  const int64_t batch = heads * rows * width;
  return turned ? RowsDevice{batch, width, heads * width} : RowsDevice{batch, rows * width, width};
}

// Dimensions 1 and 2 in each other's place.
TestTensor turn(const TestTensor& t) {
  const Shape& s = t.shape;
  TestTensor out = zeros(t.dtype, {s[0], s[2], s[1], s[3]});
  for (int64_t b = 0; b < s[0]; ++b)
    for (int64_t i = 0; i < s[1]; ++i)
      for (int64_t j = 0; j < s[2]; ++j)
        for (int64_t x = 0; x < s[3]; ++x)
          out.values[static_cast<size_t>(((b * s[2] + j) * s[1] + i) * s[3] + x)] =
              t.values[static_cast<size_t>(((b * s[1] + i) * s[2] + j) * s[3] + x)];
  return out;
}

// Dense in all places that are not broadcast.
FlashDevice flash_device(const Case& c) {
  FlashDevice f{{0, c.batch * c.kv_heads * c.group, c.kv_heads * c.group, c.s, c.t, 0.3, c.causal, kind_of(c.mask), {}},
                static_cast<int32_t>(c.group),
                static_cast<int32_t>(c.d),
                static_cast<int32_t>(c.e)};
  f.q = f.dq = rows_of(c.turned, c.kv_heads * c.group, c.s, c.d);
  f.k = f.dk = rows_of(c.turned, c.kv_heads, c.t, c.d);
  f.v = f.dv = rows_of(c.turned, c.kv_heads, c.t, c.e);
  f.out = f.g = rows_of(c.turned, c.kv_heads * c.group, c.s, c.e);
  int64_t stride = 1;
  for (size_t k = c.mask_shape.size(); k-- > 0; stride *= c.mask_shape[k])
    f.scores.mask_stride[k] = c.mask_shape[k] == 1 ? 0 : stride;
  return f;
}

template <typename T, int D>
void check(const Case& c) {
  using K = Kernels<T, D>;
  const int64_t heads = c.kv_heads * c.group;
  DeviceBuffer q(random_tensor(K::kDType, {c.batch, heads, c.s, c.d}, 1)),
      k(random_tensor(K::kDType, {c.batch, c.kv_heads, c.t, c.d}, 2)),
      v(random_tensor(K::kDType, {c.batch, c.kv_heads, c.t, c.e}, 3)),
      g(random_tensor(K::kDType, {c.batch, heads, c.s, c.e}, 4)),
      mask(c.mask == DType::kInvalid ? TestTensor{DType::kInvalid, {}, {}}
           : c.mask == DType::kBool  ? random_integers(DType::kBool, c.mask_shape, 0, 2, 5)
                                     : random_tensor(c.mask, c.mask_shape, 5));
  if (c.mask != DType::kInvalid && c.mask_shape[2] > 1) {  // a query that sees nothing
    for (int64_t j = 0; j < c.mask_shape[3]; ++j)
      mask.tensor.values[static_cast<size_t>(j)] =
          c.mask == DType::kBool ? 0 : -std::numeric_limits<double>::infinity();
    mask = DeviceBuffer(mask.tensor);
  }
  const FlashDevice f = flash_device(c);
  const TestTensor like_lse = zeros(DType::kF32, {c.batch, heads, c.s});
  const Params params = {{"scale", 0.3}, {"causal", int64_t{c.causal}}};

  // The reference in f64, on the rounded operands.
  auto exact = [](TestTensor t) {
    if (is_float(t.dtype)) t.dtype = DType::kF64;
    return t;
  };
  auto zeros_like = [](const DeviceBuffer& b) { return zeros(DType::kF64, b.tensor.shape); };
  std::vector<TestTensor> inputs = {exact(q.tensor), exact(k.tensor), exact(v.tensor)},
                          expected = {zeros_like(g), exact(like_lse)};
  if (c.mask != DType::kInvalid) inputs.push_back(exact(mask.tensor));
  absl::Status status = run_kernel("attention", inputs, expected, params);
  ASSERT_TRUE(status.ok()) << status;
  std::vector<TestTensor> gradients = {zeros_like(q), zeros_like(k), zeros_like(v)};
  status = run_kernel("attention_grad",
                      {exact(g.tensor), exact(q.tensor), exact(k.tensor), exact(v.tensor), exact(mask.tensor),
                       expected[0], expected[1]},
                      gradients, params);
  ASSERT_TRUE(status.ok()) << status;

  const unsigned query_blocks = static_cast<unsigned>(c.batch * heads * ((c.s + kFlashRows - 1) / kFlashRows)),
                 key_blocks = static_cast<unsigned>(c.batch * c.kv_heads * ((c.t + kFlashRows - 1) / kFlashRows));
  const size_t one = static_cast<size_t>(flash_shared_bytes(sizeof(T), D, 1)),
               two = static_cast<size_t>(flash_shared_bytes(sizeof(T), D, 2)),
               of_keys = static_cast<size_t>(flash_shared_bytes(sizeof(T), D, 2, true));
  const int64_t rows = c.batch * heads * c.s;
  std::vector<std::vector<TestTensor>> results;
  const auto lies = [&](const TestTensor& t) { return c.turned ? turn(t) : t; };
  for (DeviceBuffer* b : {&q, &k, &v, &g}) *b = DeviceBuffer(lies(b->tensor));
  for (HostOrder order : c.orders) {
    DeviceBuffer out(zeros(K::kDType, g.tensor.shape)), lse(like_lse), delta(like_lse),
        dq(zeros(K::kDType, q.tensor.shape)), dk(zeros(K::kDType, k.tensor.shape)),
        dv(zeros(K::kDType, v.tensor.shape));
    HostGrid& grid = HostGrid::instance();
    const void* m = mask.as<void>();
    grid.launch(
        {query_blocks}, kFlashThreads,
        [&] { K::forward(q.as<T>(), k.as<T>(), v.as<T>(), m, out.as<T>(), lse.as<float>(), f); }, one, order);
    grid.launch(
        {static_cast<unsigned>((rows + 3) / 4)}, kFlashThreads,
        [&] { K::delta(g.as<T>(), out.as<T>(), delta.as<float>(), f); }, 0, order);
    grid.launch(
        {query_blocks}, kFlashThreads,
        [&] {
          K::query_grads(g.as<T>(), q.as<T>(), k.as<T>(), v.as<T>(), m, lse.as<float>(), delta.as<float>(), dq.as<T>(),
                         f);
        },
        two, order);
    grid.launch(
        {key_blocks}, kFlashThreads,
        [&] {
          K::key_grads(g.as<T>(), q.as<T>(), k.as<T>(), v.as<T>(), m, lse.as<float>(), delta.as<float>(), dk.as<T>(),
                       dv.as<T>(), f);
        },
        of_keys, order);
    results.push_back({lies(out.read()), lse.read(), lies(dq.read()), lies(dk.read()), lies(dv.read())});
  }
  for (const auto& again : results) {
    for (size_t i = 0; i < again.size(); ++i)
      EXPECT_EQ(again[i].values, results[0][i].values) << "another order, " << i;
  }
  // The largest difference beside the largest value: roundings of p and ds to T do not shrink with the sums.
  auto near = [&](const TestTensor& found, const TestTensor& wanted, double tolerance, const char* what) {
    double largest = 0;
    for (double x : wanted.values) largest = std::isfinite(x) ? std::max(largest, std::abs(x)) : largest;
    for (size_t i = 0; i < wanted.values.size(); ++i) {
      if (found.values[i] == wanted.values[i]) continue;
      ASSERT_LE(std::abs(found.values[i] - wanted.values[i]), tolerance * (largest + 1e-3)) << what << " at " << i;
    }
  };
  const double tolerance = K::kDType == DType::kF32 ? 3e-6 : K::kDType == DType::kF16 ? 2e-3 : 1.2e-2;
  near(results[0][0], expected[0], tolerance, "out");
  near(results[0][1], expected[1], 1e-5, "lse");
  near(results[0][2], gradients[0], tolerance, "dq");
  near(results[0][3], gradients[1], tolerance, "dk");
  near(results[0][4], gradients[2], tolerance, "dv");
}

template <typename T>
class CudaFlash : public testing::Test {};
using FlashTypes = testing::Types<DeviceBf16, DeviceF16, float>;
TYPED_TEST_SUITE(CudaFlash, FlashTypes);

TYPED_TEST(CudaFlash, MatchesTheCpuOverSizes) {
  for (bool causal : {false, true}) {
    for (int64_t s : {1, 7, 65}) check<TypeParam, 64>({1, 2, 1, s, s, 64, 64, causal});
    check<TypeParam, 64>({1, 1, 1, 130, 130, 40, 40, causal});
    check<TypeParam, 128>({1, 1, 1, 65, 65, 80, 80, causal});
  }
  check<TypeParam, 128>({1, 1, 1, 130, 130, 128, 128, true});
}

TYPED_TEST(CudaFlash, GroupsOfQueriesShareTheirKeys) {
  check<TypeParam, 64>({2, 1, 3, 70, 70, 16, 16, true});
  check<TypeParam, 64>({1, 2, 4, 9, 9, 64, 64, false});
}

TYPED_TEST(CudaFlash, MasksAndOddWidths) {
  check<TypeParam, 64>({2, 1, 2, 66, 66, 6, 5, false, DType::kBool, {2, 1, 66, 66}});
  check<TypeParam, 64>({1, 2, 1, 66, 66, 33, 31, true, DType::kF32, {1, 2, 66, 66}});
  check<TypeParam, 64>({1, 2, 1, 20, 70, 16, 24, false, DType::kBF16, {1, 1, 1, 70}});
  check<TypeParam, 64>({1, 2, 1, 20, 70, 16, 24, false, DType::kF16, {1, 1, 1, 70}});
}

TYPED_TEST(CudaFlash, RowsOfAllHeadsSideBySide) {
  check<TypeParam, 64>({2, 1, 3, 20, 70, 16, 24, true, DType::kInvalid, {}, {HostOrder::kBackward}, true});
  check<TypeParam, 64>({2, 2, 1, 9, 9, 6, 5, false, DType::kInvalid, {}, {HostOrder::kBackward}, true});
}

// More keys than queries (a cache before them), and fewer: the first queries see nothing.
TYPED_TEST(CudaFlash, CausalityIsAlignedToTheLastKey) {
  check<TypeParam, 64>({1, 1, 1, 40, 140, 32, 32, true});
  check<TypeParam, 64>({1, 1, 1, 140, 40, 32, 32, true});
}

TYPED_TEST(CudaFlash, BitsDoNotDependOnTheOrderOfThreadsAndBlocks) {
  check<TypeParam, 64>({1, 1, 2, 90, 90, 64, 64, true, DType::kInvalid, {}, kAllOrders});
  check<TypeParam, 64>({1, 1, 1, 70, 70, 33, 33, false, DType::kBool, {1, 1, 70, 70}, kAllOrders});
}

}  // namespace
}  // namespace partita::runtime
