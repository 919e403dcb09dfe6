// What kernels of a GPU move and execute, counted: of small graphs whose least is known, and of a few lines of PTX.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/cat.h"
#include "codegen/emit_program.h"
#include "ir/graph/builder.h"
#include "ir/op/op_def.h"
#include "runtime/cuda/kernels.h"
#include "tests/counts/bounds.h"
#include "tests/counts/loop_faults.h"

namespace partita::counts {
namespace {

class GraphCounts : public testing::Test {
 protected:
  ValueId in(Shape shape, DType t = DType::kBF16) { return b.input(cat("x", names_++), {t, std::move(shape)}); }
  void out(ValueId v) { b.output(cat("y", names_++), v); }
  // Of one rank that holds everything.
  runtime::Program program() {
    LocalProgram local;
    const Graph& graph = b.graph();
    const auto place = [&](ValueId v) {
      return PlacedTensor{graph.type(v).shape, Sharding::replicated(graph.type(v).shape)};
    };
    for (const GraphInput& i : graph.inputs) local.inputs.push_back(place(i.value));
    for (const GraphOutput& o : graph.outputs) local.outputs.push_back(place(o.value));
    local.graph = graph;
    auto made = emit_program(local, {.gpu = "sm_80"});
    EXPECT_TRUE(made.ok()) << made.status();
    return *std::move(made);
  }
  CountedProgram count() {
    auto counted = count_program(program(), "");
    EXPECT_TRUE(counted.ok()) << counted.status();
    return *std::move(counted);
  }
  const DeviceProfile& device() {
    static const auto* library = new ProfileLibrary(*ProfileLibrary::load());
    return *library->device("H100-80GB");
  }
  Builder b;

