// partita_attention_check [SECONDS] [CASE]: attention and its gradient on a GPU, by our own kernels and by cuDNN's, on
// operands that are drawn, beside the CPU's kernels in f64 (large ones: beside each other). A line of JSON for each
// case, or those that have CASE in their name:
//
//   {"case": "bf16 2x4x197x64 causal", "holds": true, "own": {"error": {"out": 0.002, …}, "same_bits": true,
//    "forward_ms": 0.1, "gradient_ms": 0.3}, "cudnn": {"refused": "…"}}
//
// An error is the distance from the reference by its length. What is refused does not count, if the other holds.
// `same_bits`: once more as a CUDA graph, 24 times, and the results of the last are those of the first. Times are
// medians of the last 20, in milliseconds. A case that ends the process, or a GPU that is lost, is a line too, and the
// next case goes on in another process. No case begins after SECONDS (25). Exit code 0: all hold. 1: one does not, or
// there is no GPU. 2: bad usage.
#include <omp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/cat.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "runtime/device/device.h"
#include "runtime/device_check.h"
#include "runtime/kernels/kernel_request.h"

namespace partita::runtime {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;
using Values = std::vector<double>;

// Bool, the same for all queries of a sample; bool, near keys alone; f32, for each pair. Some queries are left without
// keys by each.
enum class Mask { kNone, kPadding, kWindow, kAdded };

struct Case {
  DType dtype;
  int64_t batch, heads, kv_heads, s, t, d, e;
  bool causal = false;
  Mask mask = Mask::kNone;

  std::string name() const {
    return cat(dtype_name(dtype), " ", batch, "x", heads, kv_heads == heads ? "" : cat("(", kv_heads, ")"), "x", s,
               t == s ? "" : cat("(", t, ")"), "x", d, e == d ? "" : cat("(", e, ")"), causal ? " causal" : "",
               mask == Mask::kPadding  ? " padded"
               : mask == Mask::kWindow ? " window"
               : mask == Mask::kAdded  ? " added mask"
                                       : "");
  }
  // The CPU takes its time.
  bool is_large() const { return batch * heads * s * t * d > int64_t{1} << 29; }
};

// Those that are timed first: GPT-2 124M and 350M, a Llama of 1e9 parameters, one with heads of 128, and one whose
// scores are too large for cuDNN's gradient, which goes in parts.
std::vector<Case> all_cases() {
  constexpr DType kB = DType::kBF16, kH = DType::kF16;
  std::vector<Case> cases = {
      {kB, 16, 12, 12, 1024, 1024, 64, 64, true}, {kB, 16, 16, 16, 1024, 1024, 64, 64, true},
      {kB, 4, 32, 8, 2048, 2048, 64, 64, true},   {kB, 4, 16, 16, 2048, 2048, 128, 128, true},
      {kB, 1, 32, 8, 8192, 8192, 128, 128, true},
  };
  // An odd length, shared key heads, more keys than queries and fewer, other heads.
  for (const DType dtype : {kB, kH}) {
    cases.push_back({dtype, 2, 4, 4, 197, 197, 64, 64, true});
    cases.push_back({dtype, 2, 4, 4, 197, 197, 128, 128, false});
    cases.push_back({dtype, 2, 8, 2, 256, 256, 64, 64, true});
  }
  cases.push_back({kB, 2, 4, 2, 100, 229, 64, 64, true});
  cases.push_back({kB, 2, 4, 4, 229, 100, 64, 64, false});
  cases.push_back({kB, 2, 4, 4, 197, 197, 64, 64, false, Mask::kPadding});
  cases.push_back({kB, 2, 8, 2, 128, 128, 64, 64, true, Mask::kPadding});
  cases.push_back({kH, 2, 4, 4, 197, 197, 64, 64, true, Mask::kWindow});
  cases.push_back({kB, 2, 4, 4, 100, 229, 64, 64, false, Mask::kAdded});
  cases.push_back({kB, 1, 2, 1, 17, 17, 32, 32, true});
  cases.push_back({kB, 2, 2, 2, 128, 128, 40, 40, true});
  cases.push_back({kB, 2, 2, 2, 128, 128, 64, 128, false});
  cases.push_back({kB, 2, 2, 2, 128, 128, 256, 256, true});
  cases.push_back({kB, 1, 1, 1, 2048, 2048, 64, 64, true});
  return cases;
}

std::vector<std::byte> stored(const Values& values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * static_cast<size_t>(dtype_size(dtype)));
  with_float_type(dtype, [&]<typename T>(T) {
    std::transform(values.begin(), values.end(), as<T>(bytes.data()), [](double x) { return static_cast<T>(x); });
  });
  return bytes;
}
Values loaded(std::span<const std::byte> bytes, DType dtype) {
  Values values(bytes.size() / static_cast<size_t>(dtype_size(dtype)));
  with_float_type(dtype, [&]<typename T>(T) {
    const T* first = reinterpret_cast<const T*>(bytes.data());
    std::transform(first, first + values.size(), values.begin(), [](T x) { return static_cast<double>(x); });
  });
  return values;
}

