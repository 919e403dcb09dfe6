#include "ir/recipe/lengths.h"

#include <numeric>
#include <optional>
#include <string>
#include <string_view>

#include "base/cat.h"
#include "base/status.h"

namespace partita {
namespace {

std::string key_of(const LengthsRecipe& lengths) { return cat("bind.", lengths.dimension); }

// That so many samples of the largest length are whole samples of each.
absl::Status check_count(const LengthsRecipe& lengths, std::string_view key, int64_t samples) {
  const int64_t largest = lengths.extents.back();
  int64_t multiple = 1, positions = 0;  // of samples, that all lengths divide
  if (__builtin_mul_overflow(samples, largest, &positions))
    return absl::InvalidArgumentError(
        cat(key_of(lengths), ": ", key, " ", samples, " of length ", largest, " are too many positions"));
  for (int64_t length : lengths.extents) multiple = std::lcm(multiple, length / std::gcd(length, largest));
  for (int64_t length : lengths.extents) {
    if (positions % length == 0) continue;
    return absl::InvalidArgumentError(cat(key_of(lengths), ": ", key, " ", samples, " of length ", largest, " is ",
                                          positions, " positions, no whole number of samples of length ", length,
                                          "; expected ", key, " to be a multiple of ", multiple,
                                          ", or lengths that divide ", positions));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status check_lengths(const Recipe& recipe) {
  const LengthsRecipe& lengths = recipe.lengths;
  if (lengths.extents.empty()) {
    if (!recipe.data || recipe.data->lengths.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError("data.lengths: expected several lengths of one dimension in bind, found none");
  }
  if (!recipe.batch.ramp.empty())
    return absl::InvalidArgumentError(
        cat(key_of(lengths), ": expected one length beside a batch.global that changes; keep one of the two"));
  if (recipe.pin.schedule == PipelineSchedule::kPipedream)
    return absl::InvalidArgumentError(
        cat(key_of(lengths), ": expected one length with schedule: pipedream, whose micro-batches are steps"));
  if (recipe.batch.global) PARTITA_RETURN_IF_ERROR(check_count(lengths, "batch.global", *recipe.batch.global));
  if (recipe.batch.micro) PARTITA_RETURN_IF_ERROR(check_count(lengths, "batch.micro", *recipe.batch.micro));
  if (recipe.pin.micro_batch) return check_count(lengths, "pin.micro_batch", *recipe.pin.micro_batch);
  return absl::OkStatus();
}

absl::StatusOr<Recipe> recipe_of_length(Recipe recipe, int64_t samples, int64_t length) {
  const int64_t largest = recipe.lengths.extents.back();
  recipe.batch.global = samples;
  recipe.batch.accumulation.reset();  // it follows
  PARTITA_RETURN_IF_ERROR(check_lengths(recipe));
  recipe.bind[recipe.lengths.dimension] = length;
  for (std::optional<int64_t>* count : {&recipe.batch.global, &recipe.batch.micro, &recipe.pin.micro_batch}) {
    if (*count) *count = **count * largest / length;
  }
  return recipe;
}

}  // namespace partita
