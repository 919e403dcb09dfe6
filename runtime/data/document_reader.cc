// Tokens by documents. With s = 4, end of document 0, labels shifted, ignored = -100:
//   tokens 5 6 0 7 8 9 0 3 …
//   separate  windows of the plain reader:     5 6 0 7 | 8 9 0 3      labels 6 0 -100 8 | 9 0 -100 …
//                                              positions 0 1 2 0 | 0 1 2 0
//   pack      whole documents while they fit:  5 6 0 _ | 7 8 9 0 | 3 …   filled up with the pad token, labels ignored
//   pad       a document each:                 5 6 0 _ | 7 8 9 0 | 3 …   likewise; the next one never joins
#include <algorithm>
#include <memory>

#include "absl/strings/ascii.h"
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
  bool shift = false;
  ConvertFunction convert = nullptr;  // from i64; null: constant
  std::vector<std::byte> constant;
};

class DocumentReader : public SampleReader {
 public:
  DocumentReader(TokenStream stream, const DataConfig& config, int64_t sequence)
      : stream_(std::move(stream)),
        config_(config),
        sequence_(sequence),
        longest_(config.length.own > 0 ? config.length.largest : sequence) {}

  std::string fingerprint() const override { return fingerprint_of(stream_.tokens.bytes); }

  absl::Status prepare() {
    PARTITA_ASSIGN_OR_RETURN(to_i64_, find_conversion(stream_.tokens.dtype, DType::kI64));
    if (stream_.starts.empty() && !config_.end_of_document) {
      return absl::InvalidArgumentError(cat(
          stream_.description, ": where do documents end? Give \"end_of_document\": the token's id, or an .idx file"));
    }
    if (config_.documents == DocumentMode::kSeparate) return absl::OkStatus();
    if (stream_.starts.empty()) find_starts();
    fill_windows();
    return absl::OkStatus();
  }

  absl::Status add(const InputSpec& spec, ColumnRole role, bool shift) {
    Column column{.role = role, .shift = shift, .convert = nullptr, .constant = {}};
    append(stream_.told, "; ", describe_column(spec, role, shift));
    const bool counted = role == ColumnRole::kInputIds || role == ColumnRole::kLabels ||
                         role == ColumnRole::kPositions || role == ColumnRole::kDocuments;
    if (counted) {
      if (sample_elements(spec) != sequence_ || !spec.batched) {
        return absl::InvalidArgumentError(cat("graph input ", quote(spec.name), " has sample shape ",
                                              shape_text(spec.sample_shape), ", but windows have ", sequence_,
                                              " tokens"));
      }
      PARTITA_ASSIGN_OR_RETURN(column.convert, find_conversion(DType::kI64, spec.dtype));
      any_shift_ |= role == ColumnRole::kLabels && shift;
    } else {
      PARTITA_ASSIGN_OR_RETURN(column.constant, constant_sample(spec, role));
    }
    columns_.push_back(std::move(column));
    return absl::OkStatus();
  }

  int64_t samples() const override {
    if (config_.documents != DocumentMode::kSeparate) return static_cast<int64_t>(windows_.size());
    return TokenWindows{.sequence = sequence_, .shifted = any_shift_, .together = longest_ / sequence_}.count(tokens());
  }
  bool has_lengths() const override { return config_.documents != DocumentMode::kSeparate; }
  int64_t length_of(int64_t sample, uint64_t /*epoch*/) const override {
    if (!has_lengths()) return -1;
    const Window& w = windows_[static_cast<size_t>(sample)];
    return w.end - w.begin;
  }
  std::string describe() const override { return stream_.description; }
  std::string locate(int64_t sample, uint64_t /*epoch*/) const override {
    const bool windows = config_.documents == DocumentMode::kSeparate;
    const Window w =
        windows ? Window{sample * sequence_, (sample + 1) * sequence_} : windows_[static_cast<size_t>(sample)];
    return cat(stream_.description, ": sample ", sample, ", tokens ", w.begin, " to ", w.end - 1);
  }
  std::vector<std::string> told() const override { return {stream_.told}; }

  absl::Status read(const SampleRun& run, int input, std::span<std::byte> out) const override {
    const int64_t first = run.first, count = run.count;
    const Column& c = columns_[static_cast<size_t>(input)];
    const size_t bytes = out.size() / static_cast<size_t>(std::max<int64_t>(count, 1));
    for (int64_t k = 0; k < count; ++k) {
      std::span<std::byte> own = out.subspan(static_cast<size_t>(k) * bytes, bytes);
      if (c.convert == nullptr) {
        std::copy(c.constant.begin(), c.constant.end(), own.begin());
        continue;
      }
      PARTITA_ASSIGN_OR_RETURN(std::vector<int64_t> values, window(first + k, c));
      const int64_t bad = c.convert(reinterpret_cast<const std::byte*>(values.data()), own.data(), sequence_);
      if (bad >= 0)
        return absl::InvalidArgumentError(cat(stream_.description, ": sample ", first + k, " holds ",
                                              values[static_cast<size_t>(bad)],
                                              ", which the graph's input cannot hold"));
    }
    return absl::OkStatus();
  }