// Of the type, between -1.7 and 1.7.
std::vector<std::byte> drawn(int64_t count, DType dtype, uint64_t seed) {
  Values values(static_cast<size_t>(count));
  uint64_t x = seed * 0x9e3779b97f4a7c15u + 1;
  for (double& value : values) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    value = (static_cast<double>(x >> 40) * 0x1p-24 - 0.5) * 3.4;
  }
  return stored(values, dtype);
}

// The two steps: inputs, then outputs, by these names.
const std::vector<std::string> kForward = {"q", "k", "v", "mask", "out", "lse"};
const std::vector<std::string> kGradient = {"g", "q", "k", "v", "mask", "out", "lse", "dq", "dk", "dv"};
const std::vector<std::string> kResults = {"out", "lse", "dq", "dk", "dv"};

std::vector<int64_t> shape_of(const Case& c, const std::string& name) {
  if (name == "lse") return {c.batch, c.heads, c.s};
  if (name == "mask" && c.mask == Mask::kPadding) return {c.batch, 1, 1, c.t};
  if (name == "mask") return {1, c.mask == Mask::kAdded ? c.heads : 1, c.s, c.t};
  const bool of_keys = name == "k" || name == "v" || name == "dk" || name == "dv";
  const bool wide = name == "v" || name == "dv" || name == "out" || name == "g";
  return {c.batch, of_keys ? c.kv_heads : c.heads, of_keys ? c.t : c.s, wide ? c.e : c.d};
}
DType dtype_of(const Case& c, const std::string& name, DType dtype) {
  if (name == "mask" && c.mask == Mask::kNone) return DType::kInvalid;
  if (name == "mask" && c.mask != Mask::kAdded) return DType::kBool;
  return name == "lse" || (name == "mask" && dtype != DType::kF64) ? DType::kF32 : dtype;
}
int64_t bytes_of(const Case& c, const std::string& name, DType dtype) {
  return product(shape_of(c, name)) * dtype_size(dtype_of(c, name, dtype));
}

std::vector<std::byte> mask_of(const Case& c) {
  const std::vector<int64_t> shape = shape_of(c, "mask");
  Values added = loaded(drawn(product(shape), DType::kBF16, 9), DType::kBF16);
  std::vector<std::byte> allowed(added.size());
  for (size_t at = 0; at < added.size(); ++at) {
    const int64_t i = static_cast<int64_t>(at) / c.t, j = static_cast<int64_t>(at) % c.t;
    const bool sees = c.mask == Mask::kPadding  ? i == 0 && j < c.t * 2 / 3  // the second sample sees nothing
                      : c.mask == Mask::kWindow ? i != 3 && j > i - 50 && j < i + 50
                                                : i != 5 && (i + j) % 7 != 0;
    allowed[at] = static_cast<std::byte>(sees);
    if (!sees) added[at] = -std::numeric_limits<double>::infinity();
  }
  return c.mask == Mask::kAdded ? stored(added, DType::kF32) : allowed;
}

Step step_of(const Case& c, bool gradient, DType dtype, const std::string& kernel) {
  Step step{.kind = StepKind::kLibrary,
            .name = gradient ? "attention_grad" : "attention",
            .inputs = gradient ? 7 : 4,
            .params = {
                {"scale", 1 / std::sqrt(static_cast<double>(c.d))}, {"causal", int64_t{c.causal}}, {"kernel", kernel}}};
  for (const std::string& name : gradient ? kGradient : kForward) {
    const DType type = dtype_of(c, name, dtype);
    step.operands.push_back({{}, type, type == DType::kInvalid ? std::vector<int64_t>() : shape_of(c, name)});
  }
  return step;
}

using Buffers = std::map<std::string, std::vector<std::byte>>;

std::vector<std::byte*> places(bool gradient, std::map<std::string, std::byte*>& at) {
  std::vector<std::byte*> places;
  for (const std::string& name : gradient ? kGradient : kForward) places.push_back(at[name]);  // null for no mask
  return places;
}

