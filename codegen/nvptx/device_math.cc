#include "codegen/nvptx/device_math.h"

#include <cmath>
#include <initializer_list>
#include <limits>
#include <string>
#include <vector>

#include "base/cat.h"
#include "base/quote.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/Intrinsics.h"

namespace partita {
namespace {

using llvm::Value;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Writes one function. Polynomials are Taylor series, whose arguments the reductions make small enough.
class MathBody {
 public:
  explicit MathBody(llvm::Function& f)
      : function_(f), b_(llvm::BasicBlock::Create(f.getContext(), "entry", &f)), f64_(b_.getDoubleTy()) {}

  bool write(const std::string& name) {
    Value* x = function_.getArg(0);
    Value* r = nullptr;
    if (name == "exp") r = exp(x);
    if (name == "expm1") r = expm1(x);
    if (name == "log") r = log(x);
    if (name == "log1p") r = log1p(x);
    if (name == "tanh") r = tanh(x);
    if (name == "sinh") r = sinh(x);
    if (name == "cosh") r = cosh(x);
    if (name == "sin") r = sine(x, 0);
    if (name == "cos") r = sine(x, 1);
    if (name == "tan") r = b_.CreateFDiv(sine(x, 0), sine(x, 1));
    if (name == "atan") r = atan(x);
    if (name == "asin") r = asin(x);
    if (name == "acos") r = acos(x);
    if (name == "erf") r = erf(x);
    if (name == "pow") r = pow(x, function_.getArg(1));
    if (name == "fmod") r = fmod(x, function_.getArg(1));
    if (r == nullptr) return false;
    b_.CreateRet(r);
    return true;
  }

 private:
  Value* c(double v) { return llvm::ConstantFP::get(f64_, v); }
  Value* i(int64_t v) { return b_.getInt64(static_cast<uint64_t>(v)); }
  Value* add(Value* a, Value* b) { return b_.CreateFAdd(a, b); }
  Value* sub(Value* a, Value* b) { return b_.CreateFSub(a, b); }
  Value* mul(Value* a, Value* b) { return b_.CreateFMul(a, b); }
  Value* div(Value* a, Value* b) { return b_.CreateFDiv(a, b); }
  Value* less(Value* a, Value* b) { return b_.CreateFCmpOLT(a, b); }
  Value* pick(Value* condition, Value* a, Value* b) { return b_.CreateSelect(condition, a, b); }
  Value* fma(Value* a, Value* b, Value* d) { return b_.CreateIntrinsic(llvm::Intrinsic::fma, {f64_}, {a, b, d}); }
  Value* abs(Value* a) { return b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, a); }
  Value* root(Value* a) { return b_.CreateUnaryIntrinsic(llvm::Intrinsic::sqrt, a); }
  Value* nearest(Value* a) { return b_.CreateUnaryIntrinsic(llvm::Intrinsic::rint, a); }
  Value* with_sign(Value* a, Value* of) { return b_.CreateBinaryIntrinsic(llvm::Intrinsic::copysign, a, of); }
  Value* integer(Value* a) { return b_.CreateFPToSI(a, b_.getInt64Ty()); }
  Value* clamp(Value* a, double low, double high) {
    a = pick(less(a, c(low)), c(low), a);
    return pick(b_.CreateFCmpOGT(a, c(high)), c(high), a);
  }
  // Highest power first.
  Value* horner(Value* x, const std::vector<double>& coefficients) {
    Value* r = c(coefficients[0]);
    for (size_t k = 1; k < coefficients.size(); ++k) r = fma(r, x, c(coefficients[k]));
    return r;
  }
  // 1/n! for n from `first` down to `last` in steps of `step`, with alternating signs ending in +.
  static std::vector<double> inverse_factorials(int first, int last, int step = 1, bool alternating = false) {
    std::vector<double> out;
    for (int n = first; n >= last; n -= step) {
      bool minus = alternating && (n - last) / step % 2 == 1;
      out.push_back((minus ? -1 : 1) / std::tgamma(n + 1.0));
    }
    return out;
  }

