// npz and npy: one array per graph input, samples along the first axis. Of a run with several lengths, arrays are as
// long as the largest, and one more says how much of each sample is its own.
#include <algorithm>
#include <optional>
#include <set>

#include "base/box.h"
#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/data/fingerprint.h"
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
  bool batched = true;
  std::vector<int64_t> shape, taken;  // of a sample in the array, and of what the input takes of it from the start
};

class ArrayReader : public SampleReader {
 public:
  ArrayReader(std::string description, const LengthOfSamples& length)
      : description_(std::move(description)), length_(length) {}

  int64_t samples() const override { return has_lengths() ? std::ssize(chosen_) : samples_.value_or(kUnlimited); }
  std::string describe() const override { return description_; }
  std::string locate(int64_t sample, uint64_t /*epoch*/) const override {
    return cat(description_, ": sample ", number_of(sample));
  }
  std::string fingerprint() const override {
    std::string all;
    std::set<std::string> seen;  // of an array that several inputs take, once: how many do is up to the plan
    for (const Column& c : columns_) {
      if (seen.insert(c.who).second) append(all, fingerprint_of(c.array.bytes), "; ");
    }
    return all;
  }
  bool has_lengths() const override { return length_.own > 0; }
  int64_t length_of(int64_t sample, uint64_t /*epoch*/) const override {
    return has_lengths() ? lengths_[static_cast<size_t>(number_of(sample))] : -1;
  }

  // Which samples are of this length.
  absl::Status choose(const std::string& who, const NpyArray& lengths) {
    if (lengths.shape.size() != 1 || !is_integer(lengths.dtype) || lengths.shape[0] != samples_.value_or(-1))
      return absl::InvalidArgumentError(cat(who, " holds ", dtype_name(lengths.dtype), " ", shape_text(lengths.shape),
                                            ", expected the lengths of ", samples_.value_or(0), " samples"));
    lengths_.resize(static_cast<size_t>(lengths.shape[0]));
    PARTITA_ASSIGN_OR_RETURN(const ConvertFunction convert, find_conversion(lengths.dtype, DType::kI64));
    convert(lengths.bytes.data(), reinterpret_cast<std::byte*>(lengths_.data()), lengths.shape[0]);
    for (size_t k = 0; k < lengths_.size(); ++k) {
      if (lengths_[k] < 1 || lengths_[k] > length_.largest)
        return absl::InvalidArgumentError(cat(who, ": sample ", k, " has length ", lengths_[k],
                                              ", expected 1 to the largest of bind, ", length_.largest));
      if (lengths_[k] > length_.shorter && lengths_[k] <= length_.own) chosen_.push_back(static_cast<int64_t>(k));
    }
    return absl::OkStatus();
  }

  absl::Status add(const InputSpec& spec, std::string who, NpyArray array) {
    std::vector<int64_t> shape = array.shape;
    if (spec.batched && !shape.empty()) shape.erase(shape.begin());
    if ((spec.batched && array.shape.empty()) || !fits(shape, spec.sample_shape)) {
      std::vector<int64_t> needed = spec.sample_shape;
      if (length_.own > 0) std::replace(needed.begin(), needed.end(), length_.own, length_.largest);
      std::string expected = shape_text(needed);
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
    columns_.push_back({std::move(who), std::move(array), *convert, sample_elements(spec), spec.dtype, spec.batched,
                        std::move(shape), spec.sample_shape});
    return absl::OkStatus();
  }

  absl::Status read(const SampleRun& run, int input, std::span<std::byte> out) const override {
    const int64_t first = run.first, count = run.count;
    const Column& c = columns_[static_cast<size_t>(input)];
    if (has_lengths()) return read_chosen(c, run, out);
    const int64_t size = dtype_size(c.array.dtype);
    const std::byte* from = c.array.bytes.data() + first * c.elements * size;
    const int64_t bad = c.convert(from, out.data(), count * c.elements);
    if (bad < 0) return absl::OkStatus();
    return does_not_fit(c, first + bad / c.elements, from + bad * size);
  }

 private:
  int64_t number_of(int64_t sample) const { return has_lengths() ? chosen_[static_cast<size_t>(sample)] : sample; }

  // Whether an array's sample is an input's, or longer where the input has this length.
  bool fits(const std::vector<int64_t>& shape, const std::vector<int64_t>& input) const {
    return std::equal(shape.begin(), shape.end(), input.begin(), input.end(), [this](int64_t has, int64_t needs) {
      return has == needs || (length_.own > 0 && needs == length_.own && has == length_.largest);
    });
  }

  absl::Status read_chosen(const Column& c, const SampleRun& run, std::span<std::byte> out) const {
    const int64_t size = dtype_size(c.array.dtype), to_size = dtype_size(c.to), all = *element_count(c.shape);
    const std::vector<int64_t> origin(c.shape.size(), 0);
    for (int64_t k = 0; k < run.count; ++k) {
      const int64_t sample = c.batched ? number_of(run.first + k) : 0;
      const std::byte* from = c.array.bytes.data() + sample * all * size;
      std::byte* to = out.data() + k * c.elements * to_size;
      PARTITA_RETURN_IF_ERROR(
          for_each_run(c.shape, origin, c.taken, [&](int64_t begin, int64_t at, int64_t count) -> absl::Status {
            const int64_t bad = c.convert(from + begin * size, to + at * to_size, count);
            return bad < 0 ? absl::OkStatus() : does_not_fit(c, sample, from + (begin + bad) * size);
          }));
    }
    return absl::OkStatus();
  }

  static absl::Status does_not_fit(const Column& c, int64_t sample, const std::byte* element) {
    return absl::InvalidArgumentError(cat(c.who, ": sample ", sample, " holds ", element_text(c.array.dtype, element),
                                          ", which ", dtype_name(c.to), " cannot hold"));
  }

  std::string description_, first_who_;
  const LengthOfSamples length_;
  std::vector<int64_t> lengths_, chosen_;  // of all samples; those of this length
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
  auto reader = std::make_unique<ArrayReader>(cat("npz file ", quote(config.path, 1000)), config.length);
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
  if (config.length.own == 0) return reader;
  auto lengths = file.read(config.lengths);
  if (!lengths.ok()) return with_context(lengths.status(), "data: lengths");
  PARTITA_RETURN_IF_ERROR(
      reader->choose(cat("array ", quote(config.lengths), " of ", quote(config.path, 1000)), *lengths));
  return reader;
}

absl::StatusOr<std::unique_ptr<SampleReader>> open_npy_reader(const DataConfig& config,
                                                              const std::vector<InputSpec>& inputs) {
  const bool single = config.path.ends_with(".npy");
  const size_t slash = config.path.rfind('/');
  const std::string folder = !single                      ? cat(config.path, config.path.ends_with("/") ? "" : "/")
                             : slash == std::string::npos ? ""
                                                          : config.path.substr(0, slash + 1);
  auto reader = std::make_unique<ArrayReader>(cat("npy data ", quote(config.path, 1000)), config.length);
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
  if (config.length.own == 0) return reader;
  const std::string path = folder + config.lengths + (config.lengths.ends_with(".npy") ? "" : ".npy");
  auto lengths = open_npy(path);
  if (!lengths.ok()) return with_context(lengths.status(), "data: lengths");
  PARTITA_RETURN_IF_ERROR(reader->choose(cat("array file ", quote(path, 1000)), *lengths));
  return reader;
}

}  // namespace partita::runtime
