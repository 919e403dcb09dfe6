#include "runtime/execute/executor.h"

#include <cmath>
#include <cstring>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/program/placement.h"
#include "tests/runtime/support/on_ranks.h"
#include "tests/runtime/support/program_samples.h"

namespace partita::runtime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename T>
std::span<T> values(const Executor& executor, const Operand& operand, int64_t slot = 0) {
  const std::span<std::byte> bytes = executor.memory(operand, slot);
  return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
}

absl::Status no_stage(int64_t, int64_t) { return absl::OkStatus(); }

struct Descent {
  std::vector<double> losses, w;
};

std::vector<float> samples(int64_t batch) {
  std::mt19937 random(7);
  std::vector<float> xt;
  for (int64_t i = 0; i < batch * 4; ++i) xt.push_back(static_cast<float>(random() % 2001) / 1000 - 1);
  return xt;
}

Descent reference(int64_t batch, double rate, int steps) {
  const std::vector<float> xt = samples(batch);
  Descent result{.w = {-1, -1, -1}};
  for (int s = 0; s < steps; ++s) {
    double loss = 0, gradient[3] = {};
    for (int64_t i = 0; i < batch; ++i) {
      const float* row = xt.data() + i * 4;
      const double e = row[0] * result.w[0] + row[1] * result.w[1] + row[2] * result.w[2] - row[3];
      loss += e * e / static_cast<double>(batch);
      for (int c = 0; c < 3; ++c) gradient[c] += e * row[c] / static_cast<double>(batch);
    }
    for (int c = 0; c < 3; ++c) result.w[static_cast<size_t>(c)] -= rate * gradient[c];
    result.losses.push_back(loss);
  }
  return result;
}

Descent descend(Executor& executor, double rate, int steps) {
  const Program& p = executor.program();
  for (float& v : values<float>(executor, p.states[0].operand)) v = -1;
  values<float>(executor, p.states[1].operand)[0] = 1.0f / static_cast<float>(p.samples_per_step);
  for (size_t c = 0; c < 3; ++c) values<float>(executor, p.states[2].operand)[c * 5] = static_cast<float>(-rate);
  const std::vector<float> xt = samples(p.samples_per_step);
  Descent result;
  for (int s = 0; s < steps; ++s) {
    const absl::Status status = executor.run(p.schedule, [&](int64_t micro_batch, int64_t slot) {
      const int64_t first = micro_batch * p.samples_per_step / p.micro_batches +
                            box_offset(p.inputs[0].placement, executor.coordinates())[0];
      const std::span<float> to = values<float>(executor, p.inputs[0].operand, slot);
      std::copy_n(xt.begin() + first * 4, to.size(), to.begin());
      return absl::OkStatus();
    });
    EXPECT_TRUE(status.ok()) << status;
    result.losses.push_back(values<float>(executor, p.outputs[0].operand)[0]);
  }
  for (size_t c = 0; c < 3; ++c) result.w.push_back(values<float>(executor, p.states[0].operand)[c]);
  return result;
}

void expect_near(const Descent& found, const Descent& expected) {
  ASSERT_EQ(found.losses.size(), expected.losses.size());
  for (size_t i = 0; i < found.losses.size(); ++i) EXPECT_NEAR(found.losses[i], expected.losses[i], 1e-5);
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(found.w[i], expected.w[i], 1e-5);
}

TEST(Executor, OneRank_Descends) {
  auto loaded = LoadedProgram::load(least_squares(1, 12, 3));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  auto executor = Executor::create(*loaded, nullptr, {.threads = 2, .profile = true});
  ASSERT_TRUE(executor.ok()) << executor.status();
  expect_near(descend(**executor, 0.5, 6), reference(12, 0.5, 6));
  const StepProfile* profile = (*executor)->profile();
  ASSERT_NE(profile, nullptr);
  EXPECT_THAT(profile->table(), HasSubstr("matmul"));
  EXPECT_THAT(profile->table(), HasSubstr("MatMul \\'gradient\\'"));
  EXPECT_THAT(profile->chrome_trace(), HasSubstr("\"traceEvents\""));
}

