// What is proved of a node is so: every op on every case of the tables, on ranks that have parts of its operands, or
// any part of one that is the same all along, and where it is said to be proved, by the reference.
#include "tools/verify/graph/match_node.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>

#include "base/cat.h"
#include "ir/graph/builder.h"
#include "ir/graph/evaluate.h"
#include "tests/ir/support/drawn_use.h"
#include "tests/tools/support/op_parts.h"

namespace partita::verifier {
namespace {

// What ranks have of an operand along the factor: parts, or all, or a part, of what is the same all along.
enum class Has { kParts, kSameAll, kSamePart };

double number_at(const Tensor& t, int64_t at) {
  return is_float(t.type.dtype) ? t.f[static_cast<size_t>(at)] : static_cast<double>(t.i[static_cast<size_t>(at)]);
}

bool is_near(double a, double b) {
  return a == b || (std::isnan(a) && std::isnan(b)) ||
         std::abs(a - b) <= 1e-9 * std::max({1.0, std::abs(a), std::abs(b)});
}

class Trial {
 public:
  Trial(const DrawnUse& use, const Formula& formula, int factor) : use_(use), f_(formula), factor_(factor) {
    const int64_t n = f_.factors[static_cast<size_t>(factor)].size;
    for (ways_ = 2; n % ways_ != 0;) ++ways_;
    mesh_.axes = {{"x", ways_}};
  }

  // Whether it was said to be proved; where it was, it has to be so. `has`: by operand.
  bool run(const std::vector<Has>& has) {
    const int64_t n = f_.factors[static_cast<size_t>(factor_)].size, part = n / ways_;
    Builder serial;
    std::vector<ValueId> inputs;
    std::map<ValueId, Tensor> feeds;
    std::vector<int64_t> local_size;
    std::vector<std::map<ValueId, Tensor>> local_feeds(static_cast<size_t>(ways_));
    Builder local;
    std::vector<ValueId> local_inputs;
    std::vector<std::vector<Pieces>> pieces;
    std::vector<Shape> in;
    size_t operand = 0;
    for (size_t k = 0; k < use_.inputs.size(); ++k) {
      inputs.push_back(kNoValue), local_inputs.push_back(kNoValue), pieces.emplace_back(), in.emplace_back();
      if (use_.absent(k)) continue;
      const Tensor& t = use_.inputs[k];
      const int dim = dimension_of(f_.inputs[operand++], factor_);
      const bool same = dim >= 0 && has[k] != Has::kParts;
      const Tensor given = same ? along(t, dim, 0, 0, 1) : t;
      inputs[k] = serial.input(cat("x", k), given.type);
      feeds.emplace(inputs[k], given);
      if (same) inputs[k] = serial.emit("broadcast", {inputs[k]}, {{"shape", t.type.shape}});
      for (int64_t size : t.type.shape) pieces[k].push_back({{Piece::Kind::kLocal, size, size, -1, 1}});
      const int64_t size = dim < 0 || has[k] == Has::kSameAll ? n : part;
      if (same) pieces[k][static_cast<size_t>(dim)] = {{Piece::Kind::kFree, n, size, -1, 1}};
      if (dim >= 0 && !same)
        pieces[k][static_cast<size_t>(dim)] = {{Piece::Kind::kAxis, ways_, 1, 0, 1},
                                               {Piece::Kind::kLocal, part, part, -1, 1}};
      if (dim >= 0) local_size.push_back(size);
      for (int64_t rank = 0; rank < ways_; ++rank) {
        const Tensor mine = dim < 0 ? t : along(t, dim, same ? 0 : rank * part, same ? 0 : 1, size);
        if (rank == 0) local_inputs[k] = local.input(cat("x", k), mine.type), in[k] = mine.type.shape;
        local_feeds[static_cast<size_t>(rank)].emplace(local_inputs[k], mine);
      }
    }
    // A part of what has to be whole has no attributes of its own.
    if (f_.factors[static_cast<size_t>(factor_)].role == FactorRole::kWhole && local_size.front() != n) return false;
    if (std::adjacent_find(local_size.begin(), local_size.end(), std::not_equal_to<>()) != local_size.end())
      return false;
    const std::vector<ValueId> results = serial.emit_all(use_.op.name, inputs, use_.c.attrs);
    for (size_t k = 0; k < results.size(); ++k) serial.output(cat("y", k), results[k]);
    const auto values = SerialValues::create(serial.graph());
    if (!values.ok()) return false;
    // A view is no value of its own, unless it cuts what is the same all along.
    const bool moves = movement_of(use_.op) != Movement::kNone;
    if (moves && values->layout(results[0]).root == values->layout(inputs[0]).root) return false;
    Formula mine = f_;
    mine.factors[static_cast<size_t>(factor_)].size = local_size.front();
    std::vector<Shape> out;
    for (const FormulaOperand& o : mine.outputs) out.push_back(operand_shape(mine, o));
    auto made = local.try_emit(use_.op, local_inputs, localized_attrs(use_.op, use_.c.attrs, in, out));
    if (!made.ok()) return false;
    std::vector<IndexMap> layouts(inputs.size());
    for (size_t k = 0; k < inputs.size(); ++k) {
      if (inputs[k] == kNoValue) continue;
      number(pieces[k], layouts[k]);
      layouts[k].root = values->layout(inputs[k]).root;
    }
    const Graph& whole = values->graph();
    for (size_t node = 0; node < whole.nodes.size(); ++node) {
      if (whole.nodes[node].outputs != results) continue;
      const auto proved =
          match_node(*values, static_cast<NodeId>(node), local.graph(), local.graph().nodes.back(), layouts, mesh_);
      if (!proved.ok()) return false;
      check(*values, results, evaluate_graph(serial.graph(), feeds, results), *proved, local.graph(), *made,
            local_feeds, has);
      return true;
    }
    return false;
  }

