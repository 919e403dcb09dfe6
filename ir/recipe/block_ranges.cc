#include "ir/recipe/block_ranges.h"

#include "base/cat.h"
#include "ir/yaml/yaml_fields.h"

namespace partita {
namespace {

constexpr int64_t kMostBlocks = int64_t{1} << 16;

// "3" or "0..3", as its first and last number.
absl::StatusOr<std::pair<int64_t, int64_t>> parse_range(const YamlNode& node, const std::string& path) {
  const size_t dots = node.kind == YamlNode::Kind::kScalar ? node.text.find("..") : std::string::npos;
  YamlNode low = node, high = node;
  if (dots != std::string::npos) low.text = node.text.substr(0, dots), high.text = node.text.substr(dots + 2);
  PARTITA_ASSIGN_OR_RETURN(const int64_t first, read_integer(low, path, 0, kMostBlocks));
  PARTITA_ASSIGN_OR_RETURN(const int64_t last, read_integer(high, path, first, kMostBlocks));
  return std::pair(first, last);
}

}  // namespace

std::vector<std::string> block_ranges(const std::vector<RecomputeMode>& blocks, RecomputeMode mode) {
  std::vector<std::string> out;
  for (size_t first = 0, next = 0; first < blocks.size(); first = std::max(next, first + 1)) {
    for (next = first; next < blocks.size() && blocks[next] == mode;) ++next;
    if (next > first) out.push_back(next - first == 1 ? cat(first) : cat(first, "..", next - 1));
  }
  return out;
}

absl::StatusOr<std::vector<RecomputeMode>> parse_block_modes(const YamlNode& node, const std::string& path) {
  std::vector<RecomputeMode> out;
  std::vector<bool> said;
  auto add = [&](RecomputeMode mode, const YamlNode& range, const std::string& where) -> absl::Status {
    PARTITA_ASSIGN_OR_RETURN(const auto found, parse_range(range, where));
    const auto [first, last] = found;
    const size_t end = static_cast<size_t>(last) + 1;
    if (out.size() < end) out.resize(end, RecomputeMode::kNone), said.resize(end, false);
    for (size_t b = static_cast<size_t>(first); b < end; ++b) {
      if (said[b]) return unexpected(range, where, "each block once");
      out[b] = mode, said[b] = true;
    }
    return absl::OkStatus();
  };
  if (node.entries.empty()) return unexpected(node, path, "blocks by what is computed again, as in {full: 0..3}");
  for (const YamlEntry& entry : node.entries) {
    const std::string where = join_path(path, entry.key);
    YamlNode key = node;
    key.kind = YamlNode::Kind::kScalar, key.text = entry.key;
    PARTITA_ASSIGN_OR_RETURN(const size_t mode, read_choice(key, path, enum_names<RecomputeMode>()));
    if (static_cast<RecomputeMode>(mode) == RecomputeMode::kAuto)
      return unexpected(key, path, "what is computed again of blocks");
    if (entry.value->kind == YamlNode::Kind::kScalar) {
      PARTITA_RETURN_IF_ERROR(add(static_cast<RecomputeMode>(mode), *entry.value, where));
      continue;
    }
    if (entry.value->kind != YamlNode::Kind::kSequence || entry.value->items.empty())
      return unexpected(*entry.value, where, "numbers of blocks, as in 0..3 or [0..3, 7]");
    for (const auto& item : entry.value->items)
      PARTITA_RETURN_IF_ERROR(add(static_cast<RecomputeMode>(mode), *item, where));
  }
  while (!out.empty() && out.back() == RecomputeMode::kNone) out.pop_back();
  return out;
}

}  // namespace partita
