#include "runtime/program/program_check.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string_view>
#include <vector>

#include "base/box.h"
#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/program/params.h"
#include "runtime/program/placement.h"
#include "runtime/program/sides.h"

namespace partita::runtime {
namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 48;
constexpr int64_t kMaxCount = int64_t{1} << 24;  // ranks, slots, micro-batches
constexpr std::array<std::string_view, 8> kCollectives = {"all_reduce", "reduce_scatter", "all_gather", "all_to_all",
                                                          "broadcast",  "send",           "recv",       "permute"};

template <typename... Args>
absl::Status wrong(const Args&... args) {
  return absl::DataLossError(cat("the program is not consistent: ", args...));
}

// In the slots up to the last that it is used in.
absl::Status check_operand(const Program& program, const Operand& operand, int64_t last_slot, bool written) {
  if (operand.dtype == DType::kInvalid) return written ? wrong("an absent operand is written") : absl::OkStatus();
  if (operand.dtype > DType::kF64) return wrong("an operand of unknown dtype");
  const int64_t bytes = operand_bytes(operand);
  if (bytes < 0) return wrong("an operand of shape ", shape_text(operand.shape));
  const Address& a = operand.address;
  if (static_cast<int>(a.region) >= kRegions) return wrong("an operand in an unknown region");
  if (a.offset < 0 || a.offset % 64 != 0 || a.slot_stride < 0 || a.slot_stride % 64 != 0 || a.offset > kMaxBytes ||
      a.slot_stride > kMaxBytes) {
    return wrong("an operand at offset ", a.offset, " with slot stride ", a.slot_stride);
  }
  if (a.places < 0 || a.places > kMaxCount) return wrong("an operand that slots have ", a.places, " places of");
  const int64_t last_place = a.places > 0 ? std::min(last_slot, a.places - 1) : last_slot;
  const __int128 end = static_cast<__int128>(a.offset) + static_cast<__int128>(a.slot_stride) * last_place + bytes;
  const int64_t size = program.region_bytes[static_cast<int>(a.region)];
  if (end > size)
    return wrong("an operand of ", bytes, " bytes at offset ", a.offset, " reaches outside its region of ", size,
                 " bytes");
  if (written && a.region == Region::kConstant) return wrong("a constant is written");
  return absl::OkStatus();
}

// Its places are multiples of 64 bytes and as large as the message at least.
absl::Status check_outbox(const Step& step) {
  if (step.name != "send" || step.inputs != 1 || step.operands.size() != 2)
    return wrong("a ", step.name, " of ", step.operands.size(), " operands from an outbox");
  const Operand& box = step.operands[1];
  const int64_t number = int_param(step.params, "outbox", -1);
  if (number < 0 || number >= kMaxCount) return wrong("outbox ", number);
  if (step.operands[0].dtype == DType::kInvalid || box.dtype != DType::kU8 || box.shape.size() != 2 ||
      box.shape[0] < 1 || box.shape[0] > kMaxCount || box.shape[1] % 64 != 0 ||
      box.shape[1] < operand_bytes(step.operands[0]) || box.address.slot_stride != 0 ||
      box.address.region != Region::kArena)
    return wrong("a message of ", operand_bytes(step.operands[0]), " bytes from an outbox ", shape_text(box.shape));
  return absl::OkStatus();
}

// Values side by side in the one operand of an all-reduce, each at the next multiple of 64 bytes.
absl::Status check_elements(const Step& step) {
  const std::vector<int64_t> elements = ints_param(step.params, "elements", {});
  const int64_t bytes = operand_bytes(step.operands[0]), element = dtype_size(step.operands[0].dtype);
  __int128 end = 0;
  for (const int64_t n : elements) {
    if (n < 0 || n > kMaxBytes) return wrong("a value of ", n, " elements");
    end += (static_cast<__int128>(n) * element + 63) / 64 * 64;
  }
  if (step.name != "all_reduce" || step.inputs != 1 || end != bytes)
    return wrong(elements.size(), " values in a ", step.name, " of ", bytes, " bytes");
  return absl::OkStatus();
}

absl::Status check_collective(const Program& program, const Step& step) {
  if (std::find(kCollectives.begin(), kCollectives.end(), step.name) == kCollectives.end())
    return wrong("unknown collective ", quote(step.name));
  const int64_t group = int_param(step.params, "group", -1);
  if (group < 0 || group >= static_cast<int64_t>(program.groups.size()))
    return wrong("collective group ", group, " of ", program.groups.size());
  const size_t inputs = static_cast<size_t>(step.inputs), outputs = step.operands.size() - inputs;
  if (step.params.count("outbox") > 0) return check_outbox(step);
  const bool sends = step.name != "recv", receives = step.name != "send";
  const bool merges = step.name == "all_reduce" || step.name == "reduce_scatter" || step.name == "all_gather" ||
                      step.name == "all_to_all";
  const bool counted =
      merges ? inputs == outputs && inputs > 0
             : inputs <= 1 && outputs == (receives ? 1 : 0) && (inputs == (sends ? 1 : 0) || step.name == "broadcast");
  if (!counted) return wrong("a ", step.name, " with ", inputs, " inputs and ", outputs, " outputs");
  for (const Operand& operand : step.operands) {
    if (operand.dtype == DType::kInvalid || operand.dtype != step.operands[0].dtype)
      return wrong("a collective's operands differ in dtype");
  }
  if (step.operands.size() < 2) return absl::OkStatus();
  if (step.params.count("elements") > 0) PARTITA_RETURN_IF_ERROR(check_elements(step));
  int64_t members = 1;
  for (int32_t axis : program.groups[static_cast<size_t>(group)].axes)
    members *= program.mesh[static_cast<size_t>(axis)].size;
  for (size_t i = 0; i < inputs; ++i) {
    const Operand &from = step.operands[i], &to = step.operands[inputs + i];
    const __int128 in = operand_bytes(from), out = operand_bytes(to);
    const bool fits = step.name == "all_gather" ? in * members == out
                      : step.name == "reduce_scatter"
                          ? in == out * members
                          : in == out && (step.name != "all_to_all" || *element_count(from.shape) % members == 0);
    if (!fits)
      return wrong(step.name, " over ", members, " ranks whose operand ", i, " goes from ", shape_text(from.shape),
                   " to ", shape_text(to.shape));
  }
  return absl::OkStatus();
}

// On a device with its own memory a step reads and writes the memory of its own side.
absl::Status check_side(const Program& program, const Step& step) {
  if (!needs_device(program) || step.kind == StepKind::kCopy) return absl::OkStatus();
  const bool on_host = runs_on_host(program, step);
  for (const Operand& o : step.operands) {
    const Region r = o.address.region;
    if (o.dtype == DType::kInvalid || r == Region::kConstant || r == Region::kInput) continue;
    if (in_host_memory(r) != on_host)
      return wrong("a step on the ", on_host ? "host" : "device", " has an operand in the memory of the ",
                   on_host ? "device" : "host");
  }
  return absl::OkStatus();
}

absl::Status check_step(const Program& program, const Step& step, int64_t last_slot, const std::set<int64_t>& starts) {
  if (step.inputs < 0 || static_cast<size_t>(step.inputs) > step.operands.size())
    return wrong(step.inputs, " inputs of ", step.operands.size(), " operands");
  if (step.origin < -1 || step.origin >= static_cast<int32_t>(program.origins.size()))
    return wrong("origin ", step.origin, " of ", program.origins.size());
  if (step.units < 0 || step.bytes < 0 || step.flops < 0) return wrong("negative units, bytes or flops");
  if (step.kind != StepKind::kCollectiveStart && step.params.count("outbox") > 0)
    return wrong("an outbox of a step that sends nothing");
  for (size_t i = 0; i < step.operands.size(); ++i) {
    PARTITA_RETURN_IF_ERROR(check_operand(program, step.operands[i], last_slot, i >= static_cast<size_t>(step.inputs)));
  }
  PARTITA_RETURN_IF_ERROR(check_side(program, step));
  switch (step.kind) {
    case StepKind::kKernel:
    case StepKind::kLibrary:
      if (step.name.empty() || step.name.find('\0') != std::string::npos)
        return wrong("a kernel without a proper name");
      if (step.kind == StepKind::kKernel &&
          (runs_on_host(program, step) ? program.host_kernels.empty()
                                       : program.kernels.empty() && program.portable_kernels.empty()))
        return wrong("a generated kernel, but the image carries no code");
      return absl::OkStatus();
    case StepKind::kCopy:
      if (step.operands.size() != 2 || step.inputs != 1 ||
          operand_bytes(step.operands[0]) != operand_bytes(step.operands[1]))
        return wrong("a copy between operands of different size");
      return absl::OkStatus();
    case StepKind::kCollectiveStart:
      return check_collective(program, step);
    case StepKind::kCollectiveWait:
      if (!starts.contains(int_param(step.params, "of", -1)))
        return wrong("it waits for step ", int_param(step.params, "of", -1), ", which starts no collective");
      return absl::OkStatus();
  }
  return wrong("unknown kind of step");
}

absl::Status check_frame(const Program& program) {
  __int128 ranks = 1;
  std::set<std::string_view> axes;
  for (const MeshAxis& axis : program.mesh) {
    if (!axes.insert(axis.name).second) return wrong("mesh axis ", quote(axis.name), " is there twice");
    ranks *= axis.size;
    if (axis.size < 1 || axis.size > kMaxCount || ranks > kMaxCount)
      return wrong("mesh axis ", quote(axis.name), " has size ", axis.size);
    for (int64_t stage : axis.absent) {
      if (&axis == program.mesh.data() || stage_axis(program.mesh) != 0 || stage < 0 || stage >= program.mesh[0].size)
        return wrong("mesh axis ", quote(axis.name), " is absent in stage ", stage);
    }
  }
  for (const CollectiveGroup& group : program.groups) {
    std::set<int32_t> seen;
    for (int32_t axis : group.axes) {
      if (axis < 0 || static_cast<size_t>(axis) >= program.mesh.size() || !seen.insert(axis).second)
        return wrong("a collective group names mesh axis ", axis);
    }
  }
  if (program.micro_batches < 1 || program.micro_batches > kMaxCount || program.slots < 1 ||
      program.slots > kMaxCount || program.samples_per_step < 0 || program.samples_per_step > kMaxBytes) {
    return wrong(program.micro_batches, " micro-batches, ", program.slots, " slots, ", program.samples_per_step,
                 " samples per step");
  }
  for (int64_t bytes : program.region_bytes) {
    if (bytes < 0 || bytes > kMaxBytes) return wrong("a region of ", bytes, " bytes");
  }
  if (static_cast<int64_t>(program.constants.size()) > program.region_bytes[static_cast<int>(Region::kConstant)])
    return wrong("more constants than their region holds");
  for (const ScheduleEntry& entry : program.schedule) {
    if (entry.segment < 0 || static_cast<size_t>(entry.segment) >= program.segments.size() || entry.micro_batch < 0 ||
        entry.micro_batch >= program.micro_batches || entry.slot < 0 || entry.slot >= program.slots) {
      return wrong("the schedule runs segment ", entry.segment, " for micro-batch ", entry.micro_batch, " in slot ",
                   entry.slot);
    }
  }
  return absl::OkStatus();
}

absl::Status check_placed(const Program& program, const Operand& operand, const Placement& placement, bool written,
                          bool padded = false) {
  PARTITA_RETURN_IF_ERROR(check_operand(program, operand, program.slots - 1, written));
  if (operand.dtype == DType::kInvalid) return wrong("it has no dtype");
  const absl::Status status = check_placement(placement, program.mesh, *element_count(operand.shape), padded);
  return status.ok() ? status : wrong(status.message());
}

absl::Status check_interface(const Program& program) {
  std::set<std::string_view> names;
  for (const ProgramState& state : program.states) {
    const std::string who = cat("state ", quote(state.name));
    if (!names.insert(state.name).second) return wrong(who, " is there twice");
    absl::Status status = check_placed(program, state.operand, state.placement, true, true);
    if (!status.ok()) return with_context(status, who);
    if (state.operand.address.region != Region::kState && state.operand.address.region != Region::kHostState)
      return wrong(who, " does not lie in a state region");
  }
  for (const ProgramInput& input : program.inputs) {
    const std::string who = cat("input ", quote(input.name));
    absl::Status status = input.kind == InputKind::kData
                              ? check_placed(program, input.operand, input.placement, true)
                              : check_operand(program, input.operand, program.slots - 1, true);
    if (!status.ok()) return with_context(status, who);
  }
  for (const ProgramOutput& output : program.outputs) {
    absl::Status status = check_placed(program, output.operand, output.placement, false);
    if (!status.ok()) return with_context(status, cat("output ", quote(output.name)));
  }
  return absl::OkStatus();
}

}  // namespace

