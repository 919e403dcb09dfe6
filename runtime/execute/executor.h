// Runs one rank's program, on the host or on a device that has memory of its own (device.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/communicate/collective.h"
#include "runtime/device/device.h"
#include "runtime/device/host_copies.h"
#include "runtime/execute/bound_step.h"
#include "runtime/execute/step_observer.h"
#include "runtime/execute/step_profile.h"
#include "runtime/execute/team_size.h"
#include "runtime/kernel/kernel.h"
#include "runtime/kernel/kernel_module.h"
#include "runtime/kernel/region_memory.h"
#include "runtime/program/program.h"
#include "runtime/program/sides.h"
#include "runtime/record/flight_recorder.h"

namespace partita::runtime {

class Executor;

// What all ranks of one process share: the program, its code and its constants.
struct LoadedProgram {
  static absl::StatusOr<std::shared_ptr<const LoadedProgram>> load(Program program);

  Program program;
  std::unique_ptr<KernelModule> kernels;  // those that the host runs; null without any
  RegionMemory constants;
};

// The programs of all ranks: one, or one for each stage of a pipeline.
class LoadedPrograms {
 public:
  LoadedPrograms() = default;
  LoadedPrograms(std::shared_ptr<const LoadedProgram> one) : stages_{std::move(one)} {}
  static absl::StatusOr<LoadedPrograms> load(std::vector<Program> programs);

  bool empty() const { return stages_.empty(); }
  const Program& first() const { return stages_.front()->program; }
  std::shared_ptr<const LoadedProgram> of(int64_t rank) const;

 private:
  std::vector<std::shared_ptr<const LoadedProgram>> stages_;
};

struct ExecutorOptions {
  int threads = 1;
  bool profile = false;
  size_t trace_events = 100000;
  // Not null: works on that executor's states, by their names, in place of its own (an evaluation program beside the
  // training one, one for another global batch). It outlives this one. Accumulators stay its own.
  const Executor* states_of = nullptr;
  // Its steps and the other's never overlap, nor is what they leave but states read later: their working memory is one
  // where it fits.
  bool shares_memory = false;
  StepObserver* observer = nullptr;    // outlives the executor; a device's steps are then run one by one
  FlightRecorder* recorder = nullptr;  // of its steps; outlives the executor
  int device = 0;                      // which of the host's devices, for a program that needs one
  std::string tune;                    // not empty: its file of tuned kernels (Device::tune)
  std::function<absl::StatusOr<std::unique_ptr<Device>>(const Program&, int ordinal)> open_device =
      runtime::open_device;  // how it is opened
};

// One per rank, used from one thread: create() sets that thread's OpenMP team.
class Executor {
 public:
  // `communicator` may be null for a program of one rank; else it outlives the executor and its size is the mesh's.
  // Creates the program's groups, so all ranks call this in the same place. Errors: ResourceExhausted (memory),
  // Unimplemented (kernel), FailedPrecondition (number of ranks).
  static absl::StatusOr<std::unique_ptr<Executor>> create(std::shared_ptr<const LoadedProgram> loaded,
                                                          Communicator* communicator, const ExecutorOptions& options);

  const Program& program() const { return loaded_->program; }
  int rank() const { return rank_; }
  const std::vector<int64_t>& coordinates() const { return coordinates_; }
  // Which group of the communicator this rank's is of the program's; none where it is alone in it.
  std::optional<GroupId> group_id(size_t group) const {
    return groups_[group].size > 1 ? std::optional(groups_[group].id) : std::nullopt;
  }

  // An operand's memory in a slot. Where a device has it, this is the host's side of it: fetch() before reading, and
  // put() after writing. Both do nothing else.
  std::span<std::byte> memory(const Operand& operand, int64_t slot = 0) const;
  absl::Status fetch(const Operand& operand, int64_t slot = 0) const;
  absl::Status put(const Operand& operand, int64_t slot = 0) const;
  // An operand's bytes to where its steps read them; on a device the host's side of it stays as it is.
  absl::Status put(const Operand& operand, int64_t slot, std::span<const std::byte> bytes) const;
  // Where the steps find it: on the device, if there is one.
  std::byte* address(const Operand& operand, int64_t slot) const;
  // Has the steps of a slot read an input where `bytes` are, a cache line's beginning, until the next time; or puts
  // them where those read it, if that is a device's memory or somebody looks on.
  absl::Status lend(const Operand& input, int64_t slot, std::span<const std::byte> bytes);
  absl::Status fetch_states() const;
  absl::Status put_states() const;

  // Runs the entries in order. Before the first forward or backward entry of a micro-batch that another
  // held the slot of, its micro-batch and coordinate inputs are written and `stage` is called to fill the data inputs
  // of that slot. `queued` is called when a device has been given all of it, before it is waited for: what the host
  // does there, it does beside the device. An error names the step and its ONNX origin.
  absl::Status run(std::span<const ScheduleEntry> schedule,
                   absl::FunctionRef<absl::Status(int64_t micro_batch, int64_t slot)> stage,
                   absl::FunctionRef<absl::Status()> queued = absl::OkStatus);
  // Whether an entry works on a micro-batch's samples.
  bool takes_samples(const ScheduleEntry& entry) const;

  // Bytes that kernels need beside the program's regions.
  int64_t scratch_bytes() const { return device_ != nullptr ? device_scratch_ : scratch_->bytes(); }
  FlightRecorder* recorder() const { return recorder_; }
  // Null where the host runs everything.
  Device* device() const { return device_.get(); }

  const StepProfile* profile() const { return profile_ ? &*profile_ : nullptr; }

