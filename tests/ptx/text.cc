#include "tests/ptx/text.h"

#include <cctype>
#include <charconv>

#include "base/cat.h"
#include "base/status.h"

namespace partita::ptx {
namespace {

absl::Status fault(int line, const std::string& what) {
  return absl::InvalidArgumentError(cat("PTX, line ", line, ": ", what));
}

bool is_of_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '%'; }

// Words (with the points in them), numbers with their sign, and single characters.
class Tokens {
 public:
  Tokens(std::string_view text, int line) : text_(text), line_(line) { next(); }
  std::string_view now() const { return now_; }  // empty: the end
  int line() const { return line_; }
  bool is_over() const { return now_.empty(); }
  std::string_view take() {
    std::string_view token = now_;
    next();
    return token;
  }
  bool take_if(std::string_view token) {
    if (now_ != token) return false;
    next();
    return true;
  }
  // The text up to the brace that closes the one which was just taken.
  std::string_view take_block() {
    const char* begin = now_.data();
    for (int depth = 1; !is_over(); next()) {
      depth += now_ == "{" ? 1 : now_ == "}" ? -1 : 0;
      if (depth == 0) break;
    }
    std::string_view block(begin, static_cast<size_t>(now_.data() - begin));
    next();
    return block;
  }

 private:
  void skip() {
    while (at_ < text_.size()) {
      if (text_[at_] == '\n') ++line_;
      if (std::isspace(static_cast<unsigned char>(text_[at_]))) {
        ++at_;
      } else if (text_.compare(at_, 2, "//") == 0) {
        at_ = std::min(text_.size(), text_.find('\n', at_));
      } else if (text_.compare(at_, 2, "/*") == 0) {
        const size_t end = std::min(text_.size(), text_.find("*/", at_) + 2);
        for (; at_ < end; ++at_) line_ += text_[at_] == '\n';
      } else {
        break;
      }
    }
  }
  void next() {
    skip();
    const size_t begin = at_;
    const auto at = [&](size_t k) { return k < text_.size() ? text_[k] : '\0'; };
    if (at(at_) == '"') {
      at_ = std::min(text_.size(), text_.find('"', at_ + 1) + 1);
    } else if (is_of_word(at(at_)) || (at(at_) == '.' && is_of_word(at(at_ + 1)))) {
      while (is_of_word(at(at_)) || at(at_) == '.' || (at(at_) == ':' && at(at_ + 1) == ':'))
        at_ += at(at_) == ':' ? 2 : 1;
    } else if (at_ < text_.size()) {
      ++at_;
      if (at(begin) == '-' && std::isdigit(static_cast<unsigned char>(at(at_)))) {
        while (is_of_word(at(at_))) ++at_;
      }
    }
    now_ = text_.substr(begin, at_ - begin);
  }

