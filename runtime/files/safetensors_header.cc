#include "runtime/files/safetensors_header.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "base/box.h"
#include "base/cat.h"
#include "base/quote.h"
#include "nlohmann/json.hpp"

namespace partita::runtime {
namespace {

struct Format {
  std::string_view text;
  DType dtype;
  int64_t bytes;
};
constexpr std::array<Format, 18> kFormats = {{{"BOOL", DType::kBool, 1},
                                              {"U8", DType::kU8, 1},
                                              {"I8", DType::kI8, 1},
                                              {"I16", DType::kI16, 2},
                                              {"U16", DType::kU16, 2},
                                              {"F16", DType::kF16, 2},
                                              {"BF16", DType::kBF16, 2},
                                              {"I32", DType::kI32, 4},
                                              {"U32", DType::kU32, 4},
                                              {"F32", DType::kF32, 4},
                                              {"I64", DType::kI64, 8},
                                              {"U64", DType::kU64, 8},
                                              {"F64", DType::kF64, 8},
                                              {"F8_E4M3", DType::kInvalid, 1},
                                              {"F8_E5M2", DType::kInvalid, 1},
                                              {"F8_E8M0", DType::kInvalid, 1},
                                              {"F8_E4M3FNUZ", DType::kInvalid, 1},
                                              {"C64", DType::kInvalid, 8}}};

// A state machine over JSON events, so that nothing but the header's own shape is ever stored:
//   {"name": {"dtype": text, "shape": [n…], "data_offsets": [n, n]}, "__metadata__": {text: text}}
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  SafetensorsHeader header;
  std::string error;

  bool start_object(std::size_t) override {
    if (place_ == Place::kStart) return go(Place::kTop);
    if (place_ == Place::kTensorStart) return go(Place::kTensor);
    if (place_ == Place::kMetadataStart) return go(Place::kMetadata);
    return fail("has an object where none belongs");
  }
  bool end_object() override {
    if (place_ == Place::kTop) return go(Place::kEnd);
    if (place_ == Place::kMetadata) return go(Place::kTop);
    return finish_tensor() && go(Place::kTop);
  }
  bool key(string_t& text) override {
    key_ = std::move(text);
    switch (place_) {
      case Place::kTop:
        if (!names_.insert(key_).second) return fail(cat("names ", quote(key_), " twice"));
        if (key_ == "__metadata__") return go(Place::kMetadataStart);
        entry_ = {};
        entry_.name = key_;
        seen_ = 0;
        offsets_.clear();
        return go(Place::kTensorStart);
      case Place::kMetadata:
        return header.metadata.count(key_) == 0 || fail(cat("has the metadata key ", quote(key_), " twice"));
      default: {
        const int bit = key_ == "dtype" ? 1 : key_ == "shape" ? 2 : key_ == "data_offsets" ? 4 : 0;
        if (bit == 0) return fail(cat("tensor ", quote(entry_.name), " has an unknown field ", quote(key_)));
        if (seen_ & bit) return fail(cat("tensor ", quote(entry_.name), " has the field ", key_, " twice"));
        seen_ |= bit;
        return true;
      }
    }
  }
  bool start_array(std::size_t) override {
    if (place_ == Place::kTensor && key_ == "shape") return go(Place::kShape);
    if (place_ == Place::kTensor && key_ == "data_offsets") return go(Place::kOffsets);
    return fail("has an array where none belongs");
  }
  bool end_array() override { return go(Place::kTensor); }
  bool string(string_t& text) override {
    if (place_ == Place::kMetadata) {
      header.metadata[key_] = std::move(text);
      return true;
    }
    if (place_ == Place::kTensor && key_ == "dtype") {
      entry_.dtype_text = std::move(text);
      return true;
    }
    return fail("has a string where none belongs");
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      const int64_t number = static_cast<int64_t>(value);
      if (place_ == Place::kShape && entry_.shape.size() < 64) return entry_.shape.push_back(number), true;
      if (place_ == Place::kOffsets && offsets_.size() < 2) return offsets_.push_back(number), true;
    }
    return fail(cat("tensor ", quote(entry_.name), " has the number ", value, " where it does not belong"));
  }
  bool number_integer(number_integer_t value) override { return fail(cat("has the negative number ", value)); }
  bool number_float(number_float_t, const string_t& text) override {
    return fail(cat("has the number ", quote(text, 40), ", expected a whole one"));
  }
  bool null() override { return fail("has null where none belongs"); }
  bool boolean(bool) override { return fail("has a boolean where none belongs"); }
  bool binary(binary_t&) override { return fail("has binary data"); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return fail(cat("is not JSON at byte ", position));
  }

 private:
  enum class Place { kStart, kTop, kTensorStart, kTensor, kShape, kOffsets, kMetadataStart, kMetadata, kEnd };

