#include "codegen/llvm/scalar_math.h"

#include <cmath>
#include <limits>

#include "base/status.h"
#include "llvm/IR/Intrinsics.h"
#include "llvm/IR/Module.h"
#include "llvm/IR/PatternMatch.h"

namespace partita {
namespace {

unsigned bits_of(DType t) { return t == DType::kBool ? 1 : static_cast<unsigned>(dtype_size(t)) * 8; }

}  // namespace

llvm::Type* with_lanes(llvm::Type* type, unsigned lanes) {
  return lanes > 1 ? llvm::FixedVectorType::get(type, lanes) : type;
}

unsigned lanes_of(llvm::Type* type) {
  auto* v = llvm::dyn_cast<llvm::FixedVectorType>(type);
  return v == nullptr ? 1 : v->getNumElements();
}

llvm::Type* computing_type(llvm::LLVMContext& context, DType type, unsigned lanes) {
  if (type == DType::kF64) return with_lanes(llvm::Type::getDoubleTy(context), lanes);
  if (is_float(type)) return with_lanes(llvm::Type::getFloatTy(context), lanes);
  return with_lanes(llvm::Type::getIntNTy(context, bits_of(type)), lanes);
}

llvm::Type* stored_type(llvm::LLVMContext& context, DType type, unsigned lanes) {
  switch (type) {
    case DType::kBool:
      return with_lanes(llvm::Type::getInt8Ty(context), lanes);
    case DType::kF16:
      return with_lanes(llvm::Type::getHalfTy(context), lanes);
    case DType::kBF16:
      return with_lanes(llvm::Type::getInt16Ty(context), lanes);
    default:
      return computing_type(context, type, lanes);
  }
}

llvm::Type* ScalarMath::integers_like(llvm::Type* type, unsigned bits) {
  return with_lanes(llvm::Type::getIntNTy(b_.getContext(), bits), lanes_of(type));
}

llvm::Value* ScalarMath::constant(DType type, double value, int64_t integer, unsigned lanes) {
  llvm::Type* t = computing_type(b_.getContext(), type, lanes);
  return is_float(type)
             ? llvm::ConstantFP::get(t, type == DType::kF64 ? value : static_cast<double>(static_cast<float>(value)))
             : i(t, integer);
}

// libm's f64 function, lane by lane.
llvm::Value* ScalarMath::by_lane(const char* name, llvm::Value* a, llvm::Value* b) {
  llvm::Type* t = a->getType();
  llvm::Type* f64 = b_.getDoubleTy();
  std::vector<llvm::Type*> parameters(b == nullptr ? 1 : 2, f64);
  llvm::FunctionCallee callee = module_.getOrInsertFunction(name, llvm::FunctionType::get(f64, parameters, false));
  auto* function = llvm::cast<llvm::Function>(callee.getCallee());
  function->setDoesNotAccessMemory();
  function->setDoesNotThrow();
  function->setWillReturn();
  auto one = [&](llvm::Value* x, llvm::Value* y) -> llvm::Value* {
    bool narrow = x->getType()->isFloatTy();
    if (narrow) x = b_.CreateFPExt(x, f64);
    if (narrow && y != nullptr) y = b_.CreateFPExt(y, f64);
    llvm::Value* r = y == nullptr ? b_.CreateCall(callee, {x}) : b_.CreateCall(callee, {x, y});
    return narrow ? b_.CreateFPTrunc(r, b_.getFloatTy()) : r;
  };
  unsigned lanes = lanes_of(t);
  if (lanes == 1) return one(a, b);
  llvm::Value* r = llvm::PoisonValue::get(t);
  for (unsigned k = 0; k < lanes; ++k)
    r = b_.CreateInsertElement(
        r, one(b_.CreateExtractElement(a, k), b == nullptr ? nullptr : b_.CreateExtractElement(b, k)), k);
  return r;
}

// x with no sign and no fraction, which makes NaN infinity and a subnormal number 0.
llvm::Value* ScalarMath::exponent(DType type, llvm::Value* x) {
  llvm::Type* bits = integers_like(x->getType(), type == DType::kF64 ? 64 : 32);
  const int64_t mask = type == DType::kF64 ? 0x7ff0000000000000 : 0x7f800000;
  return b_.CreateBitCast(b_.CreateAnd(b_.CreateBitCast(x, bits), i(bits, mask)), x->getType());
}

llvm::Value* ScalarMath::float_function(ScalarOp op, DType type, llvm::Value* x) {
  bool wide = type == DType::kF64;
  switch (op) {
    case ScalarOp::kNeg:
      return b_.CreateFNeg(x);
    case ScalarOp::kAbs:
      return b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, x);
    case ScalarOp::kSqrt:
      return b_.CreateUnaryIntrinsic(llvm::Intrinsic::sqrt, x);
    case ScalarOp::kFloor:
      return b_.CreateUnaryIntrinsic(llvm::Intrinsic::floor, x);
    case ScalarOp::kCeil:
      return b_.CreateUnaryIntrinsic(llvm::Intrinsic::ceil, x);
    case ScalarOp::kRoundEven:
      return b_.CreateUnaryIntrinsic(llvm::Intrinsic::roundeven, x);
    case ScalarOp::kPowerOfTwo:
      return exponent(type, x);
    case ScalarOp::kExp:
      return wide ? by_lane("exp", x) : exp32(x);
    case ScalarOp::kExpm1:
      return wide ? by_lane("expm1", x) : expm1_32(x);
    case ScalarOp::kLog:
      return wide ? by_lane("log", x) : log32(x);
    case ScalarOp::kLog1p:
      return wide ? by_lane("log1p", x) : log1p_32(x);
    case ScalarOp::kTanh:
      return wide ? by_lane("tanh", x) : tanh32(x);
    case ScalarOp::kErf:
      return wide ? by_lane("erf", x) : erf32(x);
    case ScalarOp::kSin:
      return wide ? by_lane("sin", x) : sincos32(x, false);
    case ScalarOp::kCos:
      return wide ? by_lane("cos", x) : sincos32(x, true);
    case ScalarOp::kTan:
      return by_lane("tan", x);
    case ScalarOp::kAsin:
      return by_lane("asin", x);
    case ScalarOp::kAcos:
      return by_lane("acos", x);
    case ScalarOp::kAtan:
      return by_lane("atan", x);
    case ScalarOp::kSinh:
      return by_lane("sinh", x);
    case ScalarOp::kCosh:
      return by_lane("cosh", x);
    default:
      PARTITA_CHECK(false, "not a function of a float");
  }
}

