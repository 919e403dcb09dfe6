// The scalar interpreter at the values where languages differ: NaN, infinities, integer division, wrapping, saturation;
// and the Philox draws.
#include "ir/op/scalar.h"
#include "ir/graph/evaluate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/math/philox.h"
#include "ir/op/op_def.h"

namespace partita {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();
constexpr int64_t kLeast = std::numeric_limits<int64_t>::min(), kMost = std::numeric_limits<int64_t>::max();

// The op on scalars.
Tensor run(std::string_view op, const std::vector<Tensor>& inputs, const Attrs& attrs = {}) {
  std::vector<const Tensor*> in;
  for (const Tensor& t : inputs) in.push_back(&t);
  return evaluate_op(*find_op(op), attrs, in)[0];
}
Tensor number(double x) { return {{DType::kF64, {}}, {x}, {}}; }
Tensor whole(DType t, int64_t x) { return {{t, {}}, {}, {x}}; }

void expect_same(double found, double expected, const std::string& what) {
  if (std::isnan(expected)) {
    EXPECT_TRUE(std::isnan(found)) << what << " gives " << found;
  } else {
    EXPECT_EQ(found, expected) << what;
  }
}

TEST(Scalar, FloatUnary) {
  struct Case {
    const char* op;
    double x, expected;
  };
  const Case kCases[] = {
      {"abs", -kInf, kInf},     {"abs", kNan, kNan},      {"sign", -3, -1},         {"sign", 0, 0},
      {"sign", kNan, kNan},     {"sign", kInf, 1},        {"relu", kNan, kNan},     {"relu", -1, 0},
      {"exp", kInf, kInf},      {"exp", -kInf, 0},        {"log", 0, -kInf},        {"log", -1, kNan},
      {"sqrt", -1, kNan},       {"rsqrt", 0, kInf},       {"rsqrt", kInf, 0},       {"sigmoid", kInf, 1},
      {"sigmoid", -kInf, 0},    {"sigmoid", -1000, 0},    {"softplus", 1000, 1000}, {"softplus", -kInf, 0},
      {"softplus", kInf, kInf}, {"softplus", kNan, kNan}, {"tanh", -kInf, -1},      {"erf", kInf, 1},
      {"floor", -0.5, -1},      {"ceil", -0.5, -0.0},     {"round", 0.5, 0},        {"round", 1.5, 2},
      {"round", -2.5, -2},      {"round", kNan, kNan},    {"expm1", 1e-20, 1e-20},  {"log1p", 1e-20, 1e-20},
      {"silu", -1000, 0},       {"gelu", kInf, kInf},     {"gelu", kNan, kNan},
  };
  for (const Case& c : kCases)
    expect_same(run(c.op, {number(c.x)}).f[0], c.expected, c.op + std::string(" of ") + std::to_string(c.x));
}

TEST(Scalar, FloatBinary) {
  struct Case {
    const char* op;
    double a, b, expected;
  };
  const Case kCases[] = {
      {"max", kNan, 1, kNan}, {"max", 1, kNan, kNan},     {"min", kNan, 1, kNan}, {"min", 1, kNan, kNan},
      {"max", -kInf, 2, 2},   {"min", kInf, 2, 2},        {"div", 1, 0, kInf},    {"div", 0, 0, kNan},
      {"div", -1, 0, -kInf},  {"mod", -5, 3, -2},         {"mod", 5, -3, 2},      {"mod", 5.5, 2, 1.5},
      {"mod", 1, 0, kNan},    {"pow", 0, 0, 1},           {"pow", 2, -1, 0.5},    {"pow", -8, 1.0 / 3, kNan},
      {"pow", kNan, 0, 1},    {"add", kInf, -kInf, kNan}, {"mul", 0, kInf, kNan}, {"sub", kInf, kInf, kNan},
  };
  for (const Case& c : kCases)
    expect_same(run(c.op, {number(c.a), number(c.b)}).f[0], c.expected,
                c.op + std::string(" of ") + std::to_string(c.a) + " and " + std::to_string(c.b));
}

TEST(Scalar, Comparisons) {
  struct Case {
    const char* op;
    double a, b;
    bool expected;
  };
  const Case kCases[] = {{"eq", kNan, kNan, false}, {"ne", kNan, kNan, true}, {"lt", kNan, 1, false},
                         {"le", kNan, 1, false},    {"le", 1, kNan, false},   {"lt", -kInf, kInf, true},
                         {"le", kInf, kInf, true},  {"eq", 0.0, -0.0, true},  {"ne", 1, 2, true},
                         {"lt", 2, 2, false}};
  for (const Case& c : kCases)
    EXPECT_EQ(run(c.op, {number(c.a), number(c.b)}).i[0], c.expected) << c.op << " " << c.a << " " << c.b;
  EXPECT_EQ(run("lt", {whole(DType::kU64, -1), whole(DType::kU64, 1)}).i[0], 0);  // 2^64 - 1 is no small number
  EXPECT_EQ(run("lt", {whole(DType::kI64, -1), whole(DType::kI64, 1)}).i[0], 1);
  EXPECT_EQ(run("is_nan", {number(kNan)}).i[0], 1);
  EXPECT_EQ(run("is_nan", {number(kInf)}).i[0], 0);
  EXPECT_EQ(run("is_inf", {number(-kInf)}).i[0], 1);
  EXPECT_EQ(run("is_inf", {number(kNan)}).i[0], 0);
}

TEST(Scalar, IntegerBinary) {
  struct Case {
    const char* op;
    DType type;
    int64_t a, b, expected;
  };
  const Case kCases[] = {
      {"div", DType::kI64, -7, 2, -3},
      {"div", DType::kI64, 7, -2, -3},
      {"div", DType::kI64, 7, 0, 0},
      {"div", DType::kI64, kLeast, -1, kLeast},
      {"div", DType::kI32, -2147483648LL, -1, -2147483648LL},
      {"div", DType::kU64, -1, 2, kMost},
      {"mod", DType::kI64, -7, 2, -1},
      {"mod", DType::kI64, 7, -2, 1},
      {"mod", DType::kI64, 7, 0, 0},
      {"mod", DType::kI64, kLeast, -1, 0},
      {"mod", DType::kU64, -1, 10, 5},
      {"add", DType::kI64, kMost, 1, kLeast},
      {"add", DType::kI8, 127, 1, -128},
      {"add", DType::kU8, 255, 1, 0},
      {"sub", DType::kU32, 0, 1, 4294967295LL},
      {"mul", DType::kI32, 65536, 65536, 0},
      {"mul", DType::kI16, 300, 300, 24464},
      {"pow", DType::kI64, 3, 4, 81},
      {"pow", DType::kI64, 2, -1, 0},
      {"pow", DType::kI64, -1, -3, -1},
      {"pow", DType::kI64, 0, 0, 1},
      {"max", DType::kU64, -1, 1, -1},
      {"min", DType::kU64, -1, 1, 1},
      {"and", DType::kI64, 6, 3, 2},
      {"or", DType::kI64, 6, 3, 7},
      {"xor", DType::kI64, 6, 3, 5},
      {"xor", DType::kBool, 1, 1, 0},
      {"shl", DType::kU8, 255, 1, 254},
      {"shl", DType::kU64, 1, 64, 0},
      {"shr", DType::kU64, -1, 63, 1},
      {"shr", DType::kU32, 4294967295LL, 31, 1},
      {"shr", DType::kU8, 255, 8, 0},
  };
  for (const Case& c : kCases)
    EXPECT_EQ(run(c.op, {whole(c.type, c.a), whole(c.type, c.b)}).i[0], c.expected)
        << c.op << " " << dtype_name(c.type) << " " << c.a << " " << c.b;
}

TEST(Scalar, IntegerUnary) {
  EXPECT_EQ(run("neg", {whole(DType::kI64, kLeast)}).i[0], kLeast);
  EXPECT_EQ(run("neg", {whole(DType::kU8, 1)}).i[0], 255);
  EXPECT_EQ(run("abs", {whole(DType::kI8, -128)}).i[0], -128);
  EXPECT_EQ(run("abs", {whole(DType::kU64, -1)}).i[0], -1);
  EXPECT_EQ(run("sign", {whole(DType::kI32, -9)}).i[0], -1);
  EXPECT_EQ(run("sign", {whole(DType::kU64, -1)}).i[0], 1);
  EXPECT_EQ(run("not", {whole(DType::kBool, 1)}).i[0], 0);
  EXPECT_EQ(run("not", {whole(DType::kU8, 1)}).i[0], 254);
  EXPECT_EQ(run("relu", {whole(DType::kI32, -9)}).i[0], 0);
}

// More than the interpreter takes at once, with an operand that is repeated.
TEST(Scalar, ManyPoints) {
  Tensor a = Tensor::zeros({DType::kF32, {3, 200}}), b = Tensor::zeros({DType::kF32, {200}});
  for (size_t k = 0; k < a.f.size(); ++k) a.f[k] = static_cast<double>(k);
  for (size_t k = 0; k < b.f.size(); ++k) b.f[k] = static_cast<double>(k) * 1000;
  const Tensor sum = run("add", {a, b});
  for (size_t k = 0; k < a.f.size(); ++k)
    EXPECT_EQ(sum.f[k], static_cast<double>(k) + 1000 * static_cast<double>(k % 200)) << k;
}

TEST(Scalar, LogicalShiftOfSignedNarrowIntegers) {
  ScalarBuilder s;
  Scalar x = s.binary(ScalarOp::kShr, s.constant_i(DType::kI32, -1), s.constant_i(DType::kI32, 28));
  ScalarFunction f{std::move(s.nodes()), {x.id}};
  std::vector<ScalarValue> scratch, out;
  evaluate(f, {}, {}, scratch, out);
  EXPECT_EQ(out[0].i, 15);
}

TEST(Scalar, Casts) {
  struct Case {
    DType to;
    double x;
    int64_t expected;
  };
  const Case kCases[] = {
      {DType::kI32, 2.9, 2},           {DType::kI32, -2.9, -2},
      {DType::kI32, 1e20, 2147483647}, {DType::kI32, -1e20, -2147483648LL},
      {DType::kI32, kNan, 0},          {DType::kI64, kInf, kMost},
      {DType::kI64, -kInf, kLeast},    {DType::kU8, -5, 0},
      {DType::kU8, 300, 255},          {DType::kI8, 1e30, 127},
      {DType::kI8, -1e30, -128},       {DType::kU64, -1, 0},
      {DType::kU64, 1e30, -1},         {DType::kU64, 9223372036854775808.0, kLeast},
      {DType::kBool, 0.5, 1},          {DType::kBool, -0.0, 0},
      {DType::kBool, kNan, 1},
  };
  for (const Case& c : kCases)
    EXPECT_EQ(run("cast", {number(c.x)}, {{"to", c.to}}).i[0], c.expected) << dtype_name(c.to) << " " << c.x;
  EXPECT_EQ(run("cast", {whole(DType::kI64, 300)}, {{"to", DType::kU8}}).i[0], 44);
  EXPECT_EQ(run("cast", {whole(DType::kI64, 300)}, {{"to", DType::kBool}}).i[0], 1);
  EXPECT_EQ(run("cast", {whole(DType::kU64, -1)}, {{"to", DType::kF64}}).f[0], 18446744073709551615.0);
}

TEST(Scalar, SelectDropsWhatIsNotTaken) {
  EXPECT_EQ(run("select", {whole(DType::kBool, 1), number(2), number(kNan)}).f[0], 2);
  EXPECT_EQ(run("relu_grad", {number(kNan), number(-1)}).f[0], 0);
}

TEST(Random, PhiloxMatchesTheReference) {
  // Known answers of Random123's kat_vectors for philox4x32-10.
  auto zero = philox(0, 0, 0);
  EXPECT_EQ(zero[0], 0x6627e8d5u);
  EXPECT_EQ(zero[3], 0x9b00dbd8u);
  auto ones = philox(~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0});
  EXPECT_EQ(ones[0], 0x408f276du);
  EXPECT_EQ(ones[3], 0x6d5451fdu);
}

