#include "ir/recipe/recipe.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace partita {

std::optional<int64_t> PinRecipe::axis(const std::string& name) const {
  auto found = axes.find(name);
  if (found == axes.end()) return std::nullopt;
  return found->second;
}

OptimizerRecipe default_optimizer(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::kSgd:
      return {.kind = kind};
    case OptimizerKind::kMomentum:
      return {.kind = kind, .momentum = 0.9};
    case OptimizerKind::kAdagrad:
      return {.kind = kind, .lr = 1e-2, .eps = 1e-10};
    case OptimizerKind::kAdam:
      return {.kind = kind};
    case OptimizerKind::kAdamW:
      return {.kind = kind, .weight_decay = 1e-2};
    case OptimizerKind::kLamb:
      return {.kind = kind, .eps = 1e-6, .weight_decay = 1e-2};
  }
  return {.kind = kind};
}

double learning_rate(const ScheduleRecipe& schedule, double lr, int64_t step) {
  if (step < schedule.warmup) return lr * (static_cast<double>(step) + 1) / static_cast<double>(schedule.warmup);
  if (schedule.kind == ScheduleKind::kConstant) return lr;
  int64_t start = schedule.kind == ScheduleKind::kWsd ? schedule.total - schedule.decay : schedule.warmup;
  if (step >= schedule.total) return schedule.min_lr;
  if (step <= start) return lr;
  double done = static_cast<double>(step - start) / static_cast<double>(schedule.total - start);
  double left = schedule.kind == ScheduleKind::kCosine ? 0.5 * (1 + std::cos(std::numbers::pi * done)) : 1 - done;
  return schedule.min_lr + (lr - schedule.min_lr) * left;
}

namespace {

// Bytes of the UTF-8 character at `text[at]`; a byte that starts none counts alone.
size_t character_length(std::string_view text, size_t at) {
  unsigned char lead = text[at];
  size_t length = lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  return std::min(length, text.size() - at);
}

// The `]` that closes the class opened at `open`, or npos. A `]` right after `[` or `[!` is a member.
size_t class_end(std::string_view pattern, size_t open) {
  size_t first = open + 1;
  if (first < pattern.size() && (pattern[first] == '!' || pattern[first] == '^')) ++first;
  return first < pattern.size() ? pattern.find(']', first + 1) : std::string_view::npos;
}

bool class_holds(std::string_view members, unsigned char c) {
  bool negated = members[0] == '!' || members[0] == '^';
  bool found = false;
  for (size_t i = negated ? 1 : 0; i < members.size(); ++i) {
    unsigned char low = members[i], high = low;
    if (i + 2 < members.size() && members[i + 1] == '-') {
      high = members[i + 2];
      i += 2;
    }
    found = found || (low <= c && c <= high);
  }
  return found != negated;
}

// One non-star pattern element against one character. `element` and `character` receive the bytes used.
bool element_matches(std::string_view pattern, size_t p, std::string_view name, size_t n, size_t& element,
                     size_t& character) {
  character = character_length(name, n);
  element = 1;
  if (pattern[p] == '?') return true;
  if (pattern[p] == '[') {
    size_t end = class_end(pattern, p);
    if (end != std::string_view::npos) {
      element = end - p + 1;
      return class_holds(pattern.substr(p + 1, end - p - 1), name[n]);
    }
  }
  element = character_length(pattern, p);
  return pattern.substr(p, element) == name.substr(n, character);
}

}  // namespace

// Only the last star is ever tried again: whatever an earlier star could take, the last one can take too.
//   *ab*c on xabyc: star 1 takes x, "ab" fits, star 2 takes nothing, then y, then "c" fits.
bool glob_match(std::string_view pattern, std::string_view name) {
  if (pattern == name) return true;
  constexpr size_t kNone = std::string_view::npos;
  size_t p = 0, n = 0, star = kNone, star_name = 0, element = 0, character = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = ++p;
      star_name = n;
      if (star == pattern.size()) return true;
    } else if (p < pattern.size() && element_matches(pattern, p, name, n, element, character)) {
      p += element;
      n += character;
    } else if (star != kNone) {
      star_name += character_length(name, star_name);
      p = star;
      n = star_name;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

bool matches_any(const std::vector<std::string>& patterns, std::string_view name) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return glob_match(pattern, name); });
}

namespace {

constexpr std::string_view kLossKinds[] = {"output", "cross_entropy", "mse", "bce_with_logits", "l1"};
constexpr std::string_view kReductions[] = {"mean", "sum"};
constexpr std::string_view kOptimizerKinds[] = {"sgd", "momentum", "adagrad", "adam", "adamw", "lamb"};
constexpr std::string_view kScheduleKinds[] = {"constant", "linear", "cosine", "wsd"};
constexpr std::string_view kPrecisions[] = {"fp32", "tf32", "bf16", "fp16"};
constexpr std::string_view kRecomputeModes[] = {"auto", "none", "selective", "full"};
constexpr std::string_view kAttentionKernels[] = {"flash", "math"};
constexpr std::string_view kInitKinds[] = {"normal", "uniform", "constant", "kaiming", "xavier"};
constexpr std::string_view kInitDistributions[] = {"normal", "uniform"};
constexpr std::string_view kFanModes[] = {"fan_in", "fan_out"};
constexpr std::string_view kDocumentModes[] = {"join", "separate", "pack", "pad"};
constexpr std::string_view kDataKinds[] = {"npz", "npy", "tokens", "raw", "synthetic"};
constexpr std::string_view kBatchNormGroups[] = {"global", "replica"};
constexpr std::string_view kCompressions[] = {"none", "bf16", "int8", "powersgd"};
constexpr std::string_view kOffloadModes[] = {"none", "optimizer", "all"};
constexpr std::string_view kPipelineSchedules[] = {"gpipe", "1f1b", "interleaved", "zero_bubble", "pipedream"};

}  // namespace

template <>
std::span<const std::string_view> enum_names<LossKind>() {
  return kLossKinds;
}
template <>
std::span<const std::string_view> enum_names<Reduction>() {
  return kReductions;
}
template <>
std::span<const std::string_view> enum_names<OptimizerKind>() {
  return kOptimizerKinds;
}
template <>
std::span<const std::string_view> enum_names<ScheduleKind>() {
  return kScheduleKinds;
}
template <>
std::span<const std::string_view> enum_names<Precision>() {
  return kPrecisions;
}
template <>
std::span<const std::string_view> enum_names<RecomputeMode>() {
  return kRecomputeModes;
}
template <>
std::span<const std::string_view> enum_names<AttentionKernel>() {
  return kAttentionKernels;
}
template <>
std::span<const std::string_view> enum_names<InitKind>() {
  return kInitKinds;
}
template <>
std::span<const std::string_view> enum_names<InitDistribution>() {
  return kInitDistributions;
}
template <>
std::span<const std::string_view> enum_names<FanMode>() {
  return kFanModes;
}
template <>
std::span<const std::string_view> enum_names<DataKind>() {
  return kDataKinds;
}
template <>
std::span<const std::string_view> enum_names<DocumentMode>() {
  return kDocumentModes;
}
template <>
std::span<const std::string_view> enum_names<BatchNormGroup>() {
  return kBatchNormGroups;
}
template <>
std::span<const std::string_view> enum_names<Compression>() {
  return kCompressions;
}
template <>
std::span<const std::string_view> enum_names<OffloadMode>() {
  return kOffloadModes;
}
template <>
std::span<const std::string_view> enum_names<PipelineSchedule>() {
  return kPipelineSchedules;
}

}  // namespace partita
