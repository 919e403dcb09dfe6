// partita_fp8_check [SECONDS] [CASE]: products of fp8 numbers with scales of blocks of 128 on a GPU: what makes such
// numbers of bf16 against their definition, number by number, and their product against cuBLASLt's product in bf16 of
// the same numbers. A line of JSON for each case, or those that have CASE in their name:
//
//   {"case": "forward 8192x4096x4096", "holds": true, "wrong_a": 0, "wrong_b": 0, "error": 0.002, "same_bits": true,
//    "fp8_ms": 0.2, "bf16_ms": 0.4, "quantize_a_ms": 0.04, "quantize_a_tb_per_s": 2.5, "both_a_ms": 0.06, …}
//
// `wrong`: numbers that are not those of the definition. `both`: the side and its transpose by one kernel, whose bytes
// are those of the side alone. An error is the distance from the product in bf16 by its length. Times are medians of 20
// runs. No case begins after SECONDS (25). Exit code 0: all hold. 1: one does not, or there is no GPU. 2: bad usage.
#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/cat.h"
#include "base/float16.h"
#include "base/math/quantized.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "runtime/device/device.h"
#include "runtime/device_check.h"
#include "runtime/program/program_check.h"

namespace partita::runtime {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

// A matrix [rows, columns] in bf16, and how it is quantized.
struct Side {
  int64_t rows, columns;
  bool e5m2, tiles, transpose;
  QuantizedMatrix quantized() const {
    return transpose ? QuantizedMatrix{columns, rows, tiles} : QuantizedMatrix{rows, columns, tiles};
  }
  int64_t count() const { return rows * columns; }
};

struct Case {
  std::string what;
  Side a, b;
  std::string name() const {
    return cat(what, " ", a.quantized().rows, "x", b.quantized().rows, "x", a.quantized().inner);
  }
};

// The three products of a layer of m rows, by its weight [k, n].
void add_layer(std::vector<Case>& cases, int64_t m, int64_t n, int64_t k) {
  cases.push_back({"forward", {m, k, false, false, false}, {k, n, false, true, true}});
  cases.push_back({"data gradient", {m, n, false, false, false}, {k, n, false, true, false}});
  cases.push_back({"data gradient of e5m2", {m, n, true, false, false}, {k, n, false, true, false}});
  cases.push_back({"weight gradient", {m, k, false, false, true}, {m, n, false, false, true}});
  cases.push_back({"weight gradient of e5m2", {m, k, false, false, true}, {m, n, true, false, true}});
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  cases.push_back({"forward", {64, 128, false, false, false}, {128, 128, false, true, true}});
  add_layer(cases, 256, 384, 640);
  add_layer(cases, 8192, 4096, 4096);
  cases.push_back({"forward", {16384, 768, false, false, false}, {768, 3072, false, true, true}});
  return cases;
}

// Numbers whose blocks differ in size.
std::vector<uint16_t> drawn(const Side& side, uint64_t seed) {
  std::vector<uint16_t> values(static_cast<size_t>(side.count()));
  uint64_t x = seed * 0x9e3779b97f4a7c15u + 1;
  for (size_t k = 0; k < values.size(); ++k) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    const int size = static_cast<int>(k / 128 * 7 % 9) - 4;
    values[k] = float_to_bf16(std::ldexp(static_cast<float>(x >> 40) * 0x1p-24f - 0.5f, size));
  }
  return values;
}

// The nearest number of the format, halves to even.
float nearest(float x, bool e5m2) {
  const int fraction = e5m2 ? 2 : 3, least = e5m2 ? -14 : -6;
  const int exponent = x == 0 ? least : std::max(std::ilogb(x), least);
  return std::ldexp(std::nearbyint(std::ldexp(x, fraction - exponent)), exponent - fraction);
}

