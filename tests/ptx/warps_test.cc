// Lanes and warps with each other: divergence, exchanges, barriers, copies, matrices; and calls.
#include <numeric>
#include <random>

#include "tests/ptx/kernel_harness.h"
#include "tests/ptx/numbers.h"

namespace partita::ptx {
namespace {

const char kStoreR9[] = "mul.wide.u32 %rd3, %r1, 4; add.s64 %rd3, %rd1, %rd3; st.global.u32 [%rd3], %r9;\n";

std::vector<uint32_t> results(const std::string& body, uint32_t threads = 32) {
  std::vector<uint32_t> out(threads, 0), none(1);
  const Run1 run = run_kernel(cat(body, kStoreR9), out, none, {threads, 1, 1});
  EXPECT_TRUE(run.status.ok()) << run.status;
  return out;
}

// Each lane goes round as many times as its number says, and the lanes meet again.
TEST(PtxWarp_Loop, LanesLeaveOneByOneAndMeetAgain) {
  std::vector<uint32_t> out(32, 0), none(1);
  const Run1 run = run_kernel(cat(R"(
    mov.u32 %r9, 0; mov.u32 %r3, 0;
    $L__again: setp.ge.u32 %p1, %r3, %r1; @%p1 bra $L__out;
    add.s32 %r9, %r9, %r3; add.s32 %r3, %r3, 1; bra.uni $L__again;
    $L__out: activemask.b32 %r4; setp.ne.s32 %p2, %r4, -1; @%p2 mov.u32 %r9, 12345;
  )",
                                  kStoreR9),
                              out, none);
  ASSERT_TRUE(run.status.ok()) << run.status;
  for (uint32_t k = 0; k < 32; ++k) EXPECT_EQ(out[k], k * (k - 1) / 2) << k;
  EXPECT_EQ(run.counters.divergent_branches, 31u);
}

TEST(PtxWarp_Shuffles, TakeWhatTheIsaSays) {
  const auto all = [](const char* mode, int b, int c) {
    return results(cat("shfl.sync.", mode, ".b32 %r8|%p1, %r1, ", b, ", ", c,
                       ", -1; selp.b32 %r9, 100, 0, %p1; add.s32 %r9, %r9, %r8;"));
  };
  for (uint32_t k = 0; k < 32; ++k) {
    EXPECT_EQ(all("bfly", 5, 31)[k], 100 + (k ^ 5));
    EXPECT_EQ(all("idx", 7, 31)[k], 107u);
    EXPECT_EQ(all("idx", 1, 31 | 24 << 8)[k], 100 + (k / 8 * 8 + 1));  // parts of eight lanes
    EXPECT_EQ(all("down", 3, 31)[k], k + 3 < 32 ? 100 + k + 3 : k);
    EXPECT_EQ(all("up", 3, 0)[k], k >= 3 ? 100 + k - 3 : k);
  }
}

// Lanes that come first wait for those that are still on another way.
TEST(PtxWarp_ShuffleAfterDivergence, Waits) {
  const auto out = results(R"(
    setp.lt.u32 %p1, %r1, 7; mov.u32 %r3, %r1; @%p1 bra $L__add;
    bra.uni $L__meet;
    $L__add: add.s32 %r3, %r3, 1000;
    $L__meet: shfl.sync.bfly.b32 %r9, %r3, 31, 31, -1;)");
  for (uint32_t k = 0; k < 32; ++k) EXPECT_EQ(out[k], (31 - k) + (31 - k < 7 ? 1000 : 0));
}

TEST(PtxWarp_Votes, CountAllLanes) {
  const std::string odd = "and.b32 %r3, %r1, 1; setp.ne.s32 %p1, %r3, 0; ";
  EXPECT_EQ(results(cat(odd, "vote.sync.ballot.b32 %r9, %p1, -1;"))[3], 0xaaaaaaaau);
  EXPECT_EQ(results(cat(odd, "vote.sync.any.pred %p2, %p1, -1; selp.b32 %r9, 1, 0, %p2;"))[3], 1u);
  EXPECT_EQ(results(cat(odd, "vote.sync.all.pred %p2, %p1, -1; selp.b32 %r9, 1, 0, %p2;"))[3], 0u);
}

TEST(PtxBlock_Barriers, OrderWhatWarpsWrite) {
  const auto out = results(R"(
    mov.u32 %r3, tile; shl.b32 %r4, %r1, 2; add.s32 %r3, %r3, %r4; st.shared.u32 [%r3], %r1;
    bar.sync 0;
    mov.u32 %r3, tile; sub.s32 %r4, 508, %r4; add.s32 %r3, %r3, %r4; ld.shared.u32 %r9, [%r3];)",
                           128);
  for (uint32_t k = 0; k < 128; ++k) EXPECT_EQ(out[k], 127 - k);
}

