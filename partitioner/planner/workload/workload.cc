// 1. The graph is cut into units (units.h); units of one structure are one kind, measured at the first of them.
// 2. What the tensor axis divides is chosen for the whole graph, as the compiler does (shard/tensor_split.h).
// 3. Work, traffic and saved values are counted, divided by that split or not.
#include "partitioner/planner/workload/workload.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "absl/hash/hash.h"
#include "base/cat.h"
#include "ir/ops/composed.h"
#include "partitioner/follow/stage_roots.h"
#include "partitioner/planner/workload/contraction.h"
#include "partitioner/planner/workload/pinned_cuts.h"
#include "partitioner/planner/workload/unit_split.h"
#include "partitioner/planner/workload/units.h"
#include "partitioner/prepare/split_forms.h"

namespace partita {
namespace {

constexpr char kLetters[] = {'b', 'm', 'n', 'k'};

// Of one run of the graph.
int64_t samples_of(const Graph& graph) {
  int64_t most = 1;
  for (const GraphInput& in : graph.inputs) {
    const TensorType& t = graph.type(in.value);
    if (in.kind == InputKind::kData && t.rank() > 0) most = std::max(most, t.shape[0]);
  }
  return most;
}

class Analysis {
 public:
  Analysis(const Graph& graph, const WorkloadOptions& options)
      : g_(graph),
        options_(options),
        dependence_(graph),
        units_(cut_into_units(graph, dependence_)),
        made_of_roots_(made_of_stage_roots(graph, dependence_)),
        tensor_split_(graph, samples_of(graph)),
        updates_(graph) {}

  Workload run() {
    count_states();
    fold();
    return std::move(out_);
  }

 private:
  const GraphUnits::Value& value(ValueId v) const { return units_.value(v); }
  bool is_float_value(ValueId v) const { return is_float(g_.type(v).dtype); }
  double value_elements(ValueId v) const { return static_cast<double>(elements(g_.type(v).shape)); }
  double stored_bytes(ValueId v) const { return static_cast<double>(byte_size(g_.type(v))); }
  static bool forward(const Node& node) { return node.segment == Segment::kForward; }
  bool global_statistics() const { return options_.batch_statistics == BatchNormGroup::kGlobal; }

  void count_states() {
    double optimizer_bytes = 0;
    for (const State& s : g_.states) {
      if (s.kind == StateKind::kParameter) out_.parameters += value_elements(s.value);
      if (s.kind == StateKind::kOptimizer) optimizer_bytes += stored_bytes(s.value);
      if (s.kind == StateKind::kRunning && global_statistics()) out_.whole_batches = true;
    }
    out_.optimizer_bytes = out_.parameters > 0 ? optimizer_bytes / out_.parameters : 0;
  }

  void fold() {
    out_.samples = static_cast<double>(samples_of(g_));
    for (const GraphInput& in : g_.inputs) {
      const TensorType& t = g_.type(in.value);
      if (in.kind != InputKind::kData || t.rank() == 0) continue;
      if (t.rank() == 2 && !is_float(t.dtype)) out_.sequence = std::max(out_.sequence, static_cast<double>(t.shape[1]));
    }
    if (out_.sequence > 1) out_.tokens = out_.sequence;
    std::map<uint64_t, int> kinds;
    std::map<ValueId, std::vector<size_t>> readers;  // of parameters: units of the graph
    std::vector<int> place(units_.units.size(), 0);
    for (size_t u = 0; u < units_.units.size(); ++u) {
      if (units_.units[u].nodes.empty() && units_.units[u].parameters.empty()) continue;
      auto [at, fresh] = kinds.try_emplace(structure(u), static_cast<int>(out_.kinds.size()));
      if (fresh) out_.kinds.push_back(measure(u));
      name_places(u, static_cast<int>(out_.units.size()));
      place[u] = static_cast<int>(out_.units.size());
      for (ValueId p : std::set<ValueId>(units_.units[u].read.begin(), units_.units[u].read.end())) {
        if (value(p).parameter) readers[p].push_back(u);
      }
      out_.units.push_back(at->second);
    }
    count_shared(readers, place);
    out_.crossing = crossing_values(g_, units_, place, out_.samples);
  }