  bool go(Place place) { return place_ = place, true; }
  bool fail(std::string message) {
    if (error.empty()) error = std::move(message);
    return false;
  }
  bool finish_tensor() {
    const std::string who = cat("tensor ", quote(entry_.name));
    if (seen_ != 7 || offsets_.size() != 2) return fail(cat(who, " lacks dtype, shape or two data_offsets"));
    const Format* format = nullptr;
    for (const Format& f : kFormats) {
      if (f.text == entry_.dtype_text) format = &f;
    }
    if (format == nullptr) return fail(cat(who, " has the unknown dtype ", quote(entry_.dtype_text, 40)));
    const std::optional<int64_t> count = element_count(entry_.shape);
    int64_t bytes = 0;
    if (!count || __builtin_mul_overflow(*count, format->bytes, &bytes)) {
      return fail(cat(who, " has the impossible shape ", shape_text(entry_.shape)));
    }
    if (offsets_[1] < offsets_[0] || offsets_[1] - offsets_[0] != bytes) {
      return fail(cat(who, " of ", entry_.dtype_text, " ", shape_text(entry_.shape), " needs ", bytes,
                      " bytes, but data_offsets are [", offsets_[0], ", ", offsets_[1], "]"));
    }
    entry_.dtype = format->dtype;
    entry_.begin = offsets_[0];
    entry_.end = offsets_[1];
    header.entries.push_back(std::move(entry_));
    return true;
  }

  Place place_ = Place::kStart;
  std::string key_;
  std::set<std::string> names_;
  SafetensorsEntry entry_;
  std::vector<int64_t> offsets_;
  int seen_ = 0;  // bits of the fields met: dtype 1, shape 2, data_offsets 4
};

std::string json_text(std::string_view text) { return nlohmann::json(text).dump(); }

}  // namespace

std::string_view safetensors_dtype(DType dtype) {
  for (const Format& f : kFormats) {
    if (f.dtype == dtype && dtype != DType::kInvalid) return f.text;
  }
  return "";
}

absl::StatusOr<SafetensorsHeader> parse_safetensors_header(std::string_view json) {
  if (json.empty() || json[0] != '{') return absl::InvalidArgumentError("header does not start with '{'");
  HeaderReader reader;
  if (!nlohmann::json::sax_parse(json, &reader)) return absl::InvalidArgumentError(cat("header ", reader.error));
  return std::move(reader.header);
}

std::string format_safetensors_header(const SafetensorsHeader& header) {
  std::string out = "{";
  if (!header.metadata.empty()) {
    append(out, "\"__metadata__\":{");
    const char* comma = "";
    for (const auto& [key, value] : header.metadata) {
      append(out, comma, json_text(key), ":", json_text(value));
      comma = ",";
    }
    append(out, "}");
  }
  for (const SafetensorsEntry& e : header.entries) {
    append(out, out.size() > 1 ? "," : "", json_text(e.name), ":{\"dtype\":\"", safetensors_dtype(e.dtype),
           "\",\"shape\":[");
    for (size_t d = 0; d < e.shape.size(); ++d) append(out, d ? "," : "", e.shape[d]);
    append(out, "],\"data_offsets\":[", e.begin, ",", e.end, "]}");
  }
  out += "}";
  while (out.size() % 8 != 0) out += ' ';
  return out;
}

absl::StatusOr<SafetensorsLayout> lay_out_safetensors(std::vector<TensorInfo> tensors,
                                                      const std::map<std::string, std::string>& metadata) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::pair(-dtype_size(a.dtype), std::string_view(a.name)) <
           std::pair(-dtype_size(b.dtype), std::string_view(b.name));
  });
  SafetensorsHeader header;
  header.metadata = metadata;
  int64_t at = 0;
  for (const auto& [key, value] : metadata) {
    if (!is_utf8(key) || !is_utf8(value))
      return absl::InvalidArgumentError(cat("metadata ", quote(key), " is not UTF-8"));
  }
  for (const TensorInfo& t : tensors) {
    const std::optional<int64_t> count = element_count(t.shape);
    int64_t bytes = 0, end = 0;
    if (safetensors_dtype(t.dtype).empty())
      return absl::InvalidArgumentError(cat("tensor ", quote(t.name), " has no dtype"));
    if (!is_utf8(t.name) || t.name == "__metadata__")
      return absl::InvalidArgumentError(cat("cannot hold a tensor of the name ", quote(t.name)));
    if (!count || __builtin_mul_overflow(*count, dtype_size(t.dtype), &bytes) ||
        __builtin_add_overflow(at, bytes, &end)) {
      return absl::InvalidArgumentError(
          cat("tensor ", quote(t.name), " has the impossible shape ", shape_text(t.shape)));
    }
    SafetensorsEntry entry;
    static_cast<TensorInfo&>(entry) = t;
    entry.begin = std::exchange(at, end);
    entry.end = end;
    header.entries.push_back(std::move(entry));
  }
  const std::string json = format_safetensors_header(header);
  if (json.size() > kLongestHeader)
    return absl::InvalidArgumentError(
        cat("header would be ", json.size(), " bytes, more than the format's ", kLongestHeader));
  SafetensorsLayout layout{std::string(8, '\0'), std::move(header.entries), 0};
  const uint64_t length = json.size();
  std::memcpy(layout.front.data(), &length, 8);
  layout.front += json;
  const auto start = static_cast<int64_t>(layout.front.size());
  for (SafetensorsEntry& e : layout.entries) e.begin += start, e.end += start;
  layout.bytes = start + at;
  return layout;
}

}  // namespace partita::runtime
