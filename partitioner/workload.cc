// 1. Every node gets a unit: block b is unit 2b + 1, what stands before, between and after blocks the even ones.
// 2. Units of one structure are one kind; the rest is done for the first of each kind.
// 3. Factors are followed through the kind's forward nodes (factor_classes). Classes that stand in parameters and
//    neither enter nor leave the unit can be split; each subset is weighed by the work it leaves undivided and the
//    partial sums that it causes, and the best is the unit's tensor split.
// 4. Work, traffic and saved values are counted, divided by that split or not.
#include "partitioner/workload.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "absl/container/flat_hash_map.h"
#include "absl/hash/hash.h"
#include "base/cat.h"
#include "ir/ops/composed.h"
#include "partitioner/factor_classes.h"
#include "partitioner/made_of.h"
#include "partitioner/pinned_cuts.h"
#include "partitioner/split_forms.h"

namespace partita {
namespace {

constexpr size_t kMostCandidates = 8;
constexpr double kNominalSplit = 8;      // the tensor axis that subsets are weighed for
constexpr double kParameterFlops = 2e3;  // a parameter that every rank stores weighs as a product over 1000 positions

bool is_float_value(const Graph& g, ValueId v) { return is_float(g.type(v).dtype); }

// One forward node of a kind, with its factors' classes.
struct Use {
  const Node* node;
  Formula formula;
  std::vector<std::vector<int>> factors;
  WorkKind work;
  double flops;
};

struct Sizes {  // of a contraction, with the factors of each
  double batch = 1, m = 1, n = 1, k = 1;
  std::vector<int> of[4];   // b, m, n, k
  bool windows = false;     // the first operand is summed over windows
  double from = 1, to = 1;  // then: positions of the first operand and of the result
};
constexpr char kLetters[] = {'b', 'm', 'n', 'k'};

bool has(const std::vector<std::vector<int>>& dims, int factor) {
  for (const auto& d : dims) {
    if (std::find(d.begin(), d.end(), factor) != d.end()) return true;
  }
  return false;
}

// Which factors of a two-operand product are batch, m (first operand), n (second) and k (summed).
Sizes contraction(const Formula& f, double flops) {
  Sizes s;
  double* sizes[] = {&s.batch, &s.m, &s.n, &s.k};
  for (int i = 0; i < static_cast<int>(f.factors.size()); ++i) {
    bool a = has(f.inputs[0].dims, i), b = f.inputs.size() > 1 && has(f.inputs[1].dims, i);
    bool out = false;
    for (const auto& o : f.outputs) out = out || has(o.dims, i);
    int at = !out ? 3 : a && b ? 0 : b ? 2 : 1;
    if (!out && a && !b && f.factors[i].role == FactorRole::kWhole) {  // positions that a window slides over
      s.windows = true;
      s.from *= static_cast<double>(f.factors[i].size);
      continue;
    }
    if (out && !a && !b) s.to *= static_cast<double>(f.factors[i].size);
    *sizes[at] *= static_cast<double>(f.factors[i].size);
    s.of[at].push_back(i);
  }
  // A sum over windows visits more or fewer points than the factors have: its length says so.
  double points = 2 * s.batch * s.m * s.n * s.k;
  if (points > 0 && std::abs(points - flops) > 0.01 * flops) s.k *= flops / points;
  return s;
}

class Analysis {
 public:
  Analysis(const Graph& graph, const WorkloadOptions& options) : g_(graph), options_(options) {}

  Workload run() {
    mark();
    place();
    collect();
    fold();
    totals();
    return std::move(out_);
  }