// Each block's numbers as they are once rounded, by the definition.
std::vector<float> rounded(const Side& side, const std::vector<uint16_t>& values) {
  std::vector<float> made(values.size());
  const int64_t down = side.tiles || side.transpose ? kFp8Block : 1,
                across = side.tiles || !side.transpose ? kFp8Block : 1;
  const float largest = side.e5m2 ? 57344 : 448;
  for (int64_t r = 0; r < side.rows; r += down) {
    for (int64_t c = 0; c < side.columns; c += across) {
      const auto each = [&](auto f) {
        for (int64_t i = r; i < r + down; ++i) {
          for (int64_t j = c; j < c + across; ++j) f(static_cast<size_t>(i * side.columns + j));
        }
      };
      float most = 0x1p-80f;
      each([&](size_t at) { most = std::max(most, std::abs(bf16_to_float(values[at]))); });
      float scale = std::ldexp(1.0f, std::ilogb(most / largest));
      if (most / scale > largest) scale *= 2;
      each([&](size_t at) { made[at] = nearest(bf16_to_float(values[at]) / scale, side.e5m2) * scale; });
    }
  }
  return made;
}

float number(std::byte byte, bool e5m2) {
  const int bits = std::to_integer<int>(byte), fraction = e5m2 ? 2 : 3, bias = e5m2 ? 15 : 7;
  const int exponent = (bits & 0x7f) >> fraction, low = bits & ((1 << fraction) - 1);
  const float size = std::ldexp(static_cast<float>(exponent == 0 ? low : low + (1 << fraction)),
                                std::max(exponent, 1) - bias - fraction);
  return bits & 0x80 ? -size : size;
}

// How many of its numbers are others.
int64_t wrong(const Side& side, const std::vector<std::byte>& bytes, const std::vector<float>& expected) {
  const QuantizedMatrix q = side.quantized();
  int64_t count = 0;
  for (int64_t row = 0; row < q.rows; ++row) {
    for (int64_t k = 0; k < q.inner; ++k) {
      const int64_t block = k / kFp8Block, padded = (q.blocks() + 3) / 4 * 4;
      const int64_t at = q.tiles ? row / kFp8Block * padded + block : block * q.rows + row;
      float scale = 0;
      std::memcpy(&scale, bytes.data() + q.first_scale() + 4 * at, 4);
      const int64_t from = side.transpose ? k * side.columns + row : row * side.columns + k;
      count += number(bytes[static_cast<size_t>(row * q.inner + k)], side.e5m2) * scale !=
               expected[static_cast<size_t>(from)];
    }
  }
  return count;
}

std::string format(const Side& side) { return side.e5m2 ? "e5m2" : "e4m3"; }

Step step_of(std::string name, std::vector<Operand> operands, Params params) {
  const auto inputs = static_cast<int32_t>(operands.size() - 1);
  return {.kind = StepKind::kLibrary,
          .name = std::move(name),
          .operands = std::move(operands),
          .inputs = inputs,
          .params = std::move(params)};
}

bool has_whole_tiles(const Side& side) { return side.rows % kFp8Block == 0 && side.columns % kFp8Block == 0; }

Step quantize_step(const Side& side) {
  Params params{{"format", format(side)}};
  if (side.tiles) params["tiles"] = int64_t{1};
  if (side.transpose) params["transpose"] = int64_t{1};
  return step_of("quantize_fp8",
                 {{{}, DType::kBF16, {side.rows, side.columns}}, {{}, DType::kU8, {side.quantized().bytes()}}},
                 std::move(params));
}

// The side's bytes and those of its transpose.
Step quantize_both_step(const Side& side) {
  const QuantizedMatrix rows{side.rows, side.columns, side.tiles}, turned{side.columns, side.rows, side.tiles};
  Params params{{"format", format(side)}, {"both", int64_t{1}}};
  if (side.tiles) params["tiles"] = int64_t{1};
  Step step = step_of("quantize_fp8",
                      {{{}, DType::kBF16, {side.rows, side.columns}},
                       {{}, DType::kU8, {rows.bytes()}},
                       {{}, DType::kU8, {turned.bytes()}}},
                      std::move(params));
  step.inputs = 1;
  return step;
}

