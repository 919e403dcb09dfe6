// A program's input: the global batch of any step, by ranges of its samples.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/data/data_config.h"
#include "runtime/data/order/sample_order.h"
#include "runtime/data/sample_reader.h"

namespace partita::runtime {

// The stream of samples is epoch after epoch, each in an order of its own when shuffled (SampleOrder); step t takes the
// `global_batch` samples from sample_offset + t * global_batch on, or, where it is one of several that take turns
// (DataConfig::length), those of its own turns. Nothing is remembered between calls: a step's batch
// depends only on the configuration and the step, whichever rank asks and wherever a run resumes.
class DataSource {
 public:
  // Opens and checks everything that can be checked without reading all data. Errors: NotFound (file, array; the
  // nearest name), InvalidArgument (shape, dtype, settings), DataLoss (damaged archive).
  static absl::StatusOr<std::unique_ptr<DataSource>> open(const DataConfig& config, std::vector<InputSpec> inputs,
                                                          int64_t global_batch);

  const std::vector<InputSpec>& inputs() const { return inputs_; }
  // What a run says of its data when it begins, a line each.
  std::vector<std::string> told() const { return reader_->told(); }
  // SampleReader::fingerprint, as the data were opened.
  const std::string& fingerprint() const { return fingerprint_; }
  std::vector<std::string> classes() const { return reader_->classes(); }
  // -1 when absent.
  int input_index(std::string_view name) const;
  int64_t global_batch() const { return global_batch_; }
  // Samples of one epoch, or kUnlimited.
  int64_t samples_per_epoch() const { return samples_; }
  // Whether samples have lengths of their own.
  bool has_lengths() const { return reader_->has_lengths(); }
  // The share of a step's positions that is padding; nothing where no sample has a length of its own.
  std::optional<double> padding(int64_t step) const;
  // Positions of a sample where the data are tokens, else 0.
  int64_t tokens_per_sample() const;
  // InvalidArgument with the numbers needed and found unless steps [first, first + count) can be served.
  absl::Status check_steps(int64_t first, int64_t count) const;
  // Real samples in a step's batch: global_batch, or fewer where the tail is padded.
  int64_t valid_samples(int64_t step) const;

  // Where the samples of a step's batch are, in their order: "epoch 1, 'ids.bin': sample 3, tokens 192 to 255"; fewer
  // where the tail is padded. The errors of check_steps().
  absl::StatusOr<std::vector<std::string>> locate(int64_t step) const;

  // Samples [first, first + count) of a step's batch for one input, packed row-major in the input's dtype; `out` has
  // exactly that size. For an input that is not batched, its whole value whatever the range. Thread-safe.
  absl::Status fetch(int64_t step, int64_t first, int64_t count, int input, std::span<std::byte> out) const;
  // A fetch() that waits for samples that are still to come ends soon, with Cancelled.
  void give_up() const { reader_->give_up(); }
  // InvalidArgument where samples, of which the first has this number, hold what an input cannot: nan, or integers
  // beyond its bounds.
  absl::Status check_values(int64_t first, int input, std::span<const std::byte> samples) const;

 private:
  DataSource() = default;
  int64_t stream_end() const;
  // Where a step's samples begin in the stream. INT64_MAX where that is too far to count.
  int64_t first_of(int64_t step) const;
  absl::Status read_stream(int64_t position, int64_t count, int input, std::span<std::byte> out) const;

  DataConfig config_;
  std::vector<InputSpec> inputs_;
  std::vector<std::vector<std::byte>> padding_;  // one sample per input; empty without pad_tail
  std::unique_ptr<SampleReader> reader_;
  std::string fingerprint_;
  SampleOrder order_;
  int64_t global_batch_ = 0, samples_ = 0;
};

}  // namespace partita::runtime
