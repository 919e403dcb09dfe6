#include "tools/verify/kernels/check_nest.h"

#include <algorithm>

#include "base/cat.h"
#include "base/status.h"
#include "tools/verify/kernels/nest_passes.h"
#include "tools/verify/kernels/whole_nest.h"
#include "tools/verify/layout/mismatch.h"

namespace partita::verifier {
namespace {

constexpr size_t kMostLoops = 64, kMostNodes = 1 << 16;
constexpr int64_t kMostPoints = int64_t{1} << 59;

int operand_count(ScalarOp op) {
  if (op == ScalarOp::kConstant) return 0;
  if (op == ScalarOp::kSelect) return 3;
  const bool binary = (op >= ScalarOp::kAdd && op <= ScalarOp::kMod) || (op >= ScalarOp::kEq && op <= ScalarOp::kXor) ||
                      op == ScalarOp::kShl || op == ScalarOp::kShr || op == ScalarOp::kPhilox;
  return binary ? 2 : 1;
}

class NestChecker {
 public:
  explicit NestChecker(const LoopNest& nest) : nest_(nest) {}

  absl::Status run() const {
    PARTITA_RETURN_IF_ERROR(check_loops());
    PARTITA_RETURN_IF_ERROR(check_operands());
    for (size_t k = 0; k < nest_.nodes.size(); ++k) {
      if (!is_node(static_cast<int>(k))) return differs("node %", k, ": expected one that its operands and type allow");
    }
    PARTITA_RETURN_IF_ERROR(check_stores());
    PARTITA_RETURN_IF_ERROR(check_folds());
    PARTITA_RETURN_IF_ERROR(check_schedule());
    PARTITA_RETURN_IF_ERROR(check_all_used());
    return check_kept();
  }

 private:
  absl::Status check_loops() const {
    if (nest_.sizes.size() > kMostLoops || nest_.nodes.size() > kMostNodes) return differs("expected fewer loops");
    if (nest_.columns < 0 || nest_.rows() < 0) return differs("expected column loops among the loops");
    int64_t points = 1;
    for (int64_t n : nest_.sizes) {
      if (n < 1 || n > kMostPoints / points) return differs("expected loops of at least one point each");
      points *= n;
    }
    return absl::OkStatus();
  }

  absl::Status check_operands() const {
    if (nest_.inputs < 0 || nest_.inputs >= operands()) return differs("expected operands that are written");
    for (int o = 0; o < operands(); ++o) {
      const bool known = nest_.operands[static_cast<size_t>(o)] != DType::kInvalid;
      const auto writes = [&](const auto& s) { return s.access.operand == o; };
      const auto stores = std::count_if(nest_.stores.begin(), nest_.stores.end(), writes),
                 folds = std::count_if(nest_.folds.begin(), nest_.folds.end(), writes);
      const bool right = o < nest_.inputs ? stores + folds == 0 : folds == 0 ? stores > 0 : stores == 0 && folds == 1;
      if (!known || !right) return differs("operand ", o, ": expected it to be read, or written in one way");
    }
    return absl::OkStatus();
  }

  int operands() const { return static_cast<int>(nest_.operands.size()); }
  DType type(int node) const { return nest_.nodes[static_cast<size_t>(node)].scalar.type; }
  bool is_access(const NestAccess& a) const {
    return a.operand >= 0 && a.operand < operands() && a.strides.size() == nest_.sizes.size();
  }

  bool is_node(int k) const {
    const NestNode& n = nest_.nodes[static_cast<size_t>(k)];
    const ScalarNode& s = n.scalar;
    for (int operand : {s.a, s.b, s.c}) {
      if (operand < -1 || operand >= k) return false;
    }
    switch (n.op) {
      case NestOp::kLoad:
        return is_access(n.access) && n.access.operand < nest_.inputs && s.a < 0 && s.b < 0 && s.c < 0 &&
               s.type == nest_.operands[static_cast<size_t>(n.access.operand)];
      case NestOp::kIndex:
        return n.access.strides.size() == nest_.sizes.size() && s.a < 0 && s.b < 0 && s.c < 0 && s.type == DType::kI64;
      case NestOp::kReduce:
        return s.a >= 0 && s.b < 0 && s.c < 0 && s.type == type(s.a) && n.reduce <= ReduceKind::kProd;
      case NestOp::kScalar:
        return is_scalar(s);
    }
    return false;
  }

  bool is_scalar(const ScalarNode& s) const {
    if (s.op == ScalarOp::kInput || s.op == ScalarOp::kIndex || s.op > ScalarOp::kPhilox) return false;
    const int count = operand_count(s.op);
    if ((s.a >= 0) != (count > 0) || (s.b >= 0) != (count > 1) || (s.c >= 0) != (count > 2)) return false;
    if (s.type == DType::kInvalid || s.type != result_type(s, nest_.nodes)) return false;
    if (s.op == ScalarOp::kSelect) return type(s.a) == DType::kBool && type(s.b) == type(s.c);
    if (s.op == ScalarOp::kPhilox)
      return s.index >= 0 && s.index < 4 && type(s.a) == DType::kI64 && type(s.b) == DType::kI64;
    return count < 2 || type(s.a) == type(s.b);
  }

