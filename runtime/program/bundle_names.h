// The files of a bundle.
#pragma once

namespace partita::runtime {

inline constexpr int kManifestVersion = 2;

inline constexpr const char* kImageName = "program.partita";
inline constexpr const char* kEvaluationName = "evaluation.partita";  // only with `evaluate` in train.yaml
inline constexpr const char* kInitialName = "initial.safetensors";
inline constexpr const char* kManifestName = "manifest.json";
inline constexpr const char* kRankName = "rank";                     // the executable of a rank
inline constexpr const char* kLibrariesName = "lib";                 // folder of what the rank loads
inline constexpr const char* kEvidenceName = "verify";               // folder of what `partita verify` reads
inline constexpr const char* kChunksSuffix = ".chunks";              // of a large file's list of hashes
inline constexpr const char* kCertificateName = "certificate.json";  // both by `partita verify`
inline constexpr const char* kSignatureName = "certificate.sig";

}  // namespace partita::runtime
