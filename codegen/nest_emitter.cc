#include "codegen/nest_emitter.h"

#include <algorithm>
#include <functional>

#include "base/status.h"
#include "codegen/nest_schedule.h"
#include "codegen/scalar_math.h"
#include "llvm/IR/IRBuilder.h"

namespace partita {
namespace {

using llvm::Value;

constexpr int64_t kCascade = 64;  // terms that one accumulator sums before it is added to the next level's

// The loop indices at a point, the lanes that are inside, and the values known there.
struct Point {
  std::vector<Value*> index;
  unsigned lanes = 1;
  Value* mask = nullptr;  // lanes that exist; nullptr: all
  std::vector<Value*> known;
};

class Emitter {
 public:
  Emitter(llvm::Module& module, const LoopNest& nest, const VectorTarget& target)
      : context_(module.getContext()),
        module_(module),
        b_(context_),
        math_(b_, module),
        nest_(nest),
        varies_(variation(nest)),
        level_(levels(nest)) {
    bool wide = false;
    int64_t narrow = 8;
    for (const NestNode& n : nest.nodes) {
      wide = wide || n.scalar.type == DType::kF64;
      narrow = std::min(narrow, std::max<int64_t>(4, dtype_size(n.scalar.type)));
    }
    vector_ = static_cast<unsigned>(target.bytes / (wide ? 8 : narrow));
    rows_ = nest.rows();
    lane_ = nest.sizes.empty() ? -1 : nest.lane_is_row ? rows_ - 1 : static_cast<int>(nest.sizes.size()) - 1;
    if (!nest.lane_is_row && nest.columns == 0) lane_ = -1;
    for (int l : level_) passes_ = std::max(passes_, l + 1);
  }

  llvm::Function* emit(const std::string& name) {
    llvm::Type* i64 = b_.getInt64Ty();
    function_ = llvm::Function::Create(llvm::FunctionType::get(b_.getVoidTy(), {b_.getPtrTy(), i64, i64}, false),
                                       llvm::Function::ExternalLinkage, name, module_);
    function_->setDoesNotThrow();
    b_.SetInsertPoint(llvm::BasicBlock::Create(context_, "entry", function_));
    for (size_t k = 0; k < nest_.operands.size(); ++k) {
      buffers_.push_back(
          b_.CreateLoad(b_.getPtrTy(), b_.CreateConstInBoundsGEP1_64(b_.getPtrTy(), function_->getArg(0), k)));
    }
    if (nest_.folds.empty()) {
      Value* first = b_.CreateMul(function_->getArg(1), n(nest_.rows_per_unit));
      Value* last = minimum(b_.CreateMul(function_->getArg(2), n(nest_.rows_per_unit)), n(nest_.items()));
      loop(first, last, 1, {},
           [&](Value* item, std::vector<Value*>) { return item_body(item), std::vector<Value*>{}; });
    } else {
      loop(function_->getArg(1), function_->getArg(2), 1, {},
           [&](Value* unit, std::vector<Value*>) { return unit_with_folds(unit), std::vector<Value*>{}; });
    }
    b_.CreateRetVoid();
    return function_;
  }

 private:
  Value* n(int64_t v) { return b_.getInt64(static_cast<uint64_t>(v)); }
  Value* minimum(Value* a, Value* b) { return b_.CreateSelect(b_.CreateICmpSLT(a, b), a, b); }
  static bool is_known(Value* v, int64_t& value) {
    auto* c = llvm::dyn_cast<llvm::ConstantInt>(v);
    if (c != nullptr) value = c->getSExtValue();
    return c != nullptr;
  }

