// Command lines as a shell reads them.
#pragma once

#include <string>
#include <vector>

namespace partita {

// In single quotes where it has to be.
std::string shell_word(const std::string& text);
std::string shell_line(const std::vector<std::string>& words);

}  // namespace partita