// What the CPU makes of the operands, in f64.
absl::StatusOr<Buffers> on_cpu(const Case& c, const Buffers& inputs) {
  Buffers buffers;
  std::map<std::string, std::byte*> at;
  for (const auto& [name, bytes] : inputs) {
    const DType from = dtype_of(c, name, c.dtype), to = dtype_of(c, name, DType::kF64);
    buffers[name] = is_float(from) ? stored(loaded(bytes, from), to) : bytes;
  }
  for (const std::string& name : kResults) buffers[name].resize(static_cast<size_t>(bytes_of(c, name, DType::kF64)));
  for (auto& [name, bytes] : buffers) at[name] = bytes.data();
  for (const bool gradient : {false, true}) {
    PARTITA_ASSIGN_OR_RETURN(
        auto kernel, prepare_kernel(step_of(c, gradient, DType::kF64, "own"), {.threads = omp_get_max_threads()}));
    kernel->run(places(gradient, at));
  }
  return buffers;
}

// One way of a case on the GPU.
struct Outcome {
  Buffers results;
  bool same_bits = true;
  double forward_ms = 0, gradient_ms = 0;
};

absl::Status read_results(Device& device, const Case& c, std::map<std::string, std::byte*>& at, Buffers& results) {
  for (const std::string& name : kResults) {
    results[name].resize(static_cast<size_t>(bytes_of(c, name, c.dtype)));
    PARTITA_RETURN_IF_ERROR(device.read(results[name], at[name]));
  }
  return absl::OkStatus();
}

absl::StatusOr<Outcome> on_gpu(Device& device, const Program& program, const Case& c, const std::string& kernel,
                               std::map<std::string, std::byte*>& at) {
  constexpr int kWarm = 4, kTimed = 20;
  std::vector<std::unique_ptr<LibraryKernel>> kernels;
  for (const bool gradient : {false, true}) {
    PARTITA_ASSIGN_OR_RETURN(auto made, device.prepare(program, step_of(c, gradient, c.dtype, kernel)));
    kernels.push_back(std::move(made));
  }
  PARTITA_RETURN_IF_ERROR(device.allocate_scratch().status());
  for (const std::string& name : kResults) {  // NaN wherever nothing is written
    const std::vector<std::byte> nothing(static_cast<size_t>(bytes_of(c, name, c.dtype)), std::byte{0xff});
    PARTITA_RETURN_IF_ERROR(device.write(at[name], nothing));
  }
  Outcome outcome;
  for (const bool gradient : {false, true}) kernels[gradient]->run(places(gradient, at));
  PARTITA_RETURN_IF_ERROR(device.synchronize());
  PARTITA_RETURN_IF_ERROR(read_results(device, c, at, outcome.results));
  for (const bool gradient : {false, true}) {
    const size_t number = device.replays(1);
    for (int k = 0; k < kWarm + kTimed; ++k) {
      if (k >= kWarm) PARTITA_RETURN_IF_ERROR(device.stamp());
      PARTITA_RETURN_IF_ERROR(device.replay(number, [&] {
        kernels[gradient]->run(places(gradient, at));
        return absl::OkStatus();
      }));
    }
    PARTITA_RETURN_IF_ERROR(device.stamp());
    PARTITA_RETURN_IF_ERROR(device.synchronize());
    PARTITA_ASSIGN_OR_RETURN(std::vector<double> passed, device.take_stamps());
    for (size_t k = passed.size(); k-- > 1;) passed[k] -= passed[k - 1];
    std::sort(passed.begin() + 1, passed.end());
    (gradient ? outcome.gradient_ms : outcome.forward_ms) = passed[1 + passed.size() / 2] * 1e3;
  }
  Buffers again;
  PARTITA_RETURN_IF_ERROR(read_results(device, c, at, again));
  outcome.same_bits = again == outcome.results;
  return outcome;
}

double distance(const Values& found, const Values& expected) {
  double difference = 0, length = 0;
  for (size_t k = 0; k < expected.size(); ++k) {
    if (std::isinf(expected[k]) && found[k] == expected[k]) continue;
    difference += (found[k] - expected[k]) * (found[k] - expected[k]);
    length += expected[k] * expected[k];
  }
  return std::sqrt(difference / length);
}

// Whether it holds; `reference` in f64 but its log-sums, or of the case's own types.
bool compare(const Case& c, const Outcome& found, const Buffers& reference, DType reference_dtype, Json& line) {
  bool holds = found.same_bits;
  for (const std::string& name : kResults) {
    const double error = distance(loaded(found.results.at(name), dtype_of(c, name, c.dtype)),
                                  loaded(reference.at(name), dtype_of(c, name, reference_dtype)));
    line["error"][name] = std::isfinite(error) ? Json(error) : Json("not finite");
    // A few roundings; log-sums are kept in f32.
    holds = holds && error <= (name == "lse" ? 1e-4 : c.dtype == DType::kBF16 ? 0.02 : 0.004);
  }
  line["same_bits"] = found.same_bits;
  line["forward_ms"] = found.forward_ms;
  line["gradient_ms"] = found.gradient_ms;
  return holds;
}

