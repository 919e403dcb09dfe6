// One run of the compiler's tables of passes (pass_table.h): what each pass took and did, what it left in text, whether
// that is sound, and whether the user wants to go on after it.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/graph/graph.h"
#include "ir/graph/verify.h"

namespace partita {

// What one pass took and did.
struct PassTime {
  std::string name;
  double seconds = 0;
  int64_t nodes_before = 0, nodes_after = 0;  // of all graphs that it worked on
};

struct PassOptions {
  std::string dump_folder;  // not empty: "NN-name.txt" after every pass that changed a graph ("00-start.txt" before the
                            // first); one for each stage ("NN-name.stage1.txt") once there are several. Made where
                            // missing
  std::string stop_after;   // not empty: the name of the last pass to run; of passes with one name "NAME" is the first,
                            // "NAME#2" the second
  bool verify = true;       // check the graphs after every pass
};

class PassRun {
 public:
  // `passes`: the names of all passes that the tables have, in order. InvalidArgument for an unknown `stop_after`
  // (names the known ones) or a folder that cannot be made.
  static absl::StatusOr<PassRun> create(PassOptions options, std::span<const std::string_view> passes);
  // Checks every pass, or none, and nothing else.
  PassRun() = default;
  static PassRun unchecked();

  // Whether the last pass that was asked for has run.
  bool stopped() const { return stopped_; }
  const std::vector<PassTime>& times() const { return times_; }

  // The graphs as they are before the first pass.
  absl::Status start(std::span<const Graph* const> graphs);
  // `name` has made `graphs`, in `seconds`, of graphs of `nodes_before` nodes. Internal, naming the pass, where one is
  // unsound.
  absl::Status passed(std::string_view name, Phase phase, double seconds, int64_t nodes_before,
                      std::span<const Graph* const> graphs);

 private:
  absl::Status dump(const std::string& name, std::span<const Graph* const> graphs);

  PassOptions options_;
  std::vector<PassTime> times_;
  std::map<std::string, int, std::less<>> runs_;  // of passes of one name
  std::vector<std::string> last_;                 // text of each graph when it was last dumped
  size_t dumps_ = 0;
  bool stopped_ = false;
};

// The table of --time-passes, one line a pass.
std::string format_pass_times(std::span<const PassTime> times);

}  // namespace partita
