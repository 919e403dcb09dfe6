// The generated functions against libm in double, over the whole range of f32.
#include <cmath>
#include <cstring>

#include "base/cat.h"
#include "codegen/llvm/object_code.h"
#include "gtest/gtest.h"
#include "runtime/kernel/kernel_module.h"

namespace partita {
namespace {

std::vector<float> interesting(double low, double high) {
  std::vector<float> x;
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 16411) {  // all exponents and signs
    float f;
    uint32_t b = static_cast<uint32_t>(bits);
    std::memcpy(&f, &b, 4);
    x.push_back(f);
  }
  for (int k = 0; k <= 400000; ++k) x.push_back(static_cast<float>(low + (high - low) * k / 400000));
  for (double v :
       {0.0, -0.0, 1.0, -1.0, 1e-40, -1e-40, 88.72, 88.73, -87.3, -103.9, -104.1, 0.625, 0.9277, 9.0, 1e30, -1e30})
    x.push_back(static_cast<float>(v));
  x.push_back(INFINITY), x.push_back(-INFINITY), x.push_back(NAN);
  return x;
}

// Errors in units of the last place of the exact result, at worst.
double worst_error(ScalarOp op, double (*exact)(double), double low, double high, const std::string& cpu) {
  std::vector<float> x = interesting(low, high), y(x.size());
  LoopNest nest;
  nest.sizes = {static_cast<int64_t>(x.size())};
  nest.columns = 1;
  nest.operands = {DType::kF32, DType::kF32};
  nest.inputs = 1;
  nest.nodes = {{.op = NestOp::kLoad, .scalar = {.op = ScalarOp::kInput, .type = DType::kF32}, .access = {0, {1}, 0}},
                {.op = NestOp::kScalar, .scalar = {.op = op, .type = DType::kF32, .a = 0}}};
  nest.stores = {{1, {1, {1}, 0}}};
  NamedNest named{"f", &nest};
  auto object = compile_nests({&named, 1}, cpu);
  EXPECT_TRUE(object.ok()) << object.status().message();
  auto module = runtime::KernelModule::load(*object);
  EXPECT_TRUE(module.ok());
  char* buffers[] = {reinterpret_cast<char*>(x.data()), reinterpret_cast<char*>(y.data())};
  (*(*module)->find("f"))(buffers, 0, 1);
  double worst = 0;
  for (size_t k = 0; k < x.size(); ++k) {
    bool periodic = op == ScalarOp::kSin || op == ScalarOp::kCos;
    if (periodic && std::abs(x[k]) > 1e9f && std::isfinite(x[k])) continue;
    double e = exact(x[k]);
    float r = static_cast<float>(e);
    if (std::isnan(e) || std::isinf(r) || e == 0) {
      if (!(std::isnan(e) ? std::isnan(y[k])
                          : y[k] == r || (std::isinf(r) && !std::isinf(e) && std::abs(y[k]) > 3.4e38f) ||
                                (e == 0 && y[k] == 0))) {
        ADD_FAILURE() << "at " << x[k] << ": found " << y[k] << ", expected " << e;
        return 1e9;
      }
      continue;
    }
    float up = std::nextafter(std::abs(r), INFINITY);
    double unit = std::isinf(up) ? std::ldexp(1.0, 104) : static_cast<double>(up) - std::abs(r);
    double error = std::abs(static_cast<double>(y[k]) - e) / unit;
    if (!(error <= worst)) {
      worst = error;
      if (!(error < 8)) {
        ADD_FAILURE() << "at " << x[k] << ": found " << y[k] << ", expected " << e;
        return error;
      }
    }
  }
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
  EXPECT_LT(worst_error(ScalarOp::kExp, std::exp, -104, 89, "x86-64-v3"), 2.0);
}

}  // namespace
}  // namespace partita
