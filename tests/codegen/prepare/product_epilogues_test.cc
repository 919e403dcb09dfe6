// Products that do what follows them: which ones are found, their numbers, and cuBLASLt's part on one that is this
// machine.
#include "codegen/prepare/product_epilogues.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "ir/graph/builder.h"
#include "ir/graph/verify.h"
#include "runtime/program/params.h"
#include "tests/codegen/support/cuda_on_host.h"
#include "tests/codegen/support/interpreter.h"
#include "tests/codegen/support/product_reference.h"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

using runtime::Step;
using testing::ElementsAre;

// Epilogues of the products of a GPU's program, in its order.
std::vector<std::string> epilogues(const Graph& graph) {
  std::vector<std::string> found;
  for (const Node& node : fuse_products(graph).graph.nodes) {
    if (node.op->name == "matmul") found.push_back(node.attrs.s("epilogue", ""));
  }
  return found;
}

// Two layers with a GELU between them, and their gradients; `narrow`: products in bf16, sums with biases in f32.
Graph perceptron(bool narrow, const char* gelu_form = "tanh") {
  constexpr int64_t kRows = 24, kIn = 16, kHidden = 40, kOut = 8;
  const DType t = narrow ? DType::kBF16 : DType::kF32;
  const Attrs gelu = {{"approximate", int64_t{gelu_form == std::string("tanh")}}};
  Builder b;
  ValueId x = b.input("x", {t, {kRows, kIn}}), g = b.input("g", {t, {kRows, kOut}});
  ValueId w = b.state({.name = "w"}, {t, {kIn, kHidden}}), v = b.state({.name = "v"}, {t, {kOut, kHidden}});
  ValueId c = b.state({.name = "c"}, {DType::kF32, {kHidden}}), d = b.state({.name = "d"}, {DType::kF32, {kOut}});
  const auto with_bias = [&](ValueId product, ValueId bias) {
    return narrow ? b.cast(b.add(b.cast(product, DType::kF32), bias), t) : b.add(product, bias);
  };
  ValueId p = with_bias(b.matmul(x, w), c), h = b.emit("gelu", {b.reshape(p, {4, 6, kHidden})}, gelu);
  ValueId h2 = b.reshape(h, {kRows, kHidden});
  b.output("y", with_bias(b.matmul(h2, v, false, true), d));
  b.context().segment = Segment::kBackward;
  ValueId dp = b.emit("gelu_grad", {b.reshape(b.matmul(g, v), {4, 6, kHidden}), b.reshape(p, {4, 6, kHidden})}, gelu);
  b.context().weight_gradient = true;
  ValueId sums = b.reduce_sum(narrow ? b.cast(dp, DType::kF32) : dp, {0, 1}, false);
  b.output("dc", sums);
  b.output("dd", b.reduce_sum(narrow ? b.cast(g, DType::kF32) : g, {0}, false));
  b.output("dw", b.matmul(x, b.reshape(dp, {kRows, kHidden}), true, false));
  b.output("dv", b.matmul(g, h2, true, false));
  return std::move(b).finish();
}

TEST(ProductEpilogues_Perceptron, AreFoundInEveryProduct) {
  EXPECT_THAT(epilogues(perceptron(false)),
              ElementsAre("bias+gelu_tanh+aux", "bias", "gelu_tanh_grad", "sum_b", "sum_a"));
  // Sums of biases' gradients are in f32, the products in bf16.
  EXPECT_THAT(epilogues(perceptron(true)), ElementsAre("bias+gelu_tanh+aux", "bias", "gelu_tanh_grad", "", ""));
  EXPECT_THAT(epilogues(perceptron(false, "erf")), ElementsAre("bias", "bias", "", "sum_b", "sum_a"));
}

TEST(ProductEpilogues_Perceptron, HasItsNumbersWithFewerKernels) {
  for (bool narrow : {false, true}) {
    const double tolerance = narrow ? 4e-2 : 0;  // sums of products that are rounded on the way
    const int with = compare_with_reference(perceptron(narrow), {.target = {.gpu = "sm_90"}, .tolerance = tolerance});
    const int without = compare_with_reference(
        perceptron(narrow), {.target = {.gpu = "sm_90", .epilogues = false}, .tolerance = tolerance});
    EXPECT_LT(with, without) << narrow;
  }
}

// One product in f32 and what is made of it.
std::vector<std::string> epilogues_of(const std::function<void(Builder&, ValueId product, ValueId bias)>& follow,
                                      DType type = DType::kF32, int64_t columns = 16) {
  Builder b;
  ValueId x = b.input("x", {type, {4, 8}}), w = b.state({.name = "w"}, {type, {8, columns}});
  ValueId bias = b.state({.name = "bias"}, {type, {columns}});
  follow(b, b.matmul(x, w), bias);
  return epilogues(std::move(b).finish());
}

