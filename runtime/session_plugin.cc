// Sessions for programs in other languages: the C functions of libpartita_session.so. `error` takes a message of at
// most `error_bytes`; functions return an exit code (base/exit_code.h), 0 where all is well.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "CLI/CLI.hpp"
#include "base/exit_code.h"
#include "runtime/session.h"

namespace partita::runtime {
namespace {

int tell(const absl::Status& status, char* error, int64_t error_bytes) {
  if (status.ok()) return 0;
  const size_t n = std::min(status.message().size(), static_cast<size_t>(error_bytes - 1));
  std::memcpy(error, status.message().data(), n);
  error[n] = '\0';
  return exit_code(status);
}

absl::StatusOr<RunFlags> parse_flags(const char* const* arguments, int count) {
  CLI::App app;
  RunFlags flags;
  flags.add(app);
  std::vector<std::string> words(arguments, arguments + count);
  std::reverse(words.begin(), words.end());  // as CLI11 wants them
  try {
    app.parse(std::move(words));
  } catch (const CLI::ParseError& e) {
    return absl::InvalidArgumentError(e.what());
  }
  return flags;
}

}  // namespace
}  // namespace partita::runtime

using partita::runtime::RunFlags;
using partita::runtime::Session;

// A step's numbers; nan where one was not measured.
struct PartitaStep {
  int64_t step;
  double loss, lr, grad_norm, seconds, evaluation_loss;
};

extern "C" [[gnu::visibility("default")]] int partita_session_open(const char* bundle, const char* const* flags,
                                                                   int flag_count, const char* const* inputs,
                                                                   int input_count, Session** session, char* error,
                                                                   int64_t error_bytes) {
  absl::Status status;
  try {
    auto parsed = partita::runtime::parse_flags(flags, flag_count);
    status = parsed.status();
    if (status.ok()) {
      auto opened = Session::open(bundle, *parsed, std::vector<std::string>(inputs, inputs + input_count));
      status = opened.status();
      if (status.ok()) *session = opened->release();
    }
  } catch (const std::exception& e) {
    status = absl::InternalError(e.what());
  }
  return partita::runtime::tell(status, error, error_bytes);
}

// `columns`: of each input, its global batch.
extern "C" [[gnu::visibility("default")]] int partita_session_step(Session* session, const void* const* columns,
                                                                   const int64_t* bytes, int count, PartitaStep* out,
                                                                   char* error, int64_t error_bytes) {
  absl::Status status;
  try {
    partita::runtime::SampleFeed::Columns batch;
    for (int k = 0; k < count; ++k)
      batch.emplace_back(static_cast<const std::byte*>(columns[k]), static_cast<size_t>(bytes[k]));
    auto m = session->step(std::move(batch));
    status = m.status();
    if (status.ok()) {
      *out = {m->step,
              m->loss.value_or(std::nan("")),
              m->lr.value_or(std::nan("")),
              m->grad_norm.value_or(std::nan("")),
              m->seconds,
              m->evaluation_loss.value_or(std::nan(""))};
    }
  } catch (const std::exception& e) {
    status = absl::InternalError(e.what());
  }
  return partita::runtime::tell(status, error, error_bytes);
}

// Frees the session, whatever it returns.
extern "C" [[gnu::visibility("default")]] int partita_session_close(Session* session, char* error,
                                                                    int64_t error_bytes) {
  const std::unique_ptr<Session> owned(session);
  return partita::runtime::tell(owned->close(), error, error_bytes);
}
