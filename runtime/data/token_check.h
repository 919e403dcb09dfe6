// Whether the ids of a token file can be what they are read as: a file of int32 read as uint16, or of text read as
// bytes for a model of 50,000 ids, would train without a word.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "runtime/files/npy.h"

namespace partita::runtime {

enum class TokenTyping { kHeader, kSaid, kGuessed };  // how the element type is known

// "uint16"
std::string numpy_name(DType integer);

// Looks at up to 65,536 of the ids, spread over the file. InvalidArgument, with what to say, where
//   - an id is not in the vocabulary (0: not known, not checked);
//   - every other one is 0: the file's elements have twice the bytes, or more;
//   - all are bytes and the vocabulary is at least four times as large, unless the user said that ids are bytes;
//   - none, of all that were to be looked at, comes up to a quarter of the vocabulary.
// `description` names the file in messages, `path` is it for the command line.
absl::Status check_ids(const NpyArray& tokens, int64_t vocabulary, TokenTyping typing, const std::string& description,
                       const std::string& path);

}  // namespace partita::runtime
