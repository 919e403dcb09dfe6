// Sums over samples in a fixed order (train.yaml's reproducible): a step's samples are N parts, each of which is
// computed by itself and in the same way whatever the ranks, and sums over them are a balanced binary tree over the
// parts' numbers. Inner dimensions that a tensor axis may divide are blocks, and sums over these are trees likewise.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "ir/recipe/recipe.h"
#include "partitioner/layout/layout.h"

namespace partita {

// Why a layout's sums are not those of the recipe, with what would make them so; "" where they are.
std::string why_other_sums(const ReproducibleRecipe& recipe, const Layout& layout);

// Makes a rank's micro-batch one of the recipe's parts of `global` samples. InvalidArgument where the layout, or
// something else that the recipe asks for, adds up in another order.
absl::Status fix_parts(const Recipe& recipe, int64_t global, Layout& layout);

}  // namespace partita
