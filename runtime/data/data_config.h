// What a program's inputs look like and where their samples come from.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "base/index_bounds.h"
#include "base/kinds.h"
#include "runtime/data/shards/shard_store.h"

namespace partita::runtime {

struct InputSpec {
  std::string name;
  DType dtype = DType::kInvalid;
  std::vector<int64_t> sample_shape;  // without the batch axis
  bool batched = true;      // false: no batch axis, the same value at every step; sample_shape is the whole shape
  IndexBounds bounds = {};  // of integers
};

absl::StatusOr<DataKind> parse_data_kind(std::string_view name);
// Our own names (u16) and NumPy's (uint16); kInvalid for anything else.
DType parse_element_type(std::string_view name);
// By the path's ending: .npz, .npy, .tar; a folder by its index of shards, or by what is in it: .npy, .tar, else images
// where it has folders; anything else is tokens (.bin: u16, other files: their bytes).
DataKind guess_data_kind(std::string_view path);

class SampleFeed;
struct WeightedSource;

// Of a run that takes samples of several lengths, those of one.
struct LengthOfSamples {
  int64_t own = 0;  // 0: there is one length
  // Samples with lengths of their own are longer than the next shorter length, `shorter`, which would hold them else.
  int64_t shorter = 0, largest = 0;
  // Others are windows of the largest length, cut: of each `turns` batches of the stream the one at `turn` is this
  // length's.
  int64_t turn = 0, turns = 1;
};

struct DataConfig {
  std::shared_ptr<SampleFeed> feed;  // not null: batches come from there, and nothing below is looked at
  DataKind kind = DataKind::kNpz;
  std::string path;
  // In place of `path`: samples in fixed proportions of each. `shuffle` holds for all of them; the other settings of
  // DataConfig below that concern samples (epochs, skip, limit, …) for the mixture.
  std::vector<WeightedSource> sources;
  // Graph input -> npz: array; npy: file, relative to the folder of `path`; raw: "dtype@byte", either part optional;
  // images, webdataset: "class" (of the folder), or the suffix of a record's file, such as jpg, cls, npy;
  // tokens and synthetic: a role, one of input_ids, labels, position_ids, ones, zeros, random. Without an entry: the
  // input's own name (npz, npy: <path>/<name>.npy), fields packed in input order (raw), or the role that the name
  // suggests.
  std::map<std::string, std::string> columns;

  bool shuffle = false;  // a new order each epoch, computed from seed and epoch alone
  uint64_t seed = 0;
  int64_t epochs = 1;  // passes over the data before they are used up; 0 = any number
  int64_t skip = 0;    // leading samples never used
  int64_t limit = 0;   // samples of an epoch, after skip; 0 = all
  // Position in the stream of step 0's first sample: not 0 only when a run resumes with another global batch.
  int64_t sample_offset = 0;
  // The last, incomplete batch is filled up instead of refused: with padding[input] (default 0) in every element.
  bool pad_tail = false;
  std::map<std::string, int64_t> padding;
  int64_t prefetch = 2;  // batches read ahead, at least one
  DataCache cache;       // of shards that are fetched; of this host, no part of a bundle

  LengthOfSamples length = {};  // of this run; no part of a bundle
  std::string lengths;          // npz, npy: array (file) of the samples' lengths; "": all are as long as the arrays

  // Tokens.
  int64_t sequence = 0;       // tokens of a window; 0 = as the graph's input has it
  std::optional<bool> shift;  // labels are the next tokens (true), or the tokens themselves; unset: the next ones, but
                              // for inputs that the graph shifts itself
  std::vector<std::string> shifted_inside;  // inputs that the graph compares with a token's predecessors by itself
  DType dtype = DType::kInvalid;            // u8, u16, u32 (tokens; unset: guessed)
  bool check_ids = true;  // ids that are hardly what they are read as are an error (runtime/data/token_check.h)
  DocumentMode documents = DocumentMode::kJoin;
  std::optional<int64_t> end_of_document;  // the token that ends one, where no .idx file tells
  int64_t pad_token = 0, ignore_label = -100;
  int64_t vocabulary = 0;    // ids at or above it are an error; 0 = not checked. Synthetic: default range of integers
  int64_t header_bytes = 0;  // skipped at the start of the file (tokens, raw)
  int64_t record_bytes = 0;  // raw: size of a record; 0 = end of its last field
  std::map<std::string, int64_t>
      ranges;           // synthetic: integers of an input are in [0, range); default vocabulary, else 2
  int64_t samples = 0;  // synthetic: samples of an epoch; 0 = unlimited

  // Images and webdataset.
  ImageSettings images;
  int64_t workers = 0;  // threads that decode; 0: as many as there are cores for a rank, at most 8
};

struct WeightedSource {
  DataConfig config;
  double weight = 0;  // > 0; 0: its number of samples
};

}  // namespace partita::runtime
