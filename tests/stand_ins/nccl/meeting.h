// Where the ranks of a communicator meet: a page of shared memory with a box for every ordered pair of them. A box
// counts the messages that were put into it and taken out of it, and says what the last one is. The GPU's streams wait
// for these words and write them (cuStreamWaitValue64, cuStreamWriteValue64); what a message carries lies elsewhere.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

namespace partita::stand_in {

constexpr int kMostRanks = 16;

enum class Operation : uint8_t { kNone, kAllReduce, kReduceScatter, kAllGather, kBroadcast, kPointToPoint };

// What both ends of a message must say alike, in one word.
struct Label {
  Operation operation = Operation::kNone;
  uint8_t type = 0, reduction = 0, root = 0;
  uint32_t turn = 0;   // number of the operation among those of the communicator, or of the pair
  uint64_t count = 0;  // elements; below 2^32

  uint64_t packed() const;
  static Label of(uint64_t packed);
  std::string text() const;  // "all_reduce sum of 1000 x f32, operation 3 of the communicator"
};

struct Box {
  std::atomic<uint64_t> posted, taken, label;
};
struct Member {
  std::atomic<int> state;  // one of the below
  long process;
  void* address;              // of its memory, for ranks of the same process
  cudaIpcMemHandle_t memory;  // for others
};
enum { kAway, kHere, kReady, kConnected };  // kReady: its memory can be opened; kConnected: it has opened the others'

class Meeting {
 public:
  // A name for a new one.
  static std::string new_name();

  ~Meeting();
  // Comes to the meeting; the words that streams use lie at `on_device`. False with a reason.
  bool open(const std::string& name, int rank, int ranks, std::string& why);
  // Every rank's state is at least `state`, or `gives_up()`.
  bool wait_for_all(int state, const std::function<bool()>& gives_up);
  void leave_name();  // nobody else will come

  Member& member(int rank) { return page_->members[rank]; }
  Box& box(int from, int to) { return page_->boxes[from][to]; }
  uint64_t on_device(const std::atomic<uint64_t>& word) const;

 private:
  struct Page {
    Member members[kMostRanks];
    Box boxes[kMostRanks][kMostRanks];  // from, to
  };
  std::string name_;
  int ranks_ = 0;
  Page* page_ = nullptr;
  char* device_page_ = nullptr;
};

}  // namespace partita::stand_in
