// The functions of f32 as polynomials, without branches.
#include <limits>

#include "base/math/exp_polynomial.h"
#include "codegen/llvm/scalar_math.h"
#include "llvm/IR/Intrinsics.h"
#include "llvm/IR/IntrinsicsNVPTX.h"
#include "llvm/IR/IntrinsicsX86.h"

namespace partita {

llvm::Value* ScalarMath::fma(llvm::Value* a, llvm::Value* b, llvm::Value* c) {
  return b_.CreateIntrinsic(llvm::Intrinsic::fma, {a->getType()}, {a, b, c});
}

// Highest power first.
llvm::Value* ScalarMath::horner(llvm::Value* x, llvm::ArrayRef<double> coefficients) {
  llvm::Value* r = nullptr;
  for (double c : coefficients) r = r == nullptr ? f(x->getType(), c) : fma(r, x, f(x->getType(), c));
  return r;
}

llvm::Value* ScalarMath::power_of_two(llvm::Value* n) {
  llvm::Value* biased = b_.CreateShl(b_.CreateAdd(n, i(n->getType(), 127)), i(n->getType(), 23));
  return b_.CreateBitCast(biased, with_lanes(b_.getFloatTy(), lanes_of(n->getType())));
}

// p 2^n, p about 1 and n in [-150, 128], with one rounding: subnormal results and infinity come out by themselves.
// `shifted`: n + kExpShift. AVX-512 has an instruction for it; else twice by half of n.
llvm::Value* ScalarMath::scale(llvm::Value* p, llvm::Value* shifted) {
  llvm::Type* t = p->getType();
  if (scalef_ && lanes_of(t) == 16) {
    llvm::Value* n = b_.CreateFSub(shifted, f(t, kExpShift));
    return b_.CreateIntrinsic(llvm::Intrinsic::x86_avx512_mask_scalef_ps_512, {},
                              {p, n, llvm::PoisonValue::get(t), b_.getInt16(0xffff), b_.getInt32(4)});
  }
  llvm::Type* ti = integers_like(t, 32);
  // The low bits of `shifted` are n + 254: halves of them are exponents as they are stored, and 9 bits stay.
  llvm::Value* bits = b_.CreateBitCast(shifted, ti);
  llvm::Value* half = b_.CreateLShr(bits, i(ti, 1));
  auto power = [&](llvm::Value* exponent) { return b_.CreateBitCast(b_.CreateShl(exponent, i(ti, 23)), t); };
  return b_.CreateFMul(b_.CreateFMul(p, power(half)), power(b_.CreateSub(bits, half)));
}

// x = n ln 2 + r with |r| <= ln 2 / 2: e^r by a polynomial, times 2^n.
llvm::Value* ScalarMath::exp32(llvm::Value* x) {
  if (gpu_) return exp32_on_gpu(x);
  llvm::Type* t = x->getType();
  llvm::Value* low = f(t, -104.0);
  llvm::Value* high = f(t, 89.0);
  x = b_.CreateSelect(b_.CreateFCmpOLT(x, low), low, x);
  x = b_.CreateSelect(b_.CreateFCmpOGT(x, high), high, x);
  llvm::Value* shifted = fma(x, f(t, kLog2E), f(t, kExpShift));  // the sum's low bits are the rounded integer
  llvm::Value* n = b_.CreateFSub(shifted, f(t, kExpShift));
  llvm::Value* r = fma(n, f(t, -kLn2High), x);
  r = fma(n, f(t, -kLn2Low), r);
  return scale(horner(r, kExpPolynomial), shifted);
}

// 2^(x log2 e): the product's rounded part by the unit, what it lost as a factor near 1. Minimum and maximum hand NaN
// on, and keep the rest from being infinity less infinity.
llvm::Value* ScalarMath::exp32_on_gpu(llvm::Value* x) {
  llvm::Type* t = x->getType();
  x = b_.CreateBinaryIntrinsic(llvm::Intrinsic::maximum, x, f(t, -104.0));
  x = b_.CreateBinaryIntrinsic(llvm::Intrinsic::minimum, x, f(t, 89.0));
  llvm::Value* high = b_.CreateFMul(x, f(t, 0x1.715476p+0));
  llvm::Value* low = fma(x, f(t, 0x1.715476p+0), b_.CreateFNeg(high));
  low = fma(x, f(t, 0x1.4ae0c0p-26), low);
  llvm::Value* power = b_.CreateIntrinsic(llvm::Intrinsic::nvvm_ex2_approx_ftz_f, {}, {high});
  return b_.CreateFMul(power, fma(low, f(t, 0x1.62e430p-1), f(t, 1.0)));
}

llvm::Value* ScalarMath::divide(llvm::Value* a, llvm::Value* b) {
  if (!gpu_) return b_.CreateFDiv(a, b);
  return b_.CreateFMul(a, b_.CreateIntrinsic(llvm::Intrinsic::nvvm_rcp_approx_ftz_f, {}, {b}));
}

// 2^n (e^r - 1) + (2^n - 1); 2^(n-1) twice, so that n = 128 does not overflow early.
llvm::Value* ScalarMath::expm1_32(llvm::Value* x) {
  llvm::Type* t = x->getType();
  llvm::Value* low = f(t, -20.0);
  llvm::Value* high = f(t, 89.0);
  llvm::Value* y = b_.CreateSelect(b_.CreateFCmpOLT(x, low), low, x);
  y = b_.CreateSelect(b_.CreateFCmpOGT(y, high), high, y);
  llvm::Value* magic = f(t, 12582912.0);
  llvm::Value* shifted = fma(y, f(t, 1.44269504088896341), magic);
  llvm::Value* n = b_.CreateFSub(shifted, magic);
  llvm::Value* r = fma(n, f(t, -0x1.62e400p-1), y);
  r = fma(n, f(t, -0x1.7f7d1cp-20), r);
  llvm::Value* q = horner(r, {1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5});
  llvm::Value* p = fma(b_.CreateFMul(r, r), q, r);
  llvm::Value* k =
      b_.CreateSub(b_.CreateBitCast(shifted, integers_like(t, 32)), b_.CreateBitCast(magic, integers_like(t, 32)));
  llvm::Value* half = power_of_two(b_.CreateSub(k, i(k->getType(), 1)));
  llvm::Value* sum = fma(half, p, b_.CreateFSub(half, f(t, 0.5)));
  llvm::Value* result = b_.CreateFAdd(sum, sum);
  // Around zero (n = 0) the sum is p itself, -0 included.
  return b_.CreateSelect(b_.CreateICmpEQ(k, i(k->getType(), 0)), b_.CreateSelect(b_.CreateFCmpOEQ(x, f(t, 0)), x, p),
                         result);
}

// x = 2^e m, m in [2/3, 4/3): log x = e ln 2 + log1p(m - 1). Coefficients: N. Juffa's my_logf.
llvm::Value* ScalarMath::log32(llvm::Value* x) {
  llvm::Type* t = x->getType();
  llvm::Type* ti = integers_like(t, 32);
  llvm::Value* tiny = b_.CreateFCmpOLT(x, f(t, 0x1p-126));
  llvm::Value* a = b_.CreateSelect(tiny, b_.CreateFMul(x, f(t, 0x1p23)), x);
  llvm::Value* bias = b_.CreateSelect(tiny, f(t, -23.0), f(t, 0.0));
  llvm::Value* bits = b_.CreateBitCast(a, ti);
  llvm::Value* e = b_.CreateAnd(b_.CreateSub(bits, i(ti, 0x3f2aaaab)), i(ti, static_cast<int32_t>(0xff800000)));
  llvm::Value* m = b_.CreateFSub(b_.CreateBitCast(b_.CreateSub(bits, e), t), f(t, 1.0));
  llvm::Value* n = fma(b_.CreateSIToFP(e, t), f(t, 0x1p-23), bias);
  llvm::Value* s = b_.CreateFMul(m, m);
  llvm::Value* r = fma(f(t, -0.130310059), s, f(t, -0.121483512));
  llvm::Value* q = fma(f(t, 0.140869141), s, f(t, 0.139814854));
  r = fma(r, s, f(t, -0.166846126));
  q = fma(q, s, f(t, 0.200120345));
  r = fma(r, s, f(t, -0.249996200));
  r = fma(q, m, r);
  r = fma(r, m, f(t, 0.333331972));
  r = fma(r, m, f(t, -0.5));
  r = fma(r, s, m);
  r = fma(n, f(t, 0.693147182), r);
  // Infinity and NaN stay, zero gives -infinity, less than zero NaN.
  llvm::Value* usual = b_.CreateFCmpOLT(x, f(t, std::numeric_limits<double>::infinity()));
  r = b_.CreateSelect(usual, r, x);
  r = b_.CreateSelect(b_.CreateFCmpOLT(x, f(t, 0.0)), f(t, std::numeric_limits<double>::quiet_NaN()), r);
  return b_.CreateSelect(b_.CreateFCmpOEQ(x, f(t, 0.0)), f(t, -std::numeric_limits<double>::infinity()), r);
}

// log(u) for u = 1 + x rounded, and what the rounding lost, over u.
llvm::Value* ScalarMath::log1p_32(llvm::Value* x) {
  llvm::Type* t = x->getType();
  llvm::Value* u = b_.CreateFAdd(x, f(t, 1.0));
  llvm::Value* lost = b_.CreateSelect(b_.CreateFCmpOGT(x, f(t, 1.0)), b_.CreateFSub(f(t, 1.0), b_.CreateFSub(u, x)),
                                      b_.CreateFSub(x, b_.CreateFSub(u, f(t, 1.0))));
  llvm::Value* correction = b_.CreateFDiv(lost, u);
  llvm::Value* sound =
      b_.CreateAnd(b_.CreateFCmpOGT(u, f(t, 0.0)), b_.CreateFCmpOLT(u, f(t, std::numeric_limits<double>::infinity())));
  llvm::Value* r = b_.CreateFAdd(log32(u), b_.CreateSelect(sound, correction, f(t, 0.0)));
  return b_.CreateSelect(b_.CreateFCmpOEQ(x, f(t, 0.0)), x, r);
}

// (e^2|x| - 1) / (e^2|x| + 1), with the difference accurate near zero; a short odd polynomial below 0.3 saves the
// division's rounding.
llvm::Value* ScalarMath::tanh32(llvm::Value* x) {
  llvm::Type* t = x->getType();
  llvm::Value* a = b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, x);
  a = b_.CreateSelect(b_.CreateFCmpOGT(a, f(t, 9.2)), f(t, 9.2), a);
  llvm::Value* e = exp32(b_.CreateFAdd(a, a));
  llvm::Value* large = b_.CreateFSub(f(t, 1.0), divide(f(t, 2.0), b_.CreateFAdd(e, f(t, 1.0))));
  llvm::Value* s = b_.CreateFMul(a, a);
  llvm::Value* small =
      fma(b_.CreateFMul(s, a),
          horner(s, {-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1}), a);
  llvm::Value* r = b_.CreateSelect(b_.CreateFCmpOLT(a, f(t, 0.625)), small, large);
  return b_.CreateBinaryIntrinsic(llvm::Intrinsic::copysign, r, x);
}

