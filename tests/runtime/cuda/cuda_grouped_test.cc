// The CUDA module's grouped products against the CPU's, run thread by thread on the host.
#include "tests/runtime/support/cuda_kernels_host.h"

#include "runtime/cuda/kernels/grouped.cu"
#include "tests/runtime/support/device_buffer.h"

namespace partita::runtime {
namespace {

// The kernels of one element type.
template <typename T>
struct Kernels;
#define PARTITA_KERNELS(T, DTYPE, NAME)                                  \
  template <>                                                            \
  struct Kernels<T> {                                                    \
    static constexpr DType kDType = DTYPE;                               \
    static constexpr auto rows = grouped_matmul_##NAME;                  \
    static constexpr auto transposed = grouped_matmul_transposed_##NAME; \
    static constexpr auto grad = grouped_matmul_grad_##NAME;             \
  };
PARTITA_KERNELS(DeviceBf16, DType::kBF16, bf16)
PARTITA_KERNELS(DeviceF16, DType::kF16, f16)
PARTITA_KERNELS(float, DType::kF32, f32)
PARTITA_KERNELS(double, DType::kF64, f64)
#undef PARTITA_KERNELS

struct Case {
  int rows, inner, columns, matrices;
};
const HostOrder kOrders[] = {HostOrder::kBackward, HostOrder::kForward, HostOrder::kShuffled};

unsigned tiles(int count, int size) { return static_cast<unsigned>((count + size - 1) / size); }

TestTensor exact(TestTensor t) {
  if (is_float(t.dtype)) t.dtype = DType::kF64;
  return t;
}

template <typename T>
void check(const Case& c, std::vector<HostOrder> orders = {HostOrder::kBackward}) {
  using K = Kernels<T>;
  const int tile = grouped_tile(sizeof(T));
  HostGrid& grid = HostGrid::instance();
  DeviceBuffer x(random_tensor(K::kDType, {c.rows, c.inner}, 1)),
      w(random_tensor(K::kDType, {c.matrices, c.inner, c.columns}, 2)),
      turned(random_tensor(K::kDType, {c.matrices, c.columns, c.inner}, 3)),
      g(random_tensor(K::kDType, {c.rows, c.columns}, 4)),
      // Some count from the end, some lie outside.
      indices(random_integers(DType::kI64, {c.rows}, -c.matrices - 1, c.matrices + 1, 5));
  const TestTensor i = indices.tensor;
  const auto reference = [&](const char* op, const DeviceBuffer& a, const DeviceBuffer& b, std::vector<int64_t> shape,
                             Params params) {
    return run_one(op, {exact(a.tensor), exact(b.tensor), i}, zeros(DType::kF64, std::move(shape)), std::move(params));
  };
  const TestTensor rows = reference("grouped_matmul", x, w, {c.rows, c.columns}, {}),
                   transposed =
                       reference("grouped_matmul", x, turned, {c.rows, c.columns}, {{"transpose_b", int64_t{1}}}),
                   grad = reference("grouped_matmul_grad", x, g, {c.matrices, c.inner, c.columns},
                                    {{"size", int64_t{c.matrices}}});
  const double tolerance = K::kDType == DType::kBF16 ? 8e-3 : K::kDType == DType::kF16 ? 1e-3 : 1e-5;
  const GroupedRows own = {c.rows, 1};
  std::vector<TestTensor> first;
  for (HostOrder order : orders) {
    std::vector<int> places(static_cast<size_t>(c.rows) + 1, -1), begins(static_cast<size_t>(c.matrices) + 1, -1);
    grid.launch(
        {static_cast<unsigned>(c.matrices)}, kGroupedThreads,
        [&] {
          group_rows_i64(indices.as<int64_t>(), nullptr, c.rows, 1, c.matrices, c.matrices, places.data(),
                         begins.data());
        },
        0, order);
    EXPECT_EQ(begins.back(), c.rows);
    DeviceBuffer y(random_tensor(K::kDType, rows.shape, 6)), ty(y.tensor), dw(random_tensor(K::kDType, grad.shape, 7));
    const Index3 row_blocks = {static_cast<unsigned>(c.rows / tile + c.matrices), tiles(c.columns, tile)},
                 grad_blocks = {tiles(c.inner, tile), tiles(c.columns, tile), static_cast<unsigned>(c.matrices)};
    const auto shared = [](bool a, bool b) { return static_cast<size_t>(grouped_shared_bytes(sizeof(T), a, b)); };
    grid.launch(
        row_blocks, kGroupedThreads,
        [&] {
          K::rows(x.as<T>(), w.as<T>(), places.data(), begins.data(), y.as<T>(), own, c.matrices, c.inner, c.columns);
        },
        shared(true, false), order);
    grid.launch(
        row_blocks, kGroupedThreads,
        [&] {
          K::transposed(x.as<T>(), turned.as<T>(), places.data(), begins.data(), ty.as<T>(), own, c.matrices, c.inner,
                        c.columns);
        },
        shared(true, true), order);
    grid.launch(
        grad_blocks, kGroupedThreads,
        [&] { K::grad(x.as<T>(), g.as<T>(), places.data(), begins.data(), dw.as<T>(), own, own, c.inner, c.columns); },
        shared(false, false), order);
    const std::vector<TestTensor> found = {y.read(), ty.read(), dw.read()};
    if (first.empty()) {
      first = found;
      expect_close(found[0], rows.values, tolerance, "rows");
      expect_close(found[1], transposed.values, tolerance, "rows, transposed");
      expect_close(found[2], grad.values, tolerance, "gradients");
    }
    for (size_t k = 0; k < found.size(); ++k) EXPECT_EQ(found[k].values, first[k].values) << "another order, " << k;
  }
}

template <typename T>
class CudaGrouped : public testing::Test {};
using GroupedTypes = testing::Types<DeviceBf16, DeviceF16, float, double>;
TYPED_TEST_SUITE(CudaGrouped, GroupedTypes);

TYPED_TEST(CudaGrouped, MatchesTheCpuOverSizes) {
  check<TypeParam>({1, 8, 8, 1});
  check<TypeParam>({70, 32, 64, 3});
  check<TypeParam>({300, 48, 136, 2});  // several tiles of rows and columns
  check<TypeParam>({40, 200, 24, 3});   // several steps
  check<TypeParam>({5, 16, 16, 20});    // most matrices have no rows
}

TYPED_TEST(CudaGrouped, OddWidths) {
  check<TypeParam>({33, 7, 13, 4});
  check<TypeParam>({33, 40, 35, 4});
  check<TypeParam>({130, 1, 1, 2});
}

TYPED_TEST(CudaGrouped, TheSameBitsInAnyOrderOfThreadsAndBlocks) {
  check<TypeParam>({150, 72, 40, 3}, {std::begin(kOrders), std::end(kOrders)});
}

// Each row has one place, rows of lower indices before others, in order of their numbers.
TEST(CudaGroupedRows, AreInOrderOfTheirMatrices) {
  for (int matrices : {1, 3, 300}) {
    const int rows = 700;
    const TestTensor i = random_integers(DType::kI32, {rows}, -2, matrices, 1);
    std::vector<int32_t> indices(i.values.begin(), i.values.end());
    std::vector<int> order(rows, -1), begins(static_cast<size_t>(matrices) + 1, -1), expected(rows);
    HostGrid::instance().launch({static_cast<unsigned>(matrices)}, kGroupedThreads, [&] {
      group_rows_i32(indices.data(), nullptr, rows, 1, matrices, matrices, order.data(), begins.data());
    });
    const auto matrix = [&](int row) { return clamp_index(int64_t{indices[static_cast<size_t>(row)]}, matrices); };
    std::iota(expected.begin(), expected.end(), 0);
    std::stable_sort(expected.begin(), expected.end(), [&](int a, int b) { return matrix(a) < matrix(b); });
    EXPECT_EQ(order, expected);
    for (int e = 0; e <= matrices; ++e) {
      const auto below = std::count_if(expected.begin(), expected.end(), [&](int row) { return matrix(row) < e; });
      EXPECT_EQ(begins[static_cast<size_t>(e)], below);
    }
  }
}

}  // namespace
}  // namespace partita::runtime
