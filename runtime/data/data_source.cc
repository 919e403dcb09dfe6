#include "runtime/data/data_source.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/box.h"
#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"

namespace partita::runtime {
namespace {

// Of a feed, from which batches are taken whole.
class FedReader : public SampleReader {
 public:
  int64_t samples() const override { return kUnlimited; }
  std::string describe() const override { return "the batch"; }
  absl::Status read(const SampleRun&, int, std::span<std::byte>) const override {
    return absl::InternalError("samples of a feed are not read one by one");
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<SampleReader>> open_reader(const DataConfig& config,
                                                          const std::vector<InputSpec>& inputs) {
  if (config.feed != nullptr) return std::unique_ptr<SampleReader>(std::make_unique<FedReader>());
  if (!config.sources.empty()) return open_mix_reader(config, inputs);
  switch (config.kind) {
    case DataKind::kNpz:
      return open_npz_reader(config, inputs);
    case DataKind::kNpy:
      return open_npy_reader(config, inputs);
    case DataKind::kTokens:
      return is_sharded(config.path) ? open_sharded_reader(config, inputs) : open_token_reader(config, inputs);
    case DataKind::kRaw:
      return open_raw_reader(config, inputs);
    case DataKind::kSynthetic:
      return open_synthetic_reader(config, inputs);
    case DataKind::kImages:
    case DataKind::kWebDataset:
      return open_record_reader(config, inputs);
  }
  return absl::InvalidArgumentError("data: unknown kind");
}

namespace {

// That samples of several lengths can be made of the data.
absl::Status check_length(const DataConfig& config, const SampleReader& reader) {
  const LengthOfSamples& length = config.length;
  if (length.own == 0 || reader.has_lengths() || length.largest % length.own == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      cat(reader.describe(), ": its samples have no lengths of their own, so that those of length ", length.own,
          " are cut from windows of ", length.largest, ", the largest length; expected a length that divides ",
          length.largest, ", or documents: pad under data"));
}

absl::Status check_kind(const DataConfig& config) {
  if (config.length.own == 0 || config.kind == DataKind::kTokens || config.kind == DataKind::kSynthetic ||
      !config.sources.empty())
    return absl::OkStatus();
  const bool arrays = config.kind == DataKind::kNpz || config.kind == DataKind::kNpy;
  if (arrays && !config.lengths.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(cat("data: kind: ", enum_name(config.kind),
                                        " has samples of one length, and the model takes several (bind); ",
                                        arrays ? "say which array has each sample's length: lengths: NAME under data"
                                               : "expected tokens, npz, npy or synthetic, or one length"));
}

absl::Status check_config(const DataConfig& config, const std::vector<InputSpec>& inputs, int64_t global_batch) {
  if (global_batch < 1)
    return absl::InvalidArgumentError(cat("data: global batch ", global_batch, ", expected at least 1"));
  if (config.epochs < 0 || config.skip < 0 || config.limit < 0 || config.sequence < 0 || config.samples < 0 ||
      config.record_bytes < 0) {
    return absl::InvalidArgumentError(
        "data: epochs, skip, limit, sequence, samples and record_bytes cannot be negative");
  }
  std::set<std::string> names;
  for (const InputSpec& spec : inputs) {
    const std::optional<int64_t> count = element_count(spec.sample_shape);
    int64_t bytes = 0;
    if (spec.dtype == DType::kInvalid || !count || *count == 0 ||
        __builtin_mul_overflow(*count, dtype_size(spec.dtype), &bytes) ||
        __builtin_mul_overflow(bytes, global_batch, &bytes)) {
      return absl::InvalidArgumentError(cat("graph input ", quote(spec.name), " of ", dtype_name(spec.dtype), " ",
                                            shape_text(spec.sample_shape), " cannot be fed"));
    }
    names.insert(spec.name);
  }
  for (const auto& [input, column] : config.columns) {
    if (names.count(input) != 0) continue;
    const std::vector<std::string> known(names.begin(), names.end());
    const std::string near = nearest_name(input, known);
    return absl::InvalidArgumentError(cat("data: columns: the graph has no input ", quote(input),
                                          near.empty() ? "" : cat("; did you mean ", quote(near), "?"),
                                          " Its inputs: ", quote_list(known)));
  }
  return absl::OkStatus();
}

// The first element that the input's bounds do not allow, or -1.
int64_t find_beyond(const InputSpec& spec, std::span<const std::byte> bytes) {
  const auto first = [&]<typename T>(T) -> int64_t {
    for (size_t at = 0; spec.bounds.known() && at < bytes.size(); at += sizeof(T)) {
      T value;
      std::memcpy(&value, bytes.data() + at, sizeof value);
      if (!spec.bounds.allows(static_cast<int64_t>(value))) return static_cast<int64_t>(at / sizeof(T));
    }
    return -1;
  };
  switch (spec.dtype) {
    case DType::kI64:
      return first(int64_t{});
    case DType::kI32:
      return first(int32_t{});
    default:
      return -1;
  }
}

absl::StatusOr<std::vector<std::byte>> padding_sample(const InputSpec& spec, const DataConfig& config) {
  auto it = config.padding.find(spec.name);
  const int64_t value = it == config.padding.end() ? 0 : it->second;
  PARTITA_ASSIGN_OR_RETURN(ConvertFunction convert, find_conversion(DType::kI64, spec.dtype));
  std::vector<std::byte> out(static_cast<size_t>(sample_bytes(spec)));
  const int64_t size = dtype_size(spec.dtype);
  for (int64_t e = 0; e < sample_elements(spec); ++e) {
    if (convert(reinterpret_cast<const std::byte*>(&value), out.data() + e * size, 1) >= 0) {
      return absl::InvalidArgumentError(
          cat("data: padding ", value, " of graph input ", quote(spec.name), " does not fit ", dtype_name(spec.dtype)));
    }
  }
  return out;
}

}  // namespace

absl::StatusOr<DataKind> parse_data_kind(std::string_view name) {
  if (const std::optional<DataKind> kind = parse_enum<DataKind>(name)) return *kind;
  return absl::InvalidArgumentError(
      cat("data: unknown kind ", quote(name), "; expected npz, npy, tokens, raw, synthetic, images or webdataset"));
}

DataKind guess_data_kind(std::string_view path) {
  std::error_code ignored;
  if (path.ends_with(".tar")) return DataKind::kWebDataset;
  if (const std::optional<DataKind> kind = kind_of_shards(std::string(path))) return *kind;
  if (!path.ends_with(".npy") && !std::filesystem::is_directory(path, ignored))
    return path.ends_with(".npz") ? DataKind::kNpz : DataKind::kTokens;
  // A folder with arrays is npy, whatever else it holds.
  DataKind kind = DataKind::kNpy;
  for (std::filesystem::directory_iterator it(path, ignored), end; !ignored && it != end; it.increment(ignored)) {
    const std::string suffix = it->path().extension().string();
    if (suffix == ".npy") return DataKind::kNpy;
    if (suffix == ".tar") kind = DataKind::kWebDataset;
    if (kind == DataKind::kNpy && it->is_directory()) kind = DataKind::kImages;
  }
  return kind;
}

absl::StatusOr<std::unique_ptr<DataSource>> DataSource::open(const DataConfig& config, std::vector<InputSpec> inputs,
                                                             int64_t global_batch) {
  PARTITA_RETURN_IF_ERROR(check_config(config, inputs, global_batch));
  PARTITA_RETURN_IF_ERROR(check_kind(config));
  std::unique_ptr<DataSource> source(new DataSource());
  PARTITA_ASSIGN_OR_RETURN(source->reader_, open_reader(config, inputs));
  PARTITA_RETURN_IF_ERROR(check_length(config, *source->reader_));
  if (config.pad_tail) {
    for (const InputSpec& spec : inputs) {
      PARTITA_ASSIGN_OR_RETURN(std::vector<std::byte> sample, padding_sample(spec, config));
      source->padding_.push_back(std::move(sample));
    }
  }
  const int64_t found = source->reader_->samples();
  source->samples_ =
      found == kUnlimited ? (config.limit > 0 ? config.limit : kUnlimited) : std::max<int64_t>(0, found - config.skip);
  if (config.limit > 0) source->samples_ = std::min(source->samples_, config.limit);
  // Of several lengths, one may be that of no sample.
  const bool of_many = config.length.own > 0 && source->reader_->has_lengths();
  if (source->samples_ == 0 && !of_many) {
    return absl::InvalidArgumentError(cat(source->reader_->describe(), " holds ", found, " samples",
                                          config.skip > 0 ? cat(", all of them skipped (skip: ", config.skip, ")") : "",
                                          "; at least 1 is needed"));
  }
  const int64_t together = config.length.own > 0 && !of_many ? config.length.largest / config.length.own : 1;
  source->order_ =
      SampleOrder(source->samples_, config.shuffle, source->reader_->shuffle_window(), config.seed, together);
  source->fingerprint_ = source->reader_->fingerprint();
  source->config_ = config;
  source->inputs_ = std::move(inputs);
  source->global_batch_ = global_batch;
  return source;
}

int DataSource::input_index(std::string_view name) const {
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (inputs_[i].name == name) return static_cast<int>(i);
  }
  return -1;
}

int64_t DataSource::stream_end() const {
  int64_t end = 0;
  if (samples_ == kUnlimited || config_.epochs == 0 || __builtin_mul_overflow(samples_, config_.epochs, &end))
    return kUnlimited;
  return end;
}

int64_t DataSource::first_of(int64_t step) const {
  const LengthOfSamples& length = config_.length;
  const bool turns = length.own > 0 && !has_lengths();
  int64_t first = step;
  if (turns &&
      (__builtin_mul_overflow(step, length.turns, &first) || __builtin_add_overflow(first, length.turn, &first)))
    return kUnlimited;
  if (__builtin_mul_overflow(first, global_batch_, &first) ||
      __builtin_add_overflow(first, config_.sample_offset, &first))
    return kUnlimited;
  return first;
}

int64_t DataSource::valid_samples(int64_t step) const {
  if (stream_end() == kUnlimited) return global_batch_;
  return std::clamp<int64_t>(stream_end() - first_of(step), 0, global_batch_);
}

std::optional<double> DataSource::padding(int64_t step) const {
  const int64_t tokens = config_.length.own > 0 ? config_.length.own : tokens_per_sample();
  if (!has_lengths() || tokens == 0) return std::nullopt;
  int64_t filled = 0;
  const int64_t valid = valid_samples(step);
  for (int64_t k = 0; k < valid; ++k) {
    const SampleOrder::Run at = order_.find(first_of(step) + k, 1);
    const int64_t own = reader_->length_of(config_.skip + at.sample, at.epoch);
    filled += own < 0 ? tokens : own;
  }
  return 1 - static_cast<double>(filled) / static_cast<double>(std::max<int64_t>(valid, 1) * tokens);
}

int64_t DataSource::tokens_per_sample() const {
  int64_t most = 0;
  for (const InputSpec& input : inputs_) {
    if (config_.kind == DataKind::kTokens && input.batched && !input.sample_shape.empty())
      most = std::max(most, input.sample_shape[0]);
  }
  return most;
}

absl::Status DataSource::check_steps(int64_t first, int64_t count) const {
  int64_t end = 0;
  if (first < 0 || count < 0 || __builtin_add_overflow(first, count, &end) || first_of(first) < 0 ||
      first_of(end) == kUnlimited) {
    return absl::InvalidArgumentError(cat("data: steps [", first, ", +", count, ") are out of range"));
  }
  end = count == 0 ? first_of(first) : first_of(end - 1) + global_batch_;
  if (count == 0 || end <= stream_end()) return absl::OkStatus();
  if (config_.pad_tail && valid_samples(first + count - 1) > 0) return absl::OkStatus();
  const int64_t most = std::max<int64_t>(0, (stream_end() - config_.sample_offset) / global_batch_);
  return absl::InvalidArgumentError(
      cat("too few samples: steps ", first, " to ", first + count - 1, " of ", global_batch_, " samples each need ",
          end, " samples, but ", reader_->describe(), " holds ", samples_,
          config_.epochs > 1 ? cat(" (", stream_end(), " in ", config_.epochs, " epochs)") : "",
          most == 0 ? cat("; give at least ", global_batch_, ", or make batch.global smaller")
                    : cat("; run at most ", most, " steps, or let the samples come again in a new order each epoch ",
                          "(--shuffle, or shuffle: true under data)")));
}

absl::Status DataSource::fetch(int64_t step, int64_t first, int64_t count, int input, std::span<std::byte> out) const {
  if (input < 0 || input >= static_cast<int>(inputs_.size()))
    return absl::InvalidArgumentError(cat("data: no input ", input));
  const InputSpec& spec = inputs_[static_cast<size_t>(input)];
  const int64_t bytes = sample_bytes(spec);
  if (!spec.batched) first = 0, count = 1;
  if (step < 0 || first < 0 || count < 0 || first > global_batch_ || count > global_batch_ - first ||
      static_cast<int64_t>(out.size()) != count * bytes) {
    return absl::InvalidArgumentError(cat("data: samples [", first, ", +", count, ") of step ", step,
                                          " of graph input ", quote(spec.name), " do not fit a batch of ",
                                          global_batch_, " and a buffer of ", out.size(), " bytes"));
  }
  if (!spec.batched) return reader_->read({0, 1}, input, out);
  PARTITA_RETURN_IF_ERROR(check_steps(step, 1));
  const int64_t valid = std::clamp<int64_t>(valid_samples(step) - first, 0, count);
  PARTITA_RETURN_IF_ERROR(
      read_stream(first_of(step) + first, valid, input, out.first(static_cast<size_t>(valid * bytes))));
  for (int64_t i = valid; i < count; ++i) {
    const std::vector<std::byte>& sample = padding_[static_cast<size_t>(input)];
    std::copy(sample.begin(), sample.end(), out.begin() + static_cast<ptrdiff_t>(i * bytes));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> DataSource::locate(int64_t step) const {
  PARTITA_RETURN_IF_ERROR(check_steps(step, 1));
  std::vector<std::string> places;
  for (int64_t k = 0; k < valid_samples(step); ++k) {
    const auto [epoch, sample, run] = order_.find(first_of(step) + k, 1);
    places.push_back(
        cat(samples_ == kUnlimited ? "" : cat("epoch ", epoch, ", "), reader_->locate(config_.skip + sample, epoch)));
  }
  return places;
}

// Samples that follow one another in the file are read in one go.
absl::Status DataSource::read_stream(int64_t position, int64_t count, int input, std::span<std::byte> out) const {
  const int64_t bytes = sample_bytes(inputs_[static_cast<size_t>(input)]);
  for (int64_t done = 0; done < count;) {
    const auto [epoch, sample, run] = order_.find(position + done, count - done);
    const auto part = out.subspan(static_cast<size_t>(done * bytes), static_cast<size_t>(run * bytes));
    PARTITA_RETURN_IF_ERROR(reader_->read({config_.skip + sample, run, epoch}, input, part));
    PARTITA_RETURN_IF_ERROR(check_values(config_.skip + sample, input, part));
    done += run;
  }
  return absl::OkStatus();
}

absl::Status DataSource::check_values(int64_t first, int input, std::span<const std::byte> samples) const {
  const InputSpec& spec = inputs_[static_cast<size_t>(input)];
  if (int64_t bad = find_unusable(spec.dtype, samples, false); bad >= 0) {
    return absl::InvalidArgumentError(cat(reader_->describe(), ": sample ", first + bad / sample_elements(spec),
                                          " for graph input ", quote(spec.name),
                                          " holds nan: expected numbers; repair the data"));
  }
  if (int64_t bad = find_beyond(spec, samples); bad >= 0) {
    return absl::InvalidArgumentError(cat(reader_->describe(), ": sample ", first + bad / sample_elements(spec),
                                          " for graph input ", quote(spec.name), " holds ",
                                          element_text(spec.dtype, samples.data() + bad * dtype_size(spec.dtype)),
                                          ": expected numbers from ", spec.bounds.low, " to ", spec.bounds.high - 1,
                                          spec.bounds.inside(spec.bounds.mark) ? "" : cat(" or ", spec.bounds.mark),
                                          ", as many as the model has rows or classes for them"));
  }
  return absl::OkStatus();
}

}  // namespace partita::runtime
