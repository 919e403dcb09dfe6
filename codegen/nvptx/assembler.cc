#include "codegen/nvptx/assembler.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>

#include "absl/strings/str_split.h"
#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "base/temporary_folder.h"

extern char** environ;

namespace partita {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
}

// Its exit status, or -1 where it cannot be started (see errno).
int run(const std::vector<std::string>& arguments, const std::string& output) {
  std::vector<char*> pointers;
  for (const std::string& a : arguments) pointers.push_back(const_cast<char*>(a.c_str()));
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  pid_t child = 0;
  int fault = posix_spawn(&child, pointers[0], &actions, nullptr, pointers.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (fault != 0) {
    errno = fault;
    return -1;
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

}  // namespace

absl::StatusOr<Assembled> assemble_ptx(const std::string& ptx, const DeviceTarget& target) {
  PARTITA_ASSIGN_OR_RETURN(TemporaryFolder scratch, TemporaryFolder::create("ptxas"));
  const std::string input = scratch.file("in.ptx"), output = scratch.file("out.cubin"), log = scratch.file("said");
  std::ofstream out(input, std::ios::binary);
  out << ptx;
  if (!out.flush())
    return absl::ResourceExhaustedError(cat("cannot write PTX to ", scratch.path(), ": is the disk full?"));
  out.close();
  int status = run({target.assembler, "-arch", target.architecture, "-v", "-o", output, input}, log);
  if (status < 0)
    return absl::FailedPreconditionError(cat("cannot run ", quote(target.assembler, 500), ": ", std::strerror(errno)));
  std::string said = read_file(log), cubin = read_file(output);
  if (status != 0 || cubin.empty())
    return absl::FailedPreconditionError(cat(quote(target.assembler, 500), " refused the generated code for ",
                                             target.architecture, ": ", quote(said, 2000)));
  return Assembled{{cubin.begin(), cubin.end()}, parse_assembler_report(said)};
}

std::string ask_for_one_block(std::string ptx, const std::vector<DeviceKernel>& kernels) {
  for (const DeviceKernel& kernel : kernels) {
    if (kernel.spilled_bytes == 0) continue;
    size_t at = ptx.find(cat(".entry ", kernel.name, "("));
    if (at != std::string::npos) at = ptx.find("\n.maxntid ", at);
    if (at == std::string::npos) continue;
    constexpr std::string_view kAsked = "\n.minnctapersm ";
    const size_t asked = ptx.find(kAsked, at);
    if (asked < ptx.find("\n{", at)) ptx.erase(asked, ptx.find('\n', asked + 1) - asked);
    ptx.insert(at, cat(kAsked, 1));
  }
  return ptx;
}

std::vector<DeviceKernel> parse_assembler_report(const std::string& report) {
  std::vector<DeviceKernel> kernels;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(report, '\n'))) {
    auto number_before = [&](const char* words) -> int64_t {
      size_t at = line.find(words);
      if (at == std::string::npos) return 0;
      size_t begin = at;
      while (begin > 0 && (line[begin - 1] == ' ' || std::isdigit(static_cast<unsigned char>(line[begin - 1]))))
        --begin;
      return std::strtoll(line.c_str() + begin, nullptr, 10);
    };
    if (size_t at = line.find("Compiling entry function '"); at != std::string::npos) {
      at += std::strlen("Compiling entry function '");
      kernels.push_back({line.substr(at, line.find('\'', at) - at)});
    }
    if (kernels.empty()) continue;
    kernels.back().spilled_bytes += number_before("bytes spill stores") + number_before("bytes spill loads");
    if (line.find("Used ") != std::string::npos)
      kernels.back().registers = static_cast<int>(number_before("registers"));
  }
  return kernels;
}

}  // namespace partita