llvm::Value* ScalarMath::float_binary(ScalarOp op, llvm::Value* a, llvm::Value* b) {
  llvm::IRBuilderBase::FastMathFlagGuard guard(b_);
  llvm::FastMathFlags flags;
  flags.setAllowContract(contract_);  // the functions above need their own roundings
  b_.setFastMathFlags(flags);
  switch (op) {
    case ScalarOp::kAdd:
      return b_.CreateFAdd(a, b);
    case ScalarOp::kSub:
      return b_.CreateFSub(a, b);
    case ScalarOp::kMul:
      return b_.CreateFMul(a, b);
    case ScalarOp::kDiv: {
      const auto* one = llvm::dyn_cast<llvm::ConstantFP>(a);
      return gpu_ && a->getType()->isFloatTy() && one != nullptr && one->isExactlyValue(1.0) ? divide(a, b)
                                                                                             : b_.CreateFDiv(a, b);
    }
    case ScalarOp::kPow:
      return by_lane("pow", a, b);
    case ScalarOp::kMod:
      return by_lane("fmod", a, b);
    case ScalarOp::kMax:
    case ScalarOp::kMin: {
      if (gpu_ && a->getType()->isFloatTy())
        return b_.CreateBinaryIntrinsic(op == ScalarOp::kMax ? llvm::Intrinsic::maximum : llvm::Intrinsic::minimum, a,
                                        b);
      // b where either is NaN (what maxps does), then a where a is.
      llvm::Value* m = b_.CreateSelect(op == ScalarOp::kMax ? b_.CreateFCmpOGT(a, b) : b_.CreateFCmpOLT(a, b), a, b);
      return b_.CreateSelect(b_.CreateFCmpUNO(a, a), a, m);
    }
    default:
      PARTITA_CHECK(false, "not a float operation");
  }
}

