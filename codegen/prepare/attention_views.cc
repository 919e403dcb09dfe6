#include "codegen/prepare/attention_views.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/cat.h"
#include "base/status.h"
#include "codegen/prepare/value_readers.h"
#include "ir/graph/builder.h"
#include "ir/graph/storage.h"
#include "ir/graph/strided_view.h"
#include "ir/op/op_def.h"
#include "ir/ops/attention.h"

namespace partita {
namespace {

constexpr int64_t kAligned = 16;   // bytes: copies into shared memory, and what cuDNN wants
constexpr int64_t kLargest = 128;  // elements of a head that our own kernels have, where cuDNN has none

AttentionSizes sizes_of(const Attrs& attrs) {
  const auto& z = attrs.ints("sizes");
  return {z[0], z[1], z[2], z[3], z[4], z[5], z[6]};
}

int64_t queries(const AttentionSizes& z, int64_t width) { return z.b * z.h * z.s * width; }
int64_t keys(const AttentionSizes& z, int64_t width) { return z.b * z.kv * z.t * width; }

// Results have no shape of their own: whatever is made of them has.
absl::StatusOr<std::vector<TensorType>> attention_types(const OpView& use) {
  const AttentionSizes z = sizes_of(use.attrs);
  return std::vector<TensorType>{{use.dtype(), {queries(z, z.e)}}, {DType::kF32, {z.b, z.h, z.s}}};
}

absl::StatusOr<std::vector<TensorType>> gradient_types(const OpView& use) {
  const AttentionSizes z = sizes_of(use.attrs);
  const std::array<int64_t, 3> counts = {queries(z, z.d), keys(z, z.d), keys(z, z.e)};
  if (use.attrs.i("together", 0) != 0)
    return std::vector<TensorType>{{use.dtype(), {counts[0] + counts[1] + counts[2]}}};
  std::vector<TensorType> types;
  for (int64_t n : counts) types.push_back({use.dtype(), {n}});
  return types;
}

// Of what is multiplied of a query and a value: as the ops of the graph have it.
double flops(const OpView& use, int over_d, int over_e) {
  const AttentionSizes z = sizes_of(use.attrs);
  const DType t = use.dtype();
  const TensorType types[] = {{t, {z.b, z.h, z.s, z.d}}, {t, {z.b, z.kv, z.t, z.d}}, {t, {z.b, z.kv, z.t, z.e}}};
  return attention_flops({use.attrs, types}, 0, over_d, over_e);
}

// The code generator's own forms: no graph outside it has them.
const OpDef kAttention = {.name = "attention",
                          .min_inputs = 3,
                          .max_inputs = 4,
                          .attributes = "f scale, i causal?, s kernel?, ints sizes, ints q, ints k, ints v, ints out",
                          .infer = attention_types,
                          .work = WorkKind::kAttention,
                          .flops = [](const OpView& use) { return flops(use, 1, 1); },
                          .kernel = true};
const OpDef kGradient = {.name = "attention_grad",
                         .min_inputs = 4,  // the mask, the fifth, may be absent
                         .max_inputs = 7,
                         .attributes =
                             "f scale, i causal?, s kernel?, ints sizes, ints q, ints k, ints v, ints out, "
                             "ints g, ints dq, ints dk, ints dv, i together?",
                         .infer = gradient_types,
                         .work = WorkKind::kAttention,
                         .flops = [](const OpView& use) { return flops(use, 3, 2); },
                         .kernel = true};

// Where rows lie, and in what.
struct Rows {
  ValueId of = kNoValue;
  StridedView view;  // [batch, heads, rows, elements]
};

class Viewer {
 public:
  Viewer(const Graph& graph, bool narrow)
      : graph_(graph), narrow_(narrow), r_(graph), uses_(uses(graph)), readers_(graph) {
    for (const GraphOutput& o : graph.outputs) wanted_.insert(o.value);
    for (const State& s : graph.states) wanted_.insert(s.next);
  }

