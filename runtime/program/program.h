// The rank program: what the compiler hands to the runtime. It knows buffers, steps and schedules, nothing of graphs.
//
// One image serves every rank that differs only in its coordinates on the mesh; a pipeline has one for each stage
// (coordinate along its mesh axis). Addresses are region + offset + slot * slot_stride: the schedule's slot selects one
// of several stashed micro-batches, or, where an operand has fewer places, one of those that take turns.
//
// File: magic "PARTITA\1", u32 version, u32 flags, u64 body bytes, u64 blob bytes, u64 checksum of body and blob, body
// (MessagePack), blob (kernels, constants). Little-endian.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "base/dtype.h"
#include "base/index_bounds.h"
#include "base/kinds.h"

namespace partita::runtime {

inline constexpr uint32_t kProgramVersion = 7;

enum class Region : uint8_t {
  kState,      // lives as long as the run: parameters, optimizer states
  kHostState,  // the same, in host memory on a device that has its own
  kArena,      // values of one step
  kConstant,   // read-only, a part of the image's blob
  kInput,      // staged data columns and runtime scalars, one slot per micro-batch in flight
  kHostArena,  // values of one step, in host memory on a device that has its own: what its host steps read and write
};
inline constexpr int kRegions = 6;

struct Address {
  Region region = Region::kArena;
  int64_t offset = 0;       // bytes, a multiple of 64
  int64_t slot_stride = 0;  // bytes
  int64_t places = 0;       // of its own for each slot, or so many that slots share by their number modulo it