// By squaring, one call per lane of a small function of the module.
llvm::Value* ScalarMath::integer_power(DType type, llvm::Value* a, llvm::Value* b) {
  llvm::Type* i64 = b_.getInt64Ty();
  llvm::Function* function = module_.getFunction("partita_power");
  if (function == nullptr) {
    function = llvm::Function::Create(llvm::FunctionType::get(i64, {i64, i64}, false), llvm::Function::InternalLinkage,
                                      "partita_power", module_);
    llvm::IRBuilder<> fb(llvm::BasicBlock::Create(b_.getContext(), "entry", function));
    llvm::Value *base = function->getArg(0), *exponent = function->getArg(1);
    llvm::BasicBlock* start = fb.GetInsertBlock();
    llvm::BasicBlock* negative = llvm::BasicBlock::Create(b_.getContext(), "negative", function);
    llvm::BasicBlock* loop = llvm::BasicBlock::Create(b_.getContext(), "loop", function);
    llvm::BasicBlock* done = llvm::BasicBlock::Create(b_.getContext(), "done", function);
    fb.CreateCondBr(fb.CreateICmpSLT(exponent, fb.getInt64(0)), negative, loop);
    fb.SetInsertPoint(negative);
    llvm::Value* odd = fb.CreateTrunc(exponent, fb.getInt1Ty());
    llvm::Value* minus = fb.CreateSelect(odd, fb.getInt64(static_cast<uint64_t>(-1)), fb.getInt64(1));
    llvm::Value* zero = fb.getInt64(0);
    llvm::Value* r = fb.CreateSelect(fb.CreateICmpEQ(base, fb.getInt64(static_cast<uint64_t>(-1))), minus, zero);
    fb.CreateRet(fb.CreateSelect(fb.CreateICmpEQ(base, fb.getInt64(1)), fb.getInt64(1), r));
    fb.SetInsertPoint(loop);
    llvm::PHINode *e = fb.CreatePHI(i64, 2), *x = fb.CreatePHI(i64, 2), *product = fb.CreatePHI(i64, 2);
    e->addIncoming(exponent, start), x->addIncoming(base, start), product->addIncoming(fb.getInt64(1), start);
    llvm::Value* next = fb.CreateSelect(fb.CreateTrunc(e, fb.getInt1Ty()), fb.CreateMul(product, x), product);
    llvm::Value* rest = fb.CreateLShr(e, 1);
    e->addIncoming(rest, loop), x->addIncoming(fb.CreateMul(x, x), loop), product->addIncoming(next, loop);
    fb.CreateCondBr(fb.CreateICmpEQ(rest, fb.getInt64(0)), done, loop);
    fb.SetInsertPoint(done);
    fb.CreateRet(next);
  }
  bool is_signed = !is_unsigned(type);
  llvm::Type* t = a->getType();
  auto one = [&](llvm::Value* x, llvm::Value* y) {
    llvm::Value* r =
        b_.CreateCall(function, {b_.CreateIntCast(x, i64, is_signed), b_.CreateIntCast(y, i64, is_signed)});
    return b_.CreateTrunc(r, t->getScalarType());
  };
  unsigned lanes = lanes_of(t);
  if (lanes == 1) return one(a, b);
  llvm::Value* r = llvm::PoisonValue::get(t);
  for (unsigned k = 0; k < lanes; ++k)
    r = b_.CreateInsertElement(r, one(b_.CreateExtractElement(a, k), b_.CreateExtractElement(b, k)), k);
  return r;
}

