// External data of ONNX tensors: files in the model's own folder, mapped and never copied.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <variant>

#include "absl/status/statusor.h"
#include "base/mapped_file.h"
#include "ir/graph/graph.h"
#include "ir/type/literal.h"

namespace partita {

class ExternalData {
 public:
  // `folder`: of the model file. Nothing outside it is ever opened.
  explicit ExternalData(std::string folder) : folder_(std::move(folder)) {}

  // The bytes of one tensor: a literal in the mapped file, or, where the file does not exist, the range that it would
  // have. `length` < 0: not stated. InvalidArgument for a location that is absolute, has "..", or leads through a link,
  // an offset or length that is negative, overflows, does not match the type, or a file that is too short.
  absl::StatusOr<std::variant<Literal, FileRange>> read(const TensorType& type, const std::string& location,
                                                        int64_t offset, int64_t length);

 private:
  absl::StatusOr<std::shared_ptr<const MappedFile>> open(
      const std::string& location);  // nullptr where there is no such file

  std::string folder_;
  std::map<std::string, std::shared_ptr<const MappedFile>> files_;
};

}  // namespace partita
