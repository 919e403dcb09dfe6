// Builds the ONNX graph of a generated model in the operator style of PyTorch's exporter (opset 18), its weights as
// external data.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace partita {

struct OnnxNodeAttribute {
  OnnxNodeAttribute(std::string n, int64_t v) : name(std::move(n)), value(v) {}
  OnnxNodeAttribute(std::string n, int v) : name(std::move(n)), value(int64_t{v}) {}
  OnnxNodeAttribute(std::string n, double v) : name(std::move(n)), value(static_cast<float>(v)) {}
  OnnxNodeAttribute(std::string n, const char* v) : name(std::move(n)), value(std::string(v)) {}
  OnnxNodeAttribute(std::string n, std::vector<int64_t> v) : name(std::move(n)), value(std::move(v)) {}

  std::string name;
  std::variant<int64_t, float, std::string, std::vector<int64_t>> value;
};

// How --with-weights fills a weight: zeros, ones, or normal with mean 0 and this deviation.
struct Fill {
  enum class Kind { kNormal, kZeros, kOnes } kind = Kind::kNormal;
  double deviation = 0.02;

  static Fill normal(double deviation = 0.02) { return {Kind::kNormal, deviation}; }
  static Fill zeros() { return {Kind::kZeros, 0}; }
  static Fill ones() { return {Kind::kOnes, 0}; }
};

enum class Element { kFloat, kInt64, kBool };

// The sizes of dimensions that stay symbolic; they are named "batch" and "sequence".
inline constexpr int64_t kBatchSymbol = -1, kSequenceSymbol = -2;
inline constexpr int64_t kMaxLayers = 10'000, kMaxHidden = int64_t{1} << 36;

// Values are named by strings, as in ONNX. The first fault (a weight too large to count, too many nodes) sticks;
// status() tells it and later calls do nothing.
class GraphWriter {
 public:
  explicit GraphWriter(const std::string& graph_name);
  GraphWriter(GraphWriter&&) noexcept;
  GraphWriter& operator=(GraphWriter&&) noexcept;
  ~GraphWriter();

  std::string input(const std::string& name, Element element, const std::vector<int64_t>& shape);
  void output(const std::string& value, const std::vector<int64_t>& shape);

  // A trained float weight, and a float state that is not trained (a running statistic).
  std::string weight(const std::string& name, const std::vector<int64_t>& shape, Fill fill = Fill::normal());
  std::string statistic(const std::string& name, const std::vector<int64_t>& shape, Fill fill);

  // The node's output; add_nodes() gives all of several. `output` names the only output, else a name is made from the
  // op.
  std::string add_node(const std::string& op, const std::vector<std::string>& inputs,
                       const std::vector<OnnxNodeAttribute>& attributes = {}, const std::string& output = "");
  std::vector<std::string> add_nodes(const std::string& op, const std::vector<std::string>& inputs, int outputs,
                                     const std::vector<OnnxNodeAttribute>& attributes = {});

  // Constants: int64 vectors and scalars, float scalars and vectors. The same ones are made once.
  std::string ints(const std::vector<int64_t>& values);
  std::string integer(int64_t value);
  std::string number(float value);
  std::string numbers(const std::vector<float>& values);

  std::string reshape(const std::string& x, const std::vector<int64_t>& shape) {
    return add_node("Reshape", {x, ints(shape)}, {{"allowzero", 0}});
  }
  std::string transpose(const std::string& x, const std::vector<int64_t>& permutation) {
    return add_node("Transpose", {x}, {{"perm", permutation}});
  }
  std::string unsqueeze(const std::string& x, int64_t axis) { return add_node("Unsqueeze", {x, ints({axis})}); }
  std::string cast(const std::string& x, Element to);
  std::string slice(const std::string& x, int64_t start, int64_t end, int64_t axis) {
    return add_node("Slice", {x, ints({start}), ints({end}), ints({axis}), ints({1})});
  }

  const absl::Status& status() const;
  int64_t parameters() const;  // elements of the trained weights
  int64_t weight_bytes() const;
  int64_t nodes() const;

 private:
  friend absl::Status write_generated(GraphWriter& graph, const std::string& path, std::optional<int64_t> seed);
  struct Impl;
  std::string constant(std::string key, const std::vector<int64_t>* ints, const std::vector<float>* floats,
                       bool scalar);
  std::unique_ptr<Impl> impl_;
};

// Writes the model to `path`. Its weights are external data in "<path>.weights", which is written too where a seed is
// given: value k of weight n depends on (seed, n, k) alone. FailedPrecondition where a file of that name exists and no
// seed is given, for its values would be taken for this model's.
absl::Status write_generated(GraphWriter& graph, const std::string& path, std::optional<int64_t> seed);

// InvalidArgument unless 1 <= value <= limit.
struct SizeFlag {
  const char* flag;
  int64_t value;
  int64_t limit = int64_t{1} << 40;
};
absl::Status check_sizes(const std::vector<SizeFlag>& sizes);
// InvalidArgument unless `part` divides `whole`.
absl::Status check_divides(const char* part_flag, int64_t part, const char* whole_flag, int64_t whole);
// InvalidArgument where the product passes 2^60; `what` names it. A symbolic batch counts as 1.
absl::Status check_product(const char* what, const std::vector<int64_t>& factors);

}  // namespace partita
