#include "tools/page/report_traffic.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "base/cat.h"
#include "nlohmann/json.hpp"

namespace partita {
namespace {

using Json = nlohmann::json;
using Bytes = std::array<double, kTrafficKinds>;

constexpr int64_t kMostBlocks = 32;
constexpr std::array<std::string_view, kTrafficKinds> kMoves = {
    "partial sums of activations", "attention's queries, keys and values", "tokens to experts and back",
    "gradients, parameters, batch statistics", "activations to the next stage, gradients back"};
// Parts of the breakdown that wait for each kind.
const std::array<std::vector<double Breakdown::*>, kTrafficKinds> kWaits = {
    {{&Breakdown::tensor},
     {&Breakdown::context},
     {&Breakdown::expert},
     {&Breakdown::gradients, &Breakdown::gathers, &Breakdown::statistics},
     {&Breakdown::send, &Breakdown::tied}}};

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

// "2", or "4 | 2" where stages differ.
std::string sizes_text(const PlannedStep& step, TrafficKind kind) {
  if (kind == TrafficKind::kPipeline) return cat(step.stages.size());
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
  return text;
}

Json axes_json(const Breakdown& breakdown, const PlannedStep& step) {
  std::vector<Bytes> sent(static_cast<size_t>(step.ranks()), Bytes{});
  visit_traffic(step.traffic, [&](TrafficKind kind, int64_t from, int64_t, double bytes) {
    sent[static_cast<size_t>(from)][static_cast<size_t>(kind)] += bytes;
  });
  Json rows = Json::array();
  for (size_t k = 0; k < kTrafficKinds; ++k) {
    double most = 0, least = 1e300, waited = 0;
    for (const Bytes& b : sent) most = std::max(most, b[k]), least = std::min(least, b[k]);
    for (double Breakdown::*seconds : kWaits[k]) waited += breakdown.*seconds;
    if (most <= 0 && waited <= 0) continue;
    rows.push_back({{"kind", k},
                    {"sizes", sizes_text(step, static_cast<TrafficKind>(k))},
                    {"moves", kMoves[k]},
                    {"how", algorithms(step, static_cast<TrafficKind>(k))},
                    {"least", least},
                    {"most", most},
                    {"waited", waited}});
  }
  return rows;
}

// Consecutive ranks that share a row and a column: one, or as many nodes as it takes.
int64_t block_of(const PlannedStep& step) {
  if (step.ranks() <= kMostBlocks) return 1;
  int64_t node = step.nodes.empty() ? 1 : step.nodes[0].devices_per_node;
  for (const Plan::Nodes& n : step.nodes) node = n.devices_per_node == node ? node : 1;
  const int64_t least = (step.ranks() + kMostBlocks - 1) / kMostBlocks;
  return (least + node - 1) / node * node;
}

// Of the first `ranks`: [from, to, bytes by kind …] of each pair of blocks that anything goes between.
Json matrix_json(const PlannedStep& step, int64_t block, int64_t ranks) {
  const TrafficMatrix matrix = traffic_matrix(step.traffic, block, ranks);
  Json cells = Json::array();
  for (int64_t from = 0; from < matrix.blocks; ++from) {
    for (int64_t to = 0; to < matrix.blocks; ++to) {
      const Bytes& bytes = matrix.at(from, to);
      if (std::accumulate(bytes.begin(), bytes.end(), 0.0) <= 0) continue;
      Json& cell = cells.emplace_back(Json{from, to});
      for (double b : bytes) cell.push_back(std::llround(b));
    }
  }
  return {{"block", block}, {"blocks", matrix.blocks}, {"ranks", ranks}, {"cells", std::move(cells)}};
}

bool multicast(const PlannedStep& step) {
  for (const PlanTraffic::Stage& s : step.traffic.stages) {
    for (const Transfer& t : s.transfers)
      if (t.algorithm == "multicast") return true;
  }
  return false;
}

}  // namespace

Json traffic_json(const Plan& plan, const PlannedStep& step) {
  const int64_t block = block_of(step);
  Json matrices = Json::array({matrix_json(step, block, step.ranks())});
  if (block > 1) matrices.push_back(matrix_json(step, 1, kMostBlocks));
  return {{"axes", axes_json(plan.predicted.breakdown, step)},
          {"matrices", std::move(matrices)},
          {"devices_per_node", step.nodes.empty() ? 0 : step.nodes[0].devices_per_node},
          {"multicast", multicast(step)}};
}

}  // namespace partita