// Two warps pass a word on to two others, which do not wait for each other.
TEST(PtxBlock_NamedBarriers, OrderThoseThatTakePart) {
  const auto out = results(R"(
    shr.u32 %r3, %r1, 6; and.b32 %r4, %r1, 63; shl.b32 %r5, %r4, 2; mov.u32 %r6, tile; add.s32 %r6, %r6, %r5;
    mov.u32 %r9, 0; setp.eq.s32 %p1, %r3, 0; @%p1 bra $L__give;
    bar.sync 3, 128; ld.shared.u32 %r9, [%r6]; bra.uni $L__end;
    $L__give: st.shared.u32 [%r6], %r4; bar.arrive 3, 128;
    $L__end:)",
                           128);
  for (uint32_t k = 0; k < 128; ++k) EXPECT_EQ(out[k], k < 64 ? 0 : k - 64);
}

TEST(PtxBlock_Atomics, AddUpOverAllThreads) {
  std::vector<uint32_t> sums(4, 0), none(1);
  const Run1 run = run_kernel(R"(
    red.global.add.u32 [%rd1], %r1; atom.global.max.u32 %r3, [%rd1+4], %r1; atom.global.cas.b32 %r4, [%rd1+8], 0, 7;
    mov.f32 %f1, 0f3F800000; red.global.add.f32 [%rd1+12], %f1;)",
                              sums, none, {64, 1, 1}, {3, 1, 1});
  ASSERT_TRUE(run.status.ok()) << run.status;
  EXPECT_EQ(sums, (std::vector<uint32_t>{3 * 64 * 63 / 2, 63, 7, std::bit_cast<uint32_t>(192.0f)}));
}

// A copy is there once its group was waited for, and not before.
TEST(PtxBlock_Copies, ArriveWhenTheyAreWaitedFor) {
  std::vector<uint32_t> out(128, 0), in(128);
  std::iota(in.begin(), in.end(), 500);
  const Run1 run = run_kernel(R"(
    mul.wide.u32 %rd3, %r1, 16; add.s64 %rd4, %rd2, %rd3; mov.u32 %r3, tile; shl.b32 %r4, %r1, 4; add.s32 %r3, %r3, %r4;
    setp.lt.u32 %p1, %r1, 31; selp.b32 %r5, 16, 0, %p1;
    cp.async.cg.shared.global [%r3], [%rd4], 16, %r5; cp.async.commit_group; cp.async.commit_group;
    cp.async.wait_group 1; add.s64 %rd3, %rd1, %rd3;
    ld.shared.v4.u32 {%r10, %r11, %r12, %r13}, [%r3]; st.global.v4.u32 [%rd3], {%r10, %r11, %r12, %r13};)",
                              out, in);
  ASSERT_TRUE(run.status.ok()) << run.status;
  for (size_t k = 0; k < 124; ++k) EXPECT_EQ(out[k], in[k]);
  for (size_t k = 124; k < 128; ++k) EXPECT_EQ(out[k], 0u);
}

// A product of matrices through ldmatrix and mma, as every element of it is defined.
TEST(PtxWarp_Matrices, MultiplyAsDefined) {
  std::mt19937 engine(3);
  std::vector<uint16_t> in(16 * 16 + 8 * 16);
  for (uint16_t& x : in) x = to_f16(static_cast<float>(static_cast<int>(engine() % 9) - 4)).bits;
  std::vector<float> out(16 * 8, -1);
  const Run1 run = run_kernel(R"(
    mul.wide.u32 %rd3, %r1, 16; add.s64 %rd4, %rd2, %rd3; mov.u32 %r3, tile; shl.b32 %r4, %r1, 4; add.s32 %r5, %r3, %r4;
    ld.global.v4.u32 {%r10, %r11, %r12, %r13}, [%rd4]; st.shared.v4.u32 [%r5], {%r10, %r11, %r12, %r13};
    setp.lt.u32 %p1, %r1, 16; @%p1 ld.global.v4.u32 {%r10, %r11, %r12, %r13}, [%rd4+512];
    @%p1 st.shared.v4.u32 [%r5+512], {%r10, %r11, %r12, %r13};
    bar.warp.sync -1;
    and.b32 %r6, %r1, 15; shl.b32 %r6, %r6, 5; shr.u32 %r7, %r1, 4; shl.b32 %r7, %r7, 4; add.s32 %r6, %r6, %r7; add.s32 %r6, %r6, %r3;
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r20, %r21, %r22, %r23}, [%r6];
    and.b32 %r6, %r1, 7; shl.b32 %r6, %r6, 5; shr.u32 %r7, %r1, 3; and.b32 %r7, %r7, 1; shl.b32 %r7, %r7, 4; add.s32 %r6, %r6, %r7; add.s32 %r6, %r6, %r3;
    ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r24, %r25}, [%r6+512];
    mov.f32 %f1, 0f00000000; mov.f32 %f2, 0f3F800000;
    mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f4, %f5, %f6, %f7}, {%r20, %r21, %r22, %r23}, {%r24, %r25}, {%f1, %f1, %f2, %f2};
    mul.wide.u32 %rd5, %r1, 8; add.s64 %rd5, %rd1, %rd5; st.global.v2.f32 [%rd5], {%f4, %f5}; st.global.v2.f32 [%rd5+256], {%f6, %f7};)",
                              out, in);
  ASSERT_TRUE(run.status.ok()) << run.status;
  for (size_t row = 0; row < 16; ++row) {
    for (size_t column = 0; column < 8; ++column) {
      float sum = row < 8 ? 0 : 1;
      for (size_t k = 0; k < 16; ++k) sum += to_float(F16{in[row * 16 + k]}) * to_float(F16{in[256 + column * 16 + k]});
      EXPECT_EQ(out[row * 8 + column], sum) << row << " " << column;
    }
  }
}