  AttentionViews run() && {
    for (const Node& node : graph_.nodes) plan(node);
    std::erase_if(planned_, [&](const auto& p) { return !p.second.any; });
    for (const auto& [node, p] : planned_) {
      for (const Rows& rows : p.operands) readers_.add({rows.of});
    }
    for (const auto& [node, p] : planned_) readers_.remove(rows_of(*node), is_view);
    for (const Node& node : graph_.nodes) {
      if (const auto p = planned_.find(&node); p != planned_.end()) {
        emit(node, p->second);
      } else if (gone_.count(&node) == 0 && !readers_.is_gone(node)) {
        r_.copy(node);
      }
    }
    AttentionViews out;
    out.same_as = same_values(r_, graph_, made_);
    out.graph = std::move(r_).finish();
    return out;
  }

 private:
  struct Plan {
    std::vector<Rows> operands, results;  // q, k, v of an attention; q, k, v, out, g of a gradient. Its out; dq, dk, dv
    bool any = false, together = false;
  };

  static bool is_gradient(const Node& node) { return node.op == find_op("attention_grad"); }
  // The inputs that are rows, in the order of a plan's operands.
  static std::vector<ValueId> rows_of(const Node& n) {
    if (is_gradient(n)) return {n.inputs[1], n.inputs[2], n.inputs[3], n.inputs[5], n.inputs[0]};
    return {n.inputs[0], n.inputs[1], n.inputs[2]};
  }

  static bool is_view(const Node& n) {
    return n.op == find_op("reshape") || n.op == find_op("transpose") || n.op == find_op("slice");
  }
  int64_t size(ValueId v) const { return dtype_size(graph_.type(v).dtype); }

  bool is_taken(const Node& n) const {
    if ((n.op != find_op("attention") && !is_gradient(n)) || n.device != DeviceKind::kDefault) return false;
    const ValueId q = rows_of(n)[0], v = rows_of(n)[2];
    const DType t = graph_.type(q).dtype;
    const int64_t d = graph_.type(q).shape[3], e = graph_.type(v).shape[3];
    return (t == DType::kF32 || (narrow_ && (t == DType::kBF16 || t == DType::kF16))) && std::max(d, e) <= kLargest &&
           d * size(q) % kAligned == 0 && e * size(q) % kAligned == 0 && elements(graph_.type(q).shape) > 0 &&
           elements(graph_.type(v).shape) > 0;
  }

  // Whether rows lie one by one, each in one piece.
  static bool fits(const StridedView& rows, int64_t size) {
    const auto aligned = [&](int64_t x) { return x * size % kAligned == 0; };
    return rows.strides[3] <= 1 && aligned(rows.offset) && aligned(rows.strides[0]) && aligned(rows.strides[1]) &&
           aligned(rows.strides[2]);
  }

  Rows dense(ValueId v) const { return {storage_of(graph_, v), dense_view(graph_.type(v).shape)}; }

  // What an operand is a view of: as far back as its rows lie in it.
  Rows behind(ValueId v) const {
    Rows found = dense(v);
    std::vector<const Node*> chain;
    for (const Node* n = graph_.producer(v); n != nullptr && is_view(*n); n = graph_.producer(n->inputs[0])) {
      chain.push_back(n);
      std::optional<StridedView> view = dense_view(graph_.type(n->inputs[0]).shape);
      for (auto step = chain.rbegin(); view && step != chain.rend(); ++step) view = view_after(graph_, **step, *view);
      if (view && fits(*view, size(v))) found = {storage_of(graph_, n->inputs[0]), *std::move(view)};
    }
    return found;
  }

  // The one node that reads `v`, where it runs with the node that made it.
  const Node* reader(ValueId v) const {
    const auto& uses = uses_[static_cast<size_t>(v)];
    if (uses.size() != 1 || wanted_.count(v) > 0) return nullptr;
    const Node& node = graph_.nodes[static_cast<size_t>(uses[0])];
    return is_in_phase(node, *graph_.producer(v)) ? &node : nullptr;
  }

