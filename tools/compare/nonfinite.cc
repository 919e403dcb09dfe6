#include "tools/compare/nonfinite.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "base/cat.h"
#include "base/exit_code.h"
#include "base/quote.h"
#include "base/status.h"
#include "fmt/format.h"
#include "runtime/train/divergence.h"
#include "tools/compare/describe_difference.h"
#include "tools/compare/side.h"
#include "tools/verify/steps/check_steps.h"

namespace partita {
namespace {

constexpr int64_t kStepsBefore = 2;  // the bad one, that are looked at

struct Range {
  double low = INFINITY, high = -INFINITY;  // of what is finite
  int64_t nans = 0, infinities = 0, count = 0;
};

// The evaluator computes in double precision, kernels in single: what is beyond that is infinite there.
bool is_infinite(const Tensor& t, double x) {
  return std::isinf(x) || (t.type.dtype != DType::kF64 && std::abs(x) > std::numeric_limits<float>::max());
}

Range range_of(const Tensor& t) {
  Range r{.count = static_cast<int64_t>(t.f.size() + t.i.size())};
  auto take = [&](double x) { r.low = std::min(r.low, x), r.high = std::max(r.high, x); };
  for (double x : t.f) {
    if (std::isnan(x))
      ++r.nans;
    else if (is_infinite(t, x))
      ++r.infinities;
    else
      take(x);
  }
  for (int64_t x : t.i) take(static_cast<double>(x));
  return r;
}

std::string range_text(const Range& r) {
  std::string text = r.low <= r.high ? fmt::format("{:.6g} to {:.6g}", r.low, r.high) : "nothing finite";
  if (r.nans > 0) append(text, ", ", r.nans, " of ", r.count, " nan");
  if (r.infinities > 0) append(text, ", ", r.infinities, " of ", r.count, " infinite");
  return text;
}

std::vector<int64_t> bad_elements(const Tensor& t) {
  std::vector<int64_t> at;
  for (size_t k = 0; k < t.f.size(); ++k) {
    if (std::isnan(t.f[k]) || is_infinite(t, t.f[k])) at.push_back(static_cast<int64_t>(k));
  }
  return at;
}

bool is_bad(const Range& r) { return r.nans > 0 || r.infinities > 0; }

// A value that is not finite and was not made so by one of its operands; or one that a step began with.
struct Finding {
  std::string node;       // as describe_node() has it; of what the step began with, the node that read it first
  bool outside = false;   // which no node of the step has made
  std::string state;      // that the step began with
  bool constant = false;  // of the program
  bool only_low = false;  // minus infinity alone, as masks have it
  std::string text, ranks;
};

// One step: what is not finite, and what of it the loss, the norm of the gradients, and the states after it come from,
// by a way of values that are not finite.
class Search : public NodeWatch {
 public:
  // `usual`: nodes that have made such values in steps whose loss was finite.
  Search(const Side& side, const std::set<std::string>& usual) : side_(side), graph_(side.graph()), usual_(usual) {
    for (const State& s : graph_.states) {
      if (s.next != kNoValue) before_.emplace(s.value, s.next);
    }
  }

  void see(NodeId n, size_t result, int64_t run, const KnownValues& operands, const KnownValue& value,
           const std::vector<RootCopy>& copies) override {
    const Range mine = range_of(value.value);
    if (!is_bad(mine)) return;
    const Node& node = graph_.nodes[static_cast<size_t>(n)];
    std::set<size_t>& causes = causes_[node.outputs[result]];
    int64_t nans = 0, infinities = 0;
    for (size_t k = 0; k < operands.size(); ++k) {
      if (operands[k] == nullptr) continue;
      const Range r = range_of(operands[k]->value);
      if (!is_bad(r)) continue;
      nans += r.nans;
      infinities += r.infinities;
      const std::set<size_t> earlier = causes_of(n, node.inputs[k], operands[k]->value, r);
      causes.insert(earlier.begin(), earlier.end());
    }
    const bool fresh = (mine.nans > 0 && nans == 0) || (mine.infinities > 0 && nans == 0 && infinities == 0);
    if (fresh) {
      causes.insert(findings_.size());
      findings_.push_back(found(n, result, run, operands, value.value, mine));
      tell_ranks(findings_.back(), copies, "");
    }
    for (const size_t c : causes) {
      if (findings_[c].ranks.empty())
        tell_ranks(findings_[c], copies,
                   cat(findings_[c].outside ? "" : "inside of a kernel; ", "in memory first as the result of ",
                       describe_node(graph_, node), ", "));
    }
  }

