// What is wrong with a kernel is found and named: where it touches memory that is not its own, where threads race,
// where lanes and warps wait for what never comes.
#include "tests/ptx/kernel_harness.h"

namespace partita::ptx {
namespace {

absl::Status status_of(const std::string& body, uint32_t threads = 64, uint32_t blocks = 1) {
  std::vector<uint32_t> a(64, 0), b(64, 0);
  for (Order order : {Order::kForward, Order::kBackward, Order::kShuffled}) {
    const absl::Status status = run_kernel(body, a, b, {threads, 1, 1}, {blocks, 1, 1}, {.order = order}).status;
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}
void expect_fault(const std::string& body, absl::StatusCode code, const std::string& part, uint32_t threads = 64,
                  uint32_t blocks = 1) {
  const absl::Status status = status_of(body, threads, blocks);
  EXPECT_EQ(status.code(), code) << body << ": " << status;
  EXPECT_NE(std::string(status.message()).find(part), std::string::npos) << status;
}

const char kAtThread[] =
    "mul.wide.u32 %rd3, %r1, 4; add.s64 %rd4, %rd1, %rd3; mov.u32 %r3, tile; shl.b32 %r4, %r1, 2; add.s32 %r3, %r3, "
    "%r4;\n";

TEST(PtxBounds, OneElementTooFar) {
  EXPECT_TRUE(status_of(cat(kAtThread, "st.global.u32 [%rd4], %r1;")).ok());
  expect_fault(cat(kAtThread, "st.global.u32 [%rd4+4], %r1;"), absl::StatusCode::kOutOfRange,
               "'st.global.u32 [%rd4+4], %r1;': thread 63 of block 0 touches 4 bytes outside of global memory: 256 "
               "bytes into a range of 256");
  expect_fault(cat(kAtThread, "st.shared.u32 [%r3+3844], %r1;"), absl::StatusCode::kOutOfRange,
               "touches 4 bytes at 4096 of 4096 bytes of shared memory");
  expect_fault("ld.param.u64 %rd3, [b+8];", absl::StatusCode::kOutOfRange, "outside of the parameters");
}

TEST(PtxAlignment, OfVectorsToo) {
  expect_fault("ld.global.u32 %r3, [%rd1+2];", absl::StatusCode::kOutOfRange, "no multiple of 4");
  expect_fault("ld.global.v4.u32 {%r3, %r4, %r5, %r6}, [%rd1+8];", absl::StatusCode::kOutOfRange, "no multiple of 16");
  expect_fault("mov.u32 %r3, tile; ld.shared.u16 %rs1, [%r3+1];", absl::StatusCode::kOutOfRange, "no multiple of 2");
}

TEST(PtxRaces_Shared, BetweenBarriers) {
  const std::string write = cat(kAtThread, "st.shared.u32 [%r3], %r1;\n"),
                    read =
                        "xor.b32 %r5, %r4, 128; mov.u32 %r6, tile; add.s32 %r6, %r6, %r5; ld.shared.u32 %r7, [%r6]; "
                        "st.global.u32 [%rd4], %r7;\n";
  EXPECT_TRUE(status_of(cat(write, "bar.sync 0;\n", read)).ok());
  expect_fault(cat(write, read), absl::StatusCode::kAborted, "races in shared memory with thread");
  expect_fault(cat(write, "bar.warp.sync -1;\n", read), absl::StatusCode::kAborted,
               "races in shared memory");  // of another warp
  expect_fault(cat(write, "bar.sync 0;\n", read, write), absl::StatusCode::kAborted,
               "races in shared memory");  // overwritten too early
  EXPECT_TRUE(status_of(cat(write, "bar.sync 0;\n", read, "bar.sync 0;\n", write)).ok());
  const std::string neighbour =
      "xor.b32 %r5, %r4, 4; mov.u32 %r6, tile; add.s32 %r6, %r6, %r5; ld.shared.u32 %r7, [%r6]; st.global.u32 [%rd4], "
      "%r7;\n";
  expect_fault(cat(write, neighbour), absl::StatusCode::kAborted, "races in shared memory");
  EXPECT_TRUE(status_of(cat(write, "bar.warp.sync -1;\n", neighbour)).ok());
  // Threads that write different halves of a word do not race.
  EXPECT_TRUE(status_of("mov.u32 %r3, tile; shl.b32 %r4, %r1, 1; add.s32 %r3, %r3, %r4; cvt.u16.u32 %rs1, %r1; "
                        "st.shared.u16 [%r3], %rs1;")
                  .ok());
  expect_fault("mov.u32 %r3, tile; st.shared.u32 [%r3], %r1;", absl::StatusCode::kAborted, "races in shared memory");
}

TEST(PtxRaces_Global, BetweenBlocks) {
  EXPECT_TRUE(status_of(cat(kAtThread, "st.global.u32 [%rd4], %r1;"), 32, 1).ok());
  expect_fault(cat(kAtThread, "st.global.u32 [%rd4], %r1;"), absl::StatusCode::kAborted,
               "races in global memory with thread", 32, 2);
  expect_fault(cat(kAtThread,
                   "ld.global.u32 %r5, [%rd4]; setp.eq.s32 %p1, %r2, 1; @%p1 st.global.u32 [%rd4], %r1; @!%p1 "
                   "st.global.u32 [%rd4+128], %r5;"),
               absl::StatusCode::kAborted, "races in global memory", 32, 2);
  EXPECT_TRUE(status_of("red.global.add.u32 [%rd1], 1;", 32, 2).ok());
  expect_fault(
      "red.global.add.u32 [%rd1], 1; ld.global.u32 %r3, [%rd1]; setp.eq.s32 %p1, %r1, 0; add.s32 %r2, %r2, 1; "
      "mul.wide.u32 %rd3, %r2, 4; add.s64 %rd3, %rd3, %rd1; @%p1 st.global.u32 [%rd3], %r3;",
      absl::StatusCode::kAborted, "races in global memory", 32, 2);
}

// A thread that has nothing to do may read what another one writes, as long as nothing comes of it.
TEST(PtxRaces_Reads, AreNoneWhereNothingComesOfThem) {
  const std::string idle =
      cat("setp.lt.u32 %p1, %r1, 4; selp.b32 %r4, %r1, 0, %p1; mul.wide.u32 %rd3, %r4, 4; "
          "add.s64 %rd4, %rd1, %rd3; ld.global.u32 %r5, [%rd4]; add.s32 %r5, %r5, 1;\n");
  EXPECT_TRUE(status_of(cat(idle, "@%p1 st.global.u32 [%rd4], %r5;")).ok());
  // The other half of a word is somebody else's.
  EXPECT_TRUE(
      status_of("setp.lt.u32 %p1, %r1, 4; selp.b32 %r4, %r1, 0, %p1; mul.wide.u32 %rd3, %r4, 2; add.s64 %rd4, %rd1, "
                "%rd3; ld.global.u16 %rs1, [%rd4]; @%p1 st.global.u16 [%rd4], %rs1;")
          .ok());
  expect_fault(cat(idle, "@%p1 st.global.u32 [%rd4], %r5; setp.eq.s32 %p2, %r1, 9; @%p2 st.global.u32 [%rd1+64], %r5;"),
               absl::StatusCode::kAborted, "races in global memory with thread");
}

const char kCopy[] =
    "mul.wide.u32 %rd3, %r1, 16; add.s64 %rd4, %rd2, %rd3; mov.u32 %r3, tile; shl.b32 %r4, %r1, 4; add.s32 %r3, %r3, "
    "%r4;"
    "cp.async.cg.shared.global [%r3], [%rd4], 16; cp.async.commit_group;\n";
TEST(PtxRaces_Copies, UntilTheyAreWaitedFor) {
  const std::string read =
      "xor.b32 %r5, %r4, 16; mov.u32 %r6, tile; add.s32 %r6, %r6, %r5; ld.shared.u32 %r7, [%r6]; st.global.u32 [%rd4], "
      "%r7;\n";
  EXPECT_TRUE(status_of(cat(kCopy, "cp.async.wait_group 0; bar.sync 0;\n", read), 16).ok());
  expect_fault(cat(kCopy, "cp.async.wait_group 1; bar.sync 0;\n", read, "cp.async.wait_group 0;"),
               absl::StatusCode::kAborted, "races in shared memory", 16);  // a stale group
  expect_fault(cat(kCopy, "cp.async.wait_group 0;\n", read), absl::StatusCode::kAborted, "races in shared memory", 16);
  expect_fault(cat(kCopy, "st.shared.u32 [%r3], %r1; cp.async.wait_group 0;\n"), absl::StatusCode::kAborted,
               "races in shared memory", 16);
  expect_fault(kCopy, absl::StatusCode::kFailedPrecondition, "ends before its copies have arrived", 16);
}

TEST(PtxWaiting, ForWhatNeverComes) {
  const auto failed = absl::StatusCode::kFailedPrecondition;
  expect_fault("setp.lt.u32 %p1, %r1, 32; @%p1 bra $L__x; bar.sync 0; $L__x:", failed,
               "waits at a barrier that 32 of 64 threads have reached");
  expect_fault("setp.lt.u32 %p1, %r1, 7; @%p1 bra $L__x; bar.sync 0; $L__x:", failed, "");
  expect_fault("setp.lt.u32 %p1, %r1, 7; @%p1 ret; shfl.sync.bfly.b32 %r3, %r1, 1, 31, -1;", failed,
               "names lanes that have ended");
  expect_fault("shfl.sync.idx.b32 %r3, %r1, 9, 31, 255;", failed, "names lanes among which it is not");
  expect_fault("setp.ge.u32 %p1, %r1, 8; @%p1 bra $L__x; shfl.sync.idx.b32 %r3, %r1, 9, 31, 255; $L__x:", failed,
               "reads a lane that takes no part", 32);
  expect_fault(
      "setp.lt.u32 %p1, %r1, 7; @%p1 bra $L__x; shfl.sync.bfly.b32 %r3, %r1, 1, 31, -1; bra.uni $L__y; $L__x: "
      "shfl.sync.bfly.b32 %r3, %r1, 1, 31, -1; $L__y:",
      failed, "waits for lanes of its warp that do not come");
}

}  // namespace
}  // namespace partita::ptx
