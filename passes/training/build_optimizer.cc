#include "passes/training/build_optimizer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "ir/graph/builder.h"
#include "passes/training/block_codes.h"
#include "passes/training/learning_rate_graph.h"
#include "passes/training/loss_scale.h"
#include "passes/training/newton_schulz.h"

namespace partita {
namespace {

struct Parameter {
  std::string name;
  ValueId value, gradient;
};

std::vector<int64_t> all_dims(const Builder& b, ValueId v) {
  std::vector<int64_t> dims;
  for (int d = 0; d < b.rank(v); ++d) dims.push_back(d);
  return dims;
}

ValueId sum_of_squares(Builder& b, ValueId v) { return b.reduce_sum(b.mul(v, v), all_dims(b, v), false); }

// The same in `parts` sums, in a fixed order whatever a rank has of `v`: each is over a block of the first dimension
// that they divide, which is the one that is stored in parts if any is. Where there is none, the first sum is all.
ValueId sums_of_squares(Builder& b, ValueId v, int64_t parts) {
  const Shape shape = b.shape(v);
  const auto at = std::find_if(shape.begin(), shape.end(), [&](int64_t n) { return n % parts == 0; });
  if (at == shape.end()) {
    ValueId all = b.emit("block_squares", {b.reshape(v, {1, 1, elements(shape)})}), zero = b.scalar(DType::kF64, 0);
    return b.emit("pad", {all, zero}, {{"low", std::vector<int64_t>{0}}, {"high", std::vector<int64_t>{parts - 1}}});
  }
  const int64_t before = elements(Shape(shape.begin(), at));
  return b.emit("block_squares", {b.reshape(v, {before, parts, elements(shape) / before / parts})});
}

class Optimizer {
 public:
  Optimizer(const Graph& graph, const PassContext& context) : context_(context), b_(graph) {}

  absl::StatusOr<Graph> build() {
    b_.context() = {.segment = Segment::kUpdate, .origin = b_.origin("optimizer")};
    take_gradients();
    step_ = step_state();
    measure_and_clip();
    if (context_.training.groups.empty()) {
      recipe_updates();
    } else {
      PARTITA_RETURN_IF_ERROR(file_updates());
    }
    if (context_.recipe.ema) average_weights(context_.recipe.ema->decay);
    b_.set_next(kStepState, b_.add(step_, b_.scalar(DType::kI64, 1)));
    if (finite_ != kNoValue) hold_states(b_, finite_);
    if (context_.recipe.run.skips()) PARTITA_RETURN_IF_ERROR(hold_statistics());
    if (has_loss_scale(context_)) rescale(b_, finite_, context_.recipe.loss_scale);
    b_.set_outputs(std::move(outputs_));
    return std::move(b_).finish();
  }

 private:
  void take_gradients() {
    std::map<std::string, ValueId> gradients;
    for (GraphOutput o : b_.graph().outputs) {
      bool gradient = o.name.rfind("grad/", 0) == 0;
      if (gradient && has_loss_scale(context_)) o.value = unscaled(o.value);
      if (gradient) gradients[o.name.substr(5)] = o.value;
      if (!gradient || context_.keep_gradients) outputs_.push_back(o);
    }
    for (const State& s : b_.graph().states) {
      auto at = gradients.find(s.name);
      if (s.kind == StateKind::kParameter && at != gradients.end())
        parameters_.push_back({s.name, s.value, at->second});
    }
  }

  // A gradient of the loss itself. Where the scale is a power of two, nothing is rounded.
  ValueId unscaled(ValueId gradient) {
    DType type = b_.dtype(gradient);
    return b_.mul(gradient, b_.div(b_.scalar(type, 1), b_.cast(loss_scale(b_, context_.recipe.loss_scale), type)));
  }

  ValueId step_state() {
    for (const State& s : b_.graph().states) {
      if (s.name == kStepState) return s.value;
    }
    return b_.state({.name = kStepState, .kind = StateKind::kStep, .parameter = {}, .initial = InitialRule{}},
                    {DType::kI64, {}});
  }

  // Over all parameters; in a fixed order, block by block and then over the blocks.
  ValueId squares_of_gradients() {
    ValueId total = kNoValue;
    for (const Parameter& p : parameters_) {
      ValueId s = b_.cast(squares(p.gradient), DType::kF64);
      total = total == kNoValue ? s : b_.add(total, s);
    }
    return over_blocks(total);
  }

