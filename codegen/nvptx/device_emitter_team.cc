// Reductions among the threads of a team, in a fixed order: a butterfly of shuffles within a warp, shared memory
// between warps, or between the threads of one row where rows lie side by side.
#include <algorithm>

#include "codegen/nvptx/device_emitter_impl.h"
#include "llvm/IR/IntrinsicsNVPTX.h"

namespace partita {

using llvm::Value;

namespace {

// What a computed value takes in shared memory.
int64_t word_bytes(DType type) {
  return std::max<int64_t>(4, type == DType::kF16 || type == DType::kBF16 ? 4 : dtype_size(type));
}

}  // namespace

void DeviceEmitter::barrier() { b_.CreateIntrinsic(llvm::Intrinsic::nvvm_barrier0, {}, {}); }

void DeviceEmitter::team_meets() {
  if (team_ == nullptr) return barrier();
  // Each team a barrier of its own, beside the block's: their numbers of rows differ.
  b_.CreateIntrinsic(llvm::Intrinsic::nvvm_barrier_sync_cnt, {},
                     {b_.CreateAdd(team_, b_.getInt32(1)), b_.getInt32(static_cast<uint32_t>(s_.team))});
}

void DeviceEmitter::team_barrier() {
  if (s_.team == 1) return;
  if (s_.team > kWarp || s_.lanes > 1) {
    team_meets();
  } else {
    b_.CreateIntrinsic(llvm::Intrinsic::nvvm_bar_warp_sync, {}, {b_.getInt32(0xffffffff)});
  }
}

int64_t DeviceEmitter::shared_bytes() const {
  int64_t most = 0;
  if (s_.shape == DeviceShape::kTiles) {
    for (int id : turned_loads(nest_))
      most += kTileRows * (kTileRows + 1) * dtype_size(nest_.operands[nest_.nodes[id].access.operand]);
    return most;
  }
  int64_t slots = s_.lanes > 1      ? (s_.team > 1 ? int64_t{s_.lanes} * s_.team : 0)
                  : s_.team > kWarp ? int64_t{s_.teams} * s_.team / kWarp
                                    : 0;
  if (s_.teams > 1) most = (s_.teams - 1) * folded_words(nest_, s_) * folded_bytes(nest_) * s_.team;
  for (int pass = 0; pass < passes_; ++pass) {
    int64_t bytes = 0;
    for (int r : work_of(pass).reductions) bytes += slots * word_bytes(nest_.nodes[r].scalar.type);
    most = std::max(most, bytes);
  }
  return most;
}

Value* DeviceEmitter::shared(llvm::Type* type, int64_t bytes_before, Value* index) {
  Value* base = b_.CreateConstInBoundsGEP1_64(b_.getInt8Ty(), shared_, static_cast<uint64_t>(bytes_before));
  return b_.CreateInBoundsGEP(type, base, index);
}

// Small integers travel as 32 bits.
Value* DeviceEmitter::as_word(Value* v) {
  bool narrow = v->getType()->isIntegerTy() && v->getType()->getIntegerBitWidth() < 32;
  return narrow ? b_.CreateZExt(v, b_.getInt32Ty()) : v;
}
Value* DeviceEmitter::from_word(Value* word, llvm::Type* type) {
  return word->getType() == type ? word : b_.CreateTrunc(word, type);
}

// The value of the thread whose number differs in the bits of `distance`.
Value* DeviceEmitter::shuffle(Value* v, int distance) {
  auto one = [&](Value* word) -> Value* {
    return b_.CreateIntrinsic(
        llvm::Intrinsic::nvvm_shfl_sync_bfly_i32, {},
        {b_.getInt32(0xffffffff), word, b_.getInt32(static_cast<uint32_t>(distance)), b_.getInt32(kWarp - 1)});
  };
  llvm::Type* type = v->getType();
  if (type->getPrimitiveSizeInBits() <= 32) {
    Value* word = type->isFloatTy() ? b_.CreateBitCast(v, b_.getInt32Ty()) : as_word(v);
    Value* other = one(word);
    return type->isFloatTy() ? b_.CreateBitCast(other, type) : from_word(other, type);
  }
  auto* pair = llvm::FixedVectorType::get(b_.getInt32Ty(), 2);
  Value* words = b_.CreateBitCast(v, pair);
  Value* other = llvm::PoisonValue::get(pair);
  for (uint64_t k = 0; k < 2; ++k) other = b_.CreateInsertElement(other, one(b_.CreateExtractElement(words, k)), k);
  return b_.CreateBitCast(other, type);
}

Value* DeviceEmitter::butterfly(const NestNode& node, Value* v, int width) {
  for (int distance = width / 2; distance >= 1; distance /= 2)
    v = math_.combine(node.reduce, node.scalar.type, v, shuffle(v, distance));
  return v;
}

// All threads of the team get the results.
DeviceEmitter::Values DeviceEmitter::team_reduce(const std::vector<int>& reductions, Values parts) {
  if (reductions.empty() || s_.team == 1) return parts;
  if (s_.lanes == 1) {
    for (size_t k = 0; k < parts.size(); ++k)
      parts[k] = butterfly(nest_.nodes[reductions[k]], parts[k], std::min(s_.team, kWarp));
    if (s_.team <= kWarp) return parts;
  }
  int slots = s_.lanes > 1 ? s_.lanes * s_.team : s_.teams * s_.team / kWarp;
  std::vector<int64_t> begin;
  int64_t bytes = 0;
  for (int r : reductions) {
    begin.push_back(bytes);
    bytes += slots * word_bytes(nest_.nodes[r].scalar.type);
  }
  auto put = [&](Value* at) {
    for (size_t k = 0; k < parts.size(); ++k) {
      Value* word = as_word(parts[k]);
      b_.CreateStore(word, shared(word->getType(), begin[k], at));
    }
  };
  auto get = [&](size_t k, Value* at) {
    llvm::Type* type = as_word(parts[k])->getType();
    return from_word(b_.CreateLoad(type, shared(type, begin[k], at)), parts[k]->getType());
  };
  team_meets();  // what an earlier reduction left has been read
  Values totals;
  if (s_.lanes > 1) {
    put(thread_);
    team_meets();
    Value* lane = b_.CreateZExtOrTrunc(b_.CreateURem(thread_, b_.getInt32(kWarp)), number_);
    for (size_t k = 0; k < parts.size(); ++k) totals.push_back(get(k, lane));
    // A loop, as loads of all of them at once take more registers than such a block has.
    return loop(n(1), n(s_.team), 1, std::move(totals), [&](Value* t, Values now) {
      Value* at = b_.CreateAdd(lane, b_.CreateMul(t, n(s_.lanes)));
      for (size_t k = 0; k < now.size(); ++k) {
        const NestNode& node = nest_.nodes[reductions[k]];
        now[k] = math_.combine(node.reduce, node.scalar.type, now[k], get(k, at));
      }
      return now;
    });
  }
  const int warps = s_.team / kWarp;
  Value* lane = b_.CreateURem(thread_, b_.getInt32(kWarp));
  if_inside(b_.CreateICmpEQ(lane, b_.getInt32(0)), [&] { put(b_.CreateUDiv(thread_, b_.getInt32(kWarp))); });
  team_meets();
  Value* at = b_.CreateAnd(lane, b_.getInt32(static_cast<uint32_t>(warps - 1)));
  if (team_ != nullptr) at = b_.CreateAdd(at, b_.CreateMul(team_, b_.getInt32(static_cast<uint32_t>(warps))));
  for (size_t k = 0; k < parts.size(); ++k) totals.push_back(butterfly(nest_.nodes[reductions[k]], get(k, at), warps));
  return totals;
}

// What the other teams of a unit have added up, on top of the first one's, in their order. The first one's alone counts
// then.
void DeviceEmitter::add_teams(std::vector<Values>& folded) {
  const int64_t words = folded_words(nest_, s_);
  auto at = [&](Value* team, int64_t word) {  // neighbours side by side
    Value* row = b_.CreateAdd(b_.CreateMul(team, b_.getInt32(static_cast<uint32_t>(words))),
                              b_.getInt32(static_cast<uint32_t>(word)));
    return b_.CreateAdd(b_.CreateMul(row, b_.getInt32(static_cast<uint32_t>(s_.team))),
                        b_.CreateTrunc(member_, b_.getInt32Ty()));
  };
  llvm::Type* slot = b_.getIntNTy(static_cast<unsigned>(folded_bytes(nest_)) * 8);
  auto place = [&](Value* index) { return shared(slot, 0, index); };
  barrier();  // the last row's reductions have been read
  if_inside(b_.CreateICmpNE(team_, b_.getInt32(0)), [&] {
    int64_t word = 0;
    for (const Values& values : folded) {
      for (Value* v : values) b_.CreateStore(as_word(v), place(at(b_.CreateSub(team_, b_.getInt32(1)), word++)));
    }
  });
  barrier();
  for (int team = 1; team < s_.teams; ++team) {
    int64_t word = 0;
    for (size_t k = 0; k < folded.size(); ++k) {
      const NestFold& f = nest_.folds[k];
      for (Value*& v : folded[k]) {
        Value* index = at(b_.getInt32(static_cast<uint32_t>(team - 1)), word++);
        llvm::Type* stored = as_word(v)->getType();
        v = math_.combine(f.reduce, folded_type(f), v, from_word(b_.CreateLoad(stored, place(index)), v->getType()));
      }
    }
  }
}

}  // namespace partita
