// report.html: one file that needs no network. tools/page/report/ has its HTML, CSS and JavaScript, which CMake embeds.
#pragma once

#include <string>
#include <string_view>

#include "nlohmann/json_fwd.hpp"

namespace partita {

// The page up to its data, and from there on.
extern const std::string_view kPageHead, kPageTail;

// The page that draws `data` (report_data.h).
std::string report_page(const nlohmann::json& data);

}  // namespace partita
