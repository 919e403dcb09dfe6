// The exact numbers that come out of compressed sums of gradients: held against what their definitions give, and
// torch's PowerSGD.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "codegen/emit_program.h"
#include "ir/graph/builder.h"
#include "nlohmann/json.hpp"
#include "partitioner/compress/compress_gradients.h"
#include "runtime/execute/executor.h"
#include "runtime/transports/collective_threads.h"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

using nlohmann::json;

// Nearest, ties to even.
float to_bf16(float x) {
  uint32_t bits = std::bit_cast<uint32_t>(x);
  bits += 0x7fff + ((bits >> 16) & 1);
  return std::bit_cast<float>(bits & 0xffff0000u);
}

// One gradient, the state "x" of each rank, is summed in backward and added to "w" in the update.
LocalProgram one_gradient(std::string_view op, int64_t ranks, const Shape& whole) {
  Builder b;
  ValueId x = b.state({.name = "x", .kind = StateKind::kFrozen}, {DType::kF32, whole});
  ValueId w = b.state({.name = "w", .kind = StateKind::kParameter},
                      {DType::kF32, op == "all_reduce" ? whole : Shape(whole.begin() + 1, whole.end())});
  b.context().segment = Segment::kBackward;
  ValueId sum = b.emit(op, {x}, {{"axes", std::vector<int64_t>{0}}, {"parts", ranks}, {"reduce", std::string("sum")}});
  b.context().segment = Segment::kUpdate;
  b.set_next("w", b.add(w, sum));
  LocalProgram p;
  p.graph = std::move(b).finish();
  p.mesh.axes = {{"data", ranks}};
  for (const State& s : p.graph.states) {
    const Shape& shape = p.graph.type(s.value).shape;
    p.states.push_back({shape, Sharding::replicated(shape)});
  }
  return p;
}

std::span<float> state_of(const runtime::Executor& executor, size_t k) {
  auto bytes = executor.memory(executor.program().states[k].operand);
  return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
}

constexpr int kRanks = 3, kCount = 500;

std::vector<std::vector<float>> random_terms(int decades) {
  std::mt19937 rng(3);
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> terms(kRanks, std::vector<float>(kRanks * kCount));
  for (auto& term : terms) {
    for (float& v : term)
      v = normal(rng) * std::pow(10.0f, static_cast<float>(rng() % static_cast<unsigned>(decades)) - 4);
  }
  return terms;
}

