// Which cores ranks are bound to, on topologies of hwloc's own making.
#include "runtime/bind/divide_cores.h"

#include <stdlib.h>

#include <fstream>
#include <numeric>
#include <string>

#include "base/temporary_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace partita::runtime {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using List = std::vector<int>;

// What hwloc is told by a variable of its own.
absl::StatusOr<HostTopology> read_as(const char* variable, const std::string& value, bool cards = false) {
  ::setenv(variable, value.c_str(), 1);
  auto topology = read_topology(cards);
  ::unsetenv(variable);
  return topology;
}

List range(int first, int last) {
  List list(static_cast<size_t>(last - first + 1));
  std::iota(list.begin(), list.end(), first);
  return list;
}

std::vector<List> divided(const HostTopology& host, const List& allowed, size_t ranks) {
  return divide_cores(host, allowed, std::vector<int64_t>(ranks, -1));
}

class DivideCores : public ::testing::Test {
 protected:
  void SetUp() override {
    auto read = read_as("HWLOC_SYNTHETIC", "numa:2 core:8 pu:2");
    if (!read.ok()) GTEST_SKIP() << read.status();
    host_ = *std::move(read);
  }
  HostTopology host_;
  const List all_ = range(0, 31);
};

TEST_F(DivideCores, ReadsCoresThreadsAndNodes) {
  ASSERT_EQ(host_.cores.size(), 16u);
  EXPECT_THAT(host_.cores[9].processors, ElementsAre(18, 19));
  EXPECT_EQ(host_.cores[7].node, 0);
  EXPECT_EQ(host_.cores[8].node, 1);
  EXPECT_EQ(extent_of(host_, range(14, 17)).cores, 2);
  EXPECT_THAT(extent_of(host_, range(14, 17)).nodes, ElementsAre(0, 1));
}

TEST_F(DivideCores, GivesPartsWithinNodes) {
  EXPECT_THAT(divided(host_, all_, 1), ElementsAre(all_));
  EXPECT_THAT(divided(host_, all_, 2), ElementsAre(range(0, 15), range(16, 31)));
  EXPECT_THAT(divided(host_, all_, 3), ElementsAre(range(0, 7), range(8, 15), range(16, 31)));
  const std::vector<List> eight = divided(host_, all_, 8);
  for (int r = 0; r < 8; ++r) EXPECT_EQ(eight[static_cast<size_t>(r)], range(4 * r, 4 * r + 3));
}

TEST_F(DivideCores, LeavesMoreRanksThanCoresAlone) {
  EXPECT_EQ(divided(host_, all_, 16).back(), range(30, 31));
  EXPECT_THAT(divided(host_, all_, 17), ::testing::Each(IsEmpty()));
}

// One core of the first node, and the first thread of each of the second's.
TEST_F(DivideCores, MakesTheLeastPartLarge) {
  const List allowed = {0, 16, 18, 20, 22, 24, 26, 28, 30};
  EXPECT_THAT(divided(host_, allowed, 2), ElementsAre(List{16, 18, 20, 22}, List{24, 26, 28, 30}));
  EXPECT_THAT(divided(host_, allowed, 9).front(), ElementsAre(0));
  EXPECT_THAT(divided(host_, allowed, 10), ::testing::Each(IsEmpty()));
}

TEST(DivideCores_OverManyNodes, GivesWholeOnes) {
  const auto host = read_as("HWLOC_SYNTHETIC", "numa:4 core:2 pu:1");
  if (!host.ok()) GTEST_SKIP() << host.status();
  EXPECT_THAT(divided(*host, range(0, 7), 2), ElementsAre(range(0, 3), range(4, 7)));
  EXPECT_THAT(divided(*host, range(0, 7), 3), ElementsAre(range(0, 1), range(2, 3), range(4, 7)));
}

