#include "runtime/files/npy.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>

#include "base/atomic_file.h"
#include "base/box.h"
#include "base/cat.h"
#include "base/mapped_file.h"
#include "base/quote.h"
#include "base/status.h"

namespace partita::runtime {
namespace {

constexpr int64_t kLongestHeader = 1 << 20;
constexpr size_t kMostDimensions = 64;  // NumPy's own bound

struct Code {
  std::string_view text;  // kind and size
  DType dtype;
};
constexpr std::array<Code, 12> kCodes = {{{"b1", DType::kBool},
                                          {"i1", DType::kI8},
                                          {"u1", DType::kU8},
                                          {"i2", DType::kI16},
                                          {"u2", DType::kU16},
                                          {"i4", DType::kI32},
                                          {"u4", DType::kU32},
                                          {"i8", DType::kI64},
                                          {"u8", DType::kU64},
                                          {"f2", DType::kF16},
                                          {"f4", DType::kF32},
                                          {"f8", DType::kF64}}};

DType parse_descr(std::string_view descr) {
  if (descr.size() < 2) return DType::kInvalid;
  const char order = descr[0];
  for (const Code& code : kCodes) {
    if (descr.substr(1) != code.text) continue;
    const bool one_byte = dtype_size(code.dtype) == 1;
    if (order == '<' || order == '=' || (one_byte && (order == '|' || order == '>'))) return code.dtype;
  }
  return DType::kInvalid;
}

// The header is a Python literal: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }. Of values, only strings,
// True/False, tuples of integers are read; any other descr (records are lists) is skipped by matching brackets.
class LiteralReader {
 public:
  explicit LiteralReader(std::string_view text) : text_(text) {}

  absl::Status read(NpyHeader& header) {
    if (!take('{')) return bad("a dictionary");
    int seen = 0;
    while (!take('}')) {
      std::string key;
      if (!read_string(key) || !take(':')) return bad("a key");
      const int bit = key == "descr" ? 1 : key == "fortran_order" ? 2 : key == "shape" ? 4 : 0;
      if (bit == 0 || (seen & bit) != 0)
        return absl::InvalidArgumentError(cat("header has an unexpected key ", quote(key, 40)));
      seen |= bit;
      if (bit == 1 && !read_descr(header.descr)) return bad("a dtype");
      if (bit == 2 && !read_bool(header.fortran_order)) return bad("True or False");
      if (bit == 4 && !read_shape(header.shape)) return bad("a tuple of sizes");
      if (!take(',') && peek() != '}') return bad("',' or '}'");
    }
    skip_space();
    if (at_ != text_.size()) return bad("its end");
    if (seen != 7) return absl::InvalidArgumentError("header lacks descr, fortran_order or shape");
    return absl::OkStatus();
  }

