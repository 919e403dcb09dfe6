// Samples by their number: what each kind of data file knows. Order, epochs and padding are DataSource's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cat.h"
#include "runtime/data/convert.h"
#include "runtime/data/data_config.h"
#include "runtime/data/records/record_store.h"

namespace partita::runtime {

// Samples [first, first + count) of an epoch, whose number those that are drawn anew each time depend on.
struct SampleRun {
  int64_t first = 0, count = 0;
  uint64_t epoch = 0;
};

class SampleReader {
 public:
  virtual ~SampleReader() = default;
  // Samples in the file, or kUnlimited.
  virtual int64_t samples() const = 0;
  // Samples are shuffled among so many that follow one another, so that their files are not all needed at once; 0:
  // among all.
  virtual int64_t shuffle_window() const { return 0; }
  // What waits for samples that are still to come ends soon.
  virtual void give_up() const {}
  // "npz file 'x.npz'"
  virtual std::string describe() const = 0;
  // Where a sample of an epoch is: "'ids.bin': sample 3, tokens 192 to 255".
  virtual std::string locate(int64_t sample, uint64_t /*epoch*/) const { return cat(describe(), ": sample ", sample); }
  // A text that is alike where the samples are, wherever their files lie (runtime/data/fingerprint.h); empty where more
  // of them may come.
  virtual std::string fingerprint() const { return cat(samples(), " samples"); }
  // Names of the classes whose numbers are labels, by these numbers; empty where there are none.
  virtual std::vector<std::string> classes() const { return {}; }
  // What a run says of them when it begins, a line each: what was guessed, and what became of them.
  virtual std::vector<std::string> told() const { return {}; }
  // Whether samples have lengths of their own: then all that is not theirs is padding.
  virtual bool has_lengths() const { return false; }
  // Tokens of a sample of an epoch; -1: it has none of its own.
  virtual int64_t length_of(int64_t /*sample*/, uint64_t /*epoch*/) const { return -1; }
  // Samples of an input, packed, in the dtype of its InputSpec. The run is inside samples() and `out` has the exact
  // size; for an input that is not batched, first is 0 and count 1. Thread-safe.
  virtual absl::Status read(const SampleRun& run, int input, std::span<std::byte> out) const = 0;
};

// What a column of tokens or of generated values holds.
enum class ColumnRole { kUnknown, kInputIds, kLabels, kPositions, kDocuments, kOnes, kZeros, kRandom };

absl::StatusOr<std::unique_ptr<SampleReader>> open_npz_reader(const DataConfig& config,
                                                              const std::vector<InputSpec>& inputs);
absl::StatusOr<std::unique_ptr<SampleReader>> open_npy_reader(const DataConfig& config,
                                                              const std::vector<InputSpec>& inputs);
absl::StatusOr<std::unique_ptr<SampleReader>> open_token_reader(const DataConfig& config,
                                                                const std::vector<InputSpec>& inputs);
// For config.documents other than kJoin; called by open_token_reader, which has found roles and sequence length.
absl::StatusOr<std::unique_ptr<SampleReader>> open_document_reader(const DataConfig& config,
                                                                   const std::vector<InputSpec>& inputs,
                                                                   const std::vector<ColumnRole>& roles,
                                                                   int64_t sequence);
// Tokens in shards (runtime/data/shards); also the errors of ShardStore.
absl::StatusOr<std::unique_ptr<SampleReader>> open_sharded_reader(const DataConfig& config,
                                                                  const std::vector<InputSpec>& inputs);
// Several sources by their weights.
absl::StatusOr<std::unique_ptr<SampleReader>> open_mix_reader(const DataConfig& config,
                                                              const std::vector<InputSpec>& inputs);
// The reader of config.kind.
absl::StatusOr<std::unique_ptr<SampleReader>> open_reader(const DataConfig& config,
                                                          const std::vector<InputSpec>& inputs);
absl::StatusOr<std::unique_ptr<SampleReader>> open_raw_reader(const DataConfig& config,
                                                              const std::vector<InputSpec>& inputs);
// Pictures in folders, and WebDataset's archives.
absl::StatusOr<std::unique_ptr<SampleReader>> open_record_reader(const DataConfig& config,
                                                                 const std::vector<InputSpec>& inputs);
absl::StatusOr<std::unique_ptr<SampleReader>> open_synthetic_reader(const DataConfig& config,
                                                                    const std::vector<InputSpec>& inputs);

// Whether the labels of an input are the next tokens.
bool shifts_labels(const DataConfig& config, const std::string& input);
// "'labels': the next token"
std::string describe_column(const InputSpec& spec, ColumnRole role, bool shifted);
// Elements and bytes of one sample; the InputSpec must have passed DataSource::open.
int64_t sample_elements(const InputSpec& spec);
int64_t sample_bytes(const InputSpec& spec);

// From config.columns when the input has an entry (InvalidArgument when it is no role), else from the input's name.
absl::StatusOr<ColumnRole> column_role(const DataConfig& config, const std::string& input);
// One sample of zeros, ones or positions (0, 1, … along the last axis) in the input's dtype.
absl::StatusOr<std::vector<std::byte>> constant_sample(const InputSpec& spec, ColumnRole role);

}  // namespace partita::runtime
