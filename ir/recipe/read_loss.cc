#include "ir/recipe/read_loss.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "ir/yaml/yaml_fields.h"

namespace partita {
namespace {

using Kind = YamlNode::Kind;

constexpr NumberRange kProbability = {"a number in [0, 1]", [](double x) { return x >= 0 && x <= 1; }};

absl::Status parse_focal(const YamlNode& node, const std::string& path, FocalRecipe& out) {
  static const Fields<FocalRecipe> kFields = {{"gamma", number(&FocalRecipe::gamma, kNonNegative)},
                                              {"alpha", number(&FocalRecipe::alpha, kProbability)}};
  return parse_fields(node, path, kFields, out);
}

absl::Status check_keys(const YamlNode& node, const std::string& path, LossKind kind) {
  const auto check = [&](KeyList allowed) {  // of the keys that some kinds have and others do not
    return check_applicable(node, path, enum_name(kind),
                            {"target", "ignore_index", "label_smoothing", "z_loss", "focal", "temperature",
                             "logit_scale", "with", "teacher", "teacher_output"},
                            allowed);
  };
  switch (kind) {
    case LossKind::kOutput:
      return check({});
    case LossKind::kCrossEntropy:
      return check({"target", "ignore_index", "label_smoothing", "z_loss", "focal"});
    case LossKind::kBceWithLogits:
      return check({"target", "focal"});
    case LossKind::kMse:
    case LossKind::kL1:
      return check({"target"});
    case LossKind::kKl:
      return check({"target", "ignore_index", "temperature", "teacher", "teacher_output"});
    case LossKind::kContrastive:
      return check({"temperature", "logit_scale", "with"});
  }
  return absl::OkStatus();
}

absl::Status parse_loss(const YamlNode& node, const std::string& path, LossRecipe& out) {
  static const Fields<LossRecipe> kFields = {
      {"kind", choice(&LossRecipe::kind)},
      {"output", text(&LossRecipe::output)},
      {"target", text(&LossRecipe::target)},
      {"ignore_index", integer(&LossRecipe::ignore_index, -kLargestCount)},
      {"reduction", choice(&LossRecipe::reduction)},
      {"name", text(&LossRecipe::name)},
      {"weight", number(&LossRecipe::weight, kAnyNumber)},
      {"label_smoothing", number(&LossRecipe::label_smoothing, kProbability)},
      {"z_loss", number(&LossRecipe::z_loss, kNonNegative)},
      {"focal", section(&LossRecipe::focal, parse_focal)},
      {"temperature", number(&LossRecipe::temperature, kPositive)},
      {"logit_scale", text(&LossRecipe::logit_scale)},
      {"with", text(&LossRecipe::with)},
      {"teacher", text(&LossRecipe::teacher)},
      {"teacher_output", text(&LossRecipe::teacher_output)},
  };
  PARTITA_RETURN_IF_ERROR(parse_fields(node, path, kFields, out));
  PARTITA_RETURN_IF_ERROR(check_keys(node, path, out.kind));
  const auto missing = [&](std::string_view key, std::string_view what) {
    return yaml_error(node.line, node.column, cat(path, ": kind ", enum_name(out.kind), " needs '", key, "', ", what));
  };
  if (out.kind == LossKind::kKl) {
    if (out.teacher.empty()) return missing("teacher", "the ONNX file of the model whose scores are the targets");
    if (find_entry(node, "target") == nullptr) {
      if (const YamlEntry* e = find_entry(node, "ignore_index"))
        return yaml_error(e->line, e->column, cat(path, ": ignore_index needs 'target', of which it is a value"));
      out.target.clear();
    }
  }
  if (out.kind == LossKind::kContrastive) {
    if (out.with.empty()) return missing("with", "the output that has the other embedding of each sample");
    if (out.temperature && !out.logit_scale.empty())
      return unexpected(node, path, "one of temperature and logit_scale");
  }
  if (out.focal && out.focal->alpha && out.kind == LossKind::kCrossEntropy)
    return unexpected(*find_entry(node, "focal")->value, join_path(path, "focal"),
                      "gamma alone: alpha weighs the two classes of bce_with_logits");
  if (out.focal && out.label_smoothing > 0)
    return yaml_error(node.line, node.column,
                      cat(path, ": focal and label_smoothing: expected one of them, found both"));
  return absl::OkStatus();
}

// What every step reports (runtime/metrics/metrics.h).
constexpr std::string_view kReported[] = {"step",
                                          "loss",
                                          "lr",
                                          "grad_norm",
                                          "seconds",
                                          "samples_per_second",
                                          "tokens_per_second",
                                          "flops_per_second",
                                          "mfu",
                                          "dollars",
                                          "input_stall_seconds",
                                          "communication_stall_seconds",
                                          "checkpoint_stall_seconds",
                                          "memory_bytes",
                                          "loss_scale",
                                          "evaluation_loss",
                                          "length",
                                          "padding",
                                          "skipped",
                                          "rank_seconds"};

// What can stand as a metric's name in every sink, and is not another's.
absl::Status check_metric_name(const YamlNode& node, const std::string& path, std::string_view name) {
  const bool taken = std::find(std::begin(kReported), std::end(kReported), name) != std::end(kReported) ||
                     name.starts_with("evaluation_");
  if (taken)
    return yaml_error(node.line, node.column,
                      cat(path, ": every step reports ", quote(name), " of its own; choose another name"));
  const bool good = !name.empty() && name.size() <= 100 && std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '-';
  });
  return good ? absl::OkStatus()
              : yaml_error(node.line, node.column,
                           cat(path, ": expected a name of letters, digits, '_', '-' and '.', found ", quote(name)));
}

