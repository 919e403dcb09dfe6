// Reduce-scatters r1 r2 r3 within a node, each followed by an all-reduce a1 a2 a3 across nodes, with room for three:
//
//   g1 r1 a1 g2 r2 a2 g3 r3 a3   becomes   g1 g2 g3 r123 a123
//
// A collective that reads another's result, or what such are added up to, is of the next level, and a bucket has
// members of one level: no bucket waits for itself. Nor does one of members that stand together: what reads one of them
// before the last only moves it.
#include "partitioner/communicate/bucket.h"

#include <algorithm>

#include "base/status.h"
#include "ir/graph/builder.h"
#include "partitioner/communicate/deferrable.h"
#include "partitioner/communicate/merge_collectives.h"
#include "partitioner/communicate/state_gathers.h"

namespace partita {
namespace {

// What members of a bucket have alike, beside their own kind.
struct Moment {
  int level = 0;
  int work = -1;  // heavy nodes before them; -1: a later segment waits for them, so they may wait for each other
  bool operator==(const Moment&) const = default;
};

struct Bucket {
  std::vector<NodeId> members;
  Moment moment;
  NodeId first_use = kNoNode;  // of members that do not wait for a later segment
  NodeId place = kNoNode;      // the member at which it stands
  int64_t bytes = 0;
};

class Bucketing {
 public:
  Bucketing(const LocalProgram& program, const BucketSizes& sizes)
      : program_(program),
        graph_(program.graph),
        results_(program),
        gathers_(graph_),
        sizes_(sizes),
        bucket_of_(graph_.nodes.size(), -1),
        level_(graph_.values.size(), 0) {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) choose(static_cast<NodeId>(n));
  }

  Graph apply() && {
    Rewriter r(graph_);
    std::vector<NodeId> delayed;  // what reads results that are not there yet; a bucket stands as its last member
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (joins_later(static_cast<NodeId>(n))) continue;
      if (!emit(r, static_cast<NodeId>(n))) {
        delayed.push_back(static_cast<NodeId>(n));
      } else if (bucket_of_[n] >= 0) {
        while (std::erase_if(delayed, [&](NodeId d) { return emit(r, d); }) > 0) {
        }
      }
    }
    PARTITA_CHECK(delayed.empty(), "buckets that wait for each other");
    return std::move(r).finish();
  }

 private:
  void choose(NodeId n) {
    const Node& node = graph_.nodes[n];
    int level = 0;
    for (ValueId v : node.inputs) level = std::max(level, v == kNoValue ? 0 : level_[v]);
    if (DeferrableResults::passes(node) || node.op->sums_micro_batches) level_[node.outputs[0]] = level;
    work_ += node.op->work != WorkKind::kMemory;
    if (!results_.is_joint(node) || gathers_.is_gather(node)) return;
    Moment moment{level};
    if (results_.are_deferrable(node) || results_.are_accumulated(node)) {
      for (ValueId v : node.outputs) level_[v] = level + 1;
    } else {
      moment.work = work_;
    }
    const NodeId first_use = moment.work < 0 ? kNoNode : results_.first_use(node);
    int64_t bytes = 0;
    for (size_t k = 0; k < node.inputs.size(); ++k)
      bytes += std::max(byte_size(graph_.type(node.inputs[k])), byte_size(graph_.type(node.outputs[k])));
    // The latest bucket of its kind is the one that may have room.
    auto open = std::find_if(open_.rbegin(), open_.rend(), [&](int b) {
      return buckets_[b].moment == moment && (waits_for(buckets_[b], n) || is_ready_for(node, buckets_[b])) &&
             alike(graph_.nodes[buckets_[b].members[0]], node);
    });
    if (open == open_.rend() || buckets_[*open].bytes + bytes > sizes_.bytes(node.attrs.i("parts"))) {
      if (open != open_.rend()) open_.erase(std::next(open).base());
      open_.push_back(static_cast<int>(buckets_.size()));
      buckets_.push_back({{}, moment, first_use, n});
      open = open_.rbegin();
    }
    bucket_of_[n] = *open;
    Bucket& bucket = buckets_[*open];
    if (waits_for(bucket, n)) bucket.place = n;
    if (first_use != kNoNode && first_use < bucket.first_use) bucket.first_use = first_use;
    bucket.members.push_back(n);
    bucket.bytes += bytes;
  }

  // Whether nothing computes with the bucket's results before the node.
  static bool waits_for(const Bucket& bucket, NodeId n) { return bucket.first_use == kNoNode || bucket.first_use > n; }

  // Whether the node could stand where the bucket's first member does: what it reads is there by then, and is not moved
  // from another collective's result, which may come later than it did.
  bool is_ready_for(const Node& node, const Bucket& bucket) const {
    return std::all_of(node.inputs.begin(), node.inputs.end(), [&](ValueId v) {
      if (graph_.values[v].producer >= bucket.members[0]) return false;
      const Node* maker = graph_.producer(v);
      while (maker != nullptr && DeferrableResults::passes(*maker)) maker = graph_.producer(maker->inputs[0]);
      return maker == nullptr || !maker->op->communicates;
    });
  }

  bool alike(const Node& a, const Node& b) const {
    return a.op == b.op && a.attrs == b.attrs && a.segment == b.segment && a.chunk == b.chunk &&
           program_.stage.phase(a) == program_.stage.phase(b) && a.device == b.device &&
           graph_.type(a.inputs[0]).dtype == graph_.type(b.inputs[0]).dtype;
  }

  bool joins_later(NodeId n) const { return bucket_of_[n] >= 0 && buckets_[bucket_of_[n]].place != n; }

  // False where it has to wait.
  bool emit(Rewriter& r, NodeId n) const {
    std::vector<NodeId> members = {n};
    if (bucket_of_[n] >= 0) members = buckets_[bucket_of_[n]].members;
    for (NodeId m : members) {
      for (ValueId v : graph_.nodes[m].inputs) {
        if (!r.has(v)) return false;
      }
    }
    if (bucket_of_[n] < 0) {
      r.copy(graph_.nodes[n]);
    } else {
      emit_jointly(r, graph_, members, graph_.nodes[n]);
    }
    return true;
  }

  const LocalProgram& program_;
  const Graph& graph_;
  const DeferrableResults results_;
  const StateGathers gathers_;
  const BucketSizes& sizes_;
  std::vector<int> bucket_of_;  // per node; -1: none
  std::vector<int> level_;      // per value: of collectives that wait before it
  int work_ = 0;                // heavy nodes so far
  std::vector<Bucket> buckets_;
  std::vector<int> open_;
};

}  // namespace

void bucket_collectives(LocalProgram& program, const BucketSizes& sizes) {
  program.graph = Bucketing(program, sizes).apply();
}

}  // namespace partita
