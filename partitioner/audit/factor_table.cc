// A site is found on the forward graph: a value there (an attention's queries, the operand of a product that sums over
// features, logits, an embedding's table) is split by hand, the factor's propagation says which parameters carry it,
// and those alone are pinned.
#include "partitioner/audit/factor_table.h"

#include <algorithm>
#include <set>

#include "ir/mesh/factor_split.h"
#include "partitioner/audit/count_collectives.h"
#include "partitioner/follow/factor_propagation.h"
#include "partitioner/localize/localize.h"
#include "partitioner/prepare/split_forms.h"

namespace partita {
namespace {

// The smallest number above 1 that divides n; 0 where there is none.
int64_t smallest_divisor(int64_t n) {
  if (n < 2) return 0;
  for (int64_t d = 2; d * d <= n; ++d) {
    if (n % d == 0) return d;
  }
  return n;
}

Sharding split_dim(const Shape& shape, size_t d) {
  Sharding s = Sharding::replicated(shape);
  s.dims[d][0].axes = {0};
  return s;
}

struct Budget {
  Moves forward, backward;
  int rows = 0;
};
constexpr Budget kPairBudget = {{.all_reduce = 1}, {.all_reduce = 1}, 0};

bool within(const Moves& got, const Moves& budget) {
  return got.all_reduce <= budget.all_reduce && got.all_gather <= budget.all_gather &&
         got.reduce_scatter <= budget.reduce_scatter && got.all_to_all <= budget.all_to_all;
}

class Table {
 public:
  Table(const Graph& graph, const std::vector<int64_t>& repeats, int64_t micro_batches)
      : g_(graph),
        repeats_(repeats),
        micro_batches_(micro_batches),
        dependence_(graph),
        propagation_(graph),
        attention_(find_op("attention")),
        gather_(find_op("gather")),
        cross_entropy_(find_op("cross_entropy")) {}

  absl::StatusOr<FactorTable> build() {
    for (size_t n = 0; n < g_.nodes.size(); ++n) {
      const Node& node = g_.nodes[n];
      if (node.segment != Segment::kForward) continue;
      absl::Status status = node.op == attention_       ? attention(node)
                            : is_embedding(node)        ? embedding(node)
                            : node.op == cross_entropy_ ? head(node)
                                                        : pair(node);
      if (!status.ok()) return status;
    }
    find_plain_attention();
    table_.sites.push_back({.kind = SiteKind::kRest, .name = {}, .repeats = 1, .splits = {}});
    origins_.emplace_back();
    if (absl::Status s = batch(); !s.ok()) return s;
    if (absl::Status s = sequence(); !s.ok()) return s;
    return std::move(table_);
  }

 private:
  ShardingPlan plan(int64_t ways) const {
    ShardingPlan p;
    p.mesh.axes = {{"split", ways}};
    p.micro_batches = micro_batches_;
    for (const GraphInput& in : g_.inputs) p.inputs.push_back(Sharding::replicated(g_.type(in.value).shape));
    for (const State& s : g_.states) {
      bool free = s.kind == StateKind::kAccumulator;
      Sharding whole = Sharding::replicated(g_.type(s.value).shape);
      p.states.push_back(free ? std::nullopt : std::optional(StateLayout{whole, whole}));
    }
    return p;
  }

  // The collectives that pinning the parameters that carry the factor brings.
  absl::StatusOr<std::vector<CountedCollective>> try_parameters(const PropagatedFactor& factor, int64_t ways) const {
    ShardingPlan p = plan(ways);
    for (size_t k = 0; k < g_.states.size(); ++k) {
      auto at = factor.values.find(g_.states[k].value);
      if (g_.states[k].kind == StateKind::kParameter && at != factor.values.end())
        p.states[k] = StateLayout{at->second, at->second};
    }
    return moves(p, factor);
  }

  // Where the propagation ends at a factor that an op keeps whole, or the ranks share the samples of its statistics,
  // the op's form that can be split stands in for it, and for its gradient.
  absl::StatusOr<std::vector<CountedCollective>> moves(const ShardingPlan& p, const PropagatedFactor& factor,
                                                       int64_t sample_ranks = 1) const {
    std::set<std::pair<int32_t, int32_t>> asked;  // origin and block
    for (const Node& node : g_.nodes) {
      if (node.op->split_form && node.segment == Segment::kForward &&
          (asks_for_whole(node, factor) || keeps_samples(g_, node, sample_ranks)))
        asked.insert({node.origin, node.block});
    }
    SplitForms forms = use_split_forms(g_, [&](const Node& node) {
      return asked.count({node.origin, node.block}) > 0;
    });
    auto local = localize(forms.graph, p);
    if (!local.ok()) return local.status();
    return count_collectives(*local);
  }

