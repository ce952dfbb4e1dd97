// Calls on the engine, by the thousand: each takes its operands from UB (L1 on
// an AIC), at offsets, strides, repeats and masks that its page allows, and
// what is in memory afterwards is what plain C++ makes of it, byte for byte; or
// one rule is broken, and what is said names the operand and the rule.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "backend_ascend/twin/instructions/call_jobs_testing.h"
#include "backend_ascend/twin/instructions/lane_calls_testing.h"
#include "backend_ascend/twin/instructions/move_calls_testing.h"
#include "backend_ascend/twin/instructions/rearrange_calls_testing.h"
#include "backend_ascend/twin/instructions/reduction_calls_testing.h"
#include "backend_ascend/twin/instructions/unwritten_calls_testing.h"

namespace {

using namespace twin_calls;  // NOLINT: a program of its own

// All calls, in the order of the random numbers that chose their operands.
const std::vector<Job>& Jobs() {
  if (!jobs.empty()) return jobs;
  ListLanewise();
  for (const Lanewise& call : lanewise) {
    AddLegal(call, call.name == "Cast" ? 2 : 8);
    if (call.name != "Cast" || Pick(0, 2) == 0) AddBroken(call);
  }
  AddReductions<float>(4);
  AddReductions<half>(4);
  AddBroadcasts<float>(8);
  AddBroadcasts<bfloat16_t>(8);
  AddCountedCopies<int32_t>(16);
  AddCountedCopies<bfloat16_t>(16);
  AddGathers<float>(16);
  AddGathers<half>(16);
  AddChoices<float>(24);
  AddChoices<half>(24);
  AddMoves<float>(false, 16);
  AddMoves<half>(false, 16);
  AddMoves<int8_t>(false, 16);
  AddMoves<float>(true, 16);
  AddMoves<bfloat16_t>(true, 16);
  AddAtomics<float>(8);
  AddAtomics<half>(8);
  AddAtomics<int32_t>(8);
  AddAtomics<int16_t>(8);
  AddFractals<float>(24);
  AddFractals<bfloat16_t>(24);
  AddBias(8, true);
  AddBias(9, false);
  ListUnwritten();
  return jobs;
}

// -- Runs them.

const Image& Pattern(Type type, Data data) {
  static Image patterns[16][3];
  Image& pattern = patterns[static_cast<int>(type)][static_cast<int>(data)];
  if (!pattern.empty()) return pattern;
  pattern.resize(kRegion + 1024);
  const int size = BytesOf(type);
  for (int i = 0; i * size < static_cast<int>(pattern.size()); ++i) {
    const int small = i * 7 % 33 - 16;
    if (data == Data::kPowers) {
      Encode(&pattern[i * size], type,
             std::ldexp(i % 2 ? 1.0 : -1.0, i * 5 % 7 - 3));
      continue;
    }
    const double x = data == Data::kPositive ? std::abs(small) + 1 : small;
    Encode(&pattern[i * size], type, IsReal(type) ? x / 4 : x);
  }
  return pattern;
}

Image ImageFor(const Job& job) {
  Image image(2 * kImage);
  for (int i = 0; i < 6; ++i) {
    const auto& at = job.setting.at;
    // What a call computes in place is the source's.
    const bool in_place = at.size() > 1 && at[0].begin == at[1].begin;
    const size_t place = i % 3 == 0 && in_place ? 1 : i % 3;
    const Type type = at[std::min(place, at.size() - 1)].type;
    std::memcpy(&image[i * kRegion], &Pattern(type, job.data)[i * 64], kRegion);
  }
  return image;
}

std::string Described(const Job& job) {
  std::string text = job.name + (job.cube ? ", cube" : "") + ", form " +
                     std::to_string(static_cast<int>(job.setting.form)) +
                     ", count " + std::to_string(job.setting.count) +
                     ", repeat " + std::to_string(job.setting.repeat);
  for (const Place& at : job.setting.at) {
    text += std::string(", ") + ascend_twin::NameOf(at.type) + " at " +
            std::to_string(at.begin) + " by " + std::to_string(at.block) +
            " and " + std::to_string(at.repeat);
  }
  return text;
}

ascend_twin::LaunchResult RunJob(const Job& job, int number, Image* image) {
  static Image after(kImage);
  other = image->data() + kImage;
  const auto at = [](char* p) { return reinterpret_cast<uint64_t>(p); };
  ascend_twin::LaunchSpec spec;
  spec.kernel = "calls";
  spec.type = job.cube ? ascend_twin::TaskType::kAicOnly
                       : ascend_twin::TaskType::kAivOnly;
  spec.mode = static_cast<ascend_twin::Mode>(number % 3);
  spec.globals = {
      {"image", at(image->data()), kImage, ascend_twin::GlobalKind::kConstant},
      {"other", at(other), kImage, ascend_twin::GlobalKind::kFilled},
      {"after", at(after.data()), kImage, ascend_twin::GlobalKind::kEmpty}};
  spec.entry = [&](int32_t) {
    InitSocState();
    GlobalTensor<float> from, to;
    from.SetGlobalBuffer(reinterpret_cast<float*>(image->data()));
    to.SetGlobalBuffer(reinterpret_cast<float*>(after.data()));
    const LocalTensor<float> all = OnChip<float>(job.cube, 0);
    DataCopy(all, from, kImage / 4u);
    PipeBarrier<PIPE_ALL>();
    job.issue();
    PipeBarrier<PIPE_ALL>();
    DataCopy(to, all, kImage / 4u);
    PipeBarrier<PIPE_ALL>();
  };
  const ascend_twin::LaunchResult result = ascend_twin::Launch(spec);
  std::memcpy(image->data(), after.data(), kImage);
  return result;
}

// What does not hold; empty if all does.
std::string WrongWith(const Job& job, int number) {
  Image image = ImageFor(job);
  Image want = image;
  const auto result = RunJob(job, number, &image);
  const std::string said = result.ok() ? "" : result.errors[0].text;
  if (!job.plain) {
    if (result.ok()) return "not refused";
    std::vector<std::string> words = job.words;
    words.push_back(job.name + ": ");
    for (const std::string& word : words) {
      if (said.find(word) == std::string::npos) {
        return "expected \"" + word + "\" in what is said, got " + said;
      }
    }
    return "";
  }
  if (!result.ok()) return said;
  job.plain(&want);
  for (size_t i = 0; i < image.size(); ++i) {
    if (image[i] == want[i]) continue;
    return "byte " + std::to_string(i) + ": expected " +
           std::to_string(want[i]) + ", got " + std::to_string(image[i]);
  }
  return "";
}

std::set<std::string> Names() {
  std::set<std::string> names;
  for (const Job& job : Jobs()) names.insert(job.name);
  return names;
}

class Calls : public testing::TestWithParam<std::string> {};

TEST_P(Calls, GiveTheValuesOfPlainCodeOrAreRefused) {
  for (size_t i = 0; i < Jobs().size(); ++i) {
    const Job& job = Jobs()[i];
    if (job.name != GetParam()) continue;
    EXPECT_EQ(WrongWith(job, static_cast<int>(i)), "")
        << i << ": " << Described(job);
  }
}

INSTANTIATE_TEST_SUITE_P(, Calls, testing::ValuesIn(Names()),
                         [](const auto& call) {
                           std::string name = call.param;
                           for (char& c : name) {
                             if (!isalnum(static_cast<unsigned char>(c))) {
                               c = '_';
                             }
                           }
                           return name;
                         });

TEST(AllCalls, AreThousands) {
  int legal = 0, illegal = 0;
  for (const Job& job : Jobs()) ++(job.plain ? legal : illegal);
  EXPECT_GE(legal, 2000);
  EXPECT_GE(illegal, 500);
}

}  // namespace
