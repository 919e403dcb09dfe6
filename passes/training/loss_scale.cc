#include "passes/training/loss_scale.h"

#include "base/cat.h"
#include "base/status.h"

namespace partita {
namespace {

ValueId find_state(const Builder& b, std::string_view name) {
  for (const State& s : b.graph().states) {
    if (s.name == name) return s.value;
  }
  return kNoValue;
}

// A scalar that belongs to no parameter and lives beside the optimizer's states.
ValueId scalar_state(Builder& b, std::string name, DType type, double first) {
  if (ValueId known = find_state(b, name); known != kNoValue) return known;
  return b.state(
      {.name = std::move(name), .kind = StateKind::kOptimizer, .parameter = {}, .initial = InitialRule{.a = first}},
      {type, {}});
}

}  // namespace

bool has_loss_scale(const PassContext& context) { return context.recipe.precision == Precision::kFp16; }

ValueId loss_scale(Builder& b, const LossScaleRecipe& recipe) {
  if (recipe.fixed) return b.scalar(DType::kF32, *recipe.fixed);
  return scalar_state(b, std::string(kLossScaleState), DType::kF32, recipe.initial);
}

void hold_states(Builder& b, ValueId good) {
  for (size_t k = 0; k < b.graph().states.size(); ++k) {
    const State s = b.graph().states[k];
    const Node* producer = s.next == kNoValue ? nullptr : b.graph().producer(s.next);
    if (producer == nullptr || producer->segment != Segment::kUpdate) continue;
    b.set_next_of(k, b.select(good, s.next, s.value));
  }
}

void rescale(Builder& b, ValueId finite, const LossScaleRecipe& recipe) {
  if (recipe.fixed) return;
  const double window = static_cast<double>(recipe.window), hysteresis = static_cast<double>(recipe.hysteresis);
  auto count = [&](double n) { return b.scalar(DType::kI64, n); };
  ValueId scale = loss_scale(b, recipe);
  ValueId run = scalar_state(b, cat(kLossScaleState, "/good_steps"), DType::kI64, 0),
          left = scalar_state(b, cat(kLossScaleState, "/hysteresis"), DType::kI64, hysteresis);
  ValueId longer = b.add(run, count(1)), grows = b.emit("eq", {longer, count(window)}),
          shrinks = b.emit("le", {left, count(1)});
  ValueId half = b.emit("max", {b.scale(scale, 0.5), b.scalar(DType::kF32, recipe.minimum)});
  b.set_next(kLossScaleState,
             b.select(finite, b.select(grows, b.scale(scale, 2), scale), b.select(shrinks, half, scale)));
  b.set_next(cat(kLossScaleState, "/good_steps"),
             b.select(b.emit("and", {finite, b.emit("not", {grows})}), longer, count(0)));
  ValueId fewer = b.emit("max", {b.sub(left, count(1)), count(1)});
  b.set_next(cat(kLossScaleState, "/hysteresis"), b.select(finite, b.select(grows, count(hysteresis), left), fewer));
}

}  // namespace partita
