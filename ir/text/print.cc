#include "ir/text/print.h"

#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/cat.h"
#include "base/checksum.h"
#include "fmt/format.h"

namespace partita {
namespace {

constexpr int64_t kShownElements = 64;

std::string ints_text(const std::vector<int64_t>& values) {
  std::string s = "[";
  for (size_t k = 0; k < values.size(); ++k) append(s, k ? ", " : "", values[k]);
  return s + "]";
}

struct AttrText {
  std::string operator()(int64_t v) const { return cat(v); }
  std::string operator()(double v) const { return double_text(v); }
  std::string operator()(const std::string& v) const { return string_text(v); }
  std::string operator()(DType v) const { return std::string(dtype_name(v)); }
  std::string operator()(const std::vector<int64_t>& v) const { return ints_text(v); }
  std::string operator()(const std::vector<double>& v) const {
    std::string s = "floats[";
    for (size_t k = 0; k < v.size(); ++k) append(s, k ? ", " : "", double_text(v[k]));
    return s + "]";
  }
};

class Printer {
 public:
  Printer(const Graph& graph, TextMode mode) : g_(graph), mode_(mode) {}

  std::string text() && {
    append(s_, "graph ", string_text(g_.name), "\n");
    for (const std::string& origin : g_.origins) append(s_, "origin ", string_text(origin), "\n");
    for (const GraphInput& in : g_.inputs) {
      append(s_, "input ", typed(in.value), " ", enum_name(in.kind), " ", string_text(in.name));
      alias(in.value, in.name);
      s_ += "\n";
    }
    for (const State& s : g_.states) state(s);
    for (const Constant& c : g_.constants) {
      append(s_, "constant ", typed(c.value), named(c.value), " = ", data(c.literal), "\n");
    }
    for (const Node& n : g_.nodes) node(n);
    for (const GraphOutput& out : g_.outputs) append(s_, "output ", string_text(out.name), " %", out.value, "\n");
    return std::move(s_);
  }

 private:
  std::string typed(ValueId v) const { return cat("%", v, " ", to_string(g_.type(v))); }
  std::string named(ValueId v) const { return g_.values[v].name.empty() ? "" : " " + string_text(g_.values[v].name); }
  // Inputs and states lend their values their own names; where the value's differs it is told.
  void alias(ValueId v, const std::string& name) {
    if (g_.values[v].name != name) append(s_, " as ", string_text(g_.values[v].name));
  }

  std::string data(const Literal& literal) const {
    std::string values = values_text(literal);
    if (!values.empty()) return values;
    if (mode_ == TextMode::kDump) return fmt::format("elided {:016x}", checksum64(literal.bytes()));
    std::string hex = "hex ";
    hex.reserve(hex.size() + 2 * literal.bytes().size());
    for (std::byte b : literal.bytes()) {
      hex += "0123456789abcdef"[static_cast<int>(b) >> 4];
      hex += "0123456789abcdef"[static_cast<int>(b) & 15];
    }
    return hex;
  }

  void state(const State& s) {
    append(s_, "state ", typed(s.value), " ", enum_name(s.kind), " ", string_text(s.name));
    alias(s.value, s.name);
    if (!s.parameter.empty()) append(s_, " of ", string_text(s.parameter));
    if (const auto* literal = std::get_if<Literal>(&s.initial))
      append(s_, " initial ", to_string(literal->type), " ", data(*literal));
    if (const auto* file = std::get_if<FileRange>(&s.initial))
      append(s_, " initial file ", string_text(file->path), " ", file->offset, " ", file->bytes);
    if (const auto* rule = std::get_if<InitialRule>(&s.initial)) {
      append(s_, " initial rule ", enum_name(rule->kind), " ", double_text(rule->a), " ", double_text(rule->b));
    }
    if (s.next != kNoValue) append(s_, " next %", s.next);
    s_ += "\n";
  }

