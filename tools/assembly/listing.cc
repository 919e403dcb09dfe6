#include "tools/assembly/listing.h"

#include <algorithm>
#include <map>

#include "base/cat.h"
#include "fmt/format.h"
#include "runtime/program/params.h"
#include "runtime/program/placement.h"

namespace partita {
namespace {

using runtime::Program;
using runtime::Step;
using runtime::StepKind;

std::string bytes_text(int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  double n = static_cast<double>(bytes);
  for (; n >= 1024 && unit + 1 < std::size(kUnits); ++unit) n /= 1024;
  return unit == 0 ? cat(bytes, " B") : fmt::format("{:.{}f} {}", n, n < 10 ? 1 : 0, kUnits[unit]);
}

std::string joined(const std::vector<std::string>& words, std::string_view between) {
  std::string text;
  for (const std::string& w : words) append(text, text.empty() ? "" : between, w);
  return text;
}

class Listing {
 public:
  explicit Listing(const verifier::RankProgram& p) : p_(p), program_(p.program) {}

  std::string text() const {
    std::string all = head();
    std::map<std::string, int> parts, seen;
    for (const auto& segment : program_.segments) ++parts[segment_name(segment)];
    for (const auto& segment : program_.segments) {
      const std::string name = segment_name(segment);
      append(all, "\n", name, parts[name] > 1 ? cat(", part ", ++seen[name], " of ", parts[name]) : "", "\n");
      for (const Step& step : segment.steps) all += line(step);
    }
    return all;
  }

 private:
  static std::string segment_name(const runtime::ProgramSegment& s) {
    return cat(enum_name(s.kind), s.chunk > 0 ? cat(" ", s.chunk) : "");
  }

  std::string head() const {
    std::vector<std::string> axes, regions;
    for (const auto& a : program_.mesh) axes.push_back(cat(a.name, "=", a.size));
    for (int r = 0; r < runtime::kRegions; ++r) {
      if (program_.region_bytes[r] > 0)
        regions.push_back(cat(enum_name(static_cast<runtime::Region>(r)), " ", bytes_text(program_.region_bytes[r])));
    }
    std::string text = cat(program_.model, " for ", program_.target, ": ", runtime::mesh_size(program_.mesh), " ranks",
                           axes.empty() ? "" : cat(" (", joined(axes, ", "), ")"), ", ", program_.samples_per_step,
                           " samples a step in ", program_.micro_batches, " micro-batches, ", program_.slots,
                           " at once\nmemory of a rank: ", joined(regions, ", "), "\n");
    for (size_t g = 0; g < program_.groups.size(); ++g) append(text, "group ", g, ": ", group_text(g), "\n");
    return text + schedule_text();
  }

  std::string group_text(size_t group) const {
    std::vector<std::string> names;
    int64_t ranks = 1;
    for (int32_t a : program_.groups[group].axes) {
      names.push_back(program_.mesh[static_cast<size_t>(a)].name);
      ranks *= program_.mesh[static_cast<size_t>(a)].size;
    }
    return cat("ranks along ", joined(names, ", "), " (", ranks, ")");
  }

  // "forward 0, backward 0, forward 1 in slot 1, …"; parts of a segment that follow each other once.
  std::string schedule_text() const {
    std::vector<std::string> words;
    for (const runtime::ScheduleEntry& e : program_.schedule) {
      const auto& segment = program_.segments[static_cast<size_t>(e.segment)];
      const bool each = segment.kind == Segment::kForward || segment.kind == Segment::kBackward;
      std::string word = cat(segment_name(segment), each ? cat(" of micro-batch ", e.micro_batch) : "",
                             e.slot > 0 ? cat(" in slot ", e.slot) : "");
      if (words.empty() || words.back() != word) words.push_back(std::move(word));
    }
    return cat("schedule: ", joined(words, ", "), "\n");
  }

  // A value by its ONNX name, or its number in the evidence.
  std::string value(const Step& step, size_t k) const {
    const runtime::Operand& o = step.operands[k];
    if (o.dtype == DType::kInvalid) return "-";
    const std::vector<int>& values = p_.claims[step.id].values;
    const int v = k < values.size() ? values[k] : -1;
    std::string name = v < 0 ? cat(enum_name(o.address.region), "+", o.address.offset)
                             : cat("%", v, p_.code.values[static_cast<size_t>(v)].name.empty() ? "" : " ",
                                   p_.code.values[static_cast<size_t>(v)].name);
    return name;
  }

  std::string line(const Step& step) const {
    std::vector<std::string> from, to;
    for (size_t k = 0; k < step.operands.size(); ++k) {
      const runtime::Operand& o = step.operands[k];
      const bool input = k < static_cast<size_t>(step.inputs);
      (input ? from : to)
          .push_back(cat(value(step, k), input ? "" : cat(" ", dtype_name(o.dtype), to_string(o.shape))));
    }
    std::string what = cat(step.name.empty() ? std::string(enum_name(step.kind)) : step.name,
                           step.kind == StepKind::kKernel ? cat(" x", step.units) : "");
    if (step.kind == StepKind::kCollectiveWait) what = cat("wait for ", runtime::int_param(step.params, "of", -1));
    const std::string source = step.origin < 0 ? "" : program_.origins[static_cast<size_t>(step.origin)];
    std::vector<std::string> notes;
    if (step.kind == StepKind::kCollectiveStart) {
      notes.push_back(cat("group ", runtime::int_param(step.params, "group", -1)));
      if (step.params.count("peer") > 0) notes.push_back(cat("peer ", runtime::int_param(step.params, "peer", -1)));
    }
    if (step.bytes > 0) notes.push_back(bytes_text(step.bytes));
    if (!source.empty()) notes.push_back(source);
    const std::string operands = from.empty() && to.empty() ? "" : cat(joined(from, ", "), " -> ", joined(to, ", "));
    return fmt::format("{:>6}  {:<16} {}{}{}\n", step.id, what, operands, operands.empty() ? "" : "  ; ",
                       joined(notes, "  "));
  }

  const verifier::RankProgram& p_;
  const Program& program_;
};

std::string programs_text(const verifier::ProgramSet& set, std::string_view what) {
  std::string text;
  for (size_t k = 0; k < set.programs.size(); ++k) {
    append(text, text.empty() ? "" : "\n", what, set.programs.size() > 1 ? cat(", stage ", k) : "", "\n");
    text += Listing(set.programs[k]).text();
  }
  return text;
}

}  // namespace

std::string listing(const verifier::Bundle& bundle) {
  std::string text = programs_text(bundle, "training");
  if (bundle.evaluation) append(text, "\n", programs_text(*bundle.evaluation, "evaluation"));
  return text;
}

}  // namespace partita
