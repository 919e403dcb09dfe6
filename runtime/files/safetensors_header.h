// The JSON header of a safetensors file, apart from any file.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/files/safetensors.h"

namespace partita::runtime {

inline constexpr uint64_t kLongestHeader = 100'000'000;  // bytes; the reference implementation's own bound

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // begin and end count from the start of the data
  std::map<std::string, std::string> metadata;
};

// Checks JSON, keys, dtypes, shapes and that each range fits its shape; not how ranges lie to each other or the file.
// Memory is bounded by a small multiple of `json`; nesting is refused, not followed.
absl::StatusOr<SafetensorsHeader> parse_safetensors_header(std::string_view json);

// JSON in the order given, padded with spaces so that 8 + its length is a multiple of 8. Names must be valid UTF-8.
std::string format_safetensors_header(const SafetensorsHeader& header);

// A file as SafetensorsWriter writes it.
struct SafetensorsLayout {
  std::string front;                      // what stands before the data
  std::vector<SafetensorsEntry> entries;  // in file order; begin and end count from the start of the file
  int64_t bytes = 0;                      // of the file
};
// InvalidArgument as SafetensorsWriter::create's, but for names that are repeated.
absl::StatusOr<SafetensorsLayout> lay_out_safetensors(std::vector<TensorInfo> tensors,
                                                      const std::map<std::string, std::string>& metadata);

}  // namespace partita::runtime
