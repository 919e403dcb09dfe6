#include "tests/codegen/support/random_graph.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/cat.h"
#include "codegen/prepare/expand_composites.h"
#include "codegen/steps/step_plan.h"
#include "tests/codegen/support/interpreter.h"
#include "tests/codegen/support/single_nodes.h"
#include "tests/support/test_options.h"

namespace partita {
namespace {

TEST(RandomGraph_Program, ComputesWhatTheReferenceDoes) {
  for (uint64_t seed = 1; seed <= sample_or_all<uint64_t>(60, 600); ++seed) {
    compare_with_reference(random_graph(seed, 30),
                           {.target = {.in_place = seed % 3 != 0}, .tolerance = 2e-5, .slack = 1});
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
}

TEST(RandomRows_Program, ComputesWhatTheReferenceDoes) {
  for (uint64_t seed = 1; seed <= sample_or_all<uint64_t>(40, 400); ++seed) {
    compare_with_reference(random_rows(seed, 12),
                           {.target = {.in_place = seed % 3 != 0}, .tolerance = 2e-5, .slack = 1});
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
}

TEST(RandomGraph_WithoutFusion, ComputesTheSame) {
  for (uint64_t seed = 100; seed <= sample_or_all<uint64_t>(110, 200); ++seed) {
    compare_with_reference(random_graph(seed, 24),
                           {.target = {.cpu = "x86-64-v3", .fuse = false}, .tolerance = 2e-5, .slack = 1});
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
}

// What a node computes does not depend on what shares its kernel: all bits are those of kernels of one node each.
TEST(RandomGraph_Strict, HasTheBitsOfSingleNodes) {
  for (uint64_t seed = 1; seed <= sample_or_all<uint64_t>(20, 400); ++seed) {
    for (const Graph& graph : {random_graph(seed, 30), random_rows(seed, 12)}) {
      expect_bits_of_single_nodes(graph, {.target = {.strict = true}});
      ASSERT_FALSE(HasFailure()) << "seed " << seed;
    }
  }
}

// Lifetimes told by the steps alone: from the first that touches a buffer to the last.
TEST(RandomGraph_Arena, KeepsLiveBuffersApart) {
  for (uint64_t seed = 1; seed <= sample_or_all<uint64_t>(200, 2000); ++seed) {
    Graph graph = expand_composites(random_graph(seed, 45));
    CodeGraph code(graph);
    StepPlan plan = make_step_plan(code, {});
    std::vector<std::pair<int, int>> life(plan.buffers.size(), {INT32_MAX, -1});
    for (size_t s = 0; s < plan.steps.size(); ++s) {
      for (const PlanOperand& o : plan.steps[s].operands) {
        if (o.buffer < 0) continue;
        life[o.buffer].first = std::min(life[o.buffer].first, static_cast<int>(s));
        life[o.buffer].second = std::max(life[o.buffer].second, static_cast<int>(s));
      }
    }
    for (const PlanOperand& o : plan.outputs) life[o.buffer].second = static_cast<int>(plan.steps.size());
    for (size_t a = 0; a < plan.buffers.size(); ++a) {
      const PlanBuffer& x = plan.buffers[a];
      if (x.region != runtime::Region::kArena) continue;
      EXPECT_LE(x.offset + x.bytes, plan.region_bytes[static_cast<int>(runtime::Region::kArena)]);
      for (size_t c = a + 1; c < plan.buffers.size(); ++c) {
        const PlanBuffer& y = plan.buffers[c];
        if (y.region != runtime::Region::kArena || life[a].second < life[c].first || life[c].second < life[a].first)
          continue;
        EXPECT_TRUE(x.offset + x.bytes <= y.offset || y.offset + y.bytes <= x.offset)
            << "seed " << seed << ": buffers " << a << " and " << c;
      }
    }
  }
}

}  // namespace
}  // namespace partita
