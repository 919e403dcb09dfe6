// See tools/bench/convolutions.
#include <omp.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <map>
#include <string>

#include "CLI/CLI.hpp"
#include "base/status.h"
#include "runtime/kernel/kernel_scratch.h"
#include "runtime/kernels/conv_taps.h"

namespace partita::runtime {
namespace {

constexpr int64_t kKernel = 3;

struct Layer {
  int64_t inputs, plane, outputs, stride;
  int count;  // in the network
};

const std::map<std::string, std::vector<Layer>> kNetworks = {
    {"resnet18",
     {{64, 16, 64, 1, 4},
      {64, 16, 128, 2, 1},
      {128, 8, 128, 1, 3},
      {128, 8, 256, 2, 1},
      {256, 4, 256, 1, 3},
      {256, 4, 512, 2, 1},
      {512, 2, 512, 1, 3}}},
    {"resnet50",
     {{64, 56, 64, 1, 3},
      {128, 56, 128, 2, 1},
      {128, 28, 128, 1, 3},
      {256, 28, 256, 2, 1},
      {256, 14, 256, 1, 5},
      {512, 14, 512, 2, 1},
      {512, 7, 512, 1, 2}}},
    {"unet", {{32, 64, 32, 1, 2}, {32, 32, 64, 1, 1}, {64, 32, 64, 1, 2}, {128, 16, 128, 1, 2}}}};

Convolution convolution(const Layer& l, int64_t batch) {
  Convolution c;
  c.outputs = l.outputs;
  c.window.batch = batch;
  c.window.channels = l.inputs;
  for (size_t d : {1, 2}) {
    c.window.in[d] = l.plane;
    c.window.kernel[d] = kKernel;
    c.window.stride[d] = l.stride;
    c.window.low[d] = c.window.high[d] = kKernel / 2;
    c.window.out[d] = (l.plane + kKernel / 2 * 2 - kKernel) / l.stride + 1;
  }
  return c;
}

// A kernel with memory of its own.
struct Timed {
  std::shared_ptr<KernelScratch> scratch = std::make_shared<KernelScratch>();
  std::unique_ptr<LibraryKernel> kernel;
  std::vector<float> result;
  std::vector<double> seconds;

  template <typename Make>
  static absl::StatusOr<Timed> create(int threads, size_t size, const Make& make) {
    Timed t;
    const Step step;
    const ExecutionConfig config{.threads = threads, .scratch = t.scratch};
    PARTITA_ASSIGN_OR_RETURN(t.kernel, make(KernelRequest(step, config)));
    PARTITA_RETURN_IF_ERROR(t.scratch->allocate());
    t.result.resize(size);
    return t;
  }
  void run(const std::vector<float>& a, const std::vector<float>& b) {
    const auto bytes = [](const std::vector<float>& v) {
      return reinterpret_cast<std::byte*>(const_cast<float*>(v.data()));
    };
    const auto begin = std::chrono::steady_clock::now();
    kernel->run(std::array{bytes(a), bytes(b), bytes(result)});
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  // Of all runs but the first.
  double median() const {
    std::vector<double> sorted(seconds.begin() + 1, seconds.end());
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
};

std::vector<float> integers(int64_t count, uint32_t seed) {
  std::vector<float> v(static_cast<size_t>(count));
  for (float& x : v) x = static_cast<float>(static_cast<int>((seed = seed * 1664525 + 1013904223) >> 24) % 9 - 4);
  return v;
}

absl::Status measure(const std::string& network, int threads, int64_t batch, int rounds) {
  omp_set_num_threads(threads);
  std::array<double, 3> all{};  // oneDNN's, taps', what is taken
  std::printf("%-26s %-8s %9s %9s %7s %9s\n", "convolution", "", "oneDNN ms", "taps ms", "ratio", "taken");
  for (const Layer& l : kNetworks.at(network)) {
    const Convolution c = convolution(l, batch);
    const std::vector<float> x = integers(batch * l.inputs * c.window.in_plane(), 1),
                             w = integers(l.outputs * l.inputs * c.window.kernel_size(), 2),
                             y = integers(batch * l.outputs * c.window.out_plane(), 3);
    for (const Direction direction : {Direction::kForward, Direction::kGradData, Direction::kGradWeight}) {
      const bool forward = direction == Direction::kForward, data = direction == Direction::kGradData;
      const std::vector<float>&a = forward ? x : y, &b = forward || data ? w : x, &shape = forward ? y : data ? x : w;
      PARTITA_ASSIGN_OR_RETURN(Timed library, Timed::create(threads, shape.size(), [&](const KernelRequest& r) {
                                 return make_library_convolution(r, c, DType::kF32, direction);
                               }));
      PARTITA_ASSIGN_OR_RETURN(Timed taps, Timed::create(threads, shape.size(), [&](const KernelRequest& r) {
                                 return make_conv_by_taps(r, c, direction);
                               }));
      for (int i = 0; i <= rounds; ++i) {
        library.run(a, b);
        taps.run(a, b);
      }
      if (library.result != taps.result) return absl::InternalError("sums of integers differ");
      const bool taken = is_faster_by_taps(c, direction);
      const double first = library.median() * 1e3, second = taps.median() * 1e3;
      std::printf("%4lld -> %4lld on %3lldx%-3lld / %lld %-8s %9.2f %9.2f %7.2f %9s\n",
                  static_cast<long long>(l.inputs), static_cast<long long>(l.outputs), static_cast<long long>(l.plane),
                  static_cast<long long>(l.plane), static_cast<long long>(l.stride),
                  forward ? "forward"
                  : data  ? "data"
                          : "weights",
                  first, second, first / second, taken ? "taps" : "oneDNN");
      std::fflush(stdout);
      all[0] += l.count * first;
      all[1] += l.count * second;
      all[2] += l.count * (taken ? second : first);
    }
  }
  std::printf("all of %s, batch %lld, %d threads: oneDNN %.1f ms, taps %.1f, as taken %.1f\n", network.c_str(),
              static_cast<long long>(batch), threads, all[0], all[1], all[2]);
  return absl::OkStatus();
}

}  // namespace
}  // namespace partita::runtime

int main(int argc, char** argv) {
  int threads = 2, rounds = 9;
  int64_t batch = 32;
  std::string network = "resnet18";
  CLI::App app("Convolutions by oneDNN and by taps.");
  app.add_option("--threads", threads)->check(CLI::PositiveNumber);
  app.add_option("--batch", batch)->check(CLI::PositiveNumber);
  app.add_option("--rounds", rounds)->check(CLI::PositiveNumber);
  app.add_option("network", network)->check(CLI::IsMember({"resnet18", "resnet50", "unet"}));
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = partita::runtime::measure(network, threads, batch, rounds);
  if (!status.ok()) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}
