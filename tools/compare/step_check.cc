#include "tools/compare/step_check.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "base/cat.h"
#include "base/quote.h"
#include "ir/graph/evaluate.h"

namespace partita {
namespace {

using Layout = verifier::IndexMap;
using verifier::Movement;
using verifier::SerialValues;

// A step runs the graph's segments in these phases, the second one once for each run.
enum Phase : int { kBefore, kRuns, kAfter };

int phase_of(Segment segment) {
  return segment == Segment::kPrologue                                   ? kBefore
         : segment == Segment::kForward || segment == Segment::kBackward ? kRuns
                                                                         : kAfter;
}

bool trains(Segment segment) {
  return segment == Segment::kReduce || segment == Segment::kUpdate || phase_of(segment) != kAfter;
}

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
    kept_.insert({s.value, s.next});
    if (s.kind == StateKind::kAccumulator) zero_at_first_.insert(s.value);
  }
  for (const auto& [key, held] : copies) {
    if (held.summed) summed_.insert(key.first);
  }
  find_last_reads();
}

void StepCheck::find_last_reads() {
  last_reads_.assign(g_.values.size(), {kBefore, kNoNode});
  for (size_t n = 0; n < g_.nodes.size(); ++n) {
    if (!needed_[n] || !trains(g_.nodes[n].segment)) continue;
    const std::pair at(phase_of(g_.nodes[n].segment), static_cast<NodeId>(n));
    for (ValueId v : g_.nodes[n].inputs) {
      if (v != kNoValue) last_reads_[static_cast<size_t>(v)] = std::max(last_reads_[static_cast<size_t>(v)], at);
    }
  }
}

void StepCheck::run_all() {
  take_outside();
  run_nodes(kBefore, 0);
  for (int64_t run = 0; run < runs_; ++run) run_nodes(kRuns, run);
  if (watch_ == nullptr) check_sums();
  run_nodes(kAfter, runs_ - 1);
}

void StepCheck::show(NodeWatch& watch) {
  watch_ = &watch;
  run_all();
}

StepReport StepCheck::run() {
  run_all();
  std::stable_sort(
      report_.differences.begin(), report_.differences.end(),
      [](const Difference& a, const Difference& b) { return std::pair(a.node, a.run) < std::pair(b.node, b.run); });
  name_between();
  return std::move(report_);
}

int64_t StepCheck::held_under(ValueId v, int64_t run) const {
  return serial_.per_run(serial_.layout(v).root) ? run : 0;
}

StepCheck::Known StepCheck::known(ValueId v, int64_t run) const {
  if (run > 0) {
    // What a state has become with the run before.
    if (auto next = next_of_.find(v); next != next_of_.end()) return known(next->second, run - 1);
  }
  auto at = known_.find({v, held_under(v, run)});
  return at == known_.end() ? nullptr : at->second;
}

void StepCheck::take(ValueId v, int64_t run, KnownValue value) {
  known_[{v, held_under(v, run)}] = std::make_shared<const KnownValue>(std::move(value));
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
    for (const RootCopy& copy : held->second.copies()) {
      if (!copy.torn.empty() && copies == &copies_) add({kNoNode, v, run, copy, {}, false, {}});
      if (copy.whole && known(v, run) == nullptr) take(v, run, {seen(copy.values, g_.type(v), at)});
    }
  }
}

void StepCheck::take_outside() {
  for (const Constant& c : g_.constants) take(c.value, 0, {to_tensor(c.literal)});
  for (const GraphInput& in : g_.inputs) {
    for (int64_t run = 0; run < runs_; ++run) {
      if (in.kind == InputKind::kData) take_held(in.value, run);
      if (in.kind == InputKind::kMicroBatch) take(in.value, run, {Tensor{g_.type(in.value), {}, {run}}});
    }
  }
  for (const State& s : g_.states) {
    if (zero_at_first_.count(s.value) > 0) {
      take(s.value, 0, {Tensor::zeros(g_.type(s.value))});
    } else {
      take_held(s.value, 0);
    }
  }
}

void StepCheck::run_nodes(int phase, int64_t run) {
  for (size_t n = 0; n < g_.nodes.size(); ++n) {
    const Segment segment = g_.nodes[n].segment;
    if (!needed_[n] || !trains(segment) || phase_of(segment) != phase) continue;
    run_node(static_cast<NodeId>(n), run);
    forget(static_cast<NodeId>(n), phase, run);
  }
}

