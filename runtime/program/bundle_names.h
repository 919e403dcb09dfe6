// The files of a bundle.
#pragma once

namespace partita::runtime {

inline constexpr const char* kImageName = "program.partita";
inline constexpr const char* kEvaluationName = "evaluation.partita";  // only with `evaluate` in train.yaml
inline constexpr const char* kInitialName = "initial.safetensors";
inline constexpr const char* kManifestName = "manifest.json";
inline constexpr const char* kRankName = "rank";
inline constexpr const char* kLibrariesName = "lib";  // folder of what the rank loads

}  // namespace partita::runtime
