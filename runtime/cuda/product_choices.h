// Which of cuBLASLt's algorithms was found fastest for a product, on this device with this library, kept in a file:
//
//   {"version": 1, "products": {"NVIDIA H100 80GB HBM3, cuBLASLt 130200, bf16 -> bf16 8192 x 768 x 3072 …":
//     {"algorithm": "<128 hexadecimal digits>", "seconds": 1.9e-4, "first_seconds": 2.3e-4}}}
//
// The first choice for a product is kept, so all ranks that share the file, and all later starts, compute it alike.
#pragma once

#include <cublasLt.h>

#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace partita::runtime {

class ProductChoices {
 public:
  struct Choice {
    cublasLtMatmulAlgo_t algorithm{};
    double seconds = 0, first_seconds = 0;  // of it, and of the one that the heuristics put first
  };

  // Reads the file, if there is one. DataLoss where it is damaged.
  static absl::StatusOr<ProductChoices> open(const std::string& file);

  std::optional<Choice> find(const std::string& product) const;
  // Writes it down, unless somebody else was faster: what the file has now. The file's folder must be writable.
  absl::StatusOr<Choice> add(const std::string& product, const Choice& choice);
  // Equal where the choices are, for ranks to compare.
  uint64_t digest() const;

 private:
  explicit ProductChoices(std::string file) : file_(std::move(file)) {}
  absl::Status read();

  std::string file_;
  std::map<std::string, Choice> choices_;
};

}  // namespace partita::runtime