// Runs some steps on ranks as threads, with their terms in "x", `start` in the last state and zeros in the others;
// `check(rank, step, w)` after each.
void run_steps(const LocalProgram& local, const std::vector<std::vector<float>>& terms, int steps,
               const std::function<void(int, int, std::span<const float>)>& check,
               const std::vector<float>& start = {}) {
  auto program = emit_program(local);
  ASSERT_TRUE(program.ok()) << program.status();
  auto loaded = runtime::LoadedProgram::load(*program);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const int count = static_cast<int>(terms.size());
  runtime::ThreadWorld world(count, {.timeout = std::chrono::seconds(20)});
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < count; ++rank) {
    ranks.emplace_back([&, rank] {
      auto communicator = world.communicator(rank);
      auto executor = runtime::Executor::create(*loaded, communicator->get(), {});
      ASSERT_TRUE(executor.ok()) << executor.status();
      for (size_t k = 0; k < program->states.size(); ++k) std::ranges::fill(state_of(**executor, k), 0.0f);
      std::ranges::copy(terms[static_cast<size_t>(rank)], state_of(**executor, 0).begin());
      if (!start.empty()) std::ranges::copy(start, state_of(**executor, program->states.size() - 1).begin());
      for (int step = 0; step < steps; ++step) {
        auto status = (*executor)->run(program->schedule, [](int64_t, int64_t) { return absl::OkStatus(); });
        ASSERT_TRUE(status.ok()) << status;
        check(rank, step, state_of(**executor, 1));
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST(CompressedSum_Bf16, IsTheRoundedSumOfRoundedTerms) {
  const auto terms = random_terms(9);
  for (std::string op : {"all_reduce", "reduce_scatter"}) {
    LocalProgram local = one_gradient(op, kRanks, {kRanks, kCount});
    CompressedGradients done = compress_gradients(local, Compression::kBf16, {0}, BucketSizes::all(1 << 20));
    EXPECT_EQ(done.sums, 1);
    EXPECT_EQ(done.bytes * 2, done.plain_bytes);
    run_steps(local, terms, 1, [&](int rank, int, std::span<const float> w) {
      const size_t first = op == "all_reduce" ? 0 : static_cast<size_t>(rank * kCount);
      for (size_t k = 0; k < w.size(); ++k) {
        float sum = 0;
        for (const auto& term : terms) sum += to_bf16(term[first + k]);
        ASSERT_EQ(w[k], to_bf16(sum)) << op << " rank " << rank << " element " << k;
      }
    });
  }
}

// A value and what is left of the step before, to whole multiples of a scale by block.
class Rounding {
 public:
  Rounding(size_t size, size_t blocks) : left_(size, 0.0f), block_(size / blocks) {}

  std::vector<float> of(std::span<const float> x) {
    std::vector<float> out(x.size());
    for (size_t at = 0; at < x.size(); at += block_) {
      float most = 0;
      for (size_t k = at; k < at + block_; ++k) most = std::max(most, std::abs(x[k] + left_[k]));
      const float scale = most * static_cast<float>(1.0 / 127);
      for (size_t k = at; k < at + block_; ++k) {
        const float y = x[k] + left_[k];
        out[k] = std::nearbyint(y / scale) * scale;
        left_[k] = y - out[k];
      }
    }
    return out;
  }
  float largest_left() const {
    float most = 0;
    for (float v : left_) most = std::max(most, std::abs(v));
    return most;
  }

 private:
  std::vector<float> left_;
  size_t block_;
};

// What "w" has to be after each step, and how far it may be from the exact sum of all steps at the end: by what is
// left.
struct QuantizedSums {
  std::vector<std::vector<float>> w;
  float left = 0;
};

QuantizedSums quantized_sums(const std::vector<std::vector<float>>& terms, int steps, bool gathered) {
  const size_t size = terms[0].size();
  std::vector<Rounding> exchanged(kRanks, Rounding(size, kRanks));
  Rounding parts(size, kRanks);  // each rank's own part of the sum
  QuantizedSums out;
  std::vector<float> w(size, 0.0f);
  for (int step = 0; step < steps; ++step) {
    std::vector<float> sum(size, 0.0f);
    for (size_t r = 0; r < kRanks; ++r) {
      const std::vector<float> rounded = exchanged[r].of(terms[r]);
      for (size_t k = 0; k < size; ++k) sum[k] += rounded[k];
    }
    if (gathered) sum = parts.of(sum);
    for (size_t k = 0; k < size; ++k) w[k] += sum[k];
    out.w.push_back(w);
  }
  for (const Rounding& r : exchanged) out.left += r.largest_left();
  out.left += parts.largest_left();
  return out;
}

TEST(CompressedSum_Int8, IsTheSumOfRoundedTermsAndKeepsWhatIsLeft) {
  constexpr int kSteps = 6;
  const auto terms = random_terms(4);
  for (std::string op : {"all_reduce", "reduce_scatter"}) {
    const bool gathered = op == "all_reduce";
    const QuantizedSums expected = quantized_sums(terms, kSteps, gathered);
    ASSERT_GT(expected.left, 0);
    LocalProgram local = one_gradient(op, kRanks, {kRanks, kCount});
    CompressedGradients done = compress_gradients(local, Compression::kInt8, {0}, BucketSizes::all(1 << 20));
    EXPECT_EQ(done.sums, 1);
    EXPECT_EQ((done.bytes - kRanks * 4) * 4, done.plain_bytes) << "and a scale for each part";
    run_steps(local, terms, kSteps, [&](int rank, int step, std::span<const float> w) {
      const size_t first = gathered ? 0 : static_cast<size_t>(rank * kCount);
      int apart = 0;  // where a quotient lies between two numbers, rounding may go either way
      for (size_t k = 0; k < w.size(); ++k) {
        const float here = expected.w[static_cast<size_t>(step)][first + k];
        apart += std::abs(w[k] - here) > 1e-3f * expected.left;
        ASSERT_NEAR(w[k], here, 2 * expected.left) << op << " rank " << rank << " step " << step << " element " << k;
        if (step + 1 < kSteps) continue;
        double sum = 0;
        for (const auto& term : terms) sum += term[first + k];
        ASSERT_NEAR(w[k], kSteps * sum, 1.01 * expected.left) << "nothing is lost but the last remainders";
      }
      EXPECT_LE(apart, static_cast<int>(w.size()) / 100) << op << " rank " << rank << " step " << step;
    });
  }
}

// Sizes that the ranks do not divide, several gradients in a bucket and in many, of many ranks.
TEST(CompressedSum_Int8, IsNearTheSumForAnySizeAndNumberOfRanks) {
  for (int64_t size : {2, 7, 64, 1001}) {
    for (int count : {2, 5, 16}) {
      LocalProgram local = one_gradient("all_reduce", count, {size});
      compress_gradients(local, Compression::kInt8, {0}, BucketSizes::all(1 << 20));
      std::mt19937 rng(static_cast<unsigned>(size) * 31 + static_cast<unsigned>(count));
      std::normal_distribution<float> normal;
      std::vector<std::vector<float>> terms(static_cast<size_t>(count), std::vector<float>(static_cast<size_t>(size)));
      for (auto& term : terms) std::ranges::generate(term, [&] { return normal(rng); });
      run_steps(local, terms, 1, [&](int rank, int, std::span<const float> w) {
        for (size_t k = 0; k < w.size(); ++k) {
          double sum = 0;
          for (const auto& term : terms) sum += term[k];
          // Half a step of up to 4.5 / 127 for each term, and one of the sum.
          ASSERT_NEAR(w[k], sum, 4.5 / 254 * count + 4.5 * std::sqrt(count) / 254)
              << size << " on " << count << " rank " << rank << " element " << k;
        }
      });
    }
  }
}

TEST(CompressedSum_Int8, OfNoNumberIsNoNumberAndOfZerosIsZero) {
  auto terms = random_terms(4);
  terms[1][7] = NAN;
  LocalProgram local = one_gradient("all_reduce", kRanks, {kRanks, kCount});
  compress_gradients(local, Compression::kInt8, {0}, BucketSizes::all(1 << 20));
  run_steps(local, terms, 1, [](int, int, std::span<const float> w) { EXPECT_TRUE(std::isnan(w[7])); });
  for (auto& term : terms) std::ranges::fill(term, 0.0f);
  run_steps(local, terms, 2, [](int, int, std::span<const float> w) {
    for (float v : w) ASSERT_EQ(v, 0);
  });
}

// The sums that torch's hook gives from its start on (tests/end_to_end/powersgd_reference.py), with its first factor.
TEST(CompressedSum_PowerSgd, IsTorchs) {
  constexpr int64_t kRows = 20, kColumns = 20;
  json torch = json::parse(TempFolder::read(std::string(PARTITA_TEST_DATA) + "/powersgd.json"));
  std::vector<std::vector<float>> terms(2);
  for (size_t r = 0; r < terms.size(); ++r) {
    for (int k = 0; k < kRows * kColumns; ++k)
      terms[r].push_back(static_cast<float>(std::sin(0.37 * (k + 1) * (static_cast<double>(r) + 2)) / (1 + k % 7)));
  }
  for (size_t k = 0; k < terms[0].size(); ++k)
    ASSERT_NEAR(terms[0][k] + terms[1][k], torch["plain"][k].get<float>(), 1e-6);
  const int steps = static_cast<int>(torch["steps"].size());
  ASSERT_GE(steps, 3);
  for (std::string op : {"all_reduce", "reduce_scatter"}) {
    const bool whole = op == "all_reduce";
    LocalProgram local = one_gradient(op, 2, whole ? Shape{kRows, kColumns} : Shape{2, kRows / 2, kColumns});
    CompressedGradients done = compress_gradients(local, Compression::kPowerSgd, {0}, BucketSizes::all(1 << 20));
    EXPECT_EQ(done.sums, 1);
    EXPECT_EQ(done.bytes, 4 * (kRows + kColumns) * 4);
    EXPECT_EQ(done.plain_bytes, kRows * kColumns * 4);
    run_steps(
        local, terms, steps,
        [&](int rank, int step, std::span<const float> w) {
          const size_t first = whole ? 0 : static_cast<size_t>(rank) * w.size();
          for (size_t k = 0; k < w.size(); ++k) {
            double expected = 0;
            for (int s = 0; s <= step; ++s) expected += torch["steps"][static_cast<size_t>(s)][first + k].get<double>();
            ASSERT_NEAR(w[k], expected, 2e-5) << op << " rank " << rank << " step " << step << " element " << k;
          }
        },
        torch["start"].get<std::vector<float>>());
  }
}

// A matrix of rank 2 is what its factors of 4 columns give, and a gradient of zeros leaves no traces.
TEST(CompressedSum_PowerSgd, OfLowRankIsExactAndOfZerosIsZero) {
  constexpr int64_t kRows = 24, kColumns = 40;
  std::vector<std::vector<float>> low(2), zero(2, std::vector<float>(kRows * kColumns, 0.0f));
  for (int r = 0; r < 2; ++r) {
    for (int k = 0; k < kRows * kColumns; ++k)
      low[static_cast<size_t>(r)].push_back(1e-20f * static_cast<float>(k / kColumns - 7 + r) *
                                            static_cast<float>(k % kColumns - 11));
  }
  std::vector<float> start;
  for (int k = 0; k < kColumns * 4; ++k) start.push_back(static_cast<float>(std::sin(k + 1.)));
  for (const auto& terms : {low, zero}) {
    LocalProgram local = one_gradient("all_reduce", 2, {kRows, kColumns});
    compress_gradients(local, Compression::kPowerSgd, {0}, BucketSizes::all(1 << 20));
    run_steps(
        local, terms, 3,
        [&](int, int step, std::span<const float> w) {
          for (size_t k = 0; k < w.size(); ++k) {
            double sum = terms[0][k] + terms[1][k];
            ASSERT_NEAR(w[k], (step + 1) * sum, 1e-5 * 1e-17) << "element " << k << " step " << step;
          }
        },
        start);
  }
}

TEST(CompressedSum_PowerSgd, LeavesVectorsAndSmallMatrices) {
  for (const Shape& shape : {Shape{400}, Shape{12, 12}}) {
    LocalProgram local = one_gradient("all_reduce", 2, shape);
    CompressedGradients done = compress_gradients(local, Compression::kPowerSgd, {0}, BucketSizes::all(1 << 20));
    EXPECT_EQ(done.sums, 0);
    EXPECT_EQ(local.states.size(), 2u);
  }
}

}  // namespace
}  // namespace partita
