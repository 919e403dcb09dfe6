#include "tools/proof/trials/kernel_trials.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <numeric>
#include <set>

#include "base/cat.h"
#include "codegen/llvm/object_code.h"
#include "runtime/kernel/kernel.h"
#include "tests/support/bundle.h"
#include "tests/support/command.h"
#include "tests/support/temp_folder.h"
#include "tools/proof/numeric_check.h"
#include "tools/proof/trials/bounded_value.h"
#include "tools/proof/trials/library_meaning.h"
#include "tools/proof/trials/tree_trial.h"
#include "tools/proof/trials/trial_memory.h"

namespace partita {
namespace {

using testing::HasSubstr;

// What a nest stores becomes something else where it is a float of 32 bits.
using Change = void (*)(LoopNest& nest, NestStore& store);

int push(LoopNest& nest, ScalarNode scalar) {
  nest.nodes.push_back({.op = NestOp::kScalar, .scalar = scalar});
  return static_cast<int>(nest.nodes.size()) - 1;
}

// `condition` ? 0 : what is stored.
void store_zero_where(LoopNest& nest, NestStore& store, int condition) {
  const int zero = push(nest, {.op = ScalarOp::kConstant, .type = DType::kF32});
  const int of = store.node;
  store.node = push(nest, {.op = ScalarOp::kSelect, .type = DType::kF32, .a = condition, .b = zero, .c = of});
}

class KernelTrials : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TempFolder>();
    const std::string model = std::string(PARTITA_TEST_DATA) + "/gpt2";
    const Outcome compiled = run_partita(cat("compile ", model, "/model.onnx --train ", model,
                                             "/train.yaml --ranks 2 --quiet -o ", *folder_ / "bundle"));
    ASSERT_EQ(compiled.code, 0) << compiled.text;
  }
  static void TearDownTestSuite() { folder_.reset(); }

  static verifier::Bundle sample() {
    auto bundle = read_bundle(*folder_ / "bundle");
    EXPECT_TRUE(bundle.ok()) << bundle.status();
    return *std::move(bundle);
  }

  // The bundle with code that is made of other nests than it has.
  static verifier::Bundle miscompiled(Change change) {
    verifier::Bundle bundle = sample();
    verifier::RankProgram& p = bundle.programs[0];
    std::vector<LoopNest> nests;
    std::vector<NamedNest> named;
    for (const KernelNest& k : p.nests.kernels) nests.push_back(k.nest);
    for (LoopNest& nest : nests) {
      for (size_t k = 0, stores = nest.stores.size(); k < stores; ++k) {
        NestStore store = nest.stores[k];
        if (nest.operands[static_cast<size_t>(store.access.operand)] == DType::kF32) change(nest, store);
        nest.stores[k] = store;
      }
    }
    for (size_t k = 0; k < nests.size(); ++k) named.push_back({p.nests.kernels[k].name, &nests[k]});
    auto code = compile_nests(named, p.nests.target);
    EXPECT_TRUE(code.ok()) << code.status();
    p.program.kernels = *std::move(code);
    return bundle;
  }

  static std::string refusal(Change change) { return std::string(try_kernels(miscompiled(change)).status().message()); }

  static inline std::unique_ptr<TempFolder> folder_;
};

TEST_F(KernelTrials, OfASoundBundleAgree) {
  const verifier::Bundle bundle = sample();
  auto trials = try_kernels(bundle);
  ASSERT_TRUE(trials.ok()) << trials.status();
  EXPECT_EQ(trials->generated, static_cast<int64_t>(bundle.programs[0].nests.kernels.size()));
  EXPECT_GT(trials->library, 5);
  EXPECT_GT(trials->elements, 100000);
  EXPECT_THAT(trials->left_out, testing::IsEmpty());
}

