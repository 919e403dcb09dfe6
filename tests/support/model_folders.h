// The exported models with PyTorch's references, where they are at hand.
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

namespace partita {

inline std::vector<std::string> model_folders() {
  namespace fs = std::filesystem;
  std::vector<std::string> folders;
  if (!fs::exists(PARTITA_MODELS)) return folders;
  for (const auto& entry : fs::directory_iterator(PARTITA_MODELS)) {
    if (fs::exists(entry.path() / "expected.npz")) folders.push_back(entry.path().string());
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

// The file that is trained.
inline std::string model_file(const std::string& folder) {
  const std::string model = folder + "/model.onnx";
  return std::filesystem::exists(model) ? model : folder + "/training_model.onnx";
}

}  // namespace partita
