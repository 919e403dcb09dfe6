// GPU programs, those whose states or activations lie in the host's memory among them: whole, over two ranks, on the
// real executor with a GPU that is this machine, against the local graphs in wide arithmetic. On two such: one whose
// queue runs as late as it may, and the CUDA module's own device.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <random>
#include <thread>

#include "base/cat.h"
#include "codegen/emit_program.h"
#include "codegen/prepare/host_transfers.h"
#include "nlohmann/json.hpp"
#include "partitioner/communicate/overlap_micro_batches.h"
#include "partitioner/localize/localize.h"
#include "partitioner/stages/split_stages.h"
#include "runtime/execute/executor.h"
#include "runtime/program/placement.h"
#include "runtime/program/program_check.h"
#include "runtime/program/sides.h"
#include "runtime/transports/collective_threads.h"
#include "tests/codegen/support/cuda_on_host.h"
#include "tests/codegen/support/device_stand_in.h"
#include "tests/partitioner/support/random_model.h"
#include "tests/partitioner/support/spmd.h"
#include "tests/support/test_options.h"
#ifdef PARTITA_STAND_INS
#include "tests/stand_ins/cuda/kernels.h"
#endif

namespace partita {
namespace {

using runtime::Region;

constexpr int kRanks = 2;
const TargetOptions kGpu = {.gpu = "sm_90"};

enum class Offload { kNone, kSome, kOptimizer, kAll };  // kSome: of every other parameter

// Two ranks with half of the samples each, and of each state whose first dimension allows it.
LocalProgram offloaded(const RandomModel& model, Offload what) {
  Graph graph = training_graph(model);
  ShardingPlan plan;
  plan.mesh.axes = {{"data", kRanks}};
  for (const GraphInput& in : graph.inputs) {
    plan.inputs.push_back(Sharding::replicated(graph.type(in.value).shape));
    plan.inputs.back().dims[0][0].axes = {0};
  }
  for (const State& s : graph.states) {
    const Shape& shape = graph.type(s.value).shape;
    const bool parameter = s.kind == StateKind::kParameter, optimizer = s.kind == StateKind::kOptimizer;
    Sharding whole = Sharding::replicated(shape), stored = whole;
    if ((parameter || optimizer) && !shape.empty() && shape[0] % kRanks == 0) stored.dims[0][0].axes = {0};
    const bool some = what == Offload::kSome && optimizer && (s.parameter.back() - '0') % 2 == 0;
    const bool host =
        some || (what == Offload::kAll ? parameter || optimizer : what == Offload::kOptimizer && optimizer);
    plan.states.push_back(StateLayout{stored, parameter ? whole : stored, GatherTime::kPass, host});
  }
  auto local = localize(graph, plan);
  PARTITA_CHECK(local.ok(), std::string(local.status().message()));
  return *std::move(local);
}

// A stage of a pipeline on each rank.
ShardingPlan in_stages(const Graph& graph, int64_t micro_batches) {
  ShardingPlan plan;
  plan.mesh.axes = {{"pipeline", kRanks}};
  plan.micro_batches = micro_batches;
  for (const GraphInput& in : graph.inputs) plan.inputs.push_back(Sharding::replicated(graph.type(in.value).shape));
  for (const State& s : graph.states) {
    const Sharding whole = Sharding::replicated(graph.type(s.value).shape);
    plan.states.push_back(StateLayout{whole, whole});
  }
  return plan;
}

Tensor random_tensor(const TensorType& type, std::mt19937& rng, bool positive) {
  Tensor t = Tensor::zeros(type);
  std::normal_distribution<double> normal;
  for (double& x : t.f) x = normal(rng) * 0.5;
  if (positive) std::ranges::transform(t.f, t.f.begin(), [](double x) { return std::abs(x); });
  for (int64_t& x : t.i) x = static_cast<int64_t>(rng() % 8);
  return t;
}

void write(const Tensor& value, std::span<std::byte> to) {
  Literal l = to_literal(value);
  ASSERT_EQ(l.bytes().size(), to.size());
  std::ranges::copy(l.bytes(), to.begin());
}

Tensor read(const TensorType& type, std::span<const std::byte> from) {
  return to_tensor(make_literal(type, {from.begin(), from.end()}));
}

enum class Played { kLate, kCuda };

// Elements of a micro-batch, of all that lie one after the other along dimension 0.
Tensor part_of(const Tensor& whole, const TensorType& type, int64_t micro_batch) {
  Tensor part = Tensor::zeros(type);
  std::copy_n(whole.f.begin() + micro_batch * static_cast<int64_t>(part.f.size()), part.f.size(), part.f.begin());
  std::copy_n(whole.i.begin() + micro_batch * static_cast<int64_t>(part.i.size()), part.i.size(), part.i.begin());
  return part;
}

// Each step from the states that the one before left. `stages`: those of a pipeline, or one.
Tensors run_steps(const std::vector<LocalProgram>& stages, const Tensors& inputs, const Tensors& states, int steps,
                  [[maybe_unused]] Played played = Played::kLate, std::vector<std::string>* traces = nullptr) {
  std::vector<runtime::Program> programs;
  std::vector<std::unique_ptr<PtxKernels>> kernels;
  for (const LocalProgram& stage : stages) {
    auto program = emit_program(stage, kGpu);
    PARTITA_CHECK(program.ok(), std::string(program.status().message()));
    kernels.push_back(std::make_unique<PtxKernels>(*program));
    programs.push_back(*std::move(program));
  }
  auto loaded = runtime::LoadedPrograms::load(std::move(programs));
  PARTITA_CHECK(loaded.ok(), std::string(loaded.status().message()));
  Tensors after = states;
  std::mutex one;
  runtime::ThreadWorld world(kRanks, {.timeout = std::chrono::seconds(20)});
  auto rank_body = [&](int rank) {
    auto control = world.communicator(rank);
    ASSERT_TRUE(control.ok());
    const auto number = static_cast<size_t>(runtime::stage_of(loaded->first().mesh, rank));
    const LocalProgram& local = stages[number];
    const auto open = [&](const runtime::Program& p, int n) -> absl::StatusOr<std::unique_ptr<runtime::Device>> {
#ifdef PARTITA_STAND_INS
      if (played == Played::kCuda) return open_cuda_on_host(p, n);
#endif
      return std::make_unique<DeviceStandIn>(*kernels[number]);
    };
    auto executor = runtime::Executor::create(loaded->of(rank), control->get(),
                                              {.profile = traces != nullptr, .open_device = open});
    ASSERT_TRUE(executor.ok()) << executor.status();
    runtime::Executor& e = **executor;
    const std::vector<int64_t>& at = e.coordinates();
    for (size_t k = 0; k < e.program().states.size(); ++k) {
      const runtime::ProgramState& s = e.program().states[k];
      write(shard_of(states.at(s.name), local.states[k].sharding, local.mesh, at), e.memory(s.operand));
    }
    ASSERT_TRUE(e.put_states().ok());
    for (int step = 0; step < steps; ++step) {
      absl::Status ran = e.run(e.program().schedule, [&](int64_t micro_batch, int64_t slot) -> absl::Status {
        for (size_t k = 0; k < e.program().inputs.size(); ++k) {
          const runtime::ProgramInput& in = e.program().inputs[k];
          if (in.kind != InputKind::kData) continue;
          TensorType type = inputs.at(in.name).type;
          type.shape[0] /= e.program().micro_batches;
          const Tensor part = part_of(inputs.at(in.name), type, micro_batch);
          write(shard_of(part, local.inputs[k].sharding, local.mesh, at), e.memory(in.operand, slot));
          PARTITA_RETURN_IF_ERROR(e.put(in.operand, slot));
        }
        return absl::OkStatus();
      });
      ASSERT_TRUE(ran.ok()) << ran;
    }
    ASSERT_TRUE(e.fetch_states().ok());
    std::lock_guard lock(one);
    if (traces != nullptr) traces->push_back(e.profile()->chrome_trace());
    for (size_t k = 0; k < e.program().states.size(); ++k) {
      const runtime::ProgramState& s = e.program().states[k];
      Tensor part = read({s.operand.dtype, s.operand.shape}, e.memory(s.operand));
      unshard(after.at(s.name), part, local.states[k].sharding, local.mesh, at);
    }
  };
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) ranks.emplace_back(rank_body, rank);
  for (std::thread& t : ranks) t.join();
  return after;
}

void expect_near(const Tensors& found, const Tensors& expected, double tolerance, const RandomModel& model) {
  for (const auto& [name, e] : expected) {
    const Tensor& f = found.at(name);
    ASSERT_EQ(f.type, e.type) << name;
    EXPECT_EQ(f.i, e.i) << name;
    for (size_t k = 0; k < e.f.size(); ++k)
      ASSERT_NEAR(f.f[k], e.f[k], tolerance * std::max(1.0, std::abs(e.f[k]))) << describe(model) << ": " << name;
  }
}

Tensors run_steps(const LocalProgram& local, const Tensors& inputs, const Tensors& states, int steps,
                  Played played = Played::kLate, std::vector<std::string>* traces = nullptr) {
  return run_steps(std::vector<LocalProgram>{local}, inputs, states, steps, played, traces);
}

std::pair<Tensors, Tensors> random_values(const Graph& whole, int64_t micro_batches = 1) {
  std::mt19937 rng(3);
  Tensors inputs, states;
  for (const GraphInput& in : whole.inputs) {
    TensorType type = whole.type(in.value);
    if (in.kind != InputKind::kData) continue;
    type.shape[0] *= micro_batches;
    inputs[in.name] = random_tensor(type, rng, false);
  }
  for (const State& s : whole.states) {
    states[s.name] = s.kind == StateKind::kStep
                         ? Tensor::zeros(whole.type(s.value))
                         : random_tensor(whole.type(s.value), rng, s.kind == StateKind::kOptimizer);
  }
  return {inputs, states};
}

// One step as the reference does it (the CPU's attention is good to 1e-6 in f64), and three as the same program with
// all states on the GPU does: by then some models have made much of what was rounded.
void expect_trained(const RandomModel& model, Offload what) {
  LocalProgram local = offloaded(model, what);
  const auto [inputs, states] = random_values(training_graph(model));
  expect_near(run_steps(local, inputs, states, 1), run_spmd(local, inputs, states).states, 1e-5, model);
  constexpr int kSteps = 3;
  expect_near(run_steps(local, inputs, states, kSteps),
              run_steps(offloaded(model, Offload::kNone), inputs, states, kSteps), 1e-9, model);
}

TEST(HostOffload_EveryOptimizer, TrainsAsTheReference) {
  for (int optimizer = 0; optimizer < 6; ++optimizer) {
    for (Offload what : {Offload::kSome, Offload::kOptimizer, Offload::kAll}) {
      const bool clip = (optimizer + static_cast<int>(what)) % 2 == 0;
      expect_trained({.layers = {2}, .optimizer = optimizer, .clip = clip}, what);
      ASSERT_FALSE(HasFailure()) << optimizer << static_cast<int>(what);
    }
  }
}

TEST(HostOffload_RandomModels, TrainAsTheReference) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    RandomModel model = random_model(seed);
    model.micro_batches = 1;
    model.accumulate = false;
    expect_trained(model, seed % 2 ? Offload::kAll : Offload::kOptimizer);
    ASSERT_FALSE(HasFailure()) << seed;
  }
}

