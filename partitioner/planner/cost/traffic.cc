// Of 8 ranks in two nodes of 4, B bytes all-reduced:
//
//   ring   rank k sends 2 · 7/8 B to rank k + 1
//   tree   in a node rank k sends B to k - 1 and k + 1; the nodes' first ranks B each way along two trees
#include "partitioner/planner/cost/traffic.h"

#include <algorithm>
#include <cmath>

namespace partita {
namespace {

constexpr std::string_view collective_name(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return "all_reduce";
    case CollectiveKind::kAllGather:
      return "all_gather";
    case CollectiveKind::kReduceScatter:
      return "reduce_scatter";
    case CollectiveKind::kAllToAll:
      return "all_to_all";
    case CollectiveKind::kSend:
      return "send";
  }
  return "";
}

int64_t product(const std::vector<int64_t>& list) {
  int64_t n = 1;
  for (int64_t x : list) n *= x;
  return n;
}

// The parent of a place in the binary tree over places 0 … n - 1 whose leaves are the odd ones; -1 of the root, 0.
int64_t parent(int64_t place, int64_t n) {
  if (place == 0) return -1;
  const int64_t bit = place & -place, up = (place ^ bit) | (bit << 1);
  return up < n ? up : place ^ bit;
}

// One rank after the other, in a circle.
void ring(int64_t n, double bytes, const MessageFunction& message) {
  for (int64_t k = 0; k < n; ++k) message(k, (k + 1) % n, bytes);
}

void tree(int64_t n, int64_t inside, double bytes, const MessageFunction& message) {
  auto both = [&](int64_t a, int64_t b, double each) { message(a, b, each), message(b, a, each); };
  for (int64_t k = 0; k < n; ++k) {
    if (k % inside != 0) both(k, k - 1, bytes);
  }
  const int64_t groups = n / inside;
  for (int64_t shift : {0, 1}) {  // leaves of one tree are inside of the other
    for (int64_t place = 1; place < groups; ++place) {
      auto rank = [&](int64_t p) { return (p + shift) % groups * inside; };
      both(rank(place), rank(parent(place, groups)), bytes / 2);
    }
  }
}

// To members at distances 1, 2, 4, ….
void pat(int64_t n, double bytes, const MessageFunction& message) {
  for (int64_t far = 1; far < n; far *= 2) {
    const double share = static_cast<double>(std::min(far, n - far)) / static_cast<double>(n);
    for (int64_t k = 0; k < n; ++k) message(k, (k + far) % n, share * bytes);
  }
}

void each_to_each(int64_t n, double bytes, const MessageFunction& message) {
  for (int64_t k = 0; k < n; ++k) {
    for (int64_t to = 0; to < n; ++to) {
      if (to != k) message(k, to, bytes);
    }
  }
}

}  // namespace

double collective_seconds(const DeviceGroup& group, const std::vector<CollectiveUse>& collectives, TrafficKind kind) {
  double seconds = 0;
  for (const CollectiveUse& use : collectives) {
    if (use.kind == kind) seconds += use.times * collective_time(group, use.collective, use.axis, use.bytes).seconds;
  }
  return seconds;
}

std::vector<Transfer> transfers(const DeviceGroup& group, const std::vector<CollectiveUse>& collectives) {
  std::vector<Transfer> out;
  auto same = [](const Transfer& a, const Transfer& b) {
    auto axis = [](const RankAxis& x, const RankAxis& y) { return x.size == y.size && x.stride == y.stride; };
    return a.kind == b.kind && a.collective == b.collective && a.algorithm == b.algorithm && a.levels == b.levels &&
           axis(a.members[0], b.members[0]) && axis(a.members[1], b.members[1]);
  };
  for (const CollectiveUse& use : collectives) {
    if (use.axis.size <= 1 || use.bytes <= 0 || use.times <= 0) continue;
    Transfer t{use.kind, std::string(collective_name(use.collective)), "", use.members, {}, use.bytes * use.times};
    t.algorithm = collective_time(group, use.collective, use.axis, use.bytes).algorithm;
    for (double members : level_members(group, use.axis)) t.levels.push_back(std::llround(members));
    // Groups that levels do not divide evenly are shown as one level.
    if (product(t.levels) != use.axis.size) t.levels = {use.axis.size};
    auto at = std::find_if(out.begin(), out.end(), [&](const Transfer& x) { return same(x, t); });
    if (at == out.end()) {
      out.push_back(std::move(t));
    } else {
      at->bytes += t.bytes;
    }
  }
  return out;
}