TEST(PtxFunction_Calls, OfSomeLanesReturnToEachOfThem) {
  auto module = Module::load(R"(
.version 8.0
.target sm_90
.address_size 64
.func (.param .b32 result) twice(.param .b32 x);
.visible .entry k(.param .u64 a)
{
  .reg .pred %p<4>; .reg .b32 %r<8>; .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [a]; mov.u32 %r1, %tid.x; mov.u32 %r2, %r1; setp.lt.u32 %p1, %r1, 5; @%p1 bra $L__skip;
  { .param .b32 param0; st.param.b32 [param0+0], %r1; .param .b32 retval0;
    call.uni (retval0), twice, (param0); ld.param.b32 %r2, [retval0+0]; }
  $L__skip:
  mul.wide.u32 %rd2, %r1, 4; add.s64 %rd1, %rd1, %rd2; st.global.u32 [%rd1], %r2; ret;
}
.func (.param .b32 result) twice(.param .b32 x)
{
  .reg .b32 %r<4>;
  ld.param.b32 %r1, [x]; add.s32 %r1, %r1, %r1; st.param.b32 [result+0], %r1; ret;
}
)");
  ASSERT_TRUE(module.ok()) << module.status();
  auto program = (*module)->kernel("k");
  ASSERT_TRUE(program.ok()) << program.status();
  std::vector<uint32_t> out(32);
  auto address = reinterpret_cast<uint64_t>(out.data());
  void* arguments[] = {&address};
  const absl::Status status = launch(**module, **program, {{}, {32, 1, 1}, 0}, arguments, {{address, 128}});
  ASSERT_TRUE(status.ok()) << status;
  for (uint32_t k = 0; k < 32; ++k) EXPECT_EQ(out[k], k < 5 ? k : 2 * k);
}

TEST(PtxCounters_Traffic, CountsSectorsAndConflicts) {
  struct alignas(32) Sector {
    float numbers[8] = {};
  };
  std::vector<Sector> a(32), b(32);
  const auto counted = [&](const char* stride) {
    const Run1 run =
        run_kernel(cat("mul.wide.u32 %rd3, %r1, ", stride,
                       "; add.s64 %rd4, %rd2, %rd3; add.s64 %rd5, %rd1, %rd3; mul.lo.s32 %r3, %r1, ", stride,
                       "; "
                       "ld.global.f32 %f1, [%rd4]; st.global.f32 [%rd5], %f1; mov.u32 %r4, tile; add.s32 %r4, %r4, "
                       "%r3; st.shared.f32 [%r4], %f1;"),
                   a, b, {32, 1, 1}, {}, {.counts_traffic = true});
    EXPECT_TRUE(run.status.ok()) << run.status;
    return run.counters;
  };
  EXPECT_EQ(counted("4").sectors_read, 4u);
  EXPECT_EQ(counted("4").bank_conflicts, 0u);
  EXPECT_EQ(counted("32").sectors_read, 32u);
  EXPECT_EQ(counted("32").sectors_written, 32u);
  EXPECT_EQ(counted("32").bank_conflicts, 7u);  // eight lanes a bank
  EXPECT_EQ(counted("4").instructions[static_cast<size_t>(Kind::kGlobal)], 2u);
}

}  // namespace
}  // namespace partita::ptx
