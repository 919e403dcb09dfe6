// Whole programs: micro-batches, collectives, memory, sharing of code.
#include <gtest/gtest.h>

#include "base/cat.h"
#include "runtime/program/program_check.h"
#include "tests/codegen/support/interpreter.h"

namespace partita {
namespace {

using runtime::Step;
using runtime::StepKind;

std::vector<Step> steps_of(const runtime::Program& p) {
  std::vector<Step> steps;
  for (const auto& s : p.segments) steps.insert(steps.end(), s.steps.begin(), s.steps.end());
  return steps;
}

runtime::Program emit(const LocalProgram& local) {
  auto p = emit_program(local);
  EXPECT_TRUE(p.ok()) << p.status().message();
  absl::Status sound = runtime::check_program(*p);
  EXPECT_TRUE(sound.ok()) << sound.message();
  return *std::move(p);
}

TEST(MicroBatches_Accumulate, AndThePrologueIsKept) {
  Builder b;
  ValueId w = b.state({.name = "w"}, {DType::kF32, {40}}),
          acc = b.state({.name = "acc", .kind = StateKind::kAccumulator}, {DType::kF32, {40}});
  ValueId x = b.input("x", {DType::kF32, {8, 40}});
  b.context().segment = Segment::kPrologue;
  ValueId norm = b.emit("exp", {b.reduce_sum(b.mul(w, w), {0}, true)});
  b.context().segment = Segment::kForward;
  ValueId y = b.emit("tanh", {b.mul(x, b.add(w, norm))});
  ValueId z = b.emit("sin", {b.matmul(y, y, true, false)});
  b.context().segment = Segment::kBackward;
  ValueId g = b.reduce_sum(b.mul(y, b.emit("exp", {y})), {0}, false);
  ValueId g2 = b.add(g, b.mul(b.reduce_sum(z, {0}, false), norm));
  ValueId total = b.emit("accumulate", {acc, g2});
  b.set_next("acc", total);
  b.context().segment = Segment::kUpdate;
  b.set_next("w", b.sub(w, b.scale(total, 0.01)));
  LocalProgram local = local_program(b.graph());
  local.micro_batches = 3;
  runtime::Program p = emit(local);
  EXPECT_EQ(p.schedule.size(), 1u + 2u * 3u + 1u);
  Interpreter run(p);
  Tensor w0 = random_tensor({DType::kF32, {40}}, 1, 0.1);
  run.set_state("w", w0);
  std::vector<Tensor> xs;
  for (int m = 0; m < 3; ++m) xs.push_back(random_tensor({DType::kF32, {8, 40}}, 10 + m));
  run.run(2, [&](int m) { run.set_input("x", xs[m]); });
  std::vector<double> expected(40, 0);
  double n = 0;
  for (double v : w0.f) n += v * v;
  n = std::exp(n);
  for (const Tensor& t : xs) {
    std::vector<double> yy(320);
    for (int k = 0; k < 320; ++k) yy[k] = std::tanh(t.f[k] * (w0.f[k % 40] + n));
    for (int c = 0; c < 40; ++c) {
      for (int r = 0; r < 8; ++r) expected[c] += yy[r * 40 + c] * std::exp(yy[r * 40 + c]);
      for (int d = 0; d < 40; ++d) {
        double dot = 0;
        for (int r = 0; r < 8; ++r) dot += yy[r * 40 + d] * yy[r * 40 + c];
        expected[c] += std::sin(dot) * n;
      }
    }
  }
  Tensor now = run.state("w");
  for (int c = 0; c < 40; ++c) EXPECT_NEAR(now.f[c], w0.f[c] - 0.01 * expected[c], 2e-5) << c;
}

// Two sums of gradients over ranks, the first in two levels, of three micro-batches: each starts in the last one's
// backward part, after the step that completes it, and other micro-batches run the same parts.
TEST(MicroBatches_SumsOverRanks, StartWithinTheLastBackwardPart) {
  Builder b;
  Attrs attrs{{"axes", std::vector<int64_t>{0}}, {"parts", int64_t{1}}, {"reduce", std::string("sum")}};
  ValueId x = b.input("x", {DType::kF32, {24, 8}});
  std::vector<ValueId> totals;
  ValueId g = b.emit("exp", {x});
  b.context().segment = Segment::kBackward;
  for (const char* name : {"a", "b", "c"}) {
    g = b.scale(b.matmul(g, b.matmul(g, g, true, false)), 1.0 / 256);
    ValueId sum = b.state({.name = cat("sum_", name), .kind = StateKind::kAccumulator}, {DType::kF32, {8, 8}});
    totals.push_back(b.emit("accumulate", {sum, b.matmul(x, g, true, false)}));
    b.set_next(cat("sum_", name), totals.back());
  }
  b.context().segment = Segment::kReduce;
  for (ValueId& total : totals) total = b.emit("all_reduce", {total}, attrs);
  totals[0] = b.emit("all_reduce", {totals[0]}, attrs);
  b.context().segment = Segment::kUpdate;
  for (const char* name : {"a", "b", "c"}) {
    ValueId w = b.state({.name = name}, {DType::kF32, {8, 8}});
    b.set_next(name, b.sub(w, totals[static_cast<size_t>(name[0] - 'a')]));
  }
  LocalProgram local = local_program(std::move(b).finish());
  local.mesh.axes = {{"data", 1}};
  local.micro_batches = 3;
  runtime::Program p = emit(local);
  std::string parts, run_parts;
  for (const auto& segment : p.segments) {
    append(parts, " ", enum_name(segment.kind));
    for (const Step& step : segment.steps)
      append(parts, step.kind == StepKind::kCollectiveStart ? "+" : step.kind == StepKind::kCollectiveWait ? "-" : "");
  }
  EXPECT_EQ(parts, " forward backward reduce+ backward reduce+-+ backward reduce+ update---");
  for (const auto& e : p.schedule) append(run_parts, " ", e.segment, "/", e.micro_batch);
  EXPECT_EQ(run_parts, " 0/0 1/0 3/0 5/0 0/1 1/1 3/1 5/1 0/2 1/2 2/2 3/2 4/2 5/2 6/2 7/2");
  Interpreter run(p);
  std::vector<Tensor> xs, before;
  for (int m = 0; m < 3; ++m) xs.push_back(random_tensor({DType::kF32, {24, 8}}, 10 + m, 0.1));
  for (const char* name : {"a", "b", "c"}) {
    before.push_back(random_tensor({DType::kF32, {8, 8}}, static_cast<uint64_t>(name[0])));
    run.set_state(name, before.back());
  }
  run.run(2, [&](int m) { run.set_input("x", xs[m]); });
  // As it is without ranks to sum over.
  const auto times = [](const std::vector<double>& a, const std::vector<double>& c, int rows, bool transposed) {
    std::vector<double> out(static_cast<size_t>(transposed ? 64 : rows * 8), 0);
    for (int r = 0; r < (transposed ? 8 : rows); ++r) {
      for (int k = 0; k < (transposed ? rows : 8); ++k) {
        for (int n = 0; n < 8; ++n) out[r * 8 + n] += a[transposed ? k * 8 + r : r * 8 + k] * c[k * 8 + n];
      }
    }
    return out;
  };
  std::vector<std::vector<double>> sums(3, std::vector<double>(64, 0));
  for (const Tensor& t : xs) {
    std::vector<double> h = t.f;
    for (double& v : h) v = std::exp(v);
    for (std::vector<double>& sum : sums) {
      h = times(h, times(h, h, 24, true), 24, false);
      for (double& v : h) v /= 256;
      const std::vector<double> term = times(t.f, h, 24, true);
      for (size_t k = 0; k < 64; ++k) sum[k] += term[k];
    }
  }
  for (size_t s = 0; s < 3; ++s) {
    const Tensor now = run.state(std::string(1, static_cast<char>('a' + s)));
    for (size_t k = 0; k < 64; ++k)
      EXPECT_NEAR(now.f[k], before[s].f[k] - sums[s][k], 1e-4 * std::abs(sums[s][k]) + 1e-4) << s << " " << k;
  }
}

Graph all_reduce_graph(bool separate_use) {
  Builder b;
  ValueId x = b.input("x", {DType::kF32, {10, 20}});
  std::vector<ValueId> parts{b.emit("exp", {x}), b.reduce_sum(x, {0}, false), b.reduce_sum(x, {0, 1}, false)};
  auto sums = b.emit_all("all_reduce", parts,
                         {{"axes", std::vector<int64_t>{0}}, {"parts", int64_t{1}}, {"reduce", std::string("sum")}});
  ValueId between = b.emit("sin", {b.mul(x, x)});
  if (separate_use) b.output("part", parts[1]);
  b.output("between", between);
  b.output("y", b.add(b.mul(sums[0], sums[1]), sums[2]));
  return std::move(b).finish();
}

TEST(MicroBatches_ProductAddedToAState, IsTheProductsOwnWork) {
  for (bool also_read : {false, true}) {
    Builder b;
    ValueId acc = b.state({.name = "acc", .kind = StateKind::kAccumulator}, {DType::kF32, {24, 8}});
    ValueId x = b.input("x", {DType::kF32, {16, 24}}), g = b.input("g", {DType::kF32, {16, 8}});
    b.context().segment = Segment::kBackward;
    ValueId dw = b.matmul(x, g, true, false);
    b.set_next("acc", b.emit("accumulate", {acc, dw}));
    if (also_read) b.output("sum", b.reduce_sum(dw, {0, 1}, false));
    runtime::Program p = emit(local_program(b.graph()));
    std::vector<Step> steps = steps_of(p);
    EXPECT_EQ(steps[0].params.count("epilogue"), also_read ? 0u : 1u);
    EXPECT_EQ(steps.size() == 1, !also_read);
    Interpreter run(p);
    Tensor a = random_tensor({DType::kF32, {16, 24}}, 1), c = random_tensor({DType::kF32, {16, 8}}, 2);
    run.set_input("x", a), run.set_input("g", c);
    run.run();
    double dot = 0;
    for (int k = 0; k < 16; ++k) dot += a.f[k * 24 + 5] * c.f[k * 8 + 3];
    EXPECT_NEAR(run.state("acc").f[5 * 8 + 3], dot, 1e-5);
  }
}

// Each lies where it is computed, and each result where it is wanted.
TEST(Collective_SeveralScattersAndGathers, NeedNoCopies) {
  Builder b;
  const Attrs group = {{"axes", std::vector<int64_t>{0}}, {"parts", int64_t{1}}};
  Attrs sum = group;
  sum.set("reduce", std::string("sum"));
  ValueId u = b.state({.name = "u", .kind = StateKind::kParameter}, {DType::kF32, {6, 5}});
  ValueId v = b.state({.name = "v", .kind = StateKind::kParameter}, {DType::kF32, {7}});
  ValueId x = b.input("x", {DType::kF32, {6, 5}}), y = b.input("y", {DType::kF32, {7}});
  b.context().segment = Segment::kBackward;
  auto mine = b.emit_all("reduce_scatter",
                         {b.reshape(b.emit("exp", {x}), {1, 6, 5}), b.reshape(b.emit("sin", {y}), {1, 7})}, sum);
  b.context().segment = Segment::kUpdate;
  auto all = b.emit_all("all_gather", {b.sub(u, mine[0]), b.sub(v, mine[1])}, group);
  b.set_next("u", b.reshape(all[0], {6, 5}));
  b.set_next("v", b.reshape(all[1], {7}));
  LocalProgram local = local_program(std::move(b).finish());
  local.mesh.axes = {{"data", 1}};
  runtime::Program p = emit(local);
  int merged = 0;
  for (const Step& step : steps_of(p)) {
    EXPECT_NE(step.kind, StepKind::kCopy);
    merged += step.kind == StepKind::kCollectiveStart && step.operands.size() == 4 && step.inputs == 2;
  }
  EXPECT_EQ(merged, 2);
  Interpreter run(p);
  Tensor tx = random_tensor({DType::kF32, {6, 5}}, 3), ty = random_tensor({DType::kF32, {7}}, 4);
  Tensor before = random_tensor({DType::kF32, {6, 5}}, 5), before_v = random_tensor({DType::kF32, {7}}, 6);
  run.set_state("u", before), run.set_state("v", before_v);
  run.set_input("x", tx), run.set_input("y", ty);
  run.run();
  for (size_t k = 0; k < 30; ++k) EXPECT_NEAR(run.state("u").f[k], before.f[k] - std::exp(tx.f[k]), 1e-5);
  for (size_t k = 0; k < 7; ++k) EXPECT_NEAR(run.state("v").f[k], before_v.f[k] - std::sin(ty.f[k]), 1e-5);
}

TEST(Collective_SeveralOperands, AreOneBufferAndWaitLate) {
  for (bool separate_use : {false, true}) {
    LocalProgram local = local_program(all_reduce_graph(separate_use));
    local.mesh.axes = {{"data", 1}};
    runtime::Program p = emit(local);
    std::vector<Step> steps = steps_of(p);
    size_t start = 0, wait = 0, copies = 0;
    for (size_t k = 0; k < steps.size(); ++k) {
      if (steps[k].kind == StepKind::kCollectiveStart) start = k;
      if (steps[k].kind == StepKind::kCollectiveWait) wait = k;
      copies += steps[k].kind == StepKind::kCopy;
    }
    EXPECT_GT(wait, start + 1) << "work goes on between start and wait";
    EXPECT_EQ(std::get<int64_t>(steps[wait].params.at("of")), static_cast<int64_t>(start));
    ASSERT_EQ(steps[start].operands.size(), 2u);
    EXPECT_EQ(steps[start].operands[0].shape, (std::vector<int64_t>{(832 + 128 + 64) / 4}));
    EXPECT_EQ(std::get<std::vector<int64_t>>(steps[start].params.at("elements")), (std::vector<int64_t>{200, 20, 1}));
    EXPECT_EQ(copies, separate_use ? 1u : 0u);
    EXPECT_EQ(p.groups.size(), 1u);
    Interpreter run(p);
    Tensor x = random_tensor({DType::kF32, {10, 20}}, 3);
    run.set_input("x", x);
    run.run();
    Tensor y = run.output("y");
    double all = 0;
    for (double v : x.f) all += v;
    for (int r = 0; r < 10; ++r) {
      for (int c = 0; c < 20; ++c) {
        double column = 0;
        for (int k = 0; k < 10; ++k) column += x.f[k * 20 + c];
        EXPECT_NEAR(y.f[r * 20 + c], std::exp(x.f[r * 20 + c]) * column + all, 1e-4);
      }
    }
  }
}

TEST(Collective_UnreadResult, IsWaitedForInItsSegment) {
  Builder b;
  ValueId x = b.input("x", {DType::kF32, {64}});
  ValueId y = b.emit("all_reduce", {b.emit("exp", {x})},
                     {{"axes", std::vector<int64_t>{0}}, {"parts", int64_t{1}}, {"reduce", std::string("sum")}});
  b.context().segment = Segment::kBackward;
  b.output("other", b.emit("sin", {x}));
  b.output("y", y);
  LocalProgram local = local_program(std::move(b).finish());
  local.mesh.axes = {{"data", 1}};
  runtime::Program p = emit(local);
  ASSERT_EQ(p.segments.size(), 2u);
  EXPECT_EQ(p.segments[0].steps.back().kind, StepKind::kCollectiveWait);
}

// What forward waits for at its end and what the first step of backward waits for meet at one place.
TEST(Collective_WaitsOfTwoSegments, StandInTheirOwn) {
  Builder b;
  Attrs attrs{{"axes", std::vector<int64_t>{0}}, {"parts", int64_t{1}}, {"reduce", std::string("sum")}};
  ValueId x = b.input("x", {DType::kF32, {64}}), w = b.state({.name = "w"}, {DType::kF32, {64}});
  b.context().segment = Segment::kPrologue;
  ValueId once = b.emit("all_reduce", {b.emit("exp", {w})}, attrs);
  b.context().segment = Segment::kForward;
  ValueId each = b.emit("all_reduce", {b.emit("sin", {x})}, attrs);
  b.context().segment = Segment::kBackward;
  b.output("y", b.mul(b.emit("tanh", {once}), each));
  LocalProgram local = local_program(std::move(b).finish());
  local.mesh.axes = {{"data", 1}};
  local.micro_batches = 2;
  runtime::Program p = emit(local);
  ASSERT_EQ(p.segments.size(), 3u);
  EXPECT_EQ(p.segments[1].steps.back().kind, StepKind::kCollectiveWait);
  EXPECT_EQ(p.segments[2].steps.front().kind, StepKind::kCollectiveWait);
  std::vector<Step> steps = steps_of(p);
  for (size_t k = 0; k < steps.size(); ++k) EXPECT_EQ(steps[k].id, k);
}

// A parameter that another stage reads is on its way there while the micro-batches run: none of them changes it.
TEST(Collective_SentState, IsWaitedForAtTheUpdate) {
  Builder b;
  ValueId x = b.input("x", {DType::kF32, {64}}), w = b.state({.name = "w"}, {DType::kF32, {64}});
  b.context().segment = Segment::kPrologue;
  b.emit_all("send", {w}, {{"axes", std::vector<int64_t>{0}}, {"parts", int64_t{2}}, {"peer", int64_t{1}}});
  b.context().segment = Segment::kForward;
  ValueId y = b.mul(b.emit("exp", {x}), w);
  b.output("y", y);
  b.context().segment = Segment::kUpdate;
  b.set_next("w", b.sub(w, b.emit("sin", {w})));
  LocalProgram local = local_program(std::move(b).finish());
  local.mesh.axes = {{"pipeline", 2}};
  local.micro_batches = 2;
  const runtime::Program p = emit(local);
  ASSERT_EQ(p.segments.size(), 3u);
  ASSERT_EQ(p.segments[0].steps.size(), 1u);
  EXPECT_EQ(p.segments[0].steps[0].kind, StepKind::kCollectiveStart);
  EXPECT_EQ(p.segments[2].steps.front().kind, StepKind::kCollectiveWait);
  for (const Step& step : p.segments[2].steps) EXPECT_NE(step.kind, StepKind::kCopy);  // it is updated in place
}

// Where the forward part writes it, by a kernel or by a collective, until then.
TEST(Collective_SentState, IsWaitedForBeforeItIsWritten) {
  for (const bool summed : {false, true}) {
    Builder b;
    ValueId x = b.input("x", {DType::kF32, {64}}), w = b.state({.name = "w"}, {DType::kF32, {64}}),
            v = b.state({.name = "v"}, {DType::kF32, {64}});
    b.context().segment = Segment::kPrologue;
    b.emit_all("send", {w}, {{"axes", std::vector<int64_t>{0}}, {"parts", int64_t{2}}, {"peer", int64_t{1}}});
    b.context().segment = Segment::kForward;
    ValueId next = b.emit("exp", {x});
    if (summed)
      next = b.emit("all_reduce", {next}, {{"axes", std::vector<int64_t>{1}}, {"parts", 2}, {"reduce", "sum"}});
    b.set_next("w", next);
    b.output("y", b.emit("sin", {x}));
    b.context().segment = Segment::kUpdate;
    b.set_next("v", b.sub(v, b.emit("sin", {v})));
    LocalProgram local = local_program(std::move(b).finish());
    local.mesh.axes = {{"pipeline", 2}, {"tensor", 2}};
    const runtime::Program p = emit(local);
    bool under_way = false, written = false;
    for (const Step& step : steps_of(p)) {
      if (step.kind == StepKind::kCollectiveStart && step.name == "send") under_way = true;
      if (step.kind == StepKind::kCollectiveWait && std::get<int64_t>(step.params.at("of")) == 0) under_way = false;
      for (size_t k = static_cast<size_t>(step.inputs); k < step.operands.size(); ++k) {
        const runtime::Address &to = step.operands[k].address, &state = p.states[0].operand.address;
        if (to.region != state.region || to.offset != state.offset) continue;
        written = true;
        EXPECT_FALSE(under_way) << "step " << step.id << (summed ? ", summed" : "");
      }
    }
    EXPECT_TRUE(written);
  }
}

TEST(Collective_Order, IsTheNodesOrder) {
  // The first collective's operand is cheap to delay; it must not be.
  Builder b;
  ValueId x = b.input("x", {DType::kF32, {64}});
  Attrs attrs{{"axes", std::vector<int64_t>{0}}, {"parts", int64_t{1}}, {"reduce", std::string("sum")}};
  ValueId a = b.emit("exp", {x});
  ValueId first = b.emit("all_reduce", {a}, attrs);
  ValueId second = b.emit("all_reduce", {b.emit("sin", {x})}, attrs);
  b.output("y", b.add(b.mul(a, second), b.mul(first, second)));
  LocalProgram local = local_program(std::move(b).finish());
  local.mesh.axes = {{"data", 1}};
  runtime::Program p = emit(local);
  std::vector<int64_t> started, waited;
  for (const Step& s : steps_of(p)) {
    if (s.kind == StepKind::kCollectiveStart) started.push_back(s.id);
    if (s.kind == StepKind::kCollectiveWait) waited.push_back(std::get<int64_t>(s.params.at("of")));
  }
  EXPECT_EQ(started.size(), 2u);
  EXPECT_EQ(waited, started);
}

TEST(Kernels_EqualNests, ShareCode) {
  Builder b;
  ValueId x = b.input("x", {DType::kF32, {16, 16}});
  for (int k = 0; k < 12; ++k) x = b.matmul(b.emit("tanh", {x}), x);
  b.output("y", x);
  runtime::Program p = emit(local_program(std::move(b).finish()));
  std::set<std::string> names;
  for (const Step& s : steps_of(p)) {
    if (s.kind == StepKind::kKernel) names.insert(s.name);
  }
  EXPECT_EQ(names.size(), 1u);
}

TEST(Memory_Chain, NeedsTwoBuffersAtMost) {
  Builder b;
  ValueId x = b.input("x", {DType::kF32, {64, 64}});
  for (int k = 0; k < 20; ++k) x = b.emit("tanh", {b.matmul(x, x)});
  b.output("y", x);
  runtime::Program p = emit(local_program(std::move(b).finish()));
  EXPECT_LE(p.region_bytes[static_cast<int>(runtime::Region::kArena)], 2 * 64 * 64 * 4);
}

TEST(Constants_Shared, AndUniformOnesAreImmediate) {
  Builder b;
  ValueId x = b.input("x", {DType::kF32, {4}});
  ValueId a = b.constant(to_literal(random_tensor({DType::kF32, {4}}, 7))),
          c = b.constant(to_literal(random_tensor({DType::kF32, {4}}, 7)));
  b.output("y", b.mul(b.add(x, a), b.sub(x, c)));
  b.output("z", b.add(b.full(DType::kF32, {4}, 3), x));
  runtime::Program p = emit(local_program(b.graph()));
  EXPECT_EQ(p.constants.size(), 64u);
  compare_with_reference(b.graph());
}

TEST(Target_UnknownCpu, IsRefused) {
  Builder b;
  b.output("y", b.emit("exp", {b.input("x", {DType::kF32, {4}})}));
  LocalProgram local = local_program(std::move(b).finish());
  auto p = emit_program(local, {.cpu = "pentium"});
  EXPECT_EQ(p.status().code(), absl::StatusCode::kInvalidArgument);
  p = emit_program(local, {.cpu = "no-such-cpu"});
  EXPECT_EQ(p.status().code(), absl::StatusCode::kInvalidArgument);
}

// What the recipe asks of attention goes with its step, and is refused where no machine has it.
TEST(AttentionByCudnn, IsForGpusIn16Bits) {
  const auto emitted = [](DType dtype, const std::string& kernel, const TargetOptions& target) {
    Builder b;
    const ValueId q = b.input("q", {dtype, {1, 2, 8, 16}});
    b.output("y", b.emit_all("attention", {q, q, q}, {{"scale", 0.5}, {"kernel", kernel}})[0]);
    return emit_program(local_program(std::move(b).finish()), target);
  };
  auto p = emitted(DType::kBF16, "cudnn", {.gpu = "sm_90"});
  ASSERT_TRUE(p.ok()) << p.status();
  EXPECT_EQ(std::get<std::string>(steps_of(*p)[0].params.at("kernel")), "cudnn");
  EXPECT_TRUE(emitted(DType::kF32, "own", {.gpu = "sm_90"}).ok());
  EXPECT_TRUE(emitted(DType::kF32, "own", {}).ok());
  EXPECT_EQ(emitted(DType::kF32, "cudnn", {.gpu = "sm_90"}).status().message(),
            "kernels: {attention: cudnn} in train.yaml is for GPUs, in bf16 or fp16; found f32 for sm_90; say auto, or "
            "leave it out");
  EXPECT_EQ(emitted(DType::kBF16, "cudnn", {}).status().message(),
            "kernels: {attention: cudnn} in train.yaml is for GPUs, in bf16 or fp16; found bf16 for processors; say "
            "auto, or leave it out");
}

TEST(Placement_Pieces, RefineTheShape) {
  Builder b;
  ValueId w = b.state({.name = "w"}, {DType::kF32, {768, 3 * 2 * 64}});
  b.output("y", b.reduce_sum(w, {0, 1}, false));
  LocalProgram local = local_program(std::move(b).finish());
  local.mesh.axes = {{"data", 2}, {"tensor", 6}};
  Sharding s;
  s.dims = {{{768, {}}}, {{3, {}}, {12, {1}}, {64, {}}}};
  local.states[0] = {{768, 2304}, s};
  auto p = emit_program(local);
  ASSERT_TRUE(p.ok());
  const runtime::Placement& placed = p->states[0].placement;
  EXPECT_EQ(placed.shape, (std::vector<int64_t>{768, 3, 12, 64}));
  EXPECT_EQ(placed.local, (std::vector<int64_t>{768, 3, 2, 64}));
  ASSERT_EQ(placed.axes[2].size(), 1u);
  EXPECT_EQ(placed.axes[2][0].axis, 1);
  EXPECT_EQ(placed.axes[2][0].stride, 2);
}

}  // namespace
}  // namespace partita
