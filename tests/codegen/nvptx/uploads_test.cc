// Training on a device, to which what comes next goes up beside the step: the same bits as on the host, whatever comes
// between. On a GPU whose queue runs as late as it may, and on the CUDA module's own device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <thread>

#include "base/cat.h"
#include "runtime/execute/input_stage.h"
#include "runtime/files/npz.h"
#include "runtime/train/trainer.h"
#include "runtime/train/training_loop.h"
#include "runtime/transports/collective_threads.h"
#include "tests/codegen/support/cuda_on_host.h"
#include "tests/codegen/support/device_stand_in.h"
#include "tests/runtime/support/program_samples.h"
#include "tests/support/temp_folder.h"
#ifdef PARTITA_STAND_INS
#include "tests/stand_ins/cuda/kernels.h"
#endif

namespace partita {
namespace {

using namespace runtime;  // NOLINT
using testing::ElementsAreArray;

constexpr int64_t kBatch = 12, kSteps = 8;

enum class Where { kHost, kLate, kCuda };

// What was asked of a device, in order.
class Watched final : public DeviceStandIn {
 public:
  Watched(const PtxKernels& kernels, bool has_room, std::vector<std::string>& calls)
      : DeviceStandIn(kernels), has_room_(has_room), calls_(calls) {}
  absl::StatusOr<bool> reserve_uploads(std::span<const int64_t>) override { return has_room_; }
  absl::StatusOr<int64_t> upload(std::span<const std::span<const std::byte>> parts) override {
    calls_.emplace_back("upload");
    return DeviceStandIn::upload(parts);
  }
  absl::Status copy_uploaded(std::span<std::byte* const> to) override {
    calls_.emplace_back("copy");
    return DeviceStandIn::copy_uploaded(to);
  }
  absl::Status synchronize() override {
    calls_.emplace_back("wait");
    return DeviceStandIn::synchronize();
  }

