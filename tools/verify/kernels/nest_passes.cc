#include "tools/verify/kernels/nest_passes.h"

#include <algorithm>

#include "tools/verify/kernels/whole_nest.h"

namespace partita::verifier {
namespace {

class Passes {
 public:
  explicit Passes(const LoopNest& nest) : nest_(nest), kept_(nest.nodes.size(), false) {
    p_.level = levels(nest);
    const auto varies = variation(nest);
    for (const auto& along : varies)
      p_.wide.push_back(std::find(along.begin() + nest.rows(), along.end(), true) != along.end());
    for (int l : p_.level) p_.count = std::max(p_.count, l + 1);
    for (const NestStore& k : nest.kept) kept_[static_cast<size_t>(k.node)] = true;
    p_.computed.assign(nest.nodes.size(), -1);
    p_.read_back.assign(nest.nodes.size(), -1);
  }

  NestPasses run() {
    for (int pass = 0; pass < p_.count; ++pass) {
      for (const NestNode& n : nest_.nodes) {
        const size_t k = static_cast<size_t>(&n - nest_.nodes.data());
        if (n.op == NestOp::kReduce && p_.level[k] == pass + 1) need(n.scalar.a, pass);
      }
      for (const NestStore& s : nest_.stores) {
        if (is_wide(nest_, s.access) && level(s.node) == pass) need(s.node, pass);
      }
      for (const NestFold& f : nest_.folds) {
        if (nest_.nodes[static_cast<size_t>(f.node)].op != NestOp::kReduce && level(f.node) == pass) need(f.node, pass);
      }
    }
    for (const NestStore& s : nest_.stores) {
      if (!is_wide(nest_, s.access)) need(s.node, p_.count);
    }
    return std::move(p_);
  }

 private:
  int level(int node) const { return p_.level[static_cast<size_t>(node)]; }

  void need(int root, int pass) {
    std::vector<int> open{root};
    while (!open.empty()) {
      const auto n = static_cast<size_t>(open.back());
      open.pop_back();
      const NestNode& node = nest_.nodes[n];
      // Once a row; in this pass already.
      if ((!p_.wide[n] && p_.computed[n] >= 0) || p_.computed[n] == pass) continue;
      if (p_.wide[n] && pass > p_.level[n] && kept_[n]) {
        p_.read_back[n] = pass;
        continue;
      }
      p_.computed[n] = pass;
      if (node.op == NestOp::kReduce) continue;  // its pass has it
      for (int operand : {node.scalar.a, node.scalar.b, node.scalar.c}) {
        if (operand >= 0) open.push_back(operand);
      }
    }
  }

  const LoopNest& nest_;
  std::vector<bool> kept_;
  NestPasses p_;
};

}  // namespace

NestPasses nest_passes(const LoopNest& nest) { return Passes(nest).run(); }

bool overwrites_after_reading(const LoopNest& nest, int input, int output) {
  if (dtype_size(nest.operands[static_cast<size_t>(input)]) != dtype_size(nest.operands[static_cast<size_t>(output)]))
    return false;
  const NestPasses passes = nest_passes(nest);
  const NestStore* first = nullptr;
  int when = 0;
  for (const NestStore& s : nest.stores) {
    if (s.access.operand != output) continue;
    const int pass = is_wide(nest, s.access) ? passes.level[static_cast<size_t>(s.node)] : passes.count;
    if (first != nullptr && s.access != first->access) return false;
    if (first == nullptr || pass < when) when = pass;
    first = &s;
  }
  if (first == nullptr) return false;  // partial results, which are written all along
  for (size_t k = 0; k < nest.nodes.size(); ++k) {
    const NestNode& n = nest.nodes[k];
    if (n.op != NestOp::kLoad || n.access.operand != input) continue;
    const bool there = n.access.offset == first->access.offset && n.access.strides == first->access.strides;
    if (!there || passes.computed[k] > when) return false;
  }
  return true;
}

}  // namespace partita::verifier