TEST(Random, DrawsAreDistributedAndRepeat) {
  constexpr int64_t kCount = 20000;
  Tensor index = Tensor::zeros({DType::kI64, {kCount}});
  for (int64_t k = 0; k < kCount; ++k) index.i[k] = k;
  Attrs attrs = {{"seed", int64_t{1}}, {"instance", int64_t{2}}},
        other = {{"seed", int64_t{2}}, {"instance", int64_t{1}}};
  Tensor u = run("uniform", {index, whole(DType::kI64, 5)}, attrs),
         n = run("normal", {index, whole(DType::kI64, 5)}, attrs);
  double mean = 0, square = 0, normal_mean = 0, normal_square = 0;
  for (int64_t k = 0; k < kCount; ++k) {
    ASSERT_GE(u.f[k], 0);
    ASSERT_LT(u.f[k], 1);
    mean += u.f[k] / kCount;
    square += u.f[k] * u.f[k] / kCount;
    normal_mean += n.f[k] / kCount;
    normal_square += n.f[k] * n.f[k] / kCount;
  }
  EXPECT_NEAR(mean, 0.5, 0.01);
  EXPECT_NEAR(square, 1.0 / 3, 0.01);
  EXPECT_NEAR(normal_mean, 0, 0.03);
  EXPECT_NEAR(normal_square, 1, 0.04);
  EXPECT_EQ(run("uniform", {index, whole(DType::kI64, 5)}, attrs).f, u.f);
  EXPECT_NE(run("uniform", {index, whole(DType::kI64, 6)}, attrs).f, u.f);
  EXPECT_NE(run("uniform", {index, whole(DType::kI64, 5)}, other).f, u.f);
}

