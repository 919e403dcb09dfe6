// Faults of generated code, as they would look in a bundle: of the nests that kernels are made from, and of the steps
// that run them. What is changed is drawn blindly, and may happen to compute the same.
#include <algorithm>
#include <cmath>
#include <set>

#include "tests/tools/verify/verify_mutations.h"

namespace partita {
namespace {

using runtime::Step;
using runtime::StepKind;
using verifier::Bundle;

int64_t draw(std::mt19937& rng, int64_t end) { return static_cast<int64_t>(rng() % static_cast<uint64_t>(end)); }

template <typename T>
T* pick(std::vector<T*> all, std::mt19937& rng) {
  return all.empty() ? nullptr : all[static_cast<size_t>(draw(rng, static_cast<int64_t>(all.size())))];
}

std::vector<Step*> kernel_steps(Bundle& b) {
  std::vector<Step*> steps;
  for (auto& segment : b.programs[0].program.segments) {
    for (Step& s : segment.steps) {
      if (s.kind == StepKind::kKernel) steps.push_back(&s);
    }
  }
  return steps;
}

// Of the first program, one that some step runs.
LoopNest* any_nest(Bundle& b, std::mt19937& rng) {
  std::set<std::string> run;
  for (const Step* s : kernel_steps(b)) run.insert(s->name);
  std::vector<LoopNest*> nests;
  for (KernelNest& k : b.programs[0].nests.kernels) {
    if (run.count(k.name)) nests.push_back(&k.nest);
  }
  return pick(std::move(nests), rng);
}

bool alike(const runtime::Operand& a, const runtime::Operand& b) { return a.dtype == b.dtype && a.shape == b.shape; }

// Of one type and shape, in the step and in what it claims.
bool swapped_operands(Bundle& b, std::mt19937& rng) {
  Step* s = pick(kernel_steps(b), rng);
  if (s == nullptr || s->inputs < 2) return false;
  auto& values = b.programs[0].claims[s->id].values;
  const auto i = static_cast<size_t>(draw(rng, s->inputs)), j = static_cast<size_t>(draw(rng, s->inputs));
  if (values[i] == values[j] || !alike(s->operands[i], s->operands[j])) return false;
  std::swap(s->operands[i], s->operands[j]);
  std::swap(values[i], values[j]);
  return true;
}

// Another value of the same type that lies where it is read from.
bool another_operand(Bundle& b, std::mt19937& rng) {
  Step *s = pick(kernel_steps(b), rng), *other = pick(kernel_steps(b), rng);
  if (s == nullptr || s->inputs == 0 || other->inputs == 0) return false;
  const auto i = static_cast<size_t>(draw(rng, s->inputs)), j = static_cast<size_t>(draw(rng, other->inputs));
  auto& claims = b.programs[0].claims;
  if (claims[s->id].values[i] == claims[other->id].values[j] || !alike(s->operands[i], other->operands[j]))
    return false;
  s->operands[i] = other->operands[j];
  claims[s->id].values[i] = claims[other->id].values[j];
  return true;
}

bool another_kernel(Bundle& b, std::mt19937& rng) {
  Step *s = pick(kernel_steps(b), rng), *other = pick(kernel_steps(b), rng);
  if (s == nullptr || s->name == other->name || s->inputs != other->inputs ||
      !std::equal(s->operands.begin(), s->operands.end(), other->operands.begin(), other->operands.end(),
                  [](const auto& x, const auto& y) { return x.dtype == y.dtype; }))
    return false;
  s->name = other->name;
  if (rng() % 2 == 0) s->units = other->units;
  return true;
}

bool other_units(Bundle& b, std::mt19937& rng) {
  Step* s = pick(kernel_steps(b), rng);
  if (s == nullptr) return false;
  const int64_t others[] = {0, s->units - 1, s->units + 1, s->units + 100000};
  s->units = others[draw(rng, 4)];
  return true;
}

bool other_constant(Bundle& b, std::mt19937& rng) {
  LoopNest* nest = any_nest(b, rng);
  std::vector<NestNode*> constants;
  for (NestNode& n : nest->nodes) {
    if (n.op == NestOp::kScalar && n.scalar.op == ScalarOp::kConstant) constants.push_back(&n);
  }
  NestNode* n = pick(std::move(constants), rng);
  if (n == nullptr) return false;
  if (is_float(n->scalar.type)) {
    n->scalar.f = n->scalar.type == DType::kF64 ? std::nextafter(n->scalar.f, 1e300)
                                                : std::nextafter(static_cast<float>(n->scalar.f), 1e30f);
  } else {
    n->scalar.i += 1;
  }
  return true;
}

NestAccess* any_access(LoopNest& nest, std::mt19937& rng) {
  std::vector<NestAccess*> all;
  for (NestNode& n : nest.nodes) {
    if (n.op == NestOp::kLoad || n.op == NestOp::kIndex) all.push_back(&n.access);
  }
  for (NestStore& s : nest.stores) all.push_back(&s.access);
  for (NestFold& f : nest.folds) all.push_back(&f.access);
  return pick(std::move(all), rng);
}

bool other_stride(Bundle& b, std::mt19937& rng) {
  LoopNest& nest = *any_nest(b, rng);
  NestAccess& a = *any_access(nest, rng);
  if (a.strides.empty()) return false;
  const auto k = static_cast<size_t>(draw(rng, static_cast<int64_t>(a.strides.size())));
  a.strides[k] = rng() % 2 == 0 && a.strides[k] != 0 ? 0 : a.strides[k] + (rng() % 2 == 0 ? 1 : -1);
  return nest.sizes[k] > 1;
}

bool other_offset(Bundle& b, std::mt19937& rng) {
  any_access(*any_nest(b, rng), rng)->offset += rng() % 2 == 0 ? 1 : -1;
  return true;
}

bool other_operand_of_access(Bundle& b, std::mt19937& rng) {
  LoopNest& nest = *any_nest(b, rng);
  NestAccess& a = *any_access(nest, rng);
  if (a.operand < 0) return false;
  const int other = static_cast<int>(draw(rng, static_cast<int64_t>(nest.operands.size())));
  if (other == a.operand || nest.operands[static_cast<size_t>(other)] != nest.operands[static_cast<size_t>(a.operand)])
    return false;
  a.operand = other;
  return true;
}

bool other_loop(Bundle& b, std::mt19937& rng) {
  LoopNest& nest = *any_nest(b, rng);
  if (nest.sizes.empty()) return false;
  const auto k = static_cast<size_t>(draw(rng, static_cast<int64_t>(nest.sizes.size())));
  nest.sizes[k] += rng() % 2 == 0 ? 1 : -1;
  return nest.sizes[k] > 0;
}

bool other_columns(Bundle& b, std::mt19937& rng) {
  LoopNest& nest = *any_nest(b, rng);
  nest.columns += rng() % 2 == 0 ? 1 : -1;
  return nest.columns >= 0 && nest.rows() >= 0;
}

bool other_reduction(Bundle& b, std::mt19937& rng) {
  LoopNest& nest = *any_nest(b, rng);
  std::vector<ReduceKind*> kinds;
  for (NestNode& n : nest.nodes) {
    if (n.op == NestOp::kReduce) kinds.push_back(&n.reduce);
  }
  for (NestFold& f : nest.folds) kinds.push_back(&f.reduce);
  ReduceKind* kind = pick(std::move(kinds), rng);
  if (kind == nullptr) return false;
  *kind = static_cast<ReduceKind>((static_cast<int>(*kind) + 1 + draw(rng, 3)) % 4);
  return true;
}

bool other_extent(Bundle& b, std::mt19937& rng) {
  LoopNest& nest = *any_nest(b, rng);
  if (nest.folds.empty()) return false;
  nest.folds[0].extent += rng() % 2 == 0 ? 1 : -1;
  return true;
}

bool other_operation(Bundle& b, std::mt19937& rng) {
  static constexpr ScalarOp kSiblings[][2] = {{ScalarOp::kAdd, ScalarOp::kSub},  {ScalarOp::kMul, ScalarOp::kDiv},
                                              {ScalarOp::kMax, ScalarOp::kMin},  {ScalarOp::kExp, ScalarOp::kTanh},
                                              {ScalarOp::kSqrt, ScalarOp::kAbs}, {ScalarOp::kLt, ScalarOp::kLe},
                                              {ScalarOp::kNeg, ScalarOp::kAbs}};
  LoopNest& nest = *any_nest(b, rng);
  std::vector<std::pair<NestNode*, ScalarOp>> found;
  for (NestNode& n : nest.nodes) {
    for (const auto& [x, y] : kSiblings) {
      if (n.op == NestOp::kScalar && n.scalar.op == x) found.emplace_back(&n, y);
      if (n.op == NestOp::kScalar && n.scalar.op == y) found.emplace_back(&n, x);
    }
  }
  if (found.empty()) return false;
  auto [n, op] = found[static_cast<size_t>(draw(rng, static_cast<int64_t>(found.size())))];
  n->scalar.op = op;
  return true;
}

// A node of the same type before it.
bool other_argument(Bundle& b, std::mt19937& rng) {
  LoopNest& nest = *any_nest(b, rng);
  const auto k = static_cast<size_t>(draw(rng, static_cast<int64_t>(nest.nodes.size())));
  int* arguments[] = {&nest.nodes[k].scalar.a, &nest.nodes[k].scalar.b, &nest.nodes[k].scalar.c};
  int& argument = *arguments[draw(rng, 3)];
  if (argument < 0) return false;
  const int other = static_cast<int>(draw(rng, static_cast<int64_t>(k)));
  if (other == argument ||
      nest.nodes[static_cast<size_t>(other)].scalar.type != nest.nodes[static_cast<size_t>(argument)].scalar.type)
    return false;
  argument = other;
  return true;
}

bool swapped_arguments(Bundle& b, std::mt19937& rng) {
  LoopNest& nest = *any_nest(b, rng);
  NestNode& n = nest.nodes[static_cast<size_t>(draw(rng, static_cast<int64_t>(nest.nodes.size())))];
  if (n.scalar.b < 0 || n.scalar.a == n.scalar.b || n.scalar.c >= 0) return false;
  std::swap(n.scalar.a, n.scalar.b);
  return true;
}

bool exchanged_stores(Bundle& b, std::mt19937& rng) {
  LoopNest& nest = *any_nest(b, rng);
  if (nest.stores.size() < 2) return false;
  const auto i = static_cast<size_t>(draw(rng, static_cast<int64_t>(nest.stores.size() - 1)));
  if (nest.stores[i].node == nest.stores[i + 1].node) return false;
  std::swap(nest.stores[i].node, nest.stores[i + 1].node);
  return true;
}

bool missing_store(Bundle& b, std::mt19937& rng) {
  LoopNest& nest = *any_nest(b, rng);
  if (nest.stores.size() < 2) return false;
  nest.stores.erase(nest.stores.begin() + draw(rng, static_cast<int64_t>(nest.stores.size())));
  return true;
}

bool kept_elsewhere(Bundle& b, std::mt19937& rng) {
  LoopNest& nest = *any_nest(b, rng);
  if (nest.stores.empty()) return false;
  NestStore kept = nest.stores[static_cast<size_t>(draw(rng, static_cast<int64_t>(nest.stores.size())))];
  kept.node = static_cast<int>(draw(rng, static_cast<int64_t>(nest.nodes.size())));
  nest.kept.push_back(std::move(kept));
  return true;
}

bool other_unit_rows(Bundle& b, std::mt19937& rng) {
  LoopNest& nest = *any_nest(b, rng);
  nest.rows_per_unit += rng() % 2 == 0 || nest.rows_per_unit == 1 ? 1 : -1;
  return true;
}

// Lanes along other loops add up in another order, which is the same sum but for rounding.
bool other_schedule(Bundle& b, std::mt19937& rng) {
  LoopNest& nest = *any_nest(b, rng);
  if (rng() % 3 == 0) {
    if (std::any_of(nest.nodes.begin(), nest.nodes.end(), [](const auto& n) { return n.op == NestOp::kReduce; }))
      return false;
    nest.lane_is_row = !nest.lane_is_row;
  } else if (rng() % 2 == 0) {
    nest.tile = nest.tile < 0 ? 0 : -1;
  } else {
    nest.clip = nest.clip > 0 ? nest.clip - 1 : 1;
  }
  return true;
}

constexpr Mutation kMutations[] = {
    {"swapped operands", swapped_operands},
    {"another operand", another_operand},
    {"another kernel", another_kernel},
    {"other units", other_units},
    {"other constant", other_constant},
    {"other stride", other_stride},
    {"other offset", other_offset},
    {"other operand of an access", other_operand_of_access},
    {"other loop", other_loop},
    {"other columns", other_columns},
    {"other reduction", other_reduction},
    {"other extent", other_extent},
    {"other operation", other_operation},
    {"other argument", other_argument},
    {"swapped arguments", swapped_arguments},
    {"exchanged stores", exchanged_stores},
    {"missing store", missing_store},
    {"kept elsewhere", kept_elsewhere},
    {"other rows of a unit", other_unit_rows},
    {"other schedule", other_schedule},
};

}  // namespace

std::span<const Mutation> kernel_mutations() { return kMutations; }

}  // namespace partita
