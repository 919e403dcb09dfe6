// The first weights as the model has them, on their way into a bundle.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/mapped_file.h"
#include "ir/graph/graph.h"

namespace partita {

// A state whose first value is in the model.
struct InitialTensor {
  std::string name;
  TensorType type;
  Initial value;  // a Literal or a FileRange; of f32 elements where `type` has 16 bits and they have twice its bytes
  bool trained = false;
};

// Those of a graph whose states are whole.
std::vector<InitialTensor> weights_of(const Graph& graph);

class WeightFiles {
 public:
  // Every file that the weights lie in. NotFound names the weight.
  absl::Status open(const std::vector<InitialTensor>& weights);
  std::vector<std::string> paths() const;

  // Calls `take` with one box after the other of an opened weight, until one fails: the elements in the type that the
  // program holds, finite where they have to be. InvalidArgument names the weight and the element.
  using Take = absl::FunctionRef<absl::Status(std::span<const int64_t> offset, std::span<const int64_t> extent,
                                              std::span<const std::byte> block)>;
  absl::Status for_each_block(const InitialTensor& w, Take take) const;

 private:
  std::map<std::string, MappedFile> files_;
};

}  // namespace partita
