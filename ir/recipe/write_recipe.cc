#include "ir/recipe/write_recipe.h"

#include <functional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/cat.h"
#include "fmt/format.h"
#include "ir/recipe/block_ranges.h"

namespace partita {
namespace {

std::string yaml_text(std::string_view text) {
  std::string out = "'";
  for (char c : text) out += c == '\'' ? std::string("''") : std::string(1, c);
  return out + "'";
}

std::string number_text(double value) { return fmt::format("{}", value); }
std::string bool_text(bool value) { return value ? "true" : "false"; }

// "{a: 1, b: 'x'}" as it grows.
class Mapping {
 public:
  Mapping& add(std::string_view key, std::string_view value) {
    append(text_, text_.empty() ? "" : ", ", key, ": ", value);
    return *this;
  }
  Mapping& add_if(bool said, std::string_view key, std::string_view value) { return said ? add(key, value) : *this; }
  template <typename T>
  Mapping& add_if(std::string_view key, const std::optional<T>& value) {
    if (!value) return *this;
    if constexpr (std::is_same_v<T, bool>)
      return add(key, bool_text(*value));
    else if constexpr (std::is_enum_v<T>)
      return add(key, enum_name(*value));
    else if constexpr (std::is_floating_point_v<T>)
      return add(key, number_text(*value));
    else
      return add(key, cat(*value));
  }
  bool empty() const { return text_.empty(); }
  std::string text() const { return "{" + text_ + "}"; }

