// The CUDA module's own kernels on 16-bit elements: bit by bit what the CPU's kernels give on f32 copies, rounded once.
#include "tests/runtime/support/cuda_kernels_host.h"

#include "runtime/cuda/kernels/indexing.cu"
#include "runtime/cuda/kernels/pool.cu"
#include "runtime/cuda/kernels/scan.cu"
#include "tests/runtime/support/kernel_harness.h"

namespace partita::runtime {
namespace {

// An array of elements T on the device's side, and as the tensor that it stands for.
template <typename T>
struct Narrow {
  TestTensor tensor;
  std::vector<std::byte> bytes;

  explicit Narrow(TestTensor t) : tensor(std::move(t)), bytes(to_bytes(tensor)) { from_bytes(bytes, tensor); }
  T* data() { return reinterpret_cast<T*>(bytes.data()); }
  std::vector<double> values() {
    from_bytes(bytes, tensor);
    return tensor.values;
  }
};

template <typename T>
std::vector<T> elements(const TestTensor& t) {
  return std::vector<T>(t.values.begin(), t.values.end());
}
std::vector<double> doubles(const std::vector<int64_t>& v) { return std::vector<double>(v.begin(), v.end()); }

template <typename F>
void for_items(F f) {
  HostGrid::instance().launch({3}, 64, f);
}

// Values whose sums do not fit into 16 bits.
TestTensor uneven(DType dtype, std::vector<int64_t> shape, unsigned seed) {
  TestTensor t = random_tensor(dtype, std::move(shape), seed);
  for (double& v : t.values) v *= 1.13;
  return t;
}

TestTensor widened(TestTensor t) {
  if (is_float(t.dtype)) t.dtype = DType::kF32;
  return t;
}
// The CPU's kernel on f32 copies; its first output, rounded to the dtype of `output`.
std::vector<double> rounded_once(const std::string& name, const std::vector<TestTensor>& inputs,
                                 const TestTensor& output, Params params) {
  std::vector<TestTensor> wide;
  for (const TestTensor& t : inputs) wide.push_back(widened(t));
  TestTensor made = run_one(name, wide, widened(output), std::move(params));
  made.dtype = output.dtype;
  from_bytes(to_bytes(made), made);
  return made.values;
}

// The kernels of one element type.
template <typename T>
struct Kernels;
#define PARTITA_KERNELS(T, DTYPE, NAME)                              \
  template <>                                                        \
  struct Kernels<T> {                                                \
    static constexpr DType kDType = DTYPE;                           \
    static constexpr auto add_runs = add_runs_##NAME;                \
    static constexpr auto along_grad = take_along_grad_##NAME##_i64; \
    static constexpr auto round = round_sums_##NAME;                 \
    static constexpr auto cumsum = cumsum_##NAME;                    \
    static constexpr auto topk = topk_##NAME;                        \
    static constexpr auto max_pool = max_pool_##NAME;                \
    static constexpr auto max_pool_grad = max_pool_grad_##NAME;      \
    static constexpr auto avg_pool = avg_pool_##NAME;                \
    static constexpr auto avg_pool_grad = avg_pool_grad_##NAME;      \
  };
PARTITA_KERNELS(DeviceBf16, DType::kBF16, bf16)
PARTITA_KERNELS(DeviceF16, DType::kF16, f16)
#undef PARTITA_KERNELS

template <typename T>
class CudaNarrowKernels : public testing::Test {};
using NarrowTypes = testing::Types<DeviceBf16, DeviceF16>;
TYPED_TEST_SUITE(CudaNarrowKernels, NarrowTypes);

TYPED_TEST(CudaNarrowKernels, AddUpRowsOfIndices) {
  using K = Kernels<TypeParam>;
  const int64_t n = 40, count = 1500, inner = 5, outer = 2;
  Narrow<TypeParam> g(uneven(K::kDType, {outer, count, inner}, 1)), dx(zeros(K::kDType, {outer, n, inner}));
  const TestTensor i = random_integers(DType::kI32, {count}, 0, n, 2);
  const std::vector<double> expected = rounded_once("gather_grad", {g.tensor, i}, dx.tensor, {{"dim", int64_t{1}}});
  std::vector<int32_t> indices = elements<int32_t>(i), keys(2 * count), order(2 * count);
  HostGrid::instance().launch({1}, kSortThreads,
                              [&] { sort_rows_i32(indices.data(), n, count, 2, keys.data(), order.data()); });
  HostGrid::instance().launch(
      {count, outer}, 32, [&] { K::add_runs(g.data(), keys.data(), order.data(), dx.data(), outer, n, count, inner); });
  EXPECT_EQ(dx.values(), expected);
}

TYPED_TEST(CudaNarrowKernels, AddUpAlongColumns) {
  using K = Kernels<TypeParam>;
  const AlongDevice a{9, 5, 300, 5, 20, 2, {4, 5}, {45, 1}, {1500, 1}};
  Narrow<TypeParam> g(uneven(K::kDType, {4, 300, 5}, 5)), dx(zeros(K::kDType, {4, 9, 5}));
  const TestTensor i = random_integers(DType::kI64, {4, 300, 5}, -12, 12, 4);
  std::vector<int64_t> indices = elements<int64_t>(i);
  std::vector<float> sums(4 * 9 * 5, 0);
  for_items([&] { K::along_grad(g.data(), indices.data(), sums.data(), a); });
  for_items([&] { K::round(sums.data(), dx.data(), 4 * 9 * 5); });
  EXPECT_EQ(dx.values(),
            rounded_once("take_along_grad", {g.tensor, i}, zeros(K::kDType, {4, 9, 5}), {{"dim", int64_t{1}}}));
}

TYPED_TEST(CudaNarrowKernels, Scan) {
  using K = Kernels<TypeParam>;
  Narrow<TypeParam> x(uneven(K::kDType, {3, 90, 4}, 1)), y(zeros(K::kDType, {3, 90, 4}));
  for_items([&] { K::cumsum(x.data(), y.data(), 3, 90, 4, 0, 1); });
  EXPECT_EQ(y.values(), rounded_once("cumsum", {x.tensor}, zeros(K::kDType, {3, 90, 4}),
                                     {{"dim", int64_t{1}}, {"exclusive", int64_t{0}}, {"reverse", int64_t{1}}}));
  Narrow<TypeParam> best(zeros(K::kDType, {3, 5, 4}));
  std::vector<int64_t> at(3 * 5 * 4);
  std::vector<TestTensor> expected = {zeros(K::kDType, {3, 5, 4}), zeros(DType::kI64, {3, 5, 4})};
  const absl::Status status =
      run_kernel("topk", {x.tensor}, expected, {{"dim", int64_t{1}}, {"k", int64_t{5}}, {"largest", int64_t{1}}});
  ASSERT_TRUE(status.ok()) << status;
  for_items([&] { K::topk(x.data(), best.data(), at.data(), 3, 90, 4, 5, 1); });
  EXPECT_EQ(best.values(), expected[0].values);
  EXPECT_EQ(doubles(at), expected[1].values);
}

TYPED_TEST(CudaNarrowKernels, Pool) {
  using K = Kernels<TypeParam>;
  using Ints = std::vector<int64_t>;
  const Params params = {{"kernel", Ints{3, 3}},    {"strides", Ints{2, 2}},   {"pads_low", Ints{1, 1}},
                         {"pads_high", Ints{1, 1}}, {"dilations", Ints{1, 1}}, {"count_include_pad", int64_t{0}}};
  const WindowDevice w =
      WindowDevice{6, {1, 11, 7}, {1, 6, 4}, {1, 3, 3}, {1, 2, 2}, {0, 1, 1}, {0, 1, 1}, {1, 1, 1}, 0}.ready();
  Narrow<TypeParam> x(uneven(K::kDType, {2, 3, 11, 7}, 1)), g(uneven(K::kDType, {2, 3, 6, 4}, 2)),
      y(zeros(K::kDType, {2, 3, 6, 4})), dx(zeros(K::kDType, {2, 3, 11, 7}));
  std::vector<TestTensor> expected = {zeros(K::kDType, {2, 3, 6, 4}), zeros(DType::kI32, {2, 3, 6, 4})};
  const absl::Status status = run_kernel("max_pool", {x.tensor}, expected, params);
  ASSERT_TRUE(status.ok()) << status;
  std::vector<int32_t> at(2 * 3 * 6 * 4);
  for_items([&] { K::max_pool(x.data(), y.data(), at.data(), w); });
  EXPECT_EQ(y.values(), expected[0].values);
  EXPECT_EQ(std::vector<double>(at.begin(), at.end()), expected[1].values);
  for_items([&] { K::max_pool_grad(g.data(), at.data(), dx.data(), w); });
  EXPECT_EQ(dx.values(),
            rounded_once("max_pool_grad", {g.tensor, expected[1]}, zeros(K::kDType, {2, 3, 11, 7}), params));
  // oneDNN divides where these multiply: an ulp of the sum, so at most one of the result.
  for_items([&] { K::avg_pool(x.data(), y.data(), w); });
  y.values();
  expect_close(y.tensor, run_one("avg_pool", {x.tensor}, zeros(K::kDType, {2, 3, 6, 4}), params).values, 8e-3);
  for_items([&] { K::avg_pool_grad(g.data(), dx.data(), w); });
  dx.values();
  expect_close(dx.tensor, run_one("avg_pool_grad", {g.tensor}, zeros(K::kDType, {2, 3, 11, 7}), params).values, 8e-3);
}

}  // namespace
}  // namespace partita::runtime