 private:
  void mark() {
    size_t n = g_.values.size();
    parameter_.assign(n, false), data_.assign(n, false), learned_.assign(n, false), unit_.assign(n, 0);
    saved_.assign(n, false), source_.resize(n);
    constants_ = constant_values(g_), made_of_ = made_of(g_);
    for (const State& s : g_.states) {
      parameter_[s.value] = s.kind == StateKind::kParameter;
      learned_[s.value] = parameter_[s.value];
      const bool frozen = s.kind == StateKind::kFrozen && is_float_value(g_, s.value);
      if (parameter_[s.value] || frozen) names_[s.value] = s.name;
      if (s.kind == StateKind::kRunning && global_statistics()) out_.whole_batches = true;
      if (parameter_[s.value]) out_.parameters += static_cast<double>(elements(g_.type(s.value).shape));
    }
    for (const GraphInput& in : g_.inputs) data_[in.value] = in.kind == InputKind::kData;
    for (size_t v = 0; v < n; ++v) source_[v] = static_cast<ValueId>(v);
    for (const Node& node : g_.nodes) {
      bool d = false, w = false;
      for (ValueId v : node.inputs) {
        if (v == kNoValue) continue;
        d = d || data_[v], w = w || learned_[v];
      }
      for (ValueId v : node.outputs) data_[v] = d, learned_[v] = w;
      mark_gathered(node);
      if (node.op->view && node.outputs.size() == 1 && node.inputs[0] != kNoValue)
        source_[node.outputs[0]] = source_[node.inputs[0]];
    }
  }

  // One matrix of a stack for each token, picked by the data: experts in their gather-everything spelling. They are
  // planned as what they mean, tokens sent to experts; nobody stores the copies.
  void mark_gathered(const Node& node) {
    if (gathered_.empty()) gathered_.assign(g_.values.size(), 0);
    if (node.inputs.empty() || node.inputs[0] == kNoValue || node.outputs.size() != 1) return;
    ValueId table = node.inputs[0];
    bool picks = parameter_[table] && g_.type(table).rank() >= 3 && node.inputs.size() == 2 && data_[node.outputs[0]] &&
                 !is_float_value(g_, node.inputs[1]);
    bool passes = gathered_[table] > 0 && (node.op->view || node.inputs.size() == 1);
    if (picks) gathered_[node.outputs[0]] = g_.type(table).shape[0];
    if (passes) gathered_[node.outputs[0]] = gathered_[table];
  }
  bool is_gathered(ValueId v) const { return v != kNoValue && gathered_[v] > 0; }

  bool forward(const Node& node) const { return node.segment == Segment::kForward; }
  bool global_statistics() const { return options_.batch_statistics == BatchNormGroup::kGlobal; }

  void place() {
    node_unit_.assign(g_.nodes.size(), -1);
    absl::flat_hash_map<int32_t, int> of_origin;
    for (size_t i = 0; i < g_.nodes.size(); ++i) {
      const Node& node = g_.nodes[i];
      if (!forward(node) && node.segment != Segment::kBackward) continue;
      int unit = 2 * node.block + 1;
      if (node.block < 0) {
        unit = 0;
        if (forward(node)) {
          for (ValueId v : node.inputs) unit = v == kNoValue ? unit : std::max(unit, unit_[v] + (unit_[v] & 1));
        } else if (auto at = of_origin.find(node.origin); at != of_origin.end()) {
          unit = at->second;
        } else {
          for (ValueId v : node.inputs) unit = v == kNoValue ? unit : std::max(unit, unit_[v] & ~1);
        }
      }
      node_unit_[i] = unit;
      for (ValueId v : node.outputs) unit_[v] = unit;
      if (forward(node) && node.origin >= 0 && node.block < 0) of_origin[node.origin] = unit;
      if (forward(node)) continue;
      for (ValueId v : node.inputs) {  // what backward reads of forward is kept
        if (v == kNoValue) continue;
        ValueId s = source_[v];
        const Node* maker = g_.producer(s);
        if (maker && forward(*maker) && data_[s]) saved_[s] = true;
      }
    }
  }

  void collect() {
    int last = 0;
    for (int u : node_unit_) last = std::max(last, u);
    nodes_.resize(static_cast<size_t>(last) + 1);
    for (size_t i = 0; i < g_.nodes.size(); ++i) {
      if (node_unit_[i] < 0) continue;
      bool varies = false;
      for (ValueId v : g_.nodes[i].outputs) varies = varies || data_[v];
      if (varies) nodes_[static_cast<size_t>(node_unit_[i])].push_back(static_cast<NodeId>(i));
    }
    readers_ = uses(g_);
    // Parameters, and frozen weights, belong to the first unit that reads them.
    params_.resize(nodes_.size()), frozen_.resize(nodes_.size()), read_.resize(nodes_.size());
    std::vector<int> first(g_.values.size(), -1);
    for (size_t u = 0; u < nodes_.size(); ++u) {
      for (NodeId n : nodes_[u]) {
        for (ValueId v : g_.nodes[n].inputs) {
          if (v == kNoValue || !forward(g_.nodes[n])) continue;
          for (ValueId p : named_behind(v)) {
            if (first[p] < 0) first[p] = static_cast<int>(u), (parameter_[p] ? params_ : frozen_)[u].push_back(p);
            if (read_[u].empty() || read_[u].back() != p) read_[u].push_back(p);
          }
        }
      }
    }
  }

