// Choosing among cuBLASLt's algorithms, on a cuBLASLt that is this machine.
#ifdef PARTITA_STAND_INS
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <random>

#include "nlohmann/json.hpp"
#include "runtime/cuda/cuda_matmul.h"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

using runtime::CudaDevice;
using runtime::CudaMatmul;
using runtime::CudaProduct;

const CudaProduct kProduct = {.dtype = DType::kF64, .out = DType::kF64, .m = 5, .n = 6, .k = 64};

template <typename F>
F* stand_in(const char* name) {
  void* library = ::dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL);
  auto* function = library == nullptr ? nullptr : reinterpret_cast<F*>(::dlsym(library, name));
  EXPECT_NE(function, nullptr) << name;
  return function;
}
int64_t products() { return stand_in<int64_t()>("partita_cublas_products")(); }

std::unique_ptr<CudaDevice> opened(const std::string& choices) {
  static runtime::Program program;
  program.target = "cuda:sm_90";
  auto device = CudaDevice::open(program, 0);
  EXPECT_TRUE(device.ok()) << device.status();
  if (!choices.empty()) {
    const absl::Status tuned = (*device)->tune(choices);
    EXPECT_TRUE(tuned.ok()) << tuned;
  }
  return *std::move(device);
}

// A start: prepares the product and runs it once.
std::vector<double> multiplied(const std::string& choices, const CudaProduct& p = kProduct) {
  auto device = opened(choices);
  auto matmul = CudaMatmul::make(*device, p);
  EXPECT_TRUE(matmul.ok()) << matmul.status();
  if (!matmul.ok()) return {};
  EXPECT_TRUE(device->allocate_scratch().ok());
  std::mt19937 rng(1);
  std::normal_distribution<double> normal;
  std::vector<double> values(static_cast<size_t>(p.m * p.k + p.k * p.n)), result(static_cast<size_t>(p.m * p.n));
  for (double& x : values) x = normal(rng);
  auto from = device->allocate(static_cast<int64_t>(values.size() * 8)), to = device->allocate(p.m * p.n * 8);
  EXPECT_TRUE(from.ok() && to.ok());
  EXPECT_TRUE(device->write(*from, std::as_bytes(std::span(values))).ok());
  (*matmul)->run(*from, *from + p.m * p.k * 8, *to);
  EXPECT_TRUE(device->read(std::as_writable_bytes(std::span(result)), *to).ok());
  return result;
}

class Tune : public testing::Test {
 protected:
  void TearDown() override { stand_in<void(int)>("partita_cublas_slow")(0); }
  TempFolder folder;
  const std::string file = folder / "tuned.json";
};
using Tune_FirstStart = Tune;
using Tune_LaterStarts = Tune;
using Tune_OtherProducts = Tune;
using Tune_TwoStartsAtOnce = Tune;
using Tune_BadFile = Tune;

TEST_F(Tune_FirstStart, TakesTheFastestAndKeepsIt) {
  const std::vector<double> plain = multiplied("");
  stand_in<void(int)>("partita_cublas_slow")(1);
  const std::vector<double> tuned = multiplied(file);
  EXPECT_NE(tuned, plain);  // the last algorithm adds up in another order
  for (size_t k = 0; k < plain.size(); ++k) EXPECT_NEAR(tuned[k], plain[k], 1e-12);
  const auto all = nlohmann::json::parse(TempFolder::read(file));
  ASSERT_EQ(all["products"].size(), 1u);
  const auto entry = all["products"].items().begin();
  EXPECT_THAT(entry.key(), testing::HasSubstr("f64 -> f64 5 x 6 x 64"));
  EXPECT_THAT(entry.key(), testing::HasSubstr("cuBLASLt 130000"));
  EXPECT_LT(entry.value()["seconds"].get<double>(), 1e-3);
  EXPECT_GT(entry.value()["first_seconds"].get<double>(), 2e-3);
}

// Though another one would be fastest by now.
TEST_F(Tune_LaterStarts, TakeTheSameWithoutTiming) {
  stand_in<void(int)>("partita_cublas_slow")(1);
  const std::vector<double> tuned = multiplied(file);
  const std::string kept = TempFolder::read(file);
  const int64_t before = products();
  for (int start = 0; start < 3; ++start) EXPECT_EQ(multiplied(file), tuned);
  EXPECT_EQ(products(), before + 3);  // the run's own
  EXPECT_EQ(TempFolder::read(file), kept);
}

TEST_F(Tune_OtherProducts, AreAdded) {
  multiplied(file);
  CudaProduct other = kProduct;
  other.transpose_b = true;
  multiplied(file, other);
  other.align_c = 32;
  multiplied(file, other);
  EXPECT_EQ(nlohmann::json::parse(TempFolder::read(file))["products"].size(), 3u);
}

// Both began before there was a file; the one that is later takes what it finds.
TEST_F(Tune_TwoStartsAtOnce, AgreeOnOneChoice) {
  auto first = opened(file), second = opened(file);
  stand_in<void(int)>("partita_cublas_slow")(1);
  ASSERT_TRUE(CudaMatmul::make(*first, kProduct).ok());
  const std::string kept = TempFolder::read(file);
  stand_in<void(int)>("partita_cublas_slow")(0);
  ASSERT_TRUE(CudaMatmul::make(*second, kProduct).ok());
  EXPECT_EQ(TempFolder::read(file), kept);
  EXPECT_EQ(first->choices()->digest(), second->choices()->digest());
}

TEST_F(Tune_BadFile, IsRefused) {
  const auto tune = [&](const std::string& text) {
    folder.write("tuned.json", text);
    return opened("")->tune(file);
  };
  for (const char* text : {"", "[]", R"({"version": 9, "products": {}})", R"({"version": 1})",
                           R"({"version": 1, "products": {"x": {"algorithm": "12"}}})"}) {
    const absl::Status status = tune(text);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << text;
    EXPECT_THAT(status.message(), testing::HasSubstr("tuned.json' holds no tuned products of this version"));
  }
  // An algorithm that this library does not have.
  std::filesystem::remove(file);
  multiplied(file);
  std::string kept = TempFolder::read(file);
  const size_t at = kept.find("\"algorithm\": \"") + 14;
  const std::string foreign = kept.replace(at, 16, 16, 'f');
  folder.write("tuned.json", foreign);
  auto device = opened(file);
  auto made = CudaMatmul::make(*device, kProduct);
  EXPECT_EQ(made.status().code(), absl::StatusCode::kFailedPrecondition) << made.status();
  EXPECT_THAT(made.status().message(), testing::HasSubstr("remove the file of tuned products"));
}

}  // namespace
}  // namespace partita
#endif