 private:
  int names_ = 0;
};

std::vector<std::string> costly(const std::string& ptx) {
  std::vector<std::string> found;
  const auto faults = loop_faults(ptx);
  EXPECT_TRUE(faults.ok()) << faults.status();
  for (const LoopFault& f : *faults) {
    if (f.innermost) found.push_back(cat(f.kernel, ": ", f.instruction));
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

TEST_F(GraphCounts, SumReadsAndWritesItsOperandsOnce) {
  const Shape shape = {1 << 10, 1 << 10};
  out(b.add(in(shape), in(shape)));
  const CountedProgram counted = count();
  ASSERT_EQ(counted.rows.size(), 1u);
  const Row& row = counted.rows[0];
  EXPECT_EQ(row.least_read, 2 * 2 << 20);
  EXPECT_EQ(row.least_written, 2 << 20);
  EXPECT_EQ(memory_bytes(row, device()), row.least());
  const Bound found = bound(row, device());
  EXPECT_TRUE(found.by_memory);
  EXPECT_GE(found.seconds, row.least() / device().bandwidth);
}

// Of each sector of 32 bytes one number is looked at.
TEST_F(GraphCounts, StridedSliceReadsWholeSectors) {
  const ValueId x = in({4096, 64, 8}, DType::kF32);
  out(b.emit("slice", {x},
             {{"starts", std::vector<int64_t>{0, 0, 3}},
              {"limits", std::vector<int64_t>{4096, 64, 4}},
              {"strides", std::vector<int64_t>{1, 1, 1}}}));
  const CountedProgram counted = count();
  ASSERT_EQ(counted.rows.size(), 1u);
  const Row& row = counted.rows[0];
  EXPECT_NEAR(row.least_read, 4096 * 64 * 4, 1);
  EXPECT_NEAR(memory_bytes(row, device()), 8 * row.least_read + row.least_written, 1);
}

// What is bf16 already is moved as it is.
TEST_F(GraphCounts, TurnedMatrixIsNotRounded) {
  out(b.transpose(in({512, 256}), {1, 0}));
  out(b.cast(b.cast(b.mul(in({512, 256}, DType::kF32), in({512, 256}, DType::kF32)), DType::kBF16), DType::kBF16));
  const runtime::Program made = program();
  const std::string ptx(made.portable_kernels.begin(), made.portable_kernels.end());
  size_t roundings = 0;
  for (size_t at = 0; (at = ptx.find("cvt.rn.bf16", at)) != std::string::npos; ++at) ++roundings;
  const size_t vector = 4;  // of numbers in f32
  EXPECT_LE(roundings, 2 * vector);
  EXPECT_GE(roundings, 1u);
}

// Kernels of a transformer's kind, forward and backward.
TEST_F(GraphCounts, MemoryBoundKernelsMoveLittleMoreThanTheLeast) {
  constexpr int64_t kRows = 1024, kColumns = 768;
  const ValueId x = in({kRows, kColumns}), residual = in({kRows, kColumns}), g = in({kRows, kColumns});
  const ValueId scale = in({kColumns}, DType::kBF16), bias = in({kColumns}, DType::kBF16);
  const ValueId h = b.add(x, residual);
  const Attrs attrs{{"axis", int64_t{1}}, {"epsilon", 1e-5}};
  const auto y = b.emit_all("layer_norm", {h, scale, bias}, attrs);
  for (ValueId v : y) out(v);
  out(h);
  out(b.emit("gelu", {b.mul(x, residual)}, {{"approximate", int64_t{1}}}));
  out(b.transpose(in({16, 64, 12, 64}), {0, 2, 1, 3}));
  out(b.transpose(in({512, 1024}), {1, 0}));
  const ValueId logits = in({512, 2048}), labels = in({512}, DType::kI64), loss = in({512}, DType::kF32);
  const auto entropy = b.emit_all("cross_entropy", {logits, labels});
  out(entropy[0]);
  b.context().segment = Segment::kBackward;
  const std::vector<TensorType> types{b.type(h), b.type(scale), b.type(bias)};
  const std::vector<ValueId> inputs{h, scale, bias}, gradients{g, kNoValue, kNoValue};
  for (ValueId v : find_op("layer_norm")->gradient({b, attrs, types, inputs, y, gradients})) out(v);
  out(b.emit("cross_entropy_grad", {loss, logits, labels, entropy[1]}));

  const runtime::Program made = program();
  EXPECT_THAT(costly({made.portable_kernels.begin(), made.portable_kernels.end()}), testing::IsEmpty());
  const CountedProgram counted = count();
  EXPECT_THAT(counted.not_counted, testing::IsEmpty());
  int kernels = 0;
  for (const Row& row : counted.rows) {
    for (const Launched& launch : row.launches) EXPECT_EQ(launch.work.local_accesses, 0) << row.kernel;
    if (!bound(row, device()).by_memory || row.least() < 64e3) continue;  // a few sectors of a small one are much
    ++kernels;
    EXPECT_LE(memory_bytes(row, device()), 1.15 * row.least()) << row.kernel << " " << row.least();
    EXPECT_GE(memory_bytes(row, device()), 0.99 * row.least()) << row.kernel;
  }
  EXPECT_GE(kernels, 6);
}

TEST(KernelCounts_Pools, DivideInNoInnermostLoop) {
  EXPECT_THAT(costly(reinterpret_cast<const char*>(runtime::partita_kernels_pool)), testing::IsEmpty());
}

TEST(KernelCounts_OwnKernels, HaveNoCallsAndNoLocalMemoryInLoops) {
  for (const unsigned char* text :
       {runtime::partita_kernels_attention, runtime::partita_kernels_epilogue, runtime::partita_kernels_flash,
        runtime::partita_kernels_fp8, runtime::partita_kernels_grouped, runtime::partita_kernels_indexing,
        runtime::partita_kernels_pool, runtime::partita_kernels_scan, runtime::partita_kernels_sums,
        runtime::partita_kernels_turn}) {
    const auto faults = loop_faults(reinterpret_cast<const char*>(text));
    ASSERT_TRUE(faults.ok()) << faults.status();
    for (const LoopFault& f : *faults) {
      const bool divides = f.instruction.rfind("div", 0) == 0 || f.instruction.rfind("rem", 0) == 0;
      EXPECT_TRUE(divides) << f.kernel << ", line " << f.line << ": " << f.instruction;
    }
  }
}

TEST(KernelCounts_Loops, AreSearchedForWhatIsCostly) {
  const std::string text =
      ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k()\n{\n"
      ".reg .pred %p<3>; .reg .b32 %r<9>; .reg .f32 %f<9>;\n"
      "div.s32 %r1, %r2, %r3;\n"
      "outer:\nrem.u32 %r1, %r2, %r3;\n"
      "inner:\ndiv.full.f32 %f1, %f2, %f3;\ndiv.rn.f32 %f1, %f2, %f3;\n@%p1 bra inner;\n@%p2 bra outer;\nret;\n}\n";
  const auto faults = loop_faults(text);
  ASSERT_TRUE(faults.ok()) << faults.status();
  ASSERT_EQ(faults->size(), 2u);
  EXPECT_EQ((*faults)[0].instruction, "rem.u32");
  EXPECT_FALSE((*faults)[0].innermost);
  EXPECT_EQ((*faults)[1].instruction, "div.rn.f32");
  EXPECT_TRUE((*faults)[1].innermost);
}

}  // namespace
}  // namespace partita::counts