 private:
  std::string text_;
};

template <typename Items>
std::string list(const Items& items, const std::function<std::string(const typename Items::value_type&)>& one) {
  std::string text;
  for (const auto& item : items) append(text, text.empty() ? "" : ", ", one(item));
  return "[" + text + "]";
}

std::string names(const std::vector<std::string>& list_of) {
  return list(list_of, [](const std::string& name) { return yaml_text(name); });
}

std::string loss(const LossRecipe& l) {
  Mapping m, focal;
  m.add("kind", enum_name(l.kind)).add_if(!l.output.empty(), "output", yaml_text(l.output));
  const bool targets = l.kind != LossKind::kOutput && l.kind != LossKind::kContrastive && !l.target.empty();
  m.add_if(targets, "target", yaml_text(l.target));
  m.add_if(targets && (l.kind == LossKind::kCrossEntropy || l.kind == LossKind::kKl), "ignore_index",
           cat(l.ignore_index));
  m.add("reduction", enum_name(l.reduction)).add_if(!l.name.empty(), "name", yaml_text(l.name));
  m.add_if(l.weight != 1, "weight", number_text(l.weight));
  m.add_if(l.label_smoothing != 0, "label_smoothing", number_text(l.label_smoothing));
  m.add_if(l.z_loss != 0, "z_loss", number_text(l.z_loss));
  if (l.focal) m.add("focal", focal.add("gamma", number_text(l.focal->gamma)).add_if("alpha", l.focal->alpha).text());
  m.add_if("temperature", l.temperature).add_if(!l.logit_scale.empty(), "logit_scale", yaml_text(l.logit_scale));
  m.add_if(!l.with.empty(), "with", yaml_text(l.with)).add_if(!l.teacher.empty(), "teacher", yaml_text(l.teacher));
  return m.add_if(!l.teacher_output.empty(), "teacher_output", yaml_text(l.teacher_output)).text();
}

std::string metric(const MetricRecipe& r) {
  Mapping m;
  m.add("kind", enum_name(r.kind)).add_if(!r.output.empty(), "output", yaml_text(r.output));
  if (r.kind == MetricKind::kOutput) return m.add("reduce", enum_name(r.reduce)).text();
  return m.add("target", yaml_text(r.target)).add("ignore_index", cat(r.ignore_index)).add("top", cat(r.top)).text();
}

std::string numbers(std::span<const double> values) {
  std::string text;
  for (double v : values) append(text, text.empty() ? "" : ", ", number_text(v));
  return "[" + text + "]";
}

std::string adamw(const AdamWRule& o) {
  Mapping m;
  m.add("lr", number_text(o.lr)).add("betas", numbers(o.betas)).add("eps", number_text(o.eps));
  m.add("weight_decay", number_text(o.weight_decay)).add_if(!o.match.empty(), "match", names(o.match));
  return m.text();
}

// Everything of a rule but its kind.
void add_rule(const OptimizerRule& o, Mapping& m) {
  using Kind = OptimizerKind;
  const bool sgd = o.kind == Kind::kSgd || o.kind == Kind::kMomentum, adagrad = o.kind == Kind::kAdagrad,
             rmsprop = o.kind == Kind::kRmsprop, adafactor = o.kind == Kind::kAdafactor, muon = o.kind == Kind::kMuon,
             betas = !sgd && !adagrad && !rmsprop && !adafactor && !muon;
  m.add("lr", number_text(o.lr));
  m.add_if(betas, "betas", numbers(o.betas));
  m.add_if(!sgd && o.kind != Kind::kLion, "eps", number_text(o.eps));
  m.add_if(sgd || rmsprop || muon, "momentum", number_text(o.momentum));
  m.add_if(sgd, "dampening", number_text(o.dampening)).add_if(sgd || muon, "nesterov", bool_text(o.nesterov));
  m.add_if(adagrad, "lr_decay", number_text(o.lr_decay));
  m.add_if(adagrad, "initial_accumulator", number_text(o.initial_accumulator));
  m.add_if(rmsprop, "alpha", number_text(o.alpha)).add_if(rmsprop, "centered", bool_text(o.centered));
  m.add_if(adafactor, "beta2_decay", number_text(o.beta2_decay)).add_if(adafactor, "eps2", number_text(o.eps2));
  m.add_if(adafactor, "clip_threshold", number_text(o.clip_threshold));
  m.add("weight_decay", number_text(o.weight_decay));
  m.add_if(muon, "ns_coefficients", numbers(o.ns_coefficients)).add_if(muon, "ns_steps", cat(o.ns_steps));
  m.add_if(muon, "adjust_lr_fn", enum_name(o.adjust_lr_fn)).add_if(muon, "adamw", adamw(o.adamw));
}

std::string group(const ParameterGroup& g) {
  Mapping m;
  m.add("match", names(g.match));
  add_rule(g, m);
  return m.text();
}

std::string optimizer(const OptimizerRecipe& o) {
  Mapping m;
  m.add("kind", enum_name(o.kind));
  add_rule(o, m);
  m.add_if(!o.no_decay.empty(), "no_decay", names(o.no_decay));
  m.add_if(!o.groups.empty(), "groups", list(o.groups, group));
  return m.text();
}

std::string one_cycle(const ScheduleRecipe& s) {
  Mapping m;
  m.add("kind", enum_name(s.kind)).add("total", cat(s.total)).add("pct_start", number_text(s.pct_start));
  m.add("anneal_strategy", enum_name(s.anneal_strategy)).add("div_factor", number_text(s.div_factor));
  m.add("final_div_factor", number_text(s.final_div_factor));
  return m.add("three_phase", bool_text(s.three_phase)).text();
}

std::string piecewise(const ScheduleRecipe& s) {
  Mapping m;
  m.add("kind", enum_name(s.kind));
  return m
      .add("points",
           list(s.points, [](const auto& point) { return cat("[", point.step, ", ", number_text(point.share), "]"); }))
      .text();
}

std::string schedule(const ScheduleRecipe& s) {
  using Kind = ScheduleKind;
  if (s.kind == Kind::kOneCycle) return one_cycle(s);
  if (s.kind == Kind::kPiecewise) return piecewise(s);
  const bool step = s.kind == Kind::kStep, least = !step && s.kind != Kind::kInverseSqrt;
  Mapping m;
  m.add("kind", enum_name(s.kind)).add("warmup", cat(s.warmup));
  if (s.warmup_start) m.add("warmup_start", number_text(*s.warmup_start));
  m.add_if(s.total > 0, "total", cat(s.total));
  m.add_if(s.kind == Kind::kWsd, "decay", cat(s.decay))
      .add_if(s.kind == Kind::kPolynomial, "power", number_text(s.power));
  m.add_if("timescale", s.timescale).add_if("step_size", s.step_size);
  m.add_if(!s.milestones.empty(), "milestones", list(s.milestones, [](const int64_t& t) { return cat(t); }));
  return m.add_if(step, "gamma", number_text(s.gamma)).add_if(least, "min_lr", number_text(s.min_lr)).text();
}

std::string loss_scale(const LossScaleRecipe& s) {
  if (s.fixed) return number_text(*s.fixed);
  Mapping m;
  m.add("initial", number_text(s.initial)).add("window", cat(s.window)).add("hysteresis", cat(s.hysteresis));
  return m.add("minimum", number_text(s.minimum)).text();
}

std::string fp8(const Fp8Recipe& f) {
  Mapping m;
  m.add("block", cat(f.block)).add("gradients", enum_name(f.gradients));
  return m.add_if(!f.keep.empty(), "keep", names(f.keep)).text();
}

std::string init_rule(const InitRule& r) {
  Mapping m, how;
  m.add("match", yaml_text(r.match));
  switch (r.kind) {
    case InitKind::kNormal:
      return m.add("normal", how.add("mean", number_text(r.mean)).add("std", number_text(r.std)).text()).text();
    case InitKind::kUniform:
      return m.add("uniform", how.add("low", number_text(r.low)).add("high", number_text(r.high)).text()).text();
    case InitKind::kConstant:
      return m.add("constant", number_text(r.value)).text();
    case InitKind::kKaiming:
      how.add("fan", enum_name(r.fan));
      break;
    case InitKind::kXavier:
      break;
  }
  how.add("distribution", enum_name(r.distribution)).add("gain", number_text(r.gain));
  return m.add(enum_name(r.kind), how.text()).text();
}

std::string source(const SourceRecipe& s) {
  Mapping m;
  m.add("path", yaml_text(s.path)).add_if("weight", s.weight).add_if("kind", s.kind);
  if (s.dtype) m.add("dtype", dtype_name(*s.dtype));
  return m.add_if("documents", s.documents).add_if("end_of_document", s.end_of_document).text();
}

template <typename Value>
std::string mapping_of(const std::map<std::string, Value>& entries,
                       const std::function<std::string(const Value&)>& value) {
  Mapping m;
  for (const auto& [name, v] : entries) m.add(yaml_text(name), value(v));
  return m.text();
}

std::string images(const ImageSettings& s) {
  Mapping m;
  const bool resized = s.crop == ImageCrop::kRandomResized;
  m.add("crop", enum_name(s.crop));
  m.add_if(!s.resize.empty(), "resize",
           s.resize.size() == 1 ? cat(s.resize[0]) : list(s.resize, [](int64_t side) { return cat(side); }));
  m.add("interpolation", enum_name(s.interpolation));
  m.add_if(resized, "scale", numbers(s.scale)).add_if(resized, "ratio", numbers(s.ratio));
  m.add_if(s.crop == ImageCrop::kRandom, "padding", cat(s.padding)).add("flip", number_text(s.flip));
  return m.add_if(!s.mean.empty(), "mean", numbers(s.mean)).add_if(!s.std.empty(), "std", numbers(s.std)).text();
}

std::string data(const DataRecipe& d) {
  const bool synthetic = d.kind == DataKind::kSynthetic;
  Mapping m;
  m.add_if("kind", d.kind).add_if(!d.path.empty(), "path", yaml_text(d.path));
  m.add_if(!d.columns.empty(), "columns",
           mapping_of<std::string>(d.columns, [](const std::string& c) { return yaml_text(c); }));
  m.add_if(!synthetic, "shuffle", bool_text(d.shuffle)).add_if("seed", d.seed);
  if (d.dtype) m.add("dtype", dtype_name(*d.dtype));
  m.add_if("vocab", d.vocab).add("prefetch", cat(d.prefetch)).add_if("shift", d.shift);
  m.add("check_ids", bool_text(d.check_ids)).add("documents", enum_name(d.documents));
  m.add_if("end_of_document", d.end_of_document).add("pad_token", cat(d.pad_token));
  m.add("ignore_label", cat(d.ignore_label));
  m.add_if(!d.lengths.empty(), "lengths", yaml_text(d.lengths));
  m.add_if(!(d.images == ImageSettings{}), "images", images(d.images)).add_if("workers", d.workers);
  return m.add_if(!d.sources.empty(), "sources", list(d.sources, source)).text();
}

std::string bind(const Recipe& r) {
  Mapping m;
  for (const auto& [name, extent] : r.bind) {
    const bool several = !r.lengths.extents.empty() && name == r.lengths.dimension;
    m.add(yaml_text(name), several ? list(r.lengths.extents, [](const int64_t& n) { return cat(n); }) : cat(extent));
  }
  return m.text();
}

std::string evaluate(const EvaluateRecipe& e) {
  Mapping m;
  return m.add("every", cat(e.every)).add_if("batches", e.batches).add("data", data(e.data)).text();
}

std::string semantics(const SemanticsRecipe& s) {
  Mapping m;
  m.add("batch_norm", enum_name(s.batch_norm)).add("batch_norm_training", bool_text(s.batch_norm_training));
  m.add_if(s.moe_dropless, "moe", "dropless");
  if (s.moe) {
    Mapping moe;
    moe.add_if("capacity", s.moe->tokens).add_if("capacity_factor", s.moe->factor).add_if("group", s.moe->group);
    m.add("moe", moe.text());
  }
  return m.text();
}

std::string run(const RunRecipe& r) {
  Mapping m, spike, timeout;
  m.add("on_nonfinite", enum_name(r.on_nonfinite));
  if (const auto& s = r.loss_spike) {
    spike.add("factor", number_text(s->factor)).add("window", cat(s->window)).add("action", enum_name(s->action));
    m.add("loss_spike", spike.text());
  }
  const TimeoutRecipe& t = r.timeout;
  timeout.add_if("start", t.start).add_if("data", t.data).add_if("step", t.step).add_if("collective", t.collective);
  timeout.add_if("checkpoint", t.checkpoint).add_if("evaluation", t.evaluation);
  return m.add_if(!timeout.empty(), "timeout", timeout.text()).text();
}

}  // namespace

std::string format_pins(const PinRecipe& p) {
  const std::function<std::string(const int64_t&)> size = [](const int64_t& n) { return cat(n); };
  Mapping m;
  for (const auto& [axis, n] : p.axes) m.add(axis, cat(n));
  m.add_if("zero", p.zero);
  if (p.zero_group) m.add("zero_group", *p.zero_group == PinRecipe::kNode ? "node" : cat(*p.zero_group));
  m.add_if("hierarchical_group", p.hierarchical_group);
  m.add_if("reshard_after_forward", p.reshard_after_forward).add_if("prefetch_blocks", p.prefetch_blocks);
  m.add_if("overlap_micro_batches", p.overlap_micro_batches).add_if("overlap_products", p.overlap_products);
  m.add_if("micro_batch", p.micro_batch);
  if (const std::vector<BucketSize>& sizes = p.bucket_bytes.sizes; sizes.size() == 1 && sizes[0].ranks == 0) {
    m.add("bucket_bytes", cat(sizes[0].bytes));
  } else if (!sizes.empty()) {
    Mapping by_ranks;
    for (const BucketSize& s : sizes) by_ranks.add(cat(s.ranks), cat(s.bytes));
    m.add("bucket_bytes", by_ranks.text());
  }
  m.add_if("sequence_parallel", p.sequence_parallel).add_if("recompute", p.recompute);
  if (!p.recompute_blocks.empty()) {
    Mapping by_mode;
    for (size_t m = static_cast<size_t>(RecomputeMode::kSelective); m < kRecomputeModes; ++m) {
      const RecomputeMode mode = static_cast<RecomputeMode>(m);
      const std::vector<std::string> ranges = block_ranges(p.recompute_blocks, mode);
      by_mode.add_if(!ranges.empty(), enum_name(mode), list(ranges, [](const std::string& range) { return range; }));
    }
    m.add("recompute", by_mode.text());
  }
  m.add_if("offload", p.offload).add_if("offload_fraction", p.offload_fraction);
  m.add_if("schedule", p.schedule).add_if("interleave", p.interleave);
  m.add_if(!p.cuts.empty(), "cuts", names(p.cuts));
  m.add_if(!p.stages.empty(), "stages", list(p.stages, [&](const std::map<std::string, int64_t>& stage) {
    return mapping_of<int64_t>(stage, size);
  }));
  for (const ValuePin& v : p.values) m.add(yaml_text(v.match), mapping_of<std::vector<std::string>>(v.factors, names));
  return m.text();
}

namespace {

std::string reproducible(const ReproducibleRecipe& r) {
  return r.tensor == 1 ? cat(r.samples) : cat("{samples: ", r.samples, ", tensor: ", r.tensor, "}");
}

// Keys in their order, and their values.
std::vector<std::pair<std::string_view, std::string>> lines(const Recipe& r) {
  std::vector<std::pair<std::string_view, std::string>> all;
  auto line = [&](bool said, std::string_view key, const std::string& value) {
    if (said) all.emplace_back(key, value);
  };
  auto as_text = [](const std::string& name) { return yaml_text(name); };
  const bool one_loss = r.loss.size() == 1 && r.loss[0].name.empty();
  line(!r.loss.empty(), "loss", one_loss ? loss(r.loss[0]) : list(r.loss, loss));
  line(!r.metrics.empty(), "metrics", mapping_of<MetricRecipe>(r.metrics, metric));
  if (r.optimizer) line(true, "optimizer", optimizer(*r.optimizer));
  line(true, "schedule", schedule(r.schedule));
  Mapping batch;
  if (r.batch.ramp.empty()) batch.add_if("global", r.batch.global);
  batch.add_if(!r.batch.ramp.empty(), "global",
               list(r.batch.ramp, [](const BatchPhase& p) { return cat("[", p.from, ", ", p.samples, "]"); }));
  batch.add_if("micro", r.batch.micro);
  batch.add_if("accumulation", r.batch.accumulation);
  line(!batch.empty(), "batch", batch.text());
  line(!r.bind.empty(), "bind", bind(r));
  line(true, "precision", cat(enum_name(r.precision)));
  line(r.precision == Precision::kFp16, "loss_scale", loss_scale(r.loss_scale));
  line(r.precision == Precision::kFp8, "fp8", fp8(r.fp8));
  if (r.clip_grad_norm) line(true, "clip_grad_norm", number_text(*r.clip_grad_norm));
  if (r.clip_grad_value) line(true, "clip_grad_value", number_text(*r.clip_grad_value));
  if (r.ema) line(true, "ema", cat("{decay: ", number_text(r.ema->decay), "}"));
  line(true, "recompute", cat(enum_name(r.recompute)));
  line(r.attention != AttentionKernel::kAuto, "kernels", cat("{attention: ", enum_name(r.attention), "}"));
  line(!r.trainable.empty(), "trainable", names(r.trainable));
  line(!r.frozen.empty(), "frozen", names(r.frozen));
  line(true, "seed", cat(r.seed));
  line(!r.init.empty(), "init", list(r.init, init_rule));
  if (r.data) line(true, "data", data(*r.data));
  if (r.evaluate) line(true, "evaluate", evaluate(*r.evaluate));
  line(true, "semantics", semantics(r.semantics));
  line(true, "compress", cat(enum_name(r.compress)));
  if (r.reproducible) line(true, "reproducible", reproducible(*r.reproducible));
  line(!(r.run == RunRecipe{}), "run", run(r.run));
  line(!(r.pin == PinRecipe{}), "pin", format_pins(r.pin));
  line(!r.names.empty(), "names", mapping_of<std::string>(r.names, as_text));
  return all;
}

}  // namespace

std::string format_recipe(const Recipe& recipe) {
  std::string text;
  for (const auto& [key, value] : lines(recipe)) append(text, key, ": ", value, "\n");
  return text;
}

std::map<std::string, std::string> step_keys(const Recipe& recipe) {
  static const std::set<std::string_view> kDecide = {
      "loss",           "optimizer",       "schedule", "bind",      "precision", "loss_scale", "fp8",
      "clip_grad_norm", "clip_grad_value", "ema",      "trainable", "frozen",    "semantics",  "compress"};
  std::map<std::string, std::string> keys;
  for (const auto& [key, value] : lines(recipe)) {
    if (kDecide.count(key) > 0) keys.emplace(key, value);
  }
  return keys;
}

}  // namespace partita
