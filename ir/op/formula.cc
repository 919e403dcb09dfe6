// Parsing is one pass over characters; binding repeats over dimensions until no more sizes follow (each round solves
// one).
#include "ir/op/formula.h"

#include <charconv>

#include "base/cat.h"
#include "base/status.h"

namespace partita {
namespace {

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  absl::StatusOr<Formula> parse() {
    PARTITA_RETURN_IF_ERROR(operands(formula_.inputs));
    skip();
    if (text_.substr(at_, 2) != "->") return fault("'->'");
    at_ += 2;
    PARTITA_RETURN_IF_ERROR(operands(formula_.outputs));
    skip();
    if (at_ != text_.size()) return fault("the end");
    return std::move(formula_);
  }

 private:
  absl::Status fault(std::string_view expected) const {
    return absl::InvalidArgumentError(cat("formula '", text_, "', column ", at_ + 1, ": expected ", expected));
  }
  void skip() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  char peek() {
    skip();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool at_operand_end() {
    char c = peek();
    return c == '\0' || c == ',' || (c == '-' && text_.substr(at_, 2) == "->");
  }

  absl::Status operands(std::vector<FormulaOperand>& into) {
    bool output = &into == &formula_.outputs;
    if (!output && peek() == '-') return absl::OkStatus();  // no inputs at all
    if (output && peek() == '/') {                          // no outputs
      ++at_;
      return absl::OkStatus();
    }
    while (true) {
      FormulaOperand operand;
      if (peek() == '~') {
        ++at_;
        int number = 0, digits = 0;
        while (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])))
          number = number * 10 + (text_[at_++] - '0'), ++digits;
        operand.linear = digits ? number : 1000 + static_cast<int>(into.size());
      }
      if (peek() == '.') ++at_;  // a scalar
      while (!at_operand_end()) PARTITA_RETURN_IF_ERROR(dimension(operand));
      into.push_back(std::move(operand));
      if (peek() != ',') return absl::OkStatus();
      ++at_;
    }
  }

  absl::Status dimension(FormulaOperand& operand) {
    std::vector<int> dim;
    if (peek() == '*') {
      ++at_;
    } else if (peek() == '(') {
      ++at_;
      while (peek() != ')') PARTITA_RETURN_IF_ERROR(factor(dim));
      ++at_;
    } else {
      PARTITA_RETURN_IF_ERROR(factor(dim));
    }
    operand.dims.push_back(std::move(dim));
    return absl::OkStatus();
  }

  absl::Status factor(std::vector<int>& dim) {
    skip();
    size_t start = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '_')) ++at_;
    if (at_ == start) return fault("a factor");
    std::string name(text_.substr(start, at_ - start));
    int index = formula_.find(name);
    if (index < 0) {
      index = static_cast<int>(formula_.factors.size());
      formula_.factors.push_back({name});
    }
    Factor& f = formula_.factors[index];
    if (at_ < text_.size() && text_[at_] == '=') {
      auto [end, error] = std::from_chars(text_.data() + at_ + 1, text_.data() + text_.size(), f.size);
      ++at_;
      if (error != std::errc() || f.size < 0) return fault("a size");
      at_ = static_cast<size_t>(end - text_.data());
    }
    if (at_ < text_.size()) {
      switch (text_[at_]) {
        case '+':
          f.role = FactorRole::kSum;
          ++at_;
          break;
        case '>':
          f.role = FactorRole::kMax;
          ++at_;
          break;
        case '<':
          f.role = FactorRole::kMin;
          ++at_;
          break;
        case '^':
          f.role = FactorRole::kWhole;
          ++at_;
          break;
        default:
          break;
      }
    }
    dim.push_back(index);
    return absl::OkStatus();
  }

  std::string_view text_;
  size_t at_ = 0;
  Formula formula_;
};

std::string operand_text(const Formula& f, const FormulaOperand& operand, std::vector<bool>& seen) {
  std::string s;
  if (operand.linear >= 0) s = operand.linear >= 1000 ? "~" : cat("~", operand.linear);
  auto factor = [&](int index) {
    constexpr const char* kSuffix[] = {"", "+", ">", "<", "^"};
    const Factor& x = f.factors[index];
    std::string t = x.name;
    if (!seen[index]) t += kSuffix[static_cast<int>(x.role)];
    seen[index] = true;
    return t;
  };
  if (operand.dims.empty()) s += s.empty() ? "." : " .";
  for (const auto& dim : operand.dims) {
    if (!s.empty()) s += ' ';
    if (dim.empty()) {
      s += '*';
    } else if (dim.size() == 1) {
      s += factor(dim[0]);
    } else {
      s += '(';
      for (size_t k = 0; k < dim.size(); ++k) s += (k ? " " : "") + factor(dim[k]);
      s += ')';
    }
  }
  return s;
}

