#include "codegen/prepare/product_epilogues.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/cat.h"
#include "base/status.h"
#include "codegen/prepare/value_readers.h"
#include "ir/graph/builder.h"
#include "ir/graph/storage.h"
#include "ir/op/op_def.h"

namespace partita {
namespace {

constexpr int64_t kAuxColumns = 8;  // cuBLASLt's rows of what goes with a GELU are multiples of it

bool has_piece(const Attrs& attrs, std::string_view piece) {
  const std::string all = "+" + attrs.s("epilogue") + "+";
  return all.find(cat("+", piece, "+")) != std::string::npos;
}

OpView without_epilogue(const OpView& use) { return {use.attrs, use.inputs.first(2)}; }

// The product, then what it was the GELU of, then a sum of an operand's rows.
absl::StatusOr<std::vector<TensorType>> product_types(const OpView& use) {
  PARTITA_ASSIGN_OR_RETURN(std::vector<TensorType> types, find_op("matmul")->infer(without_epilogue(use)));
  if (has_piece(use.attrs, "aux")) types.push_back(types[0]);
  if (has_piece(use.attrs, "sum_a")) types.push_back({use.dtype(), {types[0].shape[types[0].shape.size() - 2]}});
  if (has_piece(use.attrs, "sum_b")) types.push_back({use.dtype(), {types[0].shape.back()}});
  return types;
}

double product_flops(const OpView& use) {
  const OpDef& op = *find_op("matmul");
  return use_flops(op, without_epilogue(use), bound_formula(op, without_epilogue(use)));
}

// The code generator's own form of matmul: no graph outside it has one.
const OpDef kProduct = {.name = "matmul",
                        .min_inputs = 2,
                        .max_inputs = 4,
                        .attributes = "i transpose_a?, i transpose_b?, i tf32?, i fp8?, s epilogue",
                        .infer = product_types,
                        .work = WorkKind::kMatrix,
                        .flops = product_flops,
                        .kernel = true};

// What one product takes upon itself. Values of the given graph; those of a list are equal.
struct Epilogue {
  ValueId bias = kNoValue;
  ValueId gelu_of = kNoValue;                // of a gelu_grad
  std::vector<ValueId> sums, results, rows;  // product + bias; the product's result behind all; sums of rows
  bool gelu = false, aux = false;
  char summed = 0;  // 'a', 'b': the operand whose rows are summed
  bool any() const { return bias != kNoValue || gelu || gelu_of != kNoValue || summed != 0; }
};

class Fuser {
 public:
  explicit Fuser(const Graph& graph)
      : graph_(graph),
        r_(graph),
        uses_(uses(graph)),
        readers_(graph.values.size()),
        wanted_(graph.values.size(), false) {
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      if (graph.nodes[n].op->view) continue;
      for (ValueId v : graph.nodes[n].inputs) {
        if (v != kNoValue) readers_[storage(v)].push_back(static_cast<NodeId>(n));
      }
    }
    for (const GraphOutput& o : graph.outputs) wanted_[storage(o.value)] = true;
    for (const State& s : graph.states) {
      if (s.next != kNoValue) wanted_[storage(s.next)] = true;
    }
  }