llvm::Value* ScalarMath::integer_binary(ScalarOp op, DType type, llvm::Value* a, llvm::Value* b) {
  llvm::Type* t = a->getType();
  bool is_signed = !is_unsigned(type);
  switch (op) {
    case ScalarOp::kAdd:
      return b_.CreateAdd(a, b);
    case ScalarOp::kSub:
      return b_.CreateSub(a, b);
    case ScalarOp::kMul:
      return b_.CreateMul(a, b);
    case ScalarOp::kAnd:
      return b_.CreateAnd(a, b);
    case ScalarOp::kOr:
      return b_.CreateOr(a, b);
    case ScalarOp::kXor:
      return b_.CreateXor(a, b);
    case ScalarOp::kMax:
      return b_.CreateBinaryIntrinsic(is_signed ? llvm::Intrinsic::smax : llvm::Intrinsic::umax, a, b);
    case ScalarOp::kMin:
      return b_.CreateBinaryIntrinsic(is_signed ? llvm::Intrinsic::smin : llvm::Intrinsic::umin, a, b);
    case ScalarOp::kPow:
      return integer_power(type, a, b);
    case ScalarOp::kDiv:
    case ScalarOp::kMod: {
      // Division by zero gives 0; so does the remainder. The smallest number over -1 wraps.
      llvm::Value* zero = b_.CreateICmpEQ(b, i(t, 0));
      llvm::Value* minus = is_signed ? b_.CreateICmpEQ(b, i(t, -1)) : nullptr;
      llvm::Value* divisor = b_.CreateSelect(minus == nullptr ? zero : b_.CreateOr(zero, minus), i(t, 1), b);
      llvm::Value* r = nullptr;
      if (op == ScalarOp::kDiv) {
        r = is_signed ? b_.CreateSDiv(a, divisor) : b_.CreateUDiv(a, divisor);
        if (minus != nullptr) r = b_.CreateSelect(minus, b_.CreateNeg(a), r);
      } else {
        r = is_signed ? b_.CreateSRem(a, divisor) : b_.CreateURem(a, divisor);
      }
      return b_.CreateSelect(zero, i(t, 0), r);
    }
    case ScalarOp::kShl:
    case ScalarOp::kShr: {
      // In 64 bits, as the reference does it: past the width nothing is left.
      llvm::Type* wide = integers_like(t, 64);
      llvm::Value *x = b_.CreateIntCast(a, wide, is_signed), *by = b_.CreateIntCast(b, wide, is_signed);
      llvm::Value* inside = b_.CreateICmpULT(by, i(wide, 64));
      by = b_.CreateSelect(inside, by, i(wide, 0));
      llvm::Value* r = op == ScalarOp::kShl ? b_.CreateShl(x, by) : b_.CreateLShr(x, by);
      return b_.CreateTrunc(b_.CreateSelect(inside, r, i(wide, 0)), t);
    }
    default:
      PARTITA_CHECK(false, "not an integer operation");
  }
}

llvm::Value* ScalarMath::cast(DType from, DType to, llvm::Value* x) {
  unsigned lanes = lanes_of(x->getType());
  llvm::Type* t = computing_type(b_.getContext(), to, lanes);
  if (is_float(from)) {
    if (to == DType::kBool) return b_.CreateFCmpUNE(x, f(x->getType(), 0));
    if (!is_float(to))
      return b_.CreateIntrinsic(is_unsigned(to) ? llvm::Intrinsic::fptoui_sat : llvm::Intrinsic::fptosi_sat,
                                {t, x->getType()}, {x});
    if (to == DType::kF64) return from == DType::kF64 ? x : b_.CreateFPExt(x, t);
    if (from == DType::kF64) x = b_.CreateFPTrunc(x, t);
    // A cast to 16 bits rounds, even where the value stays in a register.
    return to == DType::kF32 ? x : from_stored(to, to_stored(to, x));
  }
  if (to == DType::kBool) return from == DType::kBool ? x : b_.CreateICmpNE(x, i(x->getType(), 0));
  if (is_float(to)) return is_unsigned(from) ? b_.CreateUIToFP(x, t) : b_.CreateSIToFP(x, t);
  return b_.CreateIntCast(x, t, !is_unsigned(from));
}