 private:
  const bool has_room_;
  std::vector<std::string>& calls_;
};

struct Training {
  TrainOptions options = {.steps = kSteps, .data = {.kind = DataKind::kSynthetic}};
  int64_t micro_batches = 3;
  int ranks = 1;
  bool evaluates = false, changes_batch = false, has_lengths = false;
};

std::shared_ptr<const LoadedProgram> loaded(const Training& run, Where where, int64_t batch, bool evaluates = false) {
  Program p = least_squares(run.ranks, batch, run.micro_batches);
  if (where != Where::kHost) p.target = "cuda:sm_90";
  if (evaluates) p.schedule.pop_back();
  for (ProgramState& s : p.states) {
    if (s.name == "rates") s.initial = {.kind = InitialKind::kNormal, .a = 0, .b = 0.05};
  }
  auto made = LoadedProgram::load(std::move(p));
  EXPECT_TRUE(made.ok()) << made.status();
  return *made;
}

Program with_code(const std::string& ptx) {
  Program p;
  p.portable_kernels.assign(ptx.begin(), ptx.end());
  return p;
}

struct Trained : MetricsSink {
  std::vector<double> losses, evaluations;
  std::vector<std::byte> states;
  std::vector<std::string> calls;
  absl::Status status;
  bool pauses = false;
  bool operator==(const Trained& o) const {
    return losses == o.losses && evaluations == o.evaluations && states == o.states && status == o.status;
  }
  absl::Status write(const StepMetrics& m) override {
    losses.push_back(m.loss.value_or(-1));
    if (m.evaluation_loss) evaluations.push_back(*m.evaluation_loss);
    // So that samples are read before their step comes.
    if (pauses) std::this_thread::sleep_for(std::chrono::milliseconds(losses.size() == 1 ? 100 : 5));
    return absl::OkStatus();
  }
};

// The first rank's part of it.
Trained train(const Training& run, Where where, bool has_room = true) {
  const PtxKernels kernels(with_code(".version 8.0\n.target sm_80\n.address_size 64\n"));  // steps are a library's
  TrainOptions options = run.options;
  if (run.evaluates)
    options.evaluate = {
        .programs = loaded(run, where, 2 * kBatch, true), .data = options.data, .every = 2, .batches = 3};
  if (run.changes_batch) options.ramp = {{0, kBatch, {}}, {3, 2 * kBatch, loaded(run, where, 2 * kBatch)}};
  if (run.has_lengths) options.lengths = {{1, 2 * kBatch, 0, loaded(run, where, 2 * kBatch)}, {2, kBatch, 0, {}}};
  std::vector<Trained> ranks(static_cast<size_t>(run.ranks));
  const auto train_rank = [&](int rank, Communicator* communicator) {
    Trained& trained = ranks[static_cast<size_t>(rank)];
    trained.pauses = where != Where::kHost && has_room;
    const auto open = [&](const Program& p, int n) -> absl::StatusOr<std::unique_ptr<Device>> {
#ifdef PARTITA_STAND_INS
      if (where == Where::kCuda) return open_cuda_on_host(p, n);
#endif
      return std::make_unique<Watched>(kernels, has_room, trained.calls);
    };
    const auto recorder = FlightRecorder::create("", rank, run.ranks);
    RankWatch watch(**recorder, options.timeouts);
    auto executor = Executor::create(loaded(run, where, kBatch), communicator, {.open_device = open});
    ASSERT_TRUE(executor.ok()) << executor.status();
    auto loop = make_training_loop({**executor, communicator, communicator, nullptr, nullptr, options, 1, watch});
    trained.status = loop->run(&trained);
    EXPECT_TRUE((*executor)->fetch_states().ok());
    for (const ProgramState& s : (*executor)->program().states) {
      const auto bytes = (*executor)->memory(s.operand);
      trained.states.insert(trained.states.end(), bytes.begin(), bytes.end());
    }
  };
#ifdef PARTITA_STAND_INS
  if (!has_room) stand_in::limit_memory(size_t{64} << 20);
#endif
  ThreadWorld world(run.ranks, {.timeout = std::chrono::seconds(20)});
  std::vector<std::thread> team;
  for (int rank = 0; rank < run.ranks; ++rank) {
    team.emplace_back([&, rank] {
      auto communicator = world.communicator(rank);
      ASSERT_TRUE(communicator.ok()) << communicator.status();
      train_rank(rank, run.ranks > 1 ? communicator->get() : nullptr);
    });
  }
  for (std::thread& t : team) t.join();
#ifdef PARTITA_STAND_INS
  if (!has_room) stand_in::limit_memory();
#endif
  return ranks[0];
}

void expect_same_bits(const Training& run) {
  const Trained host = train(run, Where::kHost);
  EXPECT_TRUE(host.status.ok()) << host.status;
  EXPECT_EQ(host.losses.size(), static_cast<size_t>(kSteps));
  const Trained late = train(run, Where::kLate);
  EXPECT_EQ(late, host);
  EXPECT_THAT(late.calls, testing::Contains("copy"));
  const Trained without = train(run, Where::kLate, false);
  EXPECT_EQ(without, host);
  EXPECT_THAT(without.calls, testing::Not(testing::Contains("copy")));
#ifdef PARTITA_STAND_INS
  stand_in::slow_down_copies(std::chrono::milliseconds(1));
  EXPECT_EQ(train(run, Where::kCuda), train(run, Where::kCuda, false));
  stand_in::slow_down_copies({});
#endif
}

// From the second step on, when the samples of all others have been read.
TEST(Uploads_NextStep, GoesUpBeforeTheStepIsWaitedFor) {
  for (const int64_t micro_batches : {1, 3}) {
    const std::vector<std::string> calls = train({.micro_batches = micro_batches}, Where::kLate).calls;
    std::vector<std::string> expected;
    for (int64_t step = 1; step < kSteps; ++step) {
      for (int64_t m = 0; m < micro_batches; ++m) {
        if (m > 0) expected.emplace_back("upload");
        expected.emplace_back("copy");
      }
      if (step + 1 < kSteps) expected.emplace_back("upload");
      expected.emplace_back("wait");
    }
    ASSERT_GE(calls.size(), expected.size());
    EXPECT_THAT(std::vector(calls.end() - static_cast<ptrdiff_t>(expected.size()), calls.end()),
                ElementsAreArray(expected));
  }
}

TEST(Uploads_MicroBatches, LeaveTheSameBits) {
  for (const int64_t micro_batches : {1, 2, 4}) {
    SCOPED_TRACE(micro_batches);
    expect_same_bits({.micro_batches = micro_batches});
  }
}

// Evaluations use the same memory of the device between two steps, and the batch is another one from a step on.
TEST(Uploads_EvaluationAndAnotherBatch, LeaveTheSameBits) {
  expect_same_bits({.micro_batches = 1, .evaluates = true});
  expect_same_bits({.evaluates = true, .changes_batch = true});
}

// The next step's program is another one, with inputs of its own.
TEST(Uploads_Lengths, LeaveTheSameBits) { expect_same_bits({.has_lengths = true}); }

TEST(Uploads_Ranks, LeaveTheSameBits) { expect_same_bits({.ranks = 2, .evaluates = true}); }

// Steps that are run twice with the same samples.
TEST(Uploads_Audit, LeavesTheSameBits) {
  Training run{.micro_batches = 1};
  run.options.audit = 1;
  expect_same_bits(run);
  run.micro_batches = 3;
  expect_same_bits(run);
}

// A step has an infinite loss, and the next one is up already: the run goes on from a checkpoint without its samples.
// With a value that is none the data's error comes at the step that has it.
TEST(Uploads_BadSample, EndsAsOnTheHost) {
  for (const float bad : {1e30f, std::numeric_limits<float>::quiet_NaN()}) {
    const TempFolder folder;
    std::vector<float> xt;
    for (int64_t k = 0; k < (kSteps + 1) * kBatch * 4; ++k) xt.push_back(std::sin(static_cast<float>(k)));
    xt[5 * kBatch * 4] = bad;
    const std::string data = folder / "data.npz";
    ASSERT_TRUE(write_npz(data, {{"xt", DType::kF32, {(kSteps + 1) * kBatch, 4}, std::as_bytes(std::span(xt))}}).ok());
    Training run{.micro_batches = 1};
    run.options.data = {.path = data};
    run.options.divergence.on_nonfinite = DivergenceAction::kRollback;
    run.options.checkpoint.every = 2;
    int number = 0;
    const auto train_afresh = [&](Where where, bool has_room) {
      run.options.checkpoint.folder = folder / cat(number++);
      Trained trained = train(run, where, has_room);
      std::erase_if(trained.losses, [](double loss) { return !std::isfinite(loss); });
      return trained;
    };
    const Trained host = train_afresh(Where::kHost, true);
    EXPECT_EQ(host.status.ok(), std::isfinite(bad)) << host.status;
    EXPECT_EQ(host.losses.size(), static_cast<size_t>(std::isfinite(bad) ? kSteps + 1 : 5));  // one was taken twice
    EXPECT_EQ(train_afresh(Where::kLate, true), host);
#ifdef PARTITA_STAND_INS
    EXPECT_EQ(train_afresh(Where::kCuda, true), train_afresh(Where::kCuda, false));
#endif
  }
}

// Batches that are handed over are there when their step is: micro-batches of theirs go up beside the one before.
TEST(Uploads_Feed, LeavesTheSameBits) {
  std::vector<float> xt(kBatch * 4);
  const auto fed = [&](Where where) {
    Training run;
    const auto feed = std::make_shared<SampleFeed>(std::vector<std::string>{"xt"}, 1);
    run.options.data = {.feed = feed};
    std::thread user([&] {
      for (int64_t step = 0; step < kSteps; ++step) {
        for (size_t k = 0; k < xt.size(); ++k) xt[k] = std::sin(static_cast<float>(step) + static_cast<float>(k));
        feed->supply({std::as_bytes(std::span(xt))});
        feed->wait_given_back();
      }
    });
    Trained trained = train(run, where);
    user.join();
    return trained;
  };
  const Trained late = fed(Where::kLate);
  EXPECT_EQ(late, fed(Where::kHost));
  EXPECT_THAT(late.calls, testing::Contains("copy").Times(3 * kSteps));
}

}  // namespace
}  // namespace partita
