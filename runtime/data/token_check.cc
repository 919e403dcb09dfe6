#include "runtime/data/token_check.h"

#include <algorithm>
#include <vector>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/data/convert.h"

namespace partita::runtime {
namespace {

constexpr int64_t kWindows = 16, kWindow = 4096, kAligned = 8;  // ids in one go; parts of a wider id stay together
constexpr int64_t kFewZeros = 64;                               // ids of which every other one may be 0 by chance
constexpr int64_t kFarther = 4;  // a vocabulary so many times as large as the ids is another one

struct Looked {
  std::vector<int64_t> ids;
  std::vector<int64_t> at;  // the first token of each window
  bool all = false;         // windows were full: there are enough ids to judge them as a whole
};

absl::StatusOr<Looked> look_at(const NpyArray& tokens) {
  PARTITA_ASSIGN_OR_RETURN(const ConvertFunction to_i64, find_conversion(tokens.dtype, DType::kI64));
  const int64_t count = tokens.shape[0], size = dtype_size(tokens.dtype);
  Looked out;
  const int64_t windows = std::clamp<int64_t>(count / kWindow, 1, kWindows);
  for (int64_t w = 0; w < windows; ++w) {
    const int64_t begin = windows == 1 ? 0 : (count - kWindow) / (windows - 1) * w / kAligned * kAligned;
    const int64_t n = std::min(kWindow, count - begin);
    out.at.push_back(begin);
    out.ids.resize(out.ids.size() + static_cast<size_t>(n));
    to_i64(tokens.bytes.data() + begin * size, reinterpret_cast<std::byte*>(&*(out.ids.end() - n)), n);
  }
  out.all = windows == kWindows;
  return out;
}

// How many of the ids, of each `of` in a row, are 0 all along, from the last on.
int64_t high_zeros(const std::vector<int64_t>& ids, size_t of) {
  std::vector<bool> zero(of, true);
  for (size_t k = 0; k < ids.size(); ++k) {
    if (ids[k] != 0) zero[k % of] = false;
  }
  int64_t high = 0;
  while (high < static_cast<int64_t>(of) && zero[of - 1 - static_cast<size_t>(high)]) ++high;
  return high;
}

// The type of which `narrow` reads parts: the upper half of each is 0. kInvalid where there is none.
DType wider_type(DType narrow, const std::vector<int64_t>& ids) {
  if (static_cast<int64_t>(ids.size()) < kFewZeros) return DType::kInvalid;
  const int64_t size = dtype_size(narrow);
  for (size_t of : {size_t{8}, size_t{4}, size_t{2}}) {
    const int64_t zeros = high_zeros(ids, of), parts = static_cast<int64_t>(of), wide = size * parts;
    if (zeros == parts) return DType::kInvalid;  // nothing but zeros
    if (wide <= 8 && zeros >= parts / 2) return wide == 8 ? DType::kI64 : wide == 4 ? DType::kI32 : DType::kU16;
  }
  return DType::kInvalid;
}

constexpr std::string_view kForce = "`check_ids: false` under data in train.yaml takes them as they are";

}  // namespace

std::string numpy_name(DType integer) { return cat(is_unsigned(integer) ? "uint" : "int", 8 * dtype_size(integer)); }

absl::Status check_ids(const NpyArray& tokens, int64_t vocabulary, TokenTyping typing, const std::string& description,
                       const std::string& path) {
  PARTITA_ASSIGN_OR_RETURN(const Looked looked, look_at(tokens));
  const std::vector<int64_t>& ids = looked.ids;
  if (ids.empty()) return absl::OkStatus();
  const std::string as = numpy_name(tokens.dtype);
  if (const DType wide = wider_type(tokens.dtype, ids); wide != DType::kInvalid) {
    return absl::InvalidArgumentError(cat(description, ": read as ", as, ", every other id is 0, as the upper half of ",
                                          numpy_name(wide), " is; say --data ", path, ":", numpy_name(wide),
                                          ", or dtype: ", numpy_name(wide), " under data in train.yaml (", kForce,
                                          ")"));
  }
  if (vocabulary <= 0) return absl::OkStatus();
  const auto bad = std::find_if(ids.begin(), ids.end(), [&](int64_t id) { return id < 0 || id >= vocabulary; });
  if (bad != ids.end()) {
    const int64_t k = bad - ids.begin();
    const int64_t at =
        looked.at[static_cast<size_t>(std::min<int64_t>(k / kWindow, static_cast<int64_t>(looked.at.size()) - 1))];
    return absl::InvalidArgumentError(cat(description, ": token ", at + k % kWindow, " is ", *bad,
                                          "; the vocabulary has ", vocabulary, " ids. Is the dtype (", as,
                                          ") right? --data ", path, ":int32 says another one"));
  }
  const int64_t most = *std::max_element(ids.begin(), ids.end());
  const bool bytes = dtype_size(tokens.dtype) == 1;
  if (bytes && typing == TokenTyping::kSaid) return absl::OkStatus();
  if (most < 256 && vocabulary >= kFarther * 256 && (bytes || static_cast<int64_t>(ids.size()) >= kWindow)) {
    return absl::InvalidArgumentError(cat(
        description, " holds ids below 256, as the bytes of a text are, and the model has ", vocabulary,
        " ids: tokenize it with the model's own tokenizer; where its ids are bytes, ",
        bytes ? cat("say --data ", path, ":uint8, or dtype: uint8 under data in train.yaml") : std::string(kForce)));
  }
  if (looked.all && most < vocabulary / kFarther) {
    return absl::InvalidArgumentError(cat(description, ": the largest of ", ids.size(), " ids is ", most,
                                          " and the model has ", vocabulary,
                                          " ids: it was made with another tokenizer, or for another model; ", kForce));
  }
  return absl::OkStatus();
}

}  // namespace partita::runtime