  void count_shared(const std::map<ValueId, std::vector<size_t>>& readers, const std::vector<int>& place) {
    std::map<std::vector<size_t>, std::vector<ValueId>> by_units;
    for (const auto& [p, units] : readers) {
      if (units.size() > 1) by_units[units].push_back(p);
    }
    for (const auto& [units, parameters] : by_units) {
      SharedParameters& shared = out_.shared.emplace_back();
      for (size_t u : units) shared.units.push_back(place[u]);
      const UnitSplit split(g_, units_, units.back(), tensor_split_);
      for (ValueId p : parameters) shared.elements[split.divides(p) ? 0 : 1] += value_elements(p);
    }
  }

  // Equal for units that do the same work.
  uint64_t structure(size_t u) const {
    const GraphUnits::Unit& unit = units_.units[u];
    uint64_t h = absl::HashOf(u % 2, unit.parameters.size());
    for (NodeId n : unit.nodes) {
      h = absl::HashOf(h, std::string_view(g_.nodes[n].op->name), g_.nodes[n].inputs.size());
      for (ValueId v : g_.nodes[n].outputs) h = absl::HashOf(h, static_cast<int>(g_.type(v).dtype), g_.type(v).shape);
      if (g_.nodes[n].op->work != WorkKind::kAttention) continue;
      for (const auto& [name, attr] : g_.nodes[n].attrs.items())  // a window takes some of the work
        h = absl::HashOf(h, name, std::visit([](const auto& x) -> uint64_t { return absl::HashOf(x); }, attr));
    }
    for (ValueId p : unit.parameters) h = absl::HashOf(h, g_.type(p).shape, updates_.multiplies(p));
    for (ValueId p : unit.frozen) h = absl::HashOf(h, g_.type(p).shape, 'f');
    if (u == 0 || u + 1 == units_.units.size()) h = absl::HashOf(h, u);
    return h;
  }

  void name_places(size_t u, int unit) {
    bool begun = false;
    for (NodeId n : units_.units[u].nodes) {
      const Node& node = g_.nodes[n];
      if (!forward(node) || !made_of_roots_[node.outputs[0]]) continue;
      UnitPlace place{unit, begun, {}};
      if (std::string_view name = onnx_name(g_, node); !name.empty()) place.names.emplace_back(name);
      std::set<ValueId> read;
      for (ValueId v : node.inputs) {
        if (v == kNoValue || value(v).data) continue;
        for (ValueId p : units_.states_behind(g_, v)) read.insert(p);
      }
      for (ValueId p : read) place.names.push_back(units_.names.at(p));
      begun = begun || !read.empty() || node.op->work != WorkKind::kMemory;
      if (!place.names.empty()) out_.places.push_back(std::move(place));
    }
  }

  UnitWork measure(size_t u) {
    UnitWork w;
    const bool last = u + 1 >= units_.units.size();
    w.name = u % 2 == 1 ? cat("block ", u / 2)
             : u == 0   ? "before the blocks"
             : last     ? "after the blocks"
                        : "between blocks";
    const UnitSplit split(g_, units_, u, tensor_split_);
    follow_rows(split);
    describe(split, w);
    if (global_statistics()) count_batch_reduces(split, w);
    count_compute(split, w);
    count_traffic(u, split, w);
    count_values(u, split, w);
    return w;
  }

  RecomputeModes again(const Node& node) const { return options_.again.empty() ? 0 : options_.again[node_id(node)]; }

  size_t node_id(const Node& node) const { return static_cast<size_t>(&node - g_.nodes.data()); }

  bool chooses(const Node& node) const {
    return node.op->work == WorkKind::kMatrix && node.inputs.size() == 3 && !is_float_value(node.inputs[2]);
  }

  // From products of rows with the matrices that they chose to the next such products.
  void follow_rows(const UnitSplit& split) {
    made_of_rows_.clear(), makes_rows_.clear();
    for (const UnitNode& use : split.nodes()) {
      const Node& node = *use.node;
      const bool any =
          std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId v) { return made_of_rows_.count(v) > 0; });
      if (any || chooses(node)) made_of_rows_.insert(node.outputs.begin(), node.outputs.end());
    }
    for (size_t k = split.nodes().size(); k-- > 0;) {
      const Node& node = *split.nodes()[k].node;
      if (chooses(node)) {
        makes_rows_.insert(node.inputs[0]);
      } else if (std::any_of(node.outputs.begin(), node.outputs.end(),
                             [&](ValueId v) { return makes_rows_.count(v) > 0; })) {
        makes_rows_.insert(node.inputs.begin(), node.inputs.end());
      }
    }
  }
  // Whether it lies between such products.
  bool of_rows(ValueId v) const { return made_of_rows_.count(v) > 0 && makes_rows_.count(v) > 0; }

