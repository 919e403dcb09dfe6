#include "tools/verify/kernels/whole_nest.h"

#include <algorithm>

namespace partita::verifier {
namespace {

template <typename F>
void each_strides(LoopNest& nest, F f) {
  for (NestNode& n : nest.nodes) {
    if (n.op == NestOp::kLoad || n.op == NestOp::kIndex) f(n.access.strides);
  }
  for (NestStore& s : nest.stores) f(s.access.strides);
  for (NestStore& s : nest.kept) f(s.access.strides);
  for (NestFold& s : nest.folds) f(s.access.strides);
}

}  // namespace

bool has_cut_columns(const LoopNest& nest) {
  if (nest.columns != 1 || nest.rows() == 0) return false;
  const size_t column = nest.sizes.size() - 1;
  bool whole = true;
  const auto check = [&](const NestAccess& a) {
    whole = whole && a.strides[column - 1] == a.strides[column] * nest.sizes[column];
  };
  const auto is_reduction = [&](int node) {
    return node >= 0 && nest.nodes[static_cast<size_t>(node)].op == NestOp::kReduce;
  };
  for (const NestNode& n : nest.nodes) {
    if (n.op == NestOp::kLoad || n.op == NestOp::kIndex) check(n.access);
    for (int operand : {n.scalar.a, n.scalar.b, n.scalar.c}) whole = whole && !is_reduction(operand);
  }
  for (const NestStore& s : nest.stores) {
    check(s.access);
    whole = whole && !is_reduction(s.node);
  }
  for (const NestFold& f : nest.folds) whole = whole && is_reduction(f.node);
  return whole;
}

LoopNest with_whole_columns(LoopNest nest) {
  if (!has_cut_columns(nest)) return nest;
  const auto row = static_cast<std::ptrdiff_t>(nest.rows()) - 1;
  nest.sizes.back() = nest.clip > 0 ? nest.clip : nest.sizes.back() * nest.sizes[static_cast<size_t>(row)];
  nest.clip = 0;
  nest.sizes.erase(nest.sizes.begin() + row);
  each_strides(nest, [&](std::vector<int64_t>& s) { s.erase(s.begin() + row); });
  return nest;
}

void split_loop(LoopNest& nest, std::vector<Affine>& numbers, const LoopSplit& split) {
  const auto k = static_cast<std::ptrdiff_t>(split.loop);
  const bool column = split.loop >= nest.rows();
  nest.sizes[static_cast<size_t>(k)] /= split.inner;
  nest.sizes.insert(nest.sizes.begin() + k + 1, split.inner);
  const auto divide = [&](std::vector<int64_t>& s) {
    const int64_t step = s[static_cast<size_t>(k)];
    s[static_cast<size_t>(k)] = step * split.inner;
    s.insert(s.begin() + k + 1, step);
  };
  each_strides(nest, divide);
  for (Affine& a : numbers) divide(a.coefficients);
  nest.columns += column;
}

Affine point_number(const LoopNest& nest, int begin, int end) {
  Affine at = constant_index(0, nest.sizes.size());
  int64_t stride = 1;
  for (int k = end; k-- > begin;) {
    at.coefficients[static_cast<size_t>(k)] = stride;
    stride *= nest.sizes[static_cast<size_t>(k)];
  }
  return at;
}

bool is_wide(const LoopNest& nest, const NestAccess& access) {
  return std::any_of(access.strides.begin() + nest.rows(), access.strides.end(), [](int64_t s) { return s != 0; });
}

WrittenPart part_of(const LoopNest& nest, const NestStore& store) {
  WrittenPart part{store.access.offset, {}};
  const size_t end = is_wide(nest, store.access) ? nest.sizes.size() : static_cast<size_t>(nest.rows());
  for (size_t k = 0; k < end; ++k) part.loops.push_back({nest.sizes[k], store.access.strides[k]});
  return part;
}

WrittenPart part_of(const LoopNest& nest, const NestFold& fold) {
  WrittenPart part{fold.access.offset, {}};
  if (nest.nodes[static_cast<size_t>(fold.node)].op == NestOp::kReduce) return part;
  for (size_t k = static_cast<size_t>(nest.rows()); k < nest.sizes.size(); ++k)
    part.loops.push_back({nest.sizes[k], fold.access.strides[k]});
  return part;
}

}  // namespace partita::verifier
