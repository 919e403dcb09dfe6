// Of 12 elements among 8 ranks, 4 in a node:
//
//   all_reduce [12]   becomes   [4, 3]   reduce_scatter [3]   all_reduce [3]   all_gather [4, 3]   [12]
#include "partitioner/communicate/level_sums.h"

#include <algorithm>

#include "ir/graph/builder.h"
#include "partitioner/communicate/deferrable.h"

namespace partita {
namespace {

class LevelSums {
 public:
  LevelSums(const LocalProgram& program, const std::vector<int>& far, int64_t least)
      : program_(program), graph_(program.graph), far_(far.begin(), far.end()), least_(least) {}

  Graph apply() const {
    const DeferrableResults results(program_);
    Rewriter r(graph_);
    for (const Node& node : graph_.nodes) {
      if (is_taken(results, node)) {
        r.at(node);
        r.replace(node.outputs[0], emit(r.builder(), r(node.inputs[0]), node.attrs));
      } else {
        r.copy(node);
      }
    }
    return std::move(r).finish();
  }

 private:
  bool is_taken(const DeferrableResults& results, const Node& node) const {
    if (node.op->collective != CollectiveOp::kAllReduce || node.attrs.s("reduce", "") != "sum") return false;
    if (!results.is_joint(node) || node.inputs.size() != 1) return false;
    const auto [near, far] = levels(node.attrs);
    if (near.empty() || far.empty()) return false;
    const TensorType& type = graph_.type(node.inputs[0]);
    const bool waits =
        node.segment > Segment::kBackward || results.are_deferrable(node) || results.are_accumulated(node);
    return waits && byte_size(type) >= least_ && elements(type.shape) % group(near).i("parts") == 0;
  }

  struct Levels {
    std::vector<int64_t> near, far;
  };
  Levels levels(const Attrs& attrs) const {
    Levels levels;
    for (int64_t axis : attrs.ints("axes"))
      (std::count(far_.begin(), far_.end(), axis) > 0 ? levels.far : levels.near).push_back(axis);
    return levels;
  }

  Attrs group(const std::vector<int64_t>& axes) const {
    return {{"axes", axes}, {"parts", program_.mesh.ways(std::vector<int>(axes.begin(), axes.end()))}};
  }

  ValueId emit(Builder& b, ValueId x, const Attrs& attrs) const {
    const Shape shape = b.shape(x);
    const auto [near, far] = levels(attrs);
    Attrs scatter = group(near), across = group(far);
    const int64_t parts = scatter.i("parts");
    for (Attrs* sum : {&scatter, &across}) sum->set("reduce", std::string("sum"));
    x = b.emit("reduce_scatter", {b.reshape(x, {parts, elements(shape) / parts})}, std::move(scatter));
    x = b.emit("all_gather", {b.emit("all_reduce", {x}, std::move(across))}, group(near));
    return b.reshape(x, shape);
  }

  const LocalProgram& program_;
  const Graph& graph_;
  const std::vector<int64_t> far_;
  const int64_t least_;
};

}  // namespace

void sum_in_levels(LocalProgram& program, const std::vector<int>& far, int64_t least) {
  if (!far.empty()) program.graph = LevelSums(program, far, least).apply();
}

}  // namespace partita