// Sums over micro-batches in a fixed order are run, too.
TEST_F(KernelTrials, OfABundleWithTreesAgree) {
  const std::string yaml = folder_->write(
      "trees.yaml", "loss: {kind: output, output: loss}\nbatch: {global: 4, micro: 1}\nreproducible: 4\n");
  const Outcome compiled = run_partita(cat("compile ", PARTITA_TEST_DATA, "/gpt2/model.onnx --train ", yaml,
                                           " --ranks 2 --quiet -o ", *folder_ / "trees"));
  ASSERT_EQ(compiled.code, 0) << compiled.text;
  auto bundle = read_bundle(*folder_ / "trees");
  ASSERT_TRUE(bundle.ok()) << bundle.status();
  const auto steps = [&] {
    std::set<std::string> names;
    for (const runtime::ProgramSegment& s : bundle->programs[0].program.segments) {
      for (const runtime::Step& step : s.steps) names.insert(step.name);
    }
    return names;
  };
  EXPECT_THAT(steps(), testing::Contains("accumulate_tree"));
  auto trials = try_kernels(*bundle);
  ASSERT_TRUE(trials.ok()) << trials.status();
  EXPECT_THAT(trials->left_out, testing::IsEmpty());
}

TEST_F(KernelTrials, CodeThatIsWrongForNanAlone_IsRefused) {
  const Change change = [](LoopNest& nest, NestStore& store) {
    store_zero_where(nest, store, push(nest, {.op = ScalarOp::kIsNan, .type = DType::kBool, .a = store.node}));
  };
  const verifier::Bundle bundle = miscompiled(change);
  EXPECT_THAT(std::string(try_kernels(bundle).status().message()), HasSubstr("expected NaN within 0, found 0"));
  // A run meets no NaN.
  NumericOptions options;
  options.train.steps = 1;
  options.folder = folder_->path();
  options.train.data.kind = DataKind::kSynthetic;
  options.train.initial = open_weights(*folder_ / "bundle/initial.safetensors");
  const auto run = check_numeric(bundle, options);
  EXPECT_TRUE(run.ok()) << run.status();
}

TEST_F(KernelTrials, CodeThatLosesTheSmallestNumbers_IsRefused) {
  EXPECT_THAT(
      refusal([](LoopNest& nest, NestStore& store) {
        const int size = push(nest, {.op = ScalarOp::kAbs, .type = DType::kF32, .a = store.node}),
                  normal = push(
                      nest, {.op = ScalarOp::kConstant, .type = DType::kF32, .f = std::numeric_limits<float>::min()});
        store_zero_where(nest, store, push(nest, {.op = ScalarOp::kLt, .type = DType::kBool, .a = size, .b = normal}));
      }),
      HasSubstr("the smallest numbers"));
}

TEST_F(KernelTrials, CodeThatLeavesOutItsLastColumn_IsRefused) {
  EXPECT_THAT(refusal([](LoopNest& nest, NestStore&) {
                if (nest.columns > 0 && nest.sizes.back() > 1 && nest.folds.empty()) --nest.sizes.back();
              }),
              HasSubstr("drawn operands of ordinary numbers: element"));
}

TEST_F(KernelTrials, CodeThatWritesBehindItsResult_IsRefused) {
  // A zero besides, behind the last element.
  EXPECT_THAT(refusal([](LoopNest& nest, NestStore& store) {
                if (!nest.folds.empty()) return;
                int64_t last = store.access.offset;
                for (size_t k = 0; k < nest.sizes.size(); ++k) last += (nest.sizes[k] - 1) * store.access.strides[k];
                const int zero = push(nest, {.op = ScalarOp::kConstant, .type = DType::kF32});
                const std::vector<int64_t> still(nest.sizes.size(), 0);
                nest.stores.push_back({zero, {store.access.operand, still, last + 1}});
              }),
              HasSubstr("expected nothing to be written but its results"));
}