// Medians, in milliseconds.
absl::StatusOr<double> time(Device& device, LibraryKernel& kernel, const std::vector<std::byte*>& at) {
  constexpr int kWarm = 4, kTimed = 20;
  for (int k = 0; k <= kWarm + kTimed; ++k) {
    if (k >= kWarm) PARTITA_RETURN_IF_ERROR(device.stamp());
    kernel.run(at);
  }
  PARTITA_RETURN_IF_ERROR(device.synchronize());
  PARTITA_ASSIGN_OR_RETURN(std::vector<double> passed, device.take_stamps());
  for (size_t k = passed.size(); k-- > 1;) passed[k] -= passed[k - 1];
  std::sort(passed.begin() + 1, passed.end());
  return passed[1 + passed.size() / 2] * 1e3;
}

absl::StatusOr<Json> run_case(Device& device, const Program& program, const Case& c) {
  Json line = {{"case", c.name()}, {"holds", false}};
  const QuantizedMatrix qa = c.a.quantized(), qb = c.b.quantized();
  std::vector<std::byte*> bytes_at, rounded_at;
  bool holds = true;
  for (const auto& [side, name] : {std::pair(&c.a, "a"), std::pair(&c.b, "b")}) {
    const std::vector<uint16_t> values = drawn(*side, bytes_at.size() + 1);
    std::vector<std::byte> bytes(static_cast<size_t>(side->quantized().bytes()));
    PARTITA_ASSIGN_OR_RETURN(std::byte * from, device.allocate(2 * side->count()));
    PARTITA_ASSIGN_OR_RETURN(std::byte * to, device.allocate(side->quantized().bytes()));
    PARTITA_RETURN_IF_ERROR(device.write(from, std::as_bytes(std::span(values))));
    PARTITA_ASSIGN_OR_RETURN(auto quantize, device.prepare(program, quantize_step(*side)));
    PARTITA_ASSIGN_OR_RETURN(const double ms, time(device, *quantize, {from, to}));
    PARTITA_RETURN_IF_ERROR(device.read(bytes, to));
    const std::vector<float> expected = rounded(*side, values);
    const int64_t faults = wrong(*side, bytes, expected);
    holds = holds && faults == 0;
    line[cat("wrong_", name)] = faults;
    line[cat("quantize_", name, "_ms")] = ms;
    line[cat("quantize_", name, "_tb_per_s")] =
        static_cast<double>(2 * side->count() + side->quantized().bytes()) / ms * 1e-9;
    if (has_whole_tiles(*side)) {
      const Step step = quantize_both_step(*side);
      const int64_t sizes[] = {operand_bytes(step.operands[1]), operand_bytes(step.operands[2])};
      PARTITA_ASSIGN_OR_RETURN(std::byte * rows, device.allocate(sizes[0]));
      PARTITA_ASSIGN_OR_RETURN(std::byte * turned, device.allocate(sizes[1]));
      PARTITA_ASSIGN_OR_RETURN(auto both, device.prepare(program, step));
      PARTITA_ASSIGN_OR_RETURN(const double both_ms, time(device, *both, {from, rows, turned}));
      std::vector<std::byte> same(bytes.size());
      PARTITA_RETURN_IF_ERROR(device.read(same, side->transpose ? turned : rows));
      holds = holds && same == bytes;
      line[cat("both_", name, "_ms")] = both_ms;
    }
    std::vector<uint16_t> narrow(expected.size());
    std::transform(expected.begin(), expected.end(), narrow.begin(), float_to_bf16);
    PARTITA_RETURN_IF_ERROR(device.write(from, std::as_bytes(std::span(narrow))));
    bytes_at.push_back(to), rounded_at.push_back(from);
  }
  const Operand result{{}, DType::kBF16, {qa.rows, qb.rows}};
  Params params{{"m", qa.rows}, {"n", qb.rows}, {"k", qa.inner}, {"a", format(c.a)}, {"b", format(c.b)}};
  if (qa.tiles) params["tiles_a"] = int64_t{1};
  if (qb.tiles) params["tiles_b"] = int64_t{1};
  const Step fp8 =
      step_of("multiply_fp8", {{{}, DType::kU8, {qa.bytes()}}, {{}, DType::kU8, {qb.bytes()}}, result}, params);
  const Step bf16 = step_of(
      "matmul", {{{}, DType::kBF16, {c.a.rows, c.a.columns}}, {{}, DType::kBF16, {c.b.rows, c.b.columns}}, result},
      {{"transpose_a", int64_t{c.a.transpose}}, {"transpose_b", int64_t{!c.b.transpose}}});
  PARTITA_ASSIGN_OR_RETURN(auto multiply, device.prepare(program, fp8));
  PARTITA_ASSIGN_OR_RETURN(auto beside, device.prepare(program, bf16));
  PARTITA_RETURN_IF_ERROR(device.allocate_scratch().status());
  std::vector<uint16_t> found(static_cast<size_t>(qa.rows * qb.rows)), again(found.size()), expected(found.size());
  for (std::byte** at : {&bytes_at.emplace_back(), &rounded_at.emplace_back()}) {
    PARTITA_ASSIGN_OR_RETURN(*at, device.allocate(2 * qa.rows * qb.rows));
  }
  multiply->run(bytes_at);
  PARTITA_RETURN_IF_ERROR(device.read(std::as_writable_bytes(std::span(found)), bytes_at[2]));
  PARTITA_ASSIGN_OR_RETURN(line["fp8_ms"], time(device, *multiply, bytes_at));
  PARTITA_RETURN_IF_ERROR(device.read(std::as_writable_bytes(std::span(again)), bytes_at[2]));
  PARTITA_ASSIGN_OR_RETURN(line["bf16_ms"], time(device, *beside, rounded_at));
  PARTITA_RETURN_IF_ERROR(device.read(std::as_writable_bytes(std::span(expected)), rounded_at[2]));
  PARTITA_RETURN_IF_ERROR(device.failure());
  double difference = 0, length = 0;
  for (size_t k = 0; k < found.size(); ++k) {
    const double mine = bf16_to_float(found[k]), theirs = bf16_to_float(expected[k]);
    difference += (mine - theirs) * (mine - theirs), length += theirs * theirs;
  }
  const double error = std::sqrt(difference / length);
  line["error"] = std::isfinite(error) ? Json(error) : Json("not finite");
  line["same_bits"] = found == again;
  line["holds"] = holds && error <= 0.005 && found == again;  // results are rounded to bf16 once
  return line;
}

int run_all(double seconds, const std::string& part) {
  std::vector<Case> cases = all_cases();
  std::erase_if(cases, [&](const Case& c) { return c.name().find(part) == std::string::npos; });
  if (cases.empty()) return 2;
  const auto end = Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(seconds * 1e3));
  int result = 0;
  for (const Case& c : cases) {
    Program program;
    program.target = "cuda:sm_90";
    const auto checked = [&]() -> absl::StatusOr<Json> {
      if (Clock::now() > end) return absl::DeadlineExceededError("no time left");
      PARTITA_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, open_device(program, 0));  // its memory goes with it
      return run_case(*device, program, c);
    }();
    print(checked.ok() ? *checked : Json{{"case", c.name()}, {"holds", false}, {"error", checked.status().ToString()}});
    if (!checked.ok() || !(*checked)["holds"].get<bool>()) result = 1;
  }
  return result;
}

}  // namespace
}  // namespace partita::runtime

int main(int argc, char** argv) {
  return partita::runtime::run_check("partita_fp8_check", argc, argv, partita::runtime::run_all);
}