TEST(ProductEpilogues_OtherReaders, KeepTheProductAsItIs) {
  EXPECT_THAT(epilogues_of([](Builder& b, ValueId p, ValueId c) { b.output("y", b.add(p, c)), b.output("p", p); }),
              ElementsAre(""));
  EXPECT_THAT(epilogues_of([](Builder& b, ValueId p, ValueId c) {
                b.output("y", b.add(p, c)), b.output("z", b.emit("exp", {p}));
              }),
              ElementsAre(""));
  EXPECT_THAT(epilogues_of([](Builder& b, ValueId p, ValueId c) {
                b.output("y", b.add(p, c)), b.output("z", b.add(p, b.emit("exp", {c})));
              }),
              ElementsAre(""));
  EXPECT_THAT(epilogues_of([](Builder& b, ValueId p, ValueId c) { b.output("y", b.sub(p, c)); }), ElementsAre(""));
  // Not one value for each column: one for each row of what the product is seen as.
  EXPECT_THAT(epilogues_of([](Builder& b, ValueId p, ValueId) {
                b.output("y", b.add(b.reshape(p, {16, 4}), b.state({.name = "r"}, {DType::kF32, {4}})));
              }),
              ElementsAre(""));
  EXPECT_THAT(epilogues_of([](Builder& b, ValueId p, ValueId c) { b.output("y", b.add(p, c)); }, DType::kF64),
              ElementsAre(""));
  // cuBLASLt's rows of what goes with a GELU are multiples of 8.
  EXPECT_THAT(epilogues_of(
                  [](Builder& b, ValueId p, ValueId c) {
                    b.output("y", b.emit("gelu", {b.add(p, c)}, {{"approximate", int64_t{1}}}));
                  },
                  DType::kF32, 12),
              ElementsAre("bias"));
}

TEST(ProductEpilogues_GeluThatNothingElseNeeds, WritesNothingBesides) {
  EXPECT_THAT(epilogues_of([](Builder& b, ValueId p, ValueId c) {
                b.output("y", b.emit("gelu", {b.add(p, c)}, {{"approximate", int64_t{1}}}));
              }),
              ElementsAre("bias+gelu_tanh"));
  EXPECT_THAT(epilogues_of([](Builder& b, ValueId p, ValueId) {
                b.output("y", b.emit("gelu", {p}, {{"approximate", int64_t{1}}})), b.output("p", p);
              }),
              ElementsAre("gelu_tanh+aux"));
}

// The narrow copy of its bias is made once, before all micro-batches, and is no gradient.
TEST(ProductEpilogues_ProductComputedAgainForAWeight, TakesABiasThatIsMadeEarly) {
  Builder b;
  ValueId x = b.input("x", {DType::kBF16, {24, 16}}), w = b.state({.name = "w"}, {DType::kF32, {16, 40}}),
          c = b.state({.name = "c"}, {DType::kF32, {40}});
  b.context().segment = Segment::kPrologue;
  ValueId narrow = b.cast(w, DType::kBF16);
  b.context().segment = Segment::kBackward, b.context().weight_gradient = true;
  b.output("y", b.cast(b.add(b.cast(b.matmul(x, narrow), DType::kF32), c), DType::kBF16));
  const Graph graph = std::move(b).finish(), now = fuse_products(graph).graph;
  EXPECT_THAT(epilogues(graph), ElementsAre("bias"));
  const absl::Status sound = verify(now, Phase::kRank);
  EXPECT_TRUE(sound.ok()) << sound;
}

// The gradient of a weight that is added up over micro-batches, and of its bias beside it.
TEST(ProductEpilogues_Accumulation, KeepsBoth) {
  Builder b;
  ValueId x = b.input("x", {DType::kF32, {16, 24}}), g = b.input("g", {DType::kF32, {16, 8}});
  ValueId dw = b.state({.name = "dw"}, {DType::kF32, {24, 8}});
  ValueId dc = b.state({.name = "dc"}, {DType::kF32, {8}});
  b.context().segment = Segment::kBackward;
  ValueId sums = b.reduce_sum(g, {0}, false);
  b.set_next("dw", b.emit("accumulate", {dw, b.matmul(x, g, true, false)}));
  b.set_next("dc", b.emit("accumulate", {dc, sums}));
  const Graph graph = std::move(b).finish();
  auto program = emit_program(local_program(graph), {.gpu = "sm_90"});
  ASSERT_TRUE(program.ok()) << program.status();
  std::vector<std::string> found;
  for (const auto& segment : program->segments) {
    for (const Step& s : segment.steps) {
      if (s.kind == runtime::StepKind::kLibrary) found.push_back(runtime::text_param(s.params, "epilogue", ""));
    }
  }
  EXPECT_THAT(found, ElementsAre("accumulate+sum_b"));
  compare_with_reference(graph, {.target = {.gpu = "sm_90"}});
}

#ifdef PARTITA_STAND_INS

template <typename F>
F* in_cublas(const char* name) {
  void* library = ::dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL);
  auto* function = library == nullptr ? nullptr : reinterpret_cast<F*>(::dlsym(library, name));
  EXPECT_NE(function, nullptr) << name;
  return function;
}

