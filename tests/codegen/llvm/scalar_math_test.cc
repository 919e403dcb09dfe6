// The generated functions against libm in double, over the whole range of f32.
#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

#include "base/cat.h"
#include "codegen/llvm/object_code.h"
#include "gtest/gtest.h"
#include "ir/op/op_def.h"
#include "runtime/kernel/kernel_module.h"
#include "tests/support/test_options.h"

namespace partita {
namespace {

// Calls `use` with floats, many at a time: all exponents and signs, [low, high] densely, and what is special. With
// --all every float whose magnitude is in [2^-14, 2^7) too: the rest is where functions are lines or constants.
void for_floats(double low, double high, const std::function<void(const std::vector<float>&)>& use) {
  std::vector<float> x;
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 16411)
    x.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  for (int k = 0; k <= 400000; ++k) x.push_back(static_cast<float>(low + (high - low) * k / 400000));
  for (double v :
       {0.0, -0.0, 1.0, -1.0, 1e-40, -1e-40, 88.72, 88.73, -87.3, -103.9, -104.1, 0.625, 0.9277, 9.0, 1e30, -1e30})
    x.push_back(static_cast<float>(v));
  x.push_back(INFINITY), x.push_back(-INFINITY), x.push_back(NAN);
  use(x);
  if (!test_options().all) return;
  constexpr uint32_t kRun = 1 << 20;
  for (uint32_t sign : {0u, 0x80000000u}) {
    for (uint32_t first = 113u << 23; first < 134u << 23; first += kRun) {
      x.resize(kRun);
      for (uint32_t k = 0; k < kRun; ++k) x[k] = std::bit_cast<float>(sign | (first + k));
      use(x);
    }
  }
}

// y = body(x), compiled.
class Compiled {
 public:
  Compiled(const std::function<Scalar(ScalarBuilder&, Scalar)>& body, const std::string& cpu) {
    ScalarBuilder builder;
    Scalar input = builder.input(0, DType::kF32), result = body(builder, input);
    nest_.sizes = {0};
    nest_.columns = 1;
    nest_.operands = {DType::kF32, DType::kF32};
    nest_.inputs = 1;
    for (const ScalarNode& node : builder.nodes()) {
      if (node.op == ScalarOp::kInput)
        nest_.nodes.push_back({.op = NestOp::kLoad, .scalar = node, .access = {0, {1}, 0}});
      else
        nest_.nodes.push_back({.op = NestOp::kScalar, .scalar = node});
    }
    nest_.stores = {{result.id, {1, {1}, 0}}};
    cpu_ = cpu;
  }
  std::vector<float> operator()(const std::vector<float>& x) {
    if (nest_.sizes[0] != static_cast<int64_t>(x.size())) {
      nest_.sizes[0] = static_cast<int64_t>(x.size());
      NamedNest named{"f", &nest_};
      auto object = compile_nests({&named, 1}, cpu_);
      EXPECT_TRUE(object.ok()) << object.status().message();
      module_ = *runtime::KernelModule::load(*object);
    }
    std::vector<float> y(x.size());
    char* buffers[] = {reinterpret_cast<char*>(const_cast<float*>(x.data())), reinterpret_cast<char*>(y.data())};
    (*module_->find("f"))(buffers, 0, 1);
    return y;
  }

