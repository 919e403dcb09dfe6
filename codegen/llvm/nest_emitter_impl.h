// The emitter of one nest; see nest_emitter.h. Its parts: nest_emitter.cc (rows), nest_emitter_tiles.cc (transposed
// loads), nest_emitter_columns.cc (passes over a row), nest_emitter_folds.cc (partial results), nest_emitter_values.cc
// (operations).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "codegen/llvm/nest_emitter.h"
#include "codegen/llvm/scalar_math.h"
#include "ir/nest/loop_nest.h"
#include "llvm/IR/IRBuilder.h"

namespace partita {

class NestEmitter {
 public:
  NestEmitter(llvm::Module& module, const LoopNest& nest, const VectorTarget& target);
  llvm::Function* emit(const std::string& name);

 private:
  using Value = llvm::Value;
  // The loop indices at a point, the lanes that are inside, and the values known there.
  struct Point {
    std::vector<Value*> index;
    unsigned lanes = 1;
    Value* mask = nullptr;  // lanes that exist; nullptr: all
    std::vector<Value*> known;
  };
  // What one pass over the columns of a row does.
  struct Work {
    std::vector<int> reductions, stores, folds;
    unsigned unroll = 1;  // accumulators of each reduction
  };

  Value* n(int64_t v) { return b_.getInt64(static_cast<uint64_t>(v)); }
  Value* minimum(Value* a, Value* b) { return b_.CreateSelect(b_.CreateICmpSLT(a, b), a, b); }
  static llvm::Align alignment(DType t) { return llvm::Align(static_cast<uint64_t>(dtype_size(t))); }
  Value* pointer(int operand, Value* at) {
    return b_.CreateInBoundsGEP(stored_type(context_, nest_.operands[operand], 1), buffers_[operand], at);
  }
  Value* all_lanes(unsigned lanes) {
    return llvm::ConstantVector::getSplat(llvm::ElementCount::getFixed(lanes), b_.getTrue());
  }
  static bool is_known(Value* v, int64_t& value) {
    auto* c = llvm::dyn_cast<llvm::ConstantInt>(v);
    if (c != nullptr) value = c->getSExtValue();
    return c != nullptr;
  }
  bool along_lane(int node) const { return lane_ >= 0 && varies_[node][lane_]; }
  // for (i = begin; i < end; i += step) carried = body(i, carried)
  using Body = std::function<std::vector<Value*>(Value*, std::vector<Value*>)>;

  // Rows.
  std::vector<Value*> loop(Value* begin, Value* end, int64_t step, std::vector<Value*> carried, const Body& body);
  std::vector<Value*> decode(Value* item);
  void item_body(Value* item);
  Value* lanes_below(Value* count);
  void row_body(std::vector<Point>& rows);

  // Tiles.
  bool is_turned(const NestNode& node) const;
  void tiles(Point& row);
  void tile_at(const Point& row, Value* at, Value* column);
  void turn(std::vector<Value*>& square);

  // Columns.
  void run_pass(std::vector<Point>& rows, const std::vector<int>& reductions, const std::vector<int>& stores,
                const std::vector<int>& folds, int level_of_pass);
  Value* across_lanes(const NestNode& node, Value* v);
  std::vector<Value*> columns(std::vector<Point>& rows, int loop_index, const Work& work, std::vector<Value*> sums);
  std::vector<Value*> elements(std::vector<Point>& rows, const Work& work, std::vector<Value*> sums);
  std::vector<Value*> add_run(const Work& work, const std::vector<Value*>& now,
                              const std::function<std::vector<Value*>(std::vector<Value*>)>& run);
  std::vector<Value*> cascaded(Value* begin, Value* end, int64_t step, const Work& work, std::vector<Value*> sums,
                               const Body& body);
  std::vector<Value*> lane_columns(Point& row, int loop_index, const Work& work, std::vector<Value*> sums);
  std::vector<Value*> vector_at(Point& row, int loop_index, Value* at, Value* mask, unsigned u, const Work& work,
                                std::vector<Value*> sums);
  std::vector<Value*> element(const Point& point, unsigned u, const Work& work, std::vector<Value*> sums);

  // Folds.
  void unit_with_folds(Value* unit);
  void clear(const NestFold& f);
  void fold(const NestFold& f, Point& point);

  // Values.
  bool is_wide(const NestAccess& a) const;
  bool along_columns(int node) const;
  Value* value(int id, Point& point);
  Value* rounded(DType type, Value* v);
  Value* element_number(const NestAccess& a, const Point& point);
  Value* index(const NestNode& node, const Point& point, unsigned lanes);
  Value* lane_pointers(DType type, Value* base, unsigned lanes, int64_t stride);
  Value* load_vector(DType type, Value* p, unsigned lanes, Value* mask, int64_t stride);
  void store_vector(DType type, Value* v, Value* p, unsigned lanes, Value* mask, int64_t stride);
  Value* load(const NestAccess& a, const Point& point, unsigned lanes);
  void store(const NestStore& s, Point& point);

  llvm::LLVMContext& context_;
  llvm::Module& module_;
  llvm::IRBuilder<> b_;
  ScalarMath math_;
  const LoopNest& nest_;
  std::vector<std::vector<bool>> varies_;
  std::vector<int> level_;
  unsigned vector_ = 1;  // lanes of a vector
  int rows_ = 0, lane_ = -1, passes_ = 1;
  int pass_ = 0;              // the one being emitted
  int64_t first_column_ = 0;  // where a row starts, past its tiles
  llvm::Function* function_ = nullptr;
  std::vector<Value*> buffers_;
  Value* unit_ = nullptr;
};

}  // namespace partita
