// 1. Backbone and cuts. Walking the backbone in order, a value is "open" from its making to its last backbone reader.
//    Where exactly one is open, all that follows depends on it alone.
//    Scalars (an auxiliary loss) do not count, nor do values that span most of a region without cuts (an encoder's
//    output, read by every decoder layer; the first of two towers' result).
// 2. Each piece between cuts gets a hash of its operators, the types of what they make, and how they are joined, in its
//    own numbering. Attributes and masks do not count: layers that attend to a window alternate with others that attend
//    to everything.
// 3. Runs: for each period p, stretches where piece[i] == piece[i + p]; the run that covers most nodes wins, then what
//    is left and right of it is searched again.
// 4. What is left between runs, and has products enough, is cut into sections (cut_sections.h).
//
//      embedding A M A M A M norm head   ->   - 0 0 1 1 2 2 - -
#include "passes/forward/tag_blocks.h"

#include <algorithm>
#include <numeric>

#include "absl/container/flat_hash_map.h"
#include "absl/hash/hash.h"
#include "ir/graph/builder.h"
#include "ir/graph/dependence.h"
#include "passes/forward/biased_product.h"
#include "passes/forward/cut_sections.h"

namespace partita {
namespace {

constexpr size_t kMaxPeriod = 256;            // pieces of one block
constexpr size_t kMaxWork = size_t{1} << 30;  // comparisons of pieces; real models take far less
constexpr int kMaxSidePasses = 4;             // how often values that span a region are set aside
constexpr size_t kMinBlockNodes = 2;          // a block of fewer backbone nodes is not worth folding

struct Piece {
  std::vector<NodeId> nodes;  // of the backbone, in order
  uint64_t hash = 0;
  bool has_weight = false;
};

class Blocks {
 public:
  explicit Blocks(const Graph& graph)
      : g_(graph),
        readers_(uses(graph)),
        backbone_(graph.nodes.size(), false),
        tail_(graph.nodes.size(), false),
        dependence_(graph),
        side_(graph.values.size(), false) {}

  std::vector<int32_t> run() {
    find_backbone();
    std::vector<ValueId> cut = cuts();
    std::vector<int32_t> block = number_runs(cut);
    // What is set aside in vain may be what only one layer has.
    for (int pass = 0; pass < kMaxSidePasses && set_aside(cut); ++pass) {
      cut = cuts();
      std::vector<int32_t> other = number_runs(cut);
      if (std::count(other.begin(), other.end(), -1) < std::count(block.begin(), block.end(), -1))
        block = std::move(other);
    }
    number_sections(block);
    join(block);
    return block;
  }

 private:
  struct Run {
    size_t start = 0, period = 0, count = 0;
    size_t nodes = 0;  // that it covers
  };

  void find_backbone() {
    for (size_t n = 0; n < g_.nodes.size(); ++n) {
      const Node& node = g_.nodes[n];
      const bool both = node.segment == Segment::kForward && !node.outputs.empty() && varies(node.outputs[0]);
      tail_[n] = both && is_scalar_tail(node);
      backbone_[n] = both && !tail_[n];
      if (backbone_[n]) order_.push_back(static_cast<NodeId>(n));
    }
    position_.assign(g_.nodes.size(), -1);
    for (size_t k = 0; k < order_.size(); ++k) position_[order_[k]] = static_cast<int64_t>(k);
  }

  // Makes scalars of scalars alone: the sum of auxiliary losses runs from layer to layer without being part of any.
  bool is_scalar_tail(const Node& node) const {
    return std::all_of(node.outputs.begin(), node.outputs.end(), [&](ValueId v) { return is_scalar(v); }) &&
           std::all_of(node.inputs.begin(), node.inputs.end(),
                       [&](ValueId v) { return v == kNoValue || !varies(v) || is_scalar(v); });
  }

  // Position of the last backbone reader, or -1.
  int64_t last_reader(ValueId v) const {
    int64_t last = -1;
    for (NodeId n : readers_[v]) last = std::max(last, position_[n]);
    return last;
  }