  void node(const Node& n) {
    for (size_t k = 0; k < n.outputs.size(); ++k) append(s_, k ? ", " : "", typed(n.outputs[k]), named(n.outputs[k]));
    append(s_, n.outputs.empty() ? "= " : " = ", n.op->name, "(");
    for (size_t k = 0; k < n.inputs.size(); ++k) {
      s_ += k ? ", " : "";
      s_ += n.inputs[k] == kNoValue ? "_" : cat("%", n.inputs[k]);
    }
    s_ += ")";
    if (!n.attrs.items().empty()) {
      s_ += " {";
      bool first = true;
      for (const auto& [name, value] : n.attrs.items()) {
        append(s_, first ? "" : ", ", name, "=", std::visit(AttrText{}, value));
        first = false;
      }
      s_ += "}";
    }
    append(s_, " @", enum_name(n.segment));
    if (n.origin >= 0) append(s_, " origin ", n.origin);
    if (n.block >= 0) append(s_, " block ", n.block);
    if (n.weight_gradient) s_ += " weight_gradient";
    if (n.device == DeviceKind::kHost) s_ += " host";
    if (n.chunk != 0) append(s_, " chunk ", n.chunk);
    if (n.turn != 0) append(s_, " turn ", n.turn);
    s_ += "\n";
  }

  const Graph& g_;
  TextMode mode_;
  std::string s_;
};

template <typename T>
std::optional<T> parse_number(std::string_view text) {
  T value{};
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

}  // namespace

std::string double_text(double value) {
  if (std::isnan(value)) {
    uint64_t bits = std::bit_cast<uint64_t>(value);
    return bits == std::bit_cast<uint64_t>(std::numeric_limits<double>::quiet_NaN()) ? "nan"
                                                                                     : fmt::format("0x{:016x}", bits);
  }
  std::string s = fmt::format("{}", value);
  return s.find_first_of(".ein") == s.npos ? s + ".0" : s;
}

std::optional<double> parse_double(std::string_view text) {
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (text == "inf" || text == "-inf")
    return text == "inf" ? std::numeric_limits<double>::infinity() : -std::numeric_limits<double>::infinity();
  if (text.starts_with("0x")) {
    uint64_t bits = 0;
    auto [end, error] = std::from_chars(text.data() + 2, text.data() + text.size(), bits, 16);
    if (text.size() != 18 || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return std::bit_cast<double>(bits);
  }
  if (text.find_first_of("ian") != text.npos) return std::nullopt;  // from_chars would take "infinity", "nan(…)"
  return parse_number<double>(text);
}

std::string string_text(std::string_view text) {
  std::string s = "\"";
  for (unsigned char c : text) {
    if (c == '"' || c == '\\') {
      s += '\\';
      s += static_cast<char>(c);
    } else if (c == '\n') {
      s += "\\n";
    } else if (c < 0x20 || c == 0x7f) {
      s += fmt::format("\\x{:02x}", c);
    } else {
      s += static_cast<char>(c);
    }
  }
  return s + "\"";
}

std::optional<Literal> element_literal(DType dtype, std::string_view text) {
  Tensor t = Tensor::zeros({dtype, {}});
  if (is_float(dtype)) {
    auto value = parse_double(text);
    if (!value) return std::nullopt;
    t.f[0] = *value;
  } else if (dtype == DType::kU64) {
    auto value = parse_number<uint64_t>(text);
    if (!value) return std::nullopt;
    t.i[0] = static_cast<int64_t>(*value);
  } else {
    auto value = parse_number<int64_t>(text);
    if (!value) return std::nullopt;
    t.i[0] = *value;
  }
  Literal literal = to_literal(t);
  if (!is_float(dtype) && to_tensor(literal).i != t.i) return std::nullopt;  // out of the type's range
  return literal;
}

std::string values_text(const Literal& literal) {
  int64_t n = elements(literal.type.shape), size = dtype_size(literal.type.dtype);
  if (n > kShownElements) return "";
  std::string s = "[";
  for (int64_t k = 0; k < n; ++k) {
    DType t = literal.type.dtype;
    double f = element_f(literal, k);
    int64_t i = is_float(t) ? 0 : element_i(literal, k);
    std::string one = t == DType::kU64                        ? cat(static_cast<uint64_t>(i))
                      : !is_float(t)                          ? cat(i)
                      : t == DType::kF64 || !std::isfinite(f) ? double_text(f)
                                                              : cat(static_cast<float>(f));
    auto back = element_literal(t, one);
    if (!back || std::memcmp(back->data, literal.data + k * size, static_cast<size_t>(size)) != 0) return "";
    append(s, k ? ", " : "", one);
  }
  return s + "]";
}

std::string print(const Graph& graph, TextMode mode) { return Printer(graph, mode).text(); }

}  // namespace partita