#ifdef PARTITA_STAND_INS
// The first step issues its work, the second captures it, the third launches what was captured.
void expect_trained_on_cuda() {
  constexpr int kGroupedExperts = 13;
  for (uint64_t seed = 0; seed < sample_or_all<uint64_t>(12, 60); ++seed) {
    RandomModel model = random_model(seed);
    if (seed < 3) model.layers.push_back(kGroupedExperts);
    model.micro_batches = 1;
    model.accumulate = false;
    const Offload what = static_cast<Offload>(seed % 4);
    const auto [inputs, states] = random_values(training_graph(model));
    const LocalProgram local = offloaded(model, what);
    expect_near(run_steps(local, inputs, states, 3, Played::kCuda), run_steps(local, inputs, states, 3), 1e-9, model);
    ASSERT_FALSE(::testing::Test::HasFailure()) << seed;
  }
  EXPECT_GT(stand_in::graph_launches(), 0);  // from the second step on
}

// Two stages whose messages cross: what one of them sends must not wait for what the other one sends.
void expect_pipeline_trained_on_cuda() {
  RandomModel model{.layers = {2, 3, 2, 3}, .micro_batches = 4, .accumulate = true, .optimizer = 2};
  const Graph graph = training_graph(model);
  const auto [inputs, states] = random_values(graph, model.micro_batches);
  const ShardingPlan plan = in_stages(graph, model.micro_batches);
  for (PipelineSchedule schedule : {PipelineSchedule::kGpipe, PipelineSchedule::k1f1b}) {
    auto local = localize(graph, plan);
    ASSERT_TRUE(local.ok()) << local.status();
    auto stages = split_stages(*local, 0, {schedule, 1, {}});
    ASSERT_TRUE(stages.ok()) << stages.status();
    Tensors expected = run_spmd(*stages, inputs, states).states;
    std::erase_if(expected, [](const auto& s) { return s.first.starts_with("accumulate/"); });  // a stage's own
    expect_near(run_steps(*stages, inputs, states, 1, Played::kCuda), expected, 1e-5, model);
  }
}

