#include "tests/fuzz/mutator.h"

#include <algorithm>
#include <limits>

namespace partita {
namespace {

constexpr size_t kMaxBytes = 65536;
constexpr int64_t kNumbers[] = {0,
                                1,
                                -1,
                                127,
                                128,
                                255,
                                256,
                                65535,
                                int64_t{1} << 31,
                                (int64_t{1} << 31) - 1,
                                int64_t{1} << 32,
                                int64_t{1} << 62,
                                std::numeric_limits<int64_t>::max(),
                                std::numeric_limits<int64_t>::min()};

}  // namespace

std::string Mutator::next(std::span<const std::string> corpus) {
  std::string text = corpus[below(corpus.size())];
  for (size_t k = 1 + below(8); k > 0; --k) change(text, corpus);
  if (text.size() > kMaxBytes) text.resize(kMaxBytes);
  return text;
}

void Mutator::change(std::string& text, std::span<const std::string> corpus) {
  size_t at = below(text.size() + 1), length = std::min(below(16) == 0 ? below(1024) : below(16), text.size() - at);
  switch (below(9)) {
    case 0:  // a bit
      if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
      break;
    case 1:  // a byte
      if (at < text.size()) text[at] = static_cast<char>(random_());
      break;
    case 2:
      text.erase(at, length);
      break;
    case 3:  // a piece, again and elsewhere
      text.insert(below(text.size() + 1), text.substr(at, length));
      break;
    case 4: {  // a number as 8 bytes, as a varint or in digits
      int64_t value = kNumbers[below(std::size(kNumbers))];
      std::string form;
      if (size_t kind = below(3); kind == 0) {
        form.assign(reinterpret_cast<const char*>(&value), size_t{1} << below(4));
      } else if (kind == 1) {
        uint64_t rest = static_cast<uint64_t>(value);
        do {
          form += static_cast<char>((rest & 127) | (rest > 127 ? 128 : 0));
          rest >>= 7;
        } while (rest != 0);
      } else {
        form = std::to_string(value);
      }
      text.replace(at, below(2) ? std::min(form.size(), text.size() - at) : 0, form);
      break;
    }
    case 5: {  // a piece of another input
      const std::string& other = corpus[below(corpus.size())];
      size_t from = below(other.size() + 1);
      text.replace(at, below(2) ? length : 0, other.substr(from, below(256)));
      break;
    }
    case 6:
      if (!words_.empty()) text.replace(at, below(2) ? length : 0, words_[below(words_.size())]);
      break;
    case 7: {  // many of one
      std::string one = words_.empty() || below(2) ? std::string(1, static_cast<char>(random_()))
                                                   : std::string(words_[below(words_.size())]);
      size_t count = size_t{1} << below(11);
      std::string many;
      for (size_t k = 0; k < count && many.size() < kMaxBytes / 4; ++k) many += one;
      text.insert(at, many);
      break;
    }
    default:
      text.resize(at);
  }
}

}  // namespace partita