  // What a run ends for: the loss or the norm of the gradients is not finite. An overflow of gradients that a loss
  // scale handles is none, but in a step of which it is known that it ended the run.
  bool diverged(bool known) const {
    return is_seen("loss") || (is_seen("grad_norm") && (known || output("loss_scale") == kNoValue));
  }
  // The first cause of that; null where nothing was found.
  const Finding* cause() const {
    std::set<size_t> all;
    for (const char* name : {"loss", "grad_norm"}) {
      const auto at = causes_.find(output(name));
      if (at != causes_.end()) all.insert(at->second.begin(), at->second.end());
    }
    if (all.empty()) {
      for (size_t k = 0; k < findings_.size(); ++k) all.insert(k);
    }
    return first_of(all);
  }
  // Of states that are not finite after the step, by name.
  std::map<std::string, const Finding*> states() const {
    std::map<std::string, const Finding*> all;
    for (const State& s : graph_.states) {
      const auto at = s.next == kNoValue || s.kind == StateKind::kAccumulator ? causes_.end() : causes_.find(s.next);
      if (at != causes_.end()) all[s.name] = first_of(at->second);
    }
    return all;
  }
  const std::vector<Finding>& findings() const { return findings_; }

 private:
  ValueId output(std::string_view name) const {
    for (const GraphOutput& o : graph_.outputs) {
      if (o.name == name) return o.value;
    }
    return kNoValue;
  }
  bool is_seen(std::string_view name) const { return causes_.count(output(name)) > 0; }

  // Masks are infinite in every step, by design: whatever else there is comes before them.
  const Finding* first_of(const std::set<size_t>& all) const {
    const Finding* first = nullptr;
    auto rank = [&](const Finding& f) { return std::tuple(f.constant, usual_.count(f.node) > 0, f.only_low); };
    for (const size_t c : all) {
      if (first == nullptr || rank(findings_[c]) < rank(*first)) first = &findings_[c];
    }
    return first;
  }

  std::set<size_t> causes_of(NodeId reader, ValueId v, const Tensor& value, const Range& range) {
    // A state within a step may be what another run of the graph has left of it.
    const auto next = before_.find(v);
    for (const ValueId made : {v, next == before_.end() ? kNoValue : next->second}) {
      if (const auto at = causes_.find(made); at != causes_.end()) return at->second;
    }
    if (graph_.producer(v) != nullptr) return {};
    const auto [at, fresh] = outside_.emplace(v, findings_.size());
    if (fresh) findings_.push_back(outside(reader, v, value, range));
    return {at->second};
  }

  Finding found(NodeId n, size_t result, int64_t run, const KnownValues& operands, const Tensor& value,
                const Range& mine) const {
    const Node& node = graph_.nodes[static_cast<size_t>(n)];
    const ValueId v = node.outputs[result];
    Finding f{.node = describe_node(graph_, node), .only_low = is_only_low(value)};
    f.text = cat(f.node, ", ", describe_value(graph_, n, v), ", run ", run,
                 " of the graph\n  result: ", range_text(mine), box_text(value, v), "\n");
    for (size_t k = 0; k < operands.size(); ++k) {
      if (operands[k] == nullptr) continue;
      const ValueId o = node.inputs[k];
      append(f.text, "  operand ", k, ": ", describe_value(graph_, graph_.values[static_cast<size_t>(o)].producer, o),
             ": ", range_text(range_of(operands[k]->value)), "\n");
    }
    return f;
  }

  Finding outside(NodeId reader, ValueId v, const Tensor& value, const Range& range) const {
    const std::string node = describe_node(graph_, graph_.nodes[static_cast<size_t>(reader)]);
    Finding f{.node = node, .outside = true, .only_low = is_only_low(value)};
    std::string what = "constant ";
    f.constant = true;
    for (const GraphInput& in : graph_.inputs) {
      if (in.value == v) what = cat("the samples: input ", quote(in.name), " "), f.constant = false;
    }
    for (const State& s : graph_.states) {
      if (s.value == v) what = cat("state ", quote(s.name), " "), f.state = s.name, f.constant = false;
    }
    f.text = cat(what, to_string(graph_.type(v)), ", which the step began with\n  value: ", range_text(range),
                 box_text(value, v), "\n  read first by ", node, "\n");
    return f;
  }

