#include "tools/compare/step_check.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/cat.h"
#include "base/quote.h"
#include "ir/graph/evaluate.h"

namespace partita {
namespace {

using Layout = verifier::IndexMap;
using verifier::Movement;
using verifier::SerialValues;

constexpr double kHeavy = 4e6;  // floating point operations from which the draws of a node are made of one

template <typename T>
std::vector<T> picked(const std::vector<T>& from, const std::vector<int64_t>& at) {
  std::vector<T> to;
  to.reserve(at.size());
  for (int64_t k : at) to.push_back(from[static_cast<size_t>(k)]);
  return to;
}

// The tensor that a layout shows of a flat root.
Tensor seen(const Tensor& root, const TensorType& type, const std::vector<int64_t>& at) {
  Tensor t{type, {}, {}};
  (is_float(type.dtype) ? void(t.f = picked(root.f, at)) : void(t.i = picked(root.i, at)));
  return t;
}

Tensor flat(const Tensor& t, int64_t count, const std::vector<int64_t>& at) {
  Tensor root = Tensor::zeros({t.type.dtype, {count}});
  for (size_t k = 0; k < at.size(); ++k) {
    if (is_float(t.type.dtype)) {
      root.f[static_cast<size_t>(at[k])] = t.f[k];
    } else {
      root.i[static_cast<size_t>(at[k])] = t.i[k];
    }
  }
  return root;
}

// The same distance from `value` as `draw`, in another direction.
Tensor mirrored(const Tensor& value, const Tensor& draw, std::mt19937& rng) {
  Tensor t = draw;
  for (size_t k = 0; k < t.f.size(); ++k) {
    if (rng() & 1) t.f[k] = value.f[k] - (draw.f[k] - value.f[k]);
  }
  return t;
}

// Nodes that make what is had, or what that needs.
std::vector<bool> needed_nodes(const SerialValues& serial, const RankCopies::Copies& copies) {
  const Graph& g = serial.graph();
  std::set<int32_t> had;
  for (const auto& [key, own] : copies) had.insert(key.first);
  std::vector<bool> needed(g.nodes.size(), false), wanted(g.values.size(), false);
  for (size_t v = 0; v < g.values.size(); ++v) wanted[v] = had.count(serial.layout(static_cast<ValueId>(v)).root) > 0;
  for (const GraphOutput& o : g.outputs) wanted[static_cast<size_t>(o.value)] = true;
  for (const State& s : g.states) {
    if (s.next != kNoValue) wanted[static_cast<size_t>(s.next)] = true;
  }
  for (size_t n = g.nodes.size(); n-- > 0;) {
    for (ValueId v : g.nodes[n].outputs) needed[n] = needed[n] || wanted[static_cast<size_t>(v)];
    if (!needed[n]) continue;
    for (ValueId v : g.nodes[n].inputs) {
      if (v != kNoValue) wanted[static_cast<size_t>(v)] = true;
    }
  }
  return needed;
}

}  // namespace

std::string describe_node(const Graph& graph, const Node& node) {
  return cat(quote(graph.origin(node)), " (", enum_name(node.segment), ", ", node.op->name, ")");
}

std::string describe_value(const Graph& graph, NodeId node, ValueId value) {
  const std::string& name = graph.values[static_cast<size_t>(value)].name;
  const std::string type = to_string(graph.type(value));
  if (!name.empty()) return cat(quote(name), " ", type);
  for (const GraphInput& in : graph.inputs) {
    if (in.value == value) return cat("input ", quote(in.name), " ", type);
  }
  for (const State& s : graph.states) {
    if (s.value == value || s.next == value)
      return cat("state ", quote(s.name), s.next == value && s.value != value ? " after the step " : " ", type);
  }
  return node == kNoNode ? type : cat(graph.nodes[static_cast<size_t>(node)].op->name, " ", type);
}

StepCheck::StepCheck(const SerialValues& serial, StepRuns runs, const RankCopies::Copies& copies,
                     const RankCopies::Copies* others)
    : serial_(serial),
      g_(serial.graph()),
      runs_(runs.count),
      together_(runs.together),
      copies_(copies),
      others_(others),
      needed_(needed_nodes(serial, copies)) {
  for (size_t n = 0; n < g_.nodes.size(); ++n) {
    if (verifier::movement_of(*g_.nodes[n].op) != Movement::kNone) continue;
    for (ValueId v : g_.nodes[n].outputs) maker_.try_emplace(serial.layout(v).root, v);
  }
  for (const State& s : g_.states) {
    const Node* next = s.next == kNoValue ? nullptr : g_.producer(s.next);
    if (next == nullptr || verifier::runs_of(next->segment) != verifier::Runs::kEach) continue;
    next_of_[s.value] = s.next;
    if (s.kind == StateKind::kAccumulator) zero_at_first_.insert(s.value);
  }
}

StepReport StepCheck::run() {
  take_outside();
  run_nodes({Segment::kPrologue}, 0);
  for (int64_t run = 0; run < runs_; ++run) run_nodes({Segment::kForward, Segment::kBackward}, run);
  check_sums();
  run_nodes({Segment::kReduce, Segment::kUpdate}, runs_ - 1);
  std::stable_sort(
      report_.differences.begin(), report_.differences.end(),
      [](const Difference& a, const Difference& b) { return std::pair(a.node, a.run) < std::pair(b.node, b.run); });
  name_between();
  return std::move(report_);
}

int64_t StepCheck::held_under(ValueId v, int64_t run) const {
  return serial_.per_run(serial_.layout(v).root) ? run : 0;
}

const StepCheck::Known* StepCheck::known(ValueId v, int64_t run) const {
  if (run > 0) {
    // What a state has become with the run before.
    if (auto next = next_of_.find(v); next != next_of_.end()) return known(next->second, run - 1);
  }
  auto at = known_.find({v, held_under(v, run)});
  return at == known_.end() ? nullptr : &at->second;
}

// A value that is what it is.
void StepCheck::take(ValueId v, int64_t run, Tensor value) {
  known_[{v, held_under(v, run)}] = {{std::move(value), {}}, true};
}

// A state or an input as the side has it.
void StepCheck::take_held(ValueId v, int64_t run) {
  const Layout& l = serial_.layout(v);
  if (known(v, run) != nullptr) return;
  const std::vector<int64_t> at = root_indices(l, elements(g_.type(v).shape), {});
  for (const RankCopies::Copies* copies : {&copies_, others_}) {
    if (copies == nullptr) continue;
    const auto held = copies->find({l.root, held_under(v, run)});
    if (held == copies->end()) continue;
    for (const RootCopy& copy : held->second) {
      if (!copy.torn.empty() && copies == &copies_) add(kNoNode, v, run, copy, {}, false);
      if (copy.whole && known(v, run) == nullptr) take(v, run, seen(copy.values, g_.type(v), at));
    }
  }
}

void StepCheck::take_outside() {
  for (const Constant& c : g_.constants) take(c.value, 0, to_tensor(c.literal));
  for (const GraphInput& in : g_.inputs) {
    for (int64_t run = 0; run < runs_; ++run) {
      if (in.kind == InputKind::kData) take_held(in.value, run);
      if (in.kind == InputKind::kMicroBatch) take(in.value, run, Tensor{g_.type(in.value), {}, {run}});
    }
  }
  for (const State& s : g_.states) {
    if (zero_at_first_.count(s.value) > 0) {
      take(s.value, 0, Tensor::zeros(g_.type(s.value)));
    } else {
      take_held(s.value, 0);
    }
  }
}

void StepCheck::run_nodes(const std::set<Segment>& segments, int64_t run) {
  for (size_t n = 0; n < g_.nodes.size(); ++n) {
    if (needed_[n] && segments.count(g_.nodes[n].segment) > 0) run_node(static_cast<NodeId>(n), run);
  }
}

void StepCheck::run_node(NodeId n, int64_t run) {
  const Node& node = g_.nodes[static_cast<size_t>(n)];
  if (known(node.outputs[0], run) != nullptr) return;  // the same in each run
  std::vector<const Known*> operands;
  bool captured = true;
  size_t draws = 0;
  for (ValueId v : node.inputs) {
    operands.push_back(v == kNoValue ? nullptr : known(v, run));
    if (v != kNoValue && operands.back() == nullptr) return;
    if (v == kNoValue) continue;
    captured = captured && operands.back()->captured;
    draws = std::max(draws, operands.back()->draws.size());
  }
  const bool moves = verifier::movement_of(*node.op) != Movement::kNone;
  const NodeRounding rounding = moves ? NodeRounding{} : node_rounding(g_, node);
  const size_t drawn = moves ? draws : node_flops(g_, node) > kHeavy ? 1 : kDraws;
  std::vector<Known> results(node.outputs.size());
  for (size_t p = 0; p <= drawn; ++p) {
    std::mt19937 rng(static_cast<uint32_t>(n) * 31 + static_cast<uint32_t>(p));
    std::vector<Tensor> own(operands.size());  // of this draw
    std::vector<const Tensor*> in;
    for (size_t k = 0; k < operands.size(); ++k) {
      const Tensor* x = operands[k] == nullptr ? nullptr : p == 0 ? &operands[k]->value : &operands[k]->draw(p - 1);
      if (x != nullptr && p > 0 && !moves && is_float(x->type.dtype))
        x = &(own[k] = perturbed(*x, rounding.operand, rng));
      in.push_back(x);
    }
    std::vector<Tensor> out = evaluate_op(*node.op, node.attrs, in);
    for (size_t k = 0; k < out.size(); ++k) {
      const double share = moves ? 0 : rounding.result + unit_roundoff(out[k].type.dtype);
      if (p == 0) {
        results[k].value = std::move(out[k]);
      } else {
        results[k].draws.push_back(share > 0 ? perturbed(std::move(out[k]), share, rng) : std::move(out[k]));
      }
    }
  }
  std::mt19937 rng(static_cast<uint32_t>(n));
  for (size_t k = 0; k < results.size(); ++k) {
    while (drawn > 0 && results[k].draws.size() < kDraws)
      results[k].draws.push_back(mirrored(results[k].value, results[k].draws[0], rng));
    results[k].captured = moves && captured;
    if (!moves) hold_against_copies(n, node.outputs[k], run, results[k]);
    known_[{node.outputs[k], held_under(node.outputs[k], run)}] = std::move(results[k]);
  }
}

void StepCheck::hold_against_copies(NodeId n, ValueId v, int64_t run, Known& mine) {
  const Layout& l = serial_.layout(v);
  auto held = copies_.find({l.root, held_under(v, run)});
  const bool unfinished = g_.nodes[static_cast<size_t>(n)].op->sums_micro_batches && run != runs_ - 1;
  const bool first = !unfinished && checked_.insert({l.root, held_under(v, run)}).second;
  if (held == copies_.end() || unfinished) {
    report_.inside += first;
    return;
  }
  report_.compared += first;
  const std::vector<int64_t> at = root_indices(l, elements(g_.type(v).shape), {});
  const size_t count = held->second.front().filled.size();
  DrawnValue expected{flat(mine.value, static_cast<int64_t>(count), at), {}};
  // The proof may take a value for constant along a dimension that its node keeps whole: then the layout is not it.
  const Tensor again = seen(expected.value, mine.value.type, at);
  if (again.i != mine.value.i || again.f.size() != mine.value.f.size() ||
      std::memcmp(again.f.data(), mine.value.f.data(), again.f.size() * sizeof(double)) != 0)
    return;
  for (const Tensor& draw : mine.draws) expected.draws.push_back(flat(draw, static_cast<int64_t>(count), at));
  std::vector<Tensor> good;
  for (const RootCopy& copy : held->second) {
    if (copy.summed || copy.values.type.dtype != mine.value.type.dtype) continue;
    const double unit = std::max(unit_roundoff(copy.values.type.dtype), unit_roundoff(copy.held));
    Deviation d = deviation(expected, copy.values, copy.filled, unit);
    const bool wrong = d.beyond || !copy.torn.empty();
    if (wrong && first) add(n, v, run, copy, std::move(d), !good.empty());
    if (!copy.whole) continue;
    // What follows computes with what the side has; of several copies, with any of them.
    mine.captured = true;
    mine.value = seen(copy.values, mine.value.type, at);
    if (!wrong) good.push_back(mine.value);
  }
  if (!mine.captured) return;
  mine.draws.clear();
  for (size_t p = 0; p < kDraws && good.size() > 1; ++p) mine.draws.push_back(good[p % good.size()]);
}

// Values of several runs that ranks hold as their sum.
void StepCheck::check_sums() {
  for (const auto& [key, own] : copies_) {
    const auto maker = maker_.find(key.first);
    for (const RootCopy& copy : own) {
      if (!copy.summed || maker == maker_.end() || !is_float(copy.values.type.dtype)) continue;
      const ValueId v = maker->second;
      DrawnValue sum{Tensor::zeros(g_.type(v)), {}};
      bool all = true;
      for (int64_t run = key.second; run < std::min(runs_, key.second + together_); ++run) {
        const Known* term = known(v, run);
        all = all && term != nullptr;
        for (size_t k = 0; all && k < sum.value.f.size(); ++k) sum.value.f[k] += term->value.f[k];
      }
      if (!all) continue;
      const std::vector<int64_t> at = root_indices(serial_.layout(v), elements(g_.type(v).shape), {});
      sum.value = flat(sum.value, static_cast<int64_t>(copy.filled.size()), at);
      const double share = unit_roundoff(copy.values.type.dtype) * std::sqrt(static_cast<double>(together_) + 1);
      Deviation d = deviation(sum, copy.values, copy.filled, share);
      if (d.beyond) add(g_.values[static_cast<size_t>(v)].producer, v, key.second, copy, std::move(d), true);
    }
  }
}

void StepCheck::add(NodeId n, ValueId v, int64_t run, const RootCopy& copy, Deviation d, bool moved) {
  report_.differences.push_back({n, v, run, copy, std::move(d), moved, {}});
}

// The nodes from what the side has to a value, that included; views are none.
std::set<NodeId> StepCheck::inside_of(ValueId value, int64_t run) const {
  std::set<NodeId> nodes, seen_nodes;
  std::vector<ValueId> todo = {value};
  while (!todo.empty()) {
    const NodeId n = g_.values[static_cast<size_t>(todo.back())].producer;
    todo.pop_back();
    if (n == kNoNode || !seen_nodes.insert(n).second) continue;
    const Node& node = g_.nodes[static_cast<size_t>(n)];
    if (!node.op->view) nodes.insert(n);
    for (ValueId v : node.inputs) {
      const Known* k = v == kNoValue ? nullptr : known(v, run);
      if (k != nullptr && !k->captured) todo.push_back(v);
    }
  }
  return nodes;
}

// Of the nodes that only the inside of a kernel has, those are left out that a value goes by which is as it should be.
void StepCheck::name_between() {
  if (report_.differences.empty()) return;
  Difference& first = report_.differences.front();
  if (first.node == kNoNode) return;
  if (first.moved) {
    first.between = {first.node};
    return;
  }
  std::set<int32_t> wrong;
  for (const Difference& d : report_.differences) wrong.insert(serial_.layout(d.value).root);
  std::set<NodeId> inside = inside_of(first.value, first.run);
  for (const auto& [key, known] : known_) {
    if (inside.size() <= 1) break;
    if (!known.captured || wrong.count(serial_.layout(key.first).root) > 0 ||
        key.second != held_under(key.first, first.run))
      continue;
    for (NodeId n : inside_of(key.first, first.run)) {
      if (n != first.node) inside.erase(n);
    }
  }
  first.between.assign(inside.begin(), inside.end());
}

}  // namespace partita
