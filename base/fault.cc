#include "base/fault.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <string>
#include <system_error>

#include "base/cat.h"
#include "base/exit_code.h"
#include "base/quote.h"

namespace partita {
namespace {

[[noreturn]] void uncaught() {
  if (std::current_exception() == nullptr) stop_with_fault("internal fault: the program ended itself");
  const absl::Status status = status_of_exception();
  stop_with_fault(std::string(status.message()), absl::IsResourceExhausted(status));
}

[[noreturn]] void end_with(const LostFile& file) {
  std::fprintf(stderr, "partita: %s\n", std::string(lost_file_error(file).message()).c_str());
  std::fflush(stderr);
  std::_Exit(static_cast<int>(ExitCode::kUsage));
}

}  // namespace

absl::Status lost_file_error(const LostFile& file) {
  return absl::DataLossError(cat(quote(file.path, 1000), " cannot be read any more at byte ", file.at, " of the ",
                                 file.bytes,
                                 " that it had when it was opened: it was truncated meanwhile, or its disk "
                                 "failed; let nobody write into files that a run reads"));
}

absl::Status status_of_exception() {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of memory");
  } catch (const std::system_error& e) {
    if (e.code() != std::errc::resource_unavailable_try_again) return absl::InternalError(e.what());
    return absl::ResourceExhaustedError(
        "cannot start another thread: a limit on processes or on memory is reached (see ulimit -a, and the "
        "container's)");
  } catch (const std::exception& e) {
    return absl::InternalError(e.what());
  } catch (...) {
    return absl::InternalError("internal fault: an exception without words");
  }
}

void exit_on_uncaught() {
  std::set_terminate(uncaught);
  ::signal(SIGXFSZ, SIG_IGN);
  end_on_lost_files(end_with);
}

void stop_with_fault(std::string_view message, bool out_of_resources) {
  std::fprintf(stderr, "partita: %.*s\n", static_cast<int>(message.size()), message.data());
  std::fflush(stderr);
  std::_Exit(static_cast<int>(out_of_resources ? ExitCode::kDoesNotFit : ExitCode::kFault));
}

}  // namespace partita