  // The parameters, or frozen states too, that a value is made of without data (itself, a transposed or cast one).
  std::vector<ValueId> named_behind(ValueId v) const {
    std::vector<ValueId> found, open = {v};
    for (int steps = 0; !open.empty() && steps < 64; ++steps) {
      ValueId x = open.back();
      open.pop_back();
      if (names_.count(x)) found.push_back(x);
      const Node* maker = g_.producer(x);
      if (!maker || data_[x]) continue;
      for (ValueId in : maker->inputs) {
        if (in != kNoValue) open.push_back(in);
      }
    }
    return found;
  }

  void fold() {
    out_.samples = 1;
    for (const GraphInput& in : g_.inputs) {
      const TensorType& t = g_.type(in.value);
      if (in.kind != InputKind::kData || t.rank() == 0) continue;
      out_.samples = std::max(out_.samples, static_cast<double>(t.shape[0]));
      if (t.rank() == 2 && !is_float(t.dtype)) out_.sequence = std::max(out_.sequence, static_cast<double>(t.shape[1]));
    }
    if (out_.sequence > 1) out_.tokens = out_.sequence;
    std::map<uint64_t, int> kinds;
    for (size_t u = 0; u < nodes_.size(); ++u) {
      if (nodes_[u].empty() && params_[u].empty()) continue;
      uint64_t h = absl::HashOf(u % 2, params_[u].size());
      for (NodeId n : nodes_[u]) {
        h = absl::HashOf(h, std::string_view(g_.nodes[n].op->name), g_.nodes[n].inputs.size());
        for (ValueId v : g_.nodes[n].outputs) h = absl::HashOf(h, static_cast<int>(g_.type(v).dtype), g_.type(v).shape);
      }
      for (ValueId p : params_[u]) h = absl::HashOf(h, g_.type(p).shape);
      for (ValueId p : frozen_[u]) h = absl::HashOf(h, g_.type(p).shape, 'f');
      if (u == 0 || u + 1 == nodes_.size()) h = absl::HashOf(h, u);
      auto [at, fresh] = kinds.try_emplace(h, static_cast<int>(out_.kinds.size()));
      if (fresh) out_.kinds.push_back(measure(u));
      name_places(u, static_cast<int>(out_.units.size()));
      out_.units.push_back(at->second);
    }
  }

  void name_places(size_t u, int unit) {
    bool begun = false;
    for (NodeId n : nodes_[u]) {
      const Node& node = g_.nodes[n];
      if (!forward(node) || !(made_of_[node.outputs[0]] & kStaged)) continue;
      UnitPlace place{unit, begun, {}};
      if (std::string_view name = onnx_name(g_, node); !name.empty()) place.names.emplace_back(name);
      std::set<ValueId> read;
      for (ValueId v : node.inputs) {
        if (v == kNoValue || data_[v]) continue;
        for (ValueId p : named_behind(v)) read.insert(p);
      }
      for (ValueId p : read) place.names.push_back(names_.at(p));
      begun = begun || !read.empty() || node.op->work != WorkKind::kMemory;
      if (!place.names.empty()) out_.places.push_back(std::move(place));
    }
  }

  void totals() {
    double states = 0;
    for (const State& s : g_.states) {
      if (s.kind == StateKind::kOptimizer) states += static_cast<double>(elements(g_.type(s.value).shape));
    }
    out_.optimizer_states = out_.parameters > 0 ? std::round(states / out_.parameters) : 0;
  }

  // ---- one unit ----

