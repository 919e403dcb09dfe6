#include "tests/runtime/support/kernel_harness.h"

namespace partita::runtime {
namespace {

struct Case {
  int64_t rows, inner, columns, matrices;
};
// One row; some matrices with many rows, some with none; more rows, and more columns, than are multiplied at once.
constexpr Case kCases[] = {{1, 3, 5, 4},     {37, 16, 24, 3},  {20, 7, 33, 40},
                           {2100, 8, 12, 2}, {130, 64, 96, 6}, {70, 530, 600, 3}};

int64_t chosen(const TestTensor& indices, int64_t row, int64_t matrices) {
  return clamp_index(static_cast<int64_t>(indices.values[static_cast<size_t>(row)]), matrices);
}

TestTensor indices_of(const Case& c, DType dtype) {
  // Some count from the end, some lie outside.
  return random_integers(dtype, {c.rows}, -c.matrices - 1, c.matrices + 1, 3);
}

class GroupedMatmulTypes : public ::testing::TestWithParam<DType> {};

TEST_P(GroupedMatmulTypes, RowsTimesTheirMatrices) {
  const DType dtype = GetParam();
  for (const Case& c : kCases) {
    for (bool transposed : {false, true}) {
      const TestTensor x = random_tensor(dtype, {c.rows, c.inner}, 1),
                       w = random_tensor(dtype,
                                         transposed ? std::vector{c.matrices, c.columns, c.inner}
                                                    : std::vector{c.matrices, c.inner, c.columns},
                                         2),
                       i = indices_of(c, transposed ? DType::kI32 : DType::kI64);
      TestTensor y = zeros(dtype, {c.rows, c.columns});
      for (int64_t r = 0; r < c.rows; ++r) {
        for (int64_t n = 0; n < c.columns; ++n) {
          for (int64_t k = 0; k < c.inner; ++k) {
            const int64_t at =
                chosen(i, r, c.matrices) * c.inner * c.columns + (transposed ? n * c.inner + k : k * c.columns + n);
            y.values[static_cast<size_t>(r * c.columns + n)] +=
                x.values[static_cast<size_t>(r * c.inner + k)] * w.values[static_cast<size_t>(at)];
          }
        }
      }
      const TestTensor found = run_one("grouped_matmul", {x, w, i}, random_tensor(dtype, y.shape, 4),
                                       {{"transpose_b", int64_t{transposed}}});
      expect_close(found, y.values, tolerance_of(dtype), shape_text(w.shape));
      EXPECT_EQ(found.values, run_one("grouped_matmul", {x, w, i}, random_tensor(dtype, y.shape, 5),
                                      {{"transpose_b", int64_t{transposed}}}, 5)
                                  .values);
    }
  }
}

TEST_P(GroupedMatmulTypes, GradientOfMatrices) {
  const DType dtype = GetParam();
  for (const Case& c : kCases) {
    const TestTensor a = random_tensor(dtype, {c.rows, c.inner}, 1), b = random_tensor(dtype, {c.rows, c.columns}, 2),
                     i = indices_of(c, DType::kI64);
    TestTensor dw = zeros(dtype, {c.matrices, c.inner, c.columns});
    for (int64_t r = 0; r < c.rows; ++r) {
      for (int64_t k = 0; k < c.inner; ++k) {
        for (int64_t n = 0; n < c.columns; ++n) {
          dw.values[static_cast<size_t>((chosen(i, r, c.matrices) * c.inner + k) * c.columns + n)] +=
              a.values[static_cast<size_t>(r * c.inner + k)] * b.values[static_cast<size_t>(r * c.columns + n)];
        }
      }
    }
    const TestTensor found =
        run_one("grouped_matmul_grad", {a, b, i}, random_tensor(dtype, dw.shape, 4), {{"size", c.matrices}});
    expect_close(found, dw.values, tolerance_of(dtype), shape_text(dw.shape));
    EXPECT_EQ(
        found.values,
        run_one("grouped_matmul_grad", {a, b, i}, random_tensor(dtype, dw.shape, 5), {{"size", c.matrices}}, 5).values);
  }
}

// Of 6 matrices the rank has 2 x 2, in two parts from numbers 1 and 4 on. Rows of other matrices are zero.
TEST_P(GroupedMatmulTypes, PartsOfTheMatrices) {
  const DType dtype = GetParam();
  constexpr int64_t kIndices = 60, kInner = 24, kColumns = 40, kParts = 2, kEach = 2, kTotal = 6;
  const int64_t first[kParts] = {1, 4};
  TestTensor begin = zeros(DType::kI64, {kParts});
  for (int p = 0; p < kParts; ++p) begin.values[static_cast<size_t>(p)] = static_cast<double>(first[p]);
  const TestTensor i = random_integers(DType::kI64, {kIndices}, -kTotal - 1, kTotal + 1, 3);
  for (int64_t rows : {kIndices * kParts, kIndices, kIndices / 3}) {
    SCOPED_TRACE(rows);
    const auto row_of = [&](int64_t p, int64_t r) {
      return rows > kIndices ? p * kIndices + r : r / (kIndices / rows);
    };
    const TestTensor x = random_tensor(dtype, {rows, kInner}, 1),
                     w = random_tensor(dtype, {kParts * kEach, kInner, kColumns}, 2),
                     g = random_tensor(dtype, {kIndices * kParts, kColumns}, 4);
    TestTensor y = zeros(dtype, {kIndices * kParts, kColumns}), dw = zeros(dtype, w.shape);
    for (int64_t p = 0; p < kParts; ++p) {
      for (int64_t r = 0; r < kIndices; ++r) {
        const int64_t e = chosen(i, r, kTotal) - first[p];
        if (e < 0 || e >= kEach) continue;
        for (int64_t k = 0; k < kInner; ++k) {
          for (int64_t n = 0; n < kColumns; ++n) {
            const size_t at = static_cast<size_t>(((p * kEach + e) * kInner + k) * kColumns + n),
                         of_x = static_cast<size_t>(row_of(p, r) * kInner + k),
                         of_y = static_cast<size_t>((p * kIndices + r) * kColumns + n);
            y.values[of_y] += x.values[of_x] * w.values[at];
            dw.values[at] += x.values[of_x] * g.values[of_y];
          }
        }
      }
    }
    const Params total = {{"total", kTotal}}, of_gradient = {{"total", kTotal}, {"size", kEach}};
    expect_close(run_one("grouped_matmul", {x, w, i, begin}, random_tensor(dtype, y.shape, 5), total), y.values,
                 tolerance_of(dtype), "rows");
    expect_close(run_one("grouped_matmul_grad", {x, g, i, begin}, random_tensor(dtype, dw.shape, 6), of_gradient),
                 dw.values, tolerance_of(dtype), "gradients");
  }
}

INSTANTIATE_TEST_SUITE_P(Types, GroupedMatmulTypes,
                         ::testing::Values(DType::kF32, DType::kF64, DType::kBF16, DType::kF16));

TEST(GroupedMatmul, NothingToMultiply) {
  const TestTensor none = zeros(DType::kI64, {0}), two = zeros(DType::kI64, {2});
  run_one("grouped_matmul", {zeros(DType::kF32, {0, 3}), zeros(DType::kF32, {0, 3, 4}), none},
          zeros(DType::kF32, {0, 4}));
  const TestTensor y = run_one("grouped_matmul", {zeros(DType::kF32, {2, 0}), zeros(DType::kF32, {1, 0, 4}), two},
                               random_tensor(DType::kF32, {2, 4}, 1));
  EXPECT_EQ(y.values, zeros(DType::kF32, {2, 4}).values);
  const TestTensor dw = run_one("grouped_matmul_grad", {zeros(DType::kF32, {0, 3}), zeros(DType::kF32, {0, 4}), none},
                                random_tensor(DType::kF32, {2, 3, 4}, 1));
  EXPECT_EQ(dw.values, zeros(DType::kF32, {2, 3, 4}).values);
}

TEST(GroupedMatmul, OperandsThatDoNotFit_AreRefused) {
  std::vector<TestTensor> y = {zeros(DType::kF32, {2, 4})};
  const absl::Status status = run_kernel(
      "grouped_matmul", {zeros(DType::kF32, {2, 3}), zeros(DType::kF32, {5, 4, 3}), zeros(DType::kI64, {2})}, y);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(status.message()).find("expects rows, matrices of their width"), std::string::npos) << status;
}

}  // namespace
}  // namespace partita::runtime
