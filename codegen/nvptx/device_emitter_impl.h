// The emitter of one kernel; see device_emitter.h. Its parts: device_emitter.cc (shapes), device_emitter_rows.cc
// (passes over a row, folds), device_emitter_team.cc (reductions among threads), device_emitter_values.cc (operations).
//
// Where the points of a row do not divide evenly among threads, those past the end compute the last one again: they
// neither store nor count in a reduction, and every thread reaches every barrier.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "codegen/llvm/scalar_math.h"
#include "codegen/nvptx/device_emitter.h"
#include "llvm/IR/IRBuilder.h"

namespace partita {

class DeviceEmitter {
 public:
  DeviceEmitter(llvm::Module& module, const LoopNest& nest, const DeviceSchedule& schedule, bool batched);
  llvm::Function* emit(const std::string& name);

 private:
  using Value = llvm::Value;
  // What is the same for all columns of a row: loop indices, values, whether the row exists (nullptr: always).
  struct Row {
    std::vector<Value*> index;
    std::vector<Value*> known;
    Value* inside = nullptr;
  };
  // Neighbouring points along the last loop, `schedule.vector` of them.
  struct Element {
    std::vector<Value*> index;  // of the first
    std::vector<std::vector<Value*>> known;
    Value* inside = nullptr;
  };
  // What one pass over the columns of a row does.
  struct Work {
    std::vector<int> reductions, stores, folds;
    bool empty() const { return reductions.empty() && stores.empty() && folds.empty(); }
  };
  using Values = std::vector<Value*>;

  // Numbers of points and elements, in the schedule's width.
  Value* n(int64_t v) { return llvm::ConstantInt::get(number_, static_cast<uint64_t>(v), true); }
  Value* minimum(Value* a, Value* b) { return b_.CreateSelect(b_.CreateICmpSLT(a, b), a, b); }
  Value* both(Value* a, Value* b) { return a == nullptr ? b : b == nullptr ? a : b_.CreateAnd(a, b); }
  int last_loop() const { return static_cast<int>(nest_.sizes.size()) - 1; }
  // The bound of points that may be too many; nullptr where they never are.
  Value* below(Value* a, int64_t limit, bool always) { return always ? nullptr : b_.CreateICmpSLT(a, n(limit)); }
  void if_inside(Value* condition, const std::function<void()>& then);
  Values loop(Value* begin, Value* end, int64_t step, Values carried,
              const std::function<Values(Value*, Values)>& body);

  void find_entry();
  Value* buffer(int operand);

  // Shapes.
  void points();
  void tiles();
  void rows();
  void units();
  // Splits a number into the indices of loops [begin, end), the last one running fastest.
  void decode(Value* number, int begin, int end, int64_t step_of_last, std::vector<Value*>& index);
  Row new_row() const;
  Element new_element(const Row& row) const;

  // Rows.
  int64_t row_vectors() const { return column_points(nest_) / s_.vector; }
  Work work_of(int pass) const;
  Element element_at(const Row& row, Value* number, Value* bound);
  std::vector<Element> held_elements(const Row& row, Value* bound);
  void row_body(Row& row, Value* bound, std::vector<Values>& folded);
  void load_ahead(Row& row, std::vector<Element>& held);
  // A sum of exp(x - m), m the maximum of an earlier pass: `max` and `sum` are reductions, `shift` is m, or 0 where
  // that is minus infinity.
  struct OnlineSum {
    int max, sum, shift, exp;
  };
  std::optional<OnlineSum> online_sum(int pass) const;
  bool shifts_by(int shift, int max) const;
  Value* shrunk(const OnlineSum& o, Row& row, Value* sum, Value* from);
  Value* add_online(const OnlineSum& o, Row row, Element e, Value* before, Value* after, Value* sum);
  void prepare_row(Row& row, const Work& work);
  void add_element(Row& row, Element& e, const Work& work, Values& sums);
  void row_stores(Row& row);
  void clear_folds();
  void fold_in_memory(const NestFold& f, Row& row, Element& e);
  Value* fold_address(const NestFold& f, const std::vector<Value*>& index, unsigned v);

  // Teams.
  Values team_reduce(const std::vector<int>& reductions, Values parts);
  Value* butterfly(const NestNode& node, Value* v, int width);
  Value* shuffle(Value* v, int distance);
  Value* as_word(Value* v);
  Value* from_word(Value* word, llvm::Type* type);
  Value* shared(llvm::Type* type, int64_t bytes_before, Value* index);
  void barrier();     // of the block
  void team_meets();  // of a team of several warps
  void team_barrier();
  void add_teams(std::vector<Values>& folded);
  // What a fold adds up: a value of the row, or one of each column.
  bool is_total(const NestFold& f) const { return nest_.nodes[f.node].op == NestOp::kReduce; }
  DType folded_type(const NestFold& f) const {
    return is_total(f) ? nest_.nodes[f.node].scalar.type : nest_.operands[f.access.operand];
  }
  int64_t shared_bytes() const;

  // Values.
  bool along_columns(int node) const;
  bool is_wide(const NestAccess& a) const;
  bool along_last(int node) const { return last_loop() >= 0 && varies_[node][last_loop()]; }
  Value* value(int id, Row& row, Element& e, unsigned v);
  Value* row_value(int id, Row& row);
  Value* apply(int id, Row& row, Element* e, unsigned v);
  Value* rounded(DType type, Value* v);
  Value* is_at(const ScalarNode& s, Row& row, Element& e, unsigned v);
  Value* element_number(const NestAccess& a, const std::vector<Value*>& index, int64_t add);
  Value* pointer(int operand, Value* at);
  Value* load(const NestAccess& a, const std::vector<Value*>& index, int64_t add);
  void load_vector(const NestAccess& a, int id, Element& e);
  void store(const NestStore& s, Row& row, Element& e);
  llvm::Align alignment(int operand, unsigned vector) const {
    return llvm::Align(static_cast<uint64_t>(dtype_size(nest_.operands[operand])) * vector);
  }

  llvm::LLVMContext& context_;
  llvm::Module& module_;
  llvm::IRBuilder<> b_;
  ScalarMath math_;
  const LoopNest& nest_;
  const DeviceSchedule& s_;
  bool batched_;
  std::vector<std::vector<bool>> varies_;
  std::vector<int> level_;
  int passes_ = 1, pass_ = 0;
  int first_column_ = 0;  // loops from here on are columns; all of them in shapes without rows
  llvm::Type* number_ = nullptr;
  llvm::Function* function_ = nullptr;
  llvm::GlobalVariable* shared_ = nullptr;
  Values buffers_;                              // batched: where their addresses are
  Value *thread_ = nullptr, *block_ = nullptr;  // i32; the block's number among those of its launch
  Value* points_ = nullptr;                     // kPoints, batched: vectors of points, in the schedule's width
  Value* member_ = nullptr;                     // of the team, in the schedule's width
  Value* team_ = nullptr;                       // i32, its number in the block where a unit has several
  Value* unit_ = nullptr;
};

}  // namespace partita