  // x = n ln 2 + r.
  struct Reduced {
    Value *n, *r;
  };
  Reduced by_ln2(Value* x) {
    Value* n = nearest(mul(x, c(1.4426950408889634074)));
    Value* r = fma(n, c(-0x1.62e42fefa3800p-1), x);
    return {n, fma(n, c(-0x1.ef35793c76730p-45), r)};
  }
  Value* power_of_two(Value* n) { return b_.CreateBitCast(b_.CreateShl(b_.CreateAdd(n, i(1023)), i(52)), f64_); }
  // In two steps, so that subnormal results and infinity come out by themselves.
  Value* scale(Value* x, Value* n) {
    Value* half = b_.CreateAShr(n, i(1));
    return mul(mul(x, power_of_two(half)), power_of_two(b_.CreateSub(n, half)));
  }
  Value* exp(Value* x) {
    Value* y = clamp(x, -746, 711);
    Reduced d = by_ln2(y);
    Value* p = horner(d.r, inverse_factorials(14, 0));
    Value* n = integer(pick(b_.CreateFCmpUNO(x, x), c(0), d.n));
    return pick(b_.CreateFCmpUNO(x, x), x, scale(p, n));
  }
  Value* expm1(Value* x) {
    Value* small = mul(x, horner(x, inverse_factorials(15, 1)));
    return pick(less(abs(x), c(0.4)), small, sub(exp(x), c(1)));
  }
  // x = 2^e m, m in [sqrt(1/2), sqrt(2)): log m = 2 atanh((m - 1) / (m + 1)).
  Value* log(Value* x) {
    Value* tiny = less(x, c(0x1p-1022));
    Value* bits = b_.CreateBitCast(pick(tiny, mul(x, c(0x1p54)), x), b_.getInt64Ty());
    Value* e = b_.CreateAShr(b_.CreateSub(bits, i(0x3fe6a09e667f3bcd)), i(52));
    Value* m = b_.CreateBitCast(b_.CreateSub(bits, b_.CreateShl(e, i(52))), f64_);
    e = b_.CreateSub(e, b_.CreateSelect(tiny, i(54), i(0)));
    Value* f = div(sub(m, c(1)), add(m, c(1)));
    Value* s = mul(f, f);
    std::vector<double> odd;
    for (int n = 25; n >= 3; n -= 2) odd.push_back(2.0 / n);
    Value* n = b_.CreateSIToFP(e, f64_);
    Value* low = fma(mul(s, f), horner(s, odd), mul(n, c(0x1.ef35793c76730p-45)));
    Value* r = fma(n, c(0x1.62e42fefa3800p-1), fma(f, c(2), low));
    r = pick(less(x, c(kInfinity)), r, x);
    r = pick(less(x, c(0)), c(kNaN), r);
    return pick(b_.CreateFCmpOEQ(x, c(0)), c(-kInfinity), r);
  }
  // log(u) for u = 1 + x rounded, and what the rounding lost, over u.
  Value* log1p(Value* x) {
    Value* u = add(c(1), x);
    Value* lost = pick(b_.CreateFCmpOGT(x, c(1)), sub(c(1), sub(u, x)), sub(x, sub(u, c(1))));
    Value* sound = b_.CreateAnd(b_.CreateFCmpOGT(u, c(0)), less(u, c(kInfinity)));
    Value* r = add(log(u), pick(sound, div(lost, u), c(0)));
    return pick(b_.CreateFCmpOEQ(x, c(0)), x, r);
  }
  Value* tanh(Value* x) {
    Value* a = clamp(abs(x), 0, 20);
    Value* t = expm1(add(a, a));
    return with_sign(div(t, add(t, c(2))), x);
  }
  // Half of e^a, without overflow before its time.
  Value* half_exp(Value* a) { return exp(sub(a, c(0.69314718055994530942))); }
  Value* sinh(Value* x) {
    Value* a = abs(x);
    Value* t = expm1(clamp(a, 0, 40));
    Value* r = mul(c(0.5), add(t, div(t, add(t, c(1)))));
    return with_sign(pick(b_.CreateFCmpOGT(a, c(40)), half_exp(a), r), x);
  }
  Value* cosh(Value* x) {
    Value* a = abs(x);
    Value* e = exp(clamp(a, 0, 40));
    return pick(b_.CreateFCmpOGT(a, c(40)), half_exp(a), mul(c(0.5), add(e, div(c(1), e))));
  }
  // sin(x + quarters pi/2): x = n pi/2 + r.
  Value* sine(Value* x, int64_t quarters) {
    Value* n = nearest(mul(x, c(0.63661977236758134308)));
    Value* r = fma(n, c(-0x1.921fb54442d18p+0), x);
    r = fma(n, c(-0x1.1a62633145c00p-54), r);
    r = clamp(fma(n, c(-0x1.b839a252049c1p-104), r), -1, 1);  // beyond where n is a whole number too
    Value* finite = less(abs(x), c(kInfinity));
    Value* quarter = b_.CreateAdd(integer(pick(less(abs(n), c(0x1p62)), n, c(0))), i(quarters));
    Value* s = mul(r, r);
    Value* sin = mul(r, horner(s, inverse_factorials(19, 1, 2, true)));
    Value* cos = horner(s, inverse_factorials(20, 0, 2, true));
    Value* v = pick(b_.CreateICmpNE(b_.CreateAnd(quarter, i(1)), i(0)), cos, sin);
    v = pick(b_.CreateICmpNE(b_.CreateAnd(quarter, i(2)), i(0)), b_.CreateFNeg(v), v);
    return pick(finite, v, c(kNaN));
  }
  // The angle is halved twice.
  Value* atan(Value* x) {
    Value* a = abs(x);
    Value* large = b_.CreateFCmpOGT(a, c(1));
    Value* y = pick(large, div(c(1), a), a);
    for (int k = 0; k < 2; ++k) y = div(y, add(c(1), root(fma(y, y, c(1)))));
    Value* s = mul(y, y);
    std::vector<double> odd;
    for (int n = 25; n >= 1; n -= 2) odd.push_back((n / 2 % 2 == 1 ? -1.0 : 1.0) / n);
    Value* r = mul(mul(y, c(4)), horner(s, odd));
    return with_sign(pick(large, sub(c(1.57079632679489661923), r), r), x);
  }
  Value* asin(Value* x) {
    Value* other = root(mul(sub(c(1), x), add(c(1), x)));
    return mul(c(2), atan(div(x, add(c(1), other))));
  }
  Value* acos(Value* x) { return mul(c(2), atan(root(div(sub(c(1), x), add(c(1), x))))); }
  // 2/sqrt(pi) e^(-x^2) sum of 2^n x^(2n+1) / (2n+1)!!, all terms of one sign.
  Value* erf(Value* x) {
    Value* a = clamp(abs(x), 0, 6);
    Value* s = mul(mul(a, a), c(2));
    Value* sum = for_each(120, {a, a}, [&](Value* k, std::vector<Value*> now) {
      Value* term = mul(now[0], div(s, fma(k, c(2), c(3))));
      return std::vector<Value*>{term, add(now[1], term)};
    })[1];
    Value* r = mul(mul(sum, c(1.12837916709551257390)), exp(b_.CreateFNeg(mul(a, a))));
    r = pick(b_.CreateFCmpOGT(r, c(1)), c(1), r);
    return pick(b_.CreateFCmpUNO(x, x), x, with_sign(r, x));
  }
  Value* pow(Value* x, Value* y) {
    Value* whole = b_.CreateFCmpOEQ(y, nearest(y));
    Value* half = mul(y, c(0.5));
    Value* odd = b_.CreateAnd(whole, b_.CreateFCmpONE(half, nearest(half)));
    Value* minus = b_.CreateICmpSLT(b_.CreateBitCast(x, b_.getInt64Ty()), i(0));
    // y log|x|; 0 * infinity has no part in it, as those cases are picked below.
    Value* r = exp(mul(y, log(abs(x))));
    r = pick(b_.CreateAnd(minus, odd), b_.CreateFNeg(r), r);
    r = pick(b_.CreateAnd(less(x, c(0)), b_.CreateAnd(b_.CreateNot(whole), less(abs(x), c(kInfinity)))), c(kNaN), r);
    Value* one = b_.CreateOr(b_.CreateFCmpOEQ(y, c(0)), b_.CreateFCmpOEQ(x, c(1)));
    one = b_.CreateOr(one, b_.CreateAnd(b_.CreateFCmpOEQ(x, c(-1)), b_.CreateFCmpOEQ(abs(y), c(kInfinity))));
    return pick(one, c(1), r);
  }
  // x - q y for the rounded quotient q is exact: once where q is small, again where it is not.
  Value* fmod(Value* x, Value* y) {
    Value *b = abs(y), *a = abs(x);
    Value* good = b_.CreateAnd(less(a, c(kInfinity)), b_.CreateFCmpOGT(b, c(0)));
    llvm::BasicBlock* before = b_.GetInsertBlock();
    auto block = [&](const char* name) { return llvm::BasicBlock::Create(function_.getContext(), name, &function_); };
    llvm::BasicBlock *head = block("loop"), *inside = block("body"), *after = block("after");
    b_.CreateBr(head);
    b_.SetInsertPoint(head);
    llvm::PHINode* r = b_.CreatePHI(f64_, 2);
    r->addIncoming(a, before);
    b_.CreateCondBr(b_.CreateAnd(good, b_.CreateFCmpOGE(abs(r), b)), inside, after);
    b_.SetInsertPoint(inside);
    Value* q = b_.CreateUnaryIntrinsic(llvm::Intrinsic::trunc, div(r, b));
    r->addIncoming(fma(b_.CreateFNeg(q), b, r), inside);
    b_.CreateBr(head);
    b_.SetInsertPoint(after);
    Value* rest = pick(less(r, c(0)), add(r, b), r);
    return pick(b_.CreateAnd(good, b_.CreateFCmpORD(y, y)), with_sign(rest, x), c(kNaN));
  }