TEST(Executor, TwoRanks_EqualOneAndEachOther) {
  auto loaded = LoadedProgram::load(least_squares(2, 12, 3));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  Descent found[2];
  on_ranks(2, [&](int rank, Communicator* communicator) {
    auto executor = Executor::create(*loaded, communicator, {});
    ASSERT_TRUE(executor.ok()) << executor.status();
    found[rank] = descend(**executor, 0.5, 5);
  });
  expect_near(found[0], reference(12, 0.5, 5));
  EXPECT_EQ(found[0].losses, found[1].losses);
  EXPECT_EQ(found[0].w, found[1].w);
}

TEST(Executor, WrongNumberOfRanks_IsRefused) {
  auto loaded = LoadedProgram::load(least_squares(2, 12, 3));
  const absl::Status status = Executor::create(*loaded, nullptr, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("compiled for 2 ranks, but 1 are running"));
}

TEST(Executor, TuneOnTheHost_IsRefused) {
  auto loaded = LoadedProgram::load(least_squares(1, 12, 3));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const absl::Status status = Executor::create(*loaded, nullptr, {.tune = "choices.json"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--tune times the products of a GPU, and the program is for"));
}

TEST(Executor, UnknownKernel_NamesStepAndOrigin) {
  Program p = least_squares(1, 12, 3);
  p.segments[1].steps[0].name = "divination";
  auto loaded = LoadedProgram::load(p);
  ASSERT_TRUE(loaded.ok());
  const absl::Status status = Executor::create(*loaded, nullptr, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("step 2 'divination' ('MatMul \\'forward\\''): this runtime has no kernel 'divination'"));
}

// One forward segment with the given steps; region input 4 KiB, arena 64 KiB.
Program program_of(std::vector<MeshAxis> mesh, std::vector<CollectiveGroup> groups, std::vector<Step> steps) {
  Program p;
  p.mesh = std::move(mesh);
  p.groups = std::move(groups);
  p.segments.push_back({.kind = Segment::kForward, .steps = std::move(steps)});
  p.schedule = {{0, 0, 0}};
  p.region_bytes[static_cast<int>(Region::kArena)] = 65536;
  p.region_bytes[static_cast<int>(Region::kInput)] = 4096;
  number_steps(p);
  return p;
}

std::vector<Step> communicate(const std::string& name, Operand in, Operand out, Params params) {
  std::vector<Step> steps;
  steps.push_back(step(StepKind::kCollectiveStart, name, {in}, {out}, std::move(params)));
  steps.push_back(step(StepKind::kCollectiveWait, name, {}, {}, {{"of", int64_t{0}}}));
  return steps;
}

// Runs a program on four ranks of a 2 x 2 mesh, where `in` holds rank * 10 + i, and returns what `out` holds on each.
std::vector<std::vector<float>> exchange(const std::string& name, int64_t in_count, int64_t out_count, Params params) {
  const Operand in = operand(Region::kArena, 0, {in_count}), out = operand(Region::kArena, 4096, {out_count});
  auto loaded = LoadedProgram::load(program_of({{"pipeline", 2}, {"tensor", 2}}, {{{0}}, {{1}}, {{0, 1}}, {{1, 0}}},
                                               communicate(name, in, out, std::move(params))));
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  std::vector<std::vector<float>> results(4);
  if (!loaded.ok()) return results;
  on_ranks(4, [&](int rank, Communicator* communicator) {
    auto executor = Executor::create(*loaded, communicator, {});
    ASSERT_TRUE(executor.ok()) << executor.status();
    const std::span<float> x = values<float>(**executor, in), y = values<float>(**executor, out);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(rank * 10) + static_cast<float>(i);
    std::fill(y.begin(), y.end(), -1.0f);
    const absl::Status status = (*executor)->run((*loaded)->program.schedule, no_stage);
    ASSERT_TRUE(status.ok()) << status;
    results[static_cast<size_t>(rank)].assign(y.begin(), y.end());
  });
  return results;
}

TEST(Executor, Collectives_FollowTheMesh) {
  // Ranks (pipeline, tensor): 0 = (0,0), 1 = (0,1), 2 = (1,0), 3 = (1,1).
  auto y = exchange("all_reduce", 2, 2, {{"group", int64_t{1}}});
  EXPECT_THAT(y[0], ElementsAre(10, 12));
  EXPECT_THAT(y[3], ElementsAre(50, 52));
  y = exchange("all_reduce", 1, 1, {{"group", int64_t{0}}, {"reduce", std::string("max")}});
  EXPECT_THAT(y[0], ElementsAre(20));
  EXPECT_THAT(y[1], ElementsAre(30));
  y = exchange("all_gather", 1, 4, {{"group", int64_t{2}}});
  EXPECT_THAT(y[1], ElementsAre(0, 10, 20, 30));
  y = exchange("all_gather", 1, 4, {{"group", int64_t{3}}});
  EXPECT_THAT(y[1], ElementsAre(0, 20, 10, 30));
  y = exchange("reduce_scatter", 4, 2, {{"group", int64_t{1}}});
  EXPECT_THAT(y[0], ElementsAre(10, 12));
  EXPECT_THAT(y[1], ElementsAre(14, 16));
  y = exchange("all_to_all", 2, 2, {{"group", int64_t{0}}});
  EXPECT_THAT(y[0], ElementsAre(0, 20));
  EXPECT_THAT(y[2], ElementsAre(1, 21));
  y = exchange("broadcast", 1, 1, {{"group", int64_t{1}}, {"root", int64_t{1}}});
  EXPECT_THAT(y[2], ElementsAre(30));
  EXPECT_THAT(y[3], ElementsAre(30));
  y = exchange("permute", 1, 1, {{"group", int64_t{2}}, {"shift", int64_t{1}}});
  EXPECT_THAT(y[0], ElementsAre(30));
  EXPECT_THAT(y[1], ElementsAre(0));
  y = exchange("permute", 1, 1, {{"group", int64_t{2}}, {"shift", int64_t{1}}, {"wrap", int64_t{0}}});
  EXPECT_THAT(y[0], ElementsAre(-1));
  EXPECT_THAT(y[2], ElementsAre(10));
}

TEST(Executor, SeveralOperands_AreReducedTogether) {
  const Operand a = operand(Region::kArena, 0, {3}), b = operand(Region::kArena, 64, {2}),
                c = operand(Region::kArena, 1024, {1});
  std::vector<Step> steps;
  steps.push_back(step(StepKind::kCollectiveStart, "all_reduce", {a, b, c}, {a, b, c}, {{"group", int64_t{0}}}));
  steps.push_back(step(StepKind::kCollectiveWait, "all_reduce", {}, {}, {{"of", int64_t{0}}}));
  auto loaded = LoadedProgram::load(program_of({{"data", 2}}, {{{0}}}, steps));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  on_ranks(2, [&](int rank, Communicator* communicator) {
    auto executor = Executor::create(*loaded, communicator, {});
    ASSERT_TRUE(executor.ok());
    for (const Operand& x : {a, b, c})
      for (float& v : values<float>(**executor, x)) v = static_cast<float>(rank + 1);
    ASSERT_TRUE((*executor)->run((*loaded)->program.schedule, no_stage).ok());
    for (const Operand& x : {a, b, c})
      for (float v : values<float>(**executor, x)) EXPECT_EQ(v, 3);
  });
}

TEST(Executor, SeveralOperands_AreScatteredAndGatheredTogether) {
  const Operand a = operand(Region::kArena, 0, {2, 3}), b = operand(Region::kArena, 64, {2}),
                mine_a = operand(Region::kArena, 128, {3}), mine_b = operand(Region::kArena, 192, {}),
                all_a = operand(Region::kArena, 256, {2, 3}), all_b = operand(Region::kArena, 320, {2});
  std::vector<Step> steps;
  steps.push_back(
      step(StepKind::kCollectiveStart, "reduce_scatter", {a, b}, {mine_a, mine_b}, {{"group", int64_t{0}}}));
  steps.push_back(step(StepKind::kCollectiveWait, "reduce_scatter", {}, {}, {{"of", int64_t{0}}}));
  steps.push_back(
      step(StepKind::kCollectiveStart, "all_gather", {mine_a, mine_b}, {all_a, all_b}, {{"group", int64_t{0}}}));
  steps.push_back(step(StepKind::kCollectiveWait, "all_gather", {}, {}, {{"of", int64_t{2}}}));
  auto loaded = LoadedProgram::load(program_of({{"data", 2}}, {{{0}}}, steps));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  on_ranks(2, [&](int rank, Communicator* communicator) {
    auto executor = Executor::create(*loaded, communicator, {});
    ASSERT_TRUE(executor.ok());
    for (const Operand& x : {a, b}) {
      std::span<float> values_of_x = values<float>(**executor, x);
      for (size_t k = 0; k < values_of_x.size(); ++k)
        values_of_x[k] = static_cast<float>(10 * rank) + static_cast<float>(k);
    }
    ASSERT_TRUE((*executor)->run((*loaded)->program.schedule, no_stage).ok());
    EXPECT_EQ(values<float>(**executor, mine_a)[0], static_cast<float>(10 + 6 * rank));
    EXPECT_THAT(values<float>(**executor, all_a), ElementsAre(10, 12, 14, 16, 18, 20));
    EXPECT_THAT(values<float>(**executor, all_b), ElementsAre(10, 12));
  });
}

TEST(Executor, GroupOfOne_CopiesWithoutACommunicator) {
  const Operand in = operand(Region::kArena, 0, {3}), out = operand(Region::kArena, 64, {3});
  auto loaded = LoadedProgram::load(
      program_of({{"data", 1}}, {{{0}}}, communicate("all_reduce", in, out, {{"group", int64_t{0}}})));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  auto executor = Executor::create(*loaded, nullptr, {});
  ASSERT_TRUE(executor.ok());
  std::ranges::fill(values<float>(**executor, in), 5.0f);
  ASSERT_TRUE((*executor)->run((*loaded)->program.schedule, no_stage).ok());
  EXPECT_THAT(values<float>(**executor, out), ElementsAre(5, 5, 5));
}

TEST(Executor, StartedOnce_IsWaitedForInEverySlot) {
  const Operand x = operand(Region::kArena, 0, {1}), y = operand(Region::kArena, 64, {1}),
                seen = operand(Region::kArena, 128, {1}, DType::kF32, 64);
  Program p = program_of({{"data", 2}}, {{{0}}}, {});
  p.slots = 2;
  p.micro_batches = 2;
  p.segments = {{.kind = Segment::kPrologue,
                 .steps = {step(StepKind::kCollectiveStart, "all_reduce", {x}, {y}, {{"group", int64_t{0}}})}},
                {.kind = Segment::kForward,
                 .steps = {step(StepKind::kCollectiveWait, "all_reduce", {}, {}, {{"of", int64_t{0}}}),
                           step(StepKind::kCopy, "", {y}, {seen})}}};
  number_steps(p);
  p.schedule = {{0, 0, 0}, {1, 0, 0}, {1, 1, 1}};
  auto loaded = LoadedProgram::load(p);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  on_ranks(2, [&](int rank, Communicator* communicator) {
    auto executor = Executor::create(*loaded, communicator, {});
    ASSERT_TRUE(executor.ok());
    EXPECT_THAT(std::string((*executor)->run(std::vector<ScheduleEntry>{{1, 0, 0}}, no_stage).message()),
                HasSubstr("step 1 'all_reduce': the collective it waits for has not been started"));
    values<float>(**executor, x)[0] = static_cast<float>(rank + 1);
    ASSERT_TRUE((*executor)->run(p.schedule, no_stage).ok());
    EXPECT_EQ(values<float>(**executor, seen, 0)[0], 3);
    EXPECT_EQ(values<float>(**executor, seen, 1)[0], 3);
  });
}

// Three micro-batches over a value that each overwrites: what was put into the outbox goes, though the receiver asks
// for the first when two are under way.
TEST(Executor, Outbox_HoldsMessagesUnderWay) {
  const Operand micro = operand(Region::kInput, 0, {1}, DType::kI64),
                value = operand(Region::kArena, 0, {1}, DType::kI64),
                box = operand(Region::kArena, 64, {2, 64}, DType::kU8),
                got = operand(Region::kArena, 192, {1}, DType::kI64, 64);
  Program p = program_of({{"pipeline", 2}}, {{{0}}}, {});
  p.slots = p.micro_batches = 3;
  p.inputs.push_back({.name = "", .kind = InputKind::kMicroBatch, .operand = micro});
  p.segments = {
      {.kind = Segment::kForward,
       .steps = {step(StepKind::kCopy, "", {micro}, {value}),
                 step(StepKind::kCollectiveStart, "send", {value}, {box},
                      {{"group", int64_t{0}}, {"peer", int64_t{1}}, {"outbox", int64_t{0}}})}},
      {.kind = Segment::kForward,
       .steps = {step(StepKind::kCollectiveStart, "recv", {}, {got}, {{"group", int64_t{0}}, {"peer", int64_t{0}}}),
                 step(StepKind::kCollectiveWait, "recv", {}, {}, {{"of", int64_t{2}}})}}};
  number_steps(p);
  p.schedule = {{0, 0, 0}};
  auto loaded = LoadedProgram::load(p);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  on_ranks(2, [&](int rank, Communicator* communicator) {
    auto executor = Executor::create(*loaded, communicator, {});
    ASSERT_TRUE(executor.ok()) << executor.status();
    std::vector<ScheduleEntry> schedule;
    for (int32_t k : {0, 1, 2}) schedule.push_back({rank, k, k});
    for (int step = 0; step < 2; ++step) {
      ASSERT_TRUE((*executor)->run(schedule, no_stage).ok());
      for (int64_t k = 0; rank == 1 && k < 3; ++k) EXPECT_EQ(values<int64_t>(**executor, got, k)[0], k);
    }
  });
  Program damaged = p;
  damaged.segments[0].steps[1].operands[1].shape = {2, 0};
  EXPECT_THAT(std::string(LoadedProgram::load(damaged).status().message()),
              HasSubstr("a message of 8 bytes from an outbox"));
  damaged = p;
  damaged.segments[0].steps.push_back(p.segments[0].steps[1]);
  damaged.segments[0].steps[2].operands[1].address.offset = 128;
  number_steps(damaged);
  EXPECT_THAT(std::string(LoadedProgram::load(damaged).status().message()), HasSubstr("another step has elsewhere"));
  damaged = p;
  damaged.segments[1].steps[1].params["outbox"] = int64_t{0};
  EXPECT_THAT(std::string(LoadedProgram::load(damaged).status().message()), HasSubstr("sends nothing"));
}

TEST(Executor, PeerGone_NamesTheStep) {
  auto loaded = LoadedProgram::load(program_of({{"data", 2}}, {{{0}}},
                                               communicate("all_reduce", operand(Region::kArena, 0, {1}),
                                                           operand(Region::kArena, 64, {1}), {{"group", int64_t{0}}})));
  ASSERT_TRUE(loaded.ok());
  on_ranks(2, [&](int rank, Communicator* communicator) {
    auto executor = Executor::create(*loaded, communicator, {});
    ASSERT_TRUE(executor.ok());
    if (rank == 1) {
      communicator->abort("rank 1 gives up");
      return;
    }
    const absl::Status status = (*executor)->run((*loaded)->program.schedule, no_stage);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(status.message()), HasSubstr("step 1 'all_reduce'"));
  });
}

TEST(Executor, Scalars_AreStagedPerSlot) {
  const Operand micro = operand(Region::kInput, 0, {1}, DType::kI64, 64),
                coordinate = operand(Region::kInput, 128, {1}, DType::kI32, 64);
  const Operand seen = operand(Region::kArena, 0, {1}, DType::kI64, 64);
  Program p = program_of({{"data", 1}, {"tensor", 2}}, {}, {step(StepKind::kCopy, "", {micro}, {seen})});
  p.slots = 2;
  p.micro_batches = 4;
  p.schedule = {{0, 2, 0}, {0, 3, 1}};
  p.inputs.push_back({.name = "", .kind = InputKind::kMicroBatch, .operand = micro});
  p.inputs.push_back({.name = "tensor", .kind = InputKind::kCoordinate, .operand = coordinate});
  auto loaded = LoadedProgram::load(p);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  on_ranks(2, [&](int rank, Communicator* communicator) {
    auto executor = Executor::create(*loaded, communicator, {});
    ASSERT_TRUE(executor.ok());
    std::vector<int64_t> staged;
    ASSERT_TRUE((*executor)
                    ->run(p.schedule,
                          [&](int64_t micro_batch, int64_t slot) {
                            staged.insert(staged.end(), {micro_batch, slot});
                            return absl::OkStatus();
                          })
                    .ok());
    EXPECT_THAT(staged, ElementsAre(2, 0, 3, 1));
    EXPECT_EQ(values<int64_t>(**executor, seen, 0)[0], 2);
    EXPECT_EQ(values<int64_t>(**executor, seen, 1)[0], 3);
    EXPECT_EQ(values<int32_t>(**executor, coordinate, 1)[0], rank);
  });
}

TEST(Executor, Coordinates_AreThereBeforeThePrologue) {
  const Operand coordinate = operand(Region::kInput, 0, {1}, DType::kI64, 64), seen = operand(Region::kArena, 0, {1});
  Operand scalar = seen;
  scalar.dtype = DType::kI64;
  Program p = program_of({{"tensor", 2}}, {}, {step(StepKind::kCopy, "", {coordinate}, {scalar})});
  p.segments[0].kind = Segment::kPrologue;
  p.schedule = {{0, 0, 0}};
  p.inputs.push_back({.name = "tensor", .kind = InputKind::kCoordinate, .operand = coordinate});
  auto loaded = LoadedProgram::load(p);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  on_ranks(2, [&](int rank, Communicator* communicator) {
    auto executor = Executor::create(*loaded, communicator, {});
    ASSERT_TRUE(executor.ok());
    ASSERT_TRUE((*executor)->run(p.schedule, no_stage).ok());
    EXPECT_EQ(values<int64_t>(**executor, scalar, 0)[0], rank);
  });
}

TEST(KernelModule, Garbage_IsRefused) {
  Program p = least_squares(1, 12, 3);
  p.kernels.assign(100, 0);
  EXPECT_EQ(LoadedProgram::load(p).status().code(), absl::StatusCode::kDataLoss);
  std::memcpy(p.kernels.data(), "\177ELF", 4);
  EXPECT_EQ(LoadedProgram::load(p).status().code(), absl::StatusCode::kDataLoss);
}

TEST(Placement, Refined_IsMadeOfLogicalPieces) {
  // [3 * 4 * 2, 5], heads (the 4) over an axis of 2.
  Placement p{.logical = {24, 5}, .shape = {3, 4, 2, 5}, .local = {3, 2, 2, 5}, .axes = {{}, {{0, 2}}, {}, {}}};
  const std::vector<MeshAxis> mesh = {{"tensor", 2}, {"data", 3}};
  ASSERT_TRUE(check_placement(p, mesh, 60).ok());
  const std::vector<int64_t> coordinates = mesh_coordinates(mesh, 3);  // (1, 0)
  EXPECT_THAT(coordinates, ElementsAre(1, 0));
  EXPECT_TRUE(owns_box(p, coordinates));
  EXPECT_FALSE(owns_box(p, mesh_coordinates(mesh, 4)));
  std::vector<int64_t> rows, packed;
  ASSERT_TRUE(for_each_piece(p, coordinates, [&](const LogicalPiece& piece) {
                EXPECT_THAT(piece.extent, ElementsAre(4, 5));
                EXPECT_THAT(piece.packed_stride, ElementsAre(5, 1));
                rows.push_back(piece.offset[0]);
                packed.push_back(piece.packed_offset);
                return absl::OkStatus();
              }).ok());
  EXPECT_THAT(rows, ElementsAre(4, 12, 20));
  EXPECT_THAT(packed, ElementsAre(0, 20, 40));
}

TEST(Placement, Padded_HasPiecesOfWhatIsThere) {
  // 5 rows over 4 ranks: two each, the third has one of them and the last none.
  Placement p{.logical = {5, 3}, .shape = {8, 3}, .local = {2, 3}, .axes = {{{0, 2}}, {}}};
  const std::vector<MeshAxis> mesh = {{"tensor", 4}};
  ASSERT_TRUE(check_placement(p, mesh, 6, /*padded=*/true).ok());
  EXPECT_FALSE(check_placement(p, mesh, 6).ok());
  EXPECT_TRUE(is_padded(p));
  std::vector<int64_t> rows;
  for (int64_t rank = 0; rank < 4; ++rank) {
    ASSERT_TRUE(for_each_piece(p, std::vector<int64_t>{rank}, [&](const LogicalPiece& piece) {
                  EXPECT_EQ(piece.offset[0], 2 * rank);
                  EXPECT_EQ(piece.extent[1], 3);
                  rows.push_back(piece.extent[0]);
                  return absl::OkStatus();
                }).ok());
  }
  EXPECT_THAT(rows, ElementsAre(2, 2, 1));
  p.logical = {4, 3};  // twice as long is no padding
  EXPECT_FALSE(check_placement(p, mesh, 6, /*padded=*/true).ok());
}

TEST(Placement, Columns_PackWithStrides) {
  // [2, 6] as [2, 3, 2] with the last of the three split: two pieces per row block, each [2, 1] in a part of [2, 3].
  Placement p{.logical = {2, 6}, .shape = {2, 3, 2}, .local = {2, 3, 1}, .axes = {{}, {}, {{0, 1}}}};
  const std::vector<MeshAxis> mesh = {{"tensor", 2}};
  ASSERT_TRUE(check_placement(p, mesh, 6).ok());
  std::vector<float> own = {0, 1, 2, 3, 4, 5}, whole(12, -1);
  ASSERT_TRUE(for_each_piece(p, std::vector<int64_t>{1}, [&](const LogicalPiece& piece) {
                float dense[2];
                EXPECT_THAT(piece.extent, ElementsAre(2, 1));
                pack_piece(piece, 4, reinterpret_cast<std::byte*>(own.data()), reinterpret_cast<std::byte*>(dense));
                for (int64_t r = 0; r < 2; ++r) whole[static_cast<size_t>(r * 6 + piece.offset[1])] = dense[r];
                return absl::OkStatus();
              }).ok());
  EXPECT_THAT(whole, ElementsAre(-1, 0, -1, 1, -1, 2, -1, 3, -1, 4, -1, 5));
}

}  // namespace
}  // namespace partita::runtime
