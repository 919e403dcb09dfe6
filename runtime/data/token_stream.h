// A file of token ids as one long sequence, with its documents where they are known.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/data/data_config.h"
#include "runtime/files/npy.h"

namespace partita::runtime {

struct TokenStream {
  NpyArray tokens;              // one axis of integers
  std::vector<int64_t> starts;  // first token of each document, rising, from 0; empty: not known
  std::string description;      // "token file 'x.bin'"
  std::string told;             // the same with how many there are, their type, and how that is known
};

// .npy, raw ids (dtype by `config.dtype`, else guessed: .bin: u16, u32 where the vocabulary is larger, or u8 where it
// tells that the file is text; others: u8), or Megatron's pair NAME.bin and NAME.idx, by either name
// (MMapIndexedDataset: "MMIDIDX\0\0", u64 version 1, u8 dtype, u64 sequences, u64 entries of the document index; i32
// lengths, i64 byte offsets, i64 first sequence of each document). The sequences must follow one another without gaps.
// InvalidArgument (also where the ids are hardly what they are read as: runtime/data/token_check.h), NotFound, DataLoss
// (an index that is damaged or does not fit its .bin).
absl::StatusOr<TokenStream> open_token_stream(const DataConfig& config);

}  // namespace partita::runtime