  bool asks_for_whole(const Node& node, const PropagatedFactor& factor) const {
    Formula formula = bound_formula(g_, node);
    size_t operand = 0;
    for (ValueId v : node.inputs) {
      if (v == kNoValue) continue;
      const FormulaOperand& o = formula.inputs[operand++];
      auto at = factor.values.find(v);
      for (size_t d = 0; at != factor.values.end() && d < o.dims.size(); ++d) {
        bool whole = !o.dims[d].empty() && formula.factors[o.dims[d][0]].role == FactorRole::kWhole;
        if (whole && !at->second.axes_of(static_cast<int>(d)).empty()) return true;
      }
    }
    return false;
  }

  static void count(SplitOutcome& outcome, const CountedCollective& move, int64_t row_elements) {
    bool reduces = move.kind == CollectiveOp::kAllReduce || move.kind == CollectiveOp::kReduceScatter;
    if (move.gradient) {
      ++(reduces ? outcome.gradients : outcome.update);
    } else if (move.activation && move.kind == CollectiveOp::kAllReduce && move.elements <= row_elements) {
      ++outcome.rows;
    } else if (move.activation) {
      Moves& side = move.backward ? outcome.backward : outcome.forward;
      ++(move.kind == CollectiveOp::kAllReduce       ? side.all_reduce
         : move.kind == CollectiveOp::kAllGather     ? side.all_gather
         : move.kind == CollectiveOp::kReduceScatter ? side.reduce_scatter
                                                     : side.all_to_all);
    }
  }

  static void judge(SplitOutcome& outcome, const Budget& budget) {
    outcome.textbook = within(outcome.forward, budget.forward) && within(outcome.backward, budget.backward) &&
                       outcome.rows <= budget.rows && outcome.update == 0;
  }

  absl::Status add(SiteKind kind, const Node& node, SplitKind split, const PropagatedFactor& factor, int64_t ways,
                   const Budget& budget, int64_t row_elements = 0) {
    FactorSite site{.kind = kind, .name = g_.origin(node), .repeats = repeats_of(node), .splits = {}};
    std::set<int32_t> origins = {node.origin};
    for (NodeId n : factor.nodes) origins.insert(g_.nodes[n].origin);
    if (ways > 0) {
      auto moved = try_parameters(factor, ways);
      if (!moved.ok()) return moved.status();
      SplitOutcome outcome{.ways = ways};
      for (const CountedCollective& m : *moved) count(outcome, m, row_elements);
      judge(outcome, budget);
      site.splits[static_cast<int>(split)] = outcome;
    }
    table_.sites.push_back(std::move(site));
    origins_.push_back(std::move(origins));
    return absl::OkStatus();
  }

  int64_t repeats_of(const Node& node) const {
    return node.block >= 0 && static_cast<size_t>(node.block) < repeats_.size()
               ? std::max<int64_t>(1, repeats_[node.block])
               : 1;
  }

  absl::Status attention(const Node& node) {
    ValueId q = node.inputs[0], k = node.inputs[1];
    if (!dependence_.is_activation(q)) return absl::OkStatus();
    int64_t kv = g_.type(k).shape[1], ways = smallest_divisor(kv > 1 ? kv : g_.type(q).shape[1]);
    PropagatedFactor factor;
    if (ways > 0) factor = propagation_.propagate(q, split_dim(g_.type(q).shape, 1), ways);
    attentions_.push_back({node.inputs[0], g_.type(q).shape[2], table_.sites.size()});
    return add(SiteKind::kAttention, node, SplitKind::kHeads, factor, ways, kPairBudget);
  }

  bool is_embedding(const Node& node) const {
    return node.op == gather_ && dependence_.is_parameter_alone(node.inputs[0]) && dependence_.on_data(node.inputs[1]);
  }

  absl::Status embedding(const Node& node) {
    ValueId table = node.inputs[0];
    size_t dim = static_cast<size_t>(node.attrs.i("dim"));
    int64_t ways = smallest_divisor(g_.type(table).shape[dim]);
    PropagatedFactor factor;
    if (ways > 0) factor = propagation_.propagate(table, split_dim(g_.type(table).shape, dim), ways);
    Budget budget{{.all_reduce = 1}, {}, 0};
    int64_t rows = add_head_budget(factor, budget);
    return add(SiteKind::kEmbedding, node, SplitKind::kVocabulary, factor, ways, budget, rows);
  }

  // A tied head comes with its table. Returns how many rows of logits it has; 0 where it is not factor.
  int64_t add_head_budget(const PropagatedFactor& factor, Budget& budget) const {
    int64_t rows = 0;
    for (NodeId n : factor.nodes) {
      if (g_.nodes[n].op == cross_entropy_) rows = elements(g_.type(g_.nodes[n].outputs[1]).shape);
    }
    for (const auto& [v, sharding] : factor.values) {
      for (const Node& node : g_.nodes) {
        if (node.op == cross_entropy_ && node.inputs[0] == v) rows = elements(g_.type(node.outputs[1]).shape);
      }
    }
    if (rows > 0) {
      budget.backward.all_reduce += 1;
      budget.rows += 3;
    }
    return rows;
  }

