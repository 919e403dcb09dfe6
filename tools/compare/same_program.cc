#include "tools/compare/same_program.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>
#include <utility>

#include "base/cat.h"
#include "fmt/format.h"
#include "ir/text/print.h"
#include "tools/compare/step_check.h"
#include "tools/verify/steps/check_steps.h"

namespace partita {
namespace {

using runtime::Step;
using runtime::StepKind;

// The order in which kernels add up: their loops, how these are shared out, and what is summed along them.
std::string order_of_sums(const KernelNests& nests) {
  std::string text;
  for (const KernelNest& kernel : nests.kernels) {
    const LoopNest& order = kernel.nest;
    append(text, kernel.name, " ", order.columns, order.lane_is_row ? " lanes along rows " : " ", order.tile, " ",
           order.rows_per_unit, " ", order.clip, ":");
    for (int64_t size : order.sizes) append(text, " ", size);
    for (const NestNode& n : order.nodes) {
      if (n.op == NestOp::kReduce) append(text, " ", reduce_name(n.reduce));
    }
    for (const NestFold& f : order.folds) append(text, " ", reduce_name(f.reduce), " of ", f.extent);
    text += "\n";
  }
  return text;
}

bool same_stage(const verifier::RankProgram& a, const verifier::RankProgram& b) {
  return a.program.target == b.program.target && a.program.micro_batches == b.program.micro_batches &&
         verifier::print_claims(a.claims) == verifier::print_claims(b.claims) &&
         order_of_sums(a.nests) == order_of_sums(b.nests) && print(a.rank) == print(b.rank);
}

// Where a step ran.
struct Place {
  int64_t step = 0, micro_batch = 0, rank = 0;
  int value = -1;  // that it wrote
  auto operator<=>(const Place&) const = default;
};

class OtherBits {
 public:
  OtherBits(const verifier::ProgramSet& set, const Captures& a, const Captures& b) : set_(set), a_(a), b_(b) {
    for (const verifier::RankProgram& p : set.programs) {
      std::vector<const Step*>& steps = steps_.emplace_back(p.claims.size(), nullptr);
      for (const auto& segment : p.program.segments) {
        for (const Step& s : segment.steps) {
          if (s.id < steps.size()) steps[s.id] = &s;
        }
      }
    }
  }

  std::optional<Place> first() const {
    std::optional<Place> least;
    for (int64_t r = 0; r < a_.ranks(); ++r) {
      for (const auto& [key, in_a] : a_.of(r)) {
        const auto in_b = b_.of(r).find(key);
        if (!in_a.written || in_b == b_.of(r).end() || in_b->second.step != in_a.step) continue;
        if (in_a.bytes == in_b->second.bytes || !reads_the_same(r, in_a.step, key.second)) continue;
        const Place place{in_a.step, key.second, r, key.first};
        if (!least || place < *least) least = place;
      }
    }
    return least;
  }

 private:
  // False too where it reads what is not known, or what other ranks send.
  bool reads_the_same(int64_t rank, int64_t id, int64_t micro_batch) const {
    const size_t stage = a_.stage_of(rank);
    const Graph& code = set_.programs[stage].code;
    const Step* step = steps_[stage][static_cast<size_t>(id)];
    if (step == nullptr || (step->kind != StepKind::kKernel && step->kind != StepKind::kLibrary)) return false;
    const std::vector<int>& values = set_.programs[stage].claims[static_cast<size_t>(id)].values;
    for (size_t k = 0; k < static_cast<size_t>(step->inputs); ++k) {
      const int v = k < values.size() ? values[k] : -1;
      if (v < -1) return false;
      if (v < 0 || is_fixed(code, v)) continue;
      const std::pair key(v, a_.kept_under(stage, v, micro_batch));
      const auto in_a = a_.of(rank).find(key), in_b = b_.of(rank).find(key);
      if (in_a == a_.of(rank).end() || in_b == b_.of(rank).end() || in_a->second.bytes != in_b->second.bytes)
        return false;
    }
    return true;
  }

  // A constant, or what a rank counts by.
  static bool is_fixed(const Graph& code, ValueId v) {
    if (constant_values(code)[static_cast<size_t>(v)] != nullptr) return true;
    return std::any_of(code.inputs.begin(), code.inputs.end(),
                       [&](const GraphInput& in) { return in.value == v && in.kind != InputKind::kData; });
  }

