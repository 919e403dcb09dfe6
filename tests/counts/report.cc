#include "tests/counts/report.h"

#include <algorithm>
#include <numeric>

#include "base/cat.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"
#include "tests/counts/bounds.h"

namespace partita::counts {
namespace {

const char* name_of(RowKind kind) {
  constexpr const char* kNames[] = {"generated", "own", "vendor", "copy"};
  return kNames[static_cast<size_t>(kind)];
}

// Of all launches of a row.
Work work_of(const Row& row) {
  Work all;
  for (const Launched& launch : row.launches) {
    for (size_t k = 0; k < all.instructions.size(); ++k) all.instructions[k] += launch.work.instructions[k];
    all.shared_passes += launch.work.shared_passes;
    all.bank_conflicts += launch.work.bank_conflicts;
    all.local_accesses += launch.work.local_accesses;
    all.branches += launch.work.branches;
    all.divergent_branches += launch.work.divergent_branches;
  }
  return all;
}

// An instruction a warp for 32 operations, and one for 512 bytes.
double needed(const Row& row) { return row.flops / ptx::kLanes + row.least() / (16.0 * ptx::kLanes); }

double issued_bytes(const Row& row) {
  if (row.launches.empty()) return row.least();
  double sectors = 0;
  for (const ExtentUse& use : row.uses) sectors += use.reads.issued + use.writes.issued;
  return sectors * kSector;
}

bool reads_again(const Row& row) {
  return std::any_of(row.uses.begin(), row.uses.end(), [](const ExtentUse& u) { return u.reads.far > 0; });
}
bool is_shared(const Row& row) {
  return std::any_of(row.uses.begin(), row.uses.end(), [](const ExtentUse& u) { return u.is_shared; });
}

std::string marks(const Row& row) {
  std::string marks;
  if (reads_again(row)) marks += "r";
  if (is_shared(row)) marks += "s";
  if (row.spilled_bytes > 0) marks += "L";
  return marks;
}

}  // namespace

std::string table(const CountedProgram& program, const std::vector<const DeviceProfile*>& devices, size_t shown) {
  std::vector<size_t> order(program.rows.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto seconds = [&](size_t k) {
    return bound(program.rows[k], *devices[0]).seconds * static_cast<double>(program.rows[k].count);
  };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return seconds(a) > seconds(b); });
  std::string text =
      fmt::format("{:>5} {:18} {:>9} {:>5} {:>4} {:>9} {:>9} {:>9} {:>5} {:>5} {:>6} {:>3}", "times", "kernel",
                  "blocks", "thr", "regs", "issued MB", "memory MB", "least MB", "ratio", "instr", "confl", "");
  for (const DeviceProfile* d : devices) append(text, fmt::format(" {:>16}", d->name));
  append(text, "  of\n");
  for (size_t k = 0; k < std::min(shown, order.size()); ++k) {
    const Row& row = program.rows[order[k]];
    const Bound first = bound(row, *devices[0]);
    const Work work = work_of(row);
    const Launched* most = nullptr;
    for (const Launched& l : row.launches) most = most == nullptr || l.blocks > most->blocks ? &l : most;
    const std::string name = row.steps > 1 ? cat(row.kernel, " x", row.steps) : row.kernel;
    const double ratio = row.least() > 0 ? first.memory_bytes / row.least() : 1;
    append(text,
           fmt::format("{:>5} {:18} {:>9} {:>5} {:>4} {:>9.2f} {:>9.2f} {:>9.2f} {:>5.2f} {:>5} {:>6} {:>3}", row.count,
                       name, most != nullptr ? cat(most->blocks) : "", most != nullptr ? cat(most->threads) : "",
                       row.registers > 0 ? cat(row.registers) : "", issued_bytes(row) / 1e6, first.memory_bytes / 1e6,
                       row.least() / 1e6, ratio,
                       most != nullptr ? fmt::format("{:.1f}", work.needed_issues() / std::max(needed(row), 1.0)) : "",
                       most != nullptr
                           ? fmt::format("{:.0f}%", 100 * work.bank_conflicts / std::max(work.shared_passes, 1.0))
                           : "",
                       marks(row)));
    for (const DeviceProfile* d : devices) {
      const Bound b = bound(row, *d);
      append(text, fmt::format(" {:>7.1f} {:8}", b.seconds * 1e6, b.unit));
    }
    append(text, "  ", row.origin, "\n");
  }
  if (shown < order.size()) append(text, "… ", order.size() - shown, " rows more (--all)\n");
  return text;
}