  UnitWork measure(size_t u) {
    UnitWork w;
    bool last = u + 1 >= nodes_.size();
    w.name = u % 2 == 1 ? cat("block ", u / 2)
             : u == 0   ? "before the blocks"
             : last     ? "after the blocks"
                        : "between blocks";
    uses_.clear();
    classes_ = FactorClasses();
    dims_.assign(g_.values.size(), {});
    for (NodeId n : nodes_[u]) {
      const Node& node = g_.nodes[n];
      if (!forward(node)) continue;
      auto types = input_types(g_, node);
      OpView view{node.attrs, types};
      Use use{&node, bound_formula(*node.op, view), {}, node.op->work, 0};
      if (use.work != WorkKind::kMemory) use.flops = use_flops(*node.op, view, use.formula);
      for (ValueId v : node.inputs) follow_parameter(v);
      classes_.apply(g_, node, use.formula, dims_, use.factors);
      uses_.push_back(std::move(use));
    }
    choose_split(u, w);
    if (global_statistics()) count_batch_reduces(w);
    count_compute(w);
    count_traffic(u, w);
    count_values(u, w);
    return w;
  }

  void count_batch_reduces(UnitWork& w) const {
    for (const Use& use : uses_) {
      int samples = whole_samples(*use.node, use.formula);
      for (size_t k = 0; samples >= 0 && k < use.node->outputs.size(); ++k) {
        if (!has_factor(use.formula.outputs[k], samples))
          w.batch_reduces.push_back(static_cast<double>(elements(g_.type(use.node->outputs[k]).shape)));
      }
    }
  }

  // A parameter seen through a transpose or reshape has the parameter's own classes.
  void follow_parameter(ValueId v) {
    if (v == kNoValue || !dims_[v].empty() || data_[v] || parameter_[v]) return;
    std::vector<const Node*> chain;
    for (ValueId x = v; !parameter_[x];) {
      const Node* maker = g_.producer(x);
      if (!maker || maker->inputs.empty() || maker->inputs[0] == kNoValue || chain.size() > 8 || !learned_[x]) return;
      chain.push_back(maker);
      x = maker->inputs[0];
    }
    for (auto at = chain.rbegin(); at != chain.rend(); ++at) {
      std::vector<std::vector<int>> factors;
      classes_.apply(g_, **at, bound_formula(g_, **at), dims_, factors);
    }
  }

  std::vector<int> all_leaves(ValueId v) {
    std::vector<int> out;
    for (const auto& d : dims_[v]) {
      auto l = classes_.leaves(d);
      out.insert(out.end(), l.begin(), l.end());
    }
    return out;
  }

  void choose_split(size_t u, UnitWork& w) {
    std::set<int> border, seen;
    std::vector<std::pair<double, int>> candidates;
    for (const Use& use : uses_) {
      for (ValueId v : use.node->inputs) {
        if (v == kNoValue || !data_[v] || unit_[v] == static_cast<int>(u)) continue;
        for (int c : all_leaves(v)) border.insert(c);
      }
      for (ValueId v : use.node->outputs) {
        for (NodeId r : readers_[v]) {
          if (node_unit_[r] != static_cast<int>(u) && forward(g_.nodes[r])) {
            for (int c : all_leaves(v)) border.insert(c);
          }
        }
      }
    }
    for (ValueId p : read_[u]) {
      if (dims_[p].size() < 2) continue;
      for (int c : all_leaves(p)) {
        double weight = static_cast<double>(classes_.size(c));
        if (!border.count(c) && seen.insert(c).second && weight > 1) candidates.push_back({weight, c});
      }
    }
    std::sort(candidates.rbegin(), candidates.rend());
    if (candidates.size() > kMostCandidates) candidates.resize(kMostCandidates);
    double best = cost({}, u);
    split_ = {};
    for (uint32_t bits = 1; bits < (1u << candidates.size()); ++bits) {
      std::set<int> t;
      for (size_t k = 0; k < candidates.size(); ++k) {
        if (bits >> k & 1) t.insert(candidates[k].second);
      }
      double c = cost(t, u);
      if (c < best * (1 - 1e-9)) best = c, split_ = std::move(t);
    }
    double smallest = 0;
    for (int c : split_) {
      double size = static_cast<double>(classes_.size(c));
      append(w.split, w.split.empty() ? "" : " and ", size);
      smallest = smallest == 0 ? size : std::min(smallest, size);
    }
    w.split_factor = smallest;
    reduces(split_, w.forward_reduces, w.backward_reduces);
    // Positions: a class that comes in with the data and is in no parameter.
    for (const Use& use : uses_) {
      if (use.work == WorkKind::kAttention || out_.sequence > 1) w.sequence = true;
    }
  }

