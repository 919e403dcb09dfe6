#include "ir/text/lexer.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include "base/cat.h"
#include "base/quote.h"
#include "ir/text/print.h"

namespace partita {
namespace {

bool is_word_char(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }
int hex_digit(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; }

}  // namespace

char Lexer::peek() {
  while (at_ < text_.size() && (std::isspace(static_cast<unsigned char>(text_[at_])) || text_[at_] == '#')) {
    if (text_[at_] == '#') {
      at_ = std::min(text_.find('\n', at_), text_.size());
    } else {
      ++at_;
    }
  }
  return at_ < text_.size() ? text_[at_] : '\0';
}

size_t Lexer::at() {
  peek();
  return at_;
}

absl::Status Lexer::fault(std::string_view message, size_t at) const {
  std::string_view before = text_.substr(0, at);
  size_t line = 1 + static_cast<size_t>(std::count(before.begin(), before.end(), '\n')), start = before.rfind('\n');
  return absl::InvalidArgumentError(
      cat("line ", line, ", column ", start == before.npos ? at + 1 : at - start, ": ", message));
}

absl::Status Lexer::expected(std::string_view what) {
  size_t at = this->at(), end = at;
  while (end < text_.size() && end < at + 40 && is_word_char(text_[end])) ++end;
  if (end == at) ++end;
  return fault(cat("expected ", what, ", found ", at < text_.size() ? quote(text_.substr(at, end - at)) : "the end"),
               at);
}

bool Lexer::accept(char c) {
  if (peek() != c || at_ >= text_.size()) return false;
  ++at_;
  return true;
}

absl::Status Lexer::expect(char c) { return accept(c) ? absl::OkStatus() : expected(cat("'", std::string(1, c), "'")); }

std::string_view Lexer::word() {
  peek();
  size_t end = at_;
  while (end < text_.size() && is_word_char(text_[end])) ++end;
  return text_.substr(at_, end - at_);
}

bool Lexer::accept_word(std::string_view expected) {
  if (word() != expected) return false;
  skip(expected);
  return true;
}

absl::StatusOr<std::string> Lexer::take_word(std::string_view what) {
  std::string_view w = word();
  if (w.empty()) return expected(what);
  skip(w);
  return std::string(w);
}

std::string_view Lexer::number() {
  peek();
  size_t end = at_;
  while (end < text_.size() &&
         (is_word_char(text_[end]) || text_[end] == '.' || text_[end] == '-' || text_[end] == '+'))
    ++end;
  return text_.substr(at_, end - at_);
}

absl::StatusOr<int64_t> Lexer::integer(std::string_view what, int64_t least, int64_t most) {
  std::string_view n = number();
  int64_t value = 0;
  auto [end, error] = std::from_chars(n.data(), n.data() + n.size(), value);
  if (n.empty() || error != std::errc() || end != n.data() + n.size() || value < least || value > most)
    return expected(what);
  skip(n);
  return value;
}

absl::StatusOr<double> Lexer::real() {
  std::string_view n = number();
  auto value = parse_double(n);
  if (!value) return expected("a number");
  skip(n);
  return *value;
}

absl::StatusOr<std::string> Lexer::string(std::string_view what) {
  if (peek() != '"') return expected(what);
  size_t start = at_++;
  std::string s;
  for (; at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\n'; ++at_) {
    if (text_[at_] != '\\') {
      s += text_[at_];
      continue;
    }
    char c = ++at_ < text_.size() ? text_[at_] : '\0';
    int high = at_ + 2 < text_.size() ? hex_digit(text_[at_ + 1]) : -1, low = high < 0 ? -1 : hex_digit(text_[at_ + 2]);
    if (c == 'n') {
      s += '\n';
    } else if (c == '"' || c == '\\') {
      s += c;
    } else if (c == 'x' && low >= 0) {
      s += static_cast<char>(high * 16 + low);
      at_ += 2;
    } else {
      return fault("expected \\n, \\\", \\\\ or \\x and two hex digits", at_ - 1);
    }
  }
  if (at_ >= text_.size() || text_[at_] != '"') return fault("this string does not end on its line", start);
  ++at_;
  return s;
}

absl::StatusOr<std::vector<std::byte>> Lexer::hex(size_t size) {
  peek();
  if (size > (text_.size() - at_) / 2) return fault(cat("expected ", size, " bytes in hex, found fewer"), at_);
  std::vector<std::byte> bytes(size);
  for (std::byte& b : bytes) {
    int high = hex_digit(text_[at_]), low = hex_digit(text_[at_ + 1]);
    if (high < 0 || low < 0) return fault(cat("expected ", size, " bytes in hex"), at_);
    b = static_cast<std::byte>(high * 16 + low);
    at_ += 2;
  }
  if (at_ < text_.size() && is_word_char(text_[at_]))
    return fault(cat("expected ", size, " bytes in hex, found more"), at_);
  return bytes;
}

}  // namespace partita
