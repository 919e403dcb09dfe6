#include "partitioner/communicate/regather_in_backward.h"

#include <algorithm>

#include "ir/graph/builder.h"
#include "partitioner/communicate/deferrable.h"

namespace partita {
namespace {

class Regathering {
 public:
  Regathering(const LocalProgram& program, const std::vector<int>& axes)
      : graph_(program.graph), axes_(axes), r_(program.graph), whole_(program.graph.values.size(), false) {}

  Graph run() && {
    for (const Node& node : graph_.nodes) {
      if (node.segment == Segment::kForward) {
        const bool moves = DeferrableResults::passes(node) || node.op->name == "shard_slice";
        if (is_gather(node) || (moves && whole_[node.inputs[0]])) whole_[node.outputs[0]] = true;
      } else if (node.segment == Segment::kBackward) {
        for (ValueId v : node.inputs) {
          if (v != kNoValue && whole_[v]) make_again(v, node);
        }
      }
      r_.copy(node);
    }
    return std::move(r_).finish();
  }

 private:
  bool is_gather(const Node& node) const {
    if (node.op->collective != CollectiveOp::kAllGather || node.inputs.size() != 1) return false;
    const std::vector<int64_t>& over = node.attrs.ints("axes");
    return std::all_of(over.begin(), over.end(), [&](int64_t a) { return std::count(axes_.begin(), axes_.end(), a); });
  }

  // Stands for `v` from here on.
  void make_again(ValueId v, const Node& reader) {
    const Node& made = *graph_.producer(v);
    if (whole_[made.inputs[0]]) make_again(made.inputs[0], reader);
    r_.at(reader);
    std::vector<ValueId> inputs;
    for (ValueId input : made.inputs) inputs.push_back(r_(input));
    r_.replace(v, r_.builder().emit(made.op->name, std::move(inputs), made.attrs));
    whole_[v] = false;
  }

  const Graph& graph_;
  const std::vector<int>& axes_;
  Rewriter r_;
  std::vector<bool> whole_;  // per value: gathered in forward, or moved after it, and not made again yet
};

}  // namespace

void regather_in_backward(LocalProgram& program, const std::vector<int>& axes) {
  if (!axes.empty()) program.graph = Regathering(program, axes).run();
}

}  // namespace partita