  bool splits(const Use& use, int f, const std::set<int>& t) {
    for (int c : classes_.leaves(use.factors[f])) {
      if (t.count(c)) return true;
    }
    return false;
  }
  bool splits(ValueId v, const std::set<int>& t) {
    for (int c : all_leaves(v)) {
      if (t.count(c)) return true;
    }
    return false;
  }
  bool any_split(const Use& use, const std::set<int>& t) {
    for (size_t f = 0; f < use.factors.size(); ++f) {
      if (splits(use, static_cast<int>(f), t)) return true;
    }
    return false;
  }

  // Elements of each collective that the split makes necessary.
  void reduces(const std::set<int>& t, std::vector<double>& fwd, std::vector<double>& bwd) {
    if (t.empty()) return;
    std::set<ValueId> shared;
    for (const Use& use : uses_) {
      bool split = false, summed = false;
      for (size_t f = 0; f < use.factors.size(); ++f) {
        if (!splits(use, static_cast<int>(f), t)) continue;
        bool in_out = false;
        for (const auto& o : use.formula.outputs) in_out = in_out || has(o.dims, static_cast<int>(f));
        split = true;
        summed = summed || !in_out;
        if (use.formula.factors[f].role == FactorRole::kWhole && in_out) {  // must be gathered
          fwd.push_back(value_elements(use.node->inputs[0]));
          bwd.push_back(value_elements(use.node->inputs[0]));
        }
      }
      if (summed) {
        double sum = 0;
        for (ValueId v : use.node->outputs) sum += value_elements(v);
        fwd.push_back(sum);
      }
      if (!split) continue;
      for (ValueId v : use.node->inputs) {
        if (v == kNoValue || !data_[v] || !learned_[v] || !is_float_value(g_, v) || splits(v, t)) continue;
        shared.insert(source_[v]);
      }
    }
    for (ValueId v : shared) bwd.push_back(value_elements(v));
  }

  double value_elements(ValueId v) const {
    return is_gathered(v) ? 0 : static_cast<double>(elements(g_.type(v).shape));
  }

  double cost(const std::set<int>& t, size_t u) {
    std::vector<double> fwd, bwd;
    reduces(t, fwd, bwd);
    double total = 0, share = 1 - 1 / kNominalSplit;
    for (double e : fwd) total += e * options_.flops_per_reduced_element;
    for (double e : bwd) total += e * options_.flops_per_reduced_element;
    for (const Use& use : uses_) {
      if (use.work != WorkKind::kMemory && !any_split(use, t)) total += 3 * use.flops * share;
    }
    for (ValueId p : params_[u]) {
      if (!splits(p, t)) total += value_elements(p) * share * kParameterFlops * out_.samples;
    }
    return total;
  }

  void count_compute(UnitWork& w) {
    double per = 1 / out_.samples;
    for (const Use& use : uses_) {
      if (use.work == WorkKind::kMatrix) {
        count_matrix(use, per, w);
      } else if (use.work == WorkKind::kAttention) {
        const Shape &q = g_.type(use.node->inputs[0]).shape, &k = g_.type(use.node->inputs[1]).shape;
        double heads = static_cast<double>(q[1]) * static_cast<double>(q[0]) * per, s = static_cast<double>(q[2]),
               t = static_cast<double>(k[2]), d = static_cast<double>(q[3]),
               key_heads = static_cast<double>(k[1]) * static_cast<double>(k[0]) * per;
        AttentionWork a{heads,
                        s,
                        t,
                        d,
                        key_heads,
                        use.flops * per,
                        2.5 * use.flops * per,
                        use.flops * per / (4 * heads * s * t * d),
                        any_split(use, split_),
                        1};
        w.attention.push_back(a);
      }
    }
  }

