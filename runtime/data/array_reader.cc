// npz and npy: one array per graph input, samples along the first axis.
#include <algorithm>
#include <optional>

#include "base/box.h"
#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/data/sample_reader.h"
#include "runtime/files/npz.h"

namespace partita::runtime {
namespace {

struct Column {
  std::string who;  // "array 'x' of 'data.npz'"
  NpyArray array;
  ConvertFunction convert = nullptr;
  int64_t elements = 0;  // of a sample
  DType to = DType::kInvalid;
};

class ArrayReader : public SampleReader {
 public:
  explicit ArrayReader(std::string description) : description_(std::move(description)) {}

  int64_t samples() const override { return samples_.value_or(kUnlimited); }
  std::string describe() const override { return description_; }

  absl::Status add(const InputSpec& spec, std::string who, NpyArray array) {
    std::vector<int64_t> shape = array.shape;
    if (spec.batched && !shape.empty()) shape.erase(shape.begin());
    if ((spec.batched && array.shape.empty()) || shape != spec.sample_shape) {
      std::string expected = shape_text(spec.sample_shape);
      if (spec.batched) expected = cat("[samples", spec.sample_shape.empty() ? "" : ", ", expected.substr(1));
      return absl::InvalidArgumentError(cat(who, " has shape ", shape_text(array.shape), ", but graph input ",
                                            quote(spec.name), " needs ", expected));
    }
    absl::StatusOr<ConvertFunction> convert = find_conversion(array.dtype, spec.dtype);
    if (!convert.ok()) {
      return absl::InvalidArgumentError(
          cat(who, " for graph input ", quote(spec.name), " ", convert.status().message()));
    }
    if (spec.batched) {
      if (samples_ && *samples_ != array.shape[0]) {
        return absl::InvalidArgumentError(
            cat(who, " has ", array.shape[0], " samples, but ", first_who_, " has ", *samples_));
      }
      if (!samples_) first_who_ = who;
      samples_ = array.shape[0];
    }
    columns_.push_back({std::move(who), std::move(array), *convert, sample_elements(spec), spec.dtype});
    return absl::OkStatus();
  }

  absl::Status read(const SampleRun& run, int input, std::span<std::byte> out) const override {
    const int64_t first = run.first, count = run.count;
    const Column& c = columns_[static_cast<size_t>(input)];
    const int64_t size = dtype_size(c.array.dtype);
    const std::byte* from = c.array.bytes.data() + first * c.elements * size;
    const int64_t bad = c.convert(from, out.data(), count * c.elements);
    if (bad < 0) return absl::OkStatus();
    return absl::InvalidArgumentError(cat(c.who, ": sample ", first + bad / c.elements, " holds ",
                                          element_text(c.array.dtype, from + bad * size), ", which ", dtype_name(c.to),
                                          " cannot hold"));
  }

 private:
  std::string description_, first_who_;
  std::vector<Column> columns_;
  std::optional<int64_t> samples_;
};

std::string column_of(const DataConfig& config, const std::string& input, const std::string& otherwise) {
  auto it = config.columns.find(input);
  return it == config.columns.end() ? otherwise : it->second;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SampleReader>> open_npz_reader(const DataConfig& config,
                                                              const std::vector<InputSpec>& inputs) {
  PARTITA_ASSIGN_OR_RETURN(const NpzFile file, NpzFile::open(config.path));
  auto reader = std::make_unique<ArrayReader>(cat("npz file ", quote(config.path, 1000)));
  for (const InputSpec& spec : inputs) {
    const std::string name = column_of(config, spec.name, spec.name);
    absl::StatusOr<NpyArray> array = file.read(name);
    if (absl::IsNotFound(array.status())) {
      return absl::NotFoundError(cat("data for graph input ", quote(spec.name), ": ", array.status().message(),
                                     ". Name the array under data: columns: {",
                                     spec.name.size() < 80 && is_utf8(spec.name) ? spec.name : "input", ": array}"));
    }
    if (!array.ok()) return array.status();
    PARTITA_RETURN_IF_ERROR(
        reader->add(spec, cat("array ", quote(name), " of ", quote(config.path, 1000)), *std::move(array)));
  }
  return reader;
}

absl::StatusOr<std::unique_ptr<SampleReader>> open_npy_reader(const DataConfig& config,
                                                              const std::vector<InputSpec>& inputs) {
  const bool single = config.path.ends_with(".npy");
  const size_t slash = config.path.rfind('/');
  const std::string folder = !single                      ? cat(config.path, config.path.ends_with("/") ? "" : "/")
                             : slash == std::string::npos ? ""
                                                          : config.path.substr(0, slash + 1);
  auto reader = std::make_unique<ArrayReader>(cat("npy data ", quote(config.path, 1000)));
  for (const InputSpec& spec : inputs) {
    const bool named = config.columns.count(spec.name) != 0;
    if (single && !named && inputs.size() != 1) {
      return absl::InvalidArgumentError(cat("data file ", quote(config.path, 1000), " is one array, but the graph has ",
                                            inputs.size(),
                                            " inputs; give a folder of .npy files, or columns: {input: file}"));
    }
    std::string path = column_of(config, spec.name, cat(spec.name, ".npy"));
    path = single && !named ? config.path : path.starts_with("/") ? path : folder + path;
    absl::StatusOr<NpyArray> array = open_npy(path);
    PARTITA_RETURN_IF_ERROR(with_context(array.status(), cat("data for graph input ", quote(spec.name))));
    PARTITA_RETURN_IF_ERROR(reader->add(spec, cat("array file ", quote(path, 1000)), *std::move(array)));
  }
  return reader;
}

}  // namespace partita::runtime