int64_t operand_bytes(const Operand& operand) {
  const auto elements = element_count(operand.shape);
  if (!elements || *elements > kMaxBytes) return -1;
  return *elements * dtype_size(operand.dtype);
}

std::string describe_step(const Program& program, const Step& step) {
  std::string text = cat("step ", step.id, " ", quote(step.name.empty() ? "copy" : step.name, 80));
  if (step.origin >= 0 && static_cast<size_t>(step.origin) < program.origins.size())
    append(text, " (", quote(program.origins[static_cast<size_t>(step.origin)]), ")");
  return text;
}

absl::Status check_program(const Program& program) {
  PARTITA_RETURN_IF_ERROR(check_frame(program));
  std::set<int64_t> starts;
  for (const ProgramSegment& segment : program.segments) {
    for (const Step& step : segment.steps) {
      if (step.kind == StepKind::kCollectiveStart) starts.insert(step.id);
    }
  }
  // Segments of one chunk run in its slots alone.
  std::vector<int64_t> last_slots(program.segments.size(), 0);
  for (const ScheduleEntry& e : program.schedule) {
    int64_t& last = last_slots[static_cast<size_t>(e.segment)];
    last = std::max<int64_t>(last, e.slot);
  }
  uint32_t id = 0;
  std::map<int64_t, const Operand*> outboxes;
  for (size_t s = 0; s < program.segments.size(); ++s) {
    for (const Step& step : program.segments[s].steps) {
      if (step.id != id++) return wrong("step ", step.id, " stands at position ", id - 1);
      absl::Status status = check_step(program, step, last_slots[s], starts);
      if (status.ok() && step.params.count("outbox") > 0) {
        const Operand& box = step.operands[1];
        const Operand& first = *outboxes.try_emplace(int_param(step.params, "outbox", -1), &box).first->second;
        if (!(box.address == first.address) || box.shape != first.shape)
          status = wrong("an outbox that another step has elsewhere");
      }
      if (!status.ok()) return with_context(status, describe_step(program, step));
    }
  }
  return check_interface(program);
}

