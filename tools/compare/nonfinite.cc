#include "tools/compare/nonfinite.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <set>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "fmt/format.h"
#include "tools/compare/describe_difference.h"
#include "tools/compare/side.h"
#include "tools/verify/steps/check_steps.h"

namespace partita {
namespace {

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

// Looks for a node whose result has what none of its operands has.
class Search : public NodeWatch {
 public:
  Search(const Side& side, std::set<NodeId>& usual) : side_(side), graph_(side.graph()), usual_(usual) {}

  void see(NodeId n, size_t result, int64_t run, const KnownValues& operands, const KnownValue& value,
           const std::vector<RootCopy>& copies) override {
    const Range mine = range_of(value.value);
    if (mine.nans == 0 && mine.infinities == 0) return;
    if (!found_.empty()) {
      if (ranks_.empty())
        tell_ranks(copies, cat("inside of a kernel; in memory first as the result of ",
                               describe_node(graph_, graph_.nodes[static_cast<size_t>(n)]), ", "));
      return;
    }
    int64_t nans = 0, infinities = 0;
    for (const auto& o : operands) {
      if (o == nullptr) continue;
      const Range r = range_of(o->value);
      nans += r.nans;
      infinities += r.infinities;
    }
    const bool fresh = (mine.nans > 0 && nans == 0) || (mine.infinities > 0 && nans == 0 && infinities == 0);
    if (!fresh) return;
    fresh_.insert(n);
    if (usual_.count(n) > 0) return;
    tell(n, result, run, operands, value.value, mine);
    tell_ranks(copies, "");
  }

  // Nodes that this step has found; those of a step whose loss is finite are usual.
  const std::set<NodeId>& fresh() const { return fresh_; }
  const std::string& found() const { return found_; }
  const std::string& ranks() const { return ranks_; }
  const std::string& node() const { return node_; }

 private:
  void tell(NodeId n, size_t result, int64_t run, const KnownValues& operands, const Tensor& value, const Range& mine) {
    const Node& node = graph_.nodes[static_cast<size_t>(n)];
    node_ = describe_node(graph_, node);
    const ValueId v = node.outputs[result];
    found_ =
        cat(node_, ", ", describe_value(graph_, n, v), ", run ", run, " of the graph\n  result: ", range_text(mine));
    const Shape& shape = graph_.type(v).shape;
    if (!shape.empty()) append(found_, ", in ", box_of(bad_elements(value), shape));
    found_ += "\n";
    for (size_t k = 0; k < operands.size(); ++k) {
      if (operands[k] == nullptr) continue;
      const ValueId o = node.inputs[k];
      append(found_, "  operand ", k, ": ", describe_value(graph_, graph_.values[static_cast<size_t>(o)].producer, o),
             ": ", range_text(range_of(operands[k]->value)), "\n");
    }
  }

  // Which ranks have the bad elements, and in which box of the value.
  void tell_ranks(const std::vector<RootCopy>& copies, const std::string& how) {
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
        append(ranks_, ranks_.empty() ? cat("  ", how, "on rank ") : "; rank ", copy.ranks[k], ", ", own.size(),
               own.size() == 1 ? " element" : " elements");
        if (const auto shape = shape_of(copy); shape && !shape->empty()) append(ranks_, " in ", box_of(own, *shape));
      }
      if (ranks_.empty()) continue;
      const verifier::RankProgram& p = side_.copies().set().programs[copy.stage];
      append(ranks_, "\n  ", copy.written ? "computed by " : "read by ",
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
  const std::set<NodeId>& usual_;
  std::set<NodeId> fresh_;
  std::string found_, ranks_, node_;
};

}  // namespace

absl::StatusOr<Comparison> find_nonfinite(const ComparedBundle& a, int64_t first, int64_t end) {
  PARTITA_ASSIGN_OR_RETURN(const std::unique_ptr<Side> side, Side::start(a, a.train.data, end));
  std::set<NodeId> usual;
  Comparison found{false, ""};
  for (int64_t step = first; step < end; ++step) {
    PARTITA_RETURN_IF_ERROR(side->next_step());
    const RankCopies::Copies copies = side->copies().collect(side->captures());
    Search search(*side, usual);
    StepCheck(side->copies().serial(), side->copies().runs(), copies).show(search);
    // Where the last step finds nothing, it began with what an earlier one had made.
    if (!search.found().empty())
      found = {true,
               cat("not finite: step ", step, " (counted from 0), ", search.found(), search.ranks(),
                   "  its samples: partita data ", a.name, " --step ", step, "\n"),
               {search.node()}};
    usual.insert(search.fresh().begin(), search.fresh().end());
    side->go_on();
  }
  if (found.differs) return found;
  return Comparison{false, cat("every value of steps ", first, " to ", end - 1, " (counted from 0) is finite\n")};
}

}  // namespace partita