  // Several stores to one operand are to the same places in different passes over a row.
  absl::Status check_stores() const {
    const NestPasses passes = nest_passes(checked_stores());
    for (size_t k = 0; k < nest_.stores.size(); ++k) {
      const NestStore& s = nest_.stores[k];
      const auto fault = [&](std::string_view what) { return differs("store ", k, ": expected ", what); };
      if (s.node < 0 || s.node >= static_cast<int>(nest_.nodes.size()) || !is_access(s.access))
        return fault("a node and an operand");
      const auto node = static_cast<size_t>(s.node);
      if (type(s.node) != nest_.operands[static_cast<size_t>(s.access.operand)]) return fault("its operand's type");
      const bool wide = is_wide(nest_, s.access);
      if (!wide && passes.wide[node]) return fault("a place for each column");
      for (size_t j = 0; j < k; ++j) {
        const NestStore& other = nest_.stores[j];
        if (other.access.operand != s.access.operand) continue;
        if (!wide || other.access != s.access || passes.level[static_cast<size_t>(other.node)] == passes.level[node])
          return fault("one store to a place in each pass");
      }
    }
    return absl::OkStatus();
  }

  // For the passes of its nodes alone, whatever its stores are.
  LoopNest checked_stores() const {
    LoopNest nodes = nest_;
    nodes.stores.clear(), nodes.kept.clear(), nodes.folds.clear();
    return nodes;
  }

  // Partial results of rows: of a reduction, one for each unit; else one for each column.
  absl::Status check_folds() const {
    for (size_t k = 0; k < nest_.folds.size(); ++k) {
      const NestFold& f = nest_.folds[k];
      const auto fault = [&](std::string_view what) { return differs("fold ", k, ": expected ", what); };
      if (f.node < 0 || f.node >= static_cast<int>(nest_.nodes.size()) || !is_access(f.access))
        return fault("a node and an operand");
      if (type(f.node) != nest_.operands[static_cast<size_t>(f.access.operand)]) return fault("its operand's type");
      const NestNode& n = nest_.nodes[static_cast<size_t>(f.node)];
      const auto& strides = f.access.strides;
      const bool reduced = n.op == NestOp::kReduce;
      const auto moved = reduced ? strides.end() : strides.begin() + nest_.rows();
      if (f.reduce > ReduceKind::kProd || std::any_of(strides.begin(), moved, [](int64_t s) { return s != 0; }))
        return fault("no step from row to row");
      if (reduced && (f.extent != 1 || f.access.offset != 0 || n.reduce != f.reduce))
        return fault("one partial result of each unit");
      if (f.extent < 1 || f.extent > kMostPoints) return fault("partial results");
    }
    return absl::OkStatus();
  }

  absl::Status check_schedule() const {
    const bool reduces = !nest_.folds.empty() || std::any_of(nest_.nodes.begin(), nest_.nodes.end(),
                                                             [](const auto& n) { return n.op == NestOp::kReduce; });
    if (nest_.rows_per_unit < 1 || nest_.rows_per_unit > kMostPoints) return differs("expected rows in each unit");
    if (nest_.lane_is_row && (nest_.rows() == 0 || nest_.columns == 0 || nest_.tile >= 0 || !nest_.folds.empty()))
      return differs("expected lanes along the columns");
    if (nest_.tile < -1 || nest_.tile >= nest_.rows() ||
        (nest_.tile >= 0 && (reduces || nest_.columns != 1 || nest_.clip != 0)))
      return differs("expected no tiles");
    const int64_t size = nest_.sizes.empty() ? 1 : nest_.sizes.back();
    if (nest_.clip == 0 || (nest_.clip > 0 && !nest_.lane_is_row && has_cut_columns(nest_) &&
                            nest_.sizes[static_cast<size_t>(nest_.rows()) - 1] == (nest_.clip + size - 1) / size))
      return absl::OkStatus();
    return differs("expected no clip of columns that rows need whole");
  }

  absl::Status check_all_used() const {
    std::vector<bool> used(nest_.nodes.size(), false);
    for (const NestStore& s : nest_.stores) used[static_cast<size_t>(s.node)] = true;
    for (const NestFold& f : nest_.folds) used[static_cast<size_t>(f.node)] = true;
    for (size_t k = used.size(); k-- > 0;) {
      if (!used[k]) return differs("node %", k, ": expected one that something stored is made of");
      for (int operand : {nest_.nodes[k].scalar.a, nest_.nodes[k].scalar.b, nest_.nodes[k].scalar.c}) {
        if (operand >= 0) used[static_cast<size_t>(operand)] = true;
      }
    }
    return absl::OkStatus();
  }

  // What is read back was stored there as it is, and nothing has been stored over it since.
  absl::Status check_kept() const {
    for (const NestStore& kept : nest_.kept) {
      const auto same = [&](const NestStore& s) { return s.node == kept.node && s.access == kept.access; };
      if (std::none_of(nest_.stores.begin(), nest_.stores.end(), same))
        return differs("kept %", kept.node, ": expected a store of it");
    }
    const NestPasses passes = nest_passes(nest_);
    for (const NestStore& kept : nest_.kept) {
      const auto fault = [&](std::string_view what) { return differs("kept %", kept.node, ": expected ", what); };
      const auto node = static_cast<size_t>(kept.node);
      for (size_t d = 0; d < nest_.sizes.size(); ++d) {
        if (kept.access.strides[d] == 0 && nest_.sizes[d] != 1) return fault("a place for each point");
      }
      for (const NestStore& s : nest_.stores) {
        if (s.access.operand != kept.access.operand || s.node == kept.node) continue;
        const int pass = passes.level[static_cast<size_t>(s.node)];
        if (pass < passes.level[node]) continue;
        if (pass < passes.read_back[node]) return fault("it to be read back before its place is written again");
      }
    }
    return absl::OkStatus();
  }

  const LoopNest& nest_;
};

}  // namespace

absl::Status check_nest(const LoopNest& nest) { return NestChecker(nest).run(); }

}  // namespace partita::verifier
