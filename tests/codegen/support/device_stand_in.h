// A GPU that is this machine, for whole programs on the real executor. Its memory is its own: a step of one side that
// touches the other's stops the test. What is queued runs when somebody waits for it and no earlier, so that a wait
// that is missing shows.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "runtime/device/device.h"
#include "tests/codegen/support/ptx_kernels.h"

namespace partita {

class DeviceStandIn : public runtime::Device {
 public:
  // `kernels` outlives it.
  explicit DeviceStandIn(const PtxKernels& kernels) : kernels_(kernels) {}

  std::string name() const override { return "stand-in"; }
  absl::Status tune(const std::string&) override { return absl::OkStatus(); }
  absl::StatusOr<std::byte*> allocate(int64_t bytes) override { return add(device_, bytes); }
  absl::StatusOr<std::byte*> allocate_on_host(int64_t bytes) override { return add(host_, bytes); }
  absl::StatusOr<int64_t> allocate_scratch() override { return 0; }

  absl::StatusOr<std::unique_ptr<runtime::LibraryKernel>> prepare(const runtime::Program&,
                                                                  const runtime::Step& step) override {
    auto kernel = std::make_unique<Kernel>(*this, step);
    if (step.kind == runtime::StepKind::kLibrary) {
      auto prepared = runtime::prepare_kernel(step, {.threads = 1});
      if (!prepared.ok()) return prepared.status();
      kernel->library = *std::move(prepared);
    }
    return kernel;
  }

  absl::StatusOr<std::unique_ptr<runtime::LibraryKernel>> prepare_batched(
      const runtime::Program&, std::span<const runtime::Step* const> steps,
      std::span<std::byte* const> addresses) override {
    return std::make_unique<BatchedKernel>(*this, steps, addresses);
  }