  // for (i = begin; i < end; i += step) carried = body(i, carried)
  using Body = std::function<std::vector<Value*>(Value*, std::vector<Value*>)>;
  std::vector<Value*> loop(Value* begin, Value* end, int64_t step, std::vector<Value*> carried, const Body& body) {
    int64_t low, high;
    if (is_known(begin, low) && is_known(end, high)) {
      if (low >= high) return carried;
      if (low + step >= high) return body(begin, std::move(carried));
    }
    llvm::BasicBlock* before = b_.GetInsertBlock();
    llvm::BasicBlock* head = llvm::BasicBlock::Create(context_, "loop", function_);
    llvm::BasicBlock* inside = llvm::BasicBlock::Create(context_, "body", function_);
    llvm::BasicBlock* after = llvm::BasicBlock::Create(context_, "after", function_);
    b_.CreateBr(head);
    b_.SetInsertPoint(head);
    llvm::PHINode* i = b_.CreatePHI(b_.getInt64Ty(), 2);
    i->addIncoming(begin, before);
    std::vector<llvm::PHINode*> phis;
    for (Value* v : carried) {
      phis.push_back(b_.CreatePHI(v->getType(), 2));
      phis.back()->addIncoming(v, before);
    }
    b_.CreateCondBr(b_.CreateICmpSLT(i, end), inside, after);
    b_.SetInsertPoint(inside);
    std::vector<Value*> next = body(i, std::vector<Value*>(phis.begin(), phis.end()));
    llvm::BasicBlock* tail = b_.GetInsertBlock();
    i->addIncoming(b_.CreateAdd(i, n(step)), tail);
    for (size_t k = 0; k < phis.size(); ++k) phis[k]->addIncoming(next[k], tail);
    b_.CreateBr(head);
    b_.SetInsertPoint(after);
    return std::vector<Value*>(phis.begin(), phis.end());
  }

  // ---- Rows.

  // Indices of the row loops at an item; along a loop in blocks, the number of the block.
  std::vector<Value*> decode(Value* item) {
    std::vector<Value*> index(nest_.sizes.size(), nullptr);
    Value* rest = item;
    for (int k = rows_ - 1; k >= 0; --k) {
      int64_t count = nest_.blocks(k);
      index[k] = k == 0 ? rest : count == 1 ? n(0) : b_.CreateURem(rest, n(count));
      if (k > 0) rest = count == 1 ? rest : b_.CreateUDiv(rest, n(count));
    }
    return index;
  }

  void item_body(Value* item) {
    Point row;
    row.index = decode(item);
    row.known.assign(nest_.nodes.size(), nullptr);
    if (nest_.tile >= 0) {
      tiles(row);
      return;
    }
    if (!nest_.lane_is_row) {
      std::vector<Point> rows{std::move(row)};
      row_body(rows);
      return;
    }
    // A block of lanes: several vectors in step, so that whole cache lines are used, then single ones.
    int64_t size = nest_.sizes[lane_], vectors = kLaneBlock / vector_;
    Value* start = b_.CreateMul(row.index[lane_], n(kLaneBlock));
    Value* end = size % kLaneBlock == 0 ? b_.CreateAdd(start, n(kLaneBlock))
                                        : minimum(b_.CreateAdd(start, n(kLaneBlock)), n(size));
    while (vectors > 1 && (vectors * vector_ > size || vectors * static_cast<int64_t>(nest_.nodes.size()) > 128))
      vectors /= 2;
    auto block = [&](Value* at, int64_t count, bool masked) {
      std::vector<Point> points;
      for (int64_t u = 0; u < count; ++u) {
        Point p = row;
        p.index[lane_] = u == 0 ? at : b_.CreateAdd(at, n(u * vector_));
        p.lanes = vector_;
        if (masked) p.mask = lanes_below(b_.CreateSub(n(size), at));
        points.push_back(std::move(p));
      }
      row_body(points);
      return std::vector<Value*>{};
    };
    Value* even = end;
    if (vectors > 1 && size % kLaneBlock != 0)
      even = b_.CreateAdd(start, b_.CreateAnd(b_.CreateSub(end, start), n(-vectors * vector_)));
    if (vectors > 1)
      loop(start, even, vectors * vector_, {},
           [&](Value* at, std::vector<Value*>) { return block(at, vectors, false); });
    if (vectors == 1 || size % kLaneBlock != 0)
      loop(vectors > 1 ? even : start, end, vector_, {},
           [&](Value* at, std::vector<Value*>) { return block(at, 1, size % vector_ != 0); });
  }