TEST(Reductions, EmptyAndNan) {
  Attrs attrs = {{"dims", std::vector<int64_t>{0}}, {"keep", int64_t{0}}};
  auto floats = [](std::vector<double> v) {
    return Tensor{{DType::kF64, {static_cast<int64_t>(v.size())}}, std::move(v), {}};
  };
  auto ints = [](DType t, std::vector<int64_t> v) {
    return Tensor{{t, {static_cast<int64_t>(v.size())}}, {}, std::move(v)};
  };
  EXPECT_EQ(run("reduce_sum", {floats({})}, attrs).f[0], 0);
  EXPECT_EQ(run("reduce_prod", {floats({})}, attrs).f[0], 1);
  EXPECT_EQ(run("reduce_max", {floats({})}, attrs).f[0], -kInf);
  EXPECT_EQ(run("reduce_min", {floats({})}, attrs).f[0], kInf);
  EXPECT_EQ(run("reduce_max", {ints(DType::kI8, {})}, attrs).i[0], -128);
  EXPECT_EQ(run("reduce_min", {ints(DType::kI8, {})}, attrs).i[0], 127);
  EXPECT_EQ(run("reduce_max", {ints(DType::kI64, {})}, attrs).i[0], kLeast);
  EXPECT_EQ(run("reduce_min", {ints(DType::kU64, {})}, attrs).i[0], -1);
  EXPECT_EQ(run("reduce_min", {ints(DType::kBool, {})}, attrs).i[0], 1);
  EXPECT_TRUE(std::isnan(run("reduce_max", {floats({1, kNan, 3})}, attrs).f[0]));
  EXPECT_TRUE(std::isnan(run("reduce_min", {floats({kNan, 1})}, attrs).f[0]));
  EXPECT_EQ(run("reduce_max", {ints(DType::kU64, {1, -1, 2})}, attrs).i[0], -1);
  Attrs first = {{"dim", int64_t{0}}, {"keep", int64_t{0}}, {"last", int64_t{0}}},
        last = {{"dim", int64_t{0}}, {"keep", int64_t{0}}, {"last", int64_t{1}}};
  EXPECT_EQ(run("argmax", {floats({1, 3, 3})}, first).i[0], 1);
  EXPECT_EQ(run("argmax", {floats({1, 3, 3})}, last).i[0], 2);
  EXPECT_EQ(run("argmax", {floats({1, kNan, 3})}, first).i[0], 1);
  EXPECT_EQ(run("argmax", {floats({kInf, kNan, 3})}, last).i[0], 1);
}

}  // namespace
}  // namespace partita