absl::StatusOr<Json> run_case(Device& device, const Program& program, const Case& c) {
  Json line = {{"case", c.name()}, {"holds", false}};
  Buffers inputs;
  std::map<std::string, std::byte*> at;
  for (const std::string name : {"q", "k", "v", "g"})
    inputs[name] = drawn(product(shape_of(c, name)), c.dtype, inputs.size() + 1);
  if (c.mask != Mask::kNone) inputs["mask"] = mask_of(c);
  for (const std::string name : {"q", "k", "v", "g", "mask", "out", "lse", "dq", "dk", "dv"}) {
    if (dtype_of(c, name, c.dtype) == DType::kInvalid) continue;
    PARTITA_ASSIGN_OR_RETURN(at[name], device.allocate(bytes_of(c, name, c.dtype)));
    if (inputs.count(name) > 0) PARTITA_RETURN_IF_ERROR(device.write(at[name], inputs[name]));
  }
  const absl::StatusOr<Outcome> own = on_gpu(device, program, c, "own", at);
  PARTITA_RETURN_IF_ERROR(device.failure());
  const absl::StatusOr<Outcome> cudnn = on_gpu(device, program, c, "cudnn", at);
  PARTITA_RETURN_IF_ERROR(device.failure());
  Buffers reference;
  const bool by_cpu = !c.is_large() || !own.ok();
  if (by_cpu) {
    PARTITA_ASSIGN_OR_RETURN(reference, on_cpu(c, inputs));
  }
  line["beside"] = by_cpu ? "cpu f64" : "own";
  bool holds = own.ok() || cudnn.ok();
  for (const auto& [name, outcome] : {std::pair("own", &own), std::pair("cudnn", &cudnn)}) {
    Json& part = line[name];
    if (outcome->ok()) {
      holds = compare(c, **outcome, by_cpu ? reference : own->results, by_cpu ? DType::kF64 : c.dtype, part) && holds;
    } else if (absl::IsUnimplemented(outcome->status())) {
      part["refused"] = std::string(outcome->status().message());
    } else {
      part["error"] = outcome->status().ToString();
      holds = false;
    }
  }
  line["holds"] = holds;
  return line;
}

// Cases from `*next` on, which it moves: 0 where all hold.
int run_cases(const std::vector<Case>& cases, Clock::time_point end, size_t* next) {
  Program program;
  program.target = "cuda:sm_80";
  absl::StatusOr<std::unique_ptr<Device>> device = open_device(program, 0);
  if (!device.ok()) {
    print({{"error", device.status().ToString()}});
    *next = cases.size();
    return 1;
  }
  int result = 0;
  while (*next < cases.size()) {
    const Case& c = cases[(*next)++];
    if (Clock::now() > end) {
      print({{"case", c.name()}, {"holds", false}, {"error", "no time left"}});
      result = 1;
      continue;
    }
    const absl::StatusOr<Json> line = run_case(**device, program, c);
    print(line.ok() ? *line : Json{{"case", c.name()}, {"holds", false}, {"error", line.status().ToString()}});
    if (!line.ok() || !(*line)["holds"].get<bool>()) result = 1;
    if (!line.ok()) break;  // the device is of no use any more
  }
  return result;
}

int run_all(double seconds, const std::string& part) {
  std::vector<Case> cases = all_cases();
  std::erase_if(cases, [&](const Case& c) { return c.name().find(part) == std::string::npos; });
  const auto end = Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(seconds * 1e3));
  // Shared with the processes that run them.
  void* shared = ::mmap(nullptr, sizeof(size_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return 1;
  size_t* next = new (shared) size_t(0);
  int result = cases.empty() ? 2 : 0;
  while (*next < cases.size()) {
    const size_t begin = *next;
    const pid_t child = ::fork();
    if (child < 0) return 1;
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::alarm(static_cast<unsigned>(seconds) + 15);  // a GPU that does not come to an end
      ::_exit(run_cases(cases, end, next));
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    if (!WIFEXITED(status))
      print({{"case", cases[std::max(*next, begin + 1) - 1].name()},
             {"holds", false},
             {"error", cat("the process ended with signal ", WTERMSIG(status))}});
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) result = 1;
    if (*next == begin) ++*next;
  }
  return result;
}

}  // namespace
}  // namespace partita::runtime

int main(int argc, char** argv) {
  return partita::runtime::run_check("partita_attention_check", argc, argv, partita::runtime::run_all);
}
