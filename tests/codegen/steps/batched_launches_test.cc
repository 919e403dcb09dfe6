// Kernels that are launched together compute what they compute alone, bit by bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "runtime/program/batched_launches.h"
#include "tests/codegen/support/graph_maker.h"
#include "tests/partitioner/support/random_model.h"

namespace partita {
namespace {

const TargetOptions kGpu = {.gpu = "sm_90"};

// Moments and a parameter of each shape, updated like AdamW's.
Graph updates(const std::vector<Shape>& shapes) {
  Builder b;
  for (size_t k = 0; k < shapes.size(); ++k) {
    const TensorType type{DType::kF32, shapes[k]};
    const std::string name = cat("p", k);
    ValueId g = b.input(cat("g", k), type);
    b.context().segment = Segment::kUpdate;
    ValueId p = b.state({.name = name}, type),
            m = b.state({.name = cat(name, ".m"), .kind = StateKind::kOptimizer}, type);
    ValueId next = b.add(b.scale(m, 0.9), b.scale(g, 0.1));
    b.set_next(cat(name, ".m"), next);
    b.set_next(name, b.sub(b.scale(p, 0.999), b.mul(b.emit("tanh", {next}), g)));
  }
  return b.graph();
}

struct Ran {
  std::vector<Tensor> states;
  int joined = 0;
  runtime::LaunchCount count;
};
Ran run(const Graph& graph, ptx::Order order = ptx::Order::kForward, bool apart = false) {
  const LocalProgram local = local_program(graph);
  auto program = emit_program(local, kGpu);
  EXPECT_TRUE(program.ok()) << program.status();
  Ran ran{.count = runtime::count_launches(*program)};
  Interpreter interpreter(*std::move(program), order);
  if (apart) interpreter.launch_apart();
  for (size_t k = 0; k < graph.inputs.size(); ++k)
    interpreter.set_input(graph.inputs[k].name, random_tensor(graph.type(graph.inputs[k].value), 1, 1, 4));
  for (size_t k = 0; k < graph.states.size(); ++k)
    interpreter.set_state(graph.states[k].name, random_tensor(graph.type(graph.states[k].value), 2));
  interpreter.run();
  for (const State& s : graph.states) ran.states.push_back(interpreter.state(s.name));
  ran.joined = interpreter.joined();
  return ran;
}

// Different sizes, of one block and of several, with the last one full or not.
TEST(BatchedLaunch_Updates, AreOneLaunchAndEqualToEachAlone) {
  const std::vector<Shape> shapes = {{4}, {33, 64}, {1024}, {3, 5, 4}, {2, 512}, {257, 12}, {128}};
  for (ptx::Order order : {ptx::Order::kForward, ptx::Order::kBackward, ptx::Order::kShuffled}) {
    const Ran together = run(updates(shapes), order);
    EXPECT_EQ(together.count.steps, 7);
    EXPECT_EQ(together.count.launches, 1);
    EXPECT_EQ(together.joined, 7);
    for (size_t k = 0; k < shapes.size(); ++k) {
      const Ran alone = run(updates({shapes[k]}));
      EXPECT_EQ(alone.joined, 0);
      for (size_t s = 0; s < 2; ++s) EXPECT_EQ(together.states[2 * k + s].f, alone.states[s].f) << k << " " << s;
    }
  }
}

// Sizes that take vectors of other widths are kernels of their own.
TEST(BatchedLaunch_OtherWidths, AreLaunchedApart) {
  const Ran ran = run(updates({{4}, {8}, {6}, {10}, {7}, {9}, {1}}));
  EXPECT_EQ(ran.count.steps, 7);
  EXPECT_LE(ran.count.launches, 4);
  EXPECT_GE(ran.count.launches, 3);
}

// Rows, too, where they are the same in number and length.
TEST(BatchedLaunch_EqualReductions, AreOneLaunch) {
  Builder b;
  std::vector<ValueId> norms;
  for (int k = 0; k < 5; ++k) {
    ValueId x = b.input(cat("x", k), {DType::kF32, {12, k < 4 ? 300 : 200}});
    b.output(cat("y", k), b.reduce("reduce_sum", b.mul(x, x), {1}, false));
  }
  const Ran ran = run(b.graph());
  EXPECT_EQ(ran.count.steps, 5);
  EXPECT_EQ(ran.count.launches, 2);
  compare_with_reference(b.graph(), {.target = kGpu});
}

// A step that came too early would find what memory held before.
TEST(BatchedLaunch_RandomModels, EqualTheirStepsOneByOne) {
  int64_t saved = 0;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    RandomModel model = random_model(seed);
    model.micro_batches = 1;
    model.accumulate = false;
    const Graph graph = training_graph(model);
    const LocalProgram local = local_program(graph);
    auto program = emit_program(local, kGpu);
    ASSERT_TRUE(program.ok()) << program.status();
    const runtime::LaunchCount count = runtime::count_launches(*program);
    saved += count.steps - count.launches;
    // Steps say which kernels they need, and there are no others.
    std::set<std::string> needed, made;
    for (const auto& segment : program->segments) {
      for (const auto& step : segment.steps) {
        if (step.kind == runtime::StepKind::kKernel) needed.insert(step.name);
      }
    }
    for (const ProgramNest& nest : program_nests(local, kGpu)) made.insert(nest.name);
    EXPECT_EQ(needed, made) << seed;
    const Ran together = run(graph, ptx::Order::kShuffled), apart = run(graph, ptx::Order::kForward, true);
    EXPECT_EQ(apart.joined, 0);
    for (size_t s = 0; s < graph.states.size(); ++s) {
      EXPECT_EQ(to_literal(together.states[s]).bytes().size(), to_literal(apart.states[s]).bytes().size());
      EXPECT_TRUE(std::ranges::equal(to_literal(together.states[s]).bytes(), to_literal(apart.states[s]).bytes()))
          << describe(model) << ": " << graph.states[s].name;
    }
    EXPECT_EQ(together.joined > 0, count.launches < count.steps);
  }
  EXPECT_GT(saved, 30);  // launches
}

}  // namespace
}  // namespace partita
