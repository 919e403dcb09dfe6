#include "ir/recipe/step_pairs.h"

#include "base/cat.h"
#include "base/status.h"

namespace partita {

absl::Status read_step_pairs(const YamlNode& node, const std::string& path, size_t most, const std::string& pair,
                             const std::function<absl::Status(int64_t, const YamlNode&, const std::string&)>& take) {
  using Kind = YamlNode::Kind;
  if (node.kind != Kind::kSequence || node.items.empty() || node.items.size() > most)
    return unexpected(node, path, cat("1 to ", most, " pairs ", pair));
  int64_t last = -1;
  for (size_t k = 0; k < node.items.size(); ++k) {
    const YamlNode& item = *node.items[k];
    const std::string at = cat(path, "[", k, "]");
    if (item.kind != Kind::kSequence || item.items.size() != 2) return unexpected(item, at, cat("a pair ", pair));
    PARTITA_ASSIGN_OR_RETURN(const int64_t step, read_integer(*item.items[0], at, 0, kLargestCount));
    PARTITA_RETURN_IF_ERROR(take(step, *item.items[1], at));
    if (k == 0 && step != 0) return unexpected(item, at, "step 0 first");
    if (step <= last) return unexpected(item, at, cat("a step after ", last));
    last = step;
  }
  return absl::OkStatus();
}

}  // namespace partita