  void describe(const UnitSplit& split, UnitWork& w) const {
    for (double size : split.sizes()) {
      append(w.split, w.split.empty() ? "" : " and ", size);
      w.split_factor = w.split_factor == 0 ? size : std::min(w.split_factor, size);
    }
    const double per = 1 / out_.samples;
    for (double e : split.reduces().forward) w.forward_reduces.push_back(e * per);
    for (double e : split.reduces().backward) w.backward_reduces.push_back(e * per);
    for (const UnitNode& use : split.nodes()) {
      if (use.node->op->work == WorkKind::kAttention || out_.sequence > 1) w.sequence = true;
    }
  }

  void count_batch_reduces(const UnitSplit& split, UnitWork& w) const {
    for (const UnitNode& use : split.nodes()) {
      int samples = whole_samples(*use.node, use.formula);
      for (size_t k = 0; samples >= 0 && k < use.node->outputs.size(); ++k) {
        if (!has_factor(use.formula.outputs[k], samples))
          w.batch_reduces.push_back(static_cast<double>(elements(g_.type(use.node->outputs[k]).shape)));
      }
    }
  }

  void count_compute(const UnitSplit& split, UnitWork& w) {
    double per = 1 / out_.samples;
    for (const UnitNode& use : split.nodes()) {
      if (use.node->op->dispatches) {
        w.expert_tokens += value_elements(use.node->inputs[0]) * per;
      } else if (use.node->op->work == WorkKind::kMatrix) {
        count_matrix(use, per, split, w);
      } else if (use.node->op->work == WorkKind::kAttention) {
        const Shape &q = g_.type(use.node->inputs[0]).shape, &k = g_.type(use.node->inputs[1]).shape;
        AttentionWork a;
        a.heads = static_cast<double>(q[1]) * static_cast<double>(q[0]) * per;
        a.key_heads = static_cast<double>(k[1]) * static_cast<double>(k[0]) * per;
        a.queries = static_cast<double>(q[2]), a.keys = static_cast<double>(k[2]);
        a.head_size = static_cast<double>(q[3]);
        a.forward_flops = use.flops * per, a.backward_flops = 2.5 * use.flops * per;
        a.full_share = use.flops * per / (4 * a.heads * a.queries * a.keys * a.head_size);
        a.split = split.divides(use);
        a.split_heads = q[1], a.split_key_heads = k[1];
        if (a.split) w.heads_bytes += attention_bytes(*use.node) * per;
        a.again = again(*use.node);
        for (size_t operand : {0, 1, 2}) {
          const Node* producer = g_.producer(use.node->inputs[operand]);
          a.operands_again |= producer != nullptr ? again(*producer) : 0;
        }
        w.attention.push_back(a);
      }
    }
    if (w.chosen > 0) w.expert_tokens = rows_sent(split) * per;
    if (w.expert_tokens == 0) w.expert_tokens = rows_of_experts(w);
  }

  double attention_bytes(const Node& node) const {
    double bytes = stored_bytes(node.outputs[0]);
    for (size_t k = 0; k < 3; ++k) bytes += stored_bytes(node.inputs[k]);
    return bytes;
  }

  // Of what products read that no other of them made, gathered, and what the last ones make, summed up: the mean.
  double rows_sent(const UnitSplit& split) const {
    std::set<ValueId> sent;
    for (const UnitNode& use : split.nodes()) {
      if (!chooses(*use.node)) continue;
      if (!made_of_rows_.count(use.node->inputs[0])) sent.insert(use.node->inputs[0]);
      if (!makes_rows_.count(use.node->outputs[0])) sent.insert(use.node->outputs[0]);
    }
    double elements = 0;
    for (ValueId v : sent) elements += value_elements(v);
    return elements / 2;
  }

  // Where products with one-hot tensors send tokens: the rows that experts take.
  static double rows_of_experts(const UnitWork& w) {
    double fewest = 0;
    for (const MatrixWork& x : w.matrices) {
      const double e = x.batch * x.m * x.k;
      if (x.expert) fewest = fewest == 0 ? e : std::min(fewest, e);
    }
    return fewest;
  }