// Below 0.927734375 x + x p(x^2) (coefficients: N. Juffa's my_erff), above 1 - e^(-x^2) q(x), q fitted to
// e^(x^2) erfc(x) within 4e-9 of the result. Who has the normal density at x sqrt(2) to compute as well, GELU's
// gradient, shares the exponential.
llvm::Value* ScalarMath::erf32(llvm::Value* x) {
  llvm::Type* t = x->getType();
  llvm::Value* a = b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, x);
  llvm::Value* s = b_.CreateFMul(x, x);
  llvm::Value* capped = b_.CreateSelect(b_.CreateFCmpOGT(a, f(t, 3.925)), f(t, 3.925), a);
  llvm::Value* q = horner(capped, {0x1.0944aep-13, -0x1.20697ap-9, 0x1.18753cp-6, -0x1.4430b6p-4, 0x1.f46362p-3,
                                   -0x1.132b08p-1, 0x1.c19424p-1, -0x1.16432ap+0, 0x1.fcc2e0p-1});
  llvm::Value* e = exp32(b_.CreateFNeg(s));
  llvm::Value* large = b_.CreateBinaryIntrinsic(llvm::Intrinsic::copysign, fma(b_.CreateFNeg(e), q, f(t, 1.0)), x);
  llvm::Value* p =
      horner(s, {-0x1.38e000p-11, 0x1.471a58p-8, -0x1.b691b2p-6, 0x1.ce1c44p-4, -0x1.812700p-2, 0x1.06eba8p-3});
  llvm::Value* small = fma(p, x, x);
  // NaN takes the second way and stays NaN.
  return b_.CreateSelect(b_.CreateFCmpOGT(a, f(t, 0.927734375)), large, small);
}