 private:
  LoopNest nest_;
  std::string cpu_;
  std::shared_ptr<runtime::KernelModule> module_;
};

// Errors in units of the last place of the exact result, at worst.
double worst_error(ScalarOp op, double (*exact)(double), double low, double high, const std::string& cpu) {
  Compiled compiled([&](ScalarBuilder& s, Scalar x) { return s.unary(op, x); }, cpu);
  double worst = 0;
  for_floats(low, high, [&](const std::vector<float>& x) {
    const std::vector<float> y = compiled(x);
    for (size_t k = 0; k < x.size() && worst < 8; ++k) {
      bool periodic = op == ScalarOp::kSin || op == ScalarOp::kCos;
      if (periodic && std::abs(x[k]) > 1e9f && std::isfinite(x[k])) {  // the angle is lost; what is found is a sine
        if (!(std::abs(y[k]) <= 1)) worst = 1e9;
        continue;
      }
      double e = exact(x[k]);
      float r = static_cast<float>(e);
      if (std::isnan(e) || std::isinf(r) || e == 0) {
        if (std::isnan(e)
                ? std::isnan(y[k])
                : y[k] == r || (std::isinf(r) && !std::isinf(e) && std::abs(y[k]) > 3.4e38f) || (e == 0 && y[k] == 0))
          continue;
        worst = 1e9;
      } else {
        float up = std::nextafter(std::abs(r), INFINITY);
        double unit = std::isinf(up) ? std::ldexp(1.0, 104) : static_cast<double>(up) - std::abs(r);
        double error = std::abs(static_cast<double>(y[k]) - e) / unit;
        if (!(error <= worst)) worst = std::isnan(error) ? 1e9 : error;
      }
      if (worst >= 8) ADD_FAILURE() << "at " << x[k] << ": found " << y[k] << ", expected " << e;
    }
  });
  return worst;
}

TEST(ScalarMath_F32, StaysWithinTwoUnits) {
  struct Case {
    const char* name;
    ScalarOp op;
    double (*exact)(double);
    double low, high;
  };
  const Case cases[] = {
      {"exp", ScalarOp::kExp, std::exp, -104, 89},    {"log", ScalarOp::kLog, std::log, 0, 10},
      {"log1p", ScalarOp::kLog1p, std::log1p, -1, 3}, {"expm1", ScalarOp::kExpm1, std::expm1, -5, 5},
      {"tanh", ScalarOp::kTanh, std::tanh, -10, 10},  {"erf", ScalarOp::kErf, std::erf, -4, 4},
      {"sin", ScalarOp::kSin, std::sin, -100, 100},   {"cos", ScalarOp::kCos, std::cos, -100, 100},
      {"tan", ScalarOp::kTan, std::tan, -3, 3},       {"asin", ScalarOp::kAsin, std::asin, -1, 1},
      {"acos", ScalarOp::kAcos, std::acos, -1, 1},    {"atan", ScalarOp::kAtan, std::atan, -9, 9},
      {"sinh", ScalarOp::kSinh, std::sinh, -9, 9},    {"cosh", ScalarOp::kCosh, std::cosh, -9, 9},
      {"sqrt", ScalarOp::kSqrt, std::sqrt, 0, 9},
  };
  for (const Case& c : cases) {
    double error = worst_error(c.op, c.exact, c.low, c.high, "host");
    std::printf("%-6s %.3f units\n", c.name, error);
    EXPECT_LT(error, 2.0) << c.name;
  }
}

TEST(ScalarMath_F32, PowersOfTwoAreExact) {
  Compiled compiled([](ScalarBuilder& s, Scalar x) { return s.unary(ScalarOp::kPowerOfTwo, x); }, "host");
  for_floats(-9, 9, [&](const std::vector<float>& x) {
    const std::vector<float> y = compiled(x);
    for (size_t k = 0; k < x.size(); ++k) {
      const float size = std::abs(x[k]);
      if (!std::isfinite(size)) {
        ASSERT_EQ(y[k], INFINITY);
      } else if (size < 0x1p-126f) {
        ASSERT_EQ(y[k], 0) << x[k];
      } else {  // a power of two: no more than x, and more than half of it
        ASSERT_EQ(std::bit_cast<uint32_t>(y[k]) & 0x807fffffu, 0u) << x[k];
        ASSERT_TRUE(y[k] <= size && y[k] > size / 2) << x[k];
      }
    }
  });
}

// Without AVX-512, where powers of two are put together from halves.
TEST(ScalarMath_F32, OfNarrowVectors_StaysWithinTwoUnits) {
  EXPECT_LT(worst_error(ScalarOp::kExp, std::exp, -104, 89, "x86-64-v3"), 2.0);
  EXPECT_LT(worst_error(ScalarOp::kErf, std::erf, -4, 4, "x86-64-v3"), 2.0);
}

TEST(ScalarMath_F32, OfAnyVectors_HasTheSameBits) {
  for (ScalarOp op : {ScalarOp::kExp, ScalarOp::kErf}) {
    auto body = [&](ScalarBuilder& s, Scalar x) { return s.unary(op, x); };
    Compiled host(body, "host"), narrow(body, "x86-64-v3");
    for_floats(-104, 89, [&](const std::vector<float>& x) {
      const std::vector<float> a = host(x), b = narrow(x);
      for (size_t k = 0; k < x.size(); ++k) {
        if (!(std::isnan(a[k]) && std::isnan(b[k])) && std::bit_cast<uint32_t>(a[k]) != std::bit_cast<uint32_t>(b[k])) {
          ADD_FAILURE() << "at " << x[k] << ": " << a[k] << " and " << b[k];
          return;
        }
      }
    });
  }
}

// GELU as the op writes it: errors of gelu(x) / x, the share of x that passes, and of the derivative, at worst.
TEST(Gelu_F32, StaysWithinAQuarterOfAMillionth) {
  auto phi = [](double x) { return std::erfc(-x * std::sqrt(0.5)) / 2; };
  auto density = [](double x) { return std::exp(-x * x / 2) / std::sqrt(8 * std::atan(1.0)); };
  auto twice = [](double x) { return 2 * std::sqrt(0.5 / std::atan(1.0)) * (x + 0.044715 * x * x * x); };
  auto slope = [](double x) { return 2 * std::sqrt(0.5 / std::atan(1.0)) * (1 + 3 * 0.044715 * x * x); };
  auto sigmoid = [](double z) { return 1 / (1 + std::exp(-z)); };
  struct Case {
    const char* op;
    int64_t approximate;
    std::function<double(double)> exact;
  };
  const Case cases[] = {
      {"gelu", 0, phi},
      {"gelu", 1, [&](double x) { return sigmoid(twice(x)); }},
      {"gelu_grad", 0, [&](double x) { return phi(x) + (std::abs(x) < 40 ? x * density(x) : 0); }},
      {"gelu_grad", 1,
       [&](double x) {
         const double z = twice(x), s = sigmoid(z);
         return s + (std::abs(x) < 20 ? x * s * sigmoid(-z) * slope(x) : 0);
       }},
  };
  for (const Case& c : cases) {
    const bool gradient = std::string_view(c.op) == "gelu_grad";
    const OpDef* op = find_op(c.op);
    const Attrs attrs{{"approximate", c.approximate}};
    const std::vector<TensorType> types(gradient ? 2 : 1, TensorType{DType::kF32, {1}});
    Compiled compiled(
        [&](ScalarBuilder& s, Scalar x) {
          return op->scalar(s, OpView{attrs, types}, gradient ? Scalars{s.like(x, 1), x} : Scalars{x})[0];
        },
        "host");
    double worst = 0, at = 0;
    for_floats(-8, 8, [&](const std::vector<float>& x) {
      const std::vector<float> y = compiled(x);
      for (size_t k = 0; k < x.size(); ++k) {
        // Past the square root of the largest number squares are infinite.
        if (!(std::abs(x[k]) < 1e12f && std::abs(x[k]) > 1e-36f)) continue;
        const double found = gradient ? y[k] : static_cast<double>(y[k]) / x[k];
        const double error = std::abs(found - c.exact(x[k]));
        if (!(error <= worst)) worst = std::isnan(error) ? 1e9 : error, at = x[k];
      }
    });
    std::printf("%s %s: %.2e at %g\n", c.op, c.approximate != 0 ? "tanh" : "erf", worst, at);
    EXPECT_LT(worst, gradient ? 2.5e-7 : 2e-7) << c.op << " at " << at;
  }
}

}  // namespace
}  // namespace partita
