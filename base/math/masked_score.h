// Scores of attention with a mask that is added.
#pragma once

namespace partita {

// Masks hide keys by large negative numbers, the type's lowest or -1e9, in which a score is lost: where such a mask
// hides all keys of a query, they count alike. So would they with any number that is this low, and none may be lower,
// for the logarithm of a row's sum has to be kept beside it: -1e9 + log(n) is -1e9 in f32. Not above -1e4, to which
// scores are added in some models and count. Minus infinity hides a key altogether.
inline constexpr double kLeastMaskedScore = -12288;

}  // namespace partita