// In f64: x = n pi/2 + r, exact for all f32 below 2^30 (beyond, the argument's own rounding has left nothing to
// compute).
llvm::Value* ScalarMath::sincos32(llvm::Value* x, bool cosine) {
  llvm::Type* t32 = x->getType();
  llvm::Type* t = with_lanes(b_.getDoubleTy(), lanes_of(t32));
  llvm::Value* y = b_.CreateFPExt(x, t);
  llvm::Value* n = b_.CreateUnaryIntrinsic(llvm::Intrinsic::rint, b_.CreateFMul(y, f(t, 0.63661977236758134308)));
  llvm::Value* r = fma(n, f(t, -1.57079632679489661923), y);
  r = fma(n, f(t, -6.123233995736766036e-17), r);
  // Where x is so large that n is not the nearest whole number, r is anything: what is returned is a sine all the same.
  r = b_.CreateSelect(b_.CreateFCmpOLT(r, f(t, -1)), f(t, -1), r);
  r = b_.CreateSelect(b_.CreateFCmpOGT(r, f(t, 1)), f(t, 1), r);
  llvm::Value* quarter = b_.CreateIntrinsic(llvm::Intrinsic::fptosi_sat, {integers_like(t, 64), t}, {n});
  if (cosine) quarter = b_.CreateAdd(quarter, i(quarter->getType(), 1));
  llvm::Value* s = b_.CreateFMul(r, r);
  llvm::Value* sine =
      fma(b_.CreateFMul(s, r), horner(s, {-1.0 / 39916800, 1.0 / 362880, -1.0 / 5040, 1.0 / 120, -1.0 / 6}), r);
  llvm::Value* cos = horner(s, {1.0 / 479001600, -1.0 / 3628800, 1.0 / 40320, -1.0 / 720, 1.0 / 24, -0.5, 1.0});
  llvm::Value* odd = b_.CreateICmpNE(b_.CreateAnd(quarter, i(quarter->getType(), 1)), i(quarter->getType(), 0));
  llvm::Value* v = b_.CreateSelect(odd, cos, sine);
  llvm::Value* minus = b_.CreateICmpNE(b_.CreateAnd(quarter, i(quarter->getType(), 2)), i(quarter->getType(), 0));
  v = b_.CreateFPTrunc(b_.CreateSelect(minus, b_.CreateFNeg(v), v), t32);
  if (!cosine) v = b_.CreateSelect(b_.CreateFCmpOEQ(x, f(t32, 0)), x, v);
  llvm::Value* finite = b_.CreateFCmpOLT(b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, x),
                                         f(t32, std::numeric_limits<double>::infinity()));
  return b_.CreateSelect(finite, v, f(t32, std::numeric_limits<double>::quiet_NaN()));
}

}  // namespace partita