  void count_matrix(const UnitNode& use, double per, const UnitSplit& split, UnitWork& w) {
    ContractionSizes s = contraction(use.formula, use.flops, chooses(*use.node));
    MatrixWork x{s.batch, s.m, s.n, s.k};
    ValueId a = use.node->inputs[0], b = use.node->inputs[1];
    bool wa = !value(a).data && value(a).learned, wb = !value(b).data && value(b).learned;
    x.weight = wa || wb, x.shares = x.weight && !operands_.insert(wb ? a : b).second;
    if (s.windows) x.channels = s.n, x.plane = s.to, x.strided = s.from >= 1.99 * s.to;
    x.scaled = wb ? 'm' : wa ? 'n' : 'b';
    for (int l = 0; l < 4; ++l) {
      for (int f : s.of[l]) {
        if (split.divides(use, f)) x.split = kLetters[l];
      }
    }
    if (x.scaled == 'b' && x.batch == 1) x.scaled = 'm';
    x.expert = x.weight && x.batch > 1;
    const bool makes_heads = split.has_heads(use.node->outputs[0]);
    x.of_heads = makes_heads || split.has_heads(a) || split.has_heads(b);
    if (x.of_heads && x.weight) (makes_heads ? w.to_heads : w.from_heads) += value_elements(wb ? b : a);
    if (s.chosen > 0) w.chosen = std::max(w.chosen, s.chosen);
    if (x.expert) out_.experts = std::max(out_.experts, x.batch);
    auto size = [&](char letter, MatrixWork& to) -> double& {
      return letter == 'b' ? to.batch : letter == 'm' ? to.m : letter == 'n' ? to.n : to.k;
    };
    size(x.scaled, x) *= per;
    auto turned = [&](char m, char n, char k) {  // the product whose sizes are these sizes of x
      MatrixWork t = x;
      t.m = size(m, x), t.n = size(n, x), t.k = size(k, x);
      auto letter = [&](char c) { return c == m ? 'm' : c == n ? 'n' : c == k ? 'k' : c; };
      t.scaled = letter(x.scaled), t.split = x.split ? letter(x.split) : char{0};
      return t;
    };
    const Fp8Product fp8 = options_.fp8.empty() ? Fp8Product{} : options_.fp8[node_id(*use.node)];
    x.fp8 = fp8.forward;
    w.matrices.push_back(x);
    w.matrices.back().again = again(*use.node);
    if (value(a).learned) (wa ? w.weight_gradients : w.input_gradients).push_back(turned('m', 'k', 'n'));
    if (value(b).learned) (wb ? w.weight_gradients : w.input_gradients).push_back(turned('k', 'n', 'm'));
    if (!fp8.forward) return;
    if (value(b).learned && wb) w.weight_gradients.back().fp8 = fp8.weight_gradient;
    count_roundings(use, fp8, split, w);
  }

  // Roundings to fp8 read two bytes and write one: of what goes in (once for all products that read it), of what comes
  // back, and of both once more in blocks of rows.
  void count_roundings(const UnitNode& use, const Fp8Product& fp8, const UnitSplit& split, UnitWork& w) {
    constexpr double kMoved = 1.5;  // elements of two bytes
    auto elements_of = [&](ValueId v) { return kMoved * value_elements(v) / out_.samples; };
    const ValueId x = use.node->inputs[0], y = use.node->outputs[0];
    const int forms = fp8.weight_gradient ? 2 : 1;
    w.backward_traffic[split.divides(y) ? 0 : 1] += forms * elements_of(y);
    if (!rounded_.insert(x).second) return;
    w.forward_traffic[split.divides(x) ? 0 : 1] += elements_of(x);
    w.backward_traffic[split.divides(x) ? 0 : 1] += (forms - 1) * elements_of(x);
  }

  // Layout changes, slices and picks at fixed places are read in place by the kernels after them.
  bool free_node(const Node& node) const {
    if (node.op->view) return true;
    if (node.op->scalar == nullptr && node.inputs.size() == 1 && node.op->flops_per_point == 0) return true;
    return picks(node) && !value(node.inputs[1]).data;
  }
  bool picks(const Node& node) const {
    return node.op->scalar == nullptr && node.inputs.size() == 2 && node.inputs[0] != kNoValue &&
           node.inputs[1] != kNoValue && is_float_value(node.inputs[0]) && !is_float_value(node.inputs[1]) &&
           node.outputs.size() == 1;
  }
  bool fuses(const Node& node) const { return node.op->scalar != nullptr; }