  static bool is_only_low(const Tensor& t) {
    return std::all_of(t.f.begin(), t.f.end(),
                       [&](double x) { return !std::isnan(x) && (x < 0 || !is_infinite(t, x)); });
  }

  std::string box_text(const Tensor& value, ValueId v) const {
    const Shape& shape = graph_.type(v).shape;
    return shape.empty() ? "" : cat(", in ", box_of(bad_elements(value), shape));
  }

  // Which ranks have the bad elements, and in which box of the value.
  void tell_ranks(Finding& f, const std::vector<RootCopy>& copies, const std::string& how) const {
    std::vector<RootCopy> own_copies = copies;
    std::stable_partition(own_copies.begin(), own_copies.end(), [&](const RootCopy& c) { return is_computed(c); });
    for (const RootCopy& copy : own_copies) {
      const std::vector<int64_t> all = bad_elements(copy.values);
      const std::set<int64_t> bad(all.begin(), all.end());
      for (size_t k = 0; k < copy.ranks.size(); ++k) {
        std::vector<int64_t> own;
        std::copy_if(copy.indices[k].begin(), copy.indices[k].end(), std::back_inserter(own),
                     [&](int64_t at) { return bad.count(at) > 0; });
        if (own.empty()) continue;
        append(f.ranks, f.ranks.empty() ? cat("  ", how, "on rank ") : "; rank ", copy.ranks[k], ", ", own.size(),
               own.size() == 1 ? " element" : " elements");
        if (const auto shape = shape_of(copy); shape && !shape->empty()) append(f.ranks, " in ", box_of(own, *shape));
      }
      if (f.ranks.empty()) continue;
      const verifier::RankProgram& p = side_.copies().set().programs[copy.stage];
      append(f.ranks, "\n  ", copy.written ? "computed by " : "read by ",
             verifier::describe_step(p.program, static_cast<int>(copy.step)), "\n");
      return;
    }
  }

  // By a kernel of these ranks, not received.
  bool is_computed(const RootCopy& copy) const {
    for (const runtime::ProgramSegment& segment : side_.copies().set().programs[copy.stage].program.segments) {
      for (const runtime::Step& step : segment.steps) {
        if (step.id == copy.step)
          return step.kind == runtime::StepKind::kKernel || step.kind == runtime::StepKind::kLibrary;
      }
    }
    return false;
  }

  // Of the serial value, where the copy's elements are numbered by it.
  std::optional<Shape> shape_of(const RootCopy& copy) const {
    const int32_t root = side_.copies().layout(copy.stage, copy.value).root;
    for (size_t v = 0; v < graph_.values.size(); ++v) {
      const auto& layout = side_.copies().serial().layout(static_cast<ValueId>(v));
      const Shape& shape = graph_.type(static_cast<ValueId>(v)).shape;
      if (layout.root == root && elements(shape) == static_cast<int64_t>(copy.filled.size())) return shape;
    }
    return std::nullopt;
  }

  const Side& side_;
  const Graph& graph_;
  const std::set<std::string>& usual_;
  std::map<ValueId, ValueId> before_;           // states, and what they become
  std::vector<Finding> findings_;               // in the order of the serial program
  std::map<ValueId, std::set<size_t>> causes_;  // of values that are not finite, in any run of the graph
  std::map<ValueId, size_t> outside_;           // findings that no node has made
};

// Takes steps again, the first of them unseen, and looks at the others.
class Walk {
 public:
  // Of steps [first, end) those from `from` on; `known`: the last one ended the run.
  Walk(const ComparedBundle& a, int64_t first, int64_t from, int64_t end, bool known)
      : a_(a), first_(first), from_(from), end_(end), known_(known) {}

