#include "tests/runtime/support/program_samples.h"

namespace partita::runtime {

// The data column xt [b, 4] holds x and, last, the target; v [4, 1] = [w; -1].
//   forward:  e = xt v, scaled = e / batch, loss += scaled^T e   (over micro-batches, by the matmul's epilogue)
//   backward: dv += xt^T scaled
//   reduce:   all_reduce(loss, dv)
//   update:   v += rates dv, with rates = diag(-rate, -rate, -rate, 0)
Program least_squares(int64_t ranks, int64_t batch, int64_t micro_batches) {
  const int64_t rows = batch / micro_batches / ranks;
  Program p;
  p.model = "least_squares";
  p.target = "cpu:x86-64-v4";
  p.mesh = {{"data", ranks}};
  p.groups = {{{0}}};
  p.micro_batches = micro_batches;
  p.samples_per_step = batch;
  p.slots = 2;
  auto bytes = [](int64_t elements) { return (elements * 4 + 63) / 64 * 64; };
  const int64_t column = bytes(rows * 4), errors = bytes(rows);
  const Operand xt = operand(Region::kInput, 0, {rows, 4}, DType::kF32, column);
  const Operand v = operand(Region::kState, 0, {4, 1}), factor = operand(Region::kState, 64, {1, 1}),
                steps = operand(Region::kState, 128, {4, 4});
  const Operand e = operand(Region::kArena, 0, {rows, 1}, DType::kF32, errors),
                scaled = operand(Region::kArena, 2 * errors, {rows, 1}, DType::kF32, errors);
  const Operand loss = operand(Region::kArena, 4 * errors, {1, 1}),
                dw = operand(Region::kArena, 4 * errors + 64, {4, 1}), zero = operand(Region::kConstant, 0, {4, 1});
  Operand loss_zero = zero;
  loss_zero.shape = {1, 1};
  p.constants.assign(64, 0);
  p.origins = {"MatMul 'forward'", "MatMul 'gradient'"};
  const Params accumulate = {{"transpose_a", int64_t{1}}, {"epilogue", std::string("accumulate")}};

  ProgramSegment prologue{.kind = Segment::kPrologue};
  prologue.steps.push_back(step(StepKind::kCopy, "", {zero}, {dw}));
  prologue.steps.push_back(step(StepKind::kCopy, "", {loss_zero}, {loss}));
  ProgramSegment forward{.kind = Segment::kForward};
  forward.steps.push_back(step(StepKind::kLibrary, "matmul", {xt, v}, {e}));
  forward.steps.back().origin = 0;
  forward.steps.push_back(step(StepKind::kLibrary, "matmul", {e, factor}, {scaled}));
  forward.steps.push_back(step(StepKind::kLibrary, "matmul", {scaled, e}, {loss}, accumulate));
  ProgramSegment backward{.kind = Segment::kBackward};
  backward.steps.push_back(step(StepKind::kLibrary, "matmul", {xt, scaled}, {dw}, accumulate));
  backward.steps.back().origin = 1;
  ProgramSegment reduce{.kind = Segment::kReduce};
  reduce.steps.push_back(step(StepKind::kCollectiveStart, "all_reduce", {loss, dw}, {loss, dw},
                              {{"group", int64_t{0}}, {"reduce", std::string("sum")}}));
  reduce.steps.push_back(step(StepKind::kCollectiveWait, "all_reduce", {}, {}, {{"of", int64_t{6}}}));
  ProgramSegment update{.kind = Segment::kUpdate};
  update.steps.push_back(
      step(StepKind::kLibrary, "matmul", {steps, dw}, {v}, {{"epilogue", std::string("accumulate")}}));
  p.segments = {prologue, forward, backward, reduce, update};
  number_steps(p);

  p.schedule.push_back({0, 0, 0});
  for (int64_t m = 0; m < micro_batches; ++m) {
    p.schedule.push_back({1, static_cast<int32_t>(m), static_cast<int32_t>(m % 2)});
    p.schedule.push_back({2, static_cast<int32_t>(m), static_cast<int32_t>(m % 2)});
  }
  p.schedule.push_back({3, 0, 0});
  p.schedule.push_back({4, 0, 0});

  p.states.push_back({.name = "v",
                      .kind = StateKind::kParameter,
                      .operand = v,
                      .placement = whole({4, 1}),
                      .initial = {.kind = InitialKind::kFill, .a = -1}});
  p.states.push_back({.name = "factor",
                      .kind = StateKind::kOptimizer,
                      .operand = factor,
                      .placement = whole({1, 1}),
                      .initial = {.kind = InitialKind::kFill, .a = 1.0 / static_cast<double>(batch)}});
  p.states.push_back({.name = "rates",
                      .kind = StateKind::kOptimizer,
                      .operand = steps,
                      .placement = whole({4, 4}),
                      .initial = {.kind = InitialKind::kFile}});
  p.inputs.push_back({.name = "xt",
                      .kind = InputKind::kData,
                      .operand = xt,
                      .placement = split({batch / micro_batches, 4}, 0, 0, ranks)});
  p.outputs.push_back({.name = "loss", .operand = loss, .placement = whole({1, 1})});
  p.outputs.push_back({.name = "grad/v", .operand = dw, .placement = whole({4, 1})});
  p.region_bytes[static_cast<int>(Region::kState)] = 192;
  p.region_bytes[static_cast<int>(Region::kArena)] = 4 * errors + 128;
  p.region_bytes[static_cast<int>(Region::kConstant)] = 64;
  p.region_bytes[static_cast<int>(Region::kInput)] = 2 * column;
  return p;
}

}  // namespace partita::runtime