  // What becomes of a result, over nodes that only turn it; `next` is the first behind them.
  std::vector<const Node*> turned(ValueId v, const Node*& next) const {
    std::vector<const Node*> chain;
    for (next = reader(v); next != nullptr && next->op != find_op("slice") && is_view(*next);
         next = reader(next->outputs[0]))
      chain.push_back(next);
    return chain;
  }

  // Where rows lie in what the chain makes of them, which lies as `to`.
  std::optional<StridedView> through(const std::vector<const Node*>& chain, StridedView to) const {
    for (auto step = chain.rbegin(); step != chain.rend(); ++step) {
      std::optional<StridedView> view = view_before(graph_, **step, 0, to);
      if (!view) return std::nullopt;
      to = *std::move(view);
    }
    return to;
  }

  // A result as it is read: up to the last transpose, if there is one.
  Rows ahead(ValueId v, std::vector<const Node*> chain, std::vector<const Node*>& passed) const {
    while (!chain.empty() && chain.back()->op != find_op("transpose")) chain.pop_back();
    if (chain.empty()) return dense(v);
    const ValueId to = chain.back()->outputs[0];
    std::optional<StridedView> view = through(chain, dense_view(graph_.type(to).shape));
    if (!view || !fits(*view, size(v))) return dense(v);
    passed.insert(passed.end(), chain.begin(), chain.end());
    return {to, *std::move(view)};
  }

  // The three gradients, where one concat is made of them.
  bool find_concat(const Node& n, Plan& p, std::vector<const Node*>& passed) const {
    const Node* concat = nullptr;
    std::vector<std::vector<const Node*>> chains;
    for (ValueId v : n.outputs) {
      const Node* next = nullptr;
      chains.push_back(turned(v, next));
      if (next == nullptr || next->op != find_op("concat") || (concat != nullptr && next != concat)) return false;
      concat = next;
    }
    if (concat->inputs.size() != 3) return false;
    const StridedView whole = dense_view(graph_.type(concat->outputs[0]).shape);
    for (size_t k = 0; k < 3; ++k) {
      const ValueId part = chains[k].empty() ? n.outputs[k] : chains[k].back()->outputs[0];
      const auto at = std::find(concat->inputs.begin(), concat->inputs.end(), part);
      PARTITA_CHECK(at != concat->inputs.end(), "a gradient that is read by a concat");
      std::optional<StridedView> view =
          view_before(graph_, *concat, static_cast<size_t>(at - concat->inputs.begin()), whole);
      if (view) view = through(chains[k], *std::move(view));
      if (!view || !fits(*view, size(part))) return false;
      p.results.push_back({concat->outputs[0], *std::move(view)});
    }
    for (const auto& chain : chains) passed.insert(passed.end(), chain.begin(), chain.end());
    passed.push_back(concat);
    return true;
  }

  // An attention's result is read by its gradient too, which then reads what was made of it.
  Rows out_of(const Node& n, std::vector<const Node*>& passed) const {
    const ValueId out = n.outputs[0];
    const Node* turns = nullptr;
    for (NodeId use : uses_[static_cast<size_t>(out)]) {
      const Node& node = graph_.nodes[static_cast<size_t>(use)];
      if (is_gradient(node) && is_taken(node)) continue;
      if (turns != nullptr || node.op != find_op("transpose") || !is_in_phase(node, n)) return dense(out);
      turns = &node;
    }
    return turns == nullptr || wanted_.count(out) > 0 ? dense(out) : ahead(out, {turns}, passed);
  }

  void plan(const Node& n) {
    if (!is_taken(n)) return;
    Plan p;
    std::vector<const Node*> passed;
    const std::vector<ValueId> rows = rows_of(n);
    for (ValueId v : rows) p.operands.push_back(known_.count(v) > 0 ? known_.at(v) : behind(v));
    keep_small(rows, p.operands);
    if (!is_gradient(n)) {
      p.results.push_back(out_of(n, passed));
      if (!passed.empty()) known_[n.outputs[0]] = p.results[0];
    } else if (find_concat(n, p, passed)) {
      p.together = true;
    } else {
      p.results.clear();
      for (ValueId v : n.outputs) {
        const Node* next = nullptr;
        const std::vector<const Node*> chain = turned(v, next);
        p.results.push_back(ahead(v, chain, passed));
      }
    }
    p.any = !passed.empty();
    for (size_t k = 0; k < rows.size(); ++k) p.any = p.any || p.operands[k].of != storage_of(graph_, rows[k]);
    gone_.insert(passed.begin(), passed.end());
    planned_[&n] = std::move(p);
  }

