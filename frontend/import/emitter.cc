#include "frontend/import/emitter.h"

#include <algorithm>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "ir/graph/evaluate.h"

namespace partita {
namespace {

[[noreturn]] void fail(std::string message) { throw ImportError{absl::InvalidArgumentError(std::move(message))}; }

std::vector<Tensor> evaluate_literals(const OpDef& op, const Attrs& attrs, const std::vector<const Literal*>& inputs) {
  std::vector<Tensor> tensors(inputs.size());
  std::vector<const Tensor*> pointers(inputs.size(), nullptr);
  for (size_t k = 0; k < inputs.size(); ++k) {
    if (!inputs[k]) continue;
    tensors[k] = to_tensor(*inputs[k]);
    pointers[k] = &tensors[k];
  }
  return evaluate_op(op, attrs, pointers);
}

constexpr int64_t kHuge = int64_t{1} << 50;

// Steps that element counts do not tell: the multiply-adds of a contraction, the windows of a pool.
int64_t hidden_work(const OpDef& op, const Attrs& attrs, const std::vector<TensorType>& inputs, int64_t outputs) {
  if (op.scalar || op.view) return 0;
  int64_t n = (op.flops || op.flops_per_point > 0) && op.evaluate ? points(bound_formula(op, {attrs, inputs})) : 0;
  for (const auto& [name, value] : attrs.items()) {
    if (name != "kernel") continue;
    int64_t window = outputs;
    for (int64_t k : std::get<std::vector<int64_t>>(value)) window = k > 0 && window > kHuge / k ? kHuge : window * k;
    n += window;
  }
  return n;
}

}  // namespace

void Emitter::at_node(std::string text) {
  pending_origin_ = std::move(text);
  b_.context().origin = -1;
}

bool Emitter::fold_now(const OpDef& op, const std::vector<ValueId>& inputs, const Attrs& attrs,
                       const std::vector<TensorType>& types) {
  if (op.communicates || (!op.evaluate && !op.scalar && !op.expand && !op.view)) return false;
  int64_t count = 0;
  for (const TensorType& t : types) {
    int64_t n = elements(t.shape);
    if (n > kMaxEager) return false;
    count += n;
  }
  std::vector<TensorType> input_types;
  for (ValueId v : inputs) {
    if (v != kNoValue && !literal(v)) return false;
    input_types.push_back(v == kNoValue ? TensorType{} : type(v));
    if (v != kNoValue) count += elements(shape(v));
  }
  if (count > 16 * kMaxEager) return false;
  count += hidden_work(op, attrs, input_types, count);
  if (count > 64 * kMaxEager || work_ + count > kMaxWork) return false;
  work_ += count;
  return true;
}

std::vector<ValueId> Emitter::fold(const OpDef& op, const std::vector<ValueId>& inputs, const Attrs& attrs) {
  std::vector<const Literal*> literals;
  for (ValueId v : inputs) literals.push_back(literal(v));
  std::vector<ValueId> out;
  for (const Tensor& t : evaluate_literals(op, attrs, literals)) out.push_back(b_.constant(to_literal(t)));
  return out;
}

std::vector<ValueId> Emitter::emit_all(std::string_view name, std::vector<ValueId> inputs, Attrs attrs) {
  const OpDef* op = find_op(name);
  if (!op) throw ImportError{absl::UnimplementedError(cat("the IR has no op '", name, "'"))};
  bool constant = true;
  for (ValueId v : inputs) constant &= v == kNoValue || literal(v) || derived(v);
  if (constant) {
    std::vector<TensorType> types;
    for (ValueId v : inputs) types.push_back(v == kNoValue ? TensorType{} : type(v));
    auto results = infer_types(*op, {attrs, types});
    if (!results.ok()) fail(cat(name, ": ", results.status().message()));
    if (fold_now(*op, inputs, attrs, *results)) return fold(*op, inputs, attrs);
    for (const TensorType& t : *results) {
      int64_t bytes;
      if (__builtin_mul_overflow(elements(t.shape), dtype_size(t.dtype), &bytes) || bytes > kMaxConstantBytes) {
        fail(cat("a constant of type ", to_string(t), " would take more than ", kMaxConstantBytes >> 40, " TiB"));
      }
    }
  }
  if (b_.context().origin < 0 && !pending_origin_.empty()) b_.context().origin = b_.origin(pending_origin_);
  auto outputs = b_.try_emit(*op, std::move(inputs), std::move(attrs));
  if (!outputs.ok()) fail(cat(name, ": ", outputs.status().message()));
  if (constant) {
    derived_.resize(b_.graph().values.size(), false);
    for (ValueId v : *outputs) derived_[v] = true;
  }
  return *std::move(outputs);
}

ValueId Emitter::floats(DType dtype, Shape shape, const std::vector<double>& values) {
  Tensor t{{dtype, std::move(shape)}, values, {}};
  return b_.constant(to_literal(t));
}

ValueId Emitter::ints(DType dtype, Shape shape, const std::vector<int64_t>& values) {
  Tensor t{{dtype, std::move(shape)}, {}, values};
  return b_.constant(to_literal(t));
}

ValueId Emitter::reshape(ValueId a, Shape to) {
  return shape(a) == to ? a : emit("reshape", {a}, {{"shape", std::move(to)}});
}

ValueId Emitter::transpose(ValueId a, std::vector<int64_t> permutation) {
  if (std::is_sorted(permutation.begin(), permutation.end())) return a;
  return emit("transpose", {a}, {{"permutation", std::move(permutation)}});
}

ValueId Emitter::slice(ValueId a, int dim, int64_t start, int64_t limit, int64_t stride) {
  const Shape& s = shape(a);
  if (start == 0 && limit == s[dim] && stride == 1) return a;
  std::vector<int64_t> starts(s.size(), 0), limits = s, strides(s.size(), 1);
  starts[dim] = start;
  limits[dim] = limit;
  strides[dim] = stride;
  return emit("slice", {a}, {{"starts", starts}, {"limits", limits}, {"strides", strides}});
}

ValueId Emitter::concat(std::vector<ValueId> parts, int dim) {
  return parts.size() == 1 ? parts[0] : emit("concat", std::move(parts), {{"dim", int64_t{dim}}});
}

ValueId Emitter::pad(ValueId a, ValueId value, std::vector<int64_t> low, std::vector<int64_t> high) {
  auto zero = [](int64_t n) { return n == 0; };
  if (std::all_of(low.begin(), low.end(), zero) && std::all_of(high.begin(), high.end(), zero)) return a;
  return emit("pad", {a, value}, {{"low", std::move(low)}, {"high", std::move(high)}});
}

ValueId Emitter::reduce(std::string_view op, ValueId a, std::vector<int64_t> dims, bool keep) {
  if (dims.empty()) return a;
  return emit(op, {a}, {{"dims", std::move(dims)}, {"keep", int64_t{keep}}});
}

ValueId Emitter::mean(ValueId a, std::vector<int64_t> dims, bool keep) {
  double n = 1;
  for (int64_t d : dims) n *= static_cast<double>(shape(a)[d]);
  return scale(sum(a, std::move(dims), keep), 1 / n);
}

ValueId Emitter::matmul(ValueId a, ValueId b, bool transpose_a, bool transpose_b) {
  return emit("matmul", {a, b}, {{"transpose_a", int64_t{transpose_a}}, {"transpose_b", int64_t{transpose_b}}});
}

ValueId Emitter::numbers(const Shape& to) { return reshape(iota(elements(to)), to); }

const Literal* Emitter::leaf(ValueId v, bool mark) {
  if (const Literal* l = literal(v)) return l;
  if (auto at = known_.find(v); at != known_.end()) return &at->second;
  if (b_.graph().values[v].producer >= 0) return nullptr;
  for (const State& s : b_.graph().states) {
    if (s.value != v) continue;
    const Literal* l = std::get_if<Literal>(&s.initial);
    if (l && mark && std::find(used_states_.begin(), used_states_.end(), v) == used_states_.end())
      used_states_.push_back(v);
    return l;
  }
  return nullptr;
}

Literal Emitter::known(ValueId v, std::string_view what) {
  if (const Literal* l = leaf(v, true)) return *l;
  const Graph& g = b_.graph();
  std::vector<NodeId> cone;
  std::vector<ValueId> stack = {v};
  std::vector<bool> seen(g.nodes.size(), false);
  int64_t count = 0;
  while (!stack.empty()) {
    ValueId at = stack.back();
    stack.pop_back();
    if (at == kNoValue || leaf(at, true)) continue;
    NodeId n = g.values[at].producer;
    if (n < 0) {
      const std::string& name = g.values[at].name;
      bool state = std::any_of(g.states.begin(), g.states.end(), [&](const State& s) { return s.value == at; });
      fail(cat(what,
               state ? " depends on weights whose values are not in the file: "
                     : " must be known when the model is compiled, but depends on the data input ",
               quote(name), state ? "" : "; export with fixed sizes (no data-dependent shapes)"));
    }
    if (seen[n]) continue;
    seen[n] = true;
    cone.push_back(n);
    for (ValueId out : g.nodes[n].outputs) {
      int64_t size = elements(g.type(out).shape);
      if (size > kMaxFolded || (count += size) > kMaxFolded)
        fail(cat(what, " would take folding more than ", kMaxFolded, " elements of constants"));
    }
    stack.insert(stack.end(), g.nodes[n].inputs.begin(), g.nodes[n].inputs.end());
  }
  std::sort(cone.begin(), cone.end());
  std::unordered_map<ValueId, Literal> values;
  for (NodeId n : cone) {
    const Node& node = g.nodes[n];
    std::vector<const Literal*> inputs;
    for (ValueId in : node.inputs) {
      auto made = values.find(in);
      inputs.push_back(in == kNoValue ? nullptr : made != values.end() ? &made->second : leaf(in, false));
    }
    std::vector<Tensor> results = evaluate_literals(*node.op, node.attrs, inputs);
    for (size_t k = 0; k < results.size(); ++k) values[node.outputs[k]] = to_literal(results[k]);
  }
  return known_[v] = values.at(v);
}

}  // namespace partita
