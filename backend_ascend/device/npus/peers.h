// The ranks of a session: who reaches whom, and a roll call that names who does
// not answer.

#ifndef BACKEND_ASCEND_DEVICE_NPUS_PEERS_H_
#define BACKEND_ASCEND_DEVICE_NPUS_PEERS_H_

#include <cstdint>
#include <vector>

#include "backend_ascend/device/megakernel/launch_args.h"
#include "backend_ascend/device/npus/acl_device.h"
#include "backend_ascend/device/npus/end.h"

namespace hpmoe {

// Which machine this is.
uint64_t ThisServer();

// Whether the vector cores of one can write to the other's memory.  A pointer
// to it is no proof: the library has one for every rank.
bool Reaches(const hpmoe_npus_hello& one, const hpmoe_npus_hello& other);

// Refuses hellos that are not those of one session, and ranks that do not reach
// each other.
End CheckHellos(const hpmoe_npus_hello* hellos, const hpmoe_npus_hello& own);

// In the symmetric heap every rank has a line for each rank, zero when made, in
// which that rank writes how far it is.
class RollCall {
 public:
  // `lines`: [num_ranks], the rank's own, at the same distance in every heap.
  End Begin(CounterLine* lines, int32_t rank, int32_t num_ranks);

  // Says that this rank is at `step`, and waits until all are.  Ranks that do
  // not come, and those that gave up, are named.
  End Meet(int32_t step, double deadline_s);
  // Says that this rank goes no further: the others need not wait for it.
  void GiveUp(int32_t step);
  // Which ranks neither came to `step` nor gave up there.
  End Silent(int32_t step, double deadline_s, std::vector<int32_t>* silent);

 private:
  End Say(int32_t word);
  End Read(std::vector<CounterLine>* lines);

  CounterLine* lines_ = nullptr;
  int32_t rank_ = 0, num_ranks_ = 0;
  DeviceBlock word_;  // what is put
};

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_DEVICE_NPUS_PEERS_H_
