// The losses of a run from its metrics file, one line of JSON a step.
#pragma once

#include <fstream>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace partita {

inline std::vector<double> read_losses(const std::string& path) {
  std::vector<double> losses;
  std::ifstream lines(path);
  for (std::string line; std::getline(lines, line);)
    losses.push_back(nlohmann::json::parse(line)["loss"].get<double>());
  return losses;
}

}  // namespace partita
