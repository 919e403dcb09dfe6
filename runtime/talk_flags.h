// The flags that say how the ranks of a run talk.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace partita::runtime {

struct TalkFlags {
  std::string backend = "auto", interface;
  bool encrypt = false;

  void add(CLI::App& app);
  // The command line again that says these flags.
  std::vector<std::string> arguments() const;
};

}  // namespace partita::runtime