  // The squares of all elements, summed up, or in a fixed order, the sums over blocks.
  ValueId squares(ValueId v) {
    const auto& parts = context_.recipe.reproducible;
    return parts ? sums_of_squares(b_, v, parts->samples) : sum_of_squares(b_, v);
  }
  ValueId over_blocks(ValueId sums) { return context_.recipe.reproducible ? b_.emit("sum_tree", {sums}) : sums; }
  ValueId length(ValueId v) { return b_.cast(b_.emit("sqrt", {over_blocks(squares(v))}), b_.dtype(v)); }

  // The norm is over unique parameters (a tied one has one gradient), in f32 or wider, and is taken before any
  // clipping.
  void measure_and_clip() {
    ValueId norm = b_.emit("sqrt", {squares_of_gradients()});
    outputs_.push_back({"grad_norm", norm});
    const bool scaled = has_loss_scale(context_), skips = context_.recipe.run.skips();
    if (scaled || skips) finite_ = is_finite(norm);  // it is, then, unless some gradient of some rank is not
    if (skips) finite_ = b_.emit("and", {finite_, is_finite(b_.emit("abs", {loss()}))});
    if (scaled)
      outputs_.push_back({std::string(kLossScaleState),
                          b_.cast(loss_scale(b_, context_.recipe.loss_scale), DType::kF64)});  // before it changes
    if (finite_ != kNoValue) outputs_.push_back({"skipped", b_.cast(b_.emit("not", {finite_}), DType::kF64)});
    if (context_.recipe.clip_grad_norm) {
      ValueId ratio = b_.div(b_.scalar(DType::kF64, *context_.recipe.clip_grad_norm), b_.add_scalar(norm, 1e-6));
      ValueId factor = b_.emit("min", {ratio, b_.scalar(DType::kF64, 1)});
      for (Parameter& p : parameters_) p.gradient = b_.mul(p.gradient, b_.cast(factor, b_.dtype(p.gradient)));
    }
    if (context_.recipe.clip_grad_value) {
      for (Parameter& p : parameters_) {
        DType t = b_.dtype(p.gradient);
        ValueId low = b_.emit("max", {p.gradient, b_.scalar(t, -*context_.recipe.clip_grad_value)});
        p.gradient = b_.emit("min", {low, b_.scalar(t, *context_.recipe.clip_grad_value)});
      }
    }
  }

  // Of a value that is not negative.
  ValueId is_finite(ValueId v) {
    return b_.emit("lt", {v, b_.scalar(b_.dtype(v), std::numeric_limits<double>::infinity())});
  }

  ValueId loss() const {
    return std::find_if(outputs_.begin(), outputs_.end(), [](const GraphOutput& o) { return o.name == "loss"; })->value;
  }

  // Running statistics that move in the forward part.
  absl::Status hold_statistics() {
    for (size_t k = 0; k < b_.graph().states.size(); ++k) {
      const State s = b_.graph().states[k];
      const Node* producer =
          s.kind == StateKind::kRunning && s.next != kNoValue ? b_.graph().producer(s.next) : nullptr;
      if (producer == nullptr || producer->segment != Segment::kForward) continue;
      if (context_.accumulate)
        return absl::InvalidArgumentError(
            cat("run.on_nonfinite: skip: the running statistics ", quote(s.name),
                " move with each of a step's micro-batches, before it is known whether the step is finite; use "
                "semantics: {batch_norm: replica}, one micro-batch a step, or on_nonfinite: rollback"));
      b_.set_next_of(k, b_.select(finite_, s.next, s.value));
    }
    return absl::OkStatus();
  }

  // An optimizer state of the parameter's type, or of another shape or element type; zero (or `fill`) at first.
  ValueId slot(const Parameter& p, const std::string& name, double fill = 0, const std::optional<Shape>& shape = {},
               const std::optional<DType>& dtype = {}) {
    std::string full = cat("optimizer/", p.name, "/", name);
    Initial initial = InitialRule{.a = fill};
    return b_.state({.name = full, .kind = StateKind::kOptimizer, .parameter = p.name, .initial = initial},
                    {dtype.value_or(b_.dtype(p.value)), shape.value_or(b_.shape(p.value))});
  }

  ValueId first_step() { return b_.emit("eq", {step_, b_.scalar(DType::kI64, 0)}); }

