#include "ir/graph/evaluate.h"

#include <algorithm>

#include "base/cat.h"
#include "base/status.h"
#include "ir/graph/builder.h"
#include "ir/op/scalar_points.h"

namespace partita {
namespace {

// Per value, the last node that reads it among the nodes that are needed; -1: never read; nodes.size(): wanted.
std::vector<int64_t> last_reads(const Graph& graph, const std::vector<ValueId>& wanted, std::vector<bool>& needed) {
  std::vector<int64_t> last(graph.values.size(), -1);
  for (ValueId v : wanted) last[v] = static_cast<int64_t>(graph.nodes.size());
  needed.assign(graph.nodes.size(), false);
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    for (ValueId v : graph.nodes[n].outputs) needed[n] = needed[n] || last[v] >= 0;
    if (!needed[n]) continue;
    for (ValueId v : graph.nodes[n].inputs) {
      if (v != kNoValue && last[v] < 0) last[v] = static_cast<int64_t>(n);
    }
  }
  return last;
}

constexpr size_t kPoints = 256;  // that the interpreter takes at once

// Goes through the points of a result in row-major order.
class Points {
 public:
  explicit Points(const Shape& shape) : shape_(shape), rows_(shape.size()), at_(shape.size(), 0) {}

  // The coordinates of the next points, at most kPoints.
  const std::vector<std::vector<int64_t>>& next(size_t count) {
    for (std::vector<int64_t>& row : rows_) row.resize(count);
    for (size_t p = 0; p < count; ++p) {
      for (size_t d = 0; d < rows_.size(); ++d) rows_[d][p] = at_[d];
      for (size_t d = shape_.size(); d-- > 0 && ++at_[d] == shape_[d];) at_[d] = 0;
    }
    return rows_;
  }

 private:
  const Shape& shape_;
  std::vector<std::vector<int64_t>> rows_;
  std::vector<int64_t> at_;
};

// Steps along each of the result's dimensions; 0 where the operand is repeated.
std::vector<int64_t> operand_strides(const Shape& operand, size_t rank) {
  const std::vector<int64_t> own = row_major_strides(operand);
  std::vector<int64_t> strides(rank, 0);
  for (size_t d = 0; d < operand.size(); ++d) strides[rank - operand.size() + d] = operand[d] == 1 ? 0 : own[d];
  return strides;
}

std::vector<Tensor> evaluate_elementwise(const OpDef& op, const OpView& use, std::span<const Tensor* const> inputs,
                                         std::vector<Tensor> outputs) {
  const ScalarFunction function = scalar_function(op, use);
  const Shape& shape = outputs[0].type.shape;
  std::vector<std::vector<int64_t>> strides;
  for (const Tensor* x : inputs) strides.push_back(operand_strides(x->type.shape, shape.size()));
  const std::vector<int64_t> whole = operand_strides(shape, shape.size());  // of what has the result's elements in turn
  std::vector<std::vector<ScalarValue>> in(inputs.size());
  std::vector<ScalarValue> values;
  Points points(shape);
  const size_t n = static_cast<size_t>(elements(shape));
  for (size_t first = 0; first < n; first += kPoints) {
    const size_t count = std::min(kPoints, n - first);
    const std::vector<std::vector<int64_t>>& index = points.next(count);
    for (size_t k = 0; k < inputs.size(); ++k) {
      in[k].resize(count);
      const bool floats = is_float(inputs[k]->type.dtype);
      if (floats && strides[k] == whole) {
        for (size_t p = 0; p < count; ++p) in[k][p] = {inputs[k]->f[first + p], 0};
        continue;
      }
      for (size_t p = 0; p < count; ++p) {
        int64_t at = 0;
        for (size_t d = 0; d < shape.size(); ++d) at += index[d][p] * strides[k][d];
        in[k][p] = floats ? ScalarValue{inputs[k]->f[static_cast<size_t>(at)], 0}
                          : ScalarValue{0, inputs[k]->i[static_cast<size_t>(at)]};
      }
    }
    evaluate_points(function, count, in, index, values);
    for (size_t k = 0; k < outputs.size(); ++k) {
      const ScalarValue* out = values.data() + static_cast<size_t>(function.outputs[k]) * count;
      for (size_t p = 0; p < count; ++p) {
        if (is_float(outputs[k].type.dtype)) {
          outputs[k].f[first + p] = out[p].f;
        } else {
          outputs[k].i[first + p] = out[p].i;
        }
      }
    }
  }
  return outputs;
}

std::vector<Tensor> evaluate_expansion(const OpDef& op, const Attrs& attrs, std::span<const Tensor* const> inputs) {
  Builder b;
  std::vector<TensorType> types;
  std::vector<ValueId> ids;
  std::map<ValueId, Tensor> feeds;
  for (size_t k = 0; k < inputs.size(); ++k) {
    types.push_back(inputs[k] ? inputs[k]->type : TensorType{});
    ids.push_back(inputs[k] ? b.input(cat("x", k), inputs[k]->type) : kNoValue);
    if (inputs[k]) feeds.emplace(ids.back(), *inputs[k]);
  }
  std::vector<ValueId> outputs = op.expand({b, attrs, types, ids, {}, {}});
  return evaluate_graph(b.graph(), feeds, outputs);
}

}  // namespace

