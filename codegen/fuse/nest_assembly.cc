#include "codegen/fuse/nest_assembly.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "codegen/nest/nest_schedule.h"
#include "codegen/nest/reuse_results.h"

namespace partita {
namespace {

// Drops nodes that no store needs: second results, folded constants.
void remove_unused(LoopNest& nest) {
  std::vector<bool> needed(nest.nodes.size(), false);
  for (const NestStore& s : nest.stores) needed[s.node] = true;
  for (const NestFold& f : nest.folds) needed[f.node] = true;
  for (size_t k = nest.nodes.size(); k-- > 0;) {
    for (int operand : {nest.nodes[k].scalar.a, nest.nodes[k].scalar.b, nest.nodes[k].scalar.c}) {
      if (needed[k] && operand >= 0) needed[operand] = true;
    }
  }
  std::vector<int> now(nest.nodes.size(), -1);
  std::vector<NestNode> kept;
  for (size_t k = 0; k < nest.nodes.size(); ++k) {
    if (!needed[k]) continue;
    NestNode n = nest.nodes[k];
    for (int* operand : {&n.scalar.a, &n.scalar.b, &n.scalar.c}) *operand = *operand >= 0 ? now[*operand] : -1;
    now[k] = static_cast<int>(kept.size());
    kept.push_back(std::move(n));
  }
  nest.nodes = std::move(kept);
  for (NestStore& s : nest.stores) s.node = now[s.node];
  for (NestFold& f : nest.folds) f.node = now[f.node];
}

// Adds up what the units left of some folds, all of `extent` columns; `which` are their numbers.
BuiltNest combine(const CodeGraph& code, const std::vector<NamedFold>& folds, const std::vector<int>& which,
                  int64_t parts, int64_t extent, int first_temporary) {
  BuiltNest built;
  LoopNest& nest = built.nest;
  nest.strict = code.strict;
  nest.sizes = {parts, extent};
  nest.inputs = static_cast<int>(which.size());
  int64_t step = extent == 1 ? 0 : 1;
  for (int operand = 0; operand < nest.inputs; ++operand) {
    const NamedFold& f = folds[which[operand]];
    DType type = code.graph.type(f.value).dtype;
    int node = static_cast<int>(nest.nodes.size());
    nest.operands.push_back(type);
    built.operands.push_back({kNoValue, first_temporary + which[operand]});
    nest.nodes.push_back({.op = NestOp::kLoad,
                          .scalar = {.op = ScalarOp::kInput, .type = type},
                          .access = {operand, {extent, step}, 0}});
    nest.nodes.push_back(
        {.op = NestOp::kReduce, .scalar = {.op = ScalarOp::kInput, .type = type, .a = node}, .reduce = f.fold.reduce});
    nest.stores.push_back({node + 1, {nest.inputs + operand, {0, step}, 0}});
  }
  for (int k : which) {
    nest.operands.push_back(code.graph.type(folds[k].value).dtype);
    built.operands.push_back({code.storage(folds[k].value), -1});
  }
  schedule(nest, {true, false}, code.fold_units, code.on_gpu);
  return built;
}

// The value of a reduction of nothing.
ScalarNode reduced_nothing(ReduceKind kind, DType type) {
  ScalarNode s{.op = ScalarOp::kConstant, .type = type};
  bool largest = kind == ReduceKind::kMin, smallest = kind == ReduceKind::kMax;
  double one = kind == ReduceKind::kProd ? 1 : 0, infinity = std::numeric_limits<double>::infinity();
  if (is_float(type)) {
    s.f = largest ? infinity : smallest ? -infinity : one;
  } else {
    int64_t most = is_unsigned(type) ? -1 : static_cast<int64_t>((~uint64_t{0} >> 1) >> (64 - dtype_size(type) * 8));
    s.i = largest ? most : smallest ? (is_unsigned(type) ? 0 : -most - 1) : static_cast<int64_t>(one);
  }
  return s;
}

// Where `x` is in `all`, at the end if it was not there.
template <typename T>
int number_of(const T& x, std::vector<T>& all) {
  const auto at = std::find(all.begin(), all.end(), x);
  const int number = static_cast<int>(at - all.begin());
  if (at == all.end()) all.push_back(x);
  return number;
}

// Whether both load some value at the same place for each point, and at another for every other.
bool read_alike(const NestPart& a, const NestPart& b) {
  const auto is_large = [&](const NestAccess& access) {
    for (size_t k = 0; k < access.strides.size(); ++k) {
      if (access.strides[k] == 0 && a.nest.sizes[k] > 1) return false;
    }
    return true;
  };
  const auto loaded_by = [](const NestPart& part, const NestNode& n) {
    return part.loads[static_cast<size_t>(n.access.operand)];
  };
  return std::ranges::any_of(a.nest.nodes, [&](const NestNode& n) {
    return n.op == NestOp::kLoad && is_large(n.access) && std::ranges::any_of(b.nest.nodes, [&](const NestNode& m) {
             return m.op == NestOp::kLoad && loaded_by(a, n) == loaded_by(b, m) &&
                    n.access.strides == m.access.strides && n.access.offset == m.access.offset;
           });
  });
}

}  // namespace

bool join(NestPart& part, const NestPart& other, size_t most) {
  if (part.nest.sizes != other.nest.sizes || part.column != other.column || !part.folds.empty() ||
      !other.folds.empty() || has_reductions(part.nest) || has_reductions(other.nest) || !read_alike(part, other))
    return false;
  std::vector<ValueId> loads = part.loads;
  std::vector<int> operands;  // those of `other`
  for (ValueId v : other.loads) operands.push_back(number_of(v, loads));
  if (loads.size() + part.stores.size() + other.stores.size() > most) return false;
  part.loads = std::move(loads);
  std::vector<int> now;
  for (NestNode n : other.nest.nodes) {
    for (int* operand : {&n.scalar.a, &n.scalar.b, &n.scalar.c}) *operand = *operand >= 0 ? now[*operand] : -1;
    if (n.op == NestOp::kLoad) n.access.operand = operands[n.access.operand];
    now.push_back(number_of(n, part.nest.nodes));
  }
  for (NamedStore s : other.stores) {
    s.store.node = now[s.store.node];
    // What has one element a row is the same in every box of the row.
    const bool there = std::ranges::any_of(part.stores, [&](const NamedStore& t) {
      return t.value == s.value && t.store.node == s.store.node && t.store.access.strides == s.store.access.strides &&
             t.store.access.offset == s.store.access.offset;
    });
    if (!there) part.stores.push_back(std::move(s));
  }
  return true;
}

void assemble(const CodeGraph& code, NestPart part, GroupCode& into) {
  BuiltNest built{std::move(part.nest), {}};
  const std::vector<NamedFold>& folds = part.folds;
  LoopNest& n = built.nest;
  n.strict = code.strict;
  n.inputs = static_cast<int>(part.loads.size());
  auto operand = [&](ValueId type_of, NestOperand where) {
    built.operands.push_back(where);
    n.operands.push_back(code.graph.type(type_of).dtype);
    return static_cast<int>(built.operands.size()) - 1;
  };
  for (ValueId v : part.loads) operand(v, {v, -1});
  for (const NamedStore& s : part.stores) {
    n.stores.push_back(s.store);
    n.stores.back().access.operand = operand(s.value, {code.storage(s.value), -1});
  }
  int first = static_cast<int>(into.temporaries.size());
  for (size_t k = 0; k < folds.size(); ++k) {
    n.folds.push_back(folds[k].fold);
    n.folds.back().access.operand = operand(folds[k].value, {kNoValue, first + static_cast<int>(k)});
  }
  remove_unused(n);
  schedule(n, part.column, code.fold_units, code.on_gpu);
  keep_results(n);
  int64_t parts = units(n);
  into.nests.push_back(std::move(built));
  // Folds of one length are combined in one sweep; in strict nests those of one type.
  std::map<std::pair<int64_t, DType>, std::vector<int>> by_extent;
  for (size_t k = 0; k < folds.size(); ++k) {
    const DType type = code.graph.type(folds[k].value).dtype;
    into.temporaries.push_back({type, {parts, folds[k].fold.extent}});
    by_extent[{folds[k].fold.extent, code.strict ? type : DType::kInvalid}].push_back(static_cast<int>(k));
  }
  for (const auto& [of, which] : by_extent) into.nests.push_back(combine(code, folds, which, parts, of.first, first));
}

std::optional<GroupCode> empty_group(const GroupView& group, std::string& why) {
  GroupCode code;
  for (ValueId v : group.outputs) {
    const TensorType& type = group.code.graph.type(v);
    if (elements(type.shape) == 0) continue;
    if (!group.is_single() || group.code.roles[group.nodes[0]] != NodeRole::kReduction) {
      why = "a reduction of nothing";
      return std::nullopt;
    }
    ReduceKind kind = reduce_kind_of(*group.code.graph.nodes[group.nodes[0]].op);
    BuiltNest built;
    built.nest.sizes = {elements(type.shape)};
    built.nest.operands = {type.dtype};
    built.nest.nodes.push_back({.op = NestOp::kScalar, .scalar = reduced_nothing(kind, type.dtype)});
    built.nest.stores.push_back({0, {0, {1}, 0}});
    built.operands = {{group.code.storage(v), -1}};
    built.nest.strict = group.code.strict;
    schedule(built.nest, {false}, group.code.fold_units, group.code.on_gpu);
    code.nests.push_back(std::move(built));
  }
  return code;
}

}  // namespace partita
