#include "tests/stand_ins/nccl/meeting.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <random>
#include <thread>

namespace partita::stand_in {
namespace {

const char* const kOperations[] = {"nothing", "all_reduce", "reduce_scatter", "all_gather", "broadcast", "a message"};
const char* const kTypes[] = {"i8", "u8", "i32", "u32", "i64", "u64", "f16", "f32", "f64", "bf16"};
const char* const kReductions[] = {"sum", "product", "max", "min"};

template <size_t n>
const char* name_in(const char* const (&names)[n], size_t k) {
  return k < n ? names[k] : "?";
}

}  // namespace

// operation 3 bits, type 4, reduction 3, root 4, turn 18, count 32.
uint64_t Label::packed() const {
  return static_cast<uint64_t>(operation) | uint64_t{type} << 3 | uint64_t{reduction} << 7 | uint64_t{root} << 10 |
         uint64_t{turn & 0x3ffff} << 14 | count << 32;
}
Label Label::of(uint64_t p) {
  return {
      static_cast<Operation>(p & 7),      static_cast<uint8_t>(p >> 3 & 15),        static_cast<uint8_t>(p >> 7 & 7),
      static_cast<uint8_t>(p >> 10 & 15), static_cast<uint32_t>(p >> 14 & 0x3ffff), p >> 32};
}
std::string Label::text() const {
  std::string text = name_in(kOperations, static_cast<size_t>(operation));
  if (operation == Operation::kAllReduce || operation == Operation::kReduceScatter)
    text += std::string(" ") + name_in(kReductions, reduction);
  text += " of " + std::to_string(count) + " x " + name_in(kTypes, type);
  if (operation == Operation::kBroadcast) text += " from rank " + std::to_string(root);
  return text + ", number " + std::to_string(turn) +
         (operation == Operation::kPointToPoint ? " between the two" : " of the communicator");
}

std::string Meeting::new_name() {
  std::random_device random;
  char text[64];
  std::snprintf(text, sizeof text, "/partita_nccl_%08x%08x", random(), random());
  return text;
}

bool Meeting::open(const std::string& name, int rank, int ranks, std::string& why) {
  name_ = name, ranks_ = ranks;
  const int file = ::shm_open(name.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  void* page = MAP_FAILED;
  if (file >= 0 && ::ftruncate(file, sizeof(Page)) == 0)
    page = ::mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (file >= 0) ::close(file);
  if (page == MAP_FAILED) return why = "no shared memory", false;
  page_ = static_cast<Page*>(page);  // zeroed by the system: everybody is away and every box empty
  void* device = nullptr;
  if (cudaHostRegister(page, sizeof(Page), cudaHostRegisterMapped) != cudaSuccess ||
      cudaHostGetDevicePointer(&device, page, 0) != cudaSuccess)
    return why = "the GPU does not see shared memory", false;
  device_page_ = static_cast<char*>(device);
  if (member(rank).state.exchange(kHere) != kAway) return why = "another process has this rank", false;
  return true;
}

Meeting::~Meeting() { leave_name(); }

bool Meeting::wait_for_all(int state, const std::function<bool()>& gives_up) {
  for (int r = 0; r < ranks_; ++r) {
    while (member(r).state < state) {
      if (gives_up()) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  return true;
}

void Meeting::leave_name() {
  if (!name_.empty()) ::shm_unlink(name_.c_str());
  name_.clear();
}

uint64_t Meeting::on_device(const std::atomic<uint64_t>& word) const {
  return reinterpret_cast<uint64_t>(device_page_ +
                                    (reinterpret_cast<const char*>(&word) - reinterpret_cast<const char*>(page_)));
}

}  // namespace partita::stand_in