// Ranks of one process on one GPU: their collectives go through the host.
TEST(CudaDevice_RandomModels, TrainAsTheReference) { expect_trained_on_cuda(); }
TEST(CudaDevice_Pipeline, TrainsAsTheReference) { expect_pipeline_trained_on_cuda(); }

// The same over the NCCL back end. A process finds one NCCL: this is run by the next test, in one that finds the one of
// tests/stand_ins.
TEST(CudaDevice_OverNccl, DISABLED_Child) {
  runtime::Program program;
  program.target = "cuda:sm_90";
  auto device = open_cuda_on_host(program, 0);
  ASSERT_TRUE(device.ok()) << device.status();
  auto control = runtime::ThreadWorld(1, {}).communicator(0);
  ASSERT_TRUE(control.ok());
  auto communicator = (*device)->communicator(**control);
  ASSERT_TRUE(communicator.ok()) << communicator.status();
  ASSERT_EQ((*communicator)->backend(), "nccl");
  expect_pipeline_trained_on_cuda();
  expect_trained_on_cuda();
}
TEST(CudaDevice_OverNccl, TrainsAsTheReference) {
  const std::string command = cat("LD_LIBRARY_PATH=", PARTITA_STAND_INS, "/nccl_on_host '",
                                  std::filesystem::read_symlink("/proc/self/exe").string(),
                                  "' --gtest_also_run_disabled_tests --gtest_filter='CudaDevice_OverNccl.*Child' 2>&1");
  std::FILE* child = ::popen(command.c_str(), "r");
  ASSERT_NE(child, nullptr);
  std::string output;
  for (char part[4096]; const size_t read = std::fread(part, 1, sizeof part, child);) output.append(part, read);
  EXPECT_EQ(::pclose(child), 0) << output;
  EXPECT_NE(output.find("[  PASSED  ] 1 test"), std::string::npos) << output;
}

