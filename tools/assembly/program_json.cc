#include "tools/assembly/program_json.h"

#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/escaping.h"
#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/program/program_fields.h"

namespace partita {
namespace {

using Json = nlohmann::ordered_json;
using Bytes = std::vector<uint8_t>;
using runtime::Param;
using runtime::Params;

constexpr const char *kReal = "real", *kReals = "reals";  // keys of what JSON has no numbers or no types for

template <typename T>
constexpr bool is_list = false;
template <typename T>
constexpr bool is_list<std::vector<T>> = true;
template <typename T>
constexpr bool is_text = std::is_same_v<T, std::string>;

std::string_view real_name(double x) { return std::isnan(x) ? "nan" : x > 0 ? "inf" : "-inf"; }

class Writer {
 public:
  template <typename... Fields>
  void operator()(const Fields&... fields) {
    ((json_[fields.name] = json(fields.value)), ...);
  }

  template <typename T>
  Json json(const T& x) {
    if constexpr (is_text<T>) {
      if (!is_utf8(x) && bad_.empty()) bad_ = x;
      return bad_.empty() ? x : std::string();
    } else if constexpr (std::is_same_v<T, double>) {
      return std::isfinite(x) ? Json(x) : Json{{kReal, real_name(x)}};
    } else if constexpr (std::is_same_v<T, Bytes>) {
      return absl::Base64Escape({reinterpret_cast<const char*>(x.data()), x.size()});
    } else if constexpr (std::is_same_v<T, DType>) {
      return dtype_name(x);
    } else if constexpr (std::is_enum_v<T>) {
      return enum_name(x);
    } else if constexpr (std::is_integral_v<T>) {
      return x;
    } else if constexpr (std::is_same_v<T, Params>) {
      Json params = Json::object();
      for (const auto& [name, value] : x)
        params[json(name).template get<std::string>()] = std::visit([&](const auto& v) { return param(v); }, value);
      return params;
    } else if constexpr (is_list<T> || std::is_array_v<T>) {
      Json list = Json::array();
      for (const auto& v : x) list.push_back(json(v));
      return list;
    } else {
      Json outer = std::exchange(json_, Json::object());
      runtime::fields(*this, x);
      return std::exchange(json_, std::move(outer));
    }
  }

  const std::string& bad() const { return bad_; }

 private:
  template <typename T>
  Json param(const T& x) {
    return json(x);
  }
  Json param(const std::vector<double>& x) { return {{kReals, json(x)}}; }

  Json json_;
  std::string bad_;  // the first name that is no UTF-8
};

class Reader {
 public:
  Reader(const Json& json, const std::string& place, absl::Status& status)
      : json_(json), place_(place), status_(status) {}

  template <typename... Fields>
  void operator()(const Fields&... fields) {
    (field(fields.name, fields.value), ...);
    for (const auto& [key, value] : json_.items()) {
      if (status_.ok() && ((key != fields.name) && ...)) stop(place_, cat("no key ", quote(key)), "it");
    }
  }

  template <typename T>
  void read(const Json& j, const std::string& place, T& x) {
    if (!status_.ok()) return;
    if constexpr (is_text<T>) {
      if (j.is_string()) return void(x = j.get<std::string>());
      fail(place, "a text", j);
    } else if constexpr (std::is_same_v<T, double>) {
      if (!real(j, x)) fail(place, "a number, or {\"real\": \"nan\"}, \"inf\" or \"-inf\"", j);
    } else if constexpr (std::is_same_v<T, Bytes>) {
      std::string bytes;
      if (!j.is_string() || !absl::Base64Unescape(j.get_ref<const std::string&>(), &bytes))
        return fail(place, "bytes in base64", j);
      x.assign(bytes.begin(), bytes.end());
    } else if constexpr (std::is_enum_v<T>) {
      read_enum(j, place, x);
    } else if constexpr (std::is_integral_v<T>) {
      read_integer(j, place, x);
    } else if constexpr (std::is_same_v<T, Params>) {
      if (!j.is_object()) return fail(place, "an object", j);
      for (const auto& [name, value] : j.items()) read_param(value, cat(place, ".", name), x[name]);
    } else if constexpr (std::is_array_v<T>) {
      if (!j.is_array() || j.size() != std::size(x)) return fail(place, cat("a list of ", std::size(x)), j);
      for (size_t k = 0; k < j.size(); ++k) read(j[k], cat(place, "[", k, "]"), x[k]);
    } else if constexpr (is_list<T>) {
      if (!j.is_array()) return fail(place, "a list", j);
      for (size_t k = 0; k < j.size() && status_.ok(); ++k) read(j[k], cat(place, "[", k, "]"), x.emplace_back());
    } else {
      if (!j.is_object()) return fail(place, "an object", j);
      Reader record(j, place, status_);
      runtime::fields(record, x);
    }
  }