  // Memory of which only a part is read would be held for that part: a copy of it is held instead.
  void keep_small(const std::vector<ValueId>& rows, std::vector<Rows>& operands) const {
    std::map<ValueId, int64_t> read;  // elements, by what they lie in
    for (const Rows& o : operands) read[o.of] += elements(o.view.shape);
    for (size_t k = 0; k < rows.size(); ++k) {
      if (read[operands[k].of] < elements(graph_.type(operands[k].of).shape)) operands[k] = dense(rows[k]);
    }
  }

  static Shape numbers(const StridedView& rows) {
    return {rows.offset, rows.strides[0], rows.strides[1], rows.strides[2]};
  }

  void emit(const Node& n, const Plan& p) {
    r_.at(n);
    const bool gradient = is_gradient(n);
    const std::vector<ValueId> rows = rows_of(n);
    const Shape &q = graph_.type(rows[0]).shape, &k = graph_.type(rows[1]).shape;
    Attrs attrs = n.attrs;
    attrs.set("sizes", Shape{q[0], q[1], k[1], q[2], k[2], q[3], graph_.type(rows[2]).shape[3]});
    constexpr std::array<const char*, 5> kOperands = {"q", "k", "v", "out", "g"};
    std::vector<ValueId> now;
    for (size_t x = 0; x < p.operands.size(); ++x) {
      attrs.set(kOperands[x], numbers(p.operands[x].view));
      now.push_back(r_(p.operands[x].of));
    }
    constexpr std::array<const char*, 3> kGradients = {"dq", "dk", "dv"};
    for (size_t x = 0; x < p.results.size(); ++x)
      attrs.set(gradient ? kGradients[x] : "out", numbers(p.results[x].view));
    if (p.together) attrs.set("together", int64_t{1});
    std::vector<ValueId> inputs;
    if (gradient) {
      const ValueId mask = n.inputs[4] == kNoValue ? kNoValue : r_(n.inputs[4]);
      inputs = {now[4], now[0], now[1], now[2], mask, now[3], r_(n.inputs[6])};
    } else {
      inputs = now;
      if (n.inputs.size() > 3) inputs.push_back(n.inputs[3] == kNoValue ? kNoValue : r_(n.inputs[3]));
    }
    auto made = r_.builder().try_emit(gradient ? kGradient : kAttention, std::move(inputs), std::move(attrs));
    PARTITA_CHECK(made.ok(), cat("attention on views: ", made.status().message()));
    for (size_t x = 0; x < (p.together ? 1 : p.results.size()); ++x) stand_for(p.results[x].of, (*made)[x]);
    if (!gradient) r_.replace(n.outputs[1], (*made)[1]);
  }

  void stand_for(ValueId old, ValueId now) {
    made_.emplace_back(now, old);
    r_.replace(old, r_.builder().reshape(now, graph_.type(old).shape));
  }

  const Graph& graph_;
  const bool narrow_;
  Rewriter r_;
  std::vector<std::vector<NodeId>> uses_;  // per value: nodes that read it, in order
  ValueReaders readers_;
  std::set<ValueId> wanted_;  // by the outside
  std::map<const Node*, Plan> planned_;
  std::map<ValueId, Rows> known_;                  // results of attentions that are written as they are read
  std::set<const Node*> gone_;                     // that only turned results
  std::vector<std::pair<ValueId, ValueId>> made_;  // values of the new graph: what they are
};

}  // namespace

AttentionViews view_attention(const Graph& graph, bool narrow) { return Viewer(graph, narrow).run(); }

}  // namespace partita