  // torch.optim.swa_utils.AveragedModel's: the weights after the first step, then their moving average.
  void average_weights(double decay) {
    ValueId first = first_ == kNoValue ? first_step() : first_;
    for (const Parameter& p : parameters_) {
      ValueId average = b_.state(
          {.name = ema_name(p.name), .kind = StateKind::kOptimizer, .parameter = p.name, .initial = InitialRule{}},
          b_.type(p.value));
      ValueId now = next_of(p), share = b_.scalar(b_.dtype(now), 1 - decay);
      b_.set_next(average, b_.select(first, now, moved(average, now, share)));
    }
  }

  ValueId next_of(const Parameter& p) const {
    for (const State& s : b_.graph().states) {
      if (s.name == p.name) return s.next;
    }
    return kNoValue;
  }

  // 1 - beta^(step + 1), f64.
  ValueId bias_correction(double beta) {
    ValueId power = b_.emit("pow", {b_.scalar(DType::kF64, beta), b_.add_scalar(b_.cast(step_, DType::kF64), 1)});
    return b_.sub(b_.scalar(DType::kF64, 1), power);
  }

  // What a rule needs of the step, the same for all of its parameters, f64. Of adam and lamb c1 and c2 are the bias
  // corrections; of adafactor, what new squares weigh, and the relative step.
  struct StepScalars {
    ValueId lr = kNoValue, c1 = kNoValue, c2 = kNoValue;
  };

  // `lr`: the rule's rate by the schedule.
  StepScalars step_scalars(const OptimizerRule& o, ValueId lr) {
    StepScalars s{.lr = lr};
    using Kind = OptimizerKind;
    if (o.kind == Kind::kAdam || o.kind == Kind::kAdamW || o.kind == Kind::kAdamW8bit || o.kind == Kind::kLamb) {
      s.c1 = bias_correction(o.betas[0]);
      s.c2 = bias_correction(o.betas[1]);
    }
    if (o.kind == OptimizerKind::kAdafactor) {
      ValueId t = b_.add_scalar(b_.cast(step_, DType::kF64), 1);
      s.c1 = b_.emit("pow", {t, b_.scalar(DType::kF64, o.beta2_decay)});
      s.c2 = b_.emit("min", {lr, b_.emit("rsqrt", {t})});
    }
    if (o.kind == OptimizerKind::kAdagrad && o.lr_decay != 0)
      s.lr = b_.div(lr, b_.add_scalar(b_.scale(b_.cast(step_, DType::kF64), o.lr_decay), 1));
    return s;
  }

  void recipe_updates() {
    const OptimizerRecipe o = context_.recipe.optimizer.value_or(default_optimizer(OptimizerKind::kAdamW));
    const ScheduleRecipe& schedule = context_.recipe.schedule;
    ValueId lr = emit_learning_rate(b_, schedule, o.lr, step_);
    outputs_.push_back({"lr", lr});
    if (o.kind == OptimizerKind::kSgd || o.kind == OptimizerKind::kMomentum) first_ = first_step();
    std::map<std::pair<const ParameterGroup*, OptimizerKind>, StepScalars> scalars;
    scalars[{nullptr, o.kind}] = step_scalars(o, lr);
    for (const Parameter& p : parameters_) {
      const OptimizerRule rule = o.rule_of(p.name, b_.rank(p.value));
      auto [known, fresh] = scalars.try_emplace(std::pair(o.group_of(p.name), rule.kind));
      if (fresh) {
        ValueId rate =
            rule.lr == o.lr ? lr : emit_learning_rate(b_, scaled_schedule(schedule, rule.lr, o.lr), rule.lr, step_);
        known->second = step_scalars(rule, rate);
      }
      StepScalars s = known->second;
      for (ValueId* v : {&s.lr, &s.c1, &s.c2}) {
        if (*v != kNoValue) *v = b_.cast(*v, b_.dtype(p.value));
      }
      update(rule, p, matches_any(o.no_decay, p.name) ? 0 : rule.weight_decay, s);
    }
  }