  // Depends on data and on weights.
  bool varies(ValueId v) const { return dependence_.on_data(v) && dependence_.on_weight(v); }
  bool is_scalar(ValueId v) const { return elements(g_.type(v).shape) == 1; }
  bool counts(ValueId v) const { return !side_[v] && !is_scalar(v); }

  // Per backbone position: the value that is open after it alone, or kNoValue.
  std::vector<ValueId> cuts() const {
    std::vector<int64_t> change(order_.size() + 1, 0),
        sum(order_.size() + 1, 0);  // of the number of open values, and of the sum of their ids
    for (size_t k = 0; k < order_.size(); ++k) {
      for (ValueId v : g_.nodes[order_[k]].outputs) {
        int64_t last = last_reader(v);
        if (last < 0 || is_scalar(v)) continue;
        if (side_[v]) last = static_cast<int64_t>(k) + 1;  // a cut where it is made, then out of sight
        ++change[k], --change[last];
        sum[k] += v, sum[last] -= v;
      }
    }
    std::vector<ValueId> cut(order_.size(), kNoValue);
    int64_t open = 0, ids = 0;
    for (size_t k = 0; k < order_.size(); ++k) {
      open += change[k], ids += sum[k];
      if (open == 1) cut[k] = static_cast<ValueId>(ids);
    }
    return cut;
  }

  // In the longest stretch without cuts, where it is most of the backbone: sets aside the value that is open
  // longest. False where there is none.
  bool set_aside(const std::vector<ValueId>& cut) {
    size_t best = 0, best_end = 0, length = 0;
    for (size_t k = 0; k < cut.size(); ++k) {
      length = cut[k] != kNoValue ? 0 : length + 1;
      if (length > best) best = length, best_end = k;
    }
    if (best < 32 || best * 3 < order_.size()) return false;
    int64_t start = static_cast<int64_t>(best_end + 1 - best);
    ValueId longest = kNoValue;
    int64_t span = static_cast<int64_t>(best) / 2;
    for (size_t k = 0; k <= best_end; ++k) {
      for (ValueId v : g_.nodes[order_[k]].outputs) {
        if (!counts(v)) continue;
        int64_t open = last_reader(v) - std::max(start, static_cast<int64_t>(k));
        if (open > span) longest = v, span = open;
      }
    }
    if (longest == kNoValue) return false;
    side_[longest] = true;
    // Of a view for the first of several readers, what it is a view of spans as much.
    for (ValueId v = longest; is_own_view(v);) side_[v = g_.producer(v)->inputs[0]] = true;
    return true;
  }

  // Of a value of the backbone that nothing else there reads.
  bool is_own_view(ValueId v) const {
    const Node* node = g_.producer(v);
    if (node == nullptr || !node->op->view || !backbone_[node - g_.nodes.data()]) return false;
    const Node* source = g_.producer(node->inputs[0]);
    return source != nullptr && backbone_[source - g_.nodes.data()] &&
           last_reader(node->inputs[0]) == position_[node - g_.nodes.data()];
  }

  void make_pieces(const std::vector<ValueId>& cut) {
    pieces_.clear();
    ValueId entry = kNoValue;
    Piece piece;
    for (size_t k = 0; k < order_.size(); ++k) {
      piece.nodes.push_back(order_[k]);
      if (cut[k] == kNoValue && k + 1 < order_.size()) continue;
      finish(piece, entry);
      pieces_.push_back(std::move(piece));
      piece = {};
      entry = cut[k];
    }
  }

  static uint64_t type_hash(uint64_t h, const TensorType& t) {
    return absl::HashOf(h, static_cast<int>(t.dtype), t.shape);
  }

  void finish(Piece& piece, ValueId entry) {
    absl::flat_hash_map<ValueId, int64_t> number;  // values made inside, in order
    uint64_t h = 0;
    for (NodeId n : piece.nodes) {
      const Node& node = g_.nodes[n];
      if (node.op->view && side_[node.outputs[0]]) continue;  // made in the first of the blocks that read it
      h = absl::HashOf(h, std::string_view(node.op->name));
      for (ValueId v : node.inputs) {
        if (v == kNoValue) continue;
        auto at = number.find(v);
        const bool inside = v == entry || at != number.end();
        if (inside) h = absl::HashOf(h, v == entry ? -1 : at->second);
        if (inside || !dependence_.on_weight(v)) continue;
        h = type_hash(h, g_.type(v));
        piece.has_weight = true;
      }
      for (ValueId v : node.outputs) {
        h = type_hash(h, g_.type(v));
        number.emplace(v, static_cast<int64_t>(number.size()));
      }
    }
    piece.hash = h;
  }

