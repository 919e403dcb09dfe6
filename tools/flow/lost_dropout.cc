#include "tools/flow/lost_dropout.h"

#include <algorithm>
#include <filesystem>

#include "base/cat.h"
#include "base/quote.h"
#include "base/text_file.h"
#include "nlohmann/json.hpp"

namespace partita {
namespace {

constexpr size_t kMostBytes = 1 << 20;

bool names_dropout(const std::string& key) {
  return key.find("dropout") != key.npos || key.ends_with("pdrop") || key.find("drop_path") != key.npos;
}

}  // namespace

std::vector<std::string> lost_dropout(const std::string& model, const Graph& graph) {
  namespace fs = std::filesystem;
  const bool draws =
      std::any_of(graph.nodes.begin(), graph.nodes.end(), [](const Node& node) { return node.op->draws; });
  std::error_code ec;
  const fs::path file = (fs::is_directory(model, ec) ? fs::path(model) : fs::path(model).parent_path()) / "config.json";
  if (draws || !fs::exists(file, ec)) return {};
  const auto text = read_text_file(file.string(), kMostBytes);
  if (!text.ok()) return {};  // not the model's, nor needed
  const nlohmann::json config = nlohmann::json::parse(*text, nullptr, false);
  if (!config.is_object()) return {};
  std::vector<std::string> found;
  for (const auto& [key, value] : config.items()) {
    if (names_dropout(key) && value.is_number() && value.get<double>() > 0)
      found.push_back(cat(key, ": ", value.dump()));
  }
  if (found.empty()) return {};
  return {cat("the graph has no dropout, and ", quote(file.string()), " has ", quote_list(found),
              ": it was exported as for inference; call module.train() before the export, or set them to 0")};
}

}  // namespace partita
