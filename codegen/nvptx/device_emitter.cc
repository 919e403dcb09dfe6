#include "codegen/nvptx/device_emitter.h"

#include <algorithm>

#include "codegen/nvptx/device_emitter_impl.h"
#include "llvm/IR/IntrinsicsNVPTX.h"
#include "runtime/program/batched_launches.h"

namespace partita {

using llvm::Value;

DeviceEmitter::DeviceEmitter(llvm::Module& module, const LoopNest& nest, const DeviceSchedule& schedule, bool batched)
    : context_(module.getContext()),
      module_(module),
      b_(context_),
      math_(b_, module, !nest.strict, /*gpu=*/true),
      nest_(nest),
      s_(schedule),
      batched_(batched),
      varies_(variation(nest)),
      level_(levels(nest)) {
  number_ = s_.wide ? b_.getInt64Ty() : b_.getInt32Ty();
  for (int l : level_) passes_ = std::max(passes_, l + 1);
  if (s_.shape == DeviceShape::kRows || s_.shape == DeviceShape::kUnits) first_column_ = nest_.rows();
}

// Sums over rows and nothing else have kDeviceFoldUnits blocks at most: with so many to a multiprocessor they run at
// once on a GPU of 128, where ptxas would leave the last few for a second round.
constexpr int64_t kFewSums = 32, kFoldBlocks = 4;

llvm::Function* DeviceEmitter::emit(const std::string& name) {
  std::vector<llvm::Type*> parameters(batched_ ? 1 : nest_.operands.size(), b_.getPtrTy(kGlobalMemory));
  function_ = llvm::Function::Create(llvm::FunctionType::get(b_.getVoidTy(), parameters, false),
                                     llvm::Function::ExternalLinkage, name, module_);
  function_->setDoesNotThrow();
  auto number = [&](int64_t v) { return llvm::ConstantAsMetadata::get(b_.getInt32(static_cast<uint32_t>(v))); };
  auto annotate = [&](const char* key, int64_t v) {
    module_.getOrInsertNamedMetadata("nvvm.annotations")
        ->addOperand(llvm::MDNode::get(
            context_, {llvm::ConstantAsMetadata::get(function_), llvm::MDString::get(context_, key), number(v)}));
  };
  annotate("kernel", 1);
  annotate("maxntidx", s_.threads);
  if (s_.shape == DeviceShape::kUnits && passes_ == 1 && folded_words(nest_, s_) <= kFewSums)
    annotate("minctasm", kFoldBlocks);
  b_.SetInsertPoint(llvm::BasicBlock::Create(context_, "entry", function_));
  if (int64_t bytes = shared_bytes(); bytes > 0) {
    auto* type = llvm::ArrayType::get(b_.getInt8Ty(), static_cast<uint64_t>(bytes));
    shared_ =
        new llvm::GlobalVariable(module_, type, false, llvm::GlobalValue::InternalLinkage, llvm::UndefValue::get(type),
                                 name + "_shared", nullptr, llvm::GlobalValue::NotThreadLocal, kSharedMemory);
    shared_->setAlignment(llvm::Align(16));
  }
  thread_ = b_.CreateIntrinsic(llvm::Intrinsic::nvvm_read_ptx_sreg_tid_x, {}, {});
  block_ = b_.CreateIntrinsic(llvm::Intrinsic::nvvm_read_ptx_sreg_ctaid_x, {}, {});
  if (batched_) {
    find_entry();
  } else {
    for (llvm::Argument& a : function_->args()) buffers_.push_back(&a);
  }
  switch (s_.shape) {
    case DeviceShape::kPoints:
      points();
      break;
    case DeviceShape::kTiles:
      tiles();
      break;
    case DeviceShape::kRows:
      rows();
      break;
    case DeviceShape::kUnits:
      units();
      break;
  }
  b_.CreateRetVoid();
  return function_;
}

// The last entry of the table whose first block is not behind this one, in as many rounds as the table says: all
// threads of a block read the same words.
void DeviceEmitter::find_entry() {
  const int64_t stride = runtime::launch_table_entry_words(static_cast<int64_t>(nest_.operands.size()));
  Value* table = function_->getArg(0);
  auto address = [&](Value* entry, int64_t word) {
    Value* at = b_.CreateAdd(b_.CreateMul(entry, b_.getInt64(static_cast<uint64_t>(stride))),
                             b_.getInt64(static_cast<uint64_t>(runtime::kLaunchTableHeaderWords + word)));
    return b_.CreateInBoundsGEP(b_.getInt64Ty(), table, at);
  };
  auto word = [&](Value* at) { return b_.CreateAlignedLoad(b_.getInt64Ty(), at, llvm::Align(8)); };
  Value* entries = word(table);
  Value* rounds = word(b_.CreateConstInBoundsGEP1_64(b_.getInt64Ty(), table, 1));
  Value* block = b_.CreateZExt(block_, b_.getInt64Ty());
  Values found = loop(n(0), b_.CreateTrunc(rounds, number_), 1, {b_.getInt64(0)}, [&](Value* round, Values carried) {
    Value* half = b_.CreateLShr(b_.CreateShl(b_.getInt64(1), rounds),
                                b_.CreateAdd(b_.CreateZExt(round, b_.getInt64Ty()), b_.getInt64(1)));
    Value* next = b_.CreateAdd(carried[0], half);
    Value* there = b_.CreateICmpSLT(next, entries);
    Value* first = word(address(b_.CreateSelect(there, next, carried[0]), 0));
    return Values{b_.CreateSelect(b_.CreateAnd(there, b_.CreateICmpSLE(first, block)), next, carried[0])};
  });
  block_ = b_.CreateTrunc(b_.CreateSub(block, word(address(found[0], 0))), b_.getInt32Ty());
  points_ = b_.CreateTrunc(word(address(found[0], 1)), number_);
  for (size_t k = 0; k < nest_.operands.size(); ++k) buffers_.push_back(address(found[0], 2 + static_cast<int64_t>(k)));
}

// A batched kernel reads an address where it is used, so that it takes no register before.
Value* DeviceEmitter::buffer(int operand) {
  if (!batched_) return buffers_[operand];
  llvm::LoadInst* at = b_.CreateAlignedLoad(b_.getPtrTy(kGlobalMemory), buffers_[operand], llvm::Align(8));
  at->setMetadata(llvm::LLVMContext::MD_invariant_load, llvm::MDNode::get(context_, {}));
  return at;
}

void DeviceEmitter::if_inside(Value* condition, const std::function<void()>& then) {
  if (condition == nullptr) {
    then();
    return;
  }
  llvm::BasicBlock* inside = llvm::BasicBlock::Create(context_, "inside", function_);
  llvm::BasicBlock* after = llvm::BasicBlock::Create(context_, "after", function_);
  b_.CreateCondBr(condition, inside, after);
  b_.SetInsertPoint(inside);
  then();
  b_.CreateBr(after);
  b_.SetInsertPoint(after);
}

// for (i = begin; i < end; i += step) carried = body(i, carried)
DeviceEmitter::Values DeviceEmitter::loop(Value* begin, Value* end, int64_t step, Values carried,
                                          const std::function<Values(Value*, Values)>& body) {
  llvm::BasicBlock* before = b_.GetInsertBlock();
  llvm::BasicBlock* head = llvm::BasicBlock::Create(context_, "loop", function_);
  llvm::BasicBlock* inside = llvm::BasicBlock::Create(context_, "body", function_);
  llvm::BasicBlock* after = llvm::BasicBlock::Create(context_, "after", function_);
  b_.CreateBr(head);
  b_.SetInsertPoint(head);
  llvm::PHINode* i = b_.CreatePHI(number_, 2);
  i->addIncoming(begin, before);
  std::vector<llvm::PHINode*> phis;
  for (Value* v : carried) {
    phis.push_back(b_.CreatePHI(v->getType(), 2));
    phis.back()->addIncoming(v, before);
  }
  b_.CreateCondBr(b_.CreateICmpSLT(i, end), inside, after);
  b_.SetInsertPoint(inside);
  Values next = body(i, Values(phis.begin(), phis.end()));
  llvm::BasicBlock* tail = b_.GetInsertBlock();
  i->addIncoming(b_.CreateAdd(i, n(step)), tail);
  for (size_t k = 0; k < phis.size(); ++k) phis[k]->addIncoming(next[k], tail);
  b_.CreateBr(head);
  b_.SetInsertPoint(after);
  return Values(phis.begin(), phis.end());
}

void DeviceEmitter::decode(Value* number, int begin, int end, int64_t step_of_last, std::vector<Value*>& index) {
  Value* rest = number;
  for (int k = end - 1; k >= begin; --k) {
    int64_t step = k == end - 1 ? step_of_last : 1, count = nest_.sizes[k] / step;
    Value* at = k == begin ? rest : b_.CreateURem(rest, n(count));
    if (k > begin) rest = b_.CreateUDiv(rest, n(count));
    index[k] = step == 1 ? at : b_.CreateMul(at, n(step));
  }
}

DeviceEmitter::Row DeviceEmitter::new_row() const {
  return {std::vector<Value*>(nest_.sizes.size(), nullptr), std::vector<Value*>(nest_.nodes.size(), nullptr), nullptr};
}

DeviceEmitter::Element DeviceEmitter::new_element(const Row& row) const {
  return {row.index, std::vector<Values>(static_cast<size_t>(s_.vector), Values(nest_.nodes.size(), nullptr)), nullptr};
}

// Of a thread's vectors those past the end compute its first one again, if that is there.
void DeviceEmitter::points() {
  const int64_t count = row_points(nest_) * column_points(nest_) / s_.vector,
                of_block = int64_t{s_.threads} * s_.vectors;
  Value* first = b_.CreateAdd(b_.CreateMul(b_.CreateZExtOrTrunc(block_, number_), n(of_block)),
                              b_.CreateZExtOrTrunc(thread_, number_));
  auto is_inside = [&](Value* at) {
    return batched_ ? b_.CreateICmpSLT(at, points_) : below(at, count, count % of_block == 0);
  };
  if_inside(is_inside(first), [&] {
    Row row = new_row();
    std::vector<Element> elements;
    for (int k = 0; k < s_.vectors; ++k) {
      Element e = new_element(row);
      Value* number = k == 0 ? first : b_.CreateAdd(first, n(int64_t{k} * s_.threads));
      e.inside = k == 0 ? nullptr : is_inside(number);
      if (e.inside != nullptr) number = b_.CreateSelect(e.inside, number, first);
      decode(number, 0, last_loop() + 1, s_.vector, e.index);
      elements.push_back(std::move(e));
    }
    for (size_t id = 0; id < nest_.nodes.size(); ++id) {  // loads first, to be under way together
      if (nest_.nodes[id].op != NestOp::kLoad) continue;
      for (Element& e : elements) value(static_cast<int>(id), row, e, 0);
    }
    // All values before any store: a result may lie where an operand of another one was.
    for (Element& e : elements) {
      for (const NestStore& s : nest_.stores) {
        for (unsigned v = 0; v < static_cast<unsigned>(s_.vector); ++v) value(s.node, row, e, v);
      }
    }
    for (Element& e : elements) {
      for (const NestStore& s : nest_.stores) store(s, row, e);
    }
  });
}

// Threads go through a tile twice: along the rows, where turned loads are contiguous, then along the lanes.
void DeviceEmitter::tiles() {
  constexpr int kAcross = kTileRows, kDown = 256 / kAcross;
  int tile = nest_.tile, lane = last_loop();
  int64_t tile_size = nest_.sizes[tile], lane_size = nest_.sizes[lane];
  Value* x = b_.CreateZExtOrTrunc(b_.CreateURem(thread_, b_.getInt32(kAcross)), number_);
  Value* y = b_.CreateZExtOrTrunc(b_.CreateUDiv(thread_, b_.getInt32(kAcross)), number_);
  Row row = new_row();
  Value* rest = b_.CreateZExtOrTrunc(block_, number_);
  auto take = [&](int64_t count) {
    Value* at = b_.CreateURem(rest, n(count));
    rest = b_.CreateUDiv(rest, n(count));
    return at;
  };
  Value* first_lane = b_.CreateMul(take((lane_size + kTileRows - 1) / kTileRows), n(kTileRows));
  Value* first_row = b_.CreateMul(take((tile_size + kTileRows - 1) / kTileRows), n(kTileRows));
  for (int k = lane - 1; k >= 0; --k) {
    if (k != tile) row.index[k] = take(nest_.sizes[k]);
  }
  std::vector<int> turned = turned_loads(nest_);
  std::vector<int64_t> begin;
  int64_t bytes = 0;
  for (int id : turned) {
    begin.push_back(bytes);
    bytes += kTileRows * (kTileRows + 1) * dtype_size(nest_.operands[nest_.nodes[id].access.operand]);
  }
  auto slot = [&](Value* l, Value* r) { return b_.CreateAdd(b_.CreateMul(l, n(kTileRows + 1)), r); };
  for (int64_t j = 0; j < kTileRows; j += kDown) {
    Value* l = b_.CreateAdd(y, n(j));
    std::vector<Value*> index = row.index;
    index[tile] = minimum(b_.CreateAdd(first_row, x), n(tile_size - 1));
    index[lane] = minimum(b_.CreateAdd(first_lane, l), n(lane_size - 1));
    for (size_t k = 0; k < turned.size(); ++k) {
      const NestAccess& a = nest_.nodes[turned[k]].access;
      llvm::Type* type = stored_type(context_, nest_.operands[a.operand], 1);
      Value* v = b_.CreateAlignedLoad(type, pointer(a.operand, element_number(a, index, 0)), alignment(a.operand, 1));
      b_.CreateAlignedStore(v, shared(type, begin[k], slot(l, x)), alignment(a.operand, 1));
    }
  }
  barrier();
  std::vector<Element> elements;
  for (int64_t j = 0; j < kTileRows; j += kDown) {
    Value* r = b_.CreateAdd(y, n(j));
    Element e = new_element(row);
    Value *at_row = b_.CreateAdd(first_row, r), *at_lane = b_.CreateAdd(first_lane, x);
    e.inside = both(below(at_row, tile_size, tile_size % kTileRows == 0),
                    below(at_lane, lane_size, lane_size % kTileRows == 0));
    e.index[tile] = minimum(at_row, n(tile_size - 1));
    e.index[lane] = minimum(at_lane, n(lane_size - 1));
    for (size_t k = 0; k < turned.size(); ++k) {
      int operand = nest_.nodes[turned[k]].access.operand;
      llvm::Type* type = stored_type(context_, nest_.operands[operand], 1);
      Value* v = b_.CreateAlignedLoad(type, shared(type, begin[k], slot(x, r)), alignment(operand, 1));
      e.known[0][turned[k]] = math_.from_stored(nest_.operands[operand], v);
    }
    for (const NestStore& s : nest_.stores) value(s.node, row, e, 0);
    elements.push_back(std::move(e));
  }
  for (Element& e : elements) {
    for (const NestStore& s : nest_.stores) store(s, row, e);
  }
}

void DeviceEmitter::rows() {
  Row row = new_row();
  std::vector<Values> folded;
  Value* block = b_.CreateZExtOrTrunc(block_, number_);
  Value* thread = b_.CreateZExtOrTrunc(thread_, number_);
  if (s_.lanes > 1) {
    int lane = nest_.rows() - 1;
    int64_t size = nest_.sizes[lane], groups = (size + s_.lanes - 1) / s_.lanes;
    member_ = b_.CreateUDiv(thread, n(s_.lanes));
    Value* at =
        b_.CreateAdd(b_.CreateMul(b_.CreateURem(block, n(groups)), n(s_.lanes)), b_.CreateURem(thread, n(s_.lanes)));
    row.inside = below(at, size, size % s_.lanes == 0);
    decode(b_.CreateUDiv(block, n(groups)), 0, lane, 1, row.index);
    row.index[lane] = minimum(at, n(size - 1));
  } else {
    int64_t count = row_points(nest_), side_by_side = s_.threads / s_.team;
    member_ = side_by_side == 1 ? thread : b_.CreateURem(thread, n(s_.team));
    Value* number = block;
    if (side_by_side > 1)
      number = b_.CreateAdd(b_.CreateMul(block, n(side_by_side)), b_.CreateUDiv(thread, n(s_.team)));
    row.inside = below(number, count, count % side_by_side == 0);
    decode(minimum(number, n(count - 1)), 0, nest_.rows(), 1, row.index);
  }
  row_body(row, nullptr, folded);
}

llvm::Function* emit_device_nest(llvm::Module& module, const LoopNest& nest, const DeviceSchedule& schedule,
                                 const std::string& name, bool batched) {
  return DeviceEmitter(module, nest, schedule, batched).emit(name);
}

}  // namespace partita
