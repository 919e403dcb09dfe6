#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>

#include "base/float16.h"
#include "runtime/communicate/collective_check.h"
#include "runtime/communicate/lost_ranks.h"
#include "runtime/communicate/reduce_kernels.h"
#include "runtime/communicate/transport.h"
#include "runtime/communicate/transport_communicator.h"
#include "runtime/transports/collective_threads.h"

namespace partita::runtime {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

// Runs `body` as every rank, each in a thread that destroys its communicator at the end.
std::vector<absl::Status> run_ranks(int size, milliseconds timeout,
                                    const std::function<absl::Status(Communicator&)>& body) {
  ThreadWorld world(size, {.timeout = timeout});
  std::vector<absl::Status> results(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      auto communicator = world.communicator(rank);
      results[static_cast<size_t>(rank)] = communicator.ok() ? body(**communicator) : communicator.status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

void expect_all_ok(const std::vector<absl::Status>& results) {
  for (size_t rank = 0; rank < results.size(); ++rank)
    EXPECT_TRUE(results[rank].ok()) << "rank " << rank << ": " << results[rank];
}

CollectiveOp all_reduce(std::vector<float>& data, std::string label = "") {
  return {.kind = CollectiveKind::kAllReduce,
          .count = static_cast<int64_t>(data.size()),
          .output = data.data(),
          .step_id = 12,
          .label = std::move(label)};
}

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

TEST(Collective, AllOperations_MatchADirectComputation) {
  for (int size = 1; size <= 4; ++size) {
    SCOPED_TRACE(size);
    expect_all_ok(run_ranks(size, milliseconds(60000), [](Communicator& c) { return check_collectives(c); }));
  }
}

TEST(Collective, LongBuffers_GoInPieces) {
  std::vector<DType> dtypes = {DType::kF32};
  if (kLongestBuffer == 1000003) dtypes.push_back(DType::kF16);
  expect_all_ok(run_ranks(3, milliseconds(60000), [&](Communicator& c) {
    return check_collectives(c, {.dtypes = dtypes, .counts = {1000003}});  // in pieces of some 262,144
  }));
}

TEST(Collective, ManyRanks) {
  expect_all_ok(run_ranks(17, milliseconds(60000), [](Communicator& c) {
    return check_collectives(c, {.dtypes = {DType::kF32}, .counts = {3, 2000}});
  }));
}

TEST(Collective, AllReduce_SameBitsOnEveryRankAndEveryRun) {
  constexpr int kSize = 4, kCount = 20000;
  std::vector<std::vector<float>> first;
  for (int repeat = 0; repeat < 3; ++repeat) {
    std::vector<std::vector<float>> results(kSize);
    expect_all_ok(run_ranks(kSize, milliseconds(60000), [&](Communicator& c) {
      std::vector<float> data(kCount);
      for (int i = 0; i < kCount; ++i)
        data[static_cast<size_t>(i)] =
            std::sin(static_cast<float>(i * 7 + c.rank() * 1000)) * std::pow(10.0f, static_cast<float>(c.rank() * 3));
      std::this_thread::sleep_for(milliseconds((c.rank() + repeat) % kSize * 5));  // other arrival orders
      const absl::Status status = c.run(all_reduce(data));
      results[static_cast<size_t>(c.rank())] = data;
      return status;
    }));
    if (first.empty()) first = results;
    for (const std::vector<float>& result : results)
      EXPECT_EQ(std::memcmp(result.data(), first[0].data(), kCount * sizeof(float)), 0);
  }
}

TEST(Collective, SmallAndLongReductions_GiveTheSameBits) {
  // The same elements alone (one message) and within a long buffer (slices) must not differ.
  expect_all_ok(run_ranks(4, milliseconds(60000), [](Communicator& c) -> absl::Status {
    std::vector<float> small(100), large(50000);
    for (size_t i = 0; i < large.size(); ++i)
      large[i] = 1.0f / static_cast<float>(i % 100 + 3 + static_cast<size_t>(c.rank()));
    std::copy_n(large.begin(), small.size(), small.begin());
    if (absl::Status s = c.run(all_reduce(small)); !s.ok()) return s;
    if (absl::Status s = c.run(all_reduce(large)); !s.ok()) return s;
    return std::memcmp(small.data(), large.data() + 49900, small.size() * sizeof(float)) == 0
               ? absl::OkStatus()
               : absl::AbortedError("different bits");
  }));
}

TEST(Collective, CrossingSends_DoNotBlockEachOther) {
  expect_all_ok(run_ranks(2, milliseconds(10000), [](Communicator& c) {
    std::vector<double> out(100000, c.rank() + 1.0), in(100000);
    const int peer = 1 - c.rank();
    const Ticket send = c.start(
        {.kind = CollectiveKind::kSend, .dtype = DType::kF64, .count = 100000, .input = out.data(), .to = peer});
    const Ticket recv = c.start(
        {.kind = CollectiveKind::kRecv, .dtype = DType::kF64, .count = 100000, .output = in.data(), .from = peer});
    absl::Status status = c.wait(recv);
    status.Update(c.wait(send));
    if (in != std::vector<double>(100000, peer + 1.0)) status.Update(absl::AbortedError("wrong data"));
    return status;
  }));
}

// Rank 1 takes part in the sum when it has the message that rank 0 sends behind it.
TEST(Collective, Message_IsNotHeldBackByASum) {
  expect_all_ok(run_ranks(2, milliseconds(10000), [](Communicator& c) {
    std::vector<float> data(1000, 1.0f), message(10, 3.0f);
    absl::Status status;
    const Ticket sum = c.rank() == 0 ? c.start(all_reduce(data)) : 0;
    const CollectiveOp send{.kind = CollectiveKind::kSend, .count = 10, .input = message.data(), .to = 1},
        recv{.kind = CollectiveKind::kRecv, .count = 10, .output = message.data(), .from = 0};
    status.Update(c.run(c.rank() == 0 ? send : recv));
    status.Update(c.rank() == 0 ? c.wait(sum) : c.run(all_reduce(data)));
    EXPECT_EQ(data[999], 2.0f);
    return status;
  }));
}

TEST(Collective, Start_DoesNotBlock) {
  expect_all_ok(run_ranks(2, milliseconds(10000), [](Communicator& c) {
    std::vector<float> data(1000, 1.0f);
    if (c.rank() == 1) std::this_thread::sleep_for(milliseconds(300));
    const auto start = Clock::now();
    const Ticket ticket = c.start(all_reduce(data));
    EXPECT_LT(seconds_since(start), 0.2);
    absl::Status status = c.wait(ticket);
    status.Update(c.wait(ticket));  // once more is fine
    EXPECT_EQ(data[999], 2.0f);
    return status;
  }));
}

TEST(Collective, AbsentRank_TimesOutAndIsNamed) {
  const auto start = Clock::now();
  const auto results = run_ranks(3, milliseconds(500), [](Communicator& c) -> absl::Status {
    std::vector<float> data(5000);
    if (c.rank() != 2) return c.run(all_reduce(data, "grad bucket 3"));
    while (c.failure().ok()) std::this_thread::sleep_for(milliseconds(10));
    return c.failure();
  });
  EXPECT_LT(seconds_since(start), 5);
  for (int rank : {0, 1}) {
    EXPECT_TRUE(absl::IsUnavailable(results[static_cast<size_t>(rank)]));
    EXPECT_THAT(std::string(results[static_cast<size_t>(rank)].message()),
                AllOf(HasSubstr("all_reduce 'grad bucket 3' (step 12): "), HasSubstr("nothing from rank 2 for 0.5 s")));
  }
  EXPECT_TRUE(absl::IsUnavailable(results[2]));
  EXPECT_THAT(std::string(results[2].message()),
              HasSubstr("gave up: all_reduce 'grad bucket 3' (step 12): nothing from rank 2"));
}

TEST(Collective, AbsentRank_IsNamedByEveryOperation) {
  for (const CollectiveKind kind :
       {CollectiveKind::kBarrier, CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter,
        CollectiveKind::kAllGather, CollectiveKind::kBroadcast, CollectiveKind::kAllToAll, CollectiveKind::kRecv,
        CollectiveKind::kPermute, CollectiveKind::kSend}) {
    SCOPED_TRACE(collective_name(kind));
    ThreadWorld world(2, {.timeout = milliseconds(100)});
    auto c = world.communicator(0);  // rank 1 never comes
    ASSERT_TRUE(c.ok());
    std::vector<float> in(20000), out(20000);
    const absl::Status status = (*c)->run({.kind = kind,
                                           .count = 10000,
                                           .input = in.data(),
                                           .output = out.data(),
                                           .root = 1,
                                           .to = 1,
                                           .from = 1,
                                           .label = "x"});
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(std::string(collective_name(kind)) + " 'x'"), HasSubstr("rank 1 for 0.1 s")));
  }
}

TEST(Collective, RankThatLeaves_EndsTheOthersAtOnce) {
  const auto start = Clock::now();
  const auto results = run_ranks(3, milliseconds(60000), [](Communicator& c) -> absl::Status {
    std::vector<float> data(5000);
    if (c.rank() == 1) return absl::OkStatus();
    return c.run(all_reduce(data, "loss"));
  });
  EXPECT_LT(seconds_since(start), 5);
  for (int rank : {0, 2}) {
    EXPECT_TRUE(absl::IsUnavailable(results[static_cast<size_t>(rank)]));
    EXPECT_THAT(std::string(results[static_cast<size_t>(rank)].message()),
                AllOf(HasSubstr("all_reduce 'loss'"), HasSubstr("rank 1 has left the run")));
  }
}

// Fails at the first wait and, as its interface allows, still moves every message until it is aborted.
class LateTransport final : public Transport {
 public:
  explicit LateTransport(int size) : size_(size) {}
  std::string_view name() const override { return "late"; }
  int rank() const override { return 0; }
  int size() const override { return size_; }
  void post_send(Transfer&) override {}
  void post_recv(Transfer& transfer) override { recvs_.push_back(&transfer); }
  absl::Status progress(SteadyTime) override {
    return recvs_.empty() ? absl::OkStatus() : absl::UnavailableError("the link broke");
  }
  void wake() override {}
  void abort(std::string_view) override {
    for (Transfer* transfer : recvs_) std::memset(transfer->data, 0xff, transfer->size);
  }
  void close() override {}

