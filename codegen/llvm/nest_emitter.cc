#include "codegen/llvm/nest_emitter.h"

#include <algorithm>

#include "codegen/llvm/nest_emitter_impl.h"

namespace partita {

using llvm::Value;

NestEmitter::NestEmitter(llvm::Module& module, const LoopNest& nest, const VectorTarget& target)
    : context_(module.getContext()),
      module_(module),
      b_(context_),
      math_(b_, module, !nest.strict, /*gpu=*/false, /*scalef=*/target.bytes == 64),
      nest_(nest),
      varies_(variation(nest)),
      level_(levels(nest)) {
  vector_ = static_cast<unsigned>(target.bytes / lane_bytes(nest));
  rows_ = nest.rows();
  lane_ = nest.sizes.empty() ? -1 : nest.lane_is_row ? rows_ - 1 : static_cast<int>(nest.sizes.size()) - 1;
  if (!nest.lane_is_row && nest.columns == 0) lane_ = -1;
  for (int l : level_) passes_ = std::max(passes_, l + 1);
}

llvm::Function* NestEmitter::emit(const std::string& name) {
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
    loop(first, last, 1, {}, [&](Value* item, std::vector<Value*>) { return item_body(item), std::vector<Value*>{}; });
  } else {
    loop(function_->getArg(1), function_->getArg(2), 1, {},
         [&](Value* unit, std::vector<Value*>) { return unit_with_folds(unit), std::vector<Value*>{}; });
  }
  b_.CreateRetVoid();
  return function_;
}

std::vector<Value*> NestEmitter::loop(Value* begin, Value* end, int64_t step, std::vector<Value*> carried,
                                      const Body& body) {
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

// Indices of the row loops at an item; along a loop in blocks, the number of the block.
std::vector<Value*> NestEmitter::decode(Value* item) {
  std::vector<Value*> index(nest_.sizes.size(), nullptr);
  Value* rest = item;
  for (int k = rows_ - 1; k >= 0; --k) {
    int64_t count = nest_.blocks(k);
    index[k] = k == 0 ? rest : count == 1 ? n(0) : b_.CreateURem(rest, n(count));
    if (k > 0) rest = count == 1 ? rest : b_.CreateUDiv(rest, n(count));
  }
  return index;
}

void NestEmitter::item_body(Value* item) {
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
    loop(start, even, vectors * vector_, {}, [&](Value* at, std::vector<Value*>) { return block(at, vectors, false); });
  if (vectors == 1 || size % kLaneBlock != 0)
    loop(vectors > 1 ? even : start, end, vector_, {},
         [&](Value* at, std::vector<Value*>) { return block(at, 1, size % vector_ != 0); });
}

// The mask of lanes [0, count).
Value* NestEmitter::lanes_below(Value* count) {
  std::vector<llvm::Constant*> numbers;
  for (unsigned k = 0; k < vector_; ++k) numbers.push_back(b_.getInt64(k));
  return b_.CreateICmpSLT(llvm::ConstantVector::get(numbers), b_.CreateVectorSplat(vector_, count));
}

// One row, or vectors of rows side by side.
void NestEmitter::row_body(std::vector<Point>& rows) {
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

llvm::Function* emit_nest(llvm::Module& module, const LoopNest& nest, const std::string& name,
                          const VectorTarget& target) {
  return NestEmitter(module, nest, target).emit(name);
}

}  // namespace partita
