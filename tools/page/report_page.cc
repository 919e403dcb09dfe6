#include "tools/page/report_page.h"

#include "base/cat.h"
#include "nlohmann/json.hpp"

namespace partita {

std::string report_page(const nlohmann::json& data) {
  // No text of the data may end the element that they stand in.
  std::string text;
  for (char c : data.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)) {
    if (c == '<') {
      text += "\\u003c";
    } else {
      text += c;
    }
  }
  return cat(kPageHead, text, kPageTail);
}

}  // namespace partita
