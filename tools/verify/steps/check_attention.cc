// Attention whose step says where rows lie: its operands are values that the graph's are views of, and its results what
// the graph makes of them by turning and joining. What the step has of them are the numbers that the graph's nodes
// give.
#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/quote.h"
#include "base/status.h"
#include "ir/graph/strided_view.h"
#include "runtime/program/params.h"
#include "tools/verify/layout/mismatch.h"
#include "tools/verify/layout/serial_values.h"
#include "tools/verify/steps/check_step.h"
#include "tools/verify/steps/step_checker.h"

namespace partita::verifier {
namespace {

using runtime::Step;

// How `v` lies in the memory of `base`, of which it is a view, or which is made of it.
class RowFinder {
 public:
  RowFinder(const Graph& graph, const std::vector<ValueId>& storage) : g_(graph), storage_(storage) {}

  std::optional<StridedView> find(ValueId v, ValueId base) const {
    std::optional<StridedView> view = as_view(v, base);
    return view ? view : as_part(v, base, dense_view(g_.type(base).shape));
  }

 private:
  std::optional<StridedView> as_view(ValueId v, ValueId base) const {
    if (storage_[v] == base) return dense_view(g_.type(v).shape);  // the same bytes
    const Node* node = g_.producer(v);
    const bool turns =
        node != nullptr && (node->op->view || node->op->name == "transpose" || node->op->name == "slice");
    if (!turns) return std::nullopt;
    const std::optional<StridedView> operand = as_view(node->inputs[0], base);
    return operand ? view_after(g_, *node, *operand) : std::nullopt;
  }

  // `base` lies as `view`; back from it over what is made of `v`.
  std::optional<StridedView> as_part(ValueId v, ValueId base, const StridedView& view) const {
    if (base == v) return view;
    const Node* node = g_.producer(base);
    for (size_t k = 0; node != nullptr && k < node->inputs.size(); ++k) {
      if (node->inputs[k] == kNoValue) continue;
      const std::optional<StridedView> operand = view_before(g_, *node, k, view);
      if (!operand) return std::nullopt;
      if (auto found = as_part(v, node->inputs[k], *operand)) return found;
    }
    return std::nullopt;
  }

  const Graph& g_;
  const std::vector<ValueId>& storage_;
};

// The attention behind a result that is made of it by turning and joining.
const Node* attention_behind(const Graph& graph, int value, const std::string& name) {
  const Node* node = value < 0 ? nullptr : graph.producer(value);
  while (node != nullptr && node->op->name != name) {
    const bool turns = node->op->view || node->op->name == "transpose" || node->op->name == "concat";
    node = turns ? graph.producer(node->inputs[0]) : nullptr;
  }
  return node;
}

struct RowParam {
  const char* name;
  size_t input;  // of the node
};
constexpr RowParam kForward[] = {{"q", 0}, {"k", 1}, {"v", 2}},
                   kBackward[] = {{"q", 1}, {"k", 2}, {"v", 3}, {"out", 5}, {"g", 0}};
constexpr const char* kGradients[] = {"dq", "dk", "dv"};

}  // namespace

absl::Status StepChecker::run_attention(const Step& step) {
  PARTITA_RETURN_IF_ERROR(check_apart(step, false));
  const std::vector<int>& values = claims_[step.id].values;
  const auto inputs = static_cast<size_t>(step.inputs);
  if (inputs >= values.size()) return differs("expected a result, found none");
  const Node* node = attention_behind(g_, values[inputs], step.name);
  if (node == nullptr) return differs("expected a result of ", step.name, ", found ", m_.name(values[inputs]));
  const bool gradient = step.name == "attention_grad", together = step.params.contains("together");
  if (inputs != node->inputs.size() || step.operands.size() - inputs != (together ? 1 : node->outputs.size()))
    return differs("expected the operands of ", step.name);
  const std::span<const RowParam> rows = gradient ? std::span<const RowParam>(kBackward) : kForward;

  // What is left of its parameters is the node's.
  Step rest = step;
  const auto has = [&](const char* name, const std::vector<int64_t>& expected) {
    const auto found = runtime::ints_param(step.params, name, {});
    rest.params.erase(name);
    return found == expected ? absl::OkStatus()
                             : differs("expected ", name, " at ", to_string(expected), ", found ", to_string(found));
  };
  const auto lies = [&](const char* name, ValueId v, int in) {
    const std::optional<StridedView> view =
        in < 0 ? std::nullopt : RowFinder(g_, storage_).find(v, static_cast<ValueId>(in));
    if (!view || view->strides[3] > 1)
      return differs(name, ": expected memory in which rows of ", m_.name(v), " lie, found ", m_.name(in));
    return has(name, {view->offset, view->strides[0], view->strides[1], view->strides[2]});
  };
  const Shape &q = g_.type(node->inputs[gradient]).shape, &k = g_.type(node->inputs[gradient + 1]).shape,
              &v = g_.type(node->inputs[gradient + 2]).shape;
  PARTITA_RETURN_IF_ERROR(has("sizes", {q[0], q[1], k[1], q[2], k[2], q[3], v[3]}));
  for (size_t x = 0; x < inputs; ++x) {
    const ValueId own = node->inputs[x];
    if (own == kNoValue) {
      if (step.operands[x].dtype != DType::kInvalid) return differs("operand ", x, ": expected none");
      continue;
    }
    const auto row = std::find_if(rows.begin(), rows.end(), [&](const RowParam& r) { return r.input == x; });
    absl::Status status;
    if (row != rows.end()) {
      status = lies(row->name, own, values[x]);
    } else if (step.operands[x].shape != g_.type(own).shape || values[x] != storage_[own]) {
      status = differs("expected ", m_.name(storage_[own]), ", found ", m_.name(values[x]));
    }
    if (status.ok()) status = read(step, x, values[x]);
    if (!status.ok()) return differs("operand ", x, ": ", status.message());
  }
  int64_t written = 0;
  for (size_t x = 0; x < (gradient ? 3 : 1); ++x) {
    const size_t o = inputs + (together ? 0 : x);
    PARTITA_RETURN_IF_ERROR(lies(gradient ? kGradients[x] : "out", node->outputs[x], values[o]));
    written += elements(g_.type(node->outputs[x]).shape);
    if (together && x < 2) continue;
    if (elements(g_.type(values[o]).shape) != written)
      return differs("operand ", o, ": expected results that fill ", m_.name(values[o]));
    written = 0;
    PARTITA_RETURN_IF_ERROR(write_result(step, o, values[o]));
  }
  if (!gradient) PARTITA_RETURN_IF_ERROR(write_result(step, inputs + 1, storage_[node->outputs[1]]));
  if (together && runtime::int_param(step.params, "together", 0) != 1) return differs("expected together to be 1");
  rest.params.erase("together");
  return check_params(*node, rest, "");
}

}  // namespace partita::verifier