runtime::Step library_step(std::string name, const std::vector<TensorType>& operands, runtime::Params params) {
  runtime::Step step{.kind = runtime::StepKind::kLibrary, .name = std::move(name), .params = std::move(params)};
  for (const TensorType& t : operands)
    step.operands.push_back({{.offset = static_cast<int64_t>(step.operands.size()) << 20}, t.dtype, t.shape});
  step.inputs = static_cast<int32_t>(operands.size()) - 1;
  return step;
}

// Elements of a step's result that its definition does not allow, where a kernel with these parameters ran.
int64_t refused(Draw draw, const runtime::Step& step, const runtime::Params& ran) {
  const auto meaning = LibraryMeaning::of(step);
  auto memory = TrialMemory::allocate(step);
  runtime::Step other = step;
  other.params = ran;
  auto kernel = runtime::prepare_kernel(other, {});
  EXPECT_TRUE(meaning.ok() && memory.ok() && kernel.ok());
  memory->draw(draw, 1, meaning->rare(), meaning->bounds());
  std::mt19937_64 engine(1);
  const auto parts = meaning->sample(memory->before(), engine);
  (*kernel)->run(memory->now());
  const runtime::Operand& result = step.operands.back();
  const Literal found{{result.dtype, result.shape}, nullptr, memory->now().back()};
  int64_t count = 0;
  for (size_t k = 0; k < parts[0].elements.size(); ++k)
    count += !allows(result.dtype, parts[0].values[k], {element_f(found, parts[0].elements[k]), 0});
  return count;
}

TEST(LibraryMeaning_OfAProduct, AllowsItsKernelAndNoOther) {
  const TensorType square{DType::kF32, {40, 40}};
  const runtime::Step step = library_step("matmul", {square, square, square}, {});
  for (const Draw draw : {Draw::kOrdinary, Draw::kSmall, Draw::kLarge, Draw::kNan}) {
    EXPECT_EQ(refused(draw, step, step.params), 0) << static_cast<int>(draw);
    EXPECT_GT(refused(draw, step, {{"transpose_b", int64_t{1}}}), 100) << static_cast<int>(draw);
  }
}

// Elements of the sum of four drawn terms that are not those of their tree, by a kernel whose tree has so many.
int64_t wrong_sums(DType type, Draw draw, int64_t terms, bool in_place) {
  const TensorType row{type, {3000}};
  runtime::Step step = library_step("accumulate_tree", {row, row, row}, {{"micro_batches", int64_t{4}}});
  if (in_place) step.operands[2].address = step.operands[0].address;
  runtime::Step other = step;
  other.params = {{"micro_batches", terms}};
  auto memory = TrialMemory::allocate(step);
  auto kernel = runtime::prepare_kernel(other, {});
  EXPECT_TRUE(memory.ok() && kernel.ok());
  std::vector<int64_t> all(3000);
  std::iota(all.begin(), all.end(), int64_t{0});
  TreeTrial tree(step, all);
  for (int64_t term = 1; term <= tree.terms(); ++term) {
    memory->draw(draw, static_cast<uint64_t>(term), 24, {});
    tree.begin(*memory);
    (*kernel)->run(memory->now());
    tree.end(*memory);
  }
  const Literal found{row, nullptr, memory->now().back()};
  const std::vector<double> sums = tree.sums();
  int64_t count = 0;
  for (size_t k = 0; k < sums.size(); ++k)
    count += !allows(type, {{sums[k], 0}, 0}, {element_f(found, static_cast<int64_t>(k)), 0});
  return count;
}