void messages(const Transfer& t, const MessageFunction& message) {
  const int64_t n = t.ranks();
  const double passes = t.collective == "all_reduce" ? 2 : 1, share = t.bytes / static_cast<double>(n);
  if (t.algorithm == "tree") {
    tree(n, n / t.levels.back(), t.bytes, message);
  } else if (t.algorithm == "pat") {
    pat(n, t.bytes, message);
  } else if (t.algorithm == "multicast") {
    each_to_each(n, 2 * share, message);
  } else if (t.algorithm == "all-to-all" || t.algorithm == "direct") {
    each_to_each(n, passes * share, message);
  } else {
    ring(n, passes * share * static_cast<double>(n - 1), message);
  }
}

int64_t PlanTraffic::ranks() const {
  int64_t n = 0;
  for (const Stage& s : stages) n += s.ranks;
  return n;
}

std::vector<std::pair<int64_t, int64_t>> stage_pairs(int64_t from, int64_t to) {
  const int64_t n = std::max(from, to);
  std::vector<std::pair<int64_t, int64_t>> out;
  for (int64_t k = 0; k < n; ++k) out.emplace_back(k * from / n, k * to / n);
  return out;
}

void visit_traffic(const PlanTraffic& traffic, const TrafficFunction& visit) {
  std::vector<int64_t> first = {0};
  for (const PlanTraffic::Stage& s : traffic.stages) first.push_back(first.back() + s.ranks);
  for (size_t s = 0; s < traffic.stages.size(); ++s) {
    const PlanTraffic::Stage& stage = traffic.stages[s];
    for (const Transfer& t : stage.transfers) {
      const auto& [inner, outer] = t.members;
      auto place = [&](int64_t k) { return k % inner.size * inner.stride + k / inner.size * outer.stride; };
      // A group begins at each rank whose coordinate along both axes is 0.
      for (int64_t r = 0; r < stage.ranks; ++r) {
        if (r / inner.stride % inner.size != 0 || r / outer.stride % outer.size != 0) continue;
        messages(t, [&](int64_t from, int64_t to, double bytes) {
          visit(t.kind, first[s] + r + place(from), first[s] + r + place(to), bytes);
        });
      }
    }
  }
  const size_t stages = traffic.stages.size();
  for (const PlanTraffic::Shared& s : traffic.shared) {
    const size_t a = static_cast<size_t>(s.owner), b = static_cast<size_t>(s.reader);
    const auto pairs = stage_pairs(traffic.stages[a].ranks, traffic.stages[b].ranks);
    const double each = 1 / static_cast<double>(pairs.size());
    for (auto [from, to] : pairs) {
      visit(TrafficKind::kPipeline, first[a] + from, first[b] + to, s.parameters * each);
      visit(TrafficKind::kPipeline, first[b] + to, first[a] + from, s.gradients * each);
    }
  }
  if (stages < 2) return;
  for (size_t part = 0; part + 1 < stages * static_cast<size_t>(traffic.chunks); ++part) {
    const size_t a = part % stages, b = (part + 1) % stages;
    const auto pairs = stage_pairs(traffic.stages[a].ranks, traffic.stages[b].ranks);
    const double bytes =
        traffic.boundary_bytes * static_cast<double>(traffic.micro_batches) / static_cast<double>(pairs.size());
    for (auto [from, to] : pairs) {
      visit(TrafficKind::kPipeline, first[a] + from, first[b] + to, bytes);
      visit(TrafficKind::kPipeline, first[b] + to, first[a] + from, bytes);
    }
  }
}

TrafficMatrix traffic_matrix(const PlanTraffic& traffic, int64_t block, int64_t ranks) {
  TrafficMatrix m;
  m.block = block, m.blocks = (ranks + block - 1) / block;
  m.cells.resize(static_cast<size_t>(m.blocks * m.blocks));
  visit_traffic(traffic, [&](TrafficKind kind, int64_t from, int64_t to, double bytes) {
    if (from >= ranks || to >= ranks) return;
    m.cells[static_cast<size_t>(from / block * m.blocks + to / block)][static_cast<size_t>(kind)] += bytes;
  });
  return m;
}

}  // namespace partita
