// Tokens: one long sequence of ids, cut into windows of s that do not overlap.
//   tokens 5 6 7 8 9, s = 2, shifted:  sample 0: input_ids 5 6, labels 6 7;  sample 1: input_ids 7 8, labels 8 9
#include <algorithm>
#include <cstring>
#include <memory>

#include "base/box.h"
#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/data/fingerprint.h"
#include "runtime/data/sample_reader.h"
#include "runtime/data/token_stream.h"
#include "runtime/data/token_windows.h"

namespace partita::runtime {
namespace {

struct Column {
  ColumnRole role = ColumnRole::kUnknown;
  int64_t shift = 0;  // tokens that the window is moved ahead
  ConvertFunction convert = nullptr;
  std::vector<std::byte> constant;
  DType to = DType::kInvalid;
};

class TokenReader : public SampleReader {
 public:
  TokenReader(TokenStream stream, TokenWindows windows)
      : tokens_(std::move(stream.tokens)),
        windows_(std::move(windows)),
        sequence_(windows_.sequence),
        description_(std::move(stream.description)),
        told_(std::move(stream.told)) {}

  int64_t samples() const override { return windows_.count(tokens_.shape[0]); }
  std::string describe() const override { return description_; }
  std::string locate(int64_t sample, uint64_t /*epoch*/) const override {
    return cat(description_, ": sample ", sample, ", tokens ", sample * sequence_, " to ",
               (sample + 1) * sequence_ - 1);
  }
  std::string fingerprint() const override { return fingerprint_of(tokens_.bytes); }
  std::vector<std::string> told() const override { return {told_}; }

  absl::Status add(const InputSpec& spec, ColumnRole role, bool shift) {
    Column column{.role = role, .to = spec.dtype};
    append(told_, "; ", describe_column(spec, role, shift));
    if (role == ColumnRole::kInputIds || role == ColumnRole::kLabels) {
      if (sample_elements(spec) != sequence_ || !spec.batched) {
        return absl::InvalidArgumentError(cat("graph input ", quote(spec.name), " has sample shape ",
                                              shape_text(spec.sample_shape), ", but windows have ", sequence_,
                                              " tokens"));
      }
      absl::StatusOr<ConvertFunction> convert = find_conversion(tokens_.dtype, spec.dtype);
      if (!convert.ok())
        return absl::InvalidArgumentError(
            cat(description_, " for graph input ", quote(spec.name), " ", convert.status().message()));
      column.convert = *convert;
      column.shift = role == ColumnRole::kLabels && shift ? 1 : 0;
    } else {
      PARTITA_ASSIGN_OR_RETURN(column.constant, constant_sample(spec, role));
    }
    columns_.push_back(std::move(column));
    return absl::OkStatus();
  }

  absl::Status read(const SampleRun& run, int input, std::span<std::byte> out) const override {
    const int64_t first = run.first, count = run.count;
    const Column& c = columns_[static_cast<size_t>(input)];
    if (c.convert == nullptr) {
      for (size_t at = 0; at < out.size(); at += c.constant.size())
        std::copy(c.constant.begin(), c.constant.end(), out.begin() + static_cast<ptrdiff_t>(at));
      return absl::OkStatus();
    }
    // Windows follow one another, so a run of samples is one stretch of tokens.
    const int64_t start = first * sequence_ + c.shift, size = dtype_size(tokens_.dtype);
    const std::byte* from = tokens_.bytes.data() + start * size;
    const int64_t bad = c.convert(from, out.data(), count * sequence_);
    if (bad >= 0) return bad_token(start + bad, cat(", which ", dtype_name(c.to), " cannot hold"));
    return check_vocabulary(start, count * sequence_);
  }