TEST(TreeTrial, AllowsItsOrderAlone) {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const Draw draw : {Draw::kOrdinary, Draw::kSmall, Draw::kLarge, Draw::kNan}) {
      SCOPED_TRACE(cat(dtype_name(type), " ", static_cast<int>(draw)));
      EXPECT_EQ(wrong_sums(type, draw, 4, true), 0);
      EXPECT_EQ(wrong_sums(type, draw, 4, false), 0);
      EXPECT_GT(wrong_sums(type, draw, 2, true), 2000);
    }
  }
  // One term after the other makes 1 of these.
  const runtime::Step step = library_step(
      "accumulate_tree", {{DType::kF32, {1}}, {DType::kF32, {1}}, {DType::kF32, {1}}}, {{"micro_batches", int64_t{4}}});
  auto memory = TrialMemory::allocate(step);
  ASSERT_TRUE(memory.ok());
  TreeTrial tree(step, {0});
  for (const double term : {0x1p30, 1.0, -0x1p30, 1.0}) {
    memory->put(1, scalar_literal(DType::kF32, term).bytes());
    tree.begin(*memory);
    tree.end(*memory);
  }
  EXPECT_EQ(tree.sums(), std::vector<double>{0});
}

// Of the parts of a value there are as many as ranks, fewer than it has elements.
TEST(LibraryMeaning_OfAShard, DrawsARank) {
  const runtime::Step step = library_step("shard_slice", {{DType::kF32, {64}}, {DType::kI64, {}}, {DType::kF32, {32}}},
                                          {{"dim", int64_t{0}}, {"parts", int64_t{2}}});
  const auto meaning = LibraryMeaning::of(step);
  ASSERT_TRUE(meaning.ok()) << meaning.status();
  EXPECT_EQ(meaning->bounds()[1], (IndexBounds{0, 2, 0}));
  EXPECT_EQ(refused(Draw::kOrdinary, step, step.params), 0);
}

// Rows that are added to an operand, wherever the sum lies.
TEST(LibraryMeaning_OfAddedRows, AllowsTheirSumAlone) {
  runtime::Step step = library_step(
      "gather_grad", {{DType::kF32, {64, 32}}, {DType::kI64, {64}}, {DType::kF32, {8, 32}}, {DType::kF32, {8, 32}}},
      {{"dim", int64_t{0}}, {"size", int64_t{8}}, {"epilogue", std::string("accumulate")}});
  for (const bool in_place : {false, true}) {
    if (in_place) step.operands[3].address = step.operands[2].address;
    EXPECT_EQ(refused(Draw::kOrdinary, step, step.params), 0) << in_place;
  }
}

// The kernel rounds to 16 bits after each row that it adds.
TEST(LibraryMeaning_OfASumIn16Bits, AllowsItsRounding) {
  const runtime::Step step =
      library_step("gather_grad", {{DType::kF16, {256, 32}}, {DType::kI64, {256}}, {DType::kF16, {8, 32}}},
                   {{"dim", int64_t{0}}, {"size", int64_t{8}}});
  EXPECT_EQ(refused(Draw::kOrdinary, step, step.params), 0);
}

// The last of many running sums is one of as many terms.
TEST(LibraryMeaning_OfRunningSums, AllowsTheirRounding) {
  const runtime::Step step = library_step("cumsum", {{DType::kF32, {8192, 4}}, {DType::kF32, {8192, 4}}},
                                          {{"dim", int64_t{0}}, {"exclusive", int64_t{0}}, {"reverse", int64_t{0}}});
  for (int k = 0; k < 8; ++k) EXPECT_EQ(refused(Draw::kOrdinary, step, step.params), 0);
}

// 2.6 times the smallest number of 16 bits: a kernel that rounds the product has 3 of them, never 1.
TEST(BoundedOperation_OfTheSmallestNumbersIn16Bits, AllowsTheirRounding) {
  BoundedOperation product({.op = ScalarOp::kMul, .type = DType::kF16, .a = 0, .b = 1}, DType::kF16);
  const BoundedValue found = product.apply({{0x1.4cp-12, 0}, 0}, {{0x1p-11, 0}, 0}, {});
  EXPECT_TRUE(allows(DType::kF32, found, {0x3p-24, 0})) << found.off;
  EXPECT_FALSE(allows(DType::kF32, found, {0x1p-24, 0})) << found.off;
}

}  // namespace
}  // namespace partita
