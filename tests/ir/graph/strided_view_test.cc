// Where elements lie, against the evaluator: on numbers that say where they came from.
#include "ir/graph/strided_view.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "ir/graph/builder.h"
#include "ir/graph/evaluate.h"
#include "ir/op/op_def.h"

namespace partita {
namespace {

// The flat place of each element of a view.
std::vector<double> places(const StridedView& view) {
  std::vector<double> found;
  Shape index(view.shape.size(), 0);
  for (int64_t n = elements(view.shape); n-- > 0;) {
    found.push_back(
        static_cast<double>(std::inner_product(index.begin(), index.end(), view.strides.begin(), view.offset)));
    for (size_t d = index.size(); d-- > 0 && ++index[d] == view.shape[d];) index[d] = 0;
  }
  return found;
}

class RandomChain {
 public:
  explicit RandomChain(uint64_t seed) : draw_(seed) {}

  int64_t number(int64_t first, int64_t last) { return std::uniform_int_distribution<int64_t>(first, last)(draw_); }

  Shape shape() {
    Shape s(static_cast<size_t>(number(1, 4)));
    for (int64_t& x : s) x = number(1, 4);
    return s;
  }
  // The same number of elements: dimensions joined, or cut where a divisor lies.
  Shape reshape(Shape s) {
    const auto d = static_cast<size_t>(number(0, static_cast<int64_t>(s.size()) - 1));
    if (number(0, 1) == 0 && d + 1 < s.size()) {
      s[d] *= s[d + 1];
      s.erase(s.begin() + static_cast<int64_t>(d) + 1);
    } else {
      const int64_t part = s[d] % 2 == 0 ? 2 : s[d] % 3 == 0 ? 3 : 1;
      s[d] /= part;
      s.insert(s.begin() + static_cast<int64_t>(d) + number(0, 1), part);
    }
    return s;
  }
  ValueId step(Builder& b, ValueId v, bool cuts) {
    const Shape& s = b.shape(v);
    const int64_t kind = number(0, cuts ? 2 : 1);
    if (kind == 0) return b.reshape(v, reshape(s));
    if (kind == 1) {
      std::vector<int64_t> order(s.size());
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), draw_);
      return b.transpose(v, order);
    }
    Shape starts(s.size()), limits(s.size()), steps(s.size(), 1);
    for (size_t d = 0; d < s.size(); ++d) starts[d] = number(0, s[d] - 1), limits[d] = number(starts[d] + 1, s[d]);
    return b.emit("slice", {v}, {{"starts", starts}, {"limits", limits}, {"strides", steps}});
  }

 private:
  std::mt19937_64 draw_;
};

// Places of `v`, evaluated: the input has its own places as numbers.
std::vector<double> evaluated(const Graph& graph, ValueId v, const Shape& input) {
  Tensor x = Tensor::zeros({DType::kF32, input});
  std::iota(x.f.begin(), x.f.end(), 0);
  std::vector<Tensor> at(graph.values.size());
  at[static_cast<size_t>(graph.inputs[0].value)] = x;
  for (const Node& node : graph.nodes) {
    std::vector<const Tensor*> in;
    for (ValueId i : node.inputs) in.push_back(&at[static_cast<size_t>(i)]);
    at[static_cast<size_t>(node.outputs[0])] = evaluate_op(*node.op, node.attrs, in)[0];
  }
  return at[static_cast<size_t>(v)].f;
}

TEST(StridedView_After, IsWhereTheEvaluatorFindsEachElement) {
  int described = 0, refused = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    RandomChain random(seed);
    Builder b;
    const Shape shape = random.shape();
    ValueId v = b.input("x", {DType::kF32, shape});
    for (int64_t n = random.number(1, 5); n-- > 0;) v = random.step(b, v, true);
    const Graph graph = std::move(b).finish();
    std::optional<StridedView> view = dense_view(shape);
    for (const Node& node : graph.nodes) view = view ? view_after(graph, node, *view) : view;
    if (!view) {
      ++refused;
      continue;
    }
    ++described;
    EXPECT_EQ(view->shape, graph.type(v).shape);
    EXPECT_EQ(places(*view), evaluated(graph, v, shape)) << "seed " << seed;
  }
  EXPECT_GT(described, 250);
  EXPECT_GT(refused, 3) << "joined dimensions that do not lie in a line";
}

TEST(StridedView_Before, UndoesWhatTurnsAndJoins) {
  int described = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    RandomChain random(seed);
    Builder b;
    const Shape shape = random.shape();
    const ValueId x = b.input("x", {DType::kF32, shape});
    ValueId v = x;
    for (int64_t n = random.number(1, 4); n-- > 0;) v = random.step(b, v, false);
    const auto dim = static_cast<size_t>(random.number(0, b.rank(v) - 1));
    const ValueId own = v;
    v = b.emit("concat", {v, v, v}, {{"dim", static_cast<int64_t>(dim)}});
    const Graph graph = std::move(b).finish();
    for (size_t k = 0; k < 3; ++k) {
      std::optional<StridedView> view = view_before(graph, graph.nodes.back(), k, dense_view(graph.type(v).shape));
      for (size_t n = graph.nodes.size() - 1; view && n-- > 0;) view = view_before(graph, graph.nodes[n], 0, *view);
      if (!view) continue;
      ++described;
      // What lies there of the joined value are the numbers 0, 1, 2, … of x.
      const std::vector<double> joined = evaluated(graph, v, shape), at = places(*view);
      for (size_t i = 0; i < at.size(); ++i)
        EXPECT_EQ(joined[static_cast<size_t>(at[i])], static_cast<double>(i)) << "seed " << seed << " operand " << k;
      const StridedView part = *view_before(graph, graph.nodes.back(), k, dense_view(graph.type(v).shape));
      EXPECT_EQ(part.offset,
                static_cast<int64_t>(k) * graph.type(own).shape[dim] * dense_view(graph.type(v).shape).strides[dim]);
    }
  }
  EXPECT_GT(described, 600);
}

TEST(StridedView_OtherNodes, AreNone) {
  Builder b;
  const ValueId x = b.input("x", {DType::kF32, {4, 6}});
  b.neg(x);
  b.emit("slice", {x}, {{"starts", Shape{0, 0}}, {"limits", Shape{4, 6}}, {"strides", Shape{1, 2}}});
  const Graph graph = std::move(b).finish();
  for (const Node& node : graph.nodes) EXPECT_FALSE(view_after(graph, node, dense_view({4, 6})));
}

}  // namespace
}  // namespace partita
