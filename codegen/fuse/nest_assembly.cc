#include "codegen/fuse/nest_assembly.h"

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
  schedule(nest, {true, false}, code.fold_units);
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

}  // namespace

void assemble(const CodeGraph& code, LoopNest nest, const std::vector<ValueId>& loads, const std::vector<bool>& column,
              const std::vector<NamedStore>& stores, const std::vector<NamedFold>& folds, GroupCode& into) {
  BuiltNest built{std::move(nest), {}};
  LoopNest& n = built.nest;
  n.strict = code.strict;
  n.inputs = static_cast<int>(loads.size());
  auto operand = [&](ValueId type_of, NestOperand where) {
    built.operands.push_back(where);
    n.operands.push_back(code.graph.type(type_of).dtype);
    return static_cast<int>(built.operands.size()) - 1;
  };
  for (ValueId v : loads) operand(v, {v, -1});
  for (const NamedStore& s : stores) {
    n.stores.push_back(s.store);
    n.stores.back().access.operand = operand(s.value, {code.storage(s.value), -1});
  }
  int first = static_cast<int>(into.temporaries.size());
  for (size_t k = 0; k < folds.size(); ++k) {
    n.folds.push_back(folds[k].fold);
    n.folds.back().access.operand = operand(folds[k].value, {kNoValue, first + static_cast<int>(k)});
  }
  remove_unused(n);
  schedule(n, column, code.fold_units);
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
    schedule(built.nest, {false}, group.code.fold_units);
    code.nests.push_back(std::move(built));
  }
  return code;
}

}  // namespace partita