// High and low halves of x times a constant, on 32-bit lanes: even and odd lanes are multiplied as halves of 64-bit
// ones.
std::pair<llvm::Value*, llvm::Value*> ScalarMath::wide_product(llvm::Value* x, uint32_t factor) {
  llvm::Type* t = x->getType();
  unsigned lanes = lanes_of(t);
  if (lanes % 2 != 0) {
    llvm::Type* t64 = integers_like(t, 64);
    llvm::Value* p = b_.CreateMul(b_.CreateZExt(x, t64), i(t64, factor));
    return {b_.CreateTrunc(b_.CreateLShr(p, i(t64, 32)), t), b_.CreateTrunc(p, t)};
  }
  llvm::Type* pairs = llvm::FixedVectorType::get(b_.getInt64Ty(), lanes / 2);
  llvm::Value *low = i(pairs, 0xffffffff), *shift = i(pairs, 32), *f = i(pairs, factor);
  llvm::Value* y = b_.CreateBitCast(x, pairs);
  llvm::Value *even = b_.CreateBitCast(b_.CreateMul(b_.CreateAnd(y, low), f), t),
              *odd = b_.CreateBitCast(b_.CreateMul(b_.CreateLShr(y, shift), f), t);
  std::vector<int> highs, lows;
  for (int k = 0; k < static_cast<int>(lanes); k += 2) {
    highs.insert(highs.end(), {k + 1, static_cast<int>(lanes) + k + 1});
    lows.insert(lows.end(), {k, static_cast<int>(lanes) + k});
  }
  return {b_.CreateShuffleVector(even, odd, highs), b_.CreateShuffleVector(even, odd, lows)};
}

llvm::Value* ScalarMath::philox(llvm::Value* counter, llvm::Value* high, uint64_t key, int word) {
  llvm::Type* t32 = integers_like(counter->getType(), 32);
  llvm::Type* t64 = counter->getType();
  auto low_word = [&](llvm::Value* v) { return b_.CreateTrunc(v, t32); };
  auto high_word = [&](llvm::Value* v) { return b_.CreateTrunc(b_.CreateLShr(v, i(t64, 32)), t32); };
  llvm::Value* x[4] = {low_word(counter), high_word(counter), low_word(high), high_word(high)};
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    auto [high0, low0] = wide_product(x[0], 0xD2511F53u);
    auto [high1, low1] = wide_product(x[2], 0xCD9E8D57u);
    x[0] = b_.CreateXor(b_.CreateXor(high1, x[1]), i(t32, static_cast<int32_t>(k0)));
    x[2] = b_.CreateXor(b_.CreateXor(high0, x[3]), i(t32, static_cast<int32_t>(k1)));
    x[1] = low1, x[3] = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return x[word];
}

llvm::Value* ScalarMath::apply(const ScalarNode& node, DType from, llvm::Value* a, llvm::Value* b, llvm::Value* c) {
  bool floats = is_float(from);
  switch (node.op) {
    case ScalarOp::kEq:
      return floats ? b_.CreateFCmpOEQ(a, b) : b_.CreateICmpEQ(a, b);
    case ScalarOp::kNe:
      return floats ? b_.CreateFCmpUNE(a, b) : b_.CreateICmpNE(a, b);
    case ScalarOp::kLt:
      return floats ? b_.CreateFCmpOLT(a, b) : is_unsigned(from) ? b_.CreateICmpULT(a, b) : b_.CreateICmpSLT(a, b);
    case ScalarOp::kLe:
      return floats ? b_.CreateFCmpOLE(a, b) : is_unsigned(from) ? b_.CreateICmpULE(a, b) : b_.CreateICmpSLE(a, b);
    case ScalarOp::kNot:
      return b_.CreateNot(a);
    case ScalarOp::kSelect:
      return b_.CreateSelect(a, b, c);
    case ScalarOp::kCast:
      return cast(from, node.type, a);
    case ScalarOp::kIsNan:
      return floats ? b_.CreateFCmpUNO(a, a) : llvm::Constant::getNullValue(integers_like(a->getType(), 1));
    case ScalarOp::kIsInf:
      if (!floats) return llvm::Constant::getNullValue(integers_like(a->getType(), 1));
      return b_.CreateFCmpOEQ(b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, a),
                              f(a->getType(), std::numeric_limits<double>::infinity()));
    case ScalarOp::kPhilox:
      return philox(a, b, static_cast<uint64_t>(node.i), node.index);
    default:
      break;
  }
  if (node.b >= 0) return floats ? float_binary(node.op, a, b) : integer_binary(node.op, node.type, a, b);
  if (floats) return float_function(node.op, node.type, a);
  if (node.op == ScalarOp::kNeg) return b_.CreateNeg(a);
  if (node.op == ScalarOp::kAbs)
    return is_unsigned(from) ? a : b_.CreateBinaryIntrinsic(llvm::Intrinsic::abs, a, b_.getInt1(false));
  return a;  // rounding an integer
}