 private:
  void check(const SerialValues& values, const std::vector<ValueId>& results, const std::vector<Tensor>& expected,
             const std::vector<IndexMap>& proved, const Graph& local, const std::vector<ValueId>& made,
             const std::vector<std::map<ValueId, Tensor>>& feeds, const std::vector<Has>& has) {
    std::vector<std::vector<Tensor>> found;
    for (const auto& of_rank : feeds) found.push_back(evaluate_graph(local, of_rank, made));
    for (size_t k = 0; k < results.size(); ++k) {
      std::map<int64_t, double> root;
      for (int64_t e = 0; e < elements(expected[k].type.shape); ++e)
        root.emplace(root_element(values.layout(results[k]), e, 0), number_at(expected[k], e));
      ASSERT_EQ(proved[k].root, values.layout(results[k]).root);
      for (int64_t rank = 0; rank < ways_; ++rank) {
        for (int64_t e = 0; e < elements(found[0][k].type.shape); ++e) {
          double mine = number_at(found[static_cast<size_t>(rank)][k], e);
          for (int64_t other = 0; proved[k].is_partial(0) && other < ways_; ++other) {
            const double term = number_at(found[static_cast<size_t>(other)][k], e);
            if (other == 0)
              mine = term;
            else
              mine = proved[k].kind == PartialKind::kSum   ? mine + term
                     : proved[k].kind == PartialKind::kMax ? std::max(mine, term)
                                                           : std::min(mine, term);
          }
          const auto at = root.find(root_element(proved[k], e, rank));
          if (at != root.end() && is_near(mine, at->second)) continue;
          std::string what;
          for (Has h : has) append(what, " ", static_cast<int>(h));
          ADD_FAILURE() << describe(use_.c) << ", operands" << what << " along "
                        << f_.factors[static_cast<size_t>(factor_)].name << ": element " << e << " of output " << k
                        << " of rank " << rank << " is " << mine << ", and not "
                        << (at == root.end() ? std::string("any of the whole") : cat(at->second));
          return;
        }
      }
    }
  }

  const DrawnUse& use_;
  const Formula& f_;
  const int factor_;
  int64_t ways_ = 2;
  Mesh mesh_;
};

TEST(MatchNode, WhatIsProvedIsSo) {
  std::map<std::string, int> proved;
  for (const OpCase& c : all_op_cases()) {
    const DrawnUse use(c);
    const bool empty =
        std::any_of(use.types.begin(), use.types.end(), [](const TensorType& t) { return elements(t.shape) == 0; });
    if (use.op.communicates || use.op.name == "shard_slice" || empty) continue;
    const Formula f = bound_formula(use.op, {c.attrs, use.types});
    for (int factor = 0; factor < static_cast<int>(f.factors.size()); ++factor) {
      std::vector<size_t> with;  // operands that have the factor
      size_t operand = 0;
      for (size_t k = 0; k < use.inputs.size(); ++k) {
        if (!use.absent(k) && dimension_of(f.inputs[operand++], factor) >= 0) with.push_back(k);
      }
      if (with.empty() || f.factors[static_cast<size_t>(factor)].size < 2) continue;
      int ways = 1;
      for (size_t k = 0; k < with.size(); ++k) ways *= 3;
      for (int way = 0; way < ways; ++way) {
        std::vector<Has> has(use.inputs.size(), Has::kParts);
        for (int k = 0, rest = way; k < static_cast<int>(with.size()); ++k, rest /= 3)
          has[with[static_cast<size_t>(k)]] = static_cast<Has>(rest % 3);
        proved[c.op] += Trial(use, f, factor).run(has);
      }
    }
  }
  for (const char* op :
       {"matmul", "add", "attention", "attention_grad", "conv", "softmax", "reduce_sum", "reduce_max", "gather_rows",
        "grouped_matmul", "cumsum", "scatter_elements", "opt_adam", "layer_norm", "reshape"})
    EXPECT_GT(proved[op], 0) << op;
}

}  // namespace
}  // namespace partita::verifier
