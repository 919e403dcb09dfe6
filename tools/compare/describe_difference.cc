#include "tools/compare/describe_difference.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "base/cat.h"
#include "base/quote.h"
#include "fmt/format.h"
#include "tools/verify/steps/check_steps.h"

namespace partita {
namespace {

std::string node_name(const Graph& g, NodeId n) { return describe_node(g, g.nodes[static_cast<size_t>(n)]); }

std::string head(const std::string& side, const Graph& g, const Difference& d, int64_t step) {
  const std::string where = d.node == kNoNode ? "" : cat(node_name(g, d.node), ", ");
  return cat("differs: step ", step, ", ", where, describe_value(g, d.node, d.value), ", run ", d.run,
             " of the graph, in ", side, "\n");
}

std::string amount(const Graph& g, const Difference& d) {
  if (!d.copy.torn.empty() && !d.deviation.beyond) return cat("  found: ", d.copy.torn, "\n");
  const Deviation& v = d.deviation;
  if (v.of_scale)
    return fmt::format("  found: all of it off by one factor, {:.2g} from 1; usual is {:.2g} at most\n", v.found,
                       v.usual);
  std::string text =
      fmt::format("  found: off by {:.2g} of its length; usual is {:.2g} at most; largest difference {:.2g}", v.found,
                  v.usual, v.largest);
  if (v.elements.empty()) return text + ", spread over all of it\n";
  append(text, "; ", v.elements.size(), " of ", d.copy.filled.size(), " elements");
  const Shape& shape = g.type(d.value).shape;
  const bool direct = elements(shape) == static_cast<int64_t>(d.copy.filled.size()) && !shape.empty();
  return cat(text, direct ? cat(" in ", box_of(v.elements, shape)) : "", "\n");
}

std::string nodes_text(const Graph& g, const Difference& d) {
  if (d.between.size() <= 1) return "";
  std::string text = "  a kernel computes several nodes at once, one of these: ";
  bool first = true;
  for (NodeId n : d.between) {
    append(text, first ? "" : ", ", node_name(g, n));
    first = false;
  }
  return text + "\n";
}

// Which ranks have which differing elements.
std::string rank_lines(const Graph& g, const std::vector<const RootCopy*>& copies,
                       const std::vector<const Difference*>& all) {
  const Shape& shape = g.type(all.front()->value).shape;
  const bool direct = elements(shape) == static_cast<int64_t>(copies.front()->filled.size()) && !shape.empty();
  std::map<int, std::set<int64_t>> by_rank;
  for (size_t c = 0; c < copies.size(); ++c) {
    const RootCopy& copy = *copies[c];
    const std::set<int64_t> off(all[c]->deviation.elements.begin(), all[c]->deviation.elements.end());
    for (size_t k = 0; k < copy.ranks.size(); ++k) {
      for (int64_t at : copy.indices[k]) {
        if (off.empty() || off.count(at) > 0) by_rank[copy.ranks[k]].insert(at);
      }
    }
  }
  std::map<std::string, std::vector<int>> by_box;
  for (const auto& [rank, mine] : by_rank)
    by_box[direct ? cat(" in ", box_of({mine.begin(), mine.end()}, shape)) : ""].push_back(rank);
  std::string text;
  for (const auto& [box, ranks] : by_box) append(text, text.empty() ? "  on " : "; ", ranks_text(ranks), box);
  return text + "\n";
}

// Reads of a step that did not find what had been written.
std::string misread_text(const RankCopies& copies, const Captures& captures, const RootCopy& copy) {
  for (int rank : copy.ranks) {
    for (const Misread& m : captures.misreads(rank)) {
      if (m.step != copy.step) continue;
      const std::string& name = copies.set().programs[copy.stage].code.values[static_cast<size_t>(m.value)].name;
      return cat("rank ", rank, " reads operand ", m.operand, name.empty() ? "" : " " + quote(name),
                 " in other bytes than it was written: the step reads the wrong place, or it was overwritten");
    }
  }
  return "";
}

std::string operands_text(const Graph& g, const Difference& d) {
  std::string text;
  std::set<ValueId> told;
  for (NodeId n : d.between.empty() ? std::vector<NodeId>{d.node} : d.between) {
    for (ValueId v : g.nodes[static_cast<size_t>(n)].inputs) {
      if (v == kNoValue || constant_values(g)[static_cast<size_t>(v)] != nullptr || !told.insert(v).second) continue;
      const NodeId from = g.values[static_cast<size_t>(v)].producer;
      if (std::find(d.between.begin(), d.between.end(), from) != d.between.end()) continue;
      append(text, text.empty() ? "" : ", ", describe_value(g, from, v));
    }
  }
  return text.empty() ? "none" : text;
}

}  // namespace

std::string box_of(const std::vector<int64_t>& all, const Shape& shape) {
  std::vector<int64_t> low(shape.size(), INT64_MAX), high(shape.size(), -1);
  for (int64_t at : all) {
    for (size_t d = shape.size(); d-- > 0;) {
      low[d] = std::min(low[d], at % shape[d]);
      high[d] = std::max(high[d], at % shape[d]);
      at /= shape[d];
    }
  }
  std::string text = "[";
  for (size_t d = 0; d < shape.size(); ++d) append(text, d > 0 ? ", " : "", low[d], ":", high[d] + 1);
  return text + "]";
}

std::string ranks_text(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  constexpr size_t kShown = 8;
  for (size_t k = 0; k < std::min(ranks.size(), kShown); ++k) append(text, k > 0 ? ", " : "", ranks[k]);
  return ranks.size() > kShown ? cat(text, " and ", ranks.size() - kShown, " more") : text;
}

std::string describe_difference(const std::string& side, const RankCopies& copies, const Captures& captures,
                                const StepReport& report, int64_t step) {
  const Difference& d = report.differences.front();
  const Graph& g = copies.serial().graph();
  std::vector<const RootCopy*> own;
  std::vector<const Difference*> all;
  for (const Difference& x : report.differences) {
    if (x.value != d.value || x.run != d.run || x.copy.stage != d.copy.stage || x.copy.value != d.copy.value) continue;
    own.push_back(&x.copy);
    all.push_back(&x);
  }
  std::string text = head(side, g, d, step) + amount(g, d) + rank_lines(g, own, all);
  if (d.copy.step >= 0) {
    const verifier::RankProgram& p = copies.set().programs[d.copy.stage];
    append(text, "  ", d.copy.written ? "computed by " : "read by ",
           verifier::describe_step(p.program, static_cast<int>(d.copy.step)),
           copies.set().programs.size() > 1 ? cat(" of stage ", d.copy.stage) : "", "\n");
  }
  text += nodes_text(g, d);
  if (d.node == kNoNode) return text;
  const std::string misread = misread_text(copies, captures, d.copy);
  if (!misread.empty()) return cat(text, "  operands: ", misread, "\n");
  if (d.moved)
    return text + "  operands: the same value is as it should be where it was computed: it went wrong on its way\n";
  return cat(text, "  operands: as they should be (", operands_text(g, d), "): the node itself is at fault\n");
}

std::string describe_difference(const std::string& side, const Graph& serial, const Difference& d, int64_t step) {
  std::string text = head(side, serial, d, step) + amount(serial, d) + nodes_text(serial, d);
  if (d.node == kNoNode) return text;
  return cat(text, "  operands: as dumped, else computed of what was (", operands_text(serial, d), ")\n");
}

}  // namespace partita
