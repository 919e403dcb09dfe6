#include "tools/page/report_traffic.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "base/cat.h"
#include "fmt/format.h"
#include "partitioner/planner/report/explain.h"

namespace partita {
namespace {

using Bytes = std::array<double, kTrafficKinds>;

constexpr int64_t kMostBlocks = 32;
constexpr int kLevels = 5;
constexpr std::array<std::string_view, kTrafficKinds> kMoves = {
    "partial sums of activations", "attention's queries, keys and values", "tokens to experts and back",
    "gradients, parameters, batch statistics", "activations to the next stage, gradients back"};
// Parts of the breakdown that wait for each kind.
const std::array<std::vector<double Breakdown::*>, kTrafficKinds> kWaits = {
    {{&Breakdown::tensor},
     {&Breakdown::context},
     {&Breakdown::expert},
     {&Breakdown::gradients, &Breakdown::gathers, &Breakdown::statistics},
     {&Breakdown::send}}};

double sum(const Bytes& b) { return std::accumulate(b.begin(), b.end(), 0.0); }

std::string bytes_text(double bytes) {
  for (auto [unit, size] : {std::pair{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}})
    if (bytes >= 0.9995 * size) return fmt::format("{:.3g} {}", bytes / size, unit);
  return fmt::format("{:.0f} B", bytes);
}

// "1.2 GB (tensor 1 GB, data 200 MB)"
std::string by_kind(const Bytes& b) {
  std::string kinds;
  for (size_t k = 0; k < kTrafficKinds; ++k) {
    if (b[k] > 0) append(kinds, kinds.empty() ? "" : ", ", kTrafficNames[k], " ", bytes_text(b[k]));
  }
  return cat(bytes_text(sum(b)), " (", kinds, ")");
}

// Collectives of a kind and how they go: "all_reduce ring, all_gather hierarchical".
std::string algorithms(const PlannedStep& step, TrafficKind kind) {
  std::set<std::string> found;
  for (const PlanTraffic::Stage& s : step.traffic.stages) {
    for (const Transfer& t : s.transfers) {
      if (t.kind != kind) continue;
      std::string name = t.collective;
      std::replace(name.begin(), name.end(), '_', '-');
      found.insert(name == t.algorithm ? name : cat(name, " (", t.algorithm, ")"));
    }
  }
  if (kind == TrafficKind::kPipeline && step.stages.size() > 1) found.insert("send");
  std::string text;
  for (const std::string& name : found) append(text, text.empty() ? "" : ", ", name);
  return text;
}

std::string axis_text(const PlannedStep& step, TrafficKind kind) {
  if (kind == TrafficKind::kPipeline) return cat("pipeline ", step.stages.size());
  std::string text;
  for (const PlannedStep::Stage& s : step.stages) {
    const int64_t sizes[] = {s.axes.tensor, s.axes.context, s.axes.expert, s.axes.data};
    const std::string one = cat(sizes[static_cast<size_t>(kind)]);
    if (text.empty()) {
      text = one;
    } else if (text != one && !text.ends_with(" | " + one)) {
      append(text, " | ", one);
    }
  }
  return cat(kTrafficNames[static_cast<size_t>(kind)], " ", text);
}

std::string axes(const Breakdown& breakdown, const PlannedStep& step) {
  std::vector<Bytes> sent(static_cast<size_t>(step.ranks()), Bytes{});
  visit_traffic(step.traffic, [&](TrafficKind kind, int64_t from, int64_t, double bytes) {
    sent[static_cast<size_t>(from)][static_cast<size_t>(kind)] += bytes;
  });
  std::string rows;
  for (size_t k = 0; k < kTrafficKinds; ++k) {
    double most = 0, least = 1e300, waited = 0;
    for (const Bytes& b : sent) most = std::max(most, b[k]), least = std::min(least, b[k]);
    for (double Breakdown::*seconds : kWaits[k]) waited += breakdown.*seconds;
    if (most <= 0 && waited <= 0) continue;
    rows += fmt::format(
        "<tr><td><i class=\"{} l5\"></i> {}</td><td>{}</td><td>{}</td><td class=n>{}</td><td class=n>{}</td></tr>",
        kTrafficNames[k], axis_text(step, static_cast<TrafficKind>(k)), kMoves[k],
        algorithms(step, static_cast<TrafficKind>(k)),
        bytes_text(most) == bytes_text(least) ? bytes_text(most) : cat(bytes_text(least), " to ", bytes_text(most)),
        time_text(waited));
  }
  if (rows.empty()) return "<p>Nothing: one rank.</p>";
  return cat(
      "<div class=wide><table><tr><th>axis</th><th>what moves</th><th>how</th><th>a rank sends in a step</th>"
      "<th>waited for</th></tr>",
      rows, "</table></div>");
}

// Consecutive ranks that share a row and a column: one, or as many nodes as it takes.
int64_t block_of(const PlannedStep& step) {
  if (step.ranks() <= kMostBlocks) return 1;
  int64_t node = step.nodes.empty() ? 1 : step.nodes[0].devices_per_node;
  for (const Plan::Nodes& n : step.nodes) node = n.devices_per_node == node ? node : 1;
  const int64_t least = (step.ranks() + kMostBlocks - 1) / kMostBlocks;
  return (least + node - 1) / node * node;
}

class Matrix {
 public:
  // Of the first `ranks`, which `name` tells apart from other matrices of the page.
  Matrix(const PlannedStep& step, int64_t block, int64_t ranks, std::string_view name)
      : step_(step), block_(block), ranks_(ranks), name_(name), matrix_(traffic_matrix(step.traffic, block, ranks)) {
    for (const Bytes& cell : matrix_.cells) {
      if (sum(cell) > 0) low_ = std::min(low_, sum(cell)), high_ = std::max(high_, sum(cell));
    }
  }