  void count_matrix(const Use& use, double per, UnitWork& w) {
    Sizes s = contraction(use.formula, use.flops);
    MatrixWork x{s.batch, s.m, s.n, s.k};
    ValueId a = use.node->inputs[0], b = use.node->inputs[1];
    bool wa = (!data_[a] && learned_[a]) || is_gathered(a), wb = (!data_[b] && learned_[b]) || is_gathered(b);
    x.weight = wa || wb;
    if (s.windows) x.channels = s.n, x.plane = s.to, x.strided = s.from >= 1.99 * s.to;
    if (is_gathered(a) || is_gathered(b)) {
      double tokens = x.batch, stack = static_cast<double>(std::max(gathered_[a], gathered_[b]));
      x.batch = stack;
      (wb ? x.m : x.n) *= tokens / stack;
    }
    x.scaled = wb ? 'm' : wa ? 'n' : 'b';
    for (int l = 0; l < 4; ++l) {
      for (int f : s.of[l]) {
        if (splits(use, f, split_)) x.split = kLetters[l];
      }
    }
    if (x.scaled == 'b' && x.batch == 1) x.scaled = 'm';
    x.expert = x.weight && x.batch > 1;
    if (x.expert) out_.experts = std::max(out_.experts, x.batch);
    auto size = [&](char letter, MatrixWork& to) -> double& {
      return letter == 'b' ? to.batch : letter == 'm' ? to.m : letter == 'n' ? to.n : to.k;
    };
    size(x.scaled, x) *= per;
    if (x.expert) w.expert_tokens += x.batch * x.m * x.k / 2;
    auto turned = [&](char m, char n, char k) {  // the product whose sizes are these sizes of x
      MatrixWork t = x;
      t.m = size(m, x), t.n = size(n, x), t.k = size(k, x);
      auto letter = [&](char c) { return c == m ? 'm' : c == n ? 'n' : c == k ? 'k' : c; };
      t.scaled = letter(x.scaled), t.split = x.split ? letter(x.split) : char{0};
      return t;
    };
    w.matrices.push_back(x);
    if (learned_[a]) (wa ? w.weight_gradients : w.input_gradients).push_back(turned('m', 'k', 'n'));
    if (learned_[b]) (wb ? w.weight_gradients : w.input_gradients).push_back(turned('k', 'n', 'm'));
  }

  // Layout changes, slices and picks at fixed places are read in place by the kernels after them.
  bool free_node(const Node& node) const {
    if (node.op->view) return true;
    if (node.op->scalar == nullptr && node.inputs.size() == 1 && node.op->flops_per_point == 0) return true;
    return picks(node) && !data_[node.inputs[1]];
  }
  bool picks(const Node& node) const {
    return node.op->scalar == nullptr && node.inputs.size() == 2 && node.inputs[0] != kNoValue &&
           node.inputs[1] != kNoValue && is_float_value(g_, node.inputs[0]) && !is_float_value(g_, node.inputs[1]) &&
           node.outputs.size() == 1;
  }
  bool fuses(const Node& node) const { return node.op->scalar != nullptr; }

  // Elementwise neighbours are one kernel: a value between two of them is not written. The gradient of a kernel reads
  // the gradients of its outputs and, where it is not linear, its inputs, and writes the gradients of its inputs.
  void count_traffic(size_t u, UnitWork& w) {
    for (NodeId n : nodes_[u]) {
      const Node& node = g_.nodes[n];
      if (free_node(node)) continue;
      (forward(node) ? w.forward_kernels : w.backward_kernels) += fuses(node) ? 0.5 : 1;
    }
    for (const Use& use : uses_) {
      const Node& node = *use.node;
      if (free_node(node) && !node.op->view) {
        for (ValueId v : node.outputs) {
          if (data_[v] && learned_[v]) w.copied[splits(v, split_) ? 0 : 1] += value_elements(v) / out_.samples;
        }
      }
      if (free_node(node) || use.work != WorkKind::kMemory) continue;
      for (size_t k = 0; k < node.inputs.size(); ++k) {
        ValueId v = node.inputs[k];
        if (v == kNoValue || !data_[v] || (k == 0 && picks(node))) continue;
        const Node* maker = g_.producer(source_[v]);
        bool inner = maker && fuses(*maker) && fuses(node) && readers_[v].size() == 1;
        bool linear = k < use.formula.inputs.size() && use.formula.inputs[k].linear >= 0;
        double e = value_elements(v) / out_.samples;
        size_t part = splits(v, split_) ? 0 : 1;
        if (!inner) w.forward_traffic[part] += e;
        if (learned_[v] && is_float_value(g_, v))
          w.backward_traffic[part] += inner ? (linear ? 0 : e) : e * (linear ? 1 : 2);
      }
      for (ValueId v : node.outputs) {
        bool needed = saved_[v] || readers_[v].size() > 1;
        for (NodeId r : readers_[v]) needed = needed || !(fuses(g_.nodes[r]) && fuses(node));
        double e = value_elements(v) / out_.samples;
        size_t part = splits(v, split_) ? 0 : 1;
        if (!needed) continue;
        w.forward_traffic[part] += e;
        if (learned_[v] && is_float_value(g_, v)) w.backward_traffic[part] += e;
      }
    }
  }

