// Sessions for programs in other languages: the C functions of libpartita_session.so. `error` takes a message of at
// most `error_bytes`; functions return an exit code (base/exit_code.h), 0 where all is well.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "base/exit_code.h"
#include "base/fault.h"
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

struct PartitaSession {
  std::unique_ptr<Session> session;
  std::vector<std::pair<std::string, double>> metrics;  // of the last step
};

extern "C" [[gnu::visibility("default")]] int partita_session_open(const char* bundle, const char* const* flags,
                                                                   int flag_count, const char* const* inputs,
                                                                   int input_count, PartitaSession** session,
                                                                   char* error, int64_t error_bytes) {
  absl::Status status;
  try {
    auto parsed = partita::runtime::parse_flags(flags, flag_count);
    status = parsed.status();
    if (status.ok()) {
      auto opened = Session::open(bundle, *parsed, std::vector<std::string>(inputs, inputs + input_count));
      status = opened.status();
      if (status.ok()) *session = new PartitaSession{*std::move(opened), {}};
    }
  } catch (...) {
    status = partita::status_of_exception();
  }
  return partita::runtime::tell(status, error, error_bytes);
}

// `columns`: of each input, its global batch. `loss`: nan where this rank does not know it.
extern "C" [[gnu::visibility("default")]] int partita_session_step(PartitaSession* session, const void* const* columns,
                                                                   const int64_t* bytes, int count, double* loss,
                                                                   char* error, int64_t error_bytes) {
  absl::Status status;
  try {
    partita::runtime::SampleFeed::Columns batch;
    for (int k = 0; k < count; ++k)
      batch.emplace_back(static_cast<const std::byte*>(columns[k]), static_cast<size_t>(bytes[k]));
    auto m = session->session->step(std::move(batch));
    status = m.status();
    if (status.ok()) {
      *loss = m->loss.value_or(std::nan(""));
      session->metrics = metric_values(*m);
    }
  } catch (...) {
    status = partita::status_of_exception();
  }
  return partita::runtime::tell(status, error, error_bytes);
}

// The k-th number that the last step reported, under its name of every sink, which lives until the next step; false:
// there are fewer.
extern "C" [[gnu::visibility("default")]] bool partita_session_metric(const PartitaSession* session, int k,
                                                                      const char** name, double* value) {
  if (k < 0 || static_cast<size_t>(k) >= session->metrics.size()) return false;
  *name = session->metrics[static_cast<size_t>(k)].first.c_str();
  *value = session->metrics[static_cast<size_t>(k)].second;
  return true;
}

// Frees the session, whatever it returns.
extern "C" [[gnu::visibility("default")]] int partita_session_close(PartitaSession* session, char* error,
                                                                    int64_t error_bytes) {
  const std::unique_ptr<PartitaSession> owned(session);
  return partita::runtime::tell(owned->session->close(), error, error_bytes);
}