// Every step once, none on the device before the one before it has ended, all within the run.
TEST(CudaDevice_Trace, TellsWhenEachStepRan) {
  const RandomModel model{.layers = {2, 3}, .optimizer = 2};
  const auto [inputs, states] = random_values(training_graph(model));
  for (Played played : {Played::kLate, Played::kCuda}) {
    std::vector<std::string> traces;
    const auto begin = std::chrono::steady_clock::now();
    run_steps(offloaded(model, Offload::kNone), inputs, states, 2, played, &traces);
    const double took = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
    ASSERT_EQ(traces.size(), static_cast<size_t>(kRanks));
    for (const std::string& text : traces) {
      double end = 0, busy = 0;
      int64_t events = 0;
      const nlohmann::json trace = nlohmann::json::parse(text);
      for (const nlohmann::json& event : trace.at("traceEvents")) {
        if (event.at("ph") != "X") continue;
        EXPECT_GE(event.at("ts").get<double>(), end - 1) << event.dump();  // 1 us: a float of milliseconds
        end = event.at("ts").get<double>() + event.at("dur").get<double>();
        busy += event.at("dur").get<double>();
        ++events;
      }
      EXPECT_GT(events, 2 * 20);
      EXPECT_GT(busy, 0);
      EXPECT_LT(end, took);
    }
  }
}
#endif

