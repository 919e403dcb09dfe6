// Typed reading of a YamlNode by tables: a section of a settings file is a list of Field{key, parser}, one line per
// key. Parsers report "line:column: path: expected …, found …". A null value of an optional field or of a section means
// "not said".
#pragma once

#include <array>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/cat.h"
#include "base/enum_names.h"
#include "base/status.h"
#include "ir/yaml/yaml_document.h"

namespace partita {

// "line:column: path: expected `expected`, found …".
absl::Status unexpected(const YamlNode& node, std::string_view path, std::string_view expected);
std::string join_path(std::string_view path, std::string_view key);

struct NumberRange {
  std::string_view says;  // "a number > 0"
  bool (*holds)(double);
};
inline constexpr NumberRange kAnyNumber = {"a number", [](double) { return true; }};
inline constexpr NumberRange kPositive = {"a number > 0", [](double x) { return x > 0; }};
inline constexpr NumberRange kAboveOne = {"a number > 1", [](double x) { return x > 1; }};
inline constexpr NumberRange kNonNegative = {"a number >= 0", [](double x) { return x >= 0; }};
inline constexpr NumberRange kShare = {"a number > 0 and at most 1", [](double x) { return x > 0 && x <= 1; }};
inline constexpr NumberRange kFraction = {"a number in [0, 1)", [](double x) { return x >= 0 && x < 1; }};

inline constexpr int64_t kLargestCount =
    int64_t{1} << 48;  // of steps, samples, extents: products with small factors stay in 64 bits

// Scalars. Numbers are finite; integers may be written 1e6; only true and false are booleans; text is any scalar that
// is not null.
absl::StatusOr<double> read_number(const YamlNode& node, std::string_view path, const NumberRange& range);
absl::StatusOr<int64_t> read_integer(const YamlNode& node, std::string_view path, int64_t low, int64_t high);
absl::StatusOr<bool> read_bool(const YamlNode& node, std::string_view path);
absl::StatusOr<std::string> read_text(const YamlNode& node, std::string_view path);
absl::StatusOr<size_t> read_choice(const YamlNode& node, std::string_view path,
                                   std::span<const std::string_view> choices);
// A glob of 1 to 1024 bytes; a list of them, or one alone.
absl::StatusOr<std::vector<std::string>> read_globs(const YamlNode& node, std::string_view path);
absl::Status check_glob(const YamlNode& node, std::string_view path, std::string_view glob);

// "a, b, c".
std::string join_names(std::span<const std::string_view> names);
// "unknown key 'x'; the nearest known key is 'y'", or all known keys where none is near, for a key of the section at
// `path`.
absl::Status unknown_key(const YamlEntry& entry, std::string_view path, std::span<const std::string_view> known);

// Parses a node into a member of T.
template <typename T>
using FieldParser = std::function<absl::Status(const YamlNode&, const std::string& path, T&)>;

template <typename T>
struct Field {
  std::string_view key;
  FieldParser<T> parse;
};
template <typename T>
using Fields = std::vector<Field<T>>;

// The entry of `key` in a mapping; nullptr where there is none.
const YamlEntry* find_entry(const YamlNode& node, std::string_view key);

using KeyList = std::initializer_list<std::string_view>;
// Refuses the keys of `node` that are in `conditional` but not in `allowed`: this kind would silently ignore them.
absl::Status check_applicable(const YamlNode& node, const std::string& path, std::string_view kind, KeyList conditional,
                              KeyList allowed);

absl::StatusOr<std::vector<const YamlEntry*>> match_keys(const YamlNode& node, std::string_view path,
                                                         const std::vector<std::string_view>& keys);

// Fields are parsed in the order of the table, so that a `kind` can set the defaults of the keys after it.
template <typename T>
absl::Status parse_fields(const YamlNode& node, const std::string& path, const Fields<T>& fields, T& out) {
  std::vector<std::string_view> keys;
  for (const Field<T>& field : fields) keys.push_back(field.key);
  PARTITA_ASSIGN_OR_RETURN(std::vector<const YamlEntry*> found, match_keys(node, path, keys));
  for (size_t i = 0; i < fields.size(); ++i) {
    if (found[i] != nullptr)
      PARTITA_RETURN_IF_ERROR(fields[i].parse(*found[i]->value, join_path(path, fields[i].key), out));
  }
  return absl::OkStatus();
}

template <typename M>
struct is_optional : std::false_type {};
template <typename M>
struct is_optional<std::optional<M>> : std::true_type {
  using type = M;
};
template <typename M>
struct plain_type {
  using type = M;
};
template <typename M>
struct plain_type<std::optional<M>> {
  using type = M;
};

// A parser from `read(node, path) -> StatusOr<value>` and the member that takes the value.
template <typename T, typename M, typename Read>
FieldParser<T> field(M T::*member, Read read) {
  return [member, read](const YamlNode& node, const std::string& path, T& out) -> absl::Status {
    if constexpr (is_optional<M>::value) {
      if (node.kind == YamlNode::Kind::kNull) {
        out.*member = std::nullopt;
        return absl::OkStatus();
      }
    }
    PARTITA_ASSIGN_OR_RETURN(auto value, read(node, path));
    out.*member = static_cast<typename plain_type<M>::type>(std::move(value));
    return absl::OkStatus();
  };
}

template <typename T, typename M>
FieldParser<T> number(M T::*member, NumberRange range) {
  return field(member,
               [range](const YamlNode& node, const std::string& path) { return read_number(node, path, range); });
}
template <typename T, typename M>
FieldParser<T> integer(M T::*member, int64_t low, int64_t high = kLargestCount) {
  return field(member, [low, high](const YamlNode& node, const std::string& path) {
    return read_integer(node, path, low, high);
  });
}
template <typename T, typename M>
FieldParser<T> boolean(M T::*member) {
  return field(member, read_bool);
}
template <typename T, typename M>
FieldParser<T> text(M T::*member) {
  return field(member, read_text);
}
template <typename T>
FieldParser<T> globs(std::vector<std::string> T::*member) {
  return field(member, read_globs);
}
template <typename T, typename M>
FieldParser<T> choice(M T::*member) {
  return field(member, [](const YamlNode& node, const std::string& path) {
    return read_choice(node, path, enum_names<typename plain_type<M>::type>());
  });
}

// A list of exactly N numbers.
template <typename T, size_t N>
FieldParser<T> numbers(std::array<double, N> T::*member, NumberRange range) {
  return [member, range](const YamlNode& node, const std::string& path, T& out) -> absl::Status {
    if (node.kind != YamlNode::Kind::kSequence || node.items.size() != N)
      return unexpected(node, path, cat("a list of ", N == 2 ? "two" : "three", " numbers"));
    for (size_t i = 0; i < N; ++i) {
      PARTITA_ASSIGN_OR_RETURN((out.*member)[i], read_number(*node.items[i], path, range));
    }
    return absl::OkStatus();
  };
}

// A mapping from any name to what `read` gives.
template <typename T, typename V, typename Read>
FieldParser<T> map_of(std::map<std::string, V> T::*member, Read read) {
  return [member, read](const YamlNode& node, const std::string& path, T& out) -> absl::Status {
    if (node.kind == YamlNode::Kind::kNull) return absl::OkStatus();
    if (node.kind != YamlNode::Kind::kMapping) return unexpected(node, path, "a mapping");
    for (const YamlEntry& entry : node.entries) {
      PARTITA_ASSIGN_OR_RETURN((out.*member)[entry.key], read(*entry.value, join_path(path, entry.key)));
    }
    return absl::OkStatus();
  };
}

// A nested section; an optional one comes to exist when its key has a value.
template <typename T, typename M>
FieldParser<T> section(M T::*member,
                       absl::Status (*parse)(const YamlNode&, const std::string&, typename plain_type<M>::type&)) {
  return [member, parse](const YamlNode& node, const std::string& path, T& out) -> absl::Status {
    if (node.kind == YamlNode::Kind::kNull) return absl::OkStatus();
    typename plain_type<M>::type value{};
    PARTITA_RETURN_IF_ERROR(parse(node, path, value));
    out.*member = std::move(value);
    return absl::OkStatus();
  };
}

}  // namespace partita