 private:
  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\0'))
      ++at_;
  }
  char peek() {
    skip_space();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(char c) { return peek() == c && at_ < text_.size() && (++at_, true); }
  absl::Status bad(std::string_view expected) {
    return absl::InvalidArgumentError(cat("header is damaged at byte ", at_, ": expected ", expected));
  }
  bool read_string(std::string& out) {
    const char mark = peek();
    if (mark != '\'' && mark != '"') return false;
    const size_t end = text_.find(mark, at_ + 1);
    if (end == std::string_view::npos) return false;
    out = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return true;
  }
  bool read_descr(std::string& out) {
    if (peek() == '\'' || peek() == '"') return read_string(out);
    const size_t start = at_;
    int64_t depth = 0;
    std::string ignored;
    do {
      const char c = peek();
      if (c == '\'' || c == '"') {
        if (!read_string(ignored)) return false;
        continue;
      }
      if (at_ >= text_.size()) return false;
      if (c == '[' || c == '(') ++depth;
      if (c == ']' || c == ')') --depth;
      ++at_;
    } while (depth > 0);
    out = text_.substr(start, at_ - start);
    return out.size() > 1;
  }
  bool read_word(std::string_view word) {
    skip_space();
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }
  bool read_bool(bool& out) {
    out = read_word("True");
    return out || read_word("False");
  }
  bool read_shape(std::vector<int64_t>& out) {
    if (!take('(')) return false;
    while (!take(')')) {
      skip_space();
      size_t end = at_;
      while (end < text_.size() && text_[end] >= '0' && text_[end] <= '9') ++end;
      int64_t size = 0;
      const std::from_chars_result parsed = std::from_chars(text_.data() + at_, text_.data() + end, size);
      if (parsed.ec != std::errc() || out.size() == kMostDimensions) return false;
      out.push_back(size);
      at_ = end;
      if (peek() == 'L') ++at_;  // Python 2 wrote long integers so
      if (!take(',') && peek() != ')') return false;
    }
    return true;
  }

  std::string_view text_;
  size_t at_ = 0;
};

uint8_t byte_at(std::span<const std::byte> bytes, size_t i) { return static_cast<uint8_t>(bytes[i]); }

}  // namespace

absl::StatusOr<int64_t> npy_header_bytes(std::span<const std::byte> start) {
  constexpr std::string_view kMagic = "\x93NUMPY";
  if (start.size() < 10 || std::memcmp(start.data(), kMagic.data(), kMagic.size()) != 0) {
    return absl::InvalidArgumentError("is not a .npy array (no \\x93NUMPY at its start)");
  }
  const int version = byte_at(start, 6);
  if (version < 1 || version > 3)
    return absl::InvalidArgumentError(cat("has .npy version ", version, ", expected 1, 2 or 3"));
  int64_t length = byte_at(start, 8) | byte_at(start, 9) << 8;
  if (version > 1) {
    if (start.size() < 12) return absl::InvalidArgumentError("is cut short in its header");
    length |= int64_t{byte_at(start, 10)} << 16 | int64_t{byte_at(start, 11)} << 24;
  }
  length += version == 1 ? 10 : 12;
  if (length > kLongestHeader)
    return absl::InvalidArgumentError(cat("claims a header of ", length, " bytes, more than ", kLongestHeader));
  return length;
}

absl::StatusOr<NpyHeader> parse_npy_header(std::span<const std::byte> start) {
  PARTITA_ASSIGN_OR_RETURN(const int64_t length, npy_header_bytes(start));
  if (length > static_cast<int64_t>(start.size()))
    return absl::InvalidArgumentError(
        cat("claims a header of ", length, " bytes, but only ", start.size(), " are there"));
  const int64_t prefix = byte_at(start, 6) == 1 ? 10 : 12;
  NpyHeader header;
  header.data_offset = length;
  const std::string_view text(reinterpret_cast<const char*>(start.data()) + prefix,
                              static_cast<size_t>(length - prefix));
  PARTITA_RETURN_IF_ERROR(LiteralReader(text).read(header));
  header.dtype = parse_descr(header.descr);
  const std::optional<int64_t> count = element_count(header.shape);
  if (!count || __builtin_mul_overflow(*count, dtype_size(header.dtype), &header.data_bytes)) {
    return absl::InvalidArgumentError(cat("has the impossible shape ", shape_text(header.shape)));
  }
  return header;
}

absl::Status check_npy_dtype(const NpyHeader& header) {
  if (header.dtype != DType::kInvalid) return absl::OkStatus();
  if (header.descr.starts_with(">")) {
    return absl::InvalidArgumentError(
        cat("is big-endian (dtype ", quote(header.descr, 40), "); save it with .astype(a.dtype.newbyteorder('<'))"));
  }
  return absl::InvalidArgumentError(
      cat("has dtype ", quote(header.descr, 40), "; bool, 8- to 64-bit integers and f2, f4, f8 are supported"));
}

absl::StatusOr<std::string> format_npy_header(DType dtype, std::span<const int64_t> shape) {
  std::string descr;
  for (const Code& code : kCodes) {
    if (code.dtype == dtype) descr = cat(dtype_size(dtype) == 1 ? "|" : "<", code.text);
  }
  if (descr.empty()) return absl::InvalidArgumentError(cat("NumPy has no dtype for ", dtype_name(dtype)));
  std::string text = cat("{'descr': '", descr, "', 'fortran_order': False, 'shape': (");
  for (int64_t d : shape) append(text, d, ", ");
  if (shape.size() > 1) text.resize(text.size() - 2);
  if (shape.size() == 1) text.pop_back();
  text += "), }";
  while ((10 + text.size() + 1) % 64 != 0) text += ' ';
  text += '\n';
  if (text.size() > 0xFFFF) return absl::InvalidArgumentError("too many dimensions for a .npy header");
  std::string out("\x93NUMPY\x01\x00", 8);
  out += static_cast<char>(text.size() & 0xFF);
  out += static_cast<char>(text.size() >> 8);
  return out + text;
}

NpyArray from_fortran_order(DType dtype, std::vector<int64_t> shape, std::span<const std::byte> bytes) {
  auto storage = std::make_shared<std::vector<std::byte>>(bytes.size());
  const size_t rank = shape.size(), size = static_cast<size_t>(dtype_size(dtype)), count = bytes.size() / size;
  std::vector<int64_t> stride(rank, 1), index(rank, 0);
  for (size_t d = 1; d < rank; ++d) stride[d] = stride[d - 1] * shape[d - 1];
  int64_t from = 0;
  for (size_t to = 0; to < count; ++to) {
    std::memcpy(storage->data() + to * size, bytes.data() + static_cast<size_t>(from) * size, size);
    for (size_t d = rank; d-- > 0;) {
      from += stride[d];
      if (++index[d] < shape[d]) break;
      from -= stride[d] * shape[d];
      index[d] = 0;
    }
  }
  return {dtype, std::move(shape), *storage, storage};
}

absl::StatusOr<NpyArray> read_npy(std::span<const std::byte> bytes, std::shared_ptr<const void> owner) {
  PARTITA_ASSIGN_OR_RETURN(const NpyHeader header, parse_npy_header(bytes));
  PARTITA_RETURN_IF_ERROR(check_npy_dtype(header));
  const int64_t found = static_cast<int64_t>(bytes.size()) - header.data_offset;
  if (found < header.data_bytes) {
    return absl::InvalidArgumentError(cat("of ", dtype_name(header.dtype), " ", shape_text(header.shape), " needs ",
                                          header.data_bytes, " bytes of data, but holds ", found, "; it is cut short"));
  }
  const auto data = bytes.subspan(static_cast<size_t>(header.data_offset), static_cast<size_t>(header.data_bytes));
  if (header.fortran_order && header.shape.size() > 1) return from_fortran_order(header.dtype, header.shape, data);
  return NpyArray{header.dtype, header.shape, data, std::move(owner)};
}

absl::StatusOr<NpyArray> open_npy(const std::string& path) {
  PARTITA_ASSIGN_OR_RETURN(MappedFile opened, MappedFile::open(path));
  const auto file = std::make_shared<MappedFile>(std::move(opened));
  absl::StatusOr<NpyArray> array = read_npy(file->bytes(), file);
  if (!array.ok())
    return absl::InvalidArgumentError(cat("array file ", quote(path, 1000), " ", array.status().message()));
  return array;
}

absl::Status write_npy(const std::string& path, DType dtype, std::span<const int64_t> shape,
                       std::span<const std::byte> data) {
  PARTITA_ASSIGN_OR_RETURN(const std::string header, format_npy_header(dtype, shape));
  const std::optional<int64_t> count = element_count(shape);
  if (!count || *count > INT64_MAX / 8 || *count * dtype_size(dtype) != static_cast<int64_t>(data.size())) {
    return absl::InvalidArgumentError(
        cat("array of ", dtype_name(dtype), " ", shape_text(shape), " was given ", data.size(), " bytes"));
  }
  PARTITA_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::create(path));
  PARTITA_RETURN_IF_ERROR(file.append(header));
  PARTITA_RETURN_IF_ERROR(file.append(data));
  return file.commit();
}

}  // namespace partita::runtime