  // Nothing where it did not see enough: what went wrong did so before.
  absl::StatusOr<std::optional<Comparison>> run() {
    PARTITA_ASSIGN_OR_RETURN(const std::unique_ptr<Side> side, Side::start(a_, a_.train.data, end_, from_ - first_));
    for (int64_t step = from_; step < end_; ++step) {
      PARTITA_RETURN_IF_ERROR(side->next_step());
      const RankCopies::Copies copies = side->copies().collect(side->captures());
      Search search(*side, usual_);
      StepCheck(side->copies().serial(), side->copies().runs(), copies).show(search);
      if (search.diverged(known_ && step + 1 == end_)) return told(search.cause(), step);
      for (const Finding& f : search.findings()) usual_.insert(f.node);
      std::map<std::string, Comparison> states;
      for (const auto& [name, cause] : search.states()) {
        if (cause != nullptr) states.emplace(name, of(*cause, step));
      }
      states_ = std::move(states);
      side->go_on();
    }
    if (from_ > first_) return std::nullopt;
    if (!states_.empty()) return states_.begin()->second;
    const std::string steps = cat("steps ", first_, " to ", end_ - 1, " (counted from 0)");
    if (usual_.empty()) return Comparison{false, cat("every value of ", steps, " is finite\n")};
    return Comparison{false, cat("the losses and gradients of ", steps, " are finite, and no such value comes of ",
                                 *usual_.begin(), ", whose result is not\n")};
  }

 private:
  std::optional<Comparison> told(const Finding* cause, int64_t step) const {
    if (cause == nullptr) return Comparison{true, cat("not finite: step ", step, " (counted from 0), by no node\n")};
    const bool began = !cause->state.empty() && states_.count(cause->state) == 0;
    if (began && from_ > first_) return std::nullopt;
    return of(*cause, step);
  }

  // What a state has become in the step before, that step is told of.
  Comparison of(const Finding& f, int64_t step) const {
    if (const auto before = states_.find(f.state); before != states_.end()) return before->second;
    return {true,
            cat("not finite: step ", step, " (counted from 0), ", f.text, f.ranks, "  its samples: partita data ",
                a_.name, " --step ", step, "\n"),
            {f.node}};
  }

  const ComparedBundle& a_;
  const int64_t first_, from_, end_;
  const bool known_;
  std::set<std::string> usual_;
  std::map<std::string, Comparison> states_;  // that were not finite after the last step, and why
};

// The step that ends a run, as rank 0 sees it.
class BadStep : public runtime::MetricsSink {
 public:
  absl::Status write(const runtime::StepMetrics& m) override {
    const bool bad = std::any_of(m.extra.begin(), m.extra.end(), [](const auto& e) { return e.first == "diverged"; });
    if (bad && !step) step = m.step, spike = runtime::DivergenceWatch::is_good(m);
    return absl::OkStatus();
  }
  std::optional<int64_t> step;
  bool spike = false;
};

// Takes the steps as a run does, seen by nobody, up to the one that ends it.
absl::StatusOr<BadStep> find_bad_step(const ComparedBundle& a, const runtime::DivergenceOptions& ends) {
  std::vector<runtime::Program> programs;
  for (const verifier::RankProgram& p : a.bundle.programs) programs.push_back(p.program);
  PARTITA_ASSIGN_OR_RETURN(const auto loaded, runtime::LoadedPrograms::load(std::move(programs)));
  runtime::TrainOptions options = a.train;
  options.divergence = ends;
  options.evaluate = {};
  options.tell = false;
  BadStep bad;
  const absl::Status status = runtime::train_local(loaded, options, &bad);
  if (!status.ok() && exit_code_of(status) != ExitCode::kDiverged) return with_context(status, a.name);
  return bad;
}

}  // namespace

absl::StatusOr<Comparison> find_nonfinite(const ComparedBundle& a, const CompareOptions& options) {
  const int64_t first = options.first_step;
  PARTITA_ASSIGN_OR_RETURN(const BadStep bad, find_bad_step(a, options.ends));
  if (bad.spike)
    return Comparison{false, cat("the loss of step ", *bad.step, " (counted from 0) is a spike, and finite\n")};
  const int64_t end = bad.step ? *bad.step + 1 : options.steps;
  if (end < 0) return Comparison{false, cat("the losses and gradients of all steps from ", first, " on are finite\n")};
  // With the steps before it: what they have too is usual, and one of them may have left states that are not finite.
  for (const int64_t from : {bad.step ? std::max(first, end - 1 - kStepsBefore) : first, first}) {
    PARTITA_ASSIGN_OR_RETURN(const auto found, Walk(a, first, from, end, bad.step.has_value()).run());
    if (found) return *found;
  }
  return absl::InternalError("compare: steps that were looked at from the first on are not known");
}

}  // namespace partita
