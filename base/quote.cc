#include "base/quote.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "base/cat.h"

namespace partita {
namespace {

// Bytes of the well-formed UTF-8 character at the front of `text`; 0 when there is none (Unicode 15, table 3-7).
size_t utf8_length(std::string_view text) {
  auto at = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : uint8_t{0}; };
  auto tail = [&](size_t i) { return (at(i) & 0xC0) == 0x80; };
  const uint8_t first = at(0);
  if (first < 0x80) return text.empty() ? 0 : 1;
  if (first >= 0xC2 && first <= 0xDF) return tail(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    if (!tail(1) || !tail(2)) return 0;
    if ((first == 0xE0 && at(1) < 0xA0) || (first == 0xED && at(1) > 0x9F)) return 0;
    return 3;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    if (!tail(1) || !tail(2) || !tail(3)) return 0;
    if ((first == 0xF0 && at(1) < 0x90) || (first == 0xF4 && at(1) > 0x8F)) return 0;
    return 4;
  }
  return 0;
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const bool same = absl::ascii_tolower(a[i - 1]) == absl::ascii_tolower(b[j - 1]);
      const size_t best = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (same ? 0 : 1)});
      diagonal = row[j];
      row[j] = best;
    }
  }
  return row[b.size()];
}

}  // namespace

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = utf8_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string quote(std::string_view text, size_t limit) {
  size_t end = std::min(text.size(), limit);
  while (end < text.size() && end > 0 && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80) --end;
  const std::string_view shown = text.substr(0, end);
  // C1 controls (U+0080..U+009F) are valid UTF-8, yet terminals obey them.
  const bool has_c1 = [&] {
    for (size_t i = 0; i + 1 < shown.size(); ++i) {
      if (shown[i] == '\xC2' && static_cast<uint8_t>(shown[i + 1]) < 0xA0) return true;
    }
    return false;
  }();
  const std::string safe = is_utf8(shown) && !has_c1 ? absl::Utf8SafeCHexEscape({shown.data(), shown.size()})
                                                     : absl::CHexEscape({shown.data(), shown.size()});
  return cat("'", safe, end < text.size() ? "…" : "", "'");
}

std::string quote_list(const std::vector<std::string>& names, size_t shown) {
  if (names.empty()) return "none";
  std::string out;
  for (size_t i = 0; i < std::min(shown, names.size()); ++i) append(out, i ? ", " : "", quote(names[i], 80));
  if (names.size() > shown) append(out, " and ", names.size() - shown, " more");
  return out;
}

std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates) {
  constexpr size_t kLongest = 256, kMost = 2000;
  if (name.size() > kLongest) return "";
  std::string best;
  size_t best_distance = SIZE_MAX;
  for (size_t i = 0; i < std::min(kMost, candidates.size()); ++i) {
    if (candidates[i].size() > kLongest) continue;
    const bool begins = name.size() > 1 && edit_distance(name, candidates[i].substr(0, name.size())) == 0;
    const size_t distance = begins ? 0 : edit_distance(name, candidates[i]);
    if (distance < best_distance && 2 * distance <= std::max(name.size(), candidates[i].size())) {
      best = candidates[i];
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace partita