  const verifier::ProgramSet& set_;
  const Captures &a_, &b_;
  std::vector<std::vector<const Step*>> steps_;  // per stage, by id
};

// The nodes of the code from what a step reads to what it writes, in order; views are none.
std::set<NodeId> nodes_of(const verifier::RankProgram& p, int64_t id) {
  const std::vector<int>& values = p.claims[static_cast<size_t>(id)].values;
  size_t inputs = 0;
  for (const auto& segment : p.program.segments) {
    for (const Step& s : segment.steps) {
      if (static_cast<int64_t>(s.id) == id) inputs = static_cast<size_t>(s.inputs);
    }
  }
  std::set<ValueId> seen(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(std::min(inputs, values.size())));
  std::vector<ValueId> todo(values.begin() + static_cast<std::ptrdiff_t>(std::min(inputs, values.size())),
                            values.end());
  std::set<NodeId> nodes;
  while (!todo.empty()) {
    const ValueId v = todo.back();
    todo.pop_back();
    const NodeId n = v < 0 ? kNoNode : p.code.values[static_cast<size_t>(v)].producer;
    if (n == kNoNode || !seen.insert(v).second) continue;
    const Node& node = p.code.nodes[static_cast<size_t>(n)];
    if (!node.op->view) nodes.insert(n);
    todo.insert(todo.end(), node.inputs.begin(), node.inputs.end());
  }
  return nodes;
}

std::string amount(const TensorType& type, const Capture& a, const Capture& b) {
  const Tensor x = to_tensor(make_literal(type, a.bytes)), y = to_tensor(make_literal(type, b.bytes));
  int64_t others = 0;
  double largest = 0, share = 0;
  for (int64_t k = 0; k < elements(type.shape); ++k) {
    const size_t at = static_cast<size_t>(k);
    const double p = x.f.empty() ? static_cast<double>(x.i[at]) : x.f[at],
                 q = y.f.empty() ? static_cast<double>(y.i[at]) : y.f[at];
    if (p == q || (std::isnan(p) && std::isnan(q))) continue;
    ++others;
    largest = std::max(largest, std::abs(p - q));
    share = std::max(share, std::abs(p - q) / std::max(std::abs(p), std::abs(q)));
  }
  return fmt::format("  found: {} of {} elements in other bits; largest difference {:.2g}, {:.2g} of the number\n",
                     others, elements(type.shape), largest, share);
}

}  // namespace

bool same_program(const verifier::ProgramSet& a, const verifier::ProgramSet& b) {
  return std::equal(a.programs.begin(), a.programs.end(), b.programs.begin(), b.programs.end(), same_stage);
}

std::optional<StepDifference> first_other_bits(const verifier::ProgramSet& set, const Captures& a, const Captures& b,
                                               const std::string& name_a, const std::string& name_b, int64_t step) {
  const std::optional<Place> place = OtherBits(set, a, b).first();
  if (!place) return std::nullopt;
  const size_t stage = a.stage_of(place->rank);
  const verifier::RankProgram& p = set.programs[stage];
  const std::pair key(place->value, place->micro_batch);
  StepDifference d;
  for (NodeId n : nodes_of(p, place->step)) {
    const std::string name = describe_node(p.rank, p.rank.nodes[static_cast<size_t>(p.from[static_cast<size_t>(n)])]);
    if (std::find(d.nodes.begin(), d.nodes.end(), name) == d.nodes.end()) d.nodes.push_back(name);
  }
  std::string nodes;
  for (const std::string& name : d.nodes) append(nodes, nodes.empty() ? "" : ", ", name);
  d.text = cat("differs: step ", step, ", ", verifier::describe_step(p.program, static_cast<int>(place->step)),
               set.programs.size() > 1 ? cat(" of stage ", stage) : "", " on rank ", place->rank,
               place->micro_batch == kWholeStep ? "" : cat(", micro-batch ", place->micro_batch), " leaves ",
               describe_value(p.code, p.code.values[static_cast<size_t>(place->value)].producer, place->value),
               " in other bits in ", name_b, " than in ", name_a, "\n",
               amount(p.code.type(place->value), a.of(place->rank).at(key), b.of(place->rank).at(key)),
               "  it computes ", nodes, "\n  operands: the same bits in both: the step itself is another one\n");
  return d;
}

}  // namespace partita
