#include "runtime/data/token_stream.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>

#include "base/box.h"
#include "base/cat.h"
#include "base/mapped_file.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/data/token_check.h"

namespace partita::runtime {
namespace {

constexpr size_t kFewBytes = 64;  // that may be ASCII by chance
constexpr std::string_view kMagic("MMIDIDX\0\0", 9);

// Megatron's codes of element types.
DType megatron_dtype(uint8_t code) {
  switch (code) {
    case 1:
      return DType::kU8;
    case 2:
      return DType::kI8;
    case 3:
      return DType::kI16;
    case 4:
      return DType::kI32;
    case 5:
      return DType::kI64;
    case 8:
      return DType::kU16;
    default:
      return DType::kInvalid;
  }
}

template <typename T>
T read_at(std::string_view bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

struct Index {
  DType dtype = DType::kInvalid;
  int64_t tokens = 0;
  std::vector<int64_t> starts;
};

absl::StatusOr<Index> read_index(const std::string& path) {
  PARTITA_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path));
  const std::string_view bytes = file.text();
  auto damaged = [&](std::string_view why) {
    return absl::DataLossError(cat("token index ", quote(path, 1000), ": ", why));
  };
  constexpr size_t kHead = 9 + 8 + 1 + 8 + 8;
  if (bytes.size() < kHead || !bytes.starts_with(kMagic)) return damaged("it is no MMapIndexedDataset index");
  if (read_at<uint64_t>(bytes, 9) != 1) return damaged(cat("version ", read_at<uint64_t>(bytes, 9), ", expected 1"));
  Index index;
  index.dtype = megatron_dtype(read_at<uint8_t>(bytes, 17));
  if (index.dtype == DType::kInvalid) return damaged("its elements are no integers");
  const uint64_t sequences = read_at<uint64_t>(bytes, 18), documents = read_at<uint64_t>(bytes, 26);
  if (sequences > bytes.size() / 12 || documents > bytes.size() / 8 ||
      bytes.size() < kHead + sequences * 12 + documents * 8)
    return damaged(
        cat("it is cut short: ", sequences, " sequences and ", documents, " documents in ", bytes.size(), " bytes"));
  const size_t lengths = kHead, offsets = lengths + sequences * 4, first = offsets + sequences * 8;
  std::vector<int64_t> begin;  // token at which each sequence begins
  for (uint64_t k = 0; k < sequences; ++k) {
    const int64_t length = read_at<int32_t>(bytes, lengths + 4 * k), offset = read_at<int64_t>(bytes, offsets + 8 * k);
    if (length < 0 || offset != index.tokens * dtype_size(index.dtype))
      return damaged(
          cat("sequence ", k, " of ", length, " tokens at byte ", offset, " does not follow the one before"));
    begin.push_back(index.tokens);
    index.tokens += length;
  }
  begin.push_back(index.tokens);
  for (uint64_t d = 0; d < documents; ++d) {
    const int64_t sequence = read_at<int64_t>(bytes, first + 8 * d);
    if (sequence < 0 || sequence > static_cast<int64_t>(sequences))
      return damaged(cat("document ", d, " begins at sequence ", sequence));
    const int64_t at = begin[static_cast<size_t>(sequence)];
    if (!index.starts.empty() && at < index.starts.back())
      return damaged(cat("document ", d, " begins before the one before"));
    if (at < index.tokens && (index.starts.empty() || at > index.starts.back())) index.starts.push_back(at);
  }
  if (index.starts.empty() || index.starts[0] != 0) index.starts.insert(index.starts.begin(), 0);
  return index;
}

absl::StatusOr<NpyArray> map_tokens(const std::string& path, DType dtype, int64_t header, bool random,
                                    const std::string& who) {
  PARTITA_ASSIGN_OR_RETURN(MappedFile opened, MappedFile::open(path));
  auto file = std::make_shared<MappedFile>(std::move(opened));
  const int64_t bytes = file->size() - header;
  if (header < 0 || bytes < 0)
    return absl::InvalidArgumentError(cat(who, " has ", file->size(), " bytes, fewer than its header of ", header));
  if (bytes % dtype_size(dtype) != 0) {
    return absl::InvalidArgumentError(cat(who, " holds ", bytes, " bytes of data, which is no whole number of ",
                                          dtype_name(dtype), " tokens; give its dtype"));
  }
  if (random) file->expect_random_access();
  return NpyArray{dtype, {bytes / dtype_size(dtype)}, file->bytes().subspan(static_cast<size_t>(header)), file};
}

// Whether a file without a word about its elements holds bytes rather than u16 ids of the vocabulary (0: not known):
// there are no more ids than bytes, or it begins as text does: without a zero byte, and with what would be ids too
// large or with ASCII alone.
bool holds_bytes(std::span<const std::byte> bytes, int64_t vocabulary) {
  if (vocabulary == 0) return false;
  if (vocabulary <= 256) return true;
  const std::string_view start(reinterpret_cast<const char*>(bytes.data()), std::min<size_t>(bytes.size(), 65536));
  if (start.find('\0') != std::string_view::npos) return false;
  bool ascii = start.size() >= kFewBytes;
  for (size_t at = 0; at + 1 < start.size(); at += 2) {
    const uint16_t pair = read_at<uint16_t>(start, at);
    if (pair >= vocabulary) return true;
    ascii = ascii && (pair & 0x8080) == 0;
  }
  return ascii;
}

absl::StatusOr<TokenStream> open_megatron(const DataConfig& config, const std::string& stem) {
  TokenStream stream;
  stream.description = cat("token file ", quote(stem + ".bin", 1000));
  PARTITA_ASSIGN_OR_RETURN(Index index, read_index(stem + ".idx"));
  PARTITA_ASSIGN_OR_RETURN(stream.tokens,
                           map_tokens(stem + ".bin", index.dtype, 0, config.shuffle, stream.description));
  if (stream.tokens.shape[0] != index.tokens) {
    return absl::DataLossError(cat(stream.description, " holds ", stream.tokens.shape[0], " tokens of ",
                                   dtype_name(index.dtype), ", and its index speaks of ", index.tokens));
  }
  stream.starts = std::move(index.starts);
  return stream;
}

absl::StatusOr<TokenStream> open_array(const DataConfig& config) {
  TokenStream stream;
  stream.description = cat("token file ", quote(config.path, 1000));
  PARTITA_ASSIGN_OR_RETURN(stream.tokens, open_npy(config.path));
  if (stream.tokens.shape.size() != 1 || !is_integer(stream.tokens.dtype)) {
    return absl::InvalidArgumentError(cat(stream.description, " holds ", dtype_name(stream.tokens.dtype), " ",
                                          shape_text(stream.tokens.shape), ", expected one axis of integers"));
  }
  return stream;
}

// Of a file that neither has a header nor is said a word about.
absl::StatusOr<DType> guess_dtype(const DataConfig& config, const std::string& who) {
  if (!config.path.ends_with(".bin")) return DType::kU8;
  PARTITA_ASSIGN_OR_RETURN(const NpyArray bytes, map_tokens(config.path, DType::kU8, config.header_bytes, false, who));
  if (holds_bytes(bytes.bytes, config.vocabulary)) return DType::kU8;
  return config.vocabulary > 65536 ? DType::kU32 : DType::kU16;
}

absl::StatusOr<TokenStream> open_raw_ids(const DataConfig& config) {
  TokenStream stream;
  stream.description = cat("token file ", quote(config.path, 1000));
  DType dtype = config.dtype;
  if (dtype == DType::kInvalid) {
    PARTITA_ASSIGN_OR_RETURN(dtype, guess_dtype(config, stream.description));
  }
  if (!is_integer(dtype))
    return absl::InvalidArgumentError(
        cat(stream.description, ": tokens of dtype ", dtype_name(dtype), "; expected u8, u16 or u32"));
  PARTITA_ASSIGN_OR_RETURN(stream.tokens,
                           map_tokens(config.path, dtype, config.header_bytes, config.shuffle, stream.description));
  return stream;
}

}  // namespace

