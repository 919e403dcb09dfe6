#include "ir/recipe/read_optimizer.h"

#include <algorithm>

#include "base/cat.h"
#include "base/status.h"
#include "ir/recipe/step_pairs.h"
#include "ir/yaml/yaml_fields.h"

namespace partita {
namespace {

absl::Status parse_optimizer_kind(const YamlNode& node, const std::string& path, OptimizerRecipe& out) {
  PARTITA_ASSIGN_OR_RETURN(size_t kind, read_choice(node, path, enum_names<OptimizerKind>()));
  out = default_optimizer(static_cast<OptimizerKind>(kind));
  return absl::OkStatus();
}

absl::Status check_optimizer_keys(const YamlNode& node, const std::string& path, OptimizerKind kind) {
  auto check = [&](KeyList allowed) {
    return check_applicable(
        node, path, enum_name(kind),
        {"betas", "eps", "momentum", "dampening", "nesterov", "lr_decay", "initial_accumulator", "alpha", "centered",
         "beta2_decay", "eps2", "clip_threshold", "ns_coefficients", "ns_steps", "adjust_lr_fn", "adamw"},
        allowed);
  };
  switch (kind) {
    case OptimizerKind::kSgd:
    case OptimizerKind::kMomentum:
      return check({"momentum", "dampening", "nesterov"});
    case OptimizerKind::kAdagrad:
      return check({"eps", "lr_decay", "initial_accumulator"});
    case OptimizerKind::kAdam:
    case OptimizerKind::kAdamW:
    case OptimizerKind::kAdamW8bit:
    case OptimizerKind::kLamb:
      return check({"betas", "eps"});
    case OptimizerKind::kLion:
      return check({"betas"});
    case OptimizerKind::kRmsprop:
      return check({"alpha", "eps", "momentum", "centered"});
    case OptimizerKind::kAdafactor:
      return check({"beta2_decay", "eps", "eps2", "clip_threshold"});
    case OptimizerKind::kMuon:
      return check({"momentum", "nesterov", "eps", "ns_coefficients", "ns_steps", "adjust_lr_fn", "adamw"});
  }
  return absl::OkStatus();
}

// Over what is there: a group's changes the optimizer's.
absl::Status parse_adamw(const YamlNode& node, const std::string& path, OptimizerRule& out) {
  static const Fields<AdamWRule> kFields = {
      {"lr", number(&AdamWRule::lr, kNonNegative)},
      {"betas", numbers(&AdamWRule::betas, kFraction)},
      {"eps", number(&AdamWRule::eps, kNonNegative)},
      {"weight_decay", number(&AdamWRule::weight_decay, kNonNegative)},
      {"match", globs(&AdamWRule::match)},
  };
  if (node.kind == YamlNode::Kind::kNull) return absl::OkStatus();
  return parse_fields(node, path, kFields, out.adamw);
}

// Keys that a group may have of its own.
template <typename T>
Fields<T> rule_fields() {
  return {
      {"lr", number(&OptimizerRule::lr, kNonNegative)},
      {"betas", numbers(&OptimizerRule::betas, kFraction)},
      {"eps", number(&OptimizerRule::eps, kNonNegative)},
      {"momentum", number(&OptimizerRule::momentum, kNonNegative)},
      {"dampening", number(&OptimizerRule::dampening, kAnyNumber)},
      {"nesterov", boolean(&OptimizerRule::nesterov)},
      {"weight_decay", number(&OptimizerRule::weight_decay, kNonNegative)},
      {"lr_decay", number(&OptimizerRule::lr_decay, kNonNegative)},
      {"initial_accumulator", number(&OptimizerRule::initial_accumulator, kNonNegative)},
      {"alpha", number(&OptimizerRule::alpha, kFraction)},
      {"centered", boolean(&OptimizerRule::centered)},
      {"beta2_decay", number(&OptimizerRule::beta2_decay, {"a number <= 0", [](double x) { return x <= 0; }})},
      {"eps2", number(&OptimizerRule::eps2, kNonNegative)},
      {"clip_threshold", number(&OptimizerRule::clip_threshold, {"a number >= 1", [](double x) { return x >= 1; }})},
      {"ns_coefficients", numbers(&OptimizerRule::ns_coefficients, kAnyNumber)},
      {"ns_steps", integer(&OptimizerRule::ns_steps, 1, 99)},
      {"adjust_lr_fn", choice(&OptimizerRule::adjust_lr_fn)},
      {"adamw", parse_adamw},
  };
}

// What fits together in a rule, its own keys or those that it takes over.
absl::Status check_rule(const YamlNode& node, const std::string& path, const OptimizerRule& rule) {
  PARTITA_RETURN_IF_ERROR(check_optimizer_keys(node, path, rule.kind));
  const bool sgd = rule.kind == OptimizerKind::kSgd || rule.kind == OptimizerKind::kMomentum;
  if (!sgd || !rule.nesterov || (rule.momentum > 0 && rule.dampening == 0)) return absl::OkStatus();
  const YamlEntry* said = find_entry(node, "nesterov");
  return yaml_error(said == nullptr ? node.line : said->line, said == nullptr ? node.column : said->column,
                    cat(path, ".nesterov: expected momentum > 0 and no dampening beside it"));
}

absl::Status parse_groups(const YamlNode& node, const std::string& path, OptimizerRecipe& out) {
  static const Fields<ParameterGroup> kFields = [] {
    Fields<ParameterGroup> fields = rule_fields<ParameterGroup>();
    fields.push_back({"match", globs(&ParameterGroup::match)});
    return fields;
  }();
  if (node.kind == YamlNode::Kind::kNull) return absl::OkStatus();
  if (node.kind != YamlNode::Kind::kSequence) return unexpected(node, path, "a list of groups {match, lr, …}");
  for (size_t k = 0; k < node.items.size(); ++k) {
    const YamlNode& item = *node.items[k];
    const std::string at = cat(path, "[", k, "]");
    ParameterGroup& group = out.groups.emplace_back(ParameterGroup{out, {}});
    PARTITA_RETURN_IF_ERROR(parse_fields(item, at, kFields, group));
    if (group.match.empty()) return yaml_error(item.line, item.column, cat(at, ": missing key 'match'"));
    PARTITA_RETURN_IF_ERROR(check_rule(item, at, group));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status parse_optimizer(const YamlNode& node, const std::string& path, OptimizerRecipe& out) {
  static const Fields<OptimizerRecipe> kFields = [] {
    Fields<OptimizerRecipe> fields = rule_fields<OptimizerRecipe>();
    fields.insert(fields.begin(), {"kind", parse_optimizer_kind});
    fields.push_back({"no_decay", globs(&OptimizerRecipe::no_decay)});
    fields.push_back({"groups", parse_groups});  // last: a group takes over what it does not say
    return fields;
  }();
  PARTITA_RETURN_IF_ERROR(parse_fields(node, path, kFields, out));
  if (find_entry(node, "kind") == nullptr)
    return yaml_error(node.line, node.column,
                      cat(path, ": missing key 'kind'; add one of ", join_names(enum_names<OptimizerKind>())));
  return check_rule(node, path, out);
}

namespace {

absl::Status parse_milestones(const YamlNode& node, const std::string& path, ScheduleRecipe& out) {
  if (node.kind == YamlNode::Kind::kNull) return absl::OkStatus();
  if (node.kind != YamlNode::Kind::kSequence || node.items.empty()) return unexpected(node, path, "a list of steps");
  for (const auto& item : node.items) {
    PARTITA_ASSIGN_OR_RETURN(const int64_t step, read_integer(*item, path, 1, kLargestCount));
    out.milestones.push_back(step);
  }
  if (!std::is_sorted(out.milestones.begin(), out.milestones.end()))
    return unexpected(node, path, "steps in ascending order");
  return absl::OkStatus();
}

// [[step, share], …] from step 0 on.
absl::Status parse_points(const YamlNode& node, const std::string& path, ScheduleRecipe& out) {
  constexpr size_t kMost = 1 << 15;  // what a file may hold
  if (node.kind == YamlNode::Kind::kNull) return absl::OkStatus();
  return read_step_pairs(node, path, kMost, "[step, share of the rate]",
                         [&](int64_t step, const YamlNode& value, const std::string& at) -> absl::Status {
                           PARTITA_ASSIGN_OR_RETURN(const double share, read_number(value, at, kNonNegative));
                           out.points.push_back({step, share});
                           return absl::OkStatus();
                         });
}

absl::Status check_schedule_keys(const YamlNode& node, const std::string& path, ScheduleKind kind) {
  auto check = [&](KeyList allowed) {
    return check_applicable(
        node, path, enum_name(kind),
        {"warmup", "warmup_start", "total", "min_lr", "decay", "power", "pct_start", "anneal_strategy", "div_factor",
         "final_div_factor", "three_phase", "timescale", "step_size", "milestones", "gamma", "points"},
        allowed);
  };
  switch (kind) {
    case ScheduleKind::kConstant:
    case ScheduleKind::kLinear:
    case ScheduleKind::kCosine:
      return check({"warmup", "warmup_start", "total", "min_lr"});
    case ScheduleKind::kWsd:
      return check({"warmup", "warmup_start", "total", "min_lr", "decay"});
    case ScheduleKind::kOneCycle:
      return check({"total", "pct_start", "anneal_strategy", "div_factor", "final_div_factor", "three_phase"});
    case ScheduleKind::kPolynomial:
      return check({"warmup", "warmup_start", "total", "min_lr", "power"});
    case ScheduleKind::kInverseSqrt:
      return check({"warmup", "warmup_start", "timescale"});
    case ScheduleKind::kStep:
      return check({"warmup", "warmup_start", "step_size", "milestones", "gamma"});
    case ScheduleKind::kPiecewise:
      return check({"points"});
  }
  return absl::OkStatus();
}

absl::Status check_one_cycle(const YamlNode& node, const std::string& path, const ScheduleRecipe& s) {
  if (s.pct_start * static_cast<double>(s.total) <= 1)
    return yaml_error(node.line, node.column, cat(path, ": expected pct_start x total > 1: the rate rises for a step"));
  if (s.three_phase && s.pct_start > 0.5)
    return yaml_error(node.line, node.column, cat(path, ".pct_start: expected at most 0.5 with three_phase"));
  return absl::OkStatus();
}

}  // namespace

absl::Status parse_schedule(const YamlNode& node, const std::string& path, ScheduleRecipe& out) {
  using S = ScheduleRecipe;
  static const Fields<S> kFields = {
      {"kind", choice(&S::kind)},
      {"warmup", integer(&S::warmup, 0)},
      {"warmup_start", number(&S::warmup_start, kFraction)},
      {"total", integer(&S::total, 1)},
      {"decay", integer(&S::decay, 0)},
      {"min_lr", number(&S::min_lr, kNonNegative)},
      {"power", number(&S::power, kPositive)},
      {"pct_start", number(&S::pct_start, kFraction)},
      {"anneal_strategy", choice(&S::anneal_strategy)},
      {"div_factor", number(&S::div_factor, kPositive)},
      {"final_div_factor", number(&S::final_div_factor, kPositive)},
      {"three_phase", boolean(&S::three_phase)},
      {"timescale", integer(&S::timescale, 1)},
      {"step_size", integer(&S::step_size, 1)},
      {"milestones", parse_milestones},
      {"gamma", number(&S::gamma, kNonNegative)},
      {"points", parse_points},
  };
  PARTITA_RETURN_IF_ERROR(parse_fields(node, path, kFields, out));
  PARTITA_RETURN_IF_ERROR(check_schedule_keys(node, path, out.kind));
  const bool wsd = out.kind == ScheduleKind::kWsd, one_cycle = out.kind == ScheduleKind::kOneCycle;
  const bool step = out.kind == ScheduleKind::kStep, piecewise = out.kind == ScheduleKind::kPiecewise;
  auto missing = [&](std::string_view key) {
    return yaml_error(node.line, node.column, cat(path, ": kind ", enum_name(out.kind), " needs ", key));
  };
  const bool endless =
      out.kind == ScheduleKind::kConstant || out.kind == ScheduleKind::kInverseSqrt || step || piecewise;
  if (!endless && find_entry(node, "total") == nullptr) return missing("'total' (steps)");
  if (wsd && find_entry(node, "decay") == nullptr) return missing("'decay' (steps)");
  if (step && out.step_size.has_value() != out.milestones.empty())
    return missing("exactly one of 'step_size' and 'milestones' (steps)");
  if (piecewise && out.points.empty()) return missing("'points' ([step, share of the rate])");
  if (step && !out.milestones.empty() && out.milestones.front() < out.warmup)
    return yaml_error(node.line, node.column, cat(path, ".milestones: expected steps after warmup ", out.warmup));
  if (out.warmup_start && out.warmup == 0) return missing("'warmup' (steps) with 'warmup_start'");
  if (one_cycle) return check_one_cycle(node, path, out);
  if (out.total > 0 && out.warmup + out.decay > out.total) {
    return yaml_error(node.line, node.column,
                      cat(path, ": expected warmup ", wsd ? "+ decay " : "", "<= total, found ", out.warmup,
                          wsd ? cat(" + ", out.decay) : "", " > ", out.total));
  }
  return absl::OkStatus();
}

}  // namespace partita