void StepCheck::run_node(NodeId n, int64_t run) {
  const Node& node = g_.nodes[static_cast<size_t>(n)];
  if (known(node.outputs[0], run) != nullptr) return;  // the same in each run
  KnownValues operands;
  std::vector<const Tensor*> in;
  bool captured = true;
  size_t others = 0;
  for (ValueId v : node.inputs) {
    operands.push_back(v == kNoValue ? nullptr : known(v, run));
    in.push_back(operands.back() == nullptr ? nullptr : &operands.back()->value);
    if (v == kNoValue) continue;
    if (operands.back() == nullptr) return;
    captured = captured && operands.back()->captured;
    others = std::max(others, operands.back()->others.size());
  }
  const bool moves = verifier::movement_of(*node.op) != Movement::kNone;
  std::vector<Tensor> results = evaluate_op(*node.op, node.attrs, in);
  ++executions_;
  for (size_t k = 0; k < results.size(); ++k) {
    KnownValue mine{.value = std::move(results[k]), .captured = moves && captured};
    for (size_t p = 0; mine.captured && p < others; ++p) {
      for (size_t o = 0; o < in.size(); ++o) {
        const auto& all = operands[o]->others;
        in[o] = all.empty() ? &operands[o]->value : &all[p % all.size()];
      }
      mine.others.push_back(evaluate_op(*node.op, node.attrs, in)[k]);
    }
    for (size_t o = 0; mine.captured && o < operands.size(); ++o) {
      mine.movers.insert(mine.movers.end(), operands[o]->movers.begin(), operands[o]->movers.end());
      mine.writers.insert(mine.writers.end(), operands[o]->writers.begin(), operands[o]->writers.end());
    }
    if (mine.captured && !node.op->view) mine.movers.push_back(n);
    if (!mine.captured) {
      mine.node = n;
      mine.result = k;
      mine.execution = executions_;
      mine.operands = operands;
    }
    std::vector<RootCopy> copies;
    if (!moves) copies = hold_against_copies(node.outputs[k], run, mine);
    if (watch_ != nullptr) watch_->see(n, k, run, operands, mine, copies);
    take(node.outputs[k], run, std::move(mine));
  }
}

// Values that no node reads any more: what is evaluated of them holds them as long as it needs them.
void StepCheck::forget(NodeId n, int phase, int64_t run) {
  const Node& node = g_.nodes[static_cast<size_t>(n)];
  auto drop = [&](ValueId v) {
    if (v == kNoValue || kept_.count(v) > 0 || last_reads_[static_cast<size_t>(v)] > std::pair(phase, n)) return;
    const int32_t root = serial_.layout(v).root;
    if (phase == kRuns && (summed_.count(root) > 0 || (run < runs_ - 1 && !serial_.per_run(root)))) return;
    known_.erase({v, held_under(v, run)});
  };
  for (ValueId v : node.inputs) drop(v);
  for (ValueId v : node.outputs) drop(v);
}

// What the evaluator makes of a value, flat as its root is; with rounding, and off by factors, where that is asked for.
class StepCheck::Expected {
 public:
  Expected(const Graph& graph, const KnownValue& mine, const std::vector<RootCopy>& copies,
           const std::vector<int64_t>& at)
      : at_(at),
        count_(copies.front().filled.size()),
        inside_(graph, mine),
        value_{flat(mine.value, static_cast<int64_t>(count_), at), {}} {
    // Of all copies: what was received or summed up since has the bits of the kernel that made it.
    for (const RootCopy& copy : copies) {
      for (int64_t step : {copy.step, copy.begun}) writers_.emplace_back(copy.stage, step);
    }
  }

  const Tensor& value() const { return value_.value; }
  const std::set<NodeId>& nodes() const { return inside_.nodes(); }

  // `between`: the nodes that a small factor is at, where it is that.
  Deviation of(const RootCopy& copy, std::vector<NodeId>& between) {
    const double unit = std::max(unit_roundoff(copy.values.type.dtype), unit_roundoff(copy.held));
    value_.draws.clear();
    Deviation d = deviation(value_, copy.values, copy.filled, unit);
    if (d.beyond) {
      draw();
      d = deviation(value_, copy.values, copy.filled, unit);
    }
    return d.beyond || nodes().size() < 2 ? d : along(copy, unit, std::move(d), between);
  }

 private:
  void draw() {
    for (const Tensor& t : inside_.draws(writers_)) value_.draws.push_back(flat(t, static_cast<int64_t>(count_), at_));
  }

  Deviation along(const RootCopy& copy, double unit, Deviation d, std::vector<NodeId>& between) {
    if (!is_float(value_.value.type.dtype)) return d;
    if (!directions_) directions_ = inside_.directions();
    double most = 0;
    for (const Inside::Direction& direction : *directions_) {
      std::vector<double> change(count_, 0);
      for (size_t k = 0; k < at_.size(); ++k) change[static_cast<size_t>(at_[k])] = direction.change[k];
      Shift s = shift_along(value_, copy.values, copy.filled, unit, change);
      if (s.beyond && value_.draws.empty()) {
        draw();
        s = shift_along(value_, copy.values, copy.filled, unit, change);
      }
      if (!s.beyond) continue;
      d.beyond = d.of_scale = true;
      between.push_back(direction.node);
      if (s.weight > most) most = s.weight, d.found = std::abs(s.found), d.usual = s.usual;
    }
    return d;
  }

  const std::vector<int64_t>& at_;
  const size_t count_;
  const Inside inside_;
  std::vector<WrittenBy> writers_;
  DrawnValue value_;
  std::optional<std::vector<Inside::Direction>> directions_;
};

