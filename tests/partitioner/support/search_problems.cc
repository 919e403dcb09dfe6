#include "tests/partitioner/support/search_problems.h"

#include <gtest/gtest.h>

namespace partita {

const ProfileLibrary& library() {
  static const ProfileLibrary l = *ProfileLibrary::load();
  return l;
}

Cluster cluster(int64_t nodes, int64_t per_node, const std::string& device) {
  auto c = parse_cluster("nodes: " + std::to_string(nodes) + "\ndevices_per_node: " + std::to_string(per_node) +
                             "\ndevice: " + device + "\n",
                         "c", library());
  EXPECT_TRUE(c.ok()) << c.status();
  return *c;
}

Cluster nodes_of_eight(int64_t nodes, const std::string& network) {
  std::string text = "nodes: " + std::to_string(nodes) +
                     "\ndevices_per_node: 8\ndevice: A100-80GB\nlinks:\n- {kind: nvlink3, group: 8}\n";
  if (nodes > 1) text += "- {kind: infiniband, " + network + "}\n";
  auto c = parse_cluster(text, "c", library());
  EXPECT_TRUE(c.ok()) << c.status();
  return *c;
}

std::vector<CrossingValue> in_a_chain(const Workload& w) {
  std::vector<CrossingValue> out;
  for (int u = 1; u < static_cast<int>(w.units.size()); ++u) {
    const UnitWork& reader = w.unit(static_cast<size_t>(u));
    out.push_back({.maker = u - 1, .readers = {u}, .elements = reader.input, .bytes = 2 * reader.input});
  }
  return out;
}

Workload transformer(int blocks, double d, double s, double v) {
  Workload w;
  UnitWork first, block, last;
  first.name = "before the blocks", first.parameters = {v * d, 0}, first.largest = s * d, first.forward_kernels = 1;
  first.forward_traffic = {0, 2 * s * d}, first.backward_traffic = {0, 2 * s * d};
  block.name = "block 0";
  block.parameters = {12 * d * d, 4 * d}, block.saved = {20 * s * d, 6 * s * d}, block.input = s * d,
  block.largest = 4 * s * d;
  block.largest_split = true, block.sequence = true, block.split_factor = d / 64;
  for (auto [n, k, split] : {std::tuple{3 * d, d, 'n'}, {d, d, 'k'}, {4 * d, d, 'n'}, {d, 4 * d, 'k'}}) {
    MatrixWork m{1, s, n, k};
    m.split = split;
    block.matrices.push_back(m);
    block.input_gradients.push_back({1, s, k, n, 'm', split == 'n' ? 'k' : 'n'});
    block.weight_gradients.push_back({1, k, n, s, 'k', split == 'n' ? 'n' : 'm'});
  }
  const double pairs = 4 * s * s * d / 2;
  const auto heads = static_cast<int64_t>(d / 64);
  block.attention.push_back({d / 64, s, s, 64, d / 64, pairs, 2.5 * pairs, 0.5, true, heads, heads});
  block.forward_traffic = {8 * s * d, 10 * s * d}, block.backward_traffic = {12 * s * d, 14 * s * d};
  block.forward_kernels = 12, block.backward_kernels = 20;
  block.forward_reduces = {s * d, s * d}, block.backward_reduces = {s * d, s * d};
  last.name = "after the blocks", last.parameters = {v * d, 2 * d}, last.saved = {s * v, 2 * s * d}, last.input = s * d;
  last.largest = s * v, last.largest_split = true, last.split_factor = v;
  last.matrices.push_back({1, s, v, d, 'm', 'n'});
  last.input_gradients.push_back({1, s, d, v, 'm', 'k'});
  last.weight_gradients.push_back({1, d, v, s, 'k', 'n'});
  w.kinds = {first, block, last};
  w.units.push_back(0);
  for (int k = 0; k < blocks; ++k) w.units.push_back(1);
  w.units.push_back(2);
  w.crossing = in_a_chain(w);
  w.sequence = w.tokens = s;
  w.parameters = 2 * v * d + blocks * 12 * d * d;
  return w;
}

Problem problem(const Workload& w, const Cluster& c, int64_t batch) {
  Problem p;
  p.workload = &w, p.cluster = &c, p.global_batch = batch;
  p.options.precision = Precision::kBf16;
  return p;
}

double seconds_found(CostModel& model, const SearchOptions& options) {
  const auto found = search(model, options);
  return found.ok() && found->best ? model.predict(found->best->layout, false).step_seconds : 1e300;
}

}  // namespace partita