  template <typename F>
  std::vector<Value*> for_each(int64_t count, std::vector<Value*> carried, F body) {
    llvm::BasicBlock* before = b_.GetInsertBlock();
    llvm::BasicBlock* inside = llvm::BasicBlock::Create(function_.getContext(), "body", &function_);
    llvm::BasicBlock* after = llvm::BasicBlock::Create(function_.getContext(), "after", &function_);
    b_.CreateBr(inside);
    b_.SetInsertPoint(inside);
    llvm::PHINode* k = b_.CreatePHI(b_.getInt64Ty(), 2);
    k->addIncoming(i(0), before);
    std::vector<llvm::PHINode*> phis;
    for (Value* v : carried) {
      phis.push_back(b_.CreatePHI(v->getType(), 2));
      phis.back()->addIncoming(v, before);
    }
    std::vector<Value*> next = body(b_.CreateSIToFP(k, f64_), std::vector<Value*>(phis.begin(), phis.end()));
    Value* up = b_.CreateAdd(k, i(1));
    k->addIncoming(up, inside);
    for (size_t n = 0; n < phis.size(); ++n) phis[n]->addIncoming(next[n], inside);
    b_.CreateCondBr(b_.CreateICmpSLT(up, i(count)), inside, after);
    b_.SetInsertPoint(after);
    return next;
  }

  llvm::Function& function_;
  llvm::IRBuilder<> b_;
  llvm::Type* f64_;
};

}  // namespace

absl::Status define_device_math(llvm::Module& module) {
  std::vector<llvm::Function*> declared;
  for (llvm::Function& f : module) {
    if (f.isDeclaration() && !f.isIntrinsic()) declared.push_back(&f);
  }
  for (llvm::Function* f : declared) {
    std::string name = f->getName().str();
    if (!MathBody(*f).write(name)) return absl::UnimplementedError(cat("GPU code has no function ", quote(name)));
    // Under another name, so that nobody takes it for libm's.
    f->setName("partita_f64_" + name);
    f->setLinkage(llvm::GlobalValue::InternalLinkage);
  }
  return absl::OkStatus();
}

}  // namespace partita
