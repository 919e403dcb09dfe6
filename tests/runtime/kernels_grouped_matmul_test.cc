#include "tests/runtime/kernel_harness.h"

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