absl::Status parse_metric(const YamlNode& node, const std::string& path, MetricRecipe& out) {
  static const Fields<MetricRecipe> kFields = {
      {"kind", choice(&MetricRecipe::kind)},   {"output", text(&MetricRecipe::output)},
      {"target", text(&MetricRecipe::target)}, {"ignore_index", integer(&MetricRecipe::ignore_index, -kLargestCount)},
      {"top", integer(&MetricRecipe::top, 1)}, {"reduce", choice(&MetricRecipe::reduce)},
  };
  PARTITA_RETURN_IF_ERROR(parse_fields(node, path, kFields, out));
  if (out.kind == MetricKind::kOutput)
    return check_applicable(node, path, "output", {"target", "ignore_index", "top"}, {});
  return check_applicable(node, path, enum_name(out.kind), {"reduce"}, {});
}

}  // namespace

absl::Status parse_losses(const YamlNode& node, const std::string& path, Recipe& out) {
  if (node.kind == Kind::kNull) return absl::OkStatus();
  if (node.kind != Kind::kSequence) return parse_loss(node, path, out.loss.emplace_back());
  for (size_t k = 0; k < node.items.size(); ++k) {
    const YamlNode& item = *node.items[k];
    const std::string at = cat(path, "[", k, "]");
    LossRecipe& loss = out.loss.emplace_back();
    PARTITA_RETURN_IF_ERROR(parse_loss(item, at, loss));
    if (loss.name.empty()) loss.name = cat(enum_name(loss.kind));
    PARTITA_RETURN_IF_ERROR(check_metric_name(item, join_path(at, "name"), cat("loss_", loss.name)));
    for (size_t j = 0; j < k; ++j) {
      if (out.loss[j].name == loss.name)
        return unexpected(item, at, cat("another 'name' than that of ", path, "[", j, "], ", quote(loss.name)));
      if (out.loss[j].reduction != loss.reduction)
        return unexpected(item, at, cat("reduction ", enum_name(out.loss[j].reduction), " as ", path, "[", j, "] has"));
    }
  }
  return absl::OkStatus();
}

absl::Status parse_metrics(const YamlNode& node, const std::string& path, Recipe& out) {
  if (node.kind == Kind::kNull) return absl::OkStatus();
  if (node.kind != Kind::kMapping) return unexpected(node, path, "a mapping from names to metrics");
  for (const YamlEntry& entry : node.entries) {
    const std::string at = join_path(path, entry.key);
    PARTITA_RETURN_IF_ERROR(check_metric_name(*entry.value, at, entry.key));
    PARTITA_RETURN_IF_ERROR(parse_metric(*entry.value, at, out.metrics[entry.key]));
  }
  return absl::OkStatus();
}

}  // namespace partita