  absl::Status head(const Node& node) {
    ValueId logits = node.inputs[0];
    const Shape& shape = g_.type(logits).shape;
    int64_t ways = smallest_divisor(shape.back());
    if (!dependence_.is_activation(logits) || ways == 0) return absl::OkStatus();
    PropagatedFactor factor = propagation_.propagate(logits, split_dim(shape, shape.size() - 1), ways);
    if (factor.openings.empty()) return absl::OkStatus();
    Budget budget;
    int64_t rows = add_head_budget(factor, budget);
    for (NodeId n = 0; n < static_cast<NodeId>(g_.nodes.size()); ++n) {
      const Node& other = g_.nodes[n];  // a tied table
      if (other.segment == Segment::kForward && is_embedding(other) && factor.values.count(other.inputs[0]))
        budget.forward.all_reduce += 1;
    }
    return add(SiteKind::kHead, g_.nodes[factor.openings.back()], SplitKind::kVocabulary, factor, ways, budget, rows);
  }

  // A product that sums over features which an earlier product made.
  absl::Status pair(const Node& node) {
    Formula formula = bound_formula(g_, node);
    std::vector<ValueId> inputs;
    for (ValueId v : node.inputs) {
      if (v != kNoValue) inputs.push_back(v);
    }
    for (size_t a = 0; a < inputs.size(); ++a) {
      if (!dependence_.is_activation(inputs[a])) continue;
      for (size_t w = 0; w < inputs.size(); ++w) {
        if (!dependence_.is_parameter_alone(inputs[w])) continue;
        int factor = summed_factor(formula, formula.inputs[a], formula.inputs[w]);
        if (factor >= 0) return try_pair(node, formula, inputs[a], formula.inputs[a], factor);
      }
    }
    return absl::OkStatus();
  }

  // The largest factor that both operands have and no output.
  static int summed_factor(const Formula& formula, const FormulaOperand& a, const FormulaOperand& b) {
    int best = -1;
    for (int f = 0; f < static_cast<int>(formula.factors.size()); ++f) {
      if (formula.factors[f].role == FactorRole::kSum && has_factor(a, f) && has_factor(b, f) &&
          (best < 0 || formula.factors[f].size > formula.factors[best].size))
        best = f;
    }
    return best;
  }

  absl::Status try_pair(const Node& node, const Formula& formula, ValueId activation, const FormulaOperand& operand,
                        int summed) {
    int64_t ways = smallest_divisor(formula.factors[summed].size);
    if (ways == 0) return absl::OkStatus();
    FactorSplit split;
    split.axes.resize(formula.factors.size());
    split.axes[summed] = {0};
    PropagatedFactor factor = propagation_.propagate(activation, operand_sharding(formula, operand, split), ways);
    bool inside = std::none_of(factor.nodes.begin(), factor.nodes.end(),
                               [&](NodeId n) { return g_.nodes[n].op == attention_ || is_embedding(g_.nodes[n]); });
    NodeId here = static_cast<NodeId>(&node - g_.nodes.data());
    bool before = std::all_of(factor.openings.begin(), factor.openings.end(), [&](NodeId n) { return n < here; });
    if (!inside || !before || factor.openings.empty() || factor.closings.size() != 1) return absl::OkStatus();
    return add(SiteKind::kPair, node, SplitKind::kFeatures, factor, ways, kPairBudget);
  }

  // Attention in a spelling that was not recognised: a softmax of a product of two activations.
  void find_plain_attention() {
    const OpDef* softmax = find_op("softmax");
    for (const Node& node : g_.nodes) {
      if (node.op != softmax || node.segment != Segment::kForward) continue;
      const Node* from = g_.producer(node.inputs[0]);
      for (int hop = 0; from && hop < 12; ++hop) {
        size_t activations = 0;
        for (ValueId v : from->inputs) activations += v != kNoValue && dependence_.is_activation(v);
        Formula f = bound_formula(g_, *from);
        if (activations == 2 && summed_factor(f, f.inputs[0], f.inputs[1]) >= 0) {
          FactorSite site{
              .kind = SiteKind::kPlainAttention, .name = g_.origin(node), .repeats = repeats_of(node), .splits = {}};
          site.splits[static_cast<int>(SplitKind::kHeads)] = SplitOutcome{};
          table_.sites.push_back(std::move(site));
          origins_.push_back({node.origin, from->origin});
          break;
        }
        const Node* next = nullptr;
        for (ValueId v : from->inputs) {
          if (v != kNoValue && dependence_.is_activation(v)) next = next ? next : g_.producer(v);
        }
        from = next;
      }
    }
  }