  // ---- Tiles: squares of as many rows as lanes, so that loads along the rows can be turned in registers.

  bool is_turned(const NestNode& node) const {
    if (node.op != NestOp::kLoad || node.access.strides[lane_] == 0 || node.access.strides[lane_] == 1 ||
        node.access.strides[nest_.tile] != 1)
      return false;
    return dtype_size(nest_.operands[node.access.operand]) >= 4;
  }

  void tiles(Point& row) {
    int64_t rows = nest_.sizes[nest_.tile], columns = nest_.sizes[lane_], side = vector_;
    Value* start = b_.CreateMul(row.index[nest_.tile], n(kTileRows));
    Value* end =
        rows % kTileRows == 0 ? b_.CreateAdd(start, n(kTileRows)) : minimum(b_.CreateAdd(start, n(kTileRows)), n(rows));
    bool small = static_cast<int64_t>(nest_.nodes.size()) * side <= 512;
    Value* even = !small             ? start
                  : rows % side == 0 ? end
                                     : b_.CreateAdd(start, b_.CreateAnd(b_.CreateSub(end, start), n(-side)));
    int64_t whole = small ? columns / side * side : 0;
    loop(n(0), n(whole), side, {}, [&](Value* column, std::vector<Value*>) {
      return loop(start, even, side, {},
                  [&](Value* at, std::vector<Value*>) { return tile_at(row, at, column), std::vector<Value*>{}; });
    });
    auto row_at = [&](Value* at, int64_t from) {
      std::vector<Point> one{row};
      one[0].index[nest_.tile] = at;
      first_column_ = from;
      row_body(one);
      first_column_ = 0;
      return std::vector<Value*>{};
    };
    if (whole < columns) loop(start, even, 1, {}, [&](Value* at, std::vector<Value*>) { return row_at(at, whole); });
    if (!small || rows % side != 0)
      loop(even, end, 1, {}, [&](Value* at, std::vector<Value*>) { return row_at(at, 0); });
  }

  void tile_at(const Point& row, Value* at, Value* column) {
    std::vector<Point> points(vector_, row);
    for (unsigned t = 0; t < vector_; ++t) {
      points[t].index[nest_.tile] = b_.CreateAdd(at, n(t));
      points[t].index[lane_] = column;
      points[t].lanes = vector_;
    }
    for (size_t k = 0; k < nest_.nodes.size(); ++k) {
      const NestNode& node = nest_.nodes[k];
      if (!is_turned(node)) continue;
      std::vector<Value*> square;
      DType type = nest_.operands[node.access.operand];
      for (unsigned l = 0; l < vector_; ++l) {
        Point p = row;
        p.index[nest_.tile] = at;
        p.index[lane_] = b_.CreateAdd(column, n(l));
        Value* where = pointer(node.access.operand, element_number(node.access, p));
        square.push_back(math_.from_stored(type, load_vector(type, where, vector_, nullptr, 1)));
      }
      turn(square);
      for (unsigned t = 0; t < vector_; ++t) points[t].known[k] = square[t];
    }
    Work work;
    for (size_t k = 0; k < nest_.stores.size(); ++k) work.stores.push_back(static_cast<int>(k));
    pass_ = 0;
    for (unsigned t = 0; t < vector_; ++t) element(points[t], 0, work, {});
  }

  // Transposes a square of vectors: bit by bit, row and lane numbers change places.
  void turn(std::vector<Value*>& square) {
    int side = static_cast<int>(square.size());
    for (int bit = 1; bit < side; bit *= 2) {
      std::vector<int> low(side), high(side);
      for (int k = 0; k < side; ++k) {
        low[k] = k & bit ? side + k - bit : k;
        high[k] = k & bit ? side + k : k + bit;
      }
      for (int k = 0; k < side; ++k) {
        if (k & bit) continue;
        Value *a = square[k], *b = square[k + bit];
        square[k] = b_.CreateShuffleVector(a, b, low);
        square[k + bit] = b_.CreateShuffleVector(a, b, high);
      }
    }
  }

