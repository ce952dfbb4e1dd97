#include "backend_ascend/device/standin/device_binding.h"

#include <nanobind/stl/pair.h>

#include "backend_ascend/device/standin/twin_devices.h"
#include "backend_ascend/host/binding.h"

namespace hpmoe {
namespace {

using Served = std::pair<std::vector<int32_t>, TwinReport>;

class PyBoard {
 public:
  PyBoard(const std::string& path, int32_t num_ranks) {
    if (num_ranks < 1 || num_ranks > kMostRanks) {
      Refuse("num_ranks", "1 to " + std::to_string(kMostRanks),
             std::to_string(num_ranks));
    }
    std::string why;
    board_ = MakeBoard(path, num_ranks, &why);
    if (board_ == nullptr) throw std::runtime_error("board: " + why);
  }
  PyBoard(const PyBoard&) = delete;
  PyBoard& operator=(const PyBoard&) = delete;
  ~PyBoard() { DropBoard(board_); }

  Served ServeOnce(const TwinOptions& options, double wait_s) {
    const nb::gil_scoped_release release;
    Served served;
    served.first = Serve(board_, options, wait_s, &served.second);
    return served;
  }

 private:
  Board* board_ = nullptr;
};

}  // namespace

void BindDevice(nb::module_& m) {
  nb::class_<PyBoard>(m, "Board", "Memory that a rehearsal's processes share.")
      .def(nb::init<const std::string&, int32_t>(), "path"_a, "num_ranks"_a,
           "path: of a file to make.")
      .def("serve", &PyBoard::ServeOnce, "options"_a, "wait_s"_a,
           "Runs launches; returns the ranks that ran, and how it went.");
}

}  // namespace hpmoe
