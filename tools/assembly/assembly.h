// A bundle's programs as one JSON file that is read, changed and made a bundle again:
//
//   {"version": 1, "bundle": "/home/me/bundle", "programs": [{"model": …, "segments": […], …}], "evaluation": […]}
//
// `programs` has one for each stage of a pipeline (program_json.h says how), `evaluation` those of evaluation.partita,
// where the bundle has one. Where its samples have several lengths, `lengths` has for each but the largest, by its
// number, another object with `programs` and `evaluation`.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace partita {

// The text of that file. DataLoss where the bundle is damaged; each names the file.
absl::StatusOr<std::string> disassemble(const std::string& bundle);

// Makes a bundle at `folder` with the programs of a disassembled file and all else of the bundle that it is from, or of
// `like` where that is not empty; hashes are made anew, and there is no certificate. All or nothing. Whether the
// programs make sense is for `verify` and whoever runs them to see: InvalidArgument where the file is not of this form;
// FailedPrecondition where `folder` exists and is no bundle.
absl::Status assemble(const std::string& file, const std::string& like, const std::string& folder);

}  // namespace partita