 private:
  const int size_;
  std::vector<Transfer*> recvs_;
};

// The address sanitizer sees a message that is written where its memory is gone.
TEST(Collective, MessagesThatComeAfterAnError_FindTheirMemory) {
  for (const size_t count : {5, 5000, 5000000}) {
    for (const CollectiveKind kind : {CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter,
                                      CollectiveKind::kAllGather, CollectiveKind::kAllToAll}) {
      const auto communicator = open_transport_communicator(
          []() -> absl::StatusOr<std::unique_ptr<Transport>> { return std::make_unique<LateTransport>(3); }, {});
      ASSERT_TRUE(communicator.ok()) << communicator.status();
      std::vector<float> input(3 * count), output(3 * count);
      const absl::Status status =
          (*communicator)
              ->run(
                  {.kind = kind, .count = static_cast<int64_t>(count), .input = input.data(), .output = output.data()});
      EXPECT_THAT(std::string(status.message()), HasSubstr("the link broke"));
    }
  }
}

TEST(Collective, RankThatLeavesWithUnfinishedWork_Aborts) {
  const auto results = run_ranks(2, milliseconds(60000), [](Communicator& c) -> absl::Status {
    static std::vector<float> data(5000);
    if (c.rank() == 1) {
      c.start({.kind = CollectiveKind::kRecv, .count = 5000, .output = data.data(), .from = 0, .label = "activation"});
      return absl::OkStatus();
    }
    while (c.failure().ok()) std::this_thread::sleep_for(milliseconds(10));
    return c.failure();
  });
  EXPECT_TRUE(absl::IsUnavailable(results[0]));
  EXPECT_THAT(std::string(results[0].message()),
              HasSubstr("rank 1 gave up: it left before recv 'activation' (step 0) was finished"));
}

TEST(Collective, Abort_ReachesEverybodyWithItsReason) {
  const auto start = Clock::now();
  const auto results = run_ranks(4, milliseconds(60000), [](Communicator& c) -> absl::Status {
    std::vector<float> data(5000);
    if (c.rank() == 3) {
      std::this_thread::sleep_for(milliseconds(50));
      c.abort("the loss is not a number");
      return c.run(all_reduce(data, "late"));
    }
    const Ticket first = c.start(all_reduce(data, "early")), second = c.start({.label = "later"});
    const absl::Status later = c.wait(second);
    EXPECT_TRUE(absl::IsUnavailable(later));
    EXPECT_THAT(std::string(later.message()), HasSubstr("barrier 'later'"));
    return c.wait(first);
  });
  EXPECT_LT(seconds_since(start), 5);
  for (const absl::Status& status : results) {
    EXPECT_TRUE(absl::IsUnavailable(status));
    EXPECT_THAT(std::string(status.message()), HasSubstr("the loss is not a number"));
  }
}

TEST(Collective, Abort_CarriesWhatTheRankEndsWith) {
  // Many times: what comes right after abort() may find the progress thread anywhere.
  for (int run = 0; run < 1000; ++run) {
    SCOPED_TRACE(run);
    const auto results = run_ranks(3, milliseconds(60000), [](Communicator& c) -> absl::Status {
      if (c.rank() == 1) c.abort(with_code("no such file", 2));
      return c.run({.label = "late"});
    });
    for (const absl::Status& status : results) {
      ASSERT_TRUE(absl::IsUnavailable(status));
      ASSERT_THAT(std::string(status.message()), testing::EndsWith("no such file"));
      ASSERT_EQ(end_code(status), 2);
    }
  }
  EXPECT_EQ(end_code(gave_up_error(with_code("its watch waited too long", 129))), 129);
}

TEST(Collective, Mismatch_IsAnErrorNotAHang) {
  const auto start = Clock::now();
  const auto results = run_ranks(2, milliseconds(60000), [](Communicator& c) -> absl::Status {
    std::vector<float> data(c.rank() == 0 ? 1000 : 1001);
    return c.run(all_reduce(data, "x"));
  });
  EXPECT_LT(seconds_since(start), 5);
  int mismatches = 0;
  for (const absl::Status& status : results) {
    EXPECT_FALSE(status.ok());
    if (!absl::IsFailedPrecondition(status)) continue;
    ++mismatches;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("do not match"), HasSubstr("all_reduce sum of 1000 x f32"),
                      HasSubstr("all_reduce sum of 1001 x f32")));
  }
  EXPECT_GE(mismatches, 1);
}