// The host's memory holds what was asked for, the device none of it, and steps say where they run.
TEST(HostOffload_Program, KeepsStatesOnTheHost) {
  RandomModel model{.layers = {2, 3}, .optimizer = 2};
  auto program = emit_program(offloaded(model, Offload::kAll), kGpu);
  ASSERT_TRUE(program.ok()) << program.status();
  ASSERT_TRUE(runtime::check_program(*program).ok()) << runtime::check_program(*program);
  for (const runtime::ProgramState& s : program->states)
    EXPECT_EQ(s.operand.address.region, s.kind == StateKind::kStep ? Region::kState : Region::kHostState) << s.name;
  EXPECT_GT(program->region_bytes[static_cast<int>(Region::kHostArena)], 0);
  EXPECT_FALSE(program->host_kernels.empty());
  // A step on the wrong side is found.
  for (runtime::ProgramSegment& segment : program->segments) {
    for (runtime::Step& step : segment.steps) {
      if (!runtime::runs_on_host(*program, step)) continue;
      step.device = runtime::DeviceTag::kDevice;
      EXPECT_EQ(runtime::check_program(*program).code(), absl::StatusCode::kDataLoss);
      step.device = runtime::DeviceTag::kHost;
    }
  }
}

// Blocks of as many nodes each, forward and backward, all of which but the last keep what they need on the host.
void keep_on_host(LocalProgram& local, int32_t blocks) {
  for (Segment segment : {Segment::kForward, Segment::kBackward}) {
    const auto is_part = [&](const Node& node) { return node.segment == segment; };
    const auto all = std::ranges::count_if(local.graph.nodes, is_part);
    int64_t at = 0;
    for (Node& node : local.graph.nodes) {
      if (!is_part(node)) continue;
      const int32_t block = static_cast<int32_t>(at++ * blocks / all);
      node.block = segment == Segment::kForward ? block : blocks - 1 - block;
    }
  }
  for (int32_t b = 0; b < blocks; ++b) local.blocks_on_host.push_back(b + 1 < blocks);
}

int64_t copies_to_host(const runtime::Program& program) {
  int64_t count = 0;
  for (const runtime::ProgramSegment& segment : program.segments) {
    for (const runtime::Step& step : segment.steps) {
      count += segment.kind == Segment::kForward && step.kind == runtime::StepKind::kCopy &&
               step.operands[1].address.region == Region::kHostArena;
    }
  }
  return count;
}

