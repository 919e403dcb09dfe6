// Programs made of loop nests against the reference evaluator: odd sizes, broadcasting, index functions, reductions of
// every kind.
#include <gtest/gtest.h>

#include "codegen/fuse/fusion.h"
#include "tests/codegen/support/graph_maker.h"

namespace partita {
namespace {

const std::vector<Shape> kShapes = {{},      {1},       {3},      {17},      {1000},      {20001}, {2, 3},
                                    {17, 1}, {1, 1000}, {33, 65}, {3, 5, 7}, {2, 1, 130}, {0},     {3, 0, 2}};

TEST(Elementwise_AnyShape, MatchesReference) {
  for (const Shape& shape : kShapes) {
    for (DType t : {DType::kF32, DType::kF64}) {
      GraphMaker m;
      ValueId x = m.in(shape, t), y = m.in(shape, t);
      m.out(m.b.add(m.b.mul(x, y), m.b.emit("tanh", {x})));
      m.out(m.b.emit("gelu", {m.b.sub(x, y)}, {{"approximate", int64_t{0}}}));
      m.check();
      ASSERT_FALSE(HasFailure()) << to_string(shape);
    }
  }
}

TEST(Elementwise_EveryFunction, MatchesReference) {
  for (DType t : {DType::kF32, DType::kF64}) {
    for (const char* cpu : {"host", "x86-64-v3"}) {
      GraphMaker m;
      ValueId x = m.in({300}, t), y = m.in({300}, t);
      ValueId positive = m.b.add_scalar(m.b.emit("abs", {x}), 0.01), small = m.b.emit("tanh", {x});
      for (const char* op : {"neg",  "abs",  "sign",    "exp", "expm1", "sin",  "cos",      "tan",   "atan", "sinh",
                             "cosh", "tanh", "sigmoid", "erf", "relu",  "silu", "softplus", "floor", "ceil", "round"}) {
        m.out(m.b.emit(op, {x}));
      }
      for (const char* op : {"log", "log1p", "sqrt", "rsqrt"}) m.out(m.b.emit(op, {positive}));
      for (const char* op : {"asin", "acos"}) m.out(m.b.emit(op, {small}));
      for (const char* op : {"add", "sub", "mul", "div", "max", "min", "mod"}) m.out(m.b.emit(op, {x, y}));
      m.out(m.b.emit("pow", {positive, y}));
      for (const char* op : {"eq", "ne", "lt", "le"}) m.out(m.b.emit(op, {x, y}));
      m.out(m.b.select(m.b.emit("lt", {x, y}), x, y));
      m.check({.target = {.cpu = cpu}, .tolerance = t == DType::kF32 ? 4e-6 : 1e-12, .slack = 3e-2});
    }
  }
}

TEST(Elementwise_Integers, MatchReference) {
  for (DType t :
       {DType::kI8, DType::kU8, DType::kI16, DType::kU16, DType::kI32, DType::kU32, DType::kI64, DType::kU64}) {
    GraphMaker m;
    ValueId x = m.in({77}, t), y = m.in({77}, t);
    for (const char* op : {"add", "sub", "mul", "div", "max", "min", "mod", "pow", "and", "or", "xor"})
      m.out(m.b.emit(op, {x, y}));
    if (is_unsigned(t)) m.out(m.b.emit("shl", {x, y})), m.out(m.b.emit("shr", {x, y}));
    m.out(m.b.emit("not", {x}));
    m.out(m.b.emit("eq", {x, y}));
    m.out(m.b.emit("lt", {x, y}));
    for (DType to : {DType::kBool, DType::kI8, DType::kI64, DType::kF32, DType::kF64, DType::kF16})
      m.out(m.b.cast(x, to));
    m.check();
    ASSERT_FALSE(HasFailure()) << dtype_name(t);
  }
}

TEST(Elementwise_Casts, MatchReference) {
  for (DType t : {DType::kBool, DType::kF16, DType::kBF16, DType::kF32, DType::kF64}) {
    for (const char* cpu : {"host", "x86-64-v3"}) {
      GraphMaker m;
      ValueId x = m.in({133}, t);
      for (DType to : {DType::kBool, DType::kI8, DType::kU8, DType::kI16, DType::kI32, DType::kI64, DType::kF16,
                       DType::kBF16, DType::kF32, DType::kF64})
        m.out(m.b.cast(x, to));
      m.check({.target = {.cpu = cpu}, .scale = 40});
      ASSERT_FALSE(HasFailure()) << dtype_name(t) << " " << cpu;
    }
  }
}

TEST(Elementwise_Broadcast, MatchesReference) {
  const std::vector<std::pair<Shape, Shape>> cases = {{{4, 5, 6}, {6}}, {{4, 5, 6}, {5, 1}}, {{4, 1, 6}, {1, 5, 1}},
                                                      {{7}, {3, 1}},    {{}, {3, 4}},        {{2, 3, 40}, {2, 1, 1}},
                                                      {{1}, {1, 1, 1}}, {{5000, 1}, {1, 3}}};
  for (const auto& [a, c] : cases) {
    GraphMaker m;
    ValueId x = m.in(a), y = m.in(c);
    m.out(m.b.mul(m.b.add(x, y), y));
    m.out(m.b.broadcast_to(m.b.emit("exp", {x}), *broadcast_shapes(a, c)));
    m.check();
    ASSERT_FALSE(HasFailure()) << to_string(a) << to_string(c);
  }
}

TEST(Structure_IndexFunctions, MatchReference) {
  for (bool fuse : {true, false}) {
    GraphMaker m;
    ValueId x = m.in({4, 6, 10});
    auto ints = [](std::vector<int64_t> v) { return v; };
    m.out(m.b.transpose(x, {2, 1, 0}));
    m.out(m.b.emit("exp", {m.b.transpose(x, {1, 0, 2})}));
    m.out(m.b.emit("slice", {x},
                   {{"starts", ints({1, 0, 3})}, {"limits", ints({3, 6, 9})}, {"strides", ints({1, 2, 3})}}));
    m.out(m.b.emit("reverse", {x}, {{"dims", ints({0, 2})}}));
    ValueId p =
        m.b.emit("pad", {x, m.b.scalar(DType::kF32, 2.5)}, {{"low", ints({1, 0, 2})}, {"high", ints({0, 3, 1})}});
    m.out(m.b.mul(p, p));
    ValueId y = m.in({4, 1, 10}), z = m.in({4, 2, 10});
    ValueId c = m.b.emit("concat", {x, m.b.emit("neg", {y}), z}, {{"dim", int64_t{1}}});
    m.out(m.b.emit("exp", {c}));
    m.out(m.b.reshape(m.b.transpose(c, {1, 0, 2}), {18, 20}));
    ValueId i = m.b.emit("iota", {}, {{"size", int64_t{10}}, {"to", DType::kF32}});
    m.out(m.b.add(x, i));
    m.out(m.b.emit("lt", {m.b.reshape(i, {10, 1}), i}));
    m.out(m.b.reshape(m.b.add(x, x), {24, 10}));
    m.check({.target = {.fuse = fuse}});
  }
}

TEST(Structure_ReshapesThatFollowNoLoop, AreStoredFirst) {
  for (bool fuse : {true, false}) {
    GraphMaker m;
    ValueId x = m.in({6, 4, 5});
    ValueId t = m.b.transpose(x, {1, 0, 2});
    m.out(m.b.emit("exp", {m.b.reshape(t, {8, 3, 5})}));
    ValueId rows = m.b.emit("slice", {m.b.reshape(t, {3, 8, 5})},
                            {{"starts", std::vector<int64_t>{0, 1, 0}},
                             {"limits", std::vector<int64_t>{3, 4, 5}},
                             {"strides", std::vector<int64_t>{1, 1, 1}}});
    m.out(m.b.emit("neg", {rows}));
    m.out(m.b.reduce_sum(m.b.reshape(m.b.broadcast_to(m.in({4, 1}), {4, 6}), {8, 3}), {1}, false));
    m.out(m.b.reshape(m.b.emit("exp", {m.b.transpose(x, {2, 1, 0})}), {8, 15}));
    m.check({.target = {.fuse = fuse}});
  }
}

TEST(Structure_Transposes, MatchReference) {
  const std::vector<std::pair<Shape, std::vector<int64_t>>> cases = {
      {{33, 70}, {1, 0}},       {{64, 64}, {1, 0}}, {{3, 17, 40}, {0, 2, 1}},      {{3, 17, 40}, {2, 1, 0}},
      {{40, 3, 50}, {2, 0, 1}}, {{9, 100}, {1, 0}}, {{2, 3, 32, 48}, {0, 3, 1, 2}}};
  for (const auto& [shape, permutation] : cases) {
    for (DType t : {DType::kF32, DType::kF64, DType::kBF16, DType::kI64, DType::kBool}) {
      for (const char* cpu : {"host", "x86-64-v3"}) {
        GraphMaker m;
        ValueId x = m.in(shape, t);
        m.out(m.b.transpose(x, permutation));
        ValueId y = m.b.transpose(m.in(shape), permutation);
        m.out(m.b.add(m.b.emit("exp", {y}), m.in(m.b.shape(y))));
        m.check({.target = {.cpu = cpu}});
        ASSERT_FALSE(HasFailure()) << to_string(shape) << dtype_name(t) << cpu;
      }
    }
  }
}

TEST(Structure_SlicesPaddedBackTogether, IsOneSweep) {
  // The gradient of a split: padded parts added up.
  GraphMaker m;
  ValueId total = kNoValue;
  for (int k = 0; k < 3; ++k) {
    ValueId part = m.b.emit("exp", {m.in({5, 16})});
    ValueId padded =
        m.b.emit("pad", {part, m.b.scalar(DType::kF32, 0)},
                 {{"low", std::vector<int64_t>{0, 16 * k}}, {"high", std::vector<int64_t>{0, 16 * (2 - k)}}});
    total = total == kNoValue ? padded : m.b.add(total, padded);
  }
  m.out(total);
  EXPECT_EQ(m.check(), 3);  // one box for each part
}

TEST(Reduction_AnyDims, MatchesReference) {
  const std::vector<std::pair<Shape, std::vector<int64_t>>> cases = {
      {{5, 7}, {1}},          {{5, 7}, {0}},     {{5, 7}, {0, 1}},     {{1000}, {0}},         {{40000}, {0}},
      {{300, 200}, {0, 1}},   {{3, 4, 50}, {1}}, {{3, 4, 50}, {0, 2}}, {{70, 3, 90}, {0, 2}}, {{2, 3, 4, 5}, {1, 3}},
      {{2, 3, 4, 5}, {0, 2}}, {{1, 1}, {0}},     {{3000, 70}, {0}},    {{0, 4}, {0}},         {{4, 0}, {1}},
      {{4, 0}, {0}},          {{9, 1, 9}, {1}},  {{130, 257}, {1}},    {{100, 3}, {1}},       {{33, 20000}, {1}}};
  for (const auto& [shape, dims] : cases) {
    for (DType t : {DType::kF32, DType::kF64, DType::kI32}) {
      for (bool keep : {false, true}) {
        GraphMaker m;
        ValueId x = m.in(shape, t);
        for (const char* op : {"reduce_sum", "reduce_max", "reduce_min"}) m.out(m.b.reduce(op, x, dims, keep));
        if (is_float(t) && elements(shape) < 500) m.out(m.b.reduce("reduce_prod", m.b.emit("cos", {x}), dims, keep));
        m.check({.tolerance = t == DType::kF32 ? 4e-6 : 0, .slack = 1});
        ASSERT_FALSE(HasFailure()) << to_string(shape) << to_string(dims) << dtype_name(t);
      }
    }
  }
}

TEST(Reduction_NaN, IsKept) {
  GraphMaker m;
  ValueId x = m.in({3, 40});
  ValueId nan = m.b.emit("log", {x});  // NaN where x < 0
  m.out(m.b.reduce("reduce_max", nan, {1}, false));
  m.out(m.b.reduce("reduce_min", nan, {0}, false));
  m.check();
}

// Constants of one nest that are equal, but not the same bits.
TEST(Constants_ZerosOfBothSigns, AreTwo) {
  GraphMaker m;
  const ValueId x = m.in({3, 40});
  const auto angle = [&](double zero) { return m.b.emit("atan", {m.b.div(x, m.b.scalar(DType::kF32, zero))}); };
  m.out(m.b.emit("max", {angle(0.0), angle(-0.0)}));  // a quarter turn on either side of 0
  EXPECT_EQ(m.check(), 1);
}

// The exponentials wait in the output of the quotients, and the quotients are wanted after they have taken that place.
TEST(Softmax_UsedByLaterSums, IsReadAfterItIsStored) {
  for (const Shape& shape : {Shape{8, 3}, Shape{5, 130}}) {
    GraphMaker m;
    ValueId x = m.in(shape), y = m.in(shape);
    ValueId e = m.b.emit("exp", {m.b.sub(y, m.b.reduce("reduce_max", y, {1}, true))});
    ValueId s = m.b.div(e, m.b.reduce_sum(e, {1}, true));
    m.out(s);
    ValueId t = m.b.reduce_sum(m.b.mul(s, x), {1}, true);
    m.out(m.b.sub(s, m.b.mul(m.b.emit("exp", {x}), t)));
    m.check();
  }
}

TEST(Softmax_AnyDim, IsOneKernel) {
  for (auto [shape, dim] : std::vector<std::pair<Shape, int64_t>>{
           {{33, 65}, 1}, {{4, 50, 40}, 1}, {{1, 1}, 0}, {{3, 1000}, 1}, {{5, 3}, 0}, {{2, 70000}, 1}}) {
    for (DType t : {DType::kF32, DType::kF64}) {
      GraphMaker m;
      m.out(m.b.emit("softmax", {m.in(shape, t)}, {{"dim", dim}}));
      EXPECT_EQ(m.check(), 1) << to_string(shape) << dim;
    }
  }
}

TEST(LayerNorm_ForwardAndBackward, AreOneKernelEach) {
  for (int64_t n : {1, 7, 300}) {
    for (int64_t c : {1, 5, 64, 257}) {
      GraphMaker m;
      ValueId x = m.in({2, n, c}), residual = m.in({2, n, c}), scale = m.in({c}), bias = m.in({c}), g = m.in({2, n, c});
      ValueId h = m.b.add(x, residual);
      auto y = m.b.emit_all("layer_norm", {h, scale, bias}, {{"axis", int64_t{2}}, {"epsilon", 1e-5}});
      for (ValueId v : y) m.out(v);
      m.out(h);
      const OpDef* op = find_op("layer_norm");
      Attrs attrs{{"axis", int64_t{2}}, {"epsilon", 1e-5}};
      std::vector<TensorType> types{m.b.type(h), m.b.type(scale), m.b.type(bias)};
      std::vector<ValueId> inputs{h, scale, bias}, gradients{g, kNoValue, kNoValue};
      m.b.context().segment = Segment::kBackward;
      for (ValueId v : op->gradient({m.b, attrs, types, inputs, y, gradients})) m.out(v);
      m.check({.tolerance = 1e-5, .slack = 1});
      ASSERT_FALSE(HasFailure()) << n << " " << c;
    }
  }
}

TEST(CrossEntropy_ForwardAndBackward, MatchesReference) {
  GraphMaker m;
  ValueId x = m.in({37, 1003}), labels = m.in({37}, DType::kI64), g = m.in({37});
  auto y = m.b.emit_all("cross_entropy", {x, labels});
  m.out(y[0]);
  m.b.context().segment = Segment::kBackward;
  m.out(m.b.emit("cross_entropy_grad", {g, x, labels, y[1]}));
  EXPECT_EQ(m.check({.below = 1100}), 2);
}

TEST(BatchNorm_Forward, MatchesReference) {
  for (Shape shape : {Shape{4, 3, 5, 6}, Shape{16, 5}, Shape{2, 70, 3}}) {
    GraphMaker m;
    auto y = m.b.emit_all("batch_norm", {m.in(shape), m.in({shape[1]}), m.in({shape[1]})}, {{"epsilon", 1e-5}});
    for (ValueId v : y) m.out(v);
    m.check({.tolerance = 1e-5, .slack = 1});
  }
}

// k and the sum that reads it much later are one group, which waits for f over the second product. So the first
// product, which stands before f, waits for f too, and the last sum must not join f.
TEST(Fusion_GroupsOverProducts, DoNotWaitForEachOther) {
  GraphMaker m;
  ValueId x = m.in({8, 8}), y = m.in({8, 8});
  ValueId k = m.b.emit("tanh", {x});
  ValueId first = m.b.emit("matmul", {k, y});
  ValueId f = m.b.emit("exp", {x});
  ValueId second = m.b.emit("matmul", {f, y});
  m.out(m.b.add(k, second));
  m.out(m.b.add(f, first));
  m.check({.slack = 1e-3});
}

// The other stages of a pipeline wait for it. A sum over data-parallel ranks is dropped by all of them alike.
TEST(Fusion_SumOverStages, IsRunWhereNothingReadsIt) {
  GraphMaker m;
  const ValueId x = m.in({8});
  for (int64_t axis : {0, 1})
    m.b.emit_all("all_reduce", {x}, {{"axes", std::vector<int64_t>{axis}}, {"parts", int64_t{2}}, {"reduce", "sum"}});
  m.out(m.b.emit("tanh", {x}));
  CodeGraph code(m.b.graph());
  int sums = 0;
  for (const FusedItem& item : fuse(code, {.stage_axis = 1})) {
    const Node& node = code.graph.nodes[item.nodes[0]];
    if (!node.op->communicates) continue;
    ++sums;
    EXPECT_EQ(node.attrs.ints("axes")[0], 1);
  }
  EXPECT_EQ(sums, 1);
}

TEST(Random_Uniform, EqualsReference) {
  GraphMaker m;
  ValueId i = m.b.emit("iota", {}, {{"size", int64_t{1000}}, {"to", DType::kI64}}), step = m.in({}, DType::kI64);
  m.out(m.b.emit("uniform", {i, step}, {{"seed", int64_t{5}}, {"instance", int64_t{9}}}));
  m.out(m.b.emit("normal", {i, step}, {{"seed", int64_t{5}}, {"instance", int64_t{9}}}));
  m.check();
}

TEST(States_Update, IsInPlace) {
  Builder b;
  ValueId p = b.state({.name = "p"}, {DType::kF32, {300}}),
          m = b.state({.name = "m", .kind = StateKind::kOptimizer}, {DType::kF32, {300}});
  ValueId swapped = b.state({.name = "a"}, {DType::kF32, {7}}), other = b.state({.name = "b"}, {DType::kF32, {7}});
  ValueId g = b.input("g", {DType::kF32, {300}}, InputKind::kCoordinate);  // of no micro-batch
  b.context().segment = Segment::kUpdate;
  ValueId m2 = b.add(b.scale(m, 0.9), g);
  b.set_next("m", m2);
  b.set_next("p", b.sub(p, b.scale(m2, 0.1)));
  b.set_next("a", b.add(other, other));
  b.set_next("b", b.mul(swapped, swapped));
  b.output("old", b.reduce_sum(p, {0}, false));
  compare_with_reference(b.graph());
  auto program = emit_program(local_program(b.graph()));
  ASSERT_TRUE(program.ok());
  EXPECT_LE(program->region_bytes[static_cast<int>(runtime::Region::kArena)], 256);
}

TEST(States_SwappedAndWatched, KeepTheirOldValuesAsLongAsNeeded) {
  Builder b;
  TensorType t{DType::kF32, {50}};
  ValueId a = b.state({.name = "a"}, t), c = b.state({.name = "c"}, t), d = b.state({.name = "d"}, t);
  b.state({.name = "e"}, t);
  b.context().segment = Segment::kUpdate;
  b.set_next("a", c);  // a swap
  b.set_next("c", a);
  b.set_next("d", b.emit("exp", {d}));
  b.set_next("e", d);  // follows d by one step
  b.output("old_d", d);
  b.output("old_a", a);
  b.output("new_d", b.graph().states[2].next);
  compare_with_reference(b.graph());
}

TEST(Matmul_WithEpilogue, MatchesReference) {
  GraphMaker m;
  ValueId x = m.in({2, 9, 8}), w = m.in({8, 12}), bias = m.in({12});
  ValueId y = m.b.reshape(m.b.matmul(m.b.reshape(x, {18, 8}), w), {2, 9, 12});
  m.out(m.b.emit("gelu", {m.b.add(y, bias)}, {{"approximate", int64_t{1}}}));
  m.out(m.b.matmul(m.b.transpose(y, {0, 2, 1}), x));
  m.check({.tolerance = 1e-5});
}

}  // namespace
}  // namespace partita