std::vector<RootCopy> StepCheck::hold_against_copies(ValueId v, int64_t run, KnownValue& mine) {
  const Layout& l = serial_.layout(v);
  const NodeId n = mine.node;
  auto held = copies_.find({l.root, held_under(v, run)});
  const bool unfinished = g_.nodes[static_cast<size_t>(n)].op->sums_micro_batches && run != runs_ - 1;
  const bool first = !unfinished && checked_.insert({l.root, held_under(v, run)}).second;
  if (held == copies_.end() || unfinished) {
    report_.inside += first;
    return {};
  }
  report_.compared += first;
  std::vector<RootCopy> copies = held->second.copies();
  const std::vector<int64_t> at = root_indices(l, elements(g_.type(v).shape), {});
  Expected expected(g_, mine, copies, at);
  // The proof may take a value for constant along a dimension that its node keeps whole: then the layout is not it.
  const Tensor again = seen(expected.value(), mine.value.type, at);
  if (again.i != mine.value.i || again.f.size() != mine.value.f.size() ||
      std::memcmp(again.f.data(), mine.value.f.data(), again.f.size() * sizeof(double)) != 0)
    return {};
  std::vector<Tensor> good;
  std::optional<Tensor> captured;
  std::vector<WrittenBy> writers;
  for (const RootCopy& copy : copies) {
    if (copy.summed || copy.values.type.dtype != mine.value.type.dtype) continue;
    std::vector<NodeId> between;
    Deviation d;
    if (watch_ == nullptr) d = expected.of(copy, between);
    const bool wrong = d.beyond || !copy.torn.empty();
    if (wrong && first && watch_ == nullptr) add({n, v, run, copy, std::move(d), !good.empty(), std::move(between)});
    if (!copy.whole) continue;
    // What follows computes with what the side has; of several copies, with any of them.
    captured = seen(copy.values, mine.value.type, at);
    writers.emplace_back(copy.stage, copy.step);
    if (!wrong) good.push_back(*captured);
  }
  if (!captured) return copies;
  inside_[{v, held_under(v, run)}] = expected.nodes();
  mine = {.value = *std::move(captured), .writers = std::move(writers)};
  if (good.size() > 1) mine.others = std::move(good);
  return copies;
}

// Values of several runs that ranks hold as their sum.
void StepCheck::check_sums() {
  for (const auto& [key, held] : copies_) {
    const auto maker = maker_.find(key.first);
    if (!held.summed || maker == maker_.end()) continue;
    for (const RootCopy& copy : held.copies()) {
      if (!copy.summed || !is_float(copy.values.type.dtype)) continue;
      const ValueId v = maker->second;
      DrawnValue sum{Tensor::zeros(g_.type(v)), {}};
      bool all = true;
      for (int64_t run = key.second; run < std::min(runs_, key.second + together_); ++run) {
        const Known term = known(v, run);
        all = all && term != nullptr;
        for (size_t k = 0; all && k < sum.value.f.size(); ++k) sum.value.f[k] += term->value.f[k];
      }
      if (!all) continue;
      const std::vector<int64_t> at = root_indices(serial_.layout(v), elements(g_.type(v).shape), {});
      sum.value = flat(sum.value, static_cast<int64_t>(copy.filled.size()), at);
      const double share = unit_roundoff(copy.values.type.dtype) * std::sqrt(static_cast<double>(together_) + 1);
      Deviation d = deviation(sum, copy.values, copy.filled, share);
      if (d.beyond) add({g_.values[static_cast<size_t>(v)].producer, v, key.second, copy, std::move(d), true, {}});
    }
  }
}

// Of differences that come after another no more is kept than where they are.
void StepCheck::add(Difference d) {
  for (const Difference& x : report_.differences) {
    if (std::pair(x.node, x.run) >= std::pair(d.node, d.run)) continue;
    d.copy.values = {};
    d.copy.filled.clear();
    d.copy.indices.clear();
    d.deviation.elements.clear();
    break;
  }
  report_.differences.push_back(std::move(d));
}

// Of the nodes that only the inside of a kernel has, those are left out that a value goes by which is as it should be.
void StepCheck::name_between() {
  if (report_.differences.empty()) return;
  Difference& first = report_.differences.front();
  if (first.node == kNoNode || !first.between.empty()) return;
  if (first.moved) {
    first.between = {first.node};
    return;
  }
  std::set<int32_t> wrong;
  for (const Difference& d : report_.differences) wrong.insert(serial_.layout(d.value).root);
  auto own = inside_.find({first.value, held_under(first.value, first.run)});
  std::set<NodeId> inside = own == inside_.end() ? std::set<NodeId>{first.node} : own->second;
  for (const auto& [key, nodes] : inside_) {
    if (inside.size() <= 1) break;
    if (wrong.count(serial_.layout(key.first).root) > 0 || key.second != held_under(key.first, first.run)) continue;
    for (NodeId n : nodes) {
      if (n != first.node) inside.erase(n);
    }
  }
  first.between.assign(inside.begin(), inside.end());
}

}  // namespace partita