// The same numbers as with everything on the device, on a queue that runs as late as it may and on streams of their
// own that pause.
TEST(HostOffload_Activations, TrainAsOnTheDevice) {
  int64_t copies = 0;
  for (uint64_t seed = 0; seed < sample_or_all<uint64_t>(6, 60); ++seed) {
    RandomModel model = random_model(seed);
    model.micro_batches = 1;
    model.accumulate = false;
    model.hidden = 64;
    const Offload what = seed % 2 == 0 ? Offload::kNone : Offload::kOptimizer;
    const auto [inputs, states] = random_values(training_graph(model));
    LocalProgram local = offloaded(model, what);
    const Tensors expected = run_steps(local, inputs, states, 1);
#ifdef PARTITA_STAND_INS
    const Tensors expected_on_cuda = run_steps(local, inputs, states, 3, Played::kCuda);
#endif
    keep_on_host(local, 4);
    auto program = emit_program(local, kGpu);
    ASSERT_TRUE(program.ok()) << program.status();
    ASSERT_TRUE(runtime::check_program(*program).ok()) << runtime::check_program(*program);
    copies += copies_to_host(*program);
    expect_near(run_steps(local, inputs, states, 1), expected, 1e-9, model);
#ifdef PARTITA_STAND_INS
    expect_near(run_steps(local, inputs, states, 3, Played::kCuda), expected_on_cuda, 1e-9, model);
#endif
    ASSERT_FALSE(HasFailure()) << seed;
  }
  EXPECT_GT(copies, 5);
}

// Micro-batches in flight, two of which take turns, have a place each on the host; the device keeps less of them.
TEST(HostOffload_ActivationsOfPipelines, TrainAsOnTheDevice) {
  const RandomModel model{.layers = {2, 3, 2, 3}, .micro_batches = 4, .accumulate = true, .optimizer = 2, .hidden = 64};
  const Graph graph = training_graph(model);
  const auto [inputs, states] = random_values(graph, model.micro_batches);
  const ShardingPlan plan = in_stages(graph, model.micro_batches);
  for (PipelineSchedule schedule : {PipelineSchedule::kGpipe, PipelineSchedule::k1f1b, PipelineSchedule::kZeroBubble}) {
    for (int64_t overlapped : {1, 2}) {
      auto local = localize(graph, plan);
      ASSERT_TRUE(local.ok()) << local.status();
      auto stages = split_stages(*local, 0, {schedule, 1, {}, overlapped});
      ASSERT_TRUE(stages.ok()) << stages.status();
      ASSERT_TRUE(overlap_micro_batches(*stages, overlapped).ok());
      const Tensors expected = run_steps(*stages, inputs, states, 2);
      int64_t on_device = 0, on_host = 0;
      for (LocalProgram& stage : *stages) {
        on_device += emit_program(stage, kGpu)->region_bytes[static_cast<int>(Region::kArena)];
        keep_on_host(stage, 4);
        const auto program = emit_program(stage, kGpu);
        ASSERT_TRUE(program.ok()) << program.status();
        on_device -= program->region_bytes[static_cast<int>(Region::kArena)];
        on_host += program->region_bytes[static_cast<int>(Region::kHostArena)];
      }
      EXPECT_GT(on_device, 0) << enum_name(schedule);
      EXPECT_GT(on_host, 0) << enum_name(schedule);
      expect_near(run_steps(*stages, inputs, states, 2), expected, 1e-9, model);
#ifdef PARTITA_STAND_INS
      expect_near(run_steps(*stages, inputs, states, 2, Played::kCuda), expected, 1e-9, model);
#endif
      ASSERT_FALSE(HasFailure()) << enum_name(schedule) << overlapped;
    }
  }
}

TEST(HostOffload_WithoutHostStates, ChangesNothing) {
  Graph graph = training_graph({.layers = {2}});
  SidedGraph sided = insert_host_transfers(graph, std::vector<bool>(graph.states.size(), false));
  ASSERT_EQ(sided.graph.nodes.size(), graph.nodes.size());
  for (size_t n = 0; n < graph.nodes.size(); ++n) EXPECT_EQ(sided.graph.nodes[n].op, graph.nodes[n].op);
}

}  // namespace
}  // namespace partita
