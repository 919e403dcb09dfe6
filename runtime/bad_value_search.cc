#include "runtime/bad_value_search.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <memory>
#include <utility>

#include "base/cat.h"
#include "runtime/checkpoint/checkpoint_manifest.h"
#include "runtime/launch/restarts.h"
#include "runtime/launch/shell_words.h"
#include "runtime/launch/supervisor.h"

namespace partita::runtime {
namespace {

namespace fs = std::filesystem;

// A checkpoint that stays while it is needed, whatever becomes of the one that it is: a folder beside it with the same
// files. Null where that cannot be made.
std::shared_ptr<const std::string> hold(const std::string& checkpoint) {
  const fs::path from = checkpoint, to = from.parent_path() / ".held" / from.filename();
  std::error_code error;
  fs::remove_all(to.parent_path(), error);  // of a run that was killed
  fs::create_directories(to, error);
  for (const fs::directory_entry& file : fs::directory_iterator(from, error)) {
    if (!error) fs::create_hard_link(file.path(), to / file.path().filename(), error);
  }
  const auto release = [](const std::string* path) {
    std::error_code ignored;
    fs::remove_all(fs::path(*path).parent_path(), ignored);
    delete path;
  };
  std::shared_ptr<const std::string> held(new std::string(to.string()), release);
  return error ? nullptr : held;
}

}  // namespace

BadValueSearch::BadValueSearch(std::string program, std::string plan, RunFlags flags, const std::atomic<bool>* stop)
    : program_(std::move(program)), plan_(std::move(plan)), flags_(std::move(flags)), stopped_(stop) {}

std::vector<std::string> BadValueSearch::command(const std::string& checkpoint, std::optional<int64_t> steps) const {
  std::vector<std::string> words = {program_.empty() ? "partita" : program_, "compare", plan_, "--nonfinite"};
  auto say = [&](const char* flag, const std::string& value) {
    if (!value.empty()) words.insert(words.end(), {flag, value});
  };
  say("--data", flags_.data);
  say("--resume", checkpoint);
  if (checkpoint.empty()) {
    say("--init", flags_.init);
    say("--init-optimizer", flags_.init_optimizer);
    say("--strip-prefix", flags_.renaming.strip);
    say("--add-prefix", flags_.renaming.add);
  }
  say("--loss-spike", flags_.loss_spike);
  if (steps) say("--steps", cat(*steps));
  if (!steps && flags_.epochs > 0) say("--epochs", cat(flags_.epochs));
  if (flags_.threads > 0) say("--threads", cat(flags_.threads));
  if (flags_.shuffle) words.emplace_back("--shuffle");
  return words;
}

BadValueSearch::~BadValueSearch() {
  stop_ = true;
  wait();
}

void BadValueSearch::after_stop() {
  if (flags_.find_bad_value == 0) return;
  if (thread_.joinable()) return wait();
  const std::string& folder = flags_.checkpoint.empty() ? flags_.resume.value_or("") : flags_.checkpoint;
  std::string from;
  int64_t first = 0;
  if (const auto newest = find_checkpoint(folder); !folder.empty() && newest.ok()) {
    if (const auto manifest = read_manifest(*newest); manifest.ok()) from = *newest, first = manifest->step;
  }
  std::optional<int64_t> steps = flags_.steps;
  // The newest good checkpoint lies no further back than two others.
  if (steps && flags_.every > 0) steps = std::min(*steps, first + 2 * flags_.every + 1);
  start(command(from, steps));
  wait();
}

void BadValueSearch::beside(const Rollback& rollback, bool busy) {
  if (flags_.find_bad_value == 0) return;
  std::vector<std::string> words = command(rollback.checkpoint, rollback.bad + 1);
  for (const SkippedSamples& s : rollback.skipped)
    words.insert(words.end(), {"--skip-samples", cat(s.first, ":", s.count)});
  if (busy || !done_) return tell(std::move(words));
  wait();
  start(std::move(words), rollback.checkpoint);
}

void BadValueSearch::tell(std::vector<std::string> command) {
  command[0] = "partita";
  std::fprintf(stderr, "note: which value went wrong first says: %s\n", shell_line(command).c_str());
}

void BadValueSearch::start(std::vector<std::string> command, const std::string& held) {
  if (program_.empty()) return tell(std::move(command));
  std::fprintf(stderr, "note: taking the steps again, to see which value went wrong first (for %d s at most)\n",
               flags_.find_bad_value);
  stop_ = done_ = false;
  thread_ = std::thread([this, command = std::move(command), kept = held.empty() ? nullptr : hold(held)] {
    // This thread waits for the process, and another one watches the time.
    std::atomic<bool> late = false;
    std::thread timer([&] {
      late = sleep_unless([&] { return done_ || stop_ || (stopped_ != nullptr && *stopped_); }, flags_.find_bad_value);
      stop_ = true;
    });
    LocalJob job;
    job.command = command;
    if (kept) *std::next(std::find(job.command.begin(), job.command.end(), "--resume")) = *kept;
    job.aside = true;
    job.stop = &stop_;
    const absl::Status status = run_job(job);
    done_ = true;
    timer.join();
    if (late) std::fprintf(stderr, "note: not found in %d s\n", flags_.find_bad_value);
    if (!status.ok()) tell(command);
  });
}

void BadValueSearch::wait() {
  if (thread_.joinable()) thread_.join();
}

}  // namespace partita::runtime
