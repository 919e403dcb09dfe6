// What ended the start of a run before this one, as the flight records that it left tell.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace partita::runtime {

// Of the records in `folder` that an earlier start left: those that this start's ranks found in their place
// (FormerRecord::kIsKept), and those of ranks from `from` on, which this start does not have, or has not begun. They
// move to its folder "former", in place of older ones. One line, "the last start, of 4 ranks, ended at training step
// 812: root cause: …"; empty where there are none: it ended well, its ranks never met, or it was told of before. Under
// Slurm its controller is asked for a host that was lost, for at most 5 s.
std::string take_last_start(const std::string& folder, int from);

// What `scontrol -o show node` says of a host whose ranks fell silent at a time (nanoseconds since 1970) that bears on
// it: "Slurm: node 'h3' is DOWN* (Not responding)", "Slurm: node 'h3' was booted at 2026-11-27T09:48:33"; else empty.
std::string slurm_on_node(std::string_view shown, int64_t silent_since);

}  // namespace partita::runtime