  absl::Status batch() {
    int64_t ways = 0;
    for (const GraphInput& in : g_.inputs) {
      const Shape& shape = g_.type(in.value).shape;
      if (in.kind == InputKind::kData && !shape.empty() && ways == 0) ways = smallest_divisor(shape[0]);
    }
    bool slices = micro_batches_ > 1;
    if (ways == 0 && !slices) return absl::OkStatus();
    ShardingPlan p = plan(slices ? micro_batches_ : ways);
    if (slices) {
      p.slice_axes = {0};
      p.micro_batches = 1;
    }
    for (size_t k = 0; k < g_.inputs.size() && !slices; ++k) {
      if (g_.inputs[k].kind == InputKind::kData && !p.inputs[k].dims.empty()) p.inputs[k].dims[0][0].axes = {0};
    }
    return whole_model(SplitKind::kBatch, p, {}, false);
  }

  absl::Status sequence() {
    for (const auto& a : attentions_) {
      int64_t ways = smallest_divisor(a.positions);
      if (ways == 0) continue;
      PropagatedFactor factor = propagation_.propagate(a.queries, split_dim(g_.type(a.queries).shape, 2), ways);
      ShardingPlan p = plan(ways);
      bool any = false;
      for (size_t k = 0; k < g_.inputs.size(); ++k) {
        auto at = factor.values.find(g_.inputs[k].value);
        if (g_.inputs[k].kind != InputKind::kData || at == factor.values.end()) continue;
        p.inputs[k] = at->second;
        any = true;
      }
      if (any) return whole_model(SplitKind::kSequence, p, factor, true);
    }
    return absl::OkStatus();
  }

  // Runs a split of the inputs and hands each collective to the site that it stands in.
  absl::Status whole_model(SplitKind kind, const ShardingPlan& p, const PropagatedFactor& factor, bool sequence) {
    auto moved = moves(p, factor, kind == SplitKind::kBatch && p.slice_axes.empty() ? p.mesh.axes[0].size : 1);
    if (!moved.ok()) return moved.status();
    size_t rest = table_.sites.size() - 1;
    for (size_t k = 0; k <= rest; ++k)
      table_.sites[k].splits[static_cast<int>(kind)] = SplitOutcome{.ways = p.mesh.axes[0].size};
    for (const CountedCollective& m : *moved) {
      size_t site = 0;
      while (site < rest && !origins_[site].count(m.origin)) ++site;
      count(*table_.sites[site].splits[static_cast<int>(kind)], m, 0);
    }
    for (FactorSite& site : table_.sites) {
      Budget budget;
      if (sequence && site.kind == SiteKind::kAttention)
        budget = {{.all_gather = 2}, {.all_gather = 2, .reduce_scatter = 2}, 0};
      // Sums over the batch that reach no update are those that the model asks for.
      if (!sequence) budget.forward.all_reduce = budget.backward.all_reduce = 1 << 20;
      judge(*site.splits[static_cast<int>(kind)], budget);
    }
    return absl::OkStatus();
  }

  struct Attention {
    ValueId queries;
    int64_t positions;
    size_t site;
  };

  const Graph& g_;
  const std::vector<int64_t>& repeats_;
  int64_t micro_batches_;
  const Dependence dependence_;
  const FactorPropagation propagation_;
  const OpDef *attention_, *gather_, *cross_entropy_;
  std::vector<Attention> attentions_;
  std::vector<std::set<int32_t>> origins_;  // per site, of the nodes that its factor runs through
  FactorTable table_;
};

int sum(const FactorTable& table, bool passed) {
  int n = 0;
  for (const FactorSite& site : table.sites) {
    for (const auto& outcome : site.splits) n += outcome && (!passed || outcome->textbook);
  }
  return n;
}

}  // namespace

std::string_view split_name(SplitKind kind) {
  constexpr std::string_view kNames[] = {"batch", "sequence", "heads", "features", "vocabulary"};
  return kNames[static_cast<int>(kind)];
}

std::string_view site_name(SiteKind kind) {
  constexpr std::string_view kNames[] = {"attention", "attention, not recognised", "matmul pair",
                                         "embedding", "vocabulary head",           "rest of the model"};
  return kNames[static_cast<int>(kind)];
}

int FactorTable::tried() const { return sum(*this, false); }
int FactorTable::passed() const { return sum(*this, true); }

absl::StatusOr<FactorTable> factor_table(const Graph& graph, const std::vector<int64_t>& repeats,
                                         int64_t micro_batches) {
  return Table(graph, repeats, micro_batches).build();
}

}  // namespace partita