// Two nodes of two cores; a GPU on each, and a network card.
constexpr const char* kWithCards = R"(<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
 <object type="Machine" os_index="0" cpuset="0xf" complete_cpuset="0xf" allowed_cpuset="0xf" nodeset="0x3" complete_nodeset="0x3" allowed_nodeset="0x3" gp_index="1">
  <object type="Package" os_index="0" cpuset="0x3" complete_cpuset="0x3" nodeset="0x1" complete_nodeset="0x1" gp_index="2">
   <object type="NUMANode" os_index="0" cpuset="0x3" complete_cpuset="0x3" nodeset="0x1" complete_nodeset="0x1" gp_index="3" local_memory="1073741824"/>
   <object type="Core" os_index="0" cpuset="0x1" complete_cpuset="0x1" nodeset="0x1" complete_nodeset="0x1" gp_index="4">
    <object type="PU" os_index="0" cpuset="0x1" complete_cpuset="0x1" nodeset="0x1" complete_nodeset="0x1" gp_index="5"/>
   </object>
   <object type="Core" os_index="1" cpuset="0x2" complete_cpuset="0x2" nodeset="0x1" complete_nodeset="0x1" gp_index="6">
    <object type="PU" os_index="1" cpuset="0x2" complete_cpuset="0x2" nodeset="0x1" complete_nodeset="0x1" gp_index="7"/>
   </object>
   <object type="Bridge" gp_index="8" bridge_type="0-1" depth="0" bridge_pci="0000:[00-1f]">
    <object type="PCIDev" gp_index="9" pci_busid="0000:1b:00.0" pci_type="0302 [10de:2330] [10de:16c1] a1" pci_link_speed="0.000000"/>
    <object type="PCIDev" gp_index="10" pci_busid="0000:1c:00.0" pci_type="0207 [15b3:1021] [15b3:0041] 00" pci_link_speed="0.000000"/>
   </object>
  </object>
  <object type="Package" os_index="1" cpuset="0xc" complete_cpuset="0xc" nodeset="0x2" complete_nodeset="0x2" gp_index="11">
   <object type="NUMANode" os_index="1" cpuset="0xc" complete_cpuset="0xc" nodeset="0x2" complete_nodeset="0x2" gp_index="12" local_memory="1073741824"/>
   <object type="Core" os_index="2" cpuset="0x4" complete_cpuset="0x4" nodeset="0x2" complete_nodeset="0x2" gp_index="13">
    <object type="PU" os_index="2" cpuset="0x4" complete_cpuset="0x4" nodeset="0x2" complete_nodeset="0x2" gp_index="14"/>
   </object>
   <object type="Core" os_index="3" cpuset="0x8" complete_cpuset="0x8" nodeset="0x2" complete_nodeset="0x2" gp_index="15">
    <object type="PU" os_index="3" cpuset="0x8" complete_cpuset="0x8" nodeset="0x2" complete_nodeset="0x2" gp_index="16"/>
   </object>
   <object type="Bridge" gp_index="17" bridge_type="0-1" depth="0" bridge_pci="0001:[00-3f]">
    <object type="PCIDev" gp_index="18" pci_busid="0001:3b:00.0" pci_type="0302 [10de:2330] [10de:16c1] a1" pci_link_speed="0.000000"/>
   </object>
  </object>
 </object>
</topology>
)";

TEST(DivideCores_WithGpus, GivesCoresNearThem) {
  const TemporaryFolder folder = *TemporaryFolder::create("a topology");
  const std::string path = folder.path() + "/host.xml";
  std::ofstream(path) << kWithCards;
  const auto host = read_as("HWLOC_XMLFILE", path, /*cards=*/true);
  if (!host.ok()) GTEST_SKIP() << host.status();
  ASSERT_EQ(host->cards.size(), 2u);  // the network's is none
  const int64_t first = card_address(0, 0x1b, 0), second = card_address(1, 0x3b, 0), unknown = card_address(0, 2, 0);
  const List all = range(0, 3);
  EXPECT_THAT(divide_cores(*host, all, {second, first}), ElementsAre(range(2, 3), range(0, 1)));
  EXPECT_THAT(divide_cores(*host, all, {second, second}), ElementsAre(List{2}, List{3}));
  // More GPUs than cores near them, one that is not known, and one whose cores are not to be used.
  EXPECT_THAT(divide_cores(*host, all, {first, first, first}), ::testing::Each(range(0, 1)));
  EXPECT_THAT(divide_cores(*host, all, {unknown}), ElementsAre(all));
  EXPECT_THAT(divide_cores(*host, {2, 3}, {first}), ElementsAre(range(2, 3)));
}

}  // namespace
}  // namespace partita::runtime