  bool worth_folding(size_t start, size_t period) const {
    bool weight = false;
    for (size_t k = start; k < start + period; ++k) weight = weight || pieces_[k].has_weight;
    return weight && nodes_of(start, start + period) >= kMinBlockNodes;
  }

  size_t nodes_of(size_t low, size_t high) const {
    size_t nodes = 0;
    for (size_t k = low; k < high; ++k) nodes += pieces_[k].nodes.size();
    return nodes;
  }

  // The run in [low, high) that covers most nodes and is of blocks that are not mostly runs themselves (towers alike).
  Run best_run(size_t low, size_t high) const {
    Run run = widest_run(low, high, kMaxPeriod);
    while (run.period > 3) {
      const size_t end = run.start + run.period;
      if (widest_run(run.start, end, run.period / 2).nodes * 2 <= nodes_of(run.start, end)) break;
      run = widest_run(low, high, run.period - 1);
    }
    return run;
  }

  // Of periods of `most` pieces at most; of equal ones the shorter period.
  Run widest_run(size_t low, size_t high, size_t most) const {
    std::vector<size_t> before(high - low + 1, 0);  // nodes before each piece
    for (size_t k = low; k < high; ++k) before[k - low + 1] = before[k - low] + pieces_[k].nodes.size();
    Run best;
    for (size_t p = 1; p <= most && 2 * p <= high - low; ++p) {
      size_t equal = 0;
      for (size_t i = low; i + p <= high; ++i) {
        bool same = i + p < high && pieces_[i].hash == pieces_[i + p].hash;
        if (same) {
          ++equal;
          continue;
        }
        // The stretch [i - equal, i + p) has period p. What is left over stands at its start: a block ends as the
        // stretch does.
        size_t count = (equal + p) / p;
        size_t start = i + p - count * p;
        size_t nodes = before[i + p - low] - before[start - low];
        if (count >= 2 && nodes > best.nodes && worth_folding(start, p)) best = {start, p, count, nodes};
        equal = 0;
      }
    }
    return best;
  }

  // Per node its block, or -1.
  std::vector<int32_t> number_runs(const std::vector<ValueId>& cut) {
    make_pieces(cut);
    std::vector<Run> runs;
    std::vector<std::pair<size_t, size_t>> open = {{0, pieces_.size()}};
    size_t work = 0;
    while (!open.empty() && work < kMaxWork) {
      auto [low, high] = open.back();
      open.pop_back();
      work += (high - low) * std::min(kMaxPeriod, high - low);
      Run run = best_run(low, high);
      if (run.count == 0) continue;
      runs.push_back(run);
      open.push_back({low, run.start});
      open.push_back({run.start + run.period * run.count, high});
    }
    std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) { return a.start < b.start; });
    std::vector<int32_t> block(g_.nodes.size(), -1);
    int32_t next = 0;
    for (const Run& run : runs) {
      for (size_t c = 0; c < run.count; ++c, ++next) {
        for (size_t k = run.start + c * run.period; k < run.start + (c + 1) * run.period; ++k) {
          for (NodeId n : pieces_[k].nodes) block[n] = next;
        }
      }
    }
    return block;
  }