  // Elementwise neighbours are one kernel: a value between two of them is not written. The gradient of a kernel reads
  // the gradients of its outputs and, where it is not linear, its inputs, and writes the gradients of its inputs.
  void count_traffic(size_t u, const UnitSplit& split, UnitWork& w) const {
    for (NodeId n : units_.units[u].nodes) {
      const Node& node = g_.nodes[n];
      if (free_node(node)) continue;
      (forward(node) ? w.forward_kernels : w.backward_kernels) += fuses(node) ? 0.5 : 1;
    }
    for (const UnitNode& use : split.nodes()) {
      const Node& node = *use.node;
      if (free_node(node) && !node.op->view) {
        for (ValueId v : node.outputs) {
          if (value(v).data && value(v).learned) w.copied[split.divides(v) ? 0 : 1] += value_elements(v) / out_.samples;
        }
      }
      if (free_node(node) || use.node->op->work != WorkKind::kMemory) continue;
      for (size_t k = 0; k < node.inputs.size(); ++k) {
        ValueId v = node.inputs[k];
        if (v == kNoValue || !value(v).data || (k == 0 && picks(node))) continue;
        const Node* maker = g_.producer(value(v).source);
        bool inner = maker && fuses(*maker) && fuses(node) && value(v).readers.size() == 1;
        bool linear = k < use.formula.inputs.size() && use.formula.inputs[k].linear >= 0;
        double e = value_elements(v) / out_.samples;
        size_t part = split.divides(v) ? 0 : 1;
        const double backward = inner ? (linear ? 0 : e) : e * (linear ? 1 : 2);
        add_traffic(v, part, inner ? 0 : e, backward, w);
        if (!inner) add_again(node, e, w);
      }
      for (ValueId v : node.outputs) {
        bool needed = value(v).saved || value(v).readers.size() > 1;
        for (NodeId r : value(v).readers) needed = needed || !(fuses(g_.nodes[r]) && fuses(node));
        double e = value_elements(v) / out_.samples;
        size_t part = split.divides(v) ? 0 : 1;
        if (needed) add_traffic(v, part, e, e, w), add_again(node, e, w);
      }
    }
    const double all = w.forward_traffic[0] + w.forward_traffic[1];
    for (double& share : w.again_traffic) share = all > 0 ? share / all : 0;
  }

  void add_again(const Node& node, double traffic, UnitWork& w) const {
    for (size_t mode = 0; mode < kRecomputeModes; ++mode) {
      if (again(node) & mode_bit(static_cast<RecomputeMode>(mode))) w.again_traffic[mode] += traffic;
    }
  }

  void add_traffic(ValueId v, size_t part, double forward, double backward, UnitWork& w) const {
    if (!value(v).learned || !is_float_value(v)) backward = 0;
    w.forward_traffic[part] += forward, w.backward_traffic[part] += backward;
    if (of_rows(v)) w.rows_forward_traffic[part] += forward, w.rows_backward_traffic[part] += backward;
  }