TEST(Collective, Misuse_IsInvalidArgumentAndEndsTheRun) {
  float value[8] = {};
  const std::vector<std::pair<CollectiveOp, std::string>> cases = {
      {{.kind = CollectiveKind::kAllReduce, .group = 5, .count = 1, .output = value}, "no group 5"},
      {{.kind = CollectiveKind::kAllReduce, .count = -1, .output = value}, "count -1"},
      {{.kind = CollectiveKind::kAllGather,
        .count = std::numeric_limits<int64_t>::max() / 4,
        .input = value,
        .output = value},
       "out of range"},
      {{.kind = CollectiveKind::kAllReduce, .dtype = DType::kInvalid, .count = 1, .output = value}, "dtype"},
      {{.kind = CollectiveKind::kAllReduce, .dtype = DType::kBool, .count = 1, .output = value},
       "cannot reduce bool by sum"},
      {{.kind = CollectiveKind::kAllReduce, .count = 1}, "output is null"},
      {{.kind = CollectiveKind::kAllGather, .count = 1, .output = value}, "input is null"},
      {{.kind = CollectiveKind::kBroadcast, .count = 1, .output = value, .root = 2}, "root 2"},
      {{.kind = CollectiveKind::kSend, .count = 1, .input = value, .to = 0}, "use permute"},
      {{.kind = CollectiveKind::kSend, .count = 1, .input = value, .to = 2}, "destination 2"},
      {{.kind = CollectiveKind::kRecv, .count = 1, .output = value}, "source -1"},
      {{.kind = CollectiveKind::kPermute, .count = 1, .input = value, .output = value, .to = 0, .from = 1},
       "both sides"},
      {{.kind = static_cast<CollectiveKind>(99), .count = 1}, "unknown operation 99"},
  };
  for (const auto& [op, text] : cases) {
    SCOPED_TRACE(text);
    ThreadWorld world(2);
    auto mine = world.communicator(0), other = world.communicator(1);
    const absl::Status status = (*mine)->run(op);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
    const absl::Status told = (*other)->run({.label = "next"});
    EXPECT_TRUE(absl::IsUnavailable(told));
    EXPECT_THAT(std::string(told.message()), AllOf(HasSubstr("rank 0 gave up"), HasSubstr(text)));
  }
}

