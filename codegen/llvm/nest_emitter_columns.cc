// One pass over the columns of a row.
#include "codegen/llvm/nest_emitter_impl.h"

#include <algorithm>

namespace partita {

using llvm::Value;

namespace {

constexpr int64_t kCascade = 64;             // terms that one accumulator sums before it is added to the next level's
constexpr unsigned kStrictAccumulators = 2;  // of a reduction in a strict nest, whatever its pass computes

}  // namespace

void NestEmitter::run_pass(std::vector<Point>& rows, const std::vector<int>& reductions, const std::vector<int>& stores,
                           const std::vector<int>& folds, int level_of_pass) {
  Work work{reductions, stores, folds};
  pass_ = level_of_pass;
  // What does not vary along the columns is computed before them.
  std::vector<bool> needed(nest_.nodes.size(), false);
  for (int r : reductions) needed[nest_.nodes[r].scalar.a] = true;
  for (int s : stores) needed[nest_.stores[s].node] = true;
  for (int f : folds) needed[nest_.folds[f].node] = true;
  int cost = 0;
  for (size_t k = nest_.nodes.size(); k-- > 0;) {
    if (!needed[k] || nest_.nodes[k].op == NestOp::kReduce) continue;
    cost += along_columns(static_cast<int>(k));
    for (int operand : {nest_.nodes[k].scalar.a, nest_.nodes[k].scalar.b, nest_.nodes[k].scalar.c}) {
      if (operand >= 0) needed[operand] = true;
    }
  }
  for (size_t k = 0; k < nest_.nodes.size(); ++k) {
    for (Point& row : rows) {
      if (needed[k] && !along_columns(static_cast<int>(k))) value(static_cast<int>(k), row);
    }
  }
  if (!reductions.empty() && !nest_.lane_is_row)
    work.unroll = nest_.strict ? kStrictAccumulators : cost <= 8 ? 4 : cost <= 24 ? 2 : 1;
  if (nest_.lane_is_row) work.unroll = static_cast<unsigned>(rows.size());
  std::vector<Value*> sums;
  for (int r : reductions) {
    const NestNode& node = nest_.nodes[r];
    unsigned lanes = nest_.columns == 0 ? 1 : nest_.lane_is_row ? (along_lane(node.scalar.a) ? vector_ : 1) : vector_;
    for (unsigned u = 0; u < work.unroll; ++u) sums.push_back(math_.identity(node.reduce, node.scalar.type, lanes));
  }
  sums = columns(rows, rows_, work, std::move(sums));
  for (size_t k = 0; k < reductions.size(); ++k) {
    const NestNode& node = nest_.nodes[reductions[k]];
    std::vector<Value*> parts(sums.begin() + static_cast<std::ptrdiff_t>(k * work.unroll),
                              sums.begin() + static_cast<std::ptrdiff_t>((k + 1) * work.unroll));
    if (nest_.lane_is_row) {
      for (size_t u = 0; u < rows.size(); ++u) rows[u].known[reductions[k]] = rounded(node.scalar.type, parts[u]);
      continue;
    }
    while (parts.size() > 1) {
      std::vector<Value*> half;
      for (size_t j = 0; j < parts.size(); j += 2)
        half.push_back(math_.combine(node.reduce, node.scalar.type, parts[j], parts[j + 1]));
      parts = std::move(half);
    }
    rows[0].known[reductions[k]] =
        rounded(node.scalar.type, nest_.columns == 0 ? parts[0] : across_lanes(node, parts[0]));
  }
}

Value* NestEmitter::across_lanes(const NestNode& node, Value* v) {
  for (unsigned width = vector_ / 2; width >= 1; width /= 2) {
    std::vector<int> low, high;
    for (unsigned k = 0; k < width; ++k) {
      low.push_back(static_cast<int>(k));
      high.push_back(static_cast<int>(k + width));
    }
    v = math_.combine(node.reduce, node.scalar.type, b_.CreateShuffleVector(v, low), b_.CreateShuffleVector(v, high));
  }
  return b_.CreateExtractElement(v, uint64_t{0});
}

// Loops over column loops from `loop_index` on; returns the accumulators.
std::vector<Value*> NestEmitter::columns(std::vector<Point>& rows, int loop_index, const Work& work,
                                         std::vector<Value*> sums) {
  int last = static_cast<int>(nest_.sizes.size()) - 1;
  if (loop_index > last) return elements(rows, work, std::move(sums));  // no columns: a single one
  if (loop_index == lane_ && !nest_.lane_is_row) return lane_columns(rows[0], loop_index, work, std::move(sums));
  auto once = [&](Value* at, std::vector<Value*> now) {
    for (Point& row : rows) row.index[loop_index] = at;
    if (loop_index == last) return elements(rows, work, std::move(now));
    // Each inner run starts from nothing and is added as a whole: errors grow with the number of runs, not of terms.
    return add_run(work, now,
                   [&](std::vector<Value*> fresh) { return columns(rows, loop_index + 1, work, std::move(fresh)); });
  };
  return cascaded(n(0), n(nest_.sizes[loop_index]), 1, work, std::move(sums), once);
}

std::vector<Value*> NestEmitter::elements(std::vector<Point>& rows, const Work& work, std::vector<Value*> sums) {
  for (size_t u = 0; u < rows.size(); ++u) sums = element(rows[u], static_cast<unsigned>(u), work, std::move(sums));
  return sums;
}

std::vector<Value*> NestEmitter::add_run(const Work& work, const std::vector<Value*>& now,
                                         const std::function<std::vector<Value*>(std::vector<Value*>)>& run) {
  if (work.reductions.empty()) return run({});
  std::vector<Value*> fresh;
  for (size_t k = 0; k < now.size(); ++k) {
    const NestNode& node = nest_.nodes[work.reductions[k / work.unroll]];
    auto* type = llvm::dyn_cast<llvm::FixedVectorType>(now[k]->getType());
    fresh.push_back(math_.identity(node.reduce, node.scalar.type, type == nullptr ? 1 : type->getNumElements()));
  }
  std::vector<Value*> part = run(fresh), total;
  for (size_t k = 0; k < now.size(); ++k) {
    const NestNode& node = nest_.nodes[work.reductions[k / work.unroll]];
    total.push_back(math_.combine(node.reduce, node.scalar.type, now[k], part[k]));
  }
  return total;
}

// A loop whose accumulators are emptied into a second level every kCascade steps, where it is long.
std::vector<Value*> NestEmitter::cascaded(Value* begin, Value* end, int64_t step, const Work& work,
                                          std::vector<Value*> sums, const Body& body) {
  bool floats = std::any_of(work.reductions.begin(), work.reductions.end(),
                            [&](int r) { return is_float(nest_.nodes[r].scalar.type); });
  int64_t high = 0;
  if (!floats || (is_known(end, high) && high <= 2 * kCascade * step))
    return loop(begin, end, step, std::move(sums), body);
  return loop(begin, end, step * kCascade, std::move(sums), [&](Value* at, std::vector<Value*> now) {
    Value* stop = minimum(b_.CreateAdd(at, n(step * kCascade)), end);
    return add_run(work, now, [&](std::vector<Value*> fresh) { return loop(at, stop, step, std::move(fresh), body); });
  });
}

// The innermost column loop: unrolled vectors, single vectors, and a masked one.
std::vector<Value*> NestEmitter::lane_columns(Point& row, int loop_index, const Work& work, std::vector<Value*> sums) {
  int64_t size = nest_.sizes[loop_index];
  Value* end = n(size);
  if (nest_.clip > 0) end = minimum(end, b_.CreateSub(n(nest_.clip), b_.CreateMul(row.index[rows_ - 1], n(size))));
  int64_t stride = static_cast<int64_t>(vector_) * work.unroll;
  auto round_down = [&](int64_t to) { return nest_.clip > 0 ? b_.CreateAnd(end, n(-to)) : n(size / to * to); };
  Value* unrolled = round_down(stride);
  Value* single = round_down(vector_);
  sums = cascaded(n(first_column_), unrolled, stride, work, std::move(sums), [&](Value* at, std::vector<Value*> now) {
    for (unsigned u = 0; u < work.unroll; ++u)
      now = vector_at(row, loop_index, b_.CreateAdd(at, n(static_cast<int64_t>(u) * vector_)), nullptr, u, work,
                      std::move(now));
    return now;
  });
  if (work.unroll > 1) {
    sums = loop(unrolled, single, vector_, std::move(sums), [&](Value* at, std::vector<Value*> now) {
      return vector_at(row, loop_index, at, nullptr, 0, work, std::move(now));
    });
  }
  if (nest_.clip == 0 && size % vector_ == 0) return sums;
  return loop(single, end, vector_, std::move(sums), [&](Value* at, std::vector<Value*> now) {
    return vector_at(row, loop_index, at, lanes_below(b_.CreateSub(end, at)), 0, work, std::move(now));
  });
}

std::vector<Value*> NestEmitter::vector_at(Point& row, int loop_index, Value* at, Value* mask, unsigned u,
                                           const Work& work, std::vector<Value*> sums) {
  Point point = row;
  point.index[loop_index] = at;
  point.lanes = vector_;
  point.mask = mask;
  return element(point, u, work, std::move(sums));
}

// One point (or vector of points) of a pass: all values, then accumulators, then stores.
std::vector<Value*> NestEmitter::element(const Point& point, unsigned u, const Work& work, std::vector<Value*> sums) {
  Point here = point;
  for (size_t k = 0; k < work.reductions.size(); ++k) {
    const NestNode& node = nest_.nodes[work.reductions[k]];
    Value*& sum = sums[k * work.unroll + u];
    Value* v = value(node.scalar.a, here);
    auto* type = llvm::dyn_cast<llvm::FixedVectorType>(sum->getType());
    unsigned lanes = type == nullptr ? 1 : type->getNumElements();
    if (lanes > 1 && !v->getType()->isVectorTy()) v = b_.CreateVectorSplat(lanes, v);
    Value* next = math_.combine(node.reduce, node.scalar.type, sum, v);
    sum = here.mask != nullptr && lanes > 1 && !nest_.lane_is_row ? b_.CreateSelect(here.mask, next, sum) : next;
  }
  for (int s : work.stores) value(nest_.stores[s].node, here);
  for (int f : work.folds) fold(nest_.folds[f], here);
  for (int s : work.stores) store(nest_.stores[s], here);
  return sums;
}

}  // namespace partita
