#include "tools/flow/weight_files.h"

#include <algorithm>
#include <variant>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/data/convert.h"

namespace partita {
namespace {

// NaN anywhere, or infinity in what is trained, would make every later number NaN.
absl::Status check_values(const InitialTensor& w, const TensorType& type, std::span<const std::byte> bytes) {
  int64_t bad = runtime::find_unusable(type.dtype, bytes, w.trained);
  if (bad < 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      cat("initializer ", quote(w.name, 200), ": element ", bad, " of ", to_string(type), " is ",
          runtime::element_text(type.dtype, bytes.data() + bad * dtype_size(type.dtype)),
          ": expected finite numbers; export a model whose weights are sound, or give `init` rules in train.yaml"));
}

// `bytes` of the model, in the type that the program holds: a frozen weight in 16 bits is f32 in the model
// (passes/forward/narrow_frozen.h), and rounded here, some rows at a time.
absl::Status convert_values(const InitialTensor& w, std::span<const std::byte> bytes, WeightFiles::Take take) {
  constexpr int64_t kBlock = int64_t{1} << 22;  // elements
  const DType to = w.type.dtype, from = static_cast<int64_t>(bytes.size()) == byte_size(w.type) ? to : DType::kF32;
  PARTITA_RETURN_IF_ERROR(check_values(w, {from, w.type.shape}, bytes));
  std::vector<int64_t> offset(w.type.shape.size(), 0), extent = w.type.shape;
  if (from == to) return take(offset, extent, bytes);
  PARTITA_ASSIGN_OR_RETURN(const runtime::ConvertFunction convert, runtime::find_conversion(from, to));
  const int64_t rows = extent.empty() ? 1 : extent[0], row = elements(w.type.shape) / std::max<int64_t>(rows, 1);
  const int64_t most = std::max<int64_t>(1, kBlock / std::max<int64_t>(row, 1));
  std::vector<std::byte> block;
  for (int64_t at = 0; at < rows; at += most) {
    const int64_t count = std::min(most, rows - at);
    if (!extent.empty()) offset[0] = at, extent[0] = count;
    block.resize(static_cast<size_t>(count * row * dtype_size(to)));
    convert(bytes.data() + at * row * dtype_size(from), block.data(), count * row);  // between floats: all fit
    PARTITA_RETURN_IF_ERROR(take(offset, extent, block));
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<InitialTensor> weights_of(const Graph& graph) {
  std::vector<InitialTensor> weights;
  for (const State& s : graph.states) {
    if (std::holds_alternative<Literal>(s.initial) || std::holds_alternative<FileRange>(s.initial))
      weights.push_back({s.name, graph.type(s.value), s.initial, s.kind == StateKind::kParameter});
  }
  return weights;
}

absl::Status WeightFiles::open(const std::vector<InitialTensor>& weights) {
  for (const InitialTensor& w : weights) {
    const FileRange* range = std::get_if<FileRange>(&w.value);
    if (range == nullptr || files_.count(range->path)) continue;
    auto file = MappedFile::open(range->path);
    if (!file.ok()) {
      return with_context(
          file.status(),
          cat("weights of ", quote(w.name), " (give them, or `init` rules in train.yaml to start from random values)"));
    }
    files_.emplace(range->path, *std::move(file));
  }
  return absl::OkStatus();
}

std::vector<std::string> WeightFiles::paths() const {
  std::vector<std::string> all;
  for (const auto& [path, file] : files_) all.push_back(path);
  return all;
}

absl::Status WeightFiles::for_each_block(const InitialTensor& w, Take take) const {
  if (const Literal* literal = std::get_if<Literal>(&w.value)) return convert_values(w, literal->bytes(), take);
  const FileRange& range = std::get<FileRange>(w.value);
  const MappedFile& file = files_.at(range.path);
  if (range.offset < 0 || range.bytes < 0 || range.offset > file.size() || range.bytes > file.size() - range.offset) {
    return absl::InvalidArgumentError(cat("weights of ", quote(w.name), ": expected bytes [", range.offset, ", ",
                                          range.offset + range.bytes, ") in ", quote(range.path), ", found a file of ",
                                          file.size()));
  }
  return convert_values(w, file.bytes().subspan(static_cast<size_t>(range.offset), static_cast<size_t>(range.bytes)),
                        take);
}

}  // namespace partita