  std::string html() const {
    if (high_ <= 0) return "";
    const int64_t n = matrix_.blocks, every = (n + 7) / 8;  // that is labelled
    std::string head, rows;
    auto label = [&](int64_t k) { return k % every == 0 ? cat(k * block_) : ""; };
    for (int64_t k = 0; k < n; ++k) append(head, "<th>", label(k), "</th>");
    for (int64_t from = 0; from < n; ++from) {
      append(rows, "<tr><th>", label(from), "</th>");
      for (int64_t to = 0; to < n; ++to) rows += cell(from, to);
      rows += "</tr>\n";
    }
    return cat("<p>", caption(), "</p>", legend(), "<p><a href=\"#after-", name_,
               "\">skip the matrix</a></p><table class=\"m\" style=\"--n:", n,
               "\" aria-label=\"bytes from rank to rank\"><tr><th></th>", head, "</tr>\n", rows,
               "</table><p id=\"after-", name_, "\"></p>");
  }

 private:
  std::string caption() const {
    const int64_t node = step_.nodes.empty() ? 0 : step_.nodes[0].devices_per_node;
    std::string each = "one rank", inside;
    if (block_ > 1) {
      each = cat(block_, " ranks",
                 block_ == node                   ? ", a node"
                 : node > 0 && block_ % node == 0 ? cat(", ", block_ / node, " nodes")
                                                  : "",
                 " (the label is the first)");
      inside = " What the ranks of one block send each other is on the diagonal.";
    }
    const std::string all = ranks_ < step_.ranks() ? cat("the first ", ranks_, " ranks") : "the ranks";
    return cat("Bytes in a step from ", all, " (rows) to ", all, " (columns). Each row and each column is ", each, ".",
               inside, " The colour is that of the axis that sends most, stronger for more.",
               multicast() ? " What a switch multicasts is counted where it arrives." : "",
               " Point at a cell, touch it, or go there with the tab key, for its numbers.");
  }

  bool multicast() const {
    for (const PlanTraffic::Stage& s : step_.traffic.stages) {
      for (const Transfer& t : s.transfers)
        if (t.algorithm == "multicast") return true;
    }
    return false;
  }

