// Calls that reduce lanes, blocks or a whole operand.

#ifndef BACKEND_ASCEND_TWIN_INSTRUCTIONS_REDUCTION_CALLS_TESTING_H_
#define BACKEND_ASCEND_TWIN_INSTRUCTIONS_REDUCTION_CALLS_TESTING_H_

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "backend_ascend/twin/instructions/call_jobs_testing.h"
#include "backend_ascend/twin/instructions/lane_calls_testing.h"

namespace twin_calls {

struct Reduction {
  std::string name;
  ReduceType op;
  bool blocks;  // a result of each block
  ReduceOrder order = ReduceOrder::ORDER_ONLY_VALUE;
};

template <typename T, ReduceType op>
void IssueReduction(const Reduction& how, const Setting& s) {
  const auto d = s.Tensor<T>(0);
  const auto x = s.Tensor<T>(1);
  const int to = s.at[0].repeat, block = s.at[1].block, next = s.at[1].repeat;
  const auto masked = [&](auto set, auto mask) {
    constexpr bool kSet = decltype(set)::value;
    const auto times = static_cast<int32_t>(s.repeat);
    if (how.name == "BlockReduceSum") {
      BlockReduceSum<T, kSet>(d, x, times, mask, to, block, next);
    } else if (how.name == "WholeReduceSum") {
      WholeReduceSum<T, kSet>(d, x, mask, times, to, block, next);
    } else if (how.blocks) {
      ReduceDataBlock<op, T, T, kSet>(d, x, mask, times, to, block, next);
    } else {
      ReduceRepeat<op, T, T, kSet>(d, x, mask, times, to, block, next,
                                   how.order);
    }
  };
  Give(s, [] {}, masked);
}

// Bytes of what a repeat gives.
inline int ResultBytes(const Reduction& how, int size) {
  if (how.blocks) return 8 * size;
  if (how.order == ReduceOrder::ORDER_ONLY_VALUE) return size;
  return how.order == ReduceOrder::ORDER_ONLY_INDEX ? 4 : 2 * size;
}

inline void Reduce(const Reduction& how, const Setting& s, Image* image) {
  const Type type = s.at[1].type;
  const int size = BytesOf(type);
  const int a_block = kBlock / size;
  // Lanes and their values, by repeat and block.
  std::map<std::pair<int, int>, std::vector<std::pair<int, double>>> groups;
  for (const auto& at : Active(s)) {
    const int block = how.blocks ? at.second / a_block : 0;
    groups[{at.first, block}].push_back(
        {at.second, Decode(image->data() + ByteOf(s.at[1], at), type)});
  }
  for (const auto& [group, lanes] : groups) {
    double sum = 0;
    auto best = lanes[0];
    for (const auto& one : lanes) {
      sum += one.second;
      if (how.op == ReduceType::MAX ? one.second > best.second
                                    : one.second < best.second) {
        best = one;
      }
    }
    char* const to = image->data() + s.at[0].begin +
                     group.first * s.at[0].repeat * ResultBytes(how, size) +
                     group.second * size;
    const double value = how.op == ReduceType::SUM ? sum : best.second;
    const auto index = static_cast<uint32_t>(best.first);
    const bool alone = how.order == ReduceOrder::ORDER_ONLY_INDEX;
    const bool second = how.order == ReduceOrder::ORDER_VALUE_INDEX;
    if (!alone) {
      const bool after = how.order == ReduceOrder::ORDER_INDEX_VALUE;
      Encode(to + (after ? size : 0), type, value);
    }
    if (how.order != ReduceOrder::ORDER_ONLY_VALUE) {
      std::memcpy(to + (second ? size : 0), &index, alone ? 4 : size);
    }
  }
}

template <typename T, ReduceType op>
void AddReduction(const Reduction& how, int each) {
  const int size = sizeof(T);
  const int bytes = ResultBytes(how, size);
  const auto draw = [&](Form form) {
    Setting s = Draw({kType<T>, kType<T>}, form);
    s.at[1].begin = kRegion + Pick(0, 5) * kBlock;
    s.at[0].begin = Pick(0, 9) * bytes;
    s.at[0].repeat = PickOf({1, 1, 2, 5});
    s.repeat = std::min<int64_t>(s.repeat, 60);
    return s;
  };
  const auto add = [&](const Setting& s, std::vector<std::string> refused) {
    Job job{how.name, s, [=] { IssueReduction<T, op>(how, s); }, nullptr,
            refused};
    if (refused.empty()) job.plain = [=](Image* m) { Reduce(how, s, m); };
    jobs.push_back(job);
  };
  for (const Form form : kForms) {
    if (form == Form::kCount) continue;
    for (int i = 0; i < each; ++i) add(draw(form), {});
  }
  const auto bent = [&](auto bend, std::vector<std::string> words) {
    Setting s = draw(Form::kBits);
    bend(&s);
    add(s, words);
  };
  const std::string rule = "a multiple of " + std::to_string(bytes) + " B";
  bent([&](Setting* s) { s->at[0].begin += bytes / 2; }, {"dst:", rule});
  bent([](Setting* s) { s->at[1].begin += 16; }, {"src:", "of 32 B"});
  bent([](Setting* s) { s->repeat = 256; }, {"repeatTime:", "0 to 255"});
  bent([](Setting* s) { s->at[1].repeat = 65536; },
       {"srcRepStride:", "0 to 65535"});
  bent([](Setting* s) { s->at[0].repeat = -1; },
       {"dstRepStride:", "0 to 65535"});
  // A repeat writes where it reads, or where the next one does.
  const auto same = [](Setting* s) {
    s->at[0].begin = s->at[1].begin;
    s->at[0].repeat = 1, s->at[1].block = 1, s->at[1].repeat = 8;
    s->bits[0] = 255, s->bits[1] = 0, s->repeat = 3;
  };
  bent(same, {});
  bent([&](Setting* s) { same(s), s->at[0].begin += ascend_twin::kRepeat; },
       {"dst:", "no source of a later repeat"});
}

template <typename T, ReduceType op>
void AddOrders(int each) {
  AddReduction<T, op>({"ReduceDataBlock", op, true}, each);
  for (const auto order :
       {ReduceOrder::ORDER_VALUE_INDEX, ReduceOrder::ORDER_INDEX_VALUE,
        ReduceOrder::ORDER_ONLY_VALUE, ReduceOrder::ORDER_ONLY_INDEX}) {
    if (op == ReduceType::SUM && order != ReduceOrder::ORDER_ONLY_VALUE) {
      continue;
    }
    AddReduction<T, op>({"ReduceRepeat", op, false, order}, each);
  }
}

template <typename T>
void AddReductions(int each) {
  AddReduction<T, ReduceType::SUM>({"BlockReduceSum", ReduceType::SUM, true},
                                   each);
  AddReduction<T, ReduceType::SUM>({"WholeReduceSum", ReduceType::SUM, false},
                                   each);
  AddOrders<T, ReduceType::SUM>(each);
  AddOrders<T, ReduceType::MAX>(each);
  AddOrders<T, ReduceType::MIN>(each);
  for (int i = 0; i < 5 * each; ++i) {
    Setting s = Draw({kType<T>, kType<T>, kType<T>}, Form::kCount);
    s.at[1].begin = kRegion, s.at[1].repeat = 8;
    s.at[0].begin = Pick(0, 30) * static_cast<int>(sizeof(T));
    const bool wrong = i % 5 == 4;
    if (wrong) s.at[0].begin += 1;
    Job job{"ReduceSum",
            s,
            [s] {
              ReduceSum(s.Tensor<T>(0), s.Tensor<T>(1), s.Tensor<T>(2),
                        int32_t(s.count));
            },
            nullptr,
            {}};
    if (wrong) {
      job.words = {"dst:", "a multiple of " + std::to_string(sizeof(T)) + " B"};
    } else {
      job.plain = [s](Image* image) {
        double sum = 0;
        for (const auto& at : Active(s)) {
          sum += Decode(image->data() + ByteOf(s.at[1], at), kType<T>);
        }
        Encode(image->data() + s.at[0].begin, kType<T>, sum);
      };
    }
    jobs.push_back(job);
  }
}

}  // namespace twin_calls

#endif  // BACKEND_ASCEND_TWIN_INSTRUCTIONS_REDUCTION_CALLS_TESTING_H_