  // The mask of lanes [0, count).
  Value* lanes_below(Value* count) {
    std::vector<llvm::Constant*> numbers;
    for (unsigned k = 0; k < vector_; ++k) numbers.push_back(b_.getInt64(k));
    return b_.CreateICmpSLT(llvm::ConstantVector::get(numbers), b_.CreateVectorSplat(vector_, count));
  }

  // One row, or vectors of rows side by side.
  void row_body(std::vector<Point>& rows) {
    for (int pass = 0; pass < passes_; ++pass) {
      std::vector<int> reductions, stores;
      for (size_t k = 0; k < nest_.nodes.size(); ++k) {
        if (nest_.nodes[k].op == NestOp::kReduce && level_[k] == pass + 1) reductions.push_back(static_cast<int>(k));
      }
      for (size_t k = 0; k < nest_.stores.size(); ++k) {
        if (is_wide(nest_.stores[k].access) && level_[nest_.stores[k].node] == pass)
          stores.push_back(static_cast<int>(k));
      }
      std::vector<int> folds;
      for (size_t k = 0; k < nest_.folds.size(); ++k) {
        const NestFold& f = nest_.folds[k];
        if (nest_.nodes[f.node].op != NestOp::kReduce && level_[f.node] == pass) folds.push_back(static_cast<int>(k));
      }
      if (!reductions.empty() || !stores.empty() || !folds.empty()) run_pass(rows, reductions, stores, folds, pass);
    }
    // All values of the row before any store: a result may lie where an operand that another result is made from was.
    for (const NestStore& s : nest_.stores) {
      for (Point& row : rows) {
        if (!is_wide(s.access)) value(s.node, row);
      }
    }
    for (const NestStore& s : nest_.stores) {
      for (Point& row : rows) {
        if (!is_wide(s.access)) store(s, row);
      }
    }
  }

  bool is_wide(const NestAccess& a) const {
    for (size_t k = static_cast<size_t>(rows_); k < a.strides.size(); ++k) {
      if (a.strides[k] != 0) return true;
    }
    return false;
  }
  bool along_columns(int node) const {
    for (size_t k = static_cast<size_t>(rows_); k < nest_.sizes.size(); ++k) {
      if (varies_[node][k]) return true;
    }
    return false;
  }
  bool along_lane(int node) const { return lane_ >= 0 && varies_[node][lane_]; }

  // ---- One pass over the columns of a row.

  struct Work {
    std::vector<int> reductions, stores, folds;
    unsigned unroll = 1;
  };

  void run_pass(std::vector<Point>& rows, const std::vector<int>& reductions, const std::vector<int>& stores,
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
    if (!reductions.empty() && !nest_.lane_is_row) work.unroll = cost <= 8 ? 4 : cost <= 24 ? 2 : 1;
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
        for (size_t u = 0; u < rows.size(); ++u) rows[u].known[reductions[k]] = parts[u];
        continue;
      }
      while (parts.size() > 1) {
        std::vector<Value*> half;
        for (size_t j = 0; j < parts.size(); j += 2)
          half.push_back(math_.combine(node.reduce, node.scalar.type, parts[j], parts[j + 1]));
        parts = std::move(half);
      }
      rows[0].known[reductions[k]] = nest_.columns == 0 ? parts[0] : across_lanes(node, parts[0]);
    }
  }