 private:
  struct Window {
    int64_t begin, end;
  };
  int64_t tokens() const { return stream_.tokens.shape[0]; }

  int64_t token(int64_t at) const {
    int64_t value = 0;
    to_i64_(stream_.tokens.bytes.data() + at * dtype_size(stream_.tokens.dtype), reinterpret_cast<std::byte*>(&value),
            1);
    return value;
  }

  bool begins_document(int64_t at) const {
    if (at == 0) return true;
    if (!stream_.starts.empty()) return std::binary_search(stream_.starts.begin(), stream_.starts.end(), at);
    return token(at - 1) == *config_.end_of_document;
  }

  void find_starts() {
    std::vector<int64_t> found;
    for (int64_t at = 0; at < tokens(); ++at) {
      if (begins_document(at)) found.push_back(at);
    }
    stream_.starts = std::move(found);
  }

  // Documents longer than a window of the largest length are cut; then those of this one's are kept.
  void fill_windows() {
    cut_windows();
    std::erase_if(windows_, [this](const Window& w) {
      return w.end - w.begin <= config_.length.shorter || w.end - w.begin > sequence_;
    });
  }

  void cut_windows() {
    const bool pack = config_.documents == DocumentMode::kPack;
    Window open{0, 0};
    auto flush = [&] {
      if (open.end > open.begin) windows_.push_back(open);
    };
    for (size_t d = 0; d < stream_.starts.size(); ++d) {
      int64_t begin = stream_.starts[d];
      const int64_t end = d + 1 < stream_.starts.size() ? stream_.starts[d + 1] : tokens();
      if (!pack || end - open.begin > longest_) {
        flush();
        open = {begin, begin};
      }
      for (; end - begin > longest_; begin += longest_) windows_.push_back({begin, begin + longest_});
      if (open.begin < begin && open.end <= open.begin) open.begin = begin;
      open.end = end;
    }
    flush();
  }

  absl::StatusOr<std::vector<int64_t>> window(int64_t sample, const Column& c) const {
    const Window w = config_.documents == DocumentMode::kSeparate ? Window{sample * sequence_, (sample + 1) * sequence_}
                                                                  : windows_[static_cast<size_t>(sample)];
    const bool is_label = c.role == ColumnRole::kLabels;
    std::vector<int64_t> values(static_cast<size_t>(sequence_), is_label                          ? config_.ignore_label
                                                                : c.role == ColumnRole::kInputIds ? config_.pad_token
                                                                                                  : 0);
    int64_t start = w.begin, document = 0;
    for (int64_t at = w.begin; at < w.end; ++at) {
      const bool begins = begins_document(at);
      if (begins && at > w.begin) start = at, ++document;
      int64_t& value = values[static_cast<size_t>(at - w.begin)];
      if (c.role == ColumnRole::kPositions) {
        value = at - start;
      } else if (c.role == ColumnRole::kDocuments) {
        value = document;
      } else if (is_label && c.shift) {
        // The next token, unless another document begins there.
        const bool inside = at + 1 < tokens() && !begins_document(at + 1);
        if (inside) {
          PARTITA_ASSIGN_OR_RETURN(value, checked(at + 1));
        }
      } else if (!is_label || !begins) {
        // A model that shifts inside predicts labels[i] from tokens before i: none where a document begins.
        PARTITA_ASSIGN_OR_RETURN(value, checked(at));
      }
    }
    // Padding is no part of any document: a mask of equal numbers keeps them apart, in both directions.
    if (c.role == ColumnRole::kDocuments) std::fill(values.begin() + (w.end - w.begin), values.end(), document + 1);
    return values;
  }

  absl::StatusOr<int64_t> checked(int64_t at) const {
    const int64_t value = token(at);
    if (config_.vocabulary > 0 && (value < 0 || value >= config_.vocabulary))
      return absl::InvalidArgumentError(
          cat(stream_.description, ": token ", at, " is ", value, "; the vocabulary has ", config_.vocabulary, " ids"));
    return value;
  }

  TokenStream stream_;
  const DataConfig config_;
  const int64_t sequence_, longest_;
  ConvertFunction to_i64_ = nullptr;
  std::vector<Window> windows_;  // pack and pad: of this length
  std::vector<Column> columns_;
  bool any_shift_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SampleReader>> open_document_reader(const DataConfig& config,
                                                                   const std::vector<InputSpec>& inputs,
                                                                   const std::vector<ColumnRole>& roles,
                                                                   int64_t sequence) {
  PARTITA_ASSIGN_OR_RETURN(TokenStream stream, open_token_stream(config));
  auto reader = std::make_unique<DocumentReader>(std::move(stream), config, sequence);
  PARTITA_RETURN_IF_ERROR(reader->prepare());
  for (size_t i = 0; i < inputs.size(); ++i)
    PARTITA_RETURN_IF_ERROR(reader->add(inputs[i], roles[i], shifts_labels(config, inputs[i].name)));
  return reader;
}

}  // namespace partita::runtime