  // `s` in the parameter's type.
  void update(const OptimizerRule& o, const Parameter& p, double decay, const StepScalars& s) {
    const auto [lr, c1, c2] = s;
    switch (o.kind) {
      case OptimizerKind::kSgd:
      case OptimizerKind::kMomentum: {
        if (o.momentum == 0) {
          b_.set_next(p.value, b_.emit("opt_sgd", {p.value, p.gradient, lr}, {{"weight_decay", decay}}));
          return;
        }
        ValueId m = slot(p, "momentum_buffer");
        apply(p, {m}, "opt_momentum", {p.value, p.gradient, m, lr, first_},
              {{"momentum", o.momentum},
               {"dampening", o.dampening},
               {"nesterov", int64_t{o.nesterov}},
               {"weight_decay", decay}});
        return;
      }
      case OptimizerKind::kAdagrad: {
        ValueId sum = slot(p, "sum", o.initial_accumulator);
        apply(p, {sum}, "opt_adagrad", {p.value, p.gradient, sum, lr}, {{"eps", o.eps}, {"weight_decay", decay}});
        return;
      }
      case OptimizerKind::kAdam:
      case OptimizerKind::kAdamW: {
        ValueId m = slot(p, "exp_avg"), v = slot(p, "exp_avg_sq");
        apply(p, {m, v}, "opt_adam", {p.value, p.gradient, m, v, lr, c1, c2}, adam_attributes(o, decay));
        return;
      }
      case OptimizerKind::kLamb:
        return lamb(o, p, decay, lr, c1, c2);
      case OptimizerKind::kLion: {
        ValueId m = slot(p, "exp_avg");
        apply(p, {m}, "opt_lion", {p.value, p.gradient, m, lr},
              {{"beta1", o.betas[0]}, {"beta2", o.betas[1]}, {"weight_decay", decay}});
        return;
      }
      case OptimizerKind::kRmsprop:
        return rmsprop(o, p, decay, lr);
      case OptimizerKind::kAdafactor:
        return adafactor(o, p, decay, s);
      case OptimizerKind::kAdamW8bit:
        return adamw_8bit(o, p, decay, s);
      case OptimizerKind::kMuon:
        return muon(o, p, decay, lr);
    }
  }

  static Attrs adam_attributes(const OptimizerRule& o, double decay) {
    return {{"beta1", o.betas[0]},
            {"beta2", o.betas[1]},
            {"eps", o.eps},
            {"weight_decay", decay},
            {"decoupled", int64_t{o.kind != OptimizerKind::kAdam}}};
  }

  void rmsprop(const OptimizerRule& o, const Parameter& p, double decay, ValueId lr) {
    std::vector<ValueId> slots = {slot(p, "square_avg")};
    if (o.centered) slots.push_back(slot(p, "grad_avg"));
    if (o.momentum != 0) slots.push_back(slot(p, "momentum_buffer"));
    std::vector<ValueId> inputs = {p.value, p.gradient};
    inputs.insert(inputs.end(), slots.begin(), slots.end());
    inputs.push_back(lr);
    apply(p, slots, "opt_rmsprop", std::move(inputs),
          {{"alpha", o.alpha},
           {"eps", o.eps},
           {"momentum", o.momentum},
           {"centered", int64_t{o.centered}},
           {"weight_decay", decay}});
  }

  // old + weight (now - old).
  ValueId moved(ValueId old, ValueId now, ValueId weight) { return b_.add(old, b_.mul(weight, b_.sub(now, old))); }
  ValueId at_least(ValueId v, double least) { return b_.emit("max", {v, b_.scalar(b_.dtype(v), least)}); }

  // torch.optim.Adafactor: of a matrix (the last two dimensions), means of squares over rows and over columns stand for
  // those of its elements.
  void adafactor(const OptimizerRule& o, const Parameter& p, double decay, const StepScalars& s) {
    const Shape shape = b_.shape(p.value);
    const int rank = static_cast<int>(shape.size());
    ValueId squares = b_.mul(p.gradient, p.gradient), variance = kNoValue;
    if (rank < 2) {
      ValueId v = slot(p, "variance");
      variance = moved(v, squares, s.c1);
      b_.set_next(v, variance);
    } else {
      auto mean = [&](std::string_view name, int dim) {
        Shape kept = shape;
        kept[static_cast<size_t>(dim)] = 1;
        ValueId v = slot(p, std::string(name), 0, kept), next = moved(v, b_.mean(squares, {dim}, true), s.c1);
        b_.set_next(v, next);
        return next;
      };
      ValueId rows = mean("row_var", rank - 1), columns = mean("col_var", rank - 2);
      variance = b_.div(b_.mul(rows, columns), at_least(b_.mean(rows, {rank - 2}, true), o.eps));
    }
    ValueId update = b_.mul(b_.emit("rsqrt", {at_least(variance, o.eps * o.eps)}), p.gradient);
    const double root = std::sqrt(static_cast<double>(elements(shape)));
    ValueId size = at_least(b_.scale(length(p.value), 1 / root), o.eps2);
    ValueId clip = at_least(b_.scale(length(update), 1 / (root * o.clip_threshold)), 1);
    ValueId kept = shrunk(p, s.lr, decay);
    b_.set_next(p.value, b_.sub(kept, b_.mul(b_.div(b_.mul(size, s.c2), clip), update)));
  }

