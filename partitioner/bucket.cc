#include "partitioner/bucket.h"

#include "ir/builder.h"

namespace partita {
namespace {

struct Bucket {
  std::vector<NodeId> members;
  int64_t bytes = 0;
};

bool read_later_only(const Graph& graph, const std::vector<std::vector<NodeId>>& readers, const Node& node) {
  std::vector<ValueId> front = node.outputs;
  while (!front.empty()) {
    ValueId v = front.back();
    front.pop_back();
    for (NodeId n : readers[v]) {
      if (graph.nodes[n].op->view) {
        front.push_back(graph.nodes[n].outputs[0]);
      } else if (graph.nodes[n].segment <= node.segment) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace

Graph bucket_reductions(const Graph& graph, int64_t limit) {
  auto readers = uses(graph);
  std::vector<int> bucket_of(graph.nodes.size(), -1);
  std::vector<Bucket> buckets;
  int open = -1;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    if (node.op->name != "all_reduce" || !read_later_only(graph, readers, node)) continue;
    int64_t bytes = 0;
    for (ValueId v : node.inputs) bytes += byte_size(graph.type(v));
    bool fits = false;
    if (open >= 0) {
      const Node& first = graph.nodes[buckets[open].members[0]];
      fits = first.attrs == node.attrs && first.segment == node.segment && first.chunk == node.chunk &&
             graph.type(first.inputs[0]).dtype == graph.type(node.inputs[0]).dtype &&
             buckets[open].bytes + bytes <= limit;
    }
    if (!fits) {
      open = static_cast<int>(buckets.size());
      buckets.emplace_back();
    }
    buckets[open].members.push_back(static_cast<NodeId>(n));
    buckets[open].bytes += bytes;
    bucket_of[n] = open;
  }
  Rewriter r(graph);
  std::vector<NodeId> delayed;  // views of results that are not there yet
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    int k = bucket_of[n];
    bool ready = true;
    for (ValueId v : node.inputs) ready = ready && r.has(v);
    if (!ready) {
      delayed.push_back(static_cast<NodeId>(n));
      continue;
    }
    if (k < 0) {
      r.copy(node);
      continue;
    }
    if (static_cast<NodeId>(n) != buckets[k].members.back()) continue;
    r.at(node);
    std::vector<ValueId> in;
    for (NodeId m : buckets[k].members) {
      for (ValueId v : graph.nodes[m].inputs) in.push_back(r(v));
    }
    std::vector<ValueId> out = r.builder().emit_all("all_reduce", std::move(in), node.attrs);
    size_t next = 0;
    for (NodeId m : buckets[k].members) {
      for (ValueId v : graph.nodes[m].outputs) r.replace(v, out[next++]);
    }
    std::vector<NodeId> still;
    for (NodeId d : delayed) {
      bool now = true;
      for (ValueId v : graph.nodes[d].inputs) now = now && r.has(v);
      if (now) {
        r.copy(graph.nodes[d]);
      } else {
        still.push_back(d);
      }
    }
    delayed = std::move(still);
  }
  return std::move(r).finish();
}

}  // namespace partita