TEST(Collective, Groups) {
  ThreadWorld world(3);
  auto c = world.communicator(1);
  ASSERT_TRUE(c.ok());
  EXPECT_EQ((*c)->create_group({}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ((*c)->create_group({0, 0}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ((*c)->create_group({1, 3}).status().code(), absl::StatusCode::kInvalidArgument);
  const auto foreign = (*c)->create_group({0, 2}), own = (*c)->create_group({1});
  ASSERT_TRUE(foreign.ok() && own.ok());
  std::vector<float> data = {3};
  CollectiveOp op = all_reduce(data);
  op.group = *own;
  EXPECT_TRUE((*c)->run(op).ok());
  op.group = *foreign;
  EXPECT_THAT(std::string((*c)->run(op).message()), HasSubstr("not in the group of ranks 0, 2"));
  EXPECT_EQ((*c)->wait(99).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(world.communicator(1).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(world.communicator(3).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Collective, Agree_NamesTheRanksThatDiffer) {
  const auto results = run_ranks(4, milliseconds(60000), [](Communicator& c) -> absl::Status {
    const std::byte same[3] = {std::byte{1}, std::byte{2}, std::byte{3}};
    if (absl::Status s = c.agree("the seed", same); !s.ok()) return s;
    const std::byte mine[1] = {std::byte{c.rank() == 2 ? uint8_t{1} : uint8_t{0}}};
    return c.agree("the bundle", mine);
  });
  for (const absl::Status& status : results) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("the ranks disagree on 'the bundle': rank 2 differs from ranks 0, 1, 3"));
  }
}

TEST(DescribeRanks, FoldsRuns) {
  EXPECT_EQ(describe_ranks({3}), "rank 3");
  EXPECT_EQ(describe_ranks({5, 0, 1, 2}), "ranks 0-2, 5");
  EXPECT_EQ(describe_ranks({1, 2}), "ranks 1, 2");
}

template <typename T>
std::vector<T> reduce(DType dtype, ReduceOp op, const std::vector<std::vector<T>>& inputs) {
  std::vector<const std::byte*> sources;
  for (const auto& input : inputs) sources.push_back(reinterpret_cast<const std::byte*>(input.data()));
  std::vector<T> output(inputs[0].size());
  reduce_in_order(dtype, op, sources, reinterpret_cast<std::byte*>(output.data()), static_cast<int64_t>(output.size()));
  return output;
}

TEST(ReduceKernels, Half_IsRoundedOnce) {
  // 2048 + 1 + 1: in f16 steps each sum would fall back to 2048.
  const std::vector<uint16_t> big(600, float_to_f16(2048)), one(600, float_to_f16(1));
  EXPECT_EQ(reduce<uint16_t>(DType::kF16, ReduceOp::kSum, {big, one, one}),
            std::vector<uint16_t>(600, float_to_f16(2050)));
  const std::vector<uint16_t> big_b(3, float_to_bf16(256)), one_b(3, float_to_bf16(1));
  EXPECT_EQ(reduce<uint16_t>(DType::kBF16, ReduceOp::kSum, {big_b, one_b, one_b}),
            std::vector<uint16_t>(3, float_to_bf16(258)));
}

TEST(ReduceKernels, Extremes) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  for (ReduceOp op : {ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kSum}) {
    const std::vector<float> out = reduce<float>(DType::kF32, op, {{nan, 1, 1}, {1, nan, 1}, {2, inf, nan}});
    for (float value : out) EXPECT_TRUE(std::isnan(value)) << reduce_name(op);
  }
  EXPECT_EQ(reduce<float>(DType::kF32, ReduceOp::kMax, {{-inf, 2}, {-1, inf}}), (std::vector<float>{-1, inf}));
  EXPECT_EQ(reduce<int32_t>(DType::kI32, ReduceOp::kSum, {{2147483647}, {1}}), (std::vector<int32_t>{-2147483647 - 1}));
  EXPECT_EQ(reduce<uint8_t>(DType::kU8, ReduceOp::kSum, {{200}, {100}}), (std::vector<uint8_t>{44}));
  EXPECT_EQ(reduce<uint8_t>(DType::kBool, ReduceOp::kMax, {{0, 1, 0}, {0, 0, 1}}), (std::vector<uint8_t>{0, 1, 1}));
}

}  // namespace
}  // namespace partita::runtime