std::vector<Tensor> evaluate_op(const OpDef& op, const Attrs& attrs, std::span<const Tensor* const> inputs) {
  std::vector<TensorType> types;
  for (const Tensor* t : inputs) types.push_back(t ? t->type : TensorType{});
  OpView use{attrs, types};
  auto inferred = infer_types(op, use);
  PARTITA_CHECK(inferred.ok(), cat(op.name, ": ", inferred.status().message()));
  std::vector<Tensor> outputs;
  for (TensorType& t : *inferred) outputs.push_back(Tensor::zeros(std::move(t)));
  if (op.evaluate) {
    op.evaluate(use, inputs, outputs);
  } else if (op.view) {
    outputs[0].f = inputs[0]->f;
    outputs[0].i = inputs[0]->i;
  } else if (op.scalar) {
    outputs = evaluate_elementwise(op, use, inputs, std::move(outputs));
  } else {
    PARTITA_CHECK(op.expand != nullptr, cat(op.name, " has no meaning"));
    outputs = evaluate_expansion(op, attrs, inputs);
  }
  return outputs;
}

std::vector<Tensor> evaluate_graph(const Graph& graph, const std::map<ValueId, Tensor>& feeds,
                                   const std::vector<ValueId>& wanted, const std::function<void(Tensor&)>& made) {
  std::vector<bool> needed;
  std::vector<int64_t> last = last_reads(graph, wanted, needed);
  std::vector<Tensor> own(graph.values.size());
  std::vector<const Tensor*> at(graph.values.size(), nullptr);
  auto hold = [&](ValueId v, Tensor tensor) {
    own[v] = std::move(tensor);
    at[v] = &own[v];
  };
  for (const auto& [v, tensor] : feeds) {
    PARTITA_CHECK(tensor.type == graph.type(v),
                  cat("value ", v, " is fed ", to_string(tensor.type), ", not ", to_string(graph.type(v))));
    at[v] = &tensor;
  }
  for (const Constant& c : graph.constants) {
    if (last[c.value] >= 0) hold(c.value, to_tensor(c.literal));
  }
  for (const State& s : graph.states) {
    const Literal* first = std::get_if<Literal>(&s.initial);
    if (last[s.value] < 0 || at[s.value] != nullptr || first == nullptr) continue;
    Tensor value = to_tensor(*first);
    value.type = graph.type(s.value);  // narrower for a frozen weight that is held in 16 bits
    hold(s.value, value.type == first->type ? std::move(value) : to_tensor(to_literal(value)));
  }
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (!needed[n]) continue;
    const Node& node = graph.nodes[n];
    std::vector<const Tensor*> in;
    for (ValueId v : node.inputs) {
      PARTITA_CHECK(v == kNoValue || at[v] != nullptr, cat(graph.origin(node), ": value ", v, " has no value"));
      in.push_back(v == kNoValue ? nullptr : at[v]);
    }
    std::vector<Tensor> out = evaluate_op(*node.op, node.attrs, in);
    for (size_t k = 0; k < out.size(); ++k) {
      if (made) made(out[k]);
      hold(node.outputs[k], std::move(out[k]));
    }
    for (ValueId v : node.inputs) {
      if (v != kNoValue && last[v] == static_cast<int64_t>(n)) own[v] = Tensor{};
    }
  }
  std::vector<Tensor> results;
  for (ValueId v : wanted) {
    PARTITA_CHECK(at[v] != nullptr, cat("value ", v, " has no value"));
    results.push_back(*at[v]);
  }
  return results;
}

std::vector<Tensor> evaluate_graph(const Graph& graph, const std::map<ValueId, Tensor>& feeds) {
  std::vector<ValueId> wanted;
  for (const GraphOutput& out : graph.outputs) wanted.push_back(out.value);
  return evaluate_graph(graph, feeds, wanted);
}

}  // namespace partita
