#include <limits>

#include "gmock/gmock.h"
#include "tests/runtime/support/kernel_harness.h"

namespace partita::runtime {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
const DType kIndexTypes[] = {DType::kI32, DType::kI64};
Params along(int64_t dim) { return {{"dim", dim}}; }

TEST(Gather, Indices_CountFromTheEndAndAreClamped) {
  const TestTensor x = tensor(DType::kF32, {2, 3, 2}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  for (DType index : kIndexTypes) {
    EXPECT_THAT(run_one("gather", {x, tensor(index, {2}, {-1, 0})}, zeros(DType::kF32, {2, 2, 2}), along(1)).values,
                ElementsAre(4, 5, 0, 1, 10, 11, 6, 7));
    EXPECT_THAT(run_one("gather", {x, tensor(index, {}, {1000})}, zeros(DType::kF32, {3, 2}), along(0)).values,
                ElementsAre(6, 7, 8, 9, 10, 11));
    EXPECT_THAT(run_one("gather", {x, tensor(index, {1}, {-1000})}, zeros(DType::kF32, {2, 3, 1}), along(-1)).values,
                ElementsAre(0, 2, 4, 6, 8, 10));
  }
  EXPECT_THAT(run_one("gather", {tensor(DType::kBool, {3}, {1, 0, 1}), tensor(DType::kI64, {2}, {1, 2})},
                      zeros(DType::kBool, {2}))
                  .values,
              ElementsAre(0, 1));
}

TEST(GatherGrad, Repeats_AreSummed) {
  const TestTensor g = random_tensor(DType::kF32, {2, 500, 33}, 1),
                   indices = random_integers(DType::kI64, {500}, -7, 7, 2);
  std::vector<double> expected(2 * 7 * 33, 0);
  for (int64_t o = 0; o < 2; ++o) {
    for (int64_t j = 0; j < 500; ++j) {
      const int64_t i = (static_cast<int64_t>(indices.values[static_cast<size_t>(j)]) + 7) % 7;
      for (int64_t c = 0; c < 33; ++c)
        expected[static_cast<size_t>((o * 7 + i) * 33 + c)] += g.values[static_cast<size_t>((o * 500 + j) * 33 + c)];
    }
  }
  const TestTensor one = run_one("gather_grad", {g, indices}, random_tensor(DType::kF32, {2, 7, 33}, 3),
                                 {{"dim", int64_t{1}}, {"size", int64_t{7}}}, 1);
  expect_close(one, expected, 1e-5);
  EXPECT_EQ(one.values, run_one("gather_grad", {g, indices}, zeros(DType::kF32, {2, 7, 33}), along(1), 4).values);
}

// To a third operand, row after row: one by one the same sums, for any number of threads.
TEST(GatherGrad, Rows_AreAddedToATerm) {
  const TestTensor g = random_tensor(DType::kF32, {500, 33}, 1), x = random_tensor(DType::kF32, {7, 33}, 3),
                   indices = random_integers(DType::kI64, {500}, -7, 7, 2);
  std::vector<float> expected(x.values.begin(), x.values.end());
  for (size_t k = 0; k < g.values.size(); ++k) {
    const auto row = static_cast<size_t>((static_cast<int64_t>(indices.values[k / 33]) + 7) % 7);
    expected[row * 33 + k % 33] += static_cast<float>(g.values[k]);
  }
  Params params = along(0);
  params["epilogue"] = std::string("accumulate");
  for (const int threads : {1, 4}) {
    const TestTensor sum = run_one("gather_grad", {g, indices, x}, zeros(DType::kF32, {7, 33}), params, threads);
    EXPECT_EQ(sum.values, std::vector<double>(expected.begin(), expected.end())) << threads;
  }
  std::vector<TestTensor> out = {zeros(DType::kF32, {7, 33})};
  EXPECT_THAT(std::string(run_kernel("gather_grad", {g, indices}, out, params).message()),
              HasSubstr("epilogue 'accumulate' and a third operand, or neither"));
  EXPECT_THAT(std::string(run_kernel("gather_grad", {g, indices, x}, out, along(0)).message()),
              HasSubstr("epilogue 'accumulate' and a third operand, or neither"));
  EXPECT_THAT(std::string(run_kernel("gather_grad", {g, indices, g}, out, params).message()),
              HasSubstr("a third operand like the output"));
}

TEST(TakeAlong, GathersAndScattersBack) {
  const TestTensor x = tensor(DType::kF32, {3, 3}, {0, 1, 2, 3, 4, 5, 6, 7, 8}),
                   indices = tensor(DType::kI64, {2, 3}, {1, 2, 0, -1, 0, 9});
  EXPECT_THAT(run_one("take_along", {x, indices}, zeros(DType::kF32, {2, 3}), along(0)).values,
              ElementsAre(3, 7, 2, 6, 1, 8));
  EXPECT_THAT(run_one("take_along", {x, indices}, zeros(DType::kF32, {2, 3}), along(1)).values,
              ElementsAre(1, 2, 0, 5, 3, 5));
  const TestTensor g = tensor(DType::kF32, {2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_THAT(run_one("take_along_grad", {g, indices}, zeros(DType::kF32, {3, 3}), along(0)).values,
              ElementsAre(0, 5, 3, 1, 0, 0, 4, 2, 6));
  EXPECT_THAT(run_one("take_along_grad", {g, tensor(DType::kI32, {2, 3}, {0, 0, 0, 2, 2, 2})},
                      zeros(DType::kF32, {2, 4}), along(1))
                  .values,
              ElementsAre(6, 0, 0, 0, 0, 0, 15, 0));
}

TEST(GatherNd, Slices_WithAndWithoutBatch) {
  const TestTensor x = tensor(DType::kF32, {2, 2, 2}, {0, 1, 2, 3, 4, 5, 6, 7});
  EXPECT_THAT(run_one("gather_nd", {x, tensor(DType::kI64, {2, 2}, {0, 1, 1, 0})}, zeros(DType::kF32, {2, 2})).values,
              ElementsAre(2, 3, 4, 5));
  EXPECT_THAT(run_one("gather_nd", {x, tensor(DType::kI64, {2, 1}, {1, -2})}, zeros(DType::kF32, {2, 2}),
                      {{"batch_dims", int64_t{1}}})
                  .values,
              ElementsAre(2, 3, 4, 5));
  EXPECT_THAT(run_one("gather_nd", {x, tensor(DType::kI64, {1, 3}, {9, -9, 1})}, zeros(DType::kF32, {1})).values,
              ElementsAre(5));
  const TestTensor g = tensor(DType::kF32, {3, 2}, {1, 2, 3, 4, 5, 6});
  EXPECT_THAT(run_one("gather_nd_grad", {g, tensor(DType::kI64, {3, 2}, {0, 1, 1, 0, 0, 1})},
                      random_tensor(DType::kF32, {2, 2, 2}, 1))
                  .values,
              ElementsAre(0, 0, 6, 8, 3, 4, 0, 0));
}

TEST(ScatterNd, Modes_ApplyInOrder) {
  const TestTensor x = tensor(DType::kF32, {4}, {1, 2, 3, 4}), i = tensor(DType::kI64, {3, 1}, {1, 3, 1}),
                   u = tensor(DType::kF32, {3}, {10, 0.5, 20});
  auto run = [&](const char* mode) {
    return run_one("scatter_nd", {x, i, u}, zeros(DType::kF32, {4}), {{"mode", std::string(mode)}}).values;
  };
  EXPECT_THAT(run("none"), ElementsAre(1, 20, 3, 0.5));
  EXPECT_THAT(run("add"), ElementsAre(1, 32, 3, 4.5));
  EXPECT_THAT(run("mul"), ElementsAre(1, 400, 3, 2));
  EXPECT_THAT(run("max"), ElementsAre(1, 20, 3, 4));
  EXPECT_THAT(run("min"), ElementsAre(1, 2, 3, 0.5));
  EXPECT_THAT(
      run_one("scatter_nd",
              {tensor(DType::kBool, {2}, {0, 0}), tensor(DType::kI64, {1, 1}, {1}), tensor(DType::kBool, {1}, {1})},
              zeros(DType::kBool, {2}))
          .values,
      ElementsAre(0, 1));
}

TEST(ScatterElements, Modes_ApplyInOrder) {
  const TestTensor x = tensor(DType::kI64, {2, 3}, {1, 2, 3, 4, 5, 6}), i = tensor(DType::kI64, {2, 2}, {0, 0, 2, -3}),
                   u = tensor(DType::kI64, {2, 2}, {7, 8, 9, 10});
  EXPECT_THAT(run_one("scatter_elements", {x, i, u}, zeros(DType::kI64, {2, 3}), along(1)).values,
              ElementsAre(8, 2, 3, 10, 5, 9));
  EXPECT_THAT(run_one("scatter_elements", {x, i, u}, zeros(DType::kI64, {2, 3}),
                      {{"dim", int64_t{1}}, {"mode", std::string("add")}})
                  .values,
              ElementsAre(16, 2, 3, 14, 5, 15));
}

TEST(ShardSlice, TakesTheCoordinatesBlock) {
  const TestTensor x = tensor(DType::kF32, {2, 4}, {0, 1, 2, 3, 4, 5, 6, 7});
  EXPECT_THAT(run_one("shard_slice", {x, tensor(DType::kI64, {}, {1})}, zeros(DType::kF32, {2, 2}),
                      {{"dim", int64_t{1}}, {"parts", int64_t{2}}})
                  .values,
              ElementsAre(2, 3, 6, 7));
}

TEST(Cumsum, Directions) {
  const TestTensor x = tensor(DType::kF32, {2, 3}, {1, 2, 3, 4, 5, 6});
  auto run = [&](int64_t dim, int64_t exclusive, int64_t reverse) {
    return run_one("cumsum", {x}, zeros(DType::kF32, {2, 3}),
                   {{"dim", dim}, {"exclusive", exclusive}, {"reverse", reverse}})
        .values;
  };
  EXPECT_THAT(run(1, 0, 0), ElementsAre(1, 3, 6, 4, 9, 15));
  EXPECT_THAT(run(1, 1, 0), ElementsAre(0, 1, 3, 0, 4, 9));
  EXPECT_THAT(run(1, 0, 1), ElementsAre(6, 5, 3, 15, 11, 6));
  EXPECT_THAT(run(0, 1, 1), ElementsAre(4, 5, 6, 0, 0, 0));
  const TestTensor wide = random_tensor(DType::kF64, {3, 5, 150}, 1);
  std::vector<double> expected = wide.values;
  for (size_t o = 0; o < 3; ++o)
    for (size_t j = 1; j < 5; ++j)
      for (size_t i = 0; i < 150; ++i) expected[(o * 5 + j) * 150 + i] += expected[(o * 5 + j - 1) * 150 + i];
  expect_close(run_one("cumsum", {wide}, zeros(DType::kF64, {3, 5, 150}), along(1)), expected, 1e-12);
}

TEST(Argmax, TiesAndNan) {
  auto run = [&](std::vector<double> values, int64_t last) {
    const int64_t n = static_cast<int64_t>(values.size());
    return run_one("argmax", {tensor(DType::kF32, {n}, values)}, zeros(DType::kI64, {}),
                   {{"dim", int64_t{0}}, {"last", last}})
        .values[0];
  };
  EXPECT_EQ(run({1, 3, 2, 3}, 0), 1);
  EXPECT_EQ(run({1, 3, 2, 3}, 1), 3);
  EXPECT_EQ(run({1, kNan, 2, kNan}, 0), 1);
  EXPECT_EQ(run({1, kNan, 2, kNan}, 1), 3);
  EXPECT_THAT(run_one("argmax", {tensor(DType::kI32, {2, 3}, {1, 5, 2, 7, 0, 7})}, zeros(DType::kI64, {1, 3}),
                      {{"dim", int64_t{0}}, {"keep", int64_t{1}}})
                  .values,
              ElementsAre(1, 0, 1));
}

TEST(Topk, SortedWithLowerIndexFirst) {
  const TestTensor x = tensor(DType::kF32, {2, 4}, {3, 1, 3, 2, kNan, 5, 7, 5});
  std::vector<TestTensor> y = {zeros(DType::kF32, {2, 3}), zeros(DType::kI64, {2, 3})};
  ASSERT_TRUE(run_kernel("topk", {x}, y, {{"k", int64_t{3}}, {"dim", int64_t{1}}, {"largest", int64_t{1}}}).ok());
  EXPECT_THAT(y[1].values, ElementsAre(0, 2, 3, 0, 2, 1));
  EXPECT_EQ(y[0].values[2], 2);
  ASSERT_TRUE(run_kernel("topk", {x}, y, {{"k", int64_t{3}}, {"dim", int64_t{1}}, {"largest", int64_t{0}}}).ok());
  EXPECT_THAT(y[1].values, ElementsAre(1, 3, 0, 1, 3, 2));
  std::vector<TestTensor> columns = {zeros(DType::kI32, {1, 2}), zeros(DType::kI64, {1, 2})};
  ASSERT_TRUE(run_kernel("topk", {tensor(DType::kI32, {3, 2}, {1, 9, 5, 2, 5, 3})}, columns,
                         {{"k", int64_t{1}}, {"dim", int64_t{0}}})
                  .ok());
  EXPECT_THAT(columns[1].values, ElementsAre(1, 0));
}

TEST(Kernels, EmptyTensors_AreFine) {
  run_one("gather", {zeros(DType::kF32, {0, 3}), tensor(DType::kI64, {2}, {0, 1})},
          random_tensor(DType::kF32, {2, 3}, 1));
  run_one("gather_grad", {zeros(DType::kF32, {0, 3}), zeros(DType::kI64, {0})}, random_tensor(DType::kF32, {2, 3}, 1));
  EXPECT_THAT(run_one("take_along", {zeros(DType::kF32, {0}), tensor(DType::kI64, {1}, {4})},
                      random_tensor(DType::kF32, {1}, 1))
                  .values,
              Each(0));
  run_one("cumsum", {zeros(DType::kF32, {0})}, zeros(DType::kF32, {0}));
}

// Operands that do not fit are refused, never run: each kernel with each of a few wrong sets of operands.
TEST(Kernels, WrongOperands_AreRefused) {
  const std::vector<std::vector<TestTensor>> sets = {
      {},
      {zeros(DType::kF32, {2, 3})},
      {zeros(DType::kF32, {}), zeros(DType::kF32, {7})},
      {zeros(DType::kF32, {2, 3}), zeros(DType::kI64, {5}), zeros(DType::kF32, {11})},
      {zeros(DType::kF32, {1, 2, 3, 4}), zeros(DType::kF32, {5}), zeros(DType::kF32, {9}), zeros(DType::kI64, {4})}};
  for (std::string_view name : library_kernel_names()) {
    for (const auto& inputs : sets) {
      std::vector<TestTensor> outputs = {zeros(DType::kF32, {13})};
      const absl::Status status = run_kernel(std::string(name), inputs, outputs, {{"dim", int64_t{9}}});
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument)
          << name << " with " << inputs.size() << ": " << status;
    }
  }
}

}  // namespace
}  // namespace partita::runtime
