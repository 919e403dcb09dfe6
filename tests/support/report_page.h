// What a report page carries.
#pragma once

#include <string>

#include "nlohmann/json.hpp"

namespace partita {

// The page's data; discarded where it has none.
inline nlohmann::json page_data(const std::string& page) {
  const std::string tag = "<script type=\"application/json\" id=\"data\">";
  const size_t at = page.find(tag), end = page.find("</script>", at);
  if (at == page.npos || end == page.npos) return nlohmann::json(nlohmann::json::value_t::discarded);
  return nlohmann::json::parse(page.substr(at + tag.size(), end - at - tag.size()), nullptr, false);
}

}  // namespace partita
