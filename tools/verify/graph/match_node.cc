#include "tools/verify/graph/match_node.h"

#include <algorithm>

#include "base/cat.h"
#include "base/status.h"

namespace partita::verifier {
namespace {

template <typename... Args>
absl::Status wrong(const Args&... args) {
  return absl::FailedPreconditionError(cat(args...));
}

bool has(const std::vector<int>& axes, int axis) { return std::find(axes.begin(), axes.end(), axis) != axes.end(); }

// A present operand: its place among the formula's, and its layout.
struct Present {
  const FormulaOperand& operand;
  const IndexMap& layout;
  bool zero;
};

// A factor that must stay whole, or whose elements are summed, has to be there in full or be split by whole axes.
absl::Status check_factor(const Factor& factor, const Pieces& pieces, const Mesh& mesh) {
  std::vector<int64_t> ways(mesh.axes.size(), 1);
  for (const Piece& p : pieces) {
    if (p.kind == Piece::Kind::kAxis) ways[p.axis] *= p.size;
    if (factor.role == FactorRole::kWhole && (p.kind == Piece::Kind::kAxis || p.local != p.size))
      return wrong("factor '", factor.name, "' whole, as it must stay");
    if (factor.role == FactorRole::kSum && p.kind == Piece::Kind::kFree && p.local != p.size)
      return wrong("all ", p.size, " terms of factor '", factor.name, "'");
  }
  for (size_t a = 0; a < ways.size(); ++a) {
    if (factor.role != FactorRole::kParallel && ways[a] != 1 && ways[a] != mesh.axes[a].size)
      return wrong("factor '", factor.name, "' split by all of axis ", mesh.axes[a].name);
  }
  return absl::OkStatus();
}

// No digit of a coordinate may split two factors: ranks would hold a diagonal of what they have to compute.
absl::Status check_apart(const std::vector<Pieces>& factors, const Mesh& mesh) {
  std::vector<const Piece*> split;
  for (const Pieces& pieces : factors) {
    for (const Piece& p : pieces) {
      if (p.kind == Piece::Kind::kAxis) split.push_back(&p);
    }
  }
  std::sort(split.begin(), split.end(), [](const Piece* a, const Piece* b) {
    return a->axis != b->axis ? a->axis < b->axis : a->divisor < b->divisor;
  });
  for (size_t k = 1; k < split.size(); ++k) {
    const Piece &low = *split[k - 1], &high = *split[k];
    if (low.axis == high.axis && low.divisor * low.size > high.divisor)
      return wrong("axis ", mesh.axes[low.axis].name, " to split one factor, not two");
  }
  return absl::OkStatus();
}

// The axes over which the result is partial because an operand is: sound only through what is linear, and where all
// operands that are linear together are partial alike.
absl::StatusOr<std::vector<int>> passing(const std::vector<Present>& operands, const std::vector<int>& split,
                                         const Mesh& mesh) {
  std::vector<int> left;
  for (const Present& x : operands) {
    for (int a : x.layout.partial) {
      const std::string& name = mesh.axes[a].name;
      if (x.operand.linear < 0) return wrong("the complete sum over ", name, ", since the op is not linear in it");
      if (x.layout.kind != PartialKind::kSum) return wrong("the complete extremum over ", name);
      if (has(split, a)) return wrong("the complete sum over ", name, ", which splits another operand");
      for (const Present& y : operands) {
        bool together = y.operand.linear == x.operand.linear;
        if (together != y.layout.is_partial(a) && !(together && y.zero))
          return wrong(together ? "all operands that are summed to be partial over "
                                : "only one factor of a product to be partial over ",
                       name);
      }
      if (!has(left, a)) left.push_back(a);
    }
  }
  return left;
}

// The mesh axis whose coordinate a scalar is made of, alone; -1 where there is none.
int coordinate_axis(const Graph& g, ValueId v, const Mesh& mesh) {
  while (v != kNoValue) {
    for (const GraphInput& in : g.inputs) {
      if (in.value == v) return in.kind == InputKind::kCoordinate ? mesh.find(in.name) : -1;
    }
    const Node* made = g.producer(v);
    v = made == nullptr || made->inputs.empty() ? kNoValue : made->inputs[0];
  }
  return -1;
}

// Axes of `ways` ranks together whose ranks' sums of equally many terms, all alike, are one sum: those along which what
// is made of `node` is reduced first, and of whose ranks not one alone counts. Any would do as far as this node goes;
// the reduction needs the right ones.
std::vector<int> axes_of_terms(const Graph& local, const Node& node, std::vector<bool> taken, int64_t ways,
                               const Mesh& mesh) {
  std::vector<bool> made(local.values.size(), false);
  for (ValueId v : node.outputs) made[v] = true;
  std::vector<int> axes;
  auto offer = [&](int a) {
    int64_t size = mesh.axes[static_cast<size_t>(a)].size;
    if (taken[static_cast<size_t>(a)] || size == 1 || ways % size != 0 || has(axes, a)) return;
    axes.push_back(a), ways /= size;
  };
  for (size_t n = static_cast<size_t>(&node - local.nodes.data()) + 1; n < local.nodes.size() && ways > 1; ++n) {
    const Node& next = local.nodes[n];
    bool reads = std::any_of(next.inputs.begin(), next.inputs.end(), [&](ValueId v) { return v >= 0 && made[v]; });
    if (!reads) continue;
    for (ValueId v : next.outputs) made[v] = true;
    if (next.op->name == "select") {
      if (int once = coordinate_axis(local, next.inputs[0], mesh); once >= 0) taken[static_cast<size_t>(once)] = true;
    } else if (next.op->communicates) {
      for (int64_t a : next.attrs.ints("axes")) {
        if (a >= 0 && a < static_cast<int64_t>(mesh.axes.size())) offer(static_cast<int>(a));
      }
    } else if (next.op->sums_micro_batches) {
      if (int time = mesh.find("time"); time >= 0) offer(time);
    }
  }
  return ways == 1 ? axes : std::vector<int>{};
}

// A sum over a part of a factor along which all operands are constant: which part is not in their layouts, for all
// parts are alike. They become parts by the coordinates along the axes that complete the sum.
void divide_alike_terms(const Formula& formula, const Graph& local, const Node& node,
                        const std::vector<Present>& operands, const Mesh& mesh, std::vector<Pieces>& factors) {
  for (size_t f = 0; f < factors.size(); ++f) {
    if (formula.factors[f].role != FactorRole::kSum) continue;
    for (size_t k = 0; k < factors[f].size(); ++k) {
      const Piece p = factors[f][k];
      if (p.kind != Piece::Kind::kFree || p.local == p.size || p.size % p.local != 0) continue;
      std::vector<bool> taken(mesh.axes.size(), false);
      for (const Pieces& pieces : factors) {
        for (const Piece& q : pieces) {
          if (q.kind == Piece::Kind::kAxis) taken[static_cast<size_t>(q.axis)] = true;
        }
      }
      for (const Present& x : operands) {
        for (int a : x.layout.partial) taken[static_cast<size_t>(a)] = true;
      }
      std::vector<int> axes = axes_of_terms(local, node, taken, p.size / p.local, mesh);
      if (axes.empty()) continue;
      Pieces parts;
      for (int a : axes) parts.push_back({Piece::Kind::kAxis, mesh.axes[static_cast<size_t>(a)].size, 1, a, 1});
      if (p.local > 1) parts.push_back({Piece::Kind::kLocal, p.local, p.local, -1, 1});
      auto at = factors[f].erase(factors[f].begin() + static_cast<int64_t>(k));
      factors[f].insert(at, parts.begin(), parts.end());
      k += parts.size() - 1;
    }
  }
}

}  // namespace

absl::StatusOr<std::vector<IndexMap>> match_node(const SerialValues& serial, NodeId serial_node, const Graph& local,
                                                 const Node& node, const std::vector<IndexMap>& operands,
                                                 const Mesh& mesh) {
  const Graph& g = serial.graph();
  const Node& whole = g.nodes[serial_node];
  const Formula& formula = serial.formula(serial_node);
  std::vector<std::vector<Pieces>> parts;
  std::vector<Present> present;
  std::vector<Shape> in, out;
  bool sliced = false, viewed = false;
  for (size_t k = 0; k < node.inputs.size(); ++k) {
    in.push_back(node.inputs[k] == kNoValue ? Shape{} : local.type(node.inputs[k]).shape);
    if (node.inputs[k] == kNoValue) continue;
    auto part = pieces_of(serial.layout(whole.inputs[k]), g.type(whole.inputs[k]).shape, operands[k], in.back());
    if (!part.ok()) return wrong("operand ", k, " as a part of the serial one; ", part.status().message());
    parts.push_back(*std::move(part));
    present.push_back({formula.inputs[present.size()], operands[k], serial.is_zero(operands[k].root)});
    sliced = sliced || operands[k].sliced;
    viewed = viewed || !operands[k].through.empty();
  }
  PARTITA_ASSIGN_OR_RETURN(std::vector<Pieces> factors, split_factors(formula, parts));
  divide_alike_terms(formula, local, node, present, mesh, factors);
  std::vector<int> split;
  for (size_t f = 0; f < factors.size(); ++f) {
    PARTITA_RETURN_IF_ERROR(check_factor(formula.factors[f], factors[f], mesh));
    for (const Piece& p : factors[f]) {
      if (p.kind == Piece::Kind::kAxis && !has(split, p.axis)) split.push_back(p.axis);
    }
  }
  PARTITA_RETURN_IF_ERROR(check_apart(factors, mesh));
  PARTITA_ASSIGN_OR_RETURN(std::vector<int> left, passing(present, split, mesh));
  std::vector<IndexMap> results;
  for (size_t k = 0; k < node.outputs.size(); ++k) {
    IndexMap layout;
    std::vector<Pieces> dims = under_split(formula.outputs[k], factors);
    // Parts of a view do not say where it is the same all along, as the serial result's own numbers do.
    const std::vector<Digit>& own = serial.layout(whole.outputs[k]).digits;
    const bool repeats = std::any_of(own.begin(), own.end(), [](const Digit& d) { return d.stride == 0; });
    if (viewed && repeats) layout.through = own;
    number(dims, layout);
    layout.root = serial.layout(whole.outputs[k]).root;
    layout.sliced = sliced;
    layout.partial = left;
    std::optional<PartialKind> kind;
    if (!left.empty()) kind = PartialKind::kSum;
    for (size_t f = 0; f < factors.size(); ++f) {
      FactorRole role = formula.factors[f].role;
      if (role == FactorRole::kParallel || has_factor(formula.outputs[k], static_cast<int>(f))) continue;
      for (const Piece& p : factors[f]) {
        if (p.kind != Piece::Kind::kAxis) continue;
        PartialKind mine = role == FactorRole::kMax   ? PartialKind::kMax
                           : role == FactorRole::kMin ? PartialKind::kMin
                                                      : PartialKind::kSum;
        if (kind.value_or(mine) != mine) return wrong("one kind of partial result");
        kind = mine;
        if (!has(layout.partial, p.axis)) layout.partial.push_back(p.axis);
      }
    }
    layout.kind = kind.value_or(PartialKind::kSum);
    std::sort(layout.partial.begin(), layout.partial.end());
    Shape shape;
    for (const Pieces& pieces : dims) shape.push_back(local_size(pieces));
    TensorType expected{g.type(whole.outputs[k]).dtype, shape};
    if (local.type(node.outputs[k]) != expected)
      return wrong("a result of type ", to_string(expected), " where it is ", to_string(local.type(node.outputs[k])));
    out.push_back(std::move(shape));
    results.push_back(std::move(layout));
  }
  if (!(localized_attrs(*node.op, whole.attrs, in, out) == node.attrs))
    return wrong("the attributes of serial node ", serial_node, " on local shapes");
  return results;
}

absl::Status same_part(const IndexMap& serial, const Shape& serial_shape, const IndexMap& local,
                       const Shape& local_shape, const runtime::Placement& placement, const Mesh& mesh) {
  PARTITA_ASSIGN_OR_RETURN(std::vector<Pieces> expected, placed_pieces(placement, mesh));
  PARTITA_ASSIGN_OR_RETURN(std::vector<Pieces> parts, pieces_of(serial, serial_shape, local, local_shape));
  for (size_t d = 0; d < parts.size(); ++d) {
    if (!unified(parts[d], expected[d]))
      return wrong("expected ", to_string(expected, mesh), ", found ", to_string(parts, mesh));
  }
  return absl::OkStatus();
}

}  // namespace partita::verifier