// Solves what one dimension tells. Returns whether a size became known.
absl::StatusOr<bool> bind_dimension(Formula& formula, const std::vector<int>& dim, int64_t size, size_t operand,
                                    size_t axis) {
  int64_t known = 1;
  int unknown = -1, unknowns = 0;
  for (int f : dim) {
    if (formula.factors[f].size < 0) {
      unknown = f;
      ++unknowns;
    } else {
      known *= formula.factors[f].size;
    }
  }
  auto mismatch = [&](int64_t expected) {
    return absl::InvalidArgumentError(
        cat("operand ", operand, ", dimension ", axis, ": expected ", expected, ", found ", size));
  };
  if (unknowns == 0) {
    if (known != size) return mismatch(known);
    return false;
  }
  if (unknowns > 1) return false;
  if (known == 0 ? size != 0 : size % known != 0) {
    return absl::InvalidArgumentError(
        cat("operand ", operand, ", dimension ", axis, ": expected a multiple of ", known, ", found ", size));
  }
  formula.factors[unknown].size = known == 0 ? 0 : size / known;
  return true;
}

}  // namespace

int Formula::find(std::string_view name) const {
  for (size_t k = 0; k < factors.size(); ++k) {
    if (factors[k].name == name) return static_cast<int>(k);
  }
  return -1;
}

absl::StatusOr<Formula> parse_formula(std::string_view text) { return Parser(text).parse(); }

std::string to_string(const Formula& f) {
  std::vector<bool> seen(f.factors.size(), false);
  std::string s;
  for (size_t k = 0; k < f.inputs.size(); ++k) s += (k ? ", " : "") + operand_text(f, f.inputs[k], seen);
  s += s.empty() ? "->" : " ->";
  if (f.outputs.empty()) s += " /";
  for (size_t k = 0; k < f.outputs.size(); ++k) s += (k ? ", " : " ") + operand_text(f, f.outputs[k], seen);
  return s;
}

absl::Status bind_sizes(Formula& formula, const std::vector<Shape>& inputs) {
  if (inputs.size() != formula.inputs.size()) {
    return absl::InvalidArgumentError(cat("expected ", formula.inputs.size(), " operands, found ", inputs.size()));
  }
  for (size_t k = 0; k < inputs.size(); ++k) {
    if (inputs[k].size() != formula.inputs[k].dims.size()) {
      return absl::InvalidArgumentError(
          cat("operand ", k, ": expected rank ", formula.inputs[k].dims.size(), ", found ", to_string(inputs[k])));
    }
  }
  for (bool more = true; more;) {
    more = false;
    for (size_t k = 0; k < inputs.size(); ++k) {
      for (size_t d = 0; d < inputs[k].size(); ++d) {
        PARTITA_ASSIGN_OR_RETURN(bool solved, bind_dimension(formula, formula.inputs[k].dims[d], inputs[k][d], k, d));
        more |= solved;
      }
    }
  }
  for (const Factor& f : formula.factors) {
    if (f.size < 0) return absl::InvalidArgumentError(cat("factor '", f.name, "' has no size"));
  }
  return absl::OkStatus();
}

Shape operand_shape(const Formula& formula, const FormulaOperand& operand) {
  Shape shape;
  for (const auto& dim : operand.dims) {
    int64_t size = 1;
    for (int f : dim) size *= formula.factors[f].size;
    shape.push_back(size);
  }
  return shape;
}

bool has_factor(const FormulaOperand& operand, int factor) {
  return std::any_of(operand.dims.begin(), operand.dims.end(),
                     [&](const auto& dim) { return std::find(dim.begin(), dim.end(), factor) != dim.end(); });
}

int64_t points(const Formula& formula) {
  int64_t n = 1;
  for (const Factor& f : formula.factors) n *= f.size;
  return n;
}

std::string factor_name(int index) {
  return index < 26 ? std::string(1, static_cast<char>('a' + index)) : cat("x", index);
}

}  // namespace partita