absl::StatusOr<TokenStream> open_token_stream(const DataConfig& config) {
  const std::string& path = config.path;
  const bool named = path.ends_with(".bin") || path.ends_with(".idx");
  const std::string stem = named ? path.substr(0, path.size() - 4) : path;
  std::error_code ignored;
  const bool indexed =
      path.ends_with(".idx") || (path.ends_with(".bin") && config.dtype == DType::kInvalid &&
                                 config.header_bytes == 0 && std::filesystem::exists(stem + ".idx", ignored));
  const bool array = path.ends_with(".npy");
  PARTITA_ASSIGN_OR_RETURN(TokenStream stream, indexed ? open_megatron(config, stem)
                                               : array ? open_array(config)
                                                       : open_raw_ids(config));
  const TokenTyping typing = indexed || array                  ? TokenTyping::kHeader
                             : config.dtype != DType::kInvalid ? TokenTyping::kSaid
                                                               : TokenTyping::kGuessed;
  if (config.check_ids)
    PARTITA_RETURN_IF_ERROR(check_ids(stream.tokens, config.vocabulary, typing, stream.description, path));
  stream.told = cat(stream.description, ": ", stream.tokens.shape[0], " tokens of ", dtype_name(stream.tokens.dtype),
                    typing == TokenTyping::kGuessed ? cat(" (guessed; --data FILE:", numpy_name(stream.tokens.dtype),
                                                          " says so, as does `dtype` under data)")
                                                    : "");
  return stream;
}

}  // namespace partita::runtime
