#include "tools/verify/stages/stage_sources.h"

#include <algorithm>

#include "base/quote.h"
#include "tools/verify/layout/mismatch.h"

namespace partita::verifier {
namespace {

bool uses(const runtime::Placement& placement, int axis) {
  return std::any_of(placement.axes.begin(), placement.axes.end(), [&](const auto& dim) {
    return std::any_of(dim.begin(), dim.end(), [&](const runtime::AxisStride& s) { return s.axis == axis; });
  });
}

// The row-major index of `at`, coordinates along `axes`, along those of them that `some` names.
int64_t index_along(const std::vector<int>& some, const std::vector<int>& axes, const std::vector<int64_t>& at,
                    const Mesh& mesh) {
  int64_t index = 0;
  for (size_t k = 0; k < axes.size(); ++k) {
    if (std::count(some.begin(), some.end(), axes[k]) > 0)
      index = index * mesh.axes[static_cast<size_t>(axes[k])].size + at[k];
  }
  return index;
}

// The number of the block of one row that a node takes of its operand, -1 where it does something else.
int64_t row_taken(const Graph& graph, const Node* node) {
  if (node == nullptr || node->op->name != "slice") return -1;
  const Shape& whole = graph.type(node->inputs[0]).shape;
  const auto &starts = node->attrs.ints("starts"), &limits = node->attrs.ints("limits");
  if (whole.empty() || limits[0] != starts[0] + 1) return -1;
  for (size_t d = 0; d < whole.size(); ++d) {
    if (node->attrs.ints("strides")[d] != 1) return -1;
    if (d > 0 && (starts[d] != 0 || limits[d] != whole[d])) return -1;
  }
  return starts[0];
}

}  // namespace

std::vector<int64_t> coordinates_along(const std::vector<int>& axes, int64_t index, const Mesh& mesh) {
  std::vector<int64_t> at(axes.size());
  for (size_t k = axes.size(); k-- > 0;) {
    const int64_t n = mesh.axes[static_cast<size_t>(axes[k])].size;
    at[k] = index % n;
    index /= n;
  }
  return at;
}

Mesh mesh_of(const runtime::Program& program) {
  Mesh mesh;
  for (const runtime::MeshAxis& a : program.mesh) mesh.axes.push_back({a.name, a.size, a.absent});
  return mesh;
}

absl::Status check_axes(const RankProgram& p, const Mesh& mesh, int64_t stage) {
  for (int axis = 1; axis < static_cast<int>(mesh.axes.size()); ++axis) {
    if (mesh.has(axis, stage)) continue;
    const std::string& name = mesh.axes[static_cast<size_t>(axis)].name;
    auto found = [&](std::string_view what) {
      return differs("stage ", stage, ": expected nothing of mesh axis ", quote(name), ", which it lacks, found ",
                     what);
    };
    for (const runtime::ProgramInput& in : p.program.inputs) {
      if (in.kind == InputKind::kCoordinate && in.name == name) return found("its coordinate");
      if (uses(in.placement, axis)) return found(cat("input ", quote(in.name), " placed by it"));
    }
    for (const runtime::ProgramState& s : p.program.states) {
      if (uses(s.placement, axis)) return found(cat("state ", quote(s.name), " placed by it"));
    }
    for (const runtime::ProgramOutput& o : p.program.outputs) {
      if (uses(o.placement, axis)) return found(cat("output ", quote(o.name), " placed by it"));
    }
    for (const Node& node : p.rank.nodes) {
      if (!node.op->communicates) continue;
      const auto& axes = node.attrs.ints("axes");
      if (std::count(axes.begin(), axes.end(), axis) > 0 && std::count(axes.begin(), axes.end(), 0) == 0)
        return found(cat(node.op->name, " along it, ", quote(p.rank.origin(node))));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Sent> what_is_sent(const Graph& sender, const Sources& sources, const Mesh& mesh) {
  std::vector<ValueId> values;
  for (NodeId n : sources.nodes) {
    if (n == kNoNode) return differs("nothing is sent to some of its ranks");
    values.push_back(sender.nodes[static_cast<size_t>(n)].inputs[0]);
  }
  const ValueId first = values.front();
  if (std::count(values.begin(), values.end(), first) == static_cast<std::ptrdiff_t>(values.size()))
    return Sent{first, {}};
  const Node* maker = sender.producer(first);
  Sent sent{maker == nullptr || maker->inputs.empty() ? kNoValue : maker->inputs[0], {}};
  std::vector<int64_t> rows;
  for (ValueId v : values) {
    const Node* slice = sender.producer(v);
    rows.push_back(row_taken(sender, slice));
    if (rows.back() < 0 || slice->inputs[0] != sent.value)
      return differs("expected rows of one value for its ranks, found %", v);
  }
  int64_t blocks = 1;
  for (size_t k = 0; k < sources.scattered.size(); ++k) {
    std::vector<int64_t> next(sources.scattered.size(), 0);
    next[k] = 1;
    if (rows[static_cast<size_t>(index_along(sources.scattered, sources.scattered, next, mesh))] == rows[0]) continue;
    sent.cut.push_back(sources.scattered[k]);
    blocks *= mesh.axes[static_cast<size_t>(sources.scattered[k])].size;
  }
  bool all = sender.type(sent.value).shape[0] == blocks;
  for (size_t k = 0; k < rows.size(); ++k) {
    const auto at = coordinates_along(sources.scattered, static_cast<int64_t>(k), mesh);
    all = all && rows[k] == index_along(sent.cut, sources.scattered, at, mesh);
  }
  if (!all) return differs("expected the rows of %", sent.value, " in the order of its ranks, each once");
  return sent;
}

bool are_all_shards(const std::vector<const Sources*>& shards, const Mesh& mesh, std::vector<int>& axes) {
  const Sources& first = *shards.front();
  axes.clear();
  int64_t count = 1;
  for (size_t k = 0; k < first.gathered.size(); ++k) {
    const bool moves = std::any_of(shards.begin(), shards.end(), [&](const Sources* p) { return p->at[k] != 0; });
    if (!moves) continue;
    axes.push_back(first.gathered[k]);
    count *= mesh.axes[static_cast<size_t>(first.gathered[k])].size;
  }
  if (count != static_cast<int64_t>(shards.size())) return false;
  for (size_t k = 0; k < shards.size(); ++k) {
    Sources expected = first;
    expected.at = shards[k]->at;
    if (!(*shards[k] == expected) || index_along(axes, first.gathered, shards[k]->at, mesh) != static_cast<int64_t>(k))
      return false;
  }
  return true;
}

}  // namespace partita::verifier
