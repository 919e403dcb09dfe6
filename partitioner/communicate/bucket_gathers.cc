// Gathers A B of one block, C D of the next, each used first by a, b, c, d:
//
//   A a B b C c D d   becomes   AB a b CD c d
//
// What B gathers is a state, which is there all the time, or a view of one, which moves with it; or what another gather
// brought, whose bucket comes first.
#include "partitioner/communicate/bucket_gathers.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "ir/graph/builder.h"
#include "partitioner/communicate/deferrable.h"
#include "partitioner/communicate/merge_collectives.h"
#include "partitioner/communicate/state_gathers.h"

namespace partita {
namespace {

struct Bucket {
  std::vector<NodeId> members;  // in the order of their first uses
  int run = 0;                  // outside of blocks: of gathers that no block's gather stands between
  int64_t bytes = 0;
};

class Bucketing {
 public:
  Bucketing(const LocalProgram& program, const BucketSizes& sizes)
      : program_(program),
        graph_(program.graph),
        sizes_(sizes),
        bucket_of_(graph_.nodes.size(), -1),
        level_(graph_.values.size(), 0) {
    StateGathers gathers(graph_);
    DeferrableResults results(program);
    std::vector<std::pair<NodeId, NodeId>> by_use;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      const int gathered = gathers.is_gather(node) ? 1 : 0;
      int level = gathered;
      for (ValueId v : node.inputs) level = std::max(level, v == kNoValue ? 0 : level_[v] + gathered);
      for (ValueId v : node.outputs) level_[v] = level;
      if (gathers.is_gather(node) && results.is_joint(node))
        by_use.emplace_back(gathers.first_use(node), static_cast<NodeId>(n));
    }
    std::sort(by_use.begin(), by_use.end());
    int run = 0;
    for (size_t k = 0; k < by_use.size(); ++k) {
      NodeId n = by_use[k].second;
      if (k > 0 && graph_.nodes[n].block != graph_.nodes[by_use[k - 1].second].block) ++run;
      add(n, run);
    }
  }

  Graph apply() && {
    Rewriter r(graph_);
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      bool there = !node.outputs.empty() && r.has(node.outputs[0]);
      if (there) continue;
      if (bucket_of_[n] < 0) {
        r.copy(node);
      } else {
        emit(r, buckets_[static_cast<size_t>(bucket_of_[n])]);
      }
    }
    return std::move(r).finish();
  }

 private:
  void add(NodeId n, int run) {
    const Node& node = graph_.nodes[n];
    int64_t bytes = 0;
    for (ValueId v : node.outputs) bytes += byte_size(graph_.type(v));
    auto open = std::find_if(buckets_.rbegin(), buckets_.rend(), [&](const Bucket& b) {
      return alike(graph_.nodes[b.members[0]], node) && (node.block >= 0 || b.run == run);
    });
    bool room =
        open != buckets_.rend() && (node.block >= 0 || open->bytes + bytes <= sizes_.bytes(node.attrs.i("parts")));
    if (!room) {
      buckets_.push_back({{}, run, 0});
      open = buckets_.rbegin();
    }
    open->members.push_back(n);
    open->bytes += bytes;
    bucket_of_[n] = static_cast<int>(buckets_.rend() - open) - 1;
  }

  bool alike(const Node& a, const Node& b) const {
    return a.op == b.op && a.attrs == b.attrs && a.block == b.block && a.segment == b.segment &&
           level_[a.outputs[0]] == level_[b.outputs[0]] && program_.stage.phase(a) == program_.stage.phase(b) &&
           a.device == b.device && graph_.type(a.inputs[0]).dtype == graph_.type(b.inputs[0]).dtype;
  }

  void emit(Rewriter& r, const Bucket& bucket) const {
    for (NodeId m : bucket.members) {
      for (ValueId v : graph_.nodes[m].inputs) bring(r, v);
    }
    emit_jointly(r, graph_, bucket.members, graph_.nodes[bucket.members[0]]);
  }

  // What a member reads, where it is not there yet: views of states, and of what earlier gathers bring.
  void bring(Rewriter& r, ValueId v) const {
    if (r.has(v)) return;
    const NodeId n = graph_.values[v].producer;
    if (bucket_of_[n] >= 0) return emit(r, buckets_[static_cast<size_t>(bucket_of_[n])]);
    for (ValueId in : graph_.nodes[n].inputs) bring(r, in);
    r.copy(graph_.nodes[n]);
  }

  const LocalProgram& program_;
  const Graph& graph_;
  const BucketSizes& sizes_;
  std::vector<Bucket> buckets_;
  std::vector<int> bucket_of_;  // per node; -1: none
  std::vector<int> level_;      // per value: gathers that it came through, one after the other
};

}  // namespace

void bucket_gathers(LocalProgram& program, const BucketSizes& sizes) {
  program.graph = Bucketing(program, sizes).apply();
}

}  // namespace partita