  FusedProducts run() && {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) plan(static_cast<NodeId>(n));
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const NodeId id = static_cast<NodeId>(n);
      const Node& node = graph_.nodes[n];
      // What lies between a product and what it takes upon itself has no operands any more.
      const bool between = std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId v) { return !r_.has(v); });
      if (const auto e = planned_.find(id); e != planned_.end()) {
        emit(node, e->second);
      } else if (!between && gone_.count(id) == 0) {
        r_.copy(node);
      }
    }
    FusedProducts out;
    out.same_as = same_values(r_, graph_, made_);
    out.graph = std::move(r_).finish();
    return out;
  }

 private:
  ValueId storage(ValueId v) const { return storage_of(graph_, v); }
  const Node& node(NodeId n) const { return graph_.nodes[n]; }
  DType dtype(ValueId v) const { return graph_.type(v).dtype; }
  int64_t columns(ValueId v) const { return graph_.type(v).shape.empty() ? 1 : graph_.type(v).shape.back(); }

  // Of matrices, not of batches of them.
  bool is_plain_product(const Node& n) const {
    if (n.op != find_op("matmul") || n.device != DeviceKind::kDefault) return false;
    const DType t = dtype(n.outputs[0]);
    if (t != DType::kF32 && t != DType::kBF16 && t != DType::kF16) return false;
    const auto matrices = [&](ValueId v) {
      const Shape& s = graph_.type(v).shape;
      return std::accumulate(s.begin(), s.end() - 2, int64_t{1}, std::multiplies<>());
    };
    return elements(graph_.type(n.outputs[0]).shape) > 0 && elements(graph_.type(n.inputs[0]).shape) > 0 &&
           matrices(n.inputs[1]) == 1 && (matrices(n.inputs[0]) == 1 || n.attrs.i("transpose_a", 0) == 0);
  }

  void plan(NodeId n) {
    Epilogue e;
    if (!is_plain_product(node(n))) return;
    const ValueId product = node(n).outputs[0];
    find_bias(n, product, e);
    if (e.bias != kNoValue || !find_gelu_grad(product, e)) find_gelu(n, product, e);
    if (!e.any()) find_rows(n, e);
    if (!e.any()) return;
    for (ValueId v : e.results) gone_.insert(graph_.values[v].producer);
    for (ValueId v : e.rows) gone_.insert(graph_.values[v].producer);
    for (ValueId v : e.sums) gone_.insert(graph_.values[v].producer);
    if (e.aux || !e.gelu) written_.insert(e.sums.begin(), e.sums.end());
    planned_[n] = std::move(e);
  }

  // product + bias, perhaps in f32 and rounded: what it becomes, or kNoValue.
  ValueId sum_with(ValueId product, ValueId x, NodeId reader, ValueId& bias) const {
    const Node& add = node(reader);
    if (add.op->name != "add" || columns(x) != columns(product)) return kNoValue;
    const ValueId other = storage(add.inputs[0]) == storage(x) ? add.inputs[1] : add.inputs[0];
    const Shape& shape = graph_.type(other).shape;
    if (storage(other) == storage(x) || columns(other) != columns(product) || elements(shape) != columns(product) ||
        graph_.type(add.outputs[0]).shape != graph_.type(x).shape)
      return kNoValue;
    bias = other;
    return add.outputs[0];
  }

  // The views of `v`, and itself, that nodes read.
  ValueId read_as(ValueId v, NodeId reader) const {
    for (ValueId x : node(reader).inputs) {
      if (x != kNoValue && storage(x) == v) return x;
    }
    return kNoValue;
  }

  // Every reader of the product, however it spells it, adds the same bias.
  void find_bias(NodeId n, ValueId product, Epilogue& e) const {
    Epilogue found;
    if (wanted_[product] || readers_[product].empty()) return;
    const auto take = [&](ValueId x, NodeId reader) {
      // What only the end of a step reads is added there, and not in each run.
      if ((node(reader).segment == Segment::kUpdate) != (node(n).segment == Segment::kUpdate)) return false;
      ValueId bias = kNoValue;
      const ValueId sum = sum_with(product, x, reader, bias);
      if (sum == kNoValue || (found.bias != kNoValue && storage(bias) != storage(found.bias))) return false;
      found.bias = bias;
      if (dtype(sum) == dtype(product)) return found.sums.push_back(sum), true;
      if (wanted_[sum]) return false;
      for (NodeId r : readers_[sum]) {
        if (!node(r).op->casts || dtype(node(r).outputs[0]) != dtype(product)) return false;
        found.sums.push_back(node(r).outputs[0]);
      }
      return true;
    };
    for (NodeId reader : readers_[product]) {
      const ValueId x = read_as(product, reader);
      if (!node(reader).op->casts) {
        if (!take(x, reader)) return;
        continue;
      }
      const ValueId wide = node(reader).outputs[0];
      if (dtype(wide) != DType::kF32 || wanted_[wide]) return;
      for (NodeId r : readers_[wide]) {
        if (!take(read_as(wide, r), r)) return;
      }
    }
    if (found.bias == kNoValue || found.sums.empty() || graph_.values[storage(found.bias)].producer >= n) return;
    // To be rounded in a step of its own, it must be there as it is.
    const Node* made = graph_.producer(storage(found.bias));
    if (dtype(found.bias) != dtype(product) && made != nullptr && !made->op->communicates) return;
    e.bias = storage(found.bias);  // its view may come later
    e.sums = e.results = found.sums;
  }

  // The GELUs in its own phase of the product, or of the product and its bias; others read what it was of.
  void find_gelu(NodeId n, ValueId product, Epilogue& e) const {
    const std::vector<ValueId> of = e.sums.empty() ? std::vector<ValueId>{product} : e.sums;
    std::vector<ValueId> results;
    bool others = false;
    for (ValueId v : of) {
      others = others || wanted_[v];
      for (NodeId r : readers_[v]) {
        if (is_tanh(node(r), "gelu") && is_in_phase(node(r), node(n))) {
          results.push_back(node(r).outputs[0]);
        } else {
          others = true;
        }
      }
    }
    if (results.empty() || columns(product) % kAuxColumns != 0) return;
    e.gelu = true;
    e.aux = others;
    e.sums = of;
    e.results = results;
  }

  bool is_tanh(const Node& n, std::string_view op) const {
    return n.op->name == op && n.attrs.i("approximate", 0) == 1;
  }

  // The product is read by the gradient of a GELU alone, and what that was of some product wrote before.
  bool find_gelu_grad(ValueId product, Epilogue& e) const {
    if (wanted_[product] || readers_[product].size() != 1) return false;
    const Node& grad = node(readers_[product][0]);
    const Node& made = *graph_.producer(product);
    if (!is_tanh(grad, "gelu_grad") || !is_in_phase(grad, made) || storage(grad.inputs[0]) != product ||
        written_.count(storage(grad.inputs[1])) == 0 || dtype(grad.inputs[1]) != dtype(product) ||
        columns(product) % kAuxColumns != 0)
      return false;
    e.gelu_of = storage(grad.inputs[1]);
    e.results = {grad.outputs[0]};
    // Widened and rounded again it is what it was.
    for (NodeId r : readers_[grad.outputs[0]]) {
      if (!node(r).op->casts || dtype(node(r).outputs[0]) != DType::kF32) continue;
      for (NodeId again : readers_[node(r).outputs[0]]) {
        if (node(again).op->casts && dtype(node(again).outputs[0]) == dtype(product))
          e.results.push_back(node(again).outputs[0]);
      }
    }
    return true;
  }

  // Operands as rows of the inner dimension: [k, n], and [k, m] transposed.
  void find_rows(NodeId n, Epilogue& e) const {
    const Node& product = node(n);
    if (product.attrs.i("transpose_a", 0) == 0 || product.attrs.i("transpose_b", 0) != 0) return;
    for (const char which : {'b', 'a'}) {
      const ValueId operand = product.inputs[which == 'b' ? 1 : 0];
      for (NodeId r : readers_[storage(operand)]) {
        const Node& sum = node(r);
        if (sum.op->name != "reduce_sum" || !is_in_phase(sum, product) || !sums_rows(sum, columns(operand)) ||
            dtype(sum.outputs[0]) != dtype(operand) || gone_.count(r) > 0)
          continue;
        // It is made where the product is.
        const std::vector<NodeId>& after = uses_[sum.outputs[0]];
        if (std::any_of(after.begin(), after.end(), [&](NodeId x) { return x < n; })) continue;
        e.summed = which;
        e.rows = {sum.outputs[0]};
        e.results = {product.outputs[0]};
        return;
      }
    }
  }

  // Over all dimensions but the last one, of so many columns.
  bool sums_rows(const Node& sum, int64_t count) const {
    const Shape& shape = graph_.type(sum.inputs[0]).shape;
    const auto& dims = sum.attrs.ints("dims");
    return !shape.empty() && shape.back() == count && dims.size() + 1 == shape.size() &&
           std::find(dims.begin(), dims.end(), static_cast<int64_t>(shape.size()) - 1) == dims.end();
  }

  // A 16-bit copy is made where those of weights are.
  ValueId bias_of(const Node& product, const Epilogue& e) {
    const ValueId bias = r_(e.bias);
    const DType narrow = dtype(product.outputs[0]);
    if (dtype(e.bias) == narrow) return bias;
    const auto is_early = [&](ValueId v) {
      const Node* made = graph_.producer(storage(v));
      return made != nullptr && made->segment == Segment::kPrologue;
    };
    const bool state = graph_.producer(storage(e.bias)) == nullptr || is_early(e.bias);
    NodeContext& context = r_.builder().context();
    if (state && (is_early(product.inputs[0]) || is_early(product.inputs[1])))
      context.segment = Segment::kPrologue, context.weight_gradient = false;
    const ValueId made = r_.builder().cast(bias, narrow);
    r_.at(product);
    made_.emplace_back(made, kNoValue);
    return made;
  }

  void emit(const Node& product, const Epilogue& e) {
    r_.at(product);
    std::string pieces;
    const auto add = [&](bool there, std::string_view piece) {
      if (there) append(pieces, pieces.empty() ? "" : "+", piece);
    };
    std::vector<ValueId> inputs = {r_(product.inputs[0]), r_(product.inputs[1])};
    if (e.bias != kNoValue) inputs.push_back(bias_of(product, e));
    if (e.gelu_of != kNoValue) inputs.push_back(r_(e.gelu_of));
    add(e.bias != kNoValue, "bias");
    add(e.gelu, "gelu_tanh");
    add(e.aux, "aux");
    add(e.gelu_of != kNoValue, "gelu_tanh_grad");
    add(e.summed == 'a', "sum_a");
    add(e.summed == 'b', "sum_b");
    Attrs attrs = product.attrs;
    attrs.set("epilogue", pieces);
    auto made = r_.builder().try_emit(kProduct, std::move(inputs), attrs);
    PARTITA_CHECK(made.ok(), cat("a product with ", pieces, ": ", made.status().message()));
    stand_for(e.results, (*made)[0]);
    if (e.aux) stand_for(e.sums, (*made)[1]);
    if (e.summed != 0) stand_for(e.rows, made->back());
  }

  void stand_for(const std::vector<ValueId>& olds, ValueId now) {
    made_.emplace_back(now, olds.front());
    for (ValueId old : olds) {
      r_.replace(old, r_.builder().shape(now) == graph_.type(old).shape
                          ? now
                          : r_.builder().reshape(now, graph_.type(old).shape));
    }
  }

  const Graph& graph_;
  Rewriter r_;
  std::vector<std::vector<NodeId>> uses_;     // per value: nodes that read it, in order
  std::vector<std::vector<NodeId>> readers_;  // per storage value: nodes that are no views
  std::vector<bool> wanted_;                  // per storage value: by the outside
  std::map<NodeId, Epilogue> planned_;
  std::set<NodeId> gone_;      // whose results products write
  std::set<ValueId> written_;  // products with a bias, or what a GELU was of: written by their products
  std::vector<std::pair<ValueId, ValueId>> made_;  // of the new graph: what they are
};

}  // namespace

FusedProducts fuse_products(const Graph& graph) { return Fuser(graph).run(); }

}  // namespace partita