  Value* across_lanes(const NestNode& node, Value* v) {
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
  std::vector<Value*> columns(std::vector<Point>& rows, int loop_index, const Work& work, std::vector<Value*> sums) {
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

  std::vector<Value*> elements(std::vector<Point>& rows, const Work& work, std::vector<Value*> sums) {
    for (size_t u = 0; u < rows.size(); ++u) sums = element(rows[u], static_cast<unsigned>(u), work, std::move(sums));
    return sums;
  }

  std::vector<Value*> add_run(const Work& work, const std::vector<Value*>& now,
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
  std::vector<Value*> cascaded(Value* begin, Value* end, int64_t step, const Work& work, std::vector<Value*> sums,
                               const Body& body) {
    bool floats = std::any_of(work.reductions.begin(), work.reductions.end(),
                              [&](int r) { return is_float(nest_.nodes[r].scalar.type); });
    int64_t high = 0;
    if (!floats || (is_known(end, high) && high <= 2 * kCascade * step))
      return loop(begin, end, step, std::move(sums), body);
    return loop(begin, end, step * kCascade, std::move(sums), [&](Value* at, std::vector<Value*> now) {
      Value* stop = minimum(b_.CreateAdd(at, n(step * kCascade)), end);
      return add_run(work, now,
                     [&](std::vector<Value*> fresh) { return loop(at, stop, step, std::move(fresh), body); });
    });
  }

  // The innermost column loop: unrolled vectors, single vectors, and a masked one.
  std::vector<Value*> lane_columns(Point& row, int loop_index, const Work& work, std::vector<Value*> sums) {
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

  std::vector<Value*> vector_at(Point& row, int loop_index, Value* at, Value* mask, unsigned u, const Work& work,
                                std::vector<Value*> sums) {
    Point point = row;
    point.index[loop_index] = at;
    point.lanes = vector_;
    point.mask = mask;
    return element(point, u, work, std::move(sums));
  }

  // One point (or vector of points) of a pass: all values, then accumulators, then stores.
  std::vector<Value*> element(const Point& point, unsigned u, const Work& work, std::vector<Value*> sums) {
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

  // ---- Folds: the partial results of a unit in memory (one row after the other), or in the caller's accumulators for
  // reductions.

  void unit_with_folds(Value* unit) {
    unit_ = unit;
    for (const NestFold& f : nest_.folds) clear(f);
    Value* first = b_.CreateMul(unit, n(nest_.rows_per_unit));
    Value* last = minimum(b_.CreateAdd(first, n(nest_.rows_per_unit)), n(nest_.items()));
    std::vector<Value*> totals;
    for (const NestFold& f : nest_.folds) {
      if (nest_.nodes[f.node].op == NestOp::kReduce)
        totals.push_back(math_.identity(f.reduce, nest_.nodes[f.node].scalar.type, 1));
    }
    totals = loop(first, last, 1, std::move(totals), [&](Value* item, std::vector<Value*> now) {
      std::vector<Point> rows(1);
      rows[0].index = decode(item);
      rows[0].known.assign(nest_.nodes.size(), nullptr);
      row_body(rows);
      size_t k = 0;
      for (const NestFold& f : nest_.folds) {
        if (nest_.nodes[f.node].op != NestOp::kReduce) continue;
        now[k] = math_.combine(f.reduce, nest_.nodes[f.node].scalar.type, now[k], rows[0].known[f.node]);
        ++k;
      }
      return now;
    });
    size_t k = 0;
    for (const NestFold& f : nest_.folds) {
      if (nest_.nodes[f.node].op != NestOp::kReduce) continue;
      DType type = nest_.operands[f.access.operand];
      b_.CreateAlignedStore(math_.to_stored(type, totals[k++]), pointer(f.access.operand, unit), alignment(type));
    }
  }

  Value* pointer(int operand, Value* at) {
    return b_.CreateInBoundsGEP(stored_type(context_, nest_.operands[operand], 1), buffers_[operand], at);
  }
  static llvm::Align alignment(DType t) { return llvm::Align(static_cast<uint64_t>(dtype_size(t))); }

  void clear(const NestFold& f) {
    if (nest_.nodes[f.node].op == NestOp::kReduce) return;
    DType type = nest_.operands[f.access.operand];
    Value* zero = math_.to_stored(type, math_.identity(f.reduce, type, 1));
    Value* base = b_.CreateMul(unit_, n(f.extent));
    loop(n(0), n(f.extent), 1, {}, [&](Value* at, std::vector<Value*>) {
      b_.CreateAlignedStore(zero, pointer(f.access.operand, b_.CreateAdd(base, at)), alignment(type));
      return std::vector<Value*>{};
    });
  }

  void fold(const NestFold& f, Point& point) {
    DType type = nest_.operands[f.access.operand];
    Value* v = value(f.node, point);
    Value* at = b_.CreateMul(unit_, n(f.extent));
    for (size_t k = 0; k < f.access.strides.size(); ++k) {
      if (f.access.strides[k] != 0) at = b_.CreateAdd(at, b_.CreateMul(point.index[k], n(f.access.strides[k])));
    }
    unsigned lanes = lane_ >= 0 && f.access.strides[lane_] != 0 ? point.lanes : 1;
    if (lanes > 1 && !v->getType()->isVectorTy()) v = b_.CreateVectorSplat(lanes, v);
    Value* p = pointer(f.access.operand, at);
    Value* old =
        math_.from_stored(type, load_vector(type, p, lanes, point.mask, lane_ >= 0 ? f.access.strides[lane_] : 0));
    store_vector(type, math_.to_stored(type, math_.combine(f.reduce, type, old, v)), p, lanes, point.mask,
                 lane_ >= 0 ? f.access.strides[lane_] : 0);
  }

  // ---- Values.

  Value* value(int id, Point& point) {
    Value*& known = point.known[id];
    if (known != nullptr) return known;
    const NestNode& node = nest_.nodes[id];
    unsigned lanes = along_lane(id) ? point.lanes : 1;
    if (pass_ > level_[id] && along_columns(id)) {
      for (const NestStore& kept : nest_.kept) {
        if (kept.node == id)
          return known = load(kept.access, point, lane_ >= 0 && kept.access.strides[lane_] != 0 ? point.lanes : 1);
      }
    }
    switch (node.op) {
      case NestOp::kLoad:
        return known = load(node.access, point, lanes);
      case NestOp::kIndex:
        return known = index(node, point, lanes);
      case NestOp::kReduce:
        PARTITA_CHECK(false, "a reduction that its pass did not compute");
      case NestOp::kScalar:
        break;
    }
    const ScalarNode& s = node.scalar;
    if (s.op == ScalarOp::kConstant) return known = math_.constant(s.type, s.f, s.i, 1);
    Value* operands[3] = {nullptr, nullptr, nullptr};
    int ids[3] = {s.a, s.b, s.c};
    for (int k = 0; k < 3; ++k) {
      if (ids[k] < 0) continue;
      operands[k] = value(ids[k], point);
      if (lanes > 1 && !operands[k]->getType()->isVectorTy()) operands[k] = b_.CreateVectorSplat(lanes, operands[k]);
    }
    DType from = nest_.nodes[s.a].scalar.type;
    return point.known[id] = math_.apply(s, from, operands[0], operands[1], operands[2]);
  }

  // Element number at a point: what stays the same in inner loops first, so that it can be hoisted.
  Value* element_number(const NestAccess& a, const Point& point) {
    Value* at = n(a.offset);
    for (size_t k = 0; k < a.strides.size(); ++k) {
      if (a.strides[k] == 0) continue;
      PARTITA_CHECK(point.index[k] != nullptr, "a loop index before its loop");
      Value* step = a.strides[k] == 1 ? point.index[k] : b_.CreateMul(point.index[k], n(a.strides[k]));
      at = b_.CreateAdd(at, step);
    }
    return at;
  }

  Value* index(const NestNode& node, const Point& point, unsigned lanes) {
    Value* at = element_number(node.access, point);
    if (lanes == 1) return at;
    std::vector<llvm::Constant*> steps;
    for (unsigned k = 0; k < lanes; ++k)
      steps.push_back(b_.getInt64(static_cast<uint64_t>(static_cast<int64_t>(k) * node.access.strides[lane_])));
    return b_.CreateAdd(b_.CreateVectorSplat(lanes, at), llvm::ConstantVector::get(steps));
  }

  Value* all_lanes(unsigned lanes) {
    return llvm::ConstantVector::getSplat(llvm::ElementCount::getFixed(lanes), b_.getTrue());
  }

  Value* lane_pointers(DType type, Value* base, unsigned lanes, int64_t stride) {
    std::vector<llvm::Constant*> steps;
    for (unsigned k = 0; k < lanes; ++k)
      steps.push_back(b_.getInt64(static_cast<uint64_t>(static_cast<int64_t>(k) * stride)));
    return b_.CreateGEP(stored_type(context_, type, 1), base, llvm::ConstantVector::get(steps));
  }

  Value* load_vector(DType type, Value* p, unsigned lanes, Value* mask, int64_t stride) {
    llvm::Type* t = stored_type(context_, type, lanes);
    if (lanes == 1) return b_.CreateAlignedLoad(t, p, alignment(type));
    if (stride != 1)
      return b_.CreateMaskedGather(t, lane_pointers(type, p, lanes, stride), alignment(type),
                                   mask == nullptr ? all_lanes(lanes) : mask, llvm::Constant::getNullValue(t));
    if (mask == nullptr) return b_.CreateAlignedLoad(t, p, alignment(type));
    return b_.CreateMaskedLoad(t, p, alignment(type), mask, llvm::Constant::getNullValue(t));
  }

  void store_vector(DType type, Value* v, Value* p, unsigned lanes, Value* mask, int64_t stride) {
    if (lanes == 1) {
      b_.CreateAlignedStore(v, p, alignment(type));
    } else if (stride != 1) {
      b_.CreateMaskedScatter(v, lane_pointers(type, p, lanes, stride), alignment(type),
                             mask == nullptr ? all_lanes(lanes) : mask);
    } else if (mask == nullptr) {
      b_.CreateAlignedStore(v, p, alignment(type));
    } else {
      b_.CreateMaskedStore(v, p, alignment(type), mask);
    }
  }

  Value* load(const NestAccess& a, const Point& point, unsigned lanes) {
    DType type = nest_.operands[a.operand];
    Value* p = pointer(a.operand, element_number(a, point));
    return math_.from_stored(type, load_vector(type, p, lanes, point.mask, lane_ >= 0 ? a.strides[lane_] : 0));
  }

  void store(const NestStore& s, Point& point) {
    DType type = nest_.operands[s.access.operand];
    unsigned lanes = lane_ >= 0 && s.access.strides[lane_] != 0 ? point.lanes : 1;
    Value* v = value(s.node, point);
    if (lanes > 1 && !v->getType()->isVectorTy()) v = b_.CreateVectorSplat(lanes, v);
    Value* p = pointer(s.access.operand, element_number(s.access, point));
    store_vector(type, math_.to_stored(type, v), p, lanes, point.mask, lane_ >= 0 ? s.access.strides[lane_] : 0);
  }

  llvm::LLVMContext& context_;
  llvm::Module& module_;
  llvm::IRBuilder<> b_;
  ScalarMath math_;
  const LoopNest& nest_;
  std::vector<std::vector<bool>> varies_;
  std::vector<int> level_;
  unsigned vector_ = 1;
  int rows_ = 0, lane_ = -1, passes_ = 1;
  int pass_ = 0;              // the one being emitted
  int64_t first_column_ = 0;  // where a row starts, past its tiles
  llvm::Function* function_ = nullptr;
  std::vector<Value*> buffers_;
  Value* unit_ = nullptr;
};

}  // namespace

llvm::Function* emit_nest(llvm::Module& module, const LoopNest& nest, const std::string& name,
                          const VectorTarget& target) {
  return Emitter(module, nest, target).emit(name);
}

}  // namespace partita