 private:
  template <typename T>
  void field(const char* name, T& x) {
    const auto at = json_.find(name);
    if (at != json_.end()) return read(*at, cat(place_, ".", name), x);
    stop(place_, cat("a key ", quote(name)), "none");
  }

  template <typename T>
  void read_enum(const Json& j, const std::string& place, T& x) {
    if (!j.is_string()) return fail(place, "a name", j);
    const std::string& name = j.get_ref<const std::string&>();
    if constexpr (std::is_same_v<T, DType>) {
      x = parse_dtype(name);
      if (x == DType::kInvalid && name != dtype_name(x)) fail(place, "a type of elements", j);
    } else {
      const std::optional<T> value = parse_enum<T>(name);
      const auto names = enum_names<T>();
      if (!value) return fail(place, cat("one of ", quote_list({names.begin(), names.end()}, names.size())), j);
      x = *value;
    }
  }

  template <typename T>
  void read_integer(const Json& j, const std::string& place, T& x) {
    const bool fits = j.is_number_unsigned()  ? std::in_range<T>(j.get<uint64_t>())
                      : j.is_number_integer() ? std::in_range<T>(j.get<int64_t>())
                                              : false;
    if (fits) return void(x = j.get<T>());
    fail(place, cat("an integer from ", std::numeric_limits<T>::min(), " to ", std::numeric_limits<T>::max()), j);
  }

  static bool real(const Json& j, double& x) {
    if (j.is_number()) return x = j.get<double>(), true;
    if (!j.is_object() || j.size() != 1 || !j.contains(kReal)) return false;
    for (double special : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
                           -std::numeric_limits<double>::infinity()}) {
      if (j[kReal] == real_name(special)) return x = special, true;
    }
    return false;
  }

  void read_param(const Json& j, const std::string& place, Param& x) {
    if (j.is_number_integer()) return read(j, place, x.emplace<int64_t>());
    if (j.is_string()) return read(j, place, x.emplace<std::string>());
    if (j.is_array()) return read(j, place, x.emplace<std::vector<int64_t>>());
    if (j.is_object() && j.size() == 1 && j.contains(kReals))
      return read(j[kReals], cat(place, ".", kReals), x.emplace<std::vector<double>>());
    read(j, place, x.emplace<double>());
  }

  void stop(const std::string& place, const std::string& expected, std::string_view found) {
    if (status_.ok()) status_ = absl::InvalidArgumentError(cat(place, ": expected ", expected, ", found ", found));
  }
  void fail(const std::string& place, const std::string& expected, const Json& found) {
    stop(place, expected, quote(found.dump(-1, ' ', false, Json::error_handler_t::replace), 80));
  }

  const Json& json_;
  const std::string& place_;
  absl::Status& status_;
};

bool holds_records(const Json& json) {
  for (const Json& x : json) {
    if (x.is_object() || (x.is_array() && holds_records(x))) return true;
  }
  return false;
}

// Broken into lines as deep as lists of records are.
void write(const Json& json, size_t indent, std::string& text) {
  if (!json.is_structured() || !holds_records(json) || indent > 5) return void(text += json.dump());
  text += json.is_array() ? "[" : "{";
  bool first = true;
  for (const auto& [key, value] : json.items()) {
    text += cat(first ? "\n" : ",\n", std::string(indent + 1, ' '));
    if (json.is_object()) text += Json(key).dump() + ": ";
    write(value, indent + 1, text);
    first = false;
  }
  text += cat("\n", std::string(indent, ' '), json.is_array() ? "]" : "}");
}

}  // namespace

absl::StatusOr<Json> program_json(const runtime::Program& program) {
  Writer writer;
  Json json = writer.json(program);
  if (writer.bad().empty()) return json;
  return absl::InvalidArgumentError(cat("the name ", quote(writer.bad()), " is no UTF-8, which JSON cannot hold"));
}

absl::StatusOr<runtime::Program> parse_program_json(const Json& json, const std::string& place) {
  runtime::Program program;
  absl::Status status;
  Reader(json, place, status).read(json, place, program);
  if (!status.ok()) return status;
  return program;
}

std::string indented(const Json& json) {
  std::string text;
  write(json, 0, text);
  return text + "\n";
}

}  // namespace partita