  void count_values(size_t u, UnitWork& w) {
    double per = 1 / out_.samples;
    std::set<ValueId> entered;
    for (NodeId n : nodes_[u]) {
      const Node& node = g_.nodes[n];
      if (!forward(node)) continue;
      for (ValueId v : node.inputs) {
        if (v == kNoValue || !data_[v] || !learned_[v] || unit_[v] == static_cast<int>(u)) continue;
        if (is_float_value(g_, v) && entered.insert(source_[v]).second) w.input += value_elements(v) * per;
      }
      bool composed = is_composed(*node.op);
      for (size_t k = 0; k < node.outputs.size(); ++k) {
        ValueId v = node.outputs[k];
        double e = value_elements(v) * per;
        bool split = splits(v, split_);
        if (is_gathered(v)) continue;
        if (is_float_value(g_, v) && e > w.largest) w.largest = e, w.largest_split = split;
        if (composed && k == 0) w.composed[split ? 0 : 1] += e;
        if (source_[v] != v || !saved_[v]) continue;
        if (is_float_value(g_, v)) {
          w.saved[split ? 0 : 1] += e;
        } else {
          w.saved_bytes[split ? 0 : 1] += static_cast<double>(byte_size(g_.type(v))) * per;
        }
      }
    }
    for (ValueId p : params_[u]) {
      double e = value_elements(p);
      bool expert =
          g_.type(p).rank() >= 3 && out_.experts > 1 && g_.type(p).shape[0] == static_cast<int64_t>(out_.experts);
      if (expert) w.expert_parameters += e;
      w.parameters[splits(p, split_) ? 0 : 1] += e;
      ++w.parameter_tensors;
    }
    for (ValueId p : frozen_[u])
      w.frozen += value_elements(p), w.frozen_bytes += static_cast<double>(byte_size(g_.type(p)));
    for (auto* list : {&w.forward_reduces, &w.backward_reduces}) {
      for (double& e : *list) e *= per;
    }
  }

  const Graph& g_;
  WorkloadOptions options_;
  Workload out_;
  std::vector<bool> parameter_, data_, learned_, saved_;  // per value
  std::vector<uint8_t> made_of_;                          // likewise
  std::map<ValueId, std::string> names_;                  // of parameters and frozen states
  std::vector<int64_t> gathered_;                         // per value: 0, or of how many matrices it holds picked ones
  std::vector<int> unit_;                                 // per value
  std::vector<int> node_unit_;
  std::vector<ValueId> source_;  // behind views
  std::vector<const Literal*> constants_;
  std::vector<std::vector<NodeId>> nodes_, readers_;          // per unit; per value
  std::vector<std::vector<ValueId>> params_, frozen_, read_;  // per unit: that it owns; that it reads
  std::vector<Use> uses_;
  FactorClasses classes_;
  std::vector<std::vector<std::vector<int>>> dims_;
  std::set<int> split_;
};

double sum_flops(const std::vector<MatrixWork>& list) {
  double f = 0;
  for (const MatrixWork& m : list) f += m.flops();
  return f;
}

}  // namespace

double UnitWork::forward_flops() const {
  double f = sum_flops(matrices);
  for (const AttentionWork& a : attention) f += a.forward_flops * a.count;
  return f;
}

double UnitWork::backward_flops() const {
  double f = sum_flops(input_gradients) + sum_flops(weight_gradients);
  for (const AttentionWork& a : attention) f += a.backward_flops * a.count;
  return f;
}

absl::StatusOr<Workload> analyse(const Graph& graph, const WorkloadOptions& options) {
  Workload w = Analysis(graph, options).run();
  if (w.units.empty()) return absl::InvalidArgumentError("the model has nothing that depends on data: no plan to make");
  return w;
}

}  // namespace partita