std::string sums(const CountedProgram& program, const std::vector<const DeviceProfile*>& devices) {
  double bytes = 0;
  for (const Row& row : program.rows) bytes += static_cast<double>(row.count) * row.least();
  std::string text =
      fmt::format("{} launches a step; its steps read and write {:.2f} GB at least\n", program.launches, bytes / 1e9);
  for (const DeviceProfile* d : devices) {
    const Sums m = memory_bound(program, *d), a = all(program, *d);
    append(text, fmt::format("{:12} bound by memory: {:8.3f} ms, least {:8.3f} ms, ratio {:.3f} ({:.2f} GB of {:.2f}); "
                             "all steps: {:8.3f} ms\n",
                             d->name, m.bound * 1e3, m.least * 1e3, m.ratio(), m.bytes / 1e9, m.least_bytes / 1e9,
                             a.bound * 1e3));
  }
  if (program.host_steps > 0) append(text, program.host_steps, " steps of the host are not counted\n");
  if (program.collectives > 0) append(text, program.collectives, " collectives are not counted\n");
  for (const std::string& why : program.not_counted) append(text, "not counted: ", why, "\n");
  return text;
}

std::string json(const CountedProgram& program, const std::vector<const DeviceProfile*>& devices) {
  using Json = nlohmann::ordered_json;
  // Four digits that count.
  const auto round = [](double x) { return std::stod(fmt::format("{:.4g}", x)); };
  std::string rows;
  for (const Row& row : program.rows) {
    const Work work = work_of(row);
    Json one = {{"times", row.count},
                {"kernel", row.kernel},
                {"kind", name_of(row.kind)},
                {"of", row.origin},
                {"steps", row.steps},
                {"least_read", round(row.least_read)},
                {"least_written", round(row.least_written)},
                {"flops", round(row.flops)}};
    if (!row.launches.empty()) {
      one["issued_bytes"] = round(issued_bytes(row));
      one["instructions"] = round(work.needed_issues());
      one["needed_instructions"] = round(needed(row));
      Json kinds = Json::object();
      for (int k = 0; k < ptx::kKinds; ++k) {
        const auto kind = static_cast<ptx::Kind>(k);
        if (work.of(kind) > 0) kinds[ptx::name_of(kind)] = round(work.of(kind));
      }
      one["kinds"] = kinds;
      one["bank_conflicts"] = round(work.bank_conflicts);
      one["reads_again"] = reads_again(row);
      one["read_by_many_blocks"] = is_shared(row);
      Json launches = Json::array();
      for (const Launched& l : row.launches)
        launches.push_back(
            {{"kernel", l.kernel}, {"blocks", l.blocks}, {"threads", l.threads}, {"sampled", l.sampled}});
      one["launches"] = launches;
      if (row.registers > 0) one["registers"] = row.registers;
      one["spilled_bytes"] = row.spilled_bytes;
    }
    Json bounds = Json::object();
    for (const DeviceProfile* d : devices) {
      const Bound b = bound(row, *d);
      bounds[d->name] = {{"microseconds", round(b.seconds * 1e6)},
                         {"unit", b.unit},
                         {"least_microseconds", round(b.least * 1e6)},
                         {"memory_bytes", round(b.memory_bytes)}};
    }
    one["bounds"] = bounds;
    append(rows, rows.empty() ? "\n" : ",\n", one.dump());
  }
  Json made = {{"launches", program.launches}};
  double bytes = 0;
  for (const Row& row : program.rows) bytes += static_cast<double>(row.count) * row.least();
  made["least_bytes"] = round(bytes);
  for (const DeviceProfile* d : devices) {
    const Sums m = memory_bound(program, *d), a = all(program, *d);
    made["devices"][d->name] = {{"memory_bound_ms", round(m.bound * 1e3)},
                                {"memory_bound_least_ms", round(m.least * 1e3)},
                                {"memory_bound_ratio", round(m.ratio())},
                                {"memory_bound_bytes", round(m.bytes)},
                                {"all_ms", round(a.bound * 1e3)}};
  }
  if (!program.not_counted.empty()) made["not_counted"] = program.not_counted;
  std::string text = made.dump();
  text.pop_back();
  return cat(text, ",\n\"rows\": [", rows, "\n]}");
}

}  // namespace partita::counts
