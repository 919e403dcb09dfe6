// Scalar operations as LLVM IR, on scalars or vectors alike.
//
// f32 functions are our own polynomials without branches: exp, log, log1p, expm1, tanh, erf within about 1.5 ulp over
// the whole range, infinities, NaN and subnormal numbers included. f64 functions, and the f32 ones that no model spends
// its time in (pow, sin, cos, tan, …), call libm lane by lane. On a GPU exp, what is made of it, and 1/x take its
// special function unit, in a third of the instructions: within 2 ulp, with 0 in place of subnormal numbers.
#pragma once

#include "ir/nest/loop_nest.h"
#include "llvm/IR/IRBuilder.h"

namespace partita {

// How values of a type are held while computing: f16 and bf16 as f32, bool as i1.
llvm::Type* computing_type(llvm::LLVMContext& context, DType type, unsigned lanes);
// How they lie in memory.
llvm::Type* stored_type(llvm::LLVMContext& context, DType type, unsigned lanes);

// A vector of `type`, or `type` itself for one lane; and the lanes of a type.
llvm::Type* with_lanes(llvm::Type* type, unsigned lanes);
unsigned lanes_of(llvm::Type* type);

class ScalarMath {
 public:
  // `contract`: a product may be joined to the sum that it goes into, with one rounding. `gpu`: for NVPTX, scalars
  // alone. `scalef`: vectors of 16 f32 are scaled by powers of two in one instruction (AVX-512); the bits are the same.
  ScalarMath(llvm::IRBuilder<>& builder, llvm::Module& module, bool contract = true, bool gpu = false,
             bool scalef = false)
      : b_(builder), module_(module), contract_(contract), gpu_(gpu), scalef_(scalef) {}

  // One operation; a, b, c (as far as the operation has them) are all scalars or all vectors of one length. `from` is
  // the type of operand a.
  llvm::Value* apply(const ScalarNode& node, DType from, llvm::Value* a, llvm::Value* b, llvm::Value* c);
  llvm::Value* constant(DType type, double f, int64_t i, unsigned lanes);
  // Two partial results of a reduction.
  llvm::Value* combine(ReduceKind kind, DType type, llvm::Value* a, llvm::Value* b);
  llvm::Value* identity(ReduceKind kind, DType type, unsigned lanes);

  // Between memory and computing types.
  llvm::Value* from_stored(DType type, llvm::Value* v);
  llvm::Value* to_stored(DType type, llvm::Value* v);

 private:
  llvm::Value* f(llvm::Type* like, double value) { return llvm::ConstantFP::get(like, value); }
  llvm::Value* i(llvm::Type* like, int64_t value) {
    return llvm::ConstantInt::get(like, static_cast<uint64_t>(value), true);
  }
  llvm::Value* fma(llvm::Value* a, llvm::Value* b, llvm::Value* c);
  llvm::Value* horner(llvm::Value* x, llvm::ArrayRef<double> coefficients);
  llvm::Value* power_of_two(llvm::Value* n);  // 2^n from i32 n in [-126, 127]
  llvm::Value* scale(llvm::Value* p, llvm::Value* shifted);
  llvm::Value* exp32(llvm::Value* x);
  llvm::Value* exp32_on_gpu(llvm::Value* x);
  llvm::Value* divide(llvm::Value* a, llvm::Value* b);  // on a GPU within 2 ulp
  llvm::Value* expm1_32(llvm::Value* x);
  llvm::Value* log32(llvm::Value* x);
  llvm::Value* log1p_32(llvm::Value* x);
  llvm::Value* tanh32(llvm::Value* x);
  llvm::Value* erf32(llvm::Value* x);
  llvm::Value* sincos32(llvm::Value* x, bool cosine);
  llvm::Value* by_lane(const char* name, llvm::Value* a, llvm::Value* b = nullptr);
  llvm::Value* exponent(DType type, llvm::Value* x);
  llvm::Value* float_function(ScalarOp op, DType type, llvm::Value* x);
  llvm::Value* float_binary(ScalarOp op, llvm::Value* a, llvm::Value* b);
  llvm::Value* integer_binary(ScalarOp op, DType type, llvm::Value* a, llvm::Value* b);
  llvm::Value* integer_power(DType type, llvm::Value* a, llvm::Value* b);
  llvm::Value* cast(DType from, DType to, llvm::Value* x);
  std::pair<llvm::Value*, llvm::Value*> wide_product(llvm::Value* x, uint32_t factor);
  llvm::Value* philox(llvm::Value* counter, llvm::Value* high, uint64_t key, int word);
  llvm::Type* integers_like(llvm::Type* type, unsigned bits);

  llvm::IRBuilder<>& b_;
  llvm::Module& module_;
  const bool contract_, gpu_, scalef_;
};

}  // namespace partita
