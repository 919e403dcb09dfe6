#include "base/fault.h"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>

#include "base/exit_code.h"

namespace partita {
namespace {

[[noreturn]] void uncaught() {
  if (std::exception_ptr now = std::current_exception()) {
    try {
      std::rethrow_exception(now);
    } catch (const std::bad_alloc&) {
      stop_with_fault("out of memory", true);
    } catch (const std::exception& e) {
      stop_with_fault(e.what());
    } catch (...) {
    }
  }
  stop_with_fault("internal fault: the program ended itself");
}

}  // namespace

void exit_on_uncaught() { std::set_terminate(uncaught); }

void stop_with_fault(std::string_view message, bool out_of_memory) {
  std::fprintf(stderr, "partita: %.*s\n", static_cast<int>(message.size()), message.data());
  std::fflush(stderr);
  std::_Exit(static_cast<int>(out_of_memory ? ExitCode::kDoesNotFit : ExitCode::kFault));
}

}  // namespace partita
