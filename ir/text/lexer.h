// Characters to the tokens of a graph's text form (print.h), with faults that name their place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace partita {

// White space and comments ('#' to the end of the line) stand between tokens and are skipped. Cheap to copy: to look
// ahead, copy and come back.
class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}

  // The next token's first character, '\0' at the end; whether there is none; its place.
  char peek();
  bool done() { return peek() == '\0' && at_ >= text_.size(); }
  size_t at();

  // InvalidArgument "line 3, column 7: MESSAGE"; "… expected WHAT, found …" at the next token.
  absl::Status fault(std::string_view message, size_t at) const;
  absl::Status expected(std::string_view what);

  bool accept(char c);
  absl::Status expect(char c);

  // The word (letters, digits, '_') or the characters of a number ahead, which stay until skipped; empty where there
  // are none.
  std::string_view word();
  std::string_view number();
  void skip(std::string_view token) { at_ += token.size(); }

  bool accept_word(std::string_view expected);
  absl::StatusOr<std::string> take_word(std::string_view what);
  absl::StatusOr<int64_t> integer(std::string_view what, int64_t least, int64_t most);
  absl::StatusOr<double> real();
  // A string in double quotes, on one line.
  absl::StatusOr<std::string> string(std::string_view what);
  // Exactly 2 * size hex digits.
  absl::StatusOr<std::vector<std::byte>> hex(size_t size);

 private:
  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace partita
