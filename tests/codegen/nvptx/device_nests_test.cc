// The same nests as nests_test.cc and random graphs, as a GPU's threads compute them, in PTX (tests/ptx),
// against the reference evaluator.
#include <gtest/gtest.h>

#include <limits>

#include "tests/codegen/support/graph_maker.h"
#include "tests/codegen/support/random_graph.h"
#include "tests/codegen/support/single_nodes.h"
#include "tests/support/test_options.h"

namespace partita {
namespace {

constexpr ptx::Order kOrders[] = {ptx::Order::kForward, ptx::Order::kBackward, ptx::Order::kShuffled};

struct Maker : GraphMaker {
  int check(CompareOptions options = {}) {
    options.target.gpu = "sm_80";
    return GraphMaker::check(options);
  }
};

TEST(DeviceElementwise_AnyShape, MatchesReference) {
  for (const Shape& shape : std::vector<Shape>{{}, {1}, {3}, {17}, {1000}, {20001}, {2, 3}, {33, 65}, {3, 5, 7}, {0}}) {
    for (DType t : {DType::kF32, DType::kF64}) {
      Maker m;
      ValueId x = m.in(shape, t), y = m.in(shape, t);
      m.out(m.b.add(m.b.mul(x, y), m.b.emit("tanh", {x})));
      m.out(m.b.emit("gelu", {m.b.sub(x, y)}, {{"approximate", int64_t{0}}}));
      m.check();
      ASSERT_FALSE(HasFailure()) << to_string(shape);
    }
  }
}

// So many that a thread has several vectors; the last of them have some past the end.
TEST(DeviceElementwise_ManyPoints, MatchReference) {
  Maker m;
  const int64_t vectors = (int64_t{1} << 18) + 77;
  ValueId x = m.in({4 * vectors}), y = m.in({4 * vectors});
  m.out(m.b.add(m.b.mul(x, y), x));
  m.check();
}

TEST(DeviceElementwise_EveryFunction, MatchesReference) {
  for (auto [t, scale] : std::vector<std::pair<DType, double>>{{DType::kF32, 1}, {DType::kF32, 9}, {DType::kF64, 9}}) {
    Maker m;
    ValueId x = m.in({300}, t), y = m.in({300}, t);
    ValueId positive = m.b.add_scalar(m.b.emit("abs", {x}), 0.01), small = m.b.scale(m.b.emit("tanh", {x}), 0.99);
    for (const char* op : {"neg",  "abs",  "sign",    "exp", "expm1", "sin",  "cos",      "tan",   "atan", "sinh",
                           "cosh", "tanh", "sigmoid", "erf", "relu",  "silu", "softplus", "floor", "ceil", "round"}) {
      m.out(m.b.emit(op, {x}));
    }
    for (const char* op : {"log", "log1p", "sqrt", "rsqrt"}) m.out(m.b.emit(op, {positive}));
    for (const char* op : {"asin", "acos"}) m.out(m.b.emit(op, {small}));
    for (const char* op : {"add", "sub", "mul", "div", "max", "min", "mod"}) m.out(m.b.emit(op, {x, y}));
    m.out(m.b.emit("pow", {positive, y}));
    m.out(m.b.emit("pow", {x, m.b.emit("round", {y})}));
    for (const char* op : {"eq", "ne", "lt", "le"}) m.out(m.b.emit(op, {x, y}));
    m.out(m.b.select(m.b.emit("lt", {x, y}), x, y));
    m.check({.tolerance = t == DType::kF32 ? 4e-6 : 1e-12, .slack = 3e-2, .scale = scale});
  }
}

TEST(DeviceElementwise_IntegersAndCasts, MatchReference) {
  for (DType t : {DType::kI8, DType::kU8, DType::kI16, DType::kI32, DType::kU32, DType::kI64, DType::kU64, DType::kBool,
                  DType::kF16, DType::kBF16}) {
    Maker m;
    ValueId x = m.in({132}, t), y = m.in({132}, t);
    if (is_float(t)) {
      m.out(m.b.mul(x, y));
    } else if (t != DType::kBool) {
      for (const char* op : {"add", "sub", "mul", "div", "max", "min", "mod", "pow", "and"})
        m.out(m.b.emit(op, {x, y}));
    }
    for (DType to : {DType::kBool, DType::kI8, DType::kU8, DType::kI32, DType::kI64, DType::kF16, DType::kBF16,
                     DType::kF32, DType::kF64})
      m.out(m.b.cast(x, to));
    m.check({.scale = 40});
    ASSERT_FALSE(HasFailure()) << dtype_name(t);
  }
}

TEST(DeviceStructure_Transposes, MatchReference) {
  const std::vector<std::pair<Shape, std::vector<int64_t>>> cases = {
      {{33, 70}, {1, 0}},       {{64, 64}, {1, 0}}, {{3, 17, 40}, {0, 2, 1}},      {{3, 17, 40}, {2, 1, 0}},
      {{40, 3, 50}, {2, 0, 1}}, {{9, 100}, {1, 0}}, {{2, 3, 32, 48}, {0, 3, 1, 2}}};
  for (const auto& [shape, permutation] : cases) {
    for (DType t : {DType::kF32, DType::kF64, DType::kBF16, DType::kI64, DType::kBool}) {
      Maker m;
      m.out(m.b.transpose(m.in(shape, t), permutation));
      ValueId y = m.b.transpose(m.in(shape), permutation);
      m.out(m.b.add(m.b.emit("exp", {y}), m.in(m.b.shape(y))));
      for (ptx::Order order : kOrders) m.check({.order = order});
      ASSERT_FALSE(HasFailure()) << to_string(shape) << dtype_name(t);
    }
  }
}

TEST(DeviceReduction_AnyDims, MatchesReference) {
  const std::vector<std::pair<Shape, std::vector<int64_t>>> cases = {
      {{5, 7}, {1}},          {{5, 7}, {0}},     {{5, 7}, {0, 1}},     {{1000}, {0}},         {{40000}, {0}},
      {{300, 200}, {0, 1}},   {{3, 4, 50}, {1}}, {{3, 4, 50}, {0, 2}}, {{70, 3, 90}, {0, 2}}, {{2, 3, 4, 5}, {1, 3}},
      {{2, 3, 4, 5}, {0, 2}}, {{1, 1}, {0}},     {{3000, 70}, {0}},    {{0, 4}, {0}},         {{4, 0}, {1}},
      {{9, 1, 9}, {1}},       {{130, 257}, {1}}, {{100, 3}, {1}},      {{9, 20000}, {1}},     {{4, 70000}, {1}},
      {{90, 64}, {1}},        {{11, 768}, {1}},  {{6, 2048}, {1}}};
  for (const auto& [shape, dims] : cases) {
    for (DType t : {DType::kF32, DType::kF64, DType::kI32, DType::kI8}) {
      Maker m;
      ValueId x = m.in(shape, t);
      for (const char* op : {"reduce_max", "reduce_min"}) m.out(m.b.reduce(op, x, dims, false));
      if (t != DType::kI8) m.out(m.b.reduce("reduce_sum", x, dims, false));
      if (is_float(t) && elements(shape) < 500) m.out(m.b.reduce("reduce_prod", m.b.emit("cos", {x}), dims, false));
      m.check({.tolerance = t == DType::kF32 ? 4e-6 : 0, .slack = 1, .order = kOrders[elements(shape) % 3]});
      ASSERT_FALSE(HasFailure()) << to_string(shape) << to_string(dims) << dtype_name(t);
    }
  }
}

// As partial sums are added up: 32 threads have a column, each of them every 32nd row, and their sums are added in
// turn.
TEST(DeviceReduction_SumOfManyRows, AddsUpInOneOrder) {
  constexpr size_t kRows = 391, kColumns = 96, kThreads = 32;
  Maker m;
  m.out(m.b.reduce("reduce_sum", m.in({int64_t{kRows}, int64_t{kColumns}}), {0}, false));
  const Graph graph = m.b.graph();
  const TargetOptions target{.gpu = "sm_90"};
  const LocalProgram local = local_program(graph);
  const Tensor x = random_tensor(graph.type(graph.inputs[0].value), 1);
  for (ptx::Order order : kOrders) {
    auto program = emit_program(local, target);
    ASSERT_TRUE(program.ok()) << program.status();
    Interpreter interpreter(*std::move(program), order);
    interpreter.set_input(graph.inputs[0].name, x);
    interpreter.run();
    const Tensor found = interpreter.output(graph.outputs[0].name);
    for (size_t column = 0; column < kColumns; ++column) {
      float total = 0;
      for (size_t thread = 0; thread < kThreads; ++thread) {
        float sum = 0;
        for (size_t row = thread; row < kRows; row += kThreads) sum += static_cast<float>(x.f[row * kColumns + column]);
        total += sum;
      }
      ASSERT_EQ(found.f[column], static_cast<double>(total)) << column;
    }
  }
}

TEST(DeviceSoftmax_AnyDim, IsOneKernel) {
  for (auto [shape, dim] : std::vector<std::pair<Shape, int64_t>>{{{33, 65}, 1},
                                                                  {{4, 50, 40}, 1},
                                                                  {{1, 1}, 0},
                                                                  {{3, 1000}, 1},
                                                                  {{5, 3}, 0},
                                                                  {{2, 70000}, 1},
                                                                  {{7, 1024}, 1}}) {
    Maker m;
    m.out(m.b.emit("softmax", {m.in(shape)}, {{"dim", dim}}));
    for (ptx::Order order : kOrders) EXPECT_EQ(m.check({.order = order}), 1) << to_string(shape) << dim;
  }
}

TEST(DeviceLayerNorm_ForwardAndBackward, MatchesReference) {
  for (int64_t n : {1, 7, 700}) {  // more rows than units: several teams have one
    for (int64_t c : {1, 5, 64, 257, 768}) {
      Maker m;
      ValueId x = m.in({2, n, c}), residual = m.in({2, n, c}), scale = m.in({c}), bias = m.in({c}), g = m.in({2, n, c});
      ValueId h = m.b.add(x, residual);
      Attrs attrs{{"axis", int64_t{2}}, {"epsilon", 1e-5}};
      auto y = m.b.emit_all("layer_norm", {h, scale, bias}, attrs);
      for (ValueId v : y) m.out(v);
      m.out(h);
      std::vector<TensorType> types{m.b.type(h), m.b.type(scale), m.b.type(bias)};
      std::vector<ValueId> inputs{h, scale, bias}, gradients{g, kNoValue, kNoValue};
      m.b.context().segment = Segment::kBackward;
      const std::vector<ValueId> grads = find_op("layer_norm")->gradient({m.b, attrs, types, inputs, y, gradients});
      for (size_t k = c == 1 ? 1 : 0; k < grads.size(); ++k)
        m.out(grads[k]);  // of one element: what roundings leave of 0
      m.check({.tolerance = 1e-5, .slack = 1, .order = kOrders[(n + c) % 3]});
      ASSERT_FALSE(HasFailure()) << n << " " << c;
    }
  }
}

// A mask of two columns that only stores read, behind a branch. The interpreter has no local memory.
TEST(DeviceMask_OfTwoColumns, TakesNoLocalMemory) {
  Maker m;
  const Shape shape{70, 2};
  ValueId x = m.in(shape), mask = m.in(shape, DType::kBool);
  ValueId row = m.b.reduce_sum(x, {1}, true), y = m.b.sub(x, row);
  m.out(m.b.select(mask, y, m.b.scalar(DType::kF32, 0)));
  m.out(m.b.reduce_sum(m.b.mul(x, row), {0}, false));
  for (ptx::Order order : kOrders) m.check({.order = order});
}

TEST(DeviceCrossEntropy_ForwardAndBackward, MatchesReference) {
  Maker m;
  ValueId x = m.in({37, 1003}), labels = m.in({37}, DType::kI64), g = m.in({37});
  auto y = m.b.emit_all("cross_entropy", {x, labels});
  m.out(y[0]);
  m.b.context().segment = Segment::kBackward;
  m.out(m.b.emit("cross_entropy_grad", {g, x, labels, y[1]}));
  for (ptx::Order order : kOrders) m.check({.below = 1100, .order = order});
}

// Rows too long for registers, whose exponentials are added up while their maximum is found: a maximum that grows all
// along, one at the very end, none, and one that is infinite.
TEST(DeviceSumOfExponentials_LongRows, MatchesReference) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Maker m;
  const Shape shape{5, 66008};
  ValueId x = m.in(shape), at = m.b.emit("iota", {}, {{"size", shape[1]}, {"to", DType::kI64}}),
          row = m.b.reshape(m.b.emit("iota", {}, {{"size", shape[0]}, {"to", DType::kI64}}), {shape[0], 1});
  const auto number = [&](double v) { return m.b.scalar(DType::kF32, v); };
  const auto is = [&](ValueId i, int64_t n) {
    return m.b.emit("eq", {i, m.b.scalar(DType::kI64, static_cast<double>(n))});
  };
  const ValueId last = is(at, shape[1] - 1);
  x = m.b.select(is(row, 1), m.b.add(x, m.b.scale(m.b.cast(at, DType::kF32), 0.01)), x);
  x = m.b.select(is(row, 2), m.b.select(last, x, number(-kInfinity)), x);
  x = m.b.select(is(row, 3), number(-kInfinity), x);
  x = m.b.select(m.b.emit("and", {is(row, 4), last}), number(kInfinity), x);
  const ValueId most = m.b.reduce("reduce_max", x, {1}, true);
  const ValueId shift = m.b.select(m.b.emit("eq", {most, number(-kInfinity)}), number(0), most);
  m.out(most);
  m.out(m.b.reduce_sum(m.b.emit("exp", {m.b.sub(x, shift)}), {1}, false));
  for (ptx::Order order : kOrders) m.check({.order = order});
}

// Where a column's index is a number of the row, in vectors and without; numbers that no index is are nowhere, those
// whose lower half is an index among them.
TEST(DeviceIndex_ThatIsARowsNumber, IsFound) {
  constexpr int64_t kRows = 6;
  for (int64_t columns : {7, 64, 264}) {
    Maker m;
    ValueId x = m.in({kRows, columns}, DType::kBF16);
    ValueId at = m.b.constant(to_literal(
        {{DType::kI64, {kRows, 1}}, {}, {0, columns - 1, -1, columns, (int64_t{1} << 32) + 3, -(int64_t{1} << 32)}}));
    ValueId index = m.b.emit("iota", {}, {{"size", columns}, {"to", DType::kI64}});
    ValueId found = m.b.select(m.b.emit("eq", {index, at}), x, m.b.scalar(DType::kBF16, 0));
    m.out(found);
    m.out(m.b.reduce_sum(m.b.cast(found, DType::kF32), {1}, false));
    m.check();
    ASSERT_FALSE(HasFailure()) << columns;
  }
}

// A maximum is NaN where a term is.
TEST(DeviceExtremum_OfNaN, IsNaN) {
  Maker m;
  ValueId x = m.in({40, 9}), spoiled = m.b.emit("sqrt", {m.b.add_scalar(x, 1.5)});  // some rows have none
  for (const char* op : {"reduce_max", "reduce_min"}) m.out(m.b.reduce(op, spoiled, {1}, false));
  for (const char* op : {"max", "min"}) m.out(m.b.emit(op, {spoiled, x})), m.out(m.b.emit(op, {x, spoiled}));
  m.check();
}

TEST(DeviceRandom_Uniform, EqualsReference) {
  Maker m;
  ValueId i = m.b.emit("iota", {}, {{"size", int64_t{1000}}, {"to", DType::kI64}}), step = m.in({}, DType::kI64);
  m.out(m.b.emit("uniform", {i, step}, {{"seed", int64_t{5}}, {"instance", int64_t{9}}}));
  m.out(m.b.emit("normal", {i, step}, {{"seed", int64_t{5}}, {"instance", int64_t{9}}}));
  m.check();
}

TEST(DeviceRandomGraph_Program, ComputesWhatTheReferenceDoes) {
  for (uint64_t seed = 1; seed <= sample_or_all<uint64_t>(60, 300); ++seed) {
    CompareOptions options{.tolerance = 2e-5, .slack = 1, .order = kOrders[seed % 3]};
    options.target = {.gpu = "sm_90", .fuse = seed % 7 != 0, .in_place = seed % 4 != 0};
    compare_with_reference(random_graph(seed, 30), options);
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
}

TEST(DeviceRandomGraph_Strict, HasTheBitsOfSingleNodes) {
  for (uint64_t seed = 1; seed <= sample_or_all<uint64_t>(12, 300); ++seed) {
    for (const Graph& graph : {random_graph(seed, 30), random_rows(seed, 12)}) {
      expect_bits_of_single_nodes(graph, {.target = {.gpu = "sm_80", .strict = true}, .order = kOrders[seed % 3]});
      ASSERT_FALSE(HasFailure()) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace partita