 private:
  absl::Status check_vocabulary(int64_t start, int64_t count) const {
    const int64_t vocabulary = windows_.vocabulary;
    if (vocabulary <= 0) return absl::OkStatus();
    const int64_t size = dtype_size(tokens_.dtype);
    const bool is_signed = !is_unsigned(tokens_.dtype);
    for (int64_t i = 0; i < count; ++i) {
      uint64_t value = 0;
      std::memcpy(&value, tokens_.bytes.data() + (start + i) * size, static_cast<size_t>(size));
      const bool negative = is_signed && (value >> (8 * size - 1)) != 0;
      if (negative || value >= static_cast<uint64_t>(vocabulary)) {
        return bad_token(start + i, cat("; the vocabulary has ", vocabulary, " ids. Is the dtype (",
                                        dtype_name(tokens_.dtype), ") right?"));
      }
    }
    return absl::OkStatus();
  }
  absl::Status bad_token(int64_t at, std::string_view why) const {
    return absl::InvalidArgumentError(
        cat(description_, ": token ", at, " is ",
            element_text(tokens_.dtype, tokens_.bytes.data() + at * dtype_size(tokens_.dtype)), why));
  }

  NpyArray tokens_;
  const TokenWindows windows_;
  const int64_t sequence_;
  std::string description_, told_;
  std::vector<Column> columns_;
};

}  // namespace

absl::StatusOr<TokenWindows> token_windows(const DataConfig& config, const std::vector<InputSpec>& inputs) {
  TokenWindows windows{.sequence = config.sequence, .vocabulary = config.vocabulary};
  for (const InputSpec& spec : inputs) {
    PARTITA_ASSIGN_OR_RETURN(const ColumnRole role, column_role(config, spec.name));
    const bool known = role != ColumnRole::kUnknown && role != ColumnRole::kRandom &&
                       (role != ColumnRole::kDocuments || config.documents != DocumentMode::kJoin);
    if (role == ColumnRole::kDocuments && !known)
      return absl::InvalidArgumentError(cat("graph input ", quote(spec.name),
                                            ": windows that join documents have no numbers of theirs; say documents: "
                                            "separate, pack or pad under data"));
    if (!known) {
      return absl::InvalidArgumentError(cat(
          "graph input ", quote(spec.name), ": what it takes from the token file ", quote(config.path, 1000),
          " is not clear; say so under data: columns: {input: input_ids|labels|position_ids|documents|ones|zeros}"));
    }
    if (role == ColumnRole::kInputIds && windows.sequence == 0) windows.sequence = sample_elements(spec);
    windows.shifted = windows.shifted || (role == ColumnRole::kLabels && shifts_labels(config, spec.name));
    const bool ids = role == ColumnRole::kInputIds || role == ColumnRole::kLabels;
    if (config.vocabulary == 0 && ids && spec.bounds.known())
      windows.vocabulary = windows.vocabulary == 0 ? spec.bounds.high : std::min(windows.vocabulary, spec.bounds.high);
    windows.roles.push_back(role);
  }
  if (windows.sequence <= 0)
    return absl::InvalidArgumentError(
        cat("token file ", quote(config.path, 1000),
            ": no graph input takes the tokens, so the sequence length is not known; say in `columns` which one does"));
  if (config.length.own > 0) windows.together = config.length.largest / config.length.own;
  return windows;
}

absl::StatusOr<std::unique_ptr<SampleReader>> open_token_reader(const DataConfig& config,
                                                                const std::vector<InputSpec>& inputs) {
  PARTITA_ASSIGN_OR_RETURN(const TokenWindows windows, token_windows(config, inputs));
  DataConfig known = config;
  known.vocabulary = windows.vocabulary;
  if (config.documents != DocumentMode::kJoin)
    return open_document_reader(known, inputs, windows.roles, windows.sequence);
  PARTITA_ASSIGN_OR_RETURN(TokenStream stream, open_token_stream(known));
  auto reader = std::make_unique<TokenReader>(std::move(stream), windows);
  for (size_t i = 0; i < inputs.size(); ++i) {
    PARTITA_RETURN_IF_ERROR(reader->add(inputs[i], windows.roles[i], shifts_labels(config, inputs[i].name)));
  }
  return reader;
}

}  // namespace partita::runtime