  int64_t in_slot(int64_t slot) const { return offset + (places > 0 ? slot % places : slot) * slot_stride; }
  bool operator==(const Address&) const = default;
};

struct Operand {
  Address address;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // row-major, dense; an absent optional operand has DType::kInvalid
};

using Param = std::variant<int64_t, double, std::string, std::vector<int64_t>, std::vector<double>>;
using Params = std::map<std::string, Param>;

// Where a step runs, on a device that has its own memory. Each then works on its side alone (constants and inputs are
// on both); copies go from any to any.
enum class DeviceTag : uint8_t { kDevice, kHost };

enum class StepKind : uint8_t {
  kKernel,   // generated code, `name` is its symbol: called over units [0, units) in any split; on a GPU `units` blocks
             // of params[threads] threads, operands' addresses as arguments, or a batched launch (batched_launches.h)
  kLibrary,  // `name` is the runtime's kernel of that name, configured by operand types and params
  kCopy,     // operand 0 -> operand 1, same bytes
  kCollectiveStart,  // `name`: all_reduce, reduce_scatter, all_gather, all_to_all, broadcast, send, recv, permute;
                     // params: group, reduce, peer, …; the first three may have several operands, each with a result.
                     // A send may have an outbox, u8[places, bytes], as its result, with a number (outbox): its message
                     // is put into the next place, once the message that was there before has been taken up, and
                     // nothing waits for it but the end of the schedule. A rank that is its own peer receives from the
                     // outbox, in the order of the group's messages
  kCollectiveWait,   // params: of (the id of the start)
};

struct Step {
  uint32_t id = 0;  // position in the program; the same number in the simulator, traces and errors
  StepKind kind = StepKind::kKernel;
  DeviceTag device = DeviceTag::kDevice;
  std::string name;
  std::vector<Operand> operands;  // inputs, then outputs
  int32_t inputs = 0;             // how many of them are inputs
  Params params;
  int64_t units = 1;             // kKernel: independent units of work
  int64_t bytes = 0, flops = 0;  // for traces and MFU
  int32_t origin = -1;           // index into Program::origins: ONNX op and node
  int32_t block = -1;            // of the model (passes/forward/tag_blocks.h); -1 outside
};

// Generated code, one C function per kernel step: works on units [begin, end). `buffers` are the operands' addresses in
// order.
using KernelFunction = void (*)(char* const* buffers, int64_t begin, int64_t end);

struct ProgramSegment {
  Segment kind = Segment::kForward;
  int32_t chunk = 0;  // of a segment that the schedule runs in several: 1 for gradients of weights
  std::vector<Step> steps;
};

// One line of the schedule: run a segment for a micro-batch with its values in a slot.
struct ScheduleEntry {
  int32_t segment = 0;
  int32_t micro_batch = 0;
  int32_t slot = 0;
};

struct MeshAxis {
  std::string name;
  int64_t size = 1;
  // Stages of a pipeline (coordinates along the first axis) without this axis: its coordinate 0 alone exists there.
  std::vector<int64_t> absent = {};
  bool operator==(const MeshAxis&) const = default;
};

// Where a rank's part of a logical tensor lies. The logical shape is refined into `shape` (a dimension may become
// several); along refined dimension d this rank holds [offset, offset + local[d]), offset = sum over `axes[d]` of
// coordinate(axis) * stride. `shape` may be longer than a state's logical one: by padding, zero and in no file.
struct AxisStride {
  int32_t axis = 0;
  int64_t stride = 0;
};
struct Placement {
  std::vector<int64_t> logical;  // the whole tensor's shape
  std::vector<int64_t> shape;    // refined
  std::vector<int64_t> local;    // this rank's extent of each refined dimension
  std::vector<std::vector<AxisStride>> axes;
};

// Random ones are drawn by global element index.
enum class InitialKind : uint8_t {
  kFile,     // under the state's name in the bundle's initial.safetensors
  kFill,     // `a`
  kNormal,   // mean `a`, deviation `b`
  kUniform,  // in [`a`, `b`)
};

struct InitialValue {
  InitialKind kind = InitialKind::kFile;
  double a = 0, b = 0;
};

struct ProgramState {
  std::string name;  // the logical (ONNX) name
  StateKind kind = StateKind::kParameter;
  std::string parameter;  // whose optimizer state it is
  Operand operand;
  Placement placement;
  InitialValue initial;
};

struct ProgramInput {
  std::string name;
  InputKind kind = InputKind::kData;
  Operand operand;            // one micro-batch of this rank
  Placement placement;        // within one run of the graph, over all ranks; dimension 0 counts samples
  int64_t slice_samples = 0;  // along dimension 0 from one micro-batch of a run to the next; 0: every one has all of it
  IndexBounds bounds;         // of the integers of this input
};

struct ProgramOutput {
  std::string name;  // "loss", "grad_norm", "lr", "metric/REDUCTION/NAME": scalars read after the step;
                     // "grad/NAME": a tensor, kept where the program was compiled to keep gradients
  Operand operand;
  Placement placement;
};

struct CollectiveGroup {
  std::vector<int32_t> axes;  // ranks that differ in these axes alone form one group
  bool operator==(const CollectiveGroup&) const = default;
};

struct Program {
  std::string model;
  std::string target;  // "cpu:x86-64-v4", "cuda:sm_90"
  std::vector<MeshAxis> mesh;
  std::vector<CollectiveGroup> groups;
  int64_t micro_batches = 1;
  int64_t micro_slices = 1;      // micro-batches that one run of the model's graph is cut into
  int64_t samples_per_step = 0;  // the global batch
  int64_t slots = 1;
  int64_t region_bytes[kRegions] = {};
  std::vector<ProgramSegment> segments;
  std::vector<ScheduleEntry> schedule;  // one training step, or one batch of evaluation
  std::vector<ProgramState> states;
  std::vector<ProgramInput> inputs;
  std::vector<ProgramOutput> outputs;
  std::vector<std::string> origins;
  std::vector<uint8_t> kernels;  // an ELF shared object that needs nothing, or a cubin for "cuda:" targets; empty
                                 // where there is no generated code
  std::vector<uint8_t> portable_kernels;  // "cuda:": the same as PTX, for devices newer than the target
  std::vector<uint8_t> host_kernels;      // "cuda:": the kernels of steps on the host, an ELF shared object as above
  std::vector<uint8_t> constants;         // contents of Region::kConstant
};

}  // namespace partita::runtime

template <>
inline constexpr auto partita::kEnumNames<partita::runtime::Region> = partita::name_table("state", "host_state",
                                                                                          "arena", "constant", "input",
                                                                                          "host_arena");
template <>
inline constexpr auto partita::kEnumNames<partita::runtime::DeviceTag> = partita::name_table("device", "host");
template <>
inline constexpr auto partita::kEnumNames<partita::runtime::StepKind> = partita::name_table("kernel", "library", "copy",
                                                                                            "collective_start",
                                                                                            "collective_wait");
template <>
inline constexpr auto partita::kEnumNames<partita::runtime::InitialKind> = partita::name_table("file", "fill", "normal",
                                                                                               "uniform");
