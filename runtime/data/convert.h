// Element types of files into those of a program's inputs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "base/kinds.h"

namespace partita::runtime {

// Converts `count` elements (no alignment needed); returns the index of the first that does not fit, or -1.
using ConvertFunction = int64_t (*)(const std::byte* from, std::byte* to, int64_t count);

// Between floats: rounded to nearest. Integers and bool into integers, bool, floats: only values that are kept exactly
// (others are reported by the function). Floats into integers or bool: InvalidArgument.
absl::StatusOr<ConvertFunction> find_conversion(DType from, DType to);

// Whether a frozen state of type `from` may be `to`'s values rounded: a run in 16 bits saves frozen weights as it holds
// them. Those at hand are its own then, but where they differ by more.
bool is_rounded_copy(StateKind kind, DType from, DType to);

// Puts `count` elements `own`, of the float type `type`, to the values that `given`, of a narrower one, has: where an
// element is given's when rounded, it stays as it is. How many did not stay.
absl::StatusOr<int64_t> take_rounded(DType narrow, const std::byte* given, DType type, std::byte* own, int64_t count);

// The element's value for a message: "70000", "0.5".
std::string element_text(DType dtype, const std::byte* element);

// Index of the first element that is NaN, or (`infinite`) infinite; -1 where there is none and for other than floats.
int64_t find_unusable(DType dtype, std::span<const std::byte> bytes, bool infinite);

}  // namespace partita::runtime