  int level(double bytes) const {
    if (high_ <= low_ * 1.01) return kLevels;
    return 1 + std::min(kLevels - 1, static_cast<int>(kLevels * std::log(bytes / low_) / std::log(high_ / low_)));
  }

  static size_t most(const Bytes& b) { return static_cast<size_t>(std::max_element(b.begin(), b.end()) - b.begin()); }

  std::string block_text(int64_t k) const {
    const int64_t first = k * block_, last = std::min(first + block_, ranks_) - 1;
    return first == last ? cat(first) : cat(first, "-", last);
  }

  std::string cell(int64_t from, int64_t to) const {
    const Bytes& b = matrix_.at(from, to);
    if (sum(b) <= 0) return "<td></td>";
    return cat("<td class=\"", kTrafficNames[most(b)], " l", level(sum(b)), "\" tabindex=0 title=\"", block_text(from),
               " to ", block_text(to), ": ", by_kind(b), "\"></td>");
  }

  std::string legend() const {
    std::array<bool, kTrafficKinds> used{};
    for (const Bytes& b : matrix_.cells)
      if (sum(b) > 0) used[most(b)] = true;
    const int first = level(low_);  // all in one where nothing differs
    std::string head, rows;
    for (int l = first; l <= kLevels; ++l)
      append(head, "<th>", bytes_text(low_ * std::pow(high_ / low_, (l - first) / static_cast<double>(kLevels))),
             l == first ? "" : "+", "</th>");
    for (size_t k = 0; k < kTrafficKinds; ++k) {
      if (!used[k]) continue;
      append(rows, "<tr><th>", kTrafficNames[k], "</th>");
      for (int l = first; l <= kLevels; ++l) append(rows, "<td class=\"", kTrafficNames[k], " l", l, "\"></td>");
      rows += "</tr>";
    }
    return cat("<table class=\"legend\" aria-label=\"colours\"><tr><th></th>", head, "</tr>", rows, "</table>");
  }

  const PlannedStep& step_;
  int64_t block_, ranks_;
  std::string_view name_;
  TrafficMatrix matrix_;
  double low_ = 1e300, high_ = 0;
};

}  // namespace

const char* const kTrafficStyle =
    ".tensor{--k:#2f6fb5}.context{--k:#b5559a}.expert{--k:#12908e}.data{--k:#d98024}.pipeline{--k:#6d8f2a}"
    ".l1{--p:22%}.l2{--p:40%}.l3{--p:60%}.l4{--p:80%}.l5{--p:100%}"
    "[class*=\" l\"]{background:color-mix(in srgb,var(--k) var(--p),var(--page))}"
    "i{display:inline-block;width:.8em;height:.8em}"
    "table.m{table-layout:fixed;max-width:min(100%,calc(2.2rem + var(--n)*1.6rem))}"
    "table.m td,table.m th{padding:0;border:1px solid var(--line);font-size:10px;overflow:visible;white-space:nowrap}"
    "table.m th{border:0;font-weight:normal;width:2.2rem}table.m tr:first-child th:not(:first-child){width:auto}"
    "table.m td::before{content:\"\";display:block;padding-bottom:100%}"
    "table.m td:focus{outline:2px solid var(--text)}"
    "table.m td:focus::after,table.m td:hover::after{content:attr(title);position:fixed;left:0;right:0;bottom:0;"
    "padding:.5rem 1rem;background:var(--page);border-top:1px solid var(--line);font-size:14px;white-space:normal}"
    "table.legend{width:auto}table.legend td{border:0;height:1rem;width:4rem}"
    "table.legend th{border:0;font-weight:normal;font-size:12px;padding:.1rem .4rem .1rem 0}";

std::string traffic_section(const Plan& plan, const PlannedStep& step) {
  const int64_t block = block_of(step);
  std::string text = cat(axes(plan.predicted.breakdown, step), Matrix(step, block, step.ranks(), "matrix").html());
  if (block > 1)
    append(text, "<details><summary>The first ", kMostBlocks, " ranks one by one</summary>",
           Matrix(step, 1, kMostBlocks, "ranks").html(), "</details>");
  return text;
}

}  // namespace partita
