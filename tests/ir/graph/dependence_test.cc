// What values depend on, and in which of its sets a rule differs.
#include "ir/graph/dependence.h"

#include <gtest/gtest.h>

#include "ir/text/parse.h"

namespace partita {
namespace {

Graph parsed(const std::string& text) {
  auto g = parse_graph(text);
  EXPECT_TRUE(g.ok()) << g.status().message();
  return g.ok() ? *std::move(g) : Graph{};
}

constexpr const char* kGraph = R"(graph "g"
input %0 f32[2,2] data "x"
state %1 f32[2,2] parameter "w" initial f32[2,2] [1, 2, 3, 4]
state %2 f32[2,2] frozen "m" initial f32[2,2] [1, 2, 3, 4]
state %3 f32[2] frozen "v" initial f32[2] [1, 2]
state %4 i64[] step "step" initial i64[] [0]
%5 f32[2,2] = mul(%0, %1) @forward
%6 bool[2,2] = lt(%5, %0) @forward
%7 f32[2,2] = cast(%6) {to=f32} @forward
%8 f32[2,2] = mul(%0, %2) @forward
%9 f32[2,2] = transpose(%1) {permutation=[1, 0]} @prologue
%10 f32[2,2] = mul(%7, %0) @backward
output "y" %5
)";

TEST(Dependence, Sets) {
  const Graph g = parsed(kGraph);
  const Dependence d(g);
  struct Row {
    ValueId value;
    bool data, parameter, weight, gradient;
  };
  const Row kRows[] = {
      {0, true, false, false, false},  {1, false, true, true, true},
      {2, false, false, true, false},   // a frozen matrix is a weight that nobody trains
      {3, false, false, false, false},  // a frozen vector, the step: constants of their ops
      {4, false, false, false, false}, {5, true, true, true, true},
      {6, true, true, true, false},  // no gradient flows through a comparison
      {7, true, true, true, false},  // or comes back after it
      {8, true, false, true, false},   {9, false, true, true, true},
      {10, true, true, true, false},
  };
  for (const Row& row : kRows) {
    EXPECT_EQ(d.on_data(row.value), row.data) << row.value;
    EXPECT_EQ(d.on_parameter(row.value), row.parameter) << row.value;
    EXPECT_EQ(d.on_weight(row.value), row.weight) << row.value;
    EXPECT_EQ(d.has_gradient(row.value), row.gradient) << row.value;
    EXPECT_EQ(d.is_activation(row.value), row.data && row.parameter) << row.value;
    EXPECT_EQ(d.is_parameter_alone(row.value), row.parameter && !row.data) << row.value;
  }
}

TEST(Dependence, OnRoots) {
  const Graph g = parsed(kGraph);
  std::vector<bool> roots(g.values.size(), false);
  roots[2] = true;
  const std::vector<bool> of = depends_on(g, roots);
  for (size_t v = 0; v < of.size(); ++v) EXPECT_EQ(of[v], v == 2 || v == 8) << v;
}

}  // namespace
}  // namespace partita
