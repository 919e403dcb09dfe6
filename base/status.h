// Status propagation. User mistakes travel as absl::Status; compiler bugs stop at PARTITA_CHECK.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define PARTITA_RETURN_IF_ERROR(expr)                                 \
  do {                                                                \
    if (absl::Status partita_status = (expr); !partita_status.ok()) { \
      return partita_status;                                          \
    }                                                                 \
  } while (false)

#define PARTITA_CONCAT_INNER(a, b) a##b
#define PARTITA_CONCAT(a, b) PARTITA_CONCAT_INNER(a, b)
#define PARTITA_ASSIGN_OR_RETURN(lhs, expr) \
  PARTITA_ASSIGN_OR_RETURN_IMPL(PARTITA_CONCAT(partita_or_, __LINE__), lhs, expr)
#define PARTITA_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                                  \
  if (!tmp.ok()) return std::move(tmp).status();      \
  lhs = *std::move(tmp)

// A violated invariant of ours, never a user's mistake: says where, by throwing std::logic_error, which
// ends the program with code 1.
#define PARTITA_CHECK(condition, message)                                   \
  do {                                                                      \
    if (!(condition)) {                                                     \
      ::partita::internal_fault(__FILE__, __LINE__, #condition, (message)); \
    }                                                                       \
  } while (false)

namespace partita {

[[noreturn]] void internal_fault(const char* file, int line, const char* condition, const std::string& message);

// The same status with `context` in front of its message: "context: message".
absl::Status with_context(const absl::Status& status, const std::string& context);

}  // namespace partita
