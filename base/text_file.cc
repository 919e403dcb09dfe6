#include "base/text_file.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/cat.h"
#include "base/quote.h"

namespace partita {

std::string shown_path(const std::string& path) {
  std::string name = quote(path, 4096);
  return name.substr(1, name.size() - 2);
}

absl::StatusOr<std::string> read_text_file(const std::string& path, int64_t most) {
  const std::string name = shown_path(path);
  std::error_code error;
  if (std::filesystem::is_directory(path, error))
    return absl::InvalidArgumentError(cat(name, ": expected a file, found a directory"));
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(cat(name, ": cannot be read; check the path and its permissions"));
  std::string text;
  char block[1 << 16];
  while (static_cast<int64_t>(text.size()) <= most && (file.read(block, sizeof block) || file.gcount() > 0))
    text.append(block, static_cast<size_t>(file.gcount()));
  if (file.bad()) return absl::DataLossError(cat(name, ": reading failed after ", text.size(), " bytes"));
  text.resize(std::min(text.size(), static_cast<size_t>(most) + 1));
  return text;
}

}  // namespace partita