  // Blocks of what does not repeat, and all blocks numbered anew in order. What is behind the last product, and that
  // product, is no block: it is read by backward at once. Nor are lookups before the first product: their tables would
  // be gathered again with a block that is computed again.
  void number_sections(std::vector<int32_t>& block) const {
    size_t begin = 0, end = order_.size();
    for (size_t k = 0; k < end && block[order_[k]] < 0 && !is_product(order_[k]); ++k)
      begin = g_.nodes[order_[k]].op->kernel ? k + 1 : begin;
    while (end > 0 && block[order_[end - 1]] < 0 && !is_product(order_[end - 1])) --end;
    if (end > 0 && block[order_[end - 1]] < 0) --end;
    const std::vector<double> open = open_bytes();
    int32_t next = 0;
    for (size_t low = begin, high; low < order_.size(); low = high) {
      const int32_t old = block[order_[low]];
      for (high = low + 1; high < order_.size() && high != end && block[order_[high]] == old;) ++high;
      std::vector<SectionNode> nodes;
      size_t product = 0;  // the last one
      for (size_t k = low; k < high && old < 0 && low < end; ++k) {
        nodes.push_back({is_product(order_[k]), made_bytes(order_[k]), open[k]});
        if (nodes.back().product) product = k - low;
        if (nodes[product].product && is_biased_product(g_, dependence_, g_.nodes[order_[k]]))  // it ends with its bias
          nodes[product].product = false, nodes.back().product = true;
      }
      const std::vector<size_t> ends = old < 0 ? cut_sections(nodes) : std::vector<size_t>{high - low};
      size_t at = low;
      for (size_t section : ends) {
        for (; at < low + section; ++at) block[order_[at]] = next;
        ++next;
      }
    }
  }

  bool is_product(NodeId n) const { return g_.nodes[n].op->work != WorkKind::kMemory; }

  double made_bytes(NodeId n) const {
    double sum = 0;
    for (ValueId v : g_.nodes[n].outputs) sum += g_.nodes[n].op->view ? 0 : static_cast<double>(byte_size(g_.type(v)));
    return sum;
  }

  // Per backbone position: of the backbone's values that are open after it.
  std::vector<double> open_bytes() const {
    std::vector<double> change(order_.size() + 1, 0);
    for (size_t k = 0; k < order_.size(); ++k) {
      for (ValueId v : g_.nodes[order_[k]].outputs) {
        const int64_t last = last_reader(v);
        if (last < 0) continue;
        const double size = static_cast<double>(byte_size(g_.type(v)));
        change[k] += size, change[last] -= size;
      }
    }
    std::partial_sum(change.begin(), change.end(), change.begin());
    return change;
  }

  // A node apart from the backbone joins the one block that reads it; a scalar of scalars, the one block that it reads.
  void join(std::vector<int32_t>& block) const {
    std::vector<bool> wanted(g_.values.size(), false);
    for (const GraphOutput& out : g_.outputs) wanted[out.value] = true;
    for (const State& s : g_.states) {
      if (s.next != kNoValue) wanted[s.next] = true;
    }
    for (size_t n = 0; n < g_.nodes.size(); ++n) {
      if (!tail_[n]) continue;
      int32_t one = -2;
      for (ValueId v : g_.nodes[n].inputs) {
        NodeId from = v == kNoValue ? kNoNode : g_.values[v].producer;
        if (from == kNoNode || !(backbone_[from] || tail_[from])) continue;
        one = one == -2 || one == block[from] ? block[from] : -1;
      }
      block[n] = std::max(one, -1);
    }
    for (size_t n = g_.nodes.size(); n-- > 0;) {
      if (backbone_[n] || tail_[n]) continue;
      int32_t one = -1;
      bool single = true;
      for (ValueId v : g_.nodes[n].outputs) {
        single = single && !wanted[v];
        for (NodeId reader : readers_[v]) {
          single = single && block[reader] >= 0 && (one < 0 || block[reader] == one);
          one = block[reader];
        }
      }
      if (single) block[n] = one;
    }
  }

  const Graph& g_;
  std::vector<std::vector<NodeId>> readers_;
  std::vector<bool> backbone_, tail_;  // per node
  const Dependence dependence_;
  std::vector<bool> side_;         // per value
  std::vector<NodeId> order_;      // the backbone
  std::vector<int64_t> position_;  // in it, or -1
  std::vector<Piece> pieces_;
};

}  // namespace

absl::StatusOr<Graph> tag_blocks(const Graph& graph, const PassContext&) {
  Graph tagged = graph;
  std::vector<int32_t> block = Blocks(graph).run();
  for (size_t n = 0; n < tagged.nodes.size(); ++n) tagged.nodes[n].block = block[n];
  return tagged;
}

}  // namespace partita
