#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <thread>

#include "base/cat.h"
#include "base/status.h"
#include "tools/cli/command.h"
#include "tools/watch/run_history.h"
#include "tools/watch/screen.h"

namespace partita {
namespace {

ScreenSize terminal_size() {
  winsize size{};
  ScreenSize known;
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) known = {size.ws_col, size.ws_row};
  return known;
}

absl::Status watch(const std::string& where, bool once, double every) {
  PARTITA_ASSIGN_OR_RETURN(const auto source, open_run_source(where));
  RunHistory run;
  const bool terminal = ::isatty(STDOUT_FILENO) != 0;
  if (once || !terminal) {
    PARTITA_RETURN_IF_ERROR(source->read(run));
    std::fputs(draw_run(run, source->name(), "", terminal_size(), terminal).c_str(), stdout);
    return absl::OkStatus();
  }
  while (true) {  // until it is interrupted
    const absl::Status read = source->read(run);
    if (!read.ok() && !absl::IsUnavailable(read)) return read;
    const std::string note = read.ok() ? "" : std::string(read.message());
    // Home, each line to its end, what is below: nothing flickers.
    std::string text = "\x1b[H";
    for (char c : draw_run(run, source->name(), note, terminal_size(), true)) {
      if (c == '\n') text += "\x1b[K";
      text += c;
    }
    std::fputs((text + "\x1b[J").c_str(), stdout);
    std::fflush(stdout);
    std::this_thread::sleep_for(std::chrono::duration<double>(every));
  }
}

}  // namespace

void add_watch(CLI::App& app, absl::Status& result) {
  struct Flags {
    std::string where;
    bool once = false;
    double every = 1;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* verb =
      app.add_subcommand("watch", "a run on one screen, while it goes on or after it: losses, rates, ranks");
  verb->add_option("where", flags->where,
                   "a .jsonl file of --metrics, a folder with one, or http://HOST:PORT of --listen-metrics")
      ->required();
  verb->add_flag("--once", flags->once, "draw it once, and end; so where the output is no terminal");
  verb->add_option("--every", flags->every, "seconds from one look to the next; default: 1")
      ->check(CLI::PositiveNumber);
  verb->callback([flags, &result] { result = watch(flags->where, flags->once, flags->every); });
}

}  // namespace partita