 private:
  // Messages under way: those of its places, and the one that takes the next.
  struct Outbox {
    std::vector<Ticket> places;
    size_t next = 0;
  };

  explicit Executor(std::shared_ptr<const LoadedProgram> loaded) : loaded_(std::move(loaded)) {}
  absl::Status allocate(const Executor* shares);
  absl::Status allocate_on_device();
  void share(const Executor& owner);
  std::byte* borrowed(const Address& a, bool on_device) const;
  bool on_device(const Operand& operand) const { return device_ != nullptr && !in_host_memory(operand.address.region); }
  absl::Status copy(std::byte* to, const std::byte* from, int64_t bytes) const;
  absl::Status copy_between(const BoundStep& step, std::byte* const* buffers);
  absl::Status borrow_states(const Executor& owner);
  absl::Status join(Communicator* communicator);
  absl::Status create_groups();
  absl::Status bind(const ExecutionConfig& config);
  absl::Status bind_step(const Step& step, const ExecutionConfig& config);
  absl::Status bind_collective(const Step& step, BoundStep& bound);
  std::vector<CollectiveOp> operations() const;
  // One of buffers_ that is in an input's slot: so far from its beginning.
  struct InputBuffer {
    size_t buffer = 0;
    int64_t from_begin = 0;
  };
  std::vector<InputBuffer> input_buffers(const Operand& input, int64_t slot) const;
  absl::Status bind_runs(const ProgramSegment& segment, std::vector<BoundStep>& steps);
  absl::Status bind_batched(std::span<BoundStep> run, const std::vector<size_t>& launch);
  void bind_uses();
  size_t add_uses(std::span<const BoundStep> steps);
  static std::vector<CollectivePiece> pieces(const Step& step, int64_t group_size);
  absl::Status stage_coordinates();
  absl::Status stage_scalar(const Operand& operand, int64_t slot, int64_t value);
  absl::Status run_schedule(std::span<const ScheduleEntry> schedule,
                            absl::FunctionRef<absl::Status(int64_t, int64_t)> stage,
                            absl::FunctionRef<absl::Status()> queued);
  absl::Status run_segment(const ScheduleEntry& entry);
  absl::Status run_observed(BoundStep& step, const ScheduleEntry& entry);
  absl::Status run_profiled(BoundStep& step, const ScheduleEntry& entry);
  absl::Status add_stamped();
  void add_batched(const BoundStep& step, const ScheduleEntry& entry, StepProfile::Clock::time_point begin,
                   StepProfile::Clock::time_point end);
  absl::Status run_beside_copies(std::span<BoundStep> steps, int64_t slot);
  absl::Status run_together(std::span<BoundStep> steps, int64_t slot);
  absl::Status run_step(BoundStep& step, int64_t slot);
  absl::Status finish_sends();
  void run_kernel(const BoundStep& step, std::byte* const* buffers);
  bool is_to_itself(const Step& step) const;
  absl::Status send(const BoundStep& step, std::byte* const* buffers);
  absl::Status receive_own(const BoundStep& step, std::byte* const* buffers);
  absl::Status start_collective(const BoundStep& step, std::byte* const* buffers, int64_t slot);

  std::shared_ptr<const LoadedProgram> loaded_;
  std::shared_ptr<Device> device_;  // an evaluation program works on its training program's
  std::byte *on_device_[kRegions] = {}, *on_host_[kRegions] = {};  // regions; the host's side of those of a device
  bool shared_[kRegions] = {};                                     // those of the executor whose states it works on
  HostCopies host_copies_;
  int64_t device_scratch_ = 0;
  std::unique_ptr<Communicator> device_communicator_;
  Communicator* communicator_ = nullptr;  // the steps'
  int rank_ = 0, threads_ = 1;
  std::optional<TeamChoice> team_;  // of a small program that is alone
  std::vector<int64_t> coordinates_;
  struct Group {
    GroupId id = kWorldGroup;
    int mine = 0, size = 1;
  };
  std::vector<Group> groups_;
  RegionMemory regions_[kRegions];
  struct Borrowed {
    Region region = Region::kState;
    int64_t offset = 0, bytes = 0;                      // of the state in this program's region
    std::byte *memory = nullptr, *on_device = nullptr;  // the owner's
  };
  std::vector<Borrowed> borrowed_;  // by region and offset
  std::shared_ptr<KernelScratch> scratch_ = std::make_shared<KernelScratch>();
  std::vector<std::byte*> buffers_;
  // Of inputs, by offset and slot.
  std::map<std::pair<int64_t, int64_t>, std::vector<InputBuffer>> input_buffers_;
  std::vector<DeviceMemoryUse> uses_;  // of runs and collectives, by slot
  std::vector<Ticket> tickets_;        // 0 where nothing has been started
  std::map<int64_t, Outbox> outboxes_;
  std::map<GroupId, std::deque<const std::byte*>> to_itself_;  // sent and not received, in their outboxes
  std::vector<size_t> ticket_of_step_;
  std::vector<bool> alone_;  // by step: a collective of one rank
  std::vector<std::vector<BoundStep>> segments_;
  std::vector<int64_t> staged_;  // micro-batch in each slot, or -1
  std::optional<StepProfile> profile_;
  StepObserver* observer_ = nullptr;
  FlightRecorder* recorder_ = nullptr;
  int32_t recorded_ = 0;  // the number of its first step there
  // Profiled steps of a device, each between two of its stamps; the first stamp is at `stamps_begin_`.
  struct Stamped {
    const BoundStep* step = nullptr;
    ScheduleEntry entry;
  };
  std::vector<Stamped> stamped_;
  StepProfile::Clock::time_point stamps_begin_;
};

}  // namespace partita::runtime
