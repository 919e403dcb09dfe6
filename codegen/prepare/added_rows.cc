#include "codegen/prepare/added_rows.h"

#include <map>
#include <string>
#include <utility>

#include "base/cat.h"
#include "base/status.h"
#include "codegen/prepare/value_readers.h"
#include "ir/graph/builder.h"
#include "ir/op/op_def.h"

namespace partita {
namespace {

OpView rows_alone(const OpView& use) { return {use.attrs, use.inputs.first(2)}; }

// The code generator's own form of gather_grad: no graph outside it has one.
const OpDef kAddedRows = {.name = "gather_grad",
                          .min_inputs = 3,
                          .max_inputs = 3,
                          .attributes = "i dim, i size, s epilogue",
                          .infer = [](const OpView& use) -> absl::StatusOr<std::vector<TensorType>> {
                            PARTITA_ASSIGN_OR_RETURN(std::vector<TensorType> types,
                                                     find_op("gather_grad")->infer(rows_alone(use)));
                            if (types[0] != use.inputs[2])
                              return absl::InvalidArgumentError("expected a term like the rows' gradient");
                            return types;
                          },
                          .flops = [](const OpView& use) { return static_cast<double>(elements(use.shape(0))); },
                          .kernel = true};

bool is_sum(const Node& node) {
  const bool adds = node.op == find_op("add") || node.op == find_op("accumulate");
  return adds && node.device == DeviceKind::kDefault;
}

// Whether rows may be made where their sum is: in the same part of the step. A sum of a weight's gradients is not
// marked as one where a stage's backward part is not cut in two.
bool may_wait(const Node& rows, const Node& sum) {
  return rows.segment == sum.segment && rows.chunk == sum.chunk && rows.turn == sum.turn &&
         (rows.weight_gradient || !sum.weight_gradient);
}

class RowAdder {
 public:
  explicit RowAdder(const Graph& graph) : graph_(graph), reads_(graph.values.size(), 0), r_(graph) {
    for (const Node& node : graph.nodes) {
      for (ValueId v : node.inputs) {
        if (v != kNoValue) ++reads_[static_cast<size_t>(v)];
      }
    }
    for (const GraphOutput& o : graph.outputs) ++reads_[static_cast<size_t>(o.value)];
    for (const State& s : graph.states) {
      if (s.next != kNoValue) ++reads_[static_cast<size_t>(s.next)];
    }
  }

  AddedRows run() && {
    std::map<const Node*, int> rows_of;    // sums: which of their terms are rows
    std::map<const Node*, bool> needless;  // rows that have none of their own
    for (const Node& node : graph_.nodes) {
      const int k = is_sum(node) ? rows_in(node) : -1;
      if (k < 0) continue;
      rows_of[&node] = k;
      needless[graph_.producer(node.inputs[static_cast<size_t>(k)])] = true;
    }
    for (const Node& node : graph_.nodes) {
      if (const auto at = rows_of.find(&node); at != rows_of.end()) {
        emit(node, static_cast<size_t>(at->second));
      } else if (!needless.contains(&node)) {
        r_.copy(node);
      }
    }
    AddedRows out;
    out.same_as = same_values(r_, graph_, {});
    out.graph = std::move(r_).finish();
    return out;
  }

 private:
  // The term of a sum that is a gradient of rows which nothing else reads; the last one made, or -1. Its numbers are
  // not rounded to fewer bits after each row that is added.
  int rows_in(const Node& sum) const {
    int found = -1;
    for (int k = 0; k < 2; ++k) {
      const ValueId v = sum.inputs[static_cast<size_t>(k)], other = sum.inputs[static_cast<size_t>(1 - k)];
      const Node* rows = graph_.producer(v);
      const TensorType& type = graph_.type(v);
      if (rows == nullptr || rows->op != find_op("gather_grad") || reads_[static_cast<size_t>(v)] != 1 ||
          !is_float(type.dtype) || dtype_size(type.dtype) < 4 || graph_.type(other) != type || !may_wait(*rows, sum))
        continue;
      if (found < 0 || v > sum.inputs[static_cast<size_t>(found)]) found = k;
    }
    return found;
  }

  void emit(const Node& sum, size_t k) {
    const Node& rows = *graph_.producer(sum.inputs[k]);
    Attrs attrs = rows.attrs;
    attrs.set("epilogue", std::string("accumulate"));
    r_.at(sum);
    auto made =
        r_.builder().try_emit(kAddedRows, {r_(rows.inputs[0]), r_(rows.inputs[1]), r_(sum.inputs[1 - k])}, attrs);
    PARTITA_CHECK(made.ok(), cat("rows added to a sum: ", made.status().message()));
    r_.replace(sum.outputs[0], (*made)[0]);
  }

  const Graph& graph_;
  std::vector<int> reads_;  // per value
  Rewriter r_;
};

}  // namespace

AddedRows add_rows(const Graph& graph) { return RowAdder(graph).run(); }

}  // namespace partita
