// Lists of numbers as people write them.
#pragma once

#include <string>
#include <vector>

namespace partita::runtime {

// "0-2, 5": sorted, each once, runs of three and more folded.
std::string fold_numbers(std::vector<int> numbers);

}  // namespace partita::runtime