llvm::Value* ScalarMath::combine(ReduceKind kind, DType type, llvm::Value* a, llvm::Value* b) {
  ScalarOp op = kind == ReduceKind::kSum    ? ScalarOp::kAdd
                : kind == ReduceKind::kProd ? ScalarOp::kMul
                : kind == ReduceKind::kMax  ? ScalarOp::kMax
                                            : ScalarOp::kMin;
  if (type == DType::kBool && kind == ReduceKind::kSum) return b_.CreateOr(a, b);
  return is_float(type) ? float_binary(op, a, b) : integer_binary(op, type, a, b);
}

llvm::Value* ScalarMath::identity(ReduceKind kind, DType type, unsigned lanes) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  unsigned bits = bits_of(type);
  int64_t smallest = is_unsigned(type) ? 0
                     : bits == 64      ? std::numeric_limits<int64_t>::min()
                                       : -(int64_t{1} << (bits - 1));
  int64_t largest = is_unsigned(type) ? -1
                    : bits == 64      ? std::numeric_limits<int64_t>::max()
                                      : (int64_t{1} << (bits - 1)) - 1;
  switch (kind) {
    case ReduceKind::kSum:
      return constant(type, 0, 0, lanes);
    case ReduceKind::kProd:
      return constant(type, 1, 1, lanes);
    case ReduceKind::kMax:
      return constant(type, -kInfinity, smallest, lanes);
    case ReduceKind::kMin:
      return constant(type, kInfinity, largest, lanes);
  }
  return nullptr;
}

llvm::Value* ScalarMath::from_stored(DType type, llvm::Value* v) {
  unsigned lanes = lanes_of(v->getType());
  switch (type) {
    case DType::kBool:
      return b_.CreateICmpNE(v, i(v->getType(), 0));
    case DType::kF16:
      return b_.CreateFPExt(v, with_lanes(b_.getFloatTy(), lanes));
    case DType::kBF16: {
      llvm::Type* t = integers_like(v->getType(), 32);
      return b_.CreateBitCast(b_.CreateShl(b_.CreateZExt(v, t), i(t, 16)), with_lanes(b_.getFloatTy(), lanes));
    }
    default:
      return v;
  }
}

namespace {

// What from_stored() made `v` of; null where it has made it of nothing. What was rounded is not rounded again.
llvm::Value* widened_bf16(llvm::Value* v) {
  using namespace llvm::PatternMatch;
  llvm::Value* narrow = nullptr;
  const bool widened = match(v, m_BitCast(m_Shl(m_ZExt(m_Value(narrow)), m_SpecificInt(16))));
  return widened && narrow->getType()->getScalarSizeInBits() == 16 ? narrow : nullptr;
}

}  // namespace

llvm::Value* ScalarMath::to_stored(DType type, llvm::Value* v) {
  switch (type) {
    case DType::kBool:
      return b_.CreateZExt(v, integers_like(v->getType(), 8));
    case DType::kF16:
      return b_.CreateFPTrunc(v, with_lanes(b_.getHalfTy(), lanes_of(v->getType())));
    case DType::kBF16: {
      if (llvm::Value* narrow = widened_bf16(v)) return narrow;
      if (gpu_) return b_.CreateBitCast(b_.CreateFPTrunc(v, b_.getBFloatTy()), b_.getInt16Ty());
      llvm::Type* t = integers_like(v->getType(), 32);
      llvm::Value* bits = b_.CreateBitCast(v, t);
      llvm::Value* high = b_.CreateLShr(bits, i(t, 16));
      llvm::Value* rounded =
          b_.CreateLShr(b_.CreateAdd(bits, b_.CreateAdd(i(t, 0x7fff), b_.CreateAnd(high, i(t, 1)))), i(t, 16));
      llvm::Value* nan = b_.CreateOr(high, i(t, 0x40));
      return b_.CreateTrunc(b_.CreateSelect(b_.CreateFCmpUNO(v, v), nan, rounded), integers_like(t, 16));
    }
    default:
      return v;
  }
}

}  // namespace partita