  // w (1 - lr decay).
  ValueId shrunk(const Parameter& p, ValueId lr, double decay) {
    if (decay == 0) return p.value;
    return b_.mul(p.value, b_.sub(b_.scalar(b_.dtype(lr), 1), b_.scale(lr, decay)));
  }

  // bitsandbytes' AdamW8bit.
  void adamw_8bit(const OptimizerRule& o, const Parameter& p, double decay, const StepScalars& s) {
    const bool coded = has_block_codes(b_.shape(p.value));
    std::vector<ValueId> inputs = {p.value, p.gradient};
    std::array<BlockCodes, 2> states;  // the second has no sign
    for (size_t k = 0; k < 2; ++k) {
      states[k].codes = slot(p, cat("state", k + 1), 0, {}, coded ? DType::kU8 : b_.dtype(p.value));
      if (coded) states[k].scales = slot(p, cat("absmax", k + 1), 0, block_scales_shape(b_.shape(p.value)));
      inputs.push_back(decoded(b_, states[k], k == 0));
    }
    inputs.insert(inputs.end(), {s.lr, s.c1, s.c2});
    const std::vector<ValueId> next = b_.emit_all("opt_adam", inputs, adam_attributes(o, decay));
    b_.set_next(p.value, next[0]);
    for (size_t k = 0; k < 2; ++k) {
      const BlockCodes now = block_codes(b_, next[1 + k], k == 0);
      b_.set_next(states[k].codes, now.codes);
      if (coded) b_.set_next(states[k].scales, now.scales);
    }
  }

  // torch.optim.Muon. In 16 bits where the model's products are in bf16, as torch's always are.
  void muon(const OptimizerRule& o, const Parameter& p, double decay, ValueId lr) {
    const DType type = b_.dtype(p.value);
    ValueId m = slot(p, "momentum_buffer"), next = moved(m, p.gradient, b_.scalar(type, 1 - o.momentum));
    b_.set_next(m, next);
    ValueId u = o.nesterov ? moved(p.gradient, next, b_.scalar(type, o.momentum)) : next;
    ValueId x = b_.div(u, at_least(length(u), o.eps));
    if (context_.recipe.precision == Precision::kBf16 || context_.recipe.precision == Precision::kFp8)
      x = b_.cast(x, DType::kBF16);
    x = b_.cast(newton_schulz(b_, x, o.ns_coefficients, o.ns_steps), type);
    ValueId kept = shrunk(p, lr, decay), rate = b_.scale(lr, adjusted_rate(o.adjust_lr_fn, b_.shape(p.value)));
    b_.set_next(p.value, b_.sub(kept, b_.mul(rate, x)));
  }

  // The update op's outputs are the parameter's and the slots' next values.
  void apply(const Parameter& p, const std::vector<ValueId>& slots, std::string_view op, std::vector<ValueId> inputs,
             Attrs attrs) {
    std::vector<ValueId> next = b_.emit_all(op, std::move(inputs), std::move(attrs));
    b_.set_next(p.value, next[0]);
    for (size_t k = 0; k < slots.size(); ++k) b_.set_next(slots[k], next[k + 1]);
  }

  // w -= lr |w|/|u| u, with ratio 1 where either norm is 0.
  void lamb(const OptimizerRule& o, const Parameter& p, double decay, ValueId lr, ValueId c1, ValueId c2) {
    ValueId m = slot(p, "exp_avg"), v = slot(p, "exp_avg_sq");
    std::vector<ValueId> next =
        b_.emit_all("opt_lamb_direction", {p.value, p.gradient, m, v, c1, c2},
                    {{"beta1", o.betas[0]}, {"beta2", o.betas[1]}, {"eps", o.eps}, {"weight_decay", decay}});
    ValueId w = length(p.value), u = length(next[0]);
    ValueId zero = b_.scalar(b_.dtype(w), 0);
    ValueId both = b_.emit("and", {b_.emit("lt", {zero, w}), b_.emit("lt", {zero, u})});
    ValueId ratio = b_.select(both, b_.div(w, u), b_.scalar(b_.dtype(w), 1));
    b_.set_next(p.value, b_.sub(p.value, b_.mul(b_.mul(lr, ratio), next[0])));
    b_.set_next(m, next[1]);
    b_.set_next(v, next[2]);
  }