  size_t replays(size_t) override { return 0; }
  absl::Status replay(size_t, absl::FunctionRef<absl::Status()> issue) override { return issue(); }
  absl::Status copy(std::byte* to, const std::byte* from, int64_t bytes) override {
    PARTITA_CHECK((is_in(device_, to) || is_in(host_, to)) && (is_in(device_, from) || is_in(host_, from)),
                  "a copy of memory that the device does not know");
    queue_.push_back([=] { std::memmove(to, from, static_cast<size_t>(bytes)); });
    return absl::OkStatus();
  }
  absl::Status beside_copies(const runtime::DeviceMemoryUse&, absl::FunctionRef<absl::Status()> issue) override {
    return issue();
  }
  absl::Status write(std::byte* to, std::span<const std::byte> from) override {
    PARTITA_CHECK(from.empty() || is_in(device_, to), "written outside the device");
    queue_.push_back([to, bytes = std::vector(from.begin(), from.end())] { std::ranges::copy(bytes, to); });
    return absl::OkStatus();
  }
  absl::Status read(std::span<std::byte> to, const std::byte* from) override {
    PARTITA_CHECK(to.empty() || is_in(device_, from), "read outside the device");
    run_until(queued());
    std::copy_n(from, to.size(), to.begin());
    return absl::OkStatus();
  }
  absl::StatusOr<bool> reserve_uploads(std::span<const int64_t>) override { return true; }
  // There when a copy asks for it.
  absl::StatusOr<int64_t> upload(std::span<const std::span<const std::byte>> parts) override {
    uploaded_.clear();
    for (auto part : parts) uploaded_.emplace_back(part.begin(), part.end());
    return ++uploads_;
  }
  int64_t uploaded() const override { return uploads_; }
  absl::Status copy_uploaded(std::span<std::byte* const> to) override {
    PARTITA_CHECK(to.size() == uploaded_.size(), "as many addresses as parts");
    for (size_t k = 0; k < to.size(); ++k) PARTITA_RETURN_IF_ERROR(write(to[k], uploaded_[k]));
    return absl::OkStatus();
  }
  absl::StatusOr<int64_t> mark() override { return queued(); }
  absl::Status wait_for(int64_t mark) override { return run_until(mark), absl::OkStatus(); }
  absl::Status stamp() override {
    queue_.push_back([this] { stamps_.push_back(std::chrono::steady_clock::now()); });
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<double>> take_stamps() override {
    std::vector<double> seconds;
    for (auto at : stamps_) seconds.push_back(std::chrono::duration<double>(at - stamps_.front()).count());
    stamps_.clear();
    return seconds;
  }
  std::vector<std::pair<std::string, double>> readings() override { return {}; }
  absl::Status failure() const override { return absl::OkStatus(); }
  absl::Status synchronize() override { return run_until(queued()), absl::OkStatus(); }

  absl::StatusOr<std::unique_ptr<runtime::Communicator>> communicator(runtime::Communicator& control) override {
    return std::make_unique<Ranks>(*this, control);
  }

 private:
  using Blocks = std::vector<std::pair<std::unique_ptr<std::byte[]>, int64_t>>;

  struct Kernel final : runtime::LibraryKernel {
    Kernel(DeviceStandIn& d, const runtime::Step& s) : device(d), step(s) {}
    void run(std::span<std::byte* const> buffers) override {
      for (std::byte* b : buffers)
        PARTITA_CHECK(b == nullptr || is_in(device.device_, b), "a device's step on other memory");
      device.queue_.push_back([this, b = std::vector(buffers.begin(), buffers.end())] {
        if (library != nullptr) {
          library->run(b);
        } else if (step.units > 0) {
          device.kernels_.run(step, reinterpret_cast<char* const*>(b.data()), ptx::Order::kShuffled);
        }
      });
    }
    DeviceStandIn& device;
    const runtime::Step& step;
    std::unique_ptr<runtime::LibraryKernel> library;
  };

  struct BatchedKernel final : runtime::LibraryKernel {
    BatchedKernel(DeviceStandIn& d, std::span<const runtime::Step* const> s, std::span<std::byte* const> a)
        : device(d), steps(s.begin(), s.end()), addresses(a.begin(), a.end()) {}
    void run(std::span<std::byte* const>) override {
      device.queue_.push_back([this] { device.kernels_.run_batched(steps, addresses, ptx::Order::kShuffled); });
    }
    DeviceStandIn& device;
    std::vector<const runtime::Step*> steps;
    std::vector<std::byte*> addresses;
  };

  // Collectives see what was queued before them.
  struct Ranks final : runtime::Communicator {
    Ranks(DeviceStandIn& d, runtime::Communicator& c) : device(d), control(c) {}
    int rank() const override { return control.rank(); }
    int size() const override { return control.size(); }
    std::string_view backend() const override { return control.backend(); }
    absl::StatusOr<runtime::GroupId> create_group(const std::vector<int>& ranks) override {
      return control.create_group(ranks);
    }
    runtime::Ticket start(runtime::CollectiveOp op) override {
      for (const auto& b : buffers_of(op)) {
        PARTITA_CHECK((b.input == nullptr || is_in(device.device_, b.input)) &&
                          (b.output == nullptr || is_in(device.device_, b.output)),
                      "a collective on other memory");
      }
      device.run_until(device.queued());
      return control.start(std::move(op));
    }
    absl::Status wait(runtime::Ticket ticket) override { return control.wait(ticket); }
    void abort(std::string_view reason) override { control.abort(reason); }
    absl::Status failure() const override { return control.failure(); }
    DeviceStandIn& device;
    runtime::Communicator& control;
  };

  static absl::StatusOr<std::byte*> add(Blocks& blocks, int64_t bytes) {
    if (bytes == 0) return nullptr;
    constexpr size_t kAlignment = 256;
    const size_t size = static_cast<size_t>(bytes);
    blocks.emplace_back(std::make_unique<std::byte[]>(size + kAlignment), bytes + static_cast<int64_t>(kAlignment));
    std::byte* begin = blocks.back().first.get();
    return begin + (kAlignment - reinterpret_cast<uintptr_t>(begin) % kAlignment) % kAlignment;
  }
  static bool is_in(const Blocks& blocks, const void* at) {
    const auto* b = static_cast<const std::byte*>(at);
    return std::ranges::any_of(blocks,
                               [&](const auto& x) { return b >= x.first.get() && b < x.first.get() + x.second; });
  }

  int64_t queued() const { return done_ + static_cast<int64_t>(queue_.size()); }
  void run_until(int64_t mark) {
    for (; done_ < mark; ++done_) {
      queue_.front()();
      queue_.pop_front();
    }
  }

  const PtxKernels& kernels_;
  Blocks device_, host_;
  std::deque<std::function<void()>> queue_;
  std::vector<std::chrono::steady_clock::time_point> stamps_;
  std::vector<std::vector<std::byte>> uploaded_;
  int64_t uploads_ = 0;
  int64_t done_ = 0;
};

}  // namespace partita
