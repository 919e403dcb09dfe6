// Instructions one by one, against what the ISA says of them.
#include <cmath>
#include <limits>

#include "tests/ptx/kernel_harness.h"
#include "tests/ptx/numbers.h"

namespace partita::ptx {
namespace {

const char* register_of(Type t) {
  switch (t) {
    case Type::kPred:
      return "%p";
    case Type::kF32:
      return "%f";
    case Type::kF64:
      return "%fd";
    default:
      return register_bytes(t) == 2 ? "%rs" : register_bytes(t) == 4 ? "%r" : "%rd";
  }
}
std::string bits_type(Type t) { return cat("b", 8 * register_bytes(t)); }

// What `opcode` makes of numbers given as their bits. A whole warp and a part of one must agree.
uint64_t evaluate(const std::string& opcode, Type result, const std::vector<std::pair<Type, uint64_t>>& operands) {
  std::string body, list;
  for (size_t k = 0; k < operands.size(); ++k) {
    const Type t = operands[k].first;
    const std::string name = cat(register_of(t), 10 + k);
    if (t == Type::kPred) {
      append(body, "ld.global.u32 %r40, [%rd2+", 8 * k, "]; setp.ne.s32 ", name, ", %r40, 0;\n");
    } else {
      append(body, "ld.global.", bits_type(t), " ", name, ", [%rd2+", 8 * k, "];\n");
    }
    append(list, ", ", name);
  }
  const std::string to = cat(register_of(result), "9");
  append(body, opcode, " ", to, list, ";\n");
  append(body, "mul.wide.u32 %rd3, %r1, 8; add.s64 %rd3, %rd1, %rd3;\n");
  if (result == Type::kPred) append(body, "selp.b32 %r9, 1, 0, %p9;\n");
  append(body, "st.global.", result == Type::kPred ? "b32" : bits_type(result), " [%rd3], ",
         result == Type::kPred ? "%r9" : to, ";\n");
  std::vector<uint64_t> in, found;
  for (const auto& [t, bits] : operands) in.push_back(bits);
  for (uint32_t threads : {32u, 5u}) {
    std::vector<uint64_t> out(threads, 0);
    const Run1 run = run_kernel(body, out, in, {threads, 1, 1});
    EXPECT_TRUE(run.status.ok()) << opcode << ": " << run.status;
    for (uint64_t x : out) EXPECT_EQ(x, out[0]) << opcode;
    found.push_back(out[0]);
  }
  EXPECT_EQ(found[0], found[1]) << opcode;
  return found[0];
}

uint64_t bits(float x) { return std::bit_cast<uint32_t>(x); }
uint64_t bits(double x) { return std::bit_cast<uint64_t>(x); }
uint64_t bits(int32_t x) { return static_cast<uint32_t>(x); }

using enum Type;
const float kInf = std::numeric_limits<float>::infinity(), kQuiet = std::numeric_limits<float>::quiet_NaN();

TEST(PtxIntegers, AreThoseOfTheIsa) {
  const auto s32 = [](const char* op, int32_t a, int32_t b) {
    return static_cast<int32_t>(evaluate(op, kS32, {{kS32, bits(a)}, {kS32, bits(b)}}));
  };
  EXPECT_EQ(s32("add.s32", 2147483647, 1), INT32_MIN);
  EXPECT_EQ(s32("sub.s32", 3, 5), -2);
  EXPECT_EQ(s32("mul.lo.s32", 65537, 65537), 131073);
  EXPECT_EQ(s32("mul.hi.s32", -2, 1 << 30), -1);
  EXPECT_EQ(s32("mul.hi.u32", -2, 1 << 30), (1 << 30) - 1);
  EXPECT_EQ(s32("div.s32", -7, 2), -3);
  EXPECT_EQ(s32("div.u32", -7, 2), 2147483644);
  EXPECT_EQ(s32("rem.s32", -7, 2), -1);
  EXPECT_EQ(s32("min.s32", -7, 2), -7);
  EXPECT_EQ(s32("min.u32", -7, 2), 2);
  EXPECT_EQ(s32("max.s32", -7, 2), 2);
  EXPECT_EQ(s32("and.b32", 12, 10), 8);
  EXPECT_EQ(s32("or.b32", 12, 10), 14);
  EXPECT_EQ(s32("xor.b32", 12, 10), 6);
  EXPECT_EQ(s32("shl.b32", 3, 30), static_cast<int32_t>(0xc0000000));
  EXPECT_EQ(s32("shl.b32", 3, 32), 0);
  EXPECT_EQ(s32("shr.s32", -8, 1), -4);
  EXPECT_EQ(s32("shr.s32", -8, 40), -1);
  EXPECT_EQ(s32("shr.u32", -8, 28), 15);
  EXPECT_EQ(evaluate("mad.lo.s32", kS32, {{kS32, 5}, {kS32, 6}, {kS32, 7}}), 37u);
  EXPECT_EQ(evaluate("bfe.u32", kU32, {{kU32, 0xabcd1234}, {kU32, 8}, {kU32, 12}}), 0xd12u);
  EXPECT_EQ(evaluate("bfe.s32", kS32, {{kS32, 0x00000f00}, {kU32, 8}, {kU32, 4}}), 0xffffffffu);
  EXPECT_EQ(evaluate("bfe.s32", kS32, {{kS32, 0x80000000}, {kU32, 40}, {kU32, 4}}), 0xffffffffu);
  EXPECT_EQ(evaluate("bfe.u64", kU64, {{kU64, 0xabcd1234'00000000}, {kU32, 40}, {kU32, 12}}), 0xd12u);
  EXPECT_EQ(evaluate("bfi.b32", kB32, {{kB32, 0x1f}, {kB32, 0xffff0000}, {kU32, 4}, {kU32, 4}}), 0xffff00f0u);
  EXPECT_EQ(evaluate("bfi.b32", kB32, {{kB32, 0x1f}, {kB32, 7}, {kU32, 0}, {kU32, 32}}), 0x1fu);
  EXPECT_EQ(evaluate("prmt.b32", kB32, {{kB32, 0x33221180}, {kB32, 0x77665544}, {kB32, 0x8410}}), 0xff441180u);
  EXPECT_EQ(evaluate("mul.wide.s32", kS64, {{kS32, bits(-3)}, {kS32, 1 << 30}}), static_cast<uint64_t>(-3) << 30);
  EXPECT_EQ(evaluate("mul.wide.u32", kU64, {{kU32, bits(-3)}, {kU32, 2}}), 8589934586u);
  EXPECT_EQ(evaluate("mul.wide.u16", kU32, {{kU16, 0xffff}, {kU16, 0xffff}}), 0xfffe0001u);
  EXPECT_EQ(evaluate("add.s16", kS16, {{kS16, 0x7fff}, {kS16, 1}}), 0x8000u);
  EXPECT_EQ(evaluate("mul.lo.s64", kS64, {{kS64, ~uint64_t{0}}, {kS64, 5}}), static_cast<uint64_t>(-5));
  EXPECT_EQ(evaluate("div.s64", kS64, {{kS64, static_cast<uint64_t>(-9)}, {kS64, 4}}), static_cast<uint64_t>(-2));
  EXPECT_EQ(evaluate("neg.s64", kS64, {{kS64, 9}}), static_cast<uint64_t>(-9));
  EXPECT_EQ(evaluate("not.b32", kB32, {{kB32, 9}}), 0xfffffff6u);
  EXPECT_EQ(evaluate("selp.b32", kB32, {{kB32, 4}, {kB32, 5}, {kPred, 0}}), 5u);
  EXPECT_EQ(evaluate("selp.b32", kB32, {{kB32, 4}, {kB32, 5}, {kPred, 1}}), 4u);
}

TEST(PtxFloats, RoundAsTheIsaSays) {
  const auto f32 = [](const char* op, std::vector<float> x) {
    std::vector<std::pair<Type, uint64_t>> operands;
    for (float v : x) operands.emplace_back(kF32, bits(v));
    return std::bit_cast<float>(static_cast<uint32_t>(evaluate(op, kF32, operands)));
  };
  EXPECT_EQ(f32("add.f32", {1.0f, 0x1p-24f}), 1.0f);
  EXPECT_EQ(f32("fma.rn.f32", {1 + 0x1p-12f, 1 + 0x1p-12f, -1}), 0x1p-11f + 0x1p-24f);  // one rounding
  EXPECT_EQ(f32("mul.rn.f32", {1 + 0x1p-12f, 1 + 0x1p-12f}), 1 + 0x1p-11f);
  EXPECT_EQ(f32("fma.rm.f32", {1.0f, 1.0f, 0x1p-25f}), 1.0f);
  EXPECT_EQ(f32("fma.rm.f32", {-1.0f, 1.0f, -0x1p-25f}), std::nextafter(-1.0f, -2.0f));
  EXPECT_EQ(f32("div.rn.f32", {1, 3}), 1.0f / 3.0f);
  EXPECT_EQ(f32("mul.f32", {0x1p-100f, 0x1p-40f}), 0x1p-140f);  // subnormal numbers stay
  EXPECT_EQ(f32("sqrt.rn.f32", {2}), std::sqrt(2.0f));
  EXPECT_EQ(f32("min.f32", {kQuiet, 2}), 2);
  EXPECT_EQ(f32("max.f32", {2, kQuiet}), 2);
  EXPECT_TRUE(std::isnan(f32("max.f32", {kQuiet, kQuiet})));
  EXPECT_EQ(f32("max.NaN.f32", {2, 3}), 3);
  EXPECT_TRUE(std::isnan(f32("max.NaN.f32", {kQuiet, 2})));
  EXPECT_TRUE(std::isnan(f32("min.NaN.f32", {2, kQuiet})));
  EXPECT_TRUE(std::signbit(f32("min.f32", {0.0f, -0.0f})));
  EXPECT_FALSE(std::signbit(f32("max.f32", {-0.0f, 0.0f})));
  EXPECT_EQ(f32("copysign.f32", {-0.0f, 3}), -3);
  EXPECT_EQ(f32("abs.f32", {-3}), 3);
  EXPECT_EQ(f32("neg.f32", {3}), -3);
  EXPECT_EQ(evaluate("abs.bf16", kBf16, {{kBf16, 0xc040}}), 0x4040u);
  EXPECT_EQ(evaluate("neg.bf16", kBf16, {{kBf16, 0x4040}}), 0xc040u);
  EXPECT_EQ(evaluate("max.bf16", kBf16, {{kBf16, 0x4040}, {kBf16, 0xc080}}), 0x4040u);
  EXPECT_EQ(evaluate("min.f16", kF16, {{kF16, 0x0000}, {kF16, 0x8000}}), 0x8000u);
  EXPECT_EQ(evaluate("min.f16", kF16, {{kF16, 0x7e00}, {kF16, 0x4200}}), 0x4200u);
  EXPECT_EQ(evaluate("max.NaN.f16", kF16, {{kF16, 0x7e00}, {kF16, 0x4200}}), 0x7fffu);
  EXPECT_EQ(f32("ex2.approx.f32", {-3}), 0.125f);
  EXPECT_EQ(f32("ex2.approx.ftz.f32", {-130}), 0);
  EXPECT_EQ(f32("ex2.approx.f32", {-130}), 0x1p-130f);
  EXPECT_EQ(f32("rcp.approx.ftz.f32", {4}), 0.25f);
  EXPECT_EQ(f32("rcp.approx.ftz.f32", {0x1p-130f}), kInf);
  EXPECT_EQ(f32("cvt.sat.f32.f32", {1.5f}), 1);
  EXPECT_EQ(f32("cvt.sat.f32.f32", {kQuiet}), 0);
  EXPECT_EQ(evaluate("rcp.approx.ftz.f64", kF64, {{kF64, bits(3.0)}}), bits(1 / 3.0) >> 32 << 32);
  EXPECT_EQ(evaluate("fma.rn.f64", kF64, {{kF64, bits(3.0)}, {kF64, bits(5.0)}, {kF64, bits(-1.0)}}), bits(14.0));
}

TEST(PtxComparisons, KnowNumbersThatAreNone) {
  const auto f32 = [](const char* op, float a, float b) {
    return evaluate(op, kPred, {{kF32, bits(a)}, {kF32, bits(b)}});
  };
  for (const auto& [op, less, equal, greater, unordered] :
       std::vector<std::tuple<const char*, int, int, int, int>>{{"lt", 1, 0, 0, 0},
                                                                {"le", 1, 1, 0, 0},
                                                                {"gt", 0, 0, 1, 0},
                                                                {"ge", 0, 1, 1, 0},
                                                                {"eq", 0, 1, 0, 0},
                                                                {"ne", 1, 0, 1, 0},
                                                                {"ltu", 1, 0, 0, 1},
                                                                {"leu", 1, 1, 0, 1},
                                                                {"gtu", 0, 0, 1, 1},
                                                                {"geu", 0, 1, 1, 1},
                                                                {"equ", 0, 1, 0, 1},
                                                                {"neu", 1, 0, 1, 1},
                                                                {"num", 1, 1, 1, 0},
                                                                {"nan", 0, 0, 0, 1}}) {
    const std::string opcode = cat("setp.", op, ".f32");
    EXPECT_EQ(f32(opcode.c_str(), 1, 2), static_cast<uint64_t>(less)) << op;
    EXPECT_EQ(f32(opcode.c_str(), 2, 2), static_cast<uint64_t>(equal)) << op;
    EXPECT_EQ(f32(opcode.c_str(), 2, 1), static_cast<uint64_t>(greater)) << op;
    EXPECT_EQ(f32(opcode.c_str(), 2, kQuiet), static_cast<uint64_t>(unordered)) << op;
  }
  EXPECT_EQ(evaluate("setp.lt.s32", kPred, {{kS32, bits(-1)}, {kS32, 1}}), 1u);
  EXPECT_EQ(evaluate("setp.lt.u32", kPred, {{kU32, bits(-1)}, {kU32, 1}}), 0u);
  EXPECT_EQ(evaluate("setp.gt.u64", kPred, {{kU64, ~uint64_t{0}}, {kU64, 1}}), 1u);
  EXPECT_EQ(evaluate("setp.le.f16", kPred, {{kF16, 0x3c00}, {kF16, 0x3c01}}), 1u);
  EXPECT_EQ(evaluate("and.pred", kPred, {{kPred, 1}, {kPred, 0}}), 0u);
  EXPECT_EQ(evaluate("or.pred", kPred, {{kPred, 1}, {kPred, 0}}), 1u);
  EXPECT_EQ(evaluate("not.pred", kPred, {{kPred, 0}}), 1u);
}

TEST(PtxConversions, RoundOnceAndToEven) {
  const auto to_half = [](float x) { return evaluate("cvt.rn.f16.f32", kF16, {{kF32, bits(x)}}); };
  EXPECT_EQ(to_half(1), 0x3c00u);
  EXPECT_EQ(to_half(1 + 0x1p-11f), 0x3c00u);             // halfway: to even
  EXPECT_EQ(to_half(1 + 0x1p-10f + 0x1p-11f), 0x3c02u);  // halfway: to even
  EXPECT_EQ(to_half(std::nextafter(1 + 0x1p-11f, 2.0f)), 0x3c01u);
  EXPECT_EQ(to_half(65519), 0x7bffu);
  EXPECT_EQ(to_half(65520), 0x7c00u);
  EXPECT_EQ(to_half(0x1p-24f), 1u);
  EXPECT_EQ(to_half(0x1p-25f), 0u);
  EXPECT_EQ(to_half(-0x1.8p-25f), 0x8001u);
  EXPECT_EQ(to_half(0x1p-14f - 0x1p-26f), 0x0400u);  // carries out of the subnormal ones
  EXPECT_EQ(to_half(kQuiet), 0x7fffu);
  EXPECT_EQ(evaluate("cvt.f32.f16", kF32, {{kF16, 0x0001}}), bits(0x1p-24f));
  EXPECT_EQ(evaluate("cvt.f32.f16", kF32, {{kF16, 0xfbff}}), bits(-65504.0f));
  for (uint32_t h = 0; h < 0x7c00; h += 37) EXPECT_EQ(to_f16(to_float(F16{static_cast<uint16_t>(h)})).bits, h);
  EXPECT_EQ(evaluate("cvt.rn.bf16.f32", kBf16, {{kF32, 0x3f808000}}), 0x3f80u);
  EXPECT_EQ(evaluate("cvt.rn.bf16.f32", kBf16, {{kF32, 0x3f818000}}), 0x3f82u);
  EXPECT_EQ(evaluate("cvt.rn.bf16.f32", kBf16, {{kF32, 0x3f808001}}), 0x3f81u);
  EXPECT_EQ(evaluate("cvt.rn.bf16x2.f32", kB32, {{kF32, bits(2.0f)}, {kF32, bits(1.0f)}}), 0x40003f80u);
  EXPECT_EQ(evaluate("cvt.rn.f16x2.f32", kB32, {{kF32, bits(2.0f)}, {kF32, bits(1.0f)}}), 0x40003c00u);
  EXPECT_EQ(evaluate("add.rn.f16", kF16, {{kF16, 0x3c00}, {kF16, 0x1000}}), 0x3c00u);
  EXPECT_EQ(evaluate("mul.rn.f16", kF16, {{kF16, 0x3c01}, {kF16, 0x3c01}}), 0x3c02u);
  EXPECT_EQ(evaluate("cvt.s64.s32", kS64, {{kS32, bits(-5)}}), static_cast<uint64_t>(-5));
  EXPECT_EQ(evaluate("cvt.u64.u32", kU64, {{kU32, bits(-5)}}), 0xfffffffbu);
  EXPECT_EQ(evaluate("cvt.u32.u64", kU32, {{kU64, 0x123456789}}), 0x23456789u);
  EXPECT_EQ(evaluate("cvt.rzi.s64.f64", kS64, {{kF64, bits(-2.7)}}), static_cast<uint64_t>(-2));
  EXPECT_EQ(evaluate("cvt.rni.f64.f64", kF64, {{kF64, bits(2.5)}}), bits(2.0));
  EXPECT_EQ(evaluate("cvt.rzi.s32.f32", kS32, {{kF32, bits(3e9f)}}), 0x7fffffffu);
  EXPECT_EQ(evaluate("cvt.rzi.s32.f32", kS32, {{kF32, bits(kQuiet)}}), 0u);
  EXPECT_EQ(evaluate("cvt.rn.f32.s64", kF32, {{kS64, (uint64_t{1} << 53) + 1}}), bits(0x1p53f));
  EXPECT_EQ(evaluate("cvt.rn.f32.f64", kF32, {{kF64, bits(1 + 0x1p-24)}}), bits(1.0f));
}

TEST(PtxModule, UnknownInstructions_AreNamedWithTheirLine) {
  std::vector<int> none(1);
  const auto message = [&](const char* body) { return std::string(run_kernel(body, none, none).status.message()); };
  EXPECT_EQ(message("frob.u32 %r3, %r4;"), "PTX, line 9: frob.u32: unknown opcode");
  EXPECT_EQ(message("\nadd.sat.s32 %r3, %r4, %r5;"), "PTX, line 10: add.sat.s32: unknown variant");
  EXPECT_EQ(message("add.s32 %r3, %rd4, %r5;"), "PTX, line 9: add.s32: %rd4 has another width");
  EXPECT_EQ(message("add.s32 %r3, %q4, %r5;"), "PTX, line 9: add.s32: no register: %q4");
  EXPECT_EQ(message("add.s32 %r3, %r4;"), "PTX, line 9: add.s32: too few operands");
  EXPECT_EQ(message("bra $L__nowhere;"), "PTX, line 9: no label $L__nowhere");
  EXPECT_EQ(message("ld.volatile.global.u32 %r3, [%rd1];"),
            "PTX, line 9: ld.volatile.global.u32: a space that is not known");
}

}  // namespace
}  // namespace partita::ptx