  // Optimizer nodes of the file. Their slots may be states of the graph already (with initial values), under the file's
  // names.
  absl::Status file_updates() {
    ValueId lr = kNoValue;
    for (const OptimizerGroup& group : context_.training.groups) {
      double base = group.learning_rate         ? *group.learning_rate
                    : context_.recipe.optimizer ? context_.recipe.optimizer->lr
                                                : 1e-3;
      const bool first = lr == kNoValue;
      lr = emit_learning_rate(b_, context_.recipe.schedule, base, step_);
      if (first) outputs_.push_back({"lr", lr});
      for (size_t k = 0; k < group.parameters.size(); ++k) PARTITA_RETURN_IF_ERROR(file_update(group, k, lr));
    }
    return absl::OkStatus();
  }

  absl::Status file_update(const OptimizerGroup& group, size_t k, ValueId lr) {
    const Parameter* p = nullptr;
    for (const Parameter& q : parameters_) {
      if (q.name == group.parameters[k]) p = &q;
    }
    if (p == nullptr)
      return absl::InvalidArgumentError(
          cat("the file's optimizer updates '", group.parameters[k], "', which is no trained parameter"));
    // The k-th parameter's i-th state tensor, under the file's name and with the file's first value.
    auto state = [&](size_t i) {
      Initial initial = InitialRule{};
      if (k < group.state_initials.size() && i < group.state_initials[k].size() && group.state_initials[k][i])
        initial = *group.state_initials[k][i];
      return b_.state(
          {.name = group.state_names[k][i], .kind = StateKind::kOptimizer, .parameter = p->name, .initial = initial},
          b_.type(p->value));
    };
    Attrs attrs;
    for (const auto& [name, value] : group.hyper) {
      bool integer = name == "adam_mode" || name == "correct_bias";
      attrs.set(name == "nesterov" ? "mode" : name,
                integer || name == "nesterov" ? AttrValue(static_cast<int64_t>(value)) : AttrValue(value));
    }
    // T: the file's count of updates before this one.
    ValueId t = b_.scalar(DType::kI64, static_cast<double>(group.initial_step));
    if (group.step_counts) t = b_.add(step_, t);
    ValueId rate = b_.cast(lr, b_.dtype(p->value));
    std::string op = cat("opt_", group.kind);
    if (group.kind == "onnx_adam") {
      ValueId v = state(0), h = state(1);
      apply(*p, {v, h}, op, {p->value, p->gradient, v, h, rate, t}, attrs);
    } else if (group.kind == "onnx_adagrad") {
      ValueId h = state(0);
      apply(*p, {h}, op, {p->value, p->gradient, h, rate, t}, attrs);
    } else if (group.kind == "onnx_momentum") {
      ValueId v = state(0);
      apply(*p, {v}, op, {p->value, p->gradient, v, rate, t}, attrs);
    } else if (group.kind == "ort_adamw") {
      ValueId m = state(0), v = state(1);
      apply(*p, {m, v}, op, {p->value, p->gradient, m, v, rate, b_.add(step_, b_.scalar(DType::kI64, 1))}, attrs);
    } else {
      return absl::UnimplementedError(cat("the file's optimizer '", group.kind, "' is not known"));
    }
    return absl::OkStatus();
  }

  const PassContext& context_;
  Builder b_;
  std::vector<Parameter> parameters_;
  std::vector<GraphOutput> outputs_;
  ValueId step_ = kNoValue;
  ValueId first_ = kNoValue;   // of sgd: whether this is the first step
  ValueId finite_ = kNoValue;  // where a step can be skipped: whether it is finite
};

}  // namespace

std::string ema_name(std::string_view parameter) { return cat("ema/", parameter); }

absl::StatusOr<Graph> build_optimizer(const Graph& graph, const PassContext& context) {
  return Optimizer(graph, context).build();
}

}  // namespace partita