  void count_values(size_t u, const UnitSplit& split, UnitWork& w) const {
    double per = 1 / out_.samples;
    std::set<ValueId> entered;
    for (NodeId n : units_.units[u].nodes) {
      const Node& node = g_.nodes[n];
      if (!forward(node)) continue;
      for (ValueId v : node.inputs) {
        if (v == kNoValue || !value(v).data || !value(v).learned || value(v).unit == static_cast<int>(u)) continue;
        if (!is_float_value(v) || !entered.insert(value(v).source).second) continue;
        w.input += value_elements(v) * per;
        w.input_bytes += stored_bytes(value(v).source) * per;
      }
      for (ValueId v : node.inputs) {
        if (v != kNoValue && value(v).parameter && entered.insert(v).second)
          w.read_as_stored[split.divides(v) ? 0 : 1] += value_elements(v);
      }
      bool composed = is_composed(*node.op);
      for (size_t k = 0; k < node.outputs.size(); ++k) {
        ValueId v = node.outputs[k];
        double e = value_elements(v) * per;
        bool divided = split.divides(v);
        constexpr size_t kAsIs = static_cast<size_t>(RecomputeMode::kNone);  // the mode of the graph at hand
        if (value(v).source == v && value(v).saved) w.kept[kAsIs][divided ? 0 : 1] += stored_bytes(v) * per;
        if (value(v).source == v && value(v).saved && of_rows(v))
          w.rows_kept[kAsIs][divided ? 0 : 1] += stored_bytes(v) * per;
        if (is_float_value(v) && e > w.largest) w.largest = e, w.largest_split = divided, w.largest_rows = of_rows(v);
        if (composed && k == 0) w.composed[divided ? 0 : 1] += e;
        if (value(v).source != v || !value(v).saved) continue;
        if (is_float_value(v)) {
          w.saved[divided ? 0 : 1] += e;
        } else {
          w.saved_bytes[divided ? 0 : 1] += stored_bytes(v) * per;
        }
      }
    }
    for (ValueId p : units_.units[u].parameters) {
      double e = value_elements(p);
      bool expert =
          g_.type(p).rank() >= 3 && out_.experts > 1 && g_.type(p).shape[0] == static_cast<int64_t>(out_.experts);
      if (expert) w.expert_parameters += e;
      w.parameters[split.divides(p) ? 0 : 1] += e;
      w.update += updates_.work(p, {tensor_dim(p, split), stored_dim(p)});
    }
    std::set<ValueId> tied(units_.units[u].read.begin(), units_.units[u].read.end());
    for (ValueId p : units_.units[u].parameters) tied.erase(p);
    for (ValueId p : tied) {
      if (value(p).parameter) w.tied[split.divides(p) ? 0 : 1] += value_elements(p);
    }
    for (ValueId p : units_.units[u].frozen) {
      const size_t part = split.divides(p) ? 0 : 1;
      w.frozen[part] += value_elements(p), w.frozen_bytes[part] += stored_bytes(p);
      for (NodeId n : value(p).readers) {  // a copy in the compute precision
        if (g_.nodes[n].segment == Segment::kPrologue) w.frozen_bytes[part] += stored_bytes(g_.nodes[n].outputs[0]);
      }
    }
  }

  // The dimension of a parameter that the tensor axis divides, by those who read it; -1: none.
  int tensor_dim(ValueId p, const UnitSplit& split) const {
    if (!split.divides(p)) return -1;
    for (const UnitNode& use : split.nodes()) {
      for (size_t k = 0, present = 0; k < use.node->inputs.size(); ++k) {
        const ValueId v = use.node->inputs[k];
        if (v == kNoValue) continue;
        const auto& dims = use.formula.inputs[present++].dims;
        const std::vector<ValueId> states = units_.states_behind(g_, v);
        if (std::count(states.begin(), states.end(), p) == 0 || g_.type(v).shape != g_.type(p).shape) continue;
        for (size_t d = 0; d < dims.size(); ++d) {
          if (std::any_of(dims[d].begin(), dims[d].end(), [&](int f) { return UnitSplit::divides(use, f); }))
            return static_cast<int>(d);
        }
      }
    }
    return -1;
  }

  // That ZeRO's parts are of.
  int stored_dim(ValueId p) const {
    const Shape& shape = g_.type(p).shape;
    const auto even = std::find_if(shape.begin(), shape.end(), [](int64_t n) { return n % 2 == 0; });
    return even == shape.end() ? -1 : static_cast<int>(even - shape.begin());
  }

  const Graph& g_;
  const WorkloadOptions options_;
  const Dependence dependence_;
  const GraphUnits units_;
  const std::vector<bool> made_of_roots_;  // by ValueId
  const TensorSplit tensor_split_;         // of micro-batches of one sample
  const UpdateProducts updates_;
  std::set<ValueId> made_of_rows_, makes_rows_;  // of the unit that is measured
  std::set<ValueId> operands_, rounded_;         // what products with parameters read; with fp8 numbers
  Workload out_;
};

}  // namespace

absl::StatusOr<Workload> analyse(const Graph& graph, const WorkloadOptions& options) {
  Workload w = Analysis(graph, options).run();
  if (w.units.empty()) return absl::InvalidArgumentError("the model has nothing that depends on data: no plan to make");
  return w;
}

}  // namespace partita