namespace {

// Whether the groups along an axis are the same under the same numbers.
bool same_groups(const Program& a, const Program& b, int32_t axis) {
  const size_t most = std::max(a.groups.size(), b.groups.size());
  const CollectiveGroup none;
  for (size_t g = 0; g < most; ++g) {
    const CollectiveGroup &x = g < a.groups.size() ? a.groups[g] : none, &y = g < b.groups.size() ? b.groups[g] : none;
    const bool along =
        std::count(x.axes.begin(), x.axes.end(), axis) + std::count(y.axes.begin(), y.axes.end(), axis) > 0;
    if (along && !(x == y)) return false;
  }
  return true;
}

}  // namespace

absl::Status check_programs(const std::vector<Program>& programs) {
  for (const Program& p : programs) PARTITA_RETURN_IF_ERROR(check_program(p));
  if (programs.empty()) return wrong("expected a program, found none");
  const Program& first = programs.front();
  const int axis = stage_axis(first.mesh);
  const int64_t stages = axis < 0 ? 1 : first.mesh[static_cast<size_t>(axis)].size;
  if (static_cast<int64_t>(programs.size()) != stages)
    return wrong("it has programs of ", programs.size(), " stages, expected ", stages);
  for (size_t k = 0; k < programs.size(); ++k) {
    const Program& p = programs[k];
    const bool same = p.mesh == first.mesh && p.samples_per_step == first.samples_per_step &&
                      p.micro_batches == first.micro_batches && same_groups(p, first, axis) && p.target == first.target;
    if (!same) return wrong("its program ", k, " is of another run than the first");
  }
  return absl::OkStatus();
}

bool begins_in(const Operand& operand, const Operand& whole) {
  const Address &at = operand.address, &begin = whole.address;
  return operand.dtype != DType::kInvalid && at.region == begin.region && at.offset >= begin.offset &&
         at.offset < begin.offset + operand_bytes(whole);
}

}  // namespace partita::runtime
