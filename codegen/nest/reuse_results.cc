#include "codegen/nest/reuse_results.h"

#include <algorithm>

namespace partita {
namespace {

bool is_expensive(const NestNode& n) {
  return n.op == NestOp::kScalar && is_float(n.scalar.type) &&
         (is_transcendental(n.scalar.op) || n.scalar.op == ScalarOp::kMod);
}

class Keeper {
 public:
  explicit Keeper(LoopNest& nest) : nest_(nest), level_(levels(nest)), varies_(variation(nest)) {}

  void run() {
    int last = *std::max_element(level_.begin(), level_.end());
    for (int pass = 1; pass <= last; ++pass) {
      for (int n : frontier(pass)) keep(n, pass);
    }
  }

 private:
  bool along_columns(int node) const {
    return std::find(varies_[node].begin() + nest_.rows(), varies_[node].end(), true) != varies_[node].end();
  }
  bool is_kept(int node) const {
    return std::any_of(nest_.kept.begin(), nest_.kept.end(), [&](const NestStore& k) { return k.node == node; });
  }

  // What a pass computes over the columns: terms of sums, stores and folds.
  std::vector<int> roots_of(int pass) const {
    std::vector<int> roots;
    for (size_t k = 0; k < nest_.nodes.size(); ++k) {
      if (nest_.nodes[k].op == NestOp::kReduce && level_[k] == pass + 1) roots.push_back(nest_.nodes[k].scalar.a);
    }
    for (const NestStore& s : nest_.stores) {
      if (level_[s.node] == pass) roots.push_back(s.node);
    }
    for (const NestFold& f : nest_.folds) {
      if (nest_.nodes[f.node].op != NestOp::kReduce && level_[f.node] == pass) roots.push_back(f.node);
    }
    return roots;
  }

  // Goes from nodes to their operands, as far as they vary along the columns and `enter` says to.
  template <typename Enter>
  void walk(std::vector<int> stack, Enter enter) const {
    std::vector<bool> seen(nest_.nodes.size(), false);
    while (!stack.empty()) {
      int n = stack.back();
      stack.pop_back();
      if (seen[n] || !along_columns(n)) continue;
      seen[n] = true;
      if (!enter(n)) continue;
      for (int operand : {nest_.nodes[n].scalar.a, nest_.nodes[n].scalar.b, nest_.nodes[n].scalar.c}) {
        if (operand >= 0) stack.push_back(operand);
      }
    }
  }

  // Nodes of earlier levels that this pass reads directly.
  std::vector<int> frontier(int pass) const {
    std::vector<int> found;
    walk(roots_of(pass), [&](int n) {
      if (level_[n] < pass) found.push_back(n);
      return level_[n] >= pass;
    });
    std::sort(found.rbegin(), found.rend());
    return found;
  }

  // Whether this pass reads the node, or computes again what reads it.
  bool comes_to(int pass, int node) const {
    bool found = false;
    walk(roots_of(pass), [&](int n) {
      found = found || n == node;
      return !found && (level_[n] >= pass || !is_kept(n));
    });
    return found;
  }

  // What computing a node again takes: loads, and whether anything expensive.
  void cost(int node, int& loads, bool& expensive) const {
    walk({node}, [&](int n) {
      bool read_back = n != node && is_kept(n);
      loads += read_back || nest_.nodes[n].op == NestOp::kLoad;
      expensive = expensive || (!read_back && is_expensive(nest_.nodes[n]));
      return !read_back;
    });
  }

  // A place of its own for every point, of the node's very type.
  bool holds(const NestStore& s, int node) const {
    for (size_t d = 0; d < nest_.sizes.size(); ++d) {
      if (s.access.strides[d] == 0 && nest_.sizes[d] != 1) return false;
    }
    return nest_.operands[s.access.operand] == nest_.nodes[node].scalar.type;
  }

  void keep(int node, int pass) {
    if (is_kept(node) || nest_.nodes[node].op != NestOp::kScalar) return;
    int loads = 0;
    bool expensive = false;
    cost(node, loads, expensive);
    if (!expensive && loads < 2) return;
    int last_use = pass;
    for (int p = pass; p <= *std::max_element(level_.begin(), level_.end()); ++p) {
      if (comes_to(p, node)) last_use = p;
    }
    for (const NestStore& s : nest_.stores) {
      if (s.node == node && holds(s, node) && !overwritten(s, last_use)) {
        nest_.kept.push_back(s);
        return;
      }
    }
    if (!expensive) return;
    for (const NestStore& s : nest_.stores) {
      if (level_[s.node] < last_use || !holds(s, node) || borrowed(s.access.operand)) continue;
      NestStore early{node, s.access};
      nest_.stores.push_back(early);
      nest_.kept.push_back(early);
      return;
    }
  }

  bool overwritten(const NestStore& s, int until) const {
    return std::any_of(nest_.stores.begin(), nest_.stores.end(), [&](const NestStore& o) {
      return o.node != s.node && o.access.operand == s.access.operand && level_[o.node] < until;
    });
  }
  bool borrowed(int operand) const {
    return std::any_of(nest_.kept.begin(), nest_.kept.end(),
                       [&](const NestStore& k) { return k.access.operand == operand; });
  }

  LoopNest& nest_;
  std::vector<int> level_;
  std::vector<std::vector<bool>> varies_;
};

}  // namespace

void keep_results(LoopNest& nest) {
  if (nest.nodes.empty() || nest.columns == 0) return;
  Keeper(nest).run();
}

}  // namespace partita
