#include "tools/mutation/trial_run.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

#include "base/cat.h"
#include "base/checksum.h"
#include "base/mapped_file.h"
#include "base/status.h"
#include "base/temporary_folder.h"
#include "runtime/files/safetensors.h"
#include "runtime/train/trainer.h"

namespace partita {
namespace {

namespace fs = std::filesystem;

constexpr rlim_t kMostBytes = rlim_t{16} << 30;  // of address space

// All that steps report, but times and memory.
class Numbers : public runtime::MetricsSink {
 public:
  absl::Status write(const runtime::StepMetrics& m) override {
    append(text, "step ", m.step, m.skipped ? " skipped" : "");
    for (const auto& number : {m.loss, m.lr, m.grad_norm, m.loss_scale, m.evaluation_loss})
      append(text, " ", number ? cat(*number) : "-");
    for (const auto& [name, number] : m.named) append(text, " ", name, " ", number ? cat(*number) : "-");
    text += "\n";
    return absl::OkStatus();
  }
  std::string text;
};

// Name and hash of each file of tensors of a checkpoint.
absl::StatusOr<std::string> states_of(const std::string& folder) {
  std::vector<std::string> lines;
  for (const auto& file : fs::recursive_directory_iterator(folder)) {
    if (file.path().extension() != ".safetensors") continue;
    PARTITA_ASSIGN_OR_RETURN(const MappedFile bytes, MappedFile::open(file.path().string()));
    lines.push_back(cat(fs::relative(file.path(), folder).string(), " ", sha256_hex(bytes.bytes()), "\n"));
  }
  std::sort(lines.begin(), lines.end());
  std::string text;
  for (const std::string& line : lines) text += line;
  return text;
}

absl::StatusOr<std::string> train(const TrialPrograms& programs, int steps, const std::string& folder) {
  runtime::TrainOptions options;
  options.steps = steps;
  options.threads = 1;
  options.data = {.kind = DataKind::kSynthetic, .epochs = 0};
  if (!programs.initial.empty()) {
    PARTITA_ASSIGN_OR_RETURN(runtime::SafetensorsFile initial, runtime::SafetensorsFile::open(programs.initial));
    options.initial = std::make_shared<const runtime::SafetensorsFile>(std::move(initial));
  }
  options.checkpoint.folder = folder + "/states";
  PARTITA_ASSIGN_OR_RETURN(runtime::LoadedPrograms loaded, runtime::LoadedPrograms::load(programs.training));
  if (!programs.evaluation.empty()) {
    PARTITA_ASSIGN_OR_RETURN(options.evaluate.programs, runtime::LoadedPrograms::load(programs.evaluation));
    options.evaluate.data = options.data;
    options.evaluate.every = options.evaluate.batches = 1;
  }
  Numbers numbers;
  PARTITA_RETURN_IF_ERROR(runtime::train_local(loaded, options, &numbers));
  PARTITA_ASSIGN_OR_RETURN(const std::string states, states_of(options.checkpoint.folder));
  return numbers.text + states;
}

// The child's answer: "+result" or "-message".
[[noreturn]] void answer(const TrialPrograms& programs, int steps, const std::string& folder, int to) {
  const rlimit most{kMostBytes, kMostBytes}, no_core{0, 0};
  ::setrlimit(RLIMIT_AS, &most);
  ::setrlimit(RLIMIT_CORE, &no_core);
  for (int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) ::signal(signal, SIG_DFL);
  if (const int nowhere = ::open("/dev/null", O_WRONLY); nowhere >= 0) ::dup2(nowhere, STDERR_FILENO);
  absl::StatusOr<std::string> result = absl::InternalError("an exception");
  try {
    result = train(programs, steps, folder);
  } catch (const std::exception& e) {
    result = absl::InternalError(e.what());
  }
  const std::string text = result.ok() ? "+" + *result : "-" + std::string(result.status().message());
  for (size_t at = 0; at < text.size();) {
    const ssize_t n = ::write(to, text.data() + at, text.size() - at);
    if (n <= 0) ::_exit(3);
    at += static_cast<size_t>(n);
  }
  ::_exit(0);
}

// What comes until the other end is closed; false where that takes too long.
bool receive(int from, double seconds, std::string& text) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  char buffer[4096];
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    pollfd ready{from, POLLIN, 0};
    if (left <= 0 || ::poll(&ready, 1, static_cast<int>(left)) <= 0) return false;
    const ssize_t n = ::read(from, buffer, sizeof buffer);
    if (n <= 0) return true;
    text.append(buffer, static_cast<size_t>(n));
  }
}

}  // namespace

absl::StatusOr<std::string> trial_run(const TrialPrograms& programs, int steps, double seconds) {
  PARTITA_ASSIGN_OR_RETURN(const TemporaryFolder folder, TemporaryFolder::create("a trial run"));
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return absl::UnavailableError("cannot make a pipe");
  const pid_t child = ::fork();
  if (child == 0) answer(programs, steps, folder.path(), ends[1]);
  ::close(ends[1]);
  std::string text;
  const bool ended = child > 0 && receive(ends[0], seconds, text);
  ::close(ends[0]);
  if (child < 0) return absl::UnavailableError("cannot start a process");
  if (!ended) ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (!ended) return absl::AbortedError(cat("hangs: no end after ", seconds, " s"));
  if (WIFSIGNALED(status)) return absl::AbortedError(cat("crashes: signal ", WTERMSIG(status)));
  if (text.empty()) return absl::AbortedError(cat("crashes: exit code ", WEXITSTATUS(status)));
  if (text[0] == '-') return absl::AbortedError(cat("fails: ", text.substr(1)));
  return text.substr(1);
}

}  // namespace partita