struct Case {
  const char* epilogue;
  bool transpose_a;
  int inputs;
  std::vector<std::vector<int64_t>> shapes;  // of inputs and results
};
constexpr int64_t kM = 24, kN = 16, kK = 10;

// What follows a product joins it where that is faster; later starts do as the first one.
TEST(CudaProduct_Tune, SaysWhetherWhatFollowsJoins) {
  Step step;
  step.kind = runtime::StepKind::kLibrary;
  step.name = "matmul";
  step.inputs = 3;
  step.params = {{"epilogue", std::string("bias+gelu_tanh")}};
  std::vector<Tensor> inputs;
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{{kM, kK}, {kK, kN}, {kN}, {kM, kN}}) {
    step.operands.push_back({{}, DType::kF32, shape});
    if (inputs.size() < 3) inputs.push_back(random_tensor({DType::kF32, shape}, inputs.size() + 1));
  }
  const Tensor held = Tensor::zeros({DType::kF32, {kM, kN}});
  const auto joined = in_cublas<int64_t()>("partita_cublas_epilogues");
  const auto slow = in_cublas<void(int)>("partita_cublas_slow_epilogues");
  for (const bool slowly : {false, true}) {
    TempFolder folder;
    const std::string file = folder / "tuned.json";
    slow(slowly);
    const std::vector<Tensor> first = run_step_on_cuda(step, inputs, held, file);
    slow(!slowly);  // nothing is timed again
    const int64_t before = joined();
    const std::vector<Tensor> later = run_step_on_cuda(step, inputs, held, file);
    slow(0);
    EXPECT_EQ(first[0].f, later[0].f);
    if (slowly) {
      EXPECT_EQ(joined() - before, 0);
    } else {
      EXPECT_EQ(joined() - before, 1);
    }
  }
}

// By cuBLASLt, and by kernels of our own where it has no algorithm.
TEST(CudaProduct_Epilogue, IsThatOfTheReference) {
  const Case cases[] = {
      {"bias", false, 3, {{kM, kK}, {kK, kN}, {kN}, {kM, kN}}},
      {"bias+relu", false, 3, {{kM, kK}, {kK, kN}, {kN}, {kM, kN}}},
      {"gelu_tanh", false, 2, {{kM, kK}, {kK, kN}, {kM, kN}}},
      {"bias+gelu_tanh", false, 3, {{kM, kK}, {kK, kN}, {kN}, {kM, kN}}},
      {"bias+gelu_tanh+aux", false, 3, {{kM, kK}, {kK, kN}, {kN}, {kM, kN}, {kM, kN}}},
      {"gelu_tanh_grad", false, 3, {{kM, kK}, {kK, kN}, {4, 6, kN}, {kM, kN}}},
      {"sum_a", true, 2, {{kK, kM}, {kK, kN}, {kM, kN}, {kM}}},
      {"sum_b", true, 2, {{kK, kM}, {kK, kN}, {kM, kN}, {kN}}},
      {"accumulate+sum_b", true, 2, {{kK, kM}, {kK, kN}, {kM, kN}, {kN}}},
  };
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const Case& c : cases) {
      Step step;
      step.kind = runtime::StepKind::kLibrary;
      step.name = "matmul";
      step.inputs = c.inputs;
      step.params = {{"epilogue", std::string(c.epilogue)}, {"transpose_a", int64_t{c.transpose_a}}};
      std::vector<Tensor> inputs;
      for (size_t k = 0; k < c.shapes.size(); ++k) {
        step.operands.push_back({{}, dtype, c.shapes[k]});
        if (k < static_cast<size_t>(c.inputs)) inputs.push_back(random_tensor({dtype, c.shapes[k]}, k + 1));
      }
      const Tensor held = random_tensor({dtype, {kM, kN}}, 9);
      const std::vector<Tensor> expected = evaluate_product(step, inputs, held);
      for (const bool apart : {false, true}) {
        in_cublas<void(int)>("partita_cublas_without_epilogues")(apart);
        const int64_t before = in_cublas<int64_t()>("partita_cublas_epilogues")();
        const std::vector<Tensor> found = run_step_on_cuda(step, inputs, held);
        in_cublas<void(int)>("partita_cublas_without_epilogues")(0);
        EXPECT_EQ(in_cublas<int64_t()>("partita_cublas_epilogues")() - before, apart ? 0 : 1) << c.epilogue;
        ASSERT_EQ(found.size(), expected.size()) << c.epilogue;
        const double tolerance = dtype == DType::kF32 ? 1e-5 : apart ? 3e-2 : 1e-2;
        for (size_t r = 0; r < found.size(); ++r) {
          for (size_t k = 0; k < found[r].f.size(); ++k)
            ASSERT_NEAR(found[r].f[k], expected[r].f[k], tolerance * (1 + std::abs(expected[r].f[k])))
                << c.epilogue << " " << dtype_name(dtype) << (apart ? " apart" : "") << " result " << r << " [" << k
                << "]";
        }
      }
    }
  }
}
#endif

}  // namespace
}  // namespace partita