  std::string_view text_, now_;
  size_t at_ = 0;
  int line_;
};

std::vector<std::string> split(std::string_view word) {
  std::vector<std::string> parts;
  for (size_t at = 0; at <= word.size();) {
    const size_t end = std::min(word.size(), word.find('.', at));
    parts.emplace_back(word.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

bool is_number(std::string_view token) {
  return !token.empty() &&
         (std::isdigit(static_cast<unsigned char>(token[0])) || (token[0] == '-' && token.size() > 1));
}

absl::StatusOr<Operand> read_number(std::string_view token, int line) {
  Operand made{.kind = Operand::Kind::kNumber};
  const bool negative = token[0] == '-';
  std::string_view digits = token.substr(negative ? 1 : 0);
  int base = 10;
  if (digits.size() > 1 && digits[0] == '0') {
    const char form = static_cast<char>(std::tolower(static_cast<unsigned char>(digits[1])));
    if (form == 'f' || form == 'd') made.float_bytes = form == 'f' ? 4 : 8;
    base = form == 'x' || made.float_bytes != 0 ? 16 : form == 'b' ? 2 : 8;
    digits = digits.substr(base == 8 ? 1 : 2);
  }
  if (base == 10 && !digits.empty() && digits.back() == 'U') digits.remove_suffix(1);
  auto [rest, wrong] = std::from_chars(digits.data(), digits.data() + digits.size(), made.bits, base);
  if (wrong != std::errc() || rest != digits.data() + digits.size()) return fault(line, cat("no number: ", token));
  if (negative) made.bits = ~made.bits + 1;
  return made;
}

absl::StatusOr<Operand> read_operand(Tokens& t);

absl::StatusOr<Operand> read_simple(Tokens& t) {
  Operand made;
  if (is_number(t.now())) {
    const int line = t.line();
    return read_number(t.take(), line);
  }
  if (t.is_over() || !is_of_word(t.now()[0]))
    return fault(t.line(), cat("an operand is expected before '", t.now(), "'"));
  made.name = t.take();
  return made;
}

absl::StatusOr<Operand> read_operand(Tokens& t) {
  Operand made;
  if (t.take_if("{")) {
    made.kind = Operand::Kind::kList;
    do {
      PARTITA_ASSIGN_OR_RETURN(Operand part, read_simple(t));
      made.parts.push_back(std::move(part));
    } while (t.take_if(","));
    if (!t.take_if("}")) return fault(t.line(), "'}' is expected");
    return made;
  }
  if (t.take_if("[")) {
    made.kind = Operand::Kind::kAddress;
    PARTITA_ASSIGN_OR_RETURN(Operand base, read_simple(t));
    made.name = base.name;
    made.bits = base.bits;
    if (t.take_if("+")) {
      PARTITA_ASSIGN_OR_RETURN(Operand offset, read_simple(t));
      made.bits += offset.bits;
    } else if (is_number(t.now())) {
      const int line = t.line();
      PARTITA_ASSIGN_OR_RETURN(Operand offset, read_number(t.take(), line));
      made.bits += offset.bits;
    }
    if (!t.take_if("]")) return fault(t.line(), "']' is expected");
    return made;
  }
  PARTITA_ASSIGN_OR_RETURN(made, read_simple(t));
  if (t.take_if("|")) {
    PARTITA_ASSIGN_OR_RETURN(Operand second, read_simple(t));
    Operand pair{.kind = Operand::Kind::kPair};
    pair.parts = {made, second};
    return pair;
  }
  return made;
}

// ".align 8 .b8 name[88]", after the word that says the space.
absl::StatusOr<Variable> read_variable(Tokens& t) {
  Variable v;
  while (!t.is_over() && t.now()[0] == '.') {
    const std::string_view word = t.take().substr(1);
    if (word == "align") {
      PARTITA_ASSIGN_OR_RETURN(Operand n, read_simple(t));
      v.alignment = static_cast<int64_t>(n.bits);
    } else if (auto type = type_named(word)) {
      v.type = *type;
    } else if (word != "ptr" && word != "global" && word != "shared") {
      return fault(t.line(), cat("no type: .", word));
    }
  }
  PARTITA_ASSIGN_OR_RETURN(Operand name, read_simple(t));
  v.name = name.name;
  v.bytes = bytes_of(v.type);
  v.alignment = std::max<int64_t>(v.alignment, bytes_of(v.type));
  while (t.take_if("[")) {
    if (t.take_if("]")) {
      v.bytes = 0;
      break;
    }
    PARTITA_ASSIGN_OR_RETURN(Operand count, read_simple(t));
    v.bytes *= static_cast<int64_t>(count.bits);
    if (!t.take_if("]")) return fault(t.line(), "']' is expected");
  }
  return v;
}

absl::StatusOr<std::vector<Variable>> read_parameters(Tokens& t) {
  std::vector<Variable> all;
  if (!t.take_if("(")) return all;
  while (!t.take_if(")")) {
    if (!t.take_if(".param")) return fault(t.line(), cat("'.param' is expected before '", t.now(), "'"));
    PARTITA_ASSIGN_OR_RETURN(Variable v, read_variable(t));
    all.push_back(std::move(v));
    t.take_if(",");
  }
  return all;
}

absl::Status skip_directive(Tokens& t) {
  while (!t.is_over() && !t.take_if(";")) t.take();
  return absl::OkStatus();
}

absl::Status read_function(Tokens& t, bool is_entry, Text& text) {
  Function f;
  f.is_entry = is_entry;
  if (!is_entry) {
    PARTITA_ASSIGN_OR_RETURN(f.results, read_parameters(t));
  }
  f.name = t.take();
  PARTITA_ASSIGN_OR_RETURN(f.parameters, read_parameters(t));
  // .maxntid 128, 1, 1 and its like
  while (!t.is_over() && t.now() != "{" && t.now() != ";") t.take();
  if (t.take_if(";")) return absl::OkStatus();  // declared here, defined elsewhere
  f.line = t.line();
  if (!t.take_if("{")) return fault(t.line(), cat("a body is expected of ", f.name));
  f.line = t.line();
  f.text = t.take_block();
  text.functions[f.name] = std::move(f);
  return absl::OkStatus();
}

class BodyReader {
 public:
  explicit BodyReader(const Function& function) : t_(function.text, function.line) {}

  absl::StatusOr<Body> read() {
    while (!t_.is_over()) PARTITA_RETURN_IF_ERROR(read_item());
    return std::move(body_);
  }

 private:
  absl::Status read_item() {
    if (t_.take_if("{")) {
      scopes_.emplace_back();
      return absl::OkStatus();
    }
    if (t_.take_if("}")) {
      if (scopes_.size() < 2) return fault(t_.line(), "a '}' without its '{'");
      scopes_.pop_back();
      return absl::OkStatus();
    }
    if (t_.now()[0] == '.') return read_declaration();
    return read_statement();
  }

  // In an inner block a name may be given once more.
  std::string fresh(const std::string& name) {
    std::string made = scopes_.size() == 1 ? name : cat(name, "'", ++inner_);
    scopes_.back()[name] = made;
    return made;
  }
  std::string resolve(const std::string& name) const {
    for (size_t s = scopes_.size(); s-- > 0;) {
      if (auto at = scopes_[s].find(name); at != scopes_[s].end()) return at->second;
    }
    return name;
  }
  void resolve(Operand& o) const {
    if (!o.name.empty()) o.name = resolve(o.name);
    for (Operand& part : o.parts) resolve(part);
  }

  absl::Status read_declaration() {
    const int line = t_.line();
    const std::string_view directive = t_.take();
    if (directive == ".reg") {
      const auto type = type_named(t_.take().substr(1));
      if (!type) return fault(line, "a register of no type");
      do {
        const std::string name(t_.take());
        if (t_.take_if("<")) {
          PARTITA_ASSIGN_OR_RETURN(Operand count, read_simple(t_));
          for (uint64_t k = 0; k < count.bits; ++k) {
            const std::string one = cat(name, k);
            body_.registers[fresh(one)] = *type;
          }
          t_.take_if(">");
        } else {
          body_.registers[fresh(name)] = *type;
        }
      } while (t_.take_if(","));
    } else if (directive == ".shared" || directive == ".local" || directive == ".param") {
      PARTITA_ASSIGN_OR_RETURN(Variable v, read_variable(t_));
      v.name = fresh(v.name);
      (directive == ".shared" ? body_.shared : directive == ".local" ? body_.local : body_.parameters).push_back(v);
    } else if (directive == ".pragma") {
      t_.take();
    } else {
      return fault(line, cat("unknown directive ", directive));
    }
    if (!t_.take_if(";")) return fault(line, cat("';' is expected after ", directive));
    return absl::OkStatus();
  }

  absl::Status read_names(std::vector<std::string>& names) {
    if (!t_.take_if("(")) return absl::OkStatus();
    while (!t_.take_if(")")) {
      names.push_back(resolve(std::string(t_.take())));
      t_.take_if(",");
      if (t_.is_over()) return fault(t_.line(), "')' is expected");
    }
    return absl::OkStatus();
  }

  absl::Status read_statement() {
    Statement s;
    s.line = t_.line();
    if (t_.take_if("@")) {
      s.guard_is_negated = t_.take_if("!");
      s.guard = resolve(std::string(t_.take()));
    }
    const std::string_view word = t_.take();
    if (t_.take_if(":")) {
      body_.labels[std::string(word)] = body_.statements.size();
      return absl::OkStatus();
    }
    s.opcode = split(word);
    if (s.opcode[0] == "call") {
      PARTITA_RETURN_IF_ERROR(read_names(s.results));
      t_.take_if(",");
      s.callee = t_.take();
      if (t_.take_if(",")) PARTITA_RETURN_IF_ERROR(read_names(s.arguments));
    } else if (t_.now() != ";") {
      do {
        PARTITA_ASSIGN_OR_RETURN(Operand o, read_operand(t_));
        resolve(o);
        s.operands.push_back(std::move(o));
      } while (t_.take_if(","));
    }
    if (!t_.take_if(";")) return fault(t_.line(), cat("';' is expected before '", t_.now(), "', after ", word));
    body_.statements.push_back(std::move(s));
    return absl::OkStatus();
  }

  Tokens t_;
  Body body_;
  std::vector<std::map<std::string, std::string>> scopes_{1};
  int inner_ = 0;
};

}  // namespace

absl::StatusOr<Text> read_text(std::string_view whole) {
  Text text;
  Tokens t(whole, 1);
  while (!t.is_over()) {
    const int line = t.line();
    const std::string_view word = t.take();
    if (word == ".version" || word == ".address_size") {
      t.take();
    } else if (word == ".target") {
      text.target = t.take();
      while (t.take_if(",")) t.take();
    } else if (word == ".entry" || word == ".func") {
      PARTITA_RETURN_IF_ERROR(read_function(t, word == ".entry", text));
    } else if (word == ".shared") {
      PARTITA_ASSIGN_OR_RETURN(Variable v, read_variable(t));
      text.shared.push_back(std::move(v));
      t.take_if(";");
    } else if (word == ".file") {
      PARTITA_RETURN_IF_ERROR(skip_directive(t));
    } else if (word != ".visible" && word != ".weak" && word != ".extern") {
      return fault(line, cat("unknown directive ", word));
    }
  }
  if (text.target.empty()) return fault(1, "no .target");
  return text;
}

absl::StatusOr<Body> read_body(const Function& function) { return BodyReader(function).read(); }

}  // namespace partita::ptx
