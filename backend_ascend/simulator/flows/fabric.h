// What a fabric may do to a message: how many flits it takes, which of a link's
// channels it waits in, and what a switch keeps.  SI units.

#ifndef BACKEND_ASCEND_SIMULATOR_FLOWS_FABRIC_H_
#define BACKEND_ASCEND_SIMULATOR_FLOWS_FABRIC_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace hpmoe::sim {

// X(name, unit): what a switch is.  Python reads it.
#define HPMOE_SWITCH(X)                                                       \
  X(flit, "B")            /* that a link carries whole */                     \
  X(packet, "B")          /* of payload, at most */                           \
  X(asked, "B")           /* of payload that one request asks for, at most */ \
  X(header, "flits")      /* of each packet */                                \
  X(ids, "ids")           /* of targets in a flit behind it; 0: */            \
                          /* a packet tells no targets */                     \
  X(hop, "s")             /* from a link's end to the next thing */           \
  X(channels, "channels") /* of a link, that share it equally */              \
  X(table, "B")           /* of sessions in all switches; 0: any */           \
  X(timeout, "s")         /* of a session nobody came to; 0: none */          \
  X(in_order, "yes")      /* 1: adds in order of ranks, not as it comes */

struct Switch {
#define HPMOE_FIELD(name, unit) double name = 0;
  HPMOE_SWITCH(HPMOE_FIELD)
#undef HPMOE_FIELD
};

inline Switch SwitchOf(const std::map<std::string, double>& numbers) {
  Switch of;
#define HPMOE_FIELD(name, unit) of.name = numbers.at(#name);
  HPMOE_SWITCH(HPMOE_FIELD)
#undef HPMOE_FIELD
  return of;
}

// Bytes on a link of a message with so much payload, told so many targets.
class Packets {
 public:
  // `of` must outlive this.
  explicit Packets(const Switch& of) : of_(of) {}

  double Request(double bytes, double targets) {
    return std::max(1.0, std::ceil(bytes / of_.asked)) * Head(targets);
  }
  // One message is mostly as long as the last.
  double Data(double bytes, double targets) {
    if (bytes != bytes_) {
      bytes_ = bytes;
      packets_ = std::max(1.0, std::ceil(bytes / of_.packet));
      payload_ = std::ceil(bytes / of_.flit) * of_.flit;
    }
    return packets_ * Head(targets) + payload_;
  }

 private:
  double Head(double targets) {
    if (targets != targets_) {
      targets_ = targets;
      const double list = of_.ids > 0 ? std::ceil(targets / of_.ids) : 0;
      head_ = (of_.header + list) * of_.flit;
    }
    return head_;
  }

  const Switch& of_;
  // Of the last.
  double bytes_ = -1, packets_ = 0, payload_ = 0;
  double targets_ = -1, head_ = 0;
};

}  // namespace hpmoe::sim

#endif  // BACKEND_ASCEND_SIMULATOR_FLOWS_FABRIC_H_
