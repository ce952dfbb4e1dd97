#include "acl/acl.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <thread>

#include "backend_ascend/device/standin/process.h"

namespace hpmoe {
namespace {

// Of ACL's error codes.
constexpr aclError kInvalid = 100000;
constexpr aclError kRepeated = 100002;
constexpr aclError kNoFile = 100003;
constexpr aclError kNoContext = 107002;
constexpr aclError kNoFunction = 107044;
constexpr aclError kNoMemory = 207001;
constexpr aclError kTimeout = 507046;

constexpr uint64_t kAlign = 512;
constexpr char kFresh = 0x5A;

std::string* Recent() {
  static std::string text;
  return &text;
}

aclError Fail(aclError code, const std::string& text) {
  *Recent() = text;
  return code;
}

const char* Variable(const char* name, const char* otherwise) {
  const char* const value = std::getenv(name);
  return value == nullptr ? otherwise : value;
}

struct Args {
  void* value = nullptr;
  bool given = false, final = false;
};

// Whether it is memory of any rank's device.
bool OnDevice(const void* at, uint64_t bytes) {
  Process& process = ThisProcess();
  const auto begin = reinterpret_cast<uint64_t>(process.board->HeapOf(0));
  const auto end = reinterpret_cast<uint64_t>(
      process.board->HeapOf(process.board->num_ranks));
  const auto from = reinterpret_cast<uint64_t>(at);
  return from >= begin && from + bytes <= end;
}

bool IsOwn(const void* at, uint64_t bytes) {
  Process& process = ThisProcess();
  return process.own.Holds(at, bytes) || process.heap.Holds(at, bytes);
}

}  // namespace

void* Arena::Take(uint64_t bytes) {
  uint64_t at = 0;
  for (const auto& [begin, held] : taken_) {
    if (begin - at >= bytes) break;
    at = (begin + held + 2 * kAlign - 1) / kAlign * kAlign;
  }
  if (bytes == 0 || at + bytes > bytes_) return nullptr;
  taken_[at] = bytes;
  std::memset(begin_ + at, kFresh, bytes);
  return begin_ + at;
}

bool Arena::Give(void* at) {
  return taken_.erase(static_cast<char*>(at) - begin_) == 1;
}

bool Arena::Holds(const void* at, uint64_t bytes) const {
  const uint64_t offset = static_cast<const char*>(at) - begin_;
  auto after = taken_.upper_bound(offset);
  if (after == taken_.begin()) return false;
  --after;
  return offset + bytes <= after->first + after->second;
}

Process& ThisProcess() {
  static Process process;
  return process;
}

void Drill(const char* call) {
  static int left = -1;
  std::istringstream told(Variable("HPMOE_BOARD_DRILL", ""));
  int32_t rank = -1;
  std::string at, how;
  int time = 1;
  told >> rank >> at >> how >> time;
  if (rank != ThisProcess().device || at != call) return;
  if (left < 0) left = told.fail() ? 1 : time;
  if (left == 0 || --left > 0) return;
  if (how == "kill") kill(getpid(), SIGKILL);
  std::this_thread::sleep_for(std::chrono::duration<double>(std::stod(how)));
}

}  // namespace hpmoe

using namespace hpmoe;  // NOLINT: what follows is C

aclError aclInit(const char*) {
  Process& process = ThisProcess();
  if (process.board != nullptr) return Fail(kRepeated, "aclInit: called twice");
  std::string why;
  process.board = FindBoard(Variable("HPMOE_BOARD", ""), &why);
  if (process.board == nullptr) return Fail(kInvalid, "HPMOE_BOARD: " + why);
  return 0;
}

aclError aclFinalize() {
  Process& process = ThisProcess();
  if (process.device >= 0) {
    return Fail(kInvalid, "aclFinalize: expected no device, got one in use");
  }
  DropBoard(process.board);
  process = {};
  return 0;
}

const char* aclGetRecentErrMsg() { return Recent()->c_str(); }
const char* aclrtGetSocName() {
  return Variable("HPMOE_BOARD_SOC", "Ascend910_9382");
}

aclError aclrtSetDevice(int32_t device) {
  Process& process = ThisProcess();
  if (process.board == nullptr)
    return Fail(kInvalid, "expected aclInit before");
  if (device < 0 || device >= process.board->num_ranks) {
    return Fail(kInvalid, "aclrtSetDevice: expected a device in [0, " +
                              std::to_string(process.board->num_ranks) +
                              "), got " + std::to_string(device));
  }
  process.device = device;
  process.own = Arena(process.board->OwnOf(device), kOwnBytes);
  process.board->seats[device].pid = getpid();
  return 0;
}

aclError aclrtResetDevice(int32_t device) {
  Process& process = ThisProcess();
  if (process.streams != 0 || process.device != device) {
    return Fail(kInvalid,
                "aclrtResetDevice: expected the device set and no "
                "stream, got others");
  }
  process.device = -1;
  return 0;
}

aclError aclrtGetPhyDevIdByLogicDevId(const int32_t logic,
                                      int32_t* const physical) {
  *physical = logic + std::atoi(Variable("HPMOE_BOARD_FIRST_DEVICE", "0"));
  return 0;
}

aclError aclrtGetDeviceInfo(uint32_t, aclrtDevAttr attribute, int64_t* value) {
  *value = attribute == ACL_DEV_ATTR_CUBE_CORE_NUM
               ? 24
               : std::atoll(Variable("HPMOE_BOARD_POD", "4294967295"));
  return 0;
}

aclError aclrtCreateStream(aclrtStream* stream) {
  Process& process = ThisProcess();
  if (process.device < 0) return Fail(kNoContext, "expected a device");
  ++process.streams;
  *stream = &process;
  return 0;
}

aclError aclrtDestroyStream(aclrtStream) {
  --ThisProcess().streams;
  return 0;
}

aclError aclrtSynchronizeStreamWithTimeout(aclrtStream, int32_t ms) {
  Drill("aclrtSynchronizeStreamWithTimeout");
  Process& process = ThisProcess();
  Seat& seat = process.board->seats[process.device];
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
  while (seat.done != seat.posted) {
    if (std::chrono::steady_clock::now() > end) {
      return Fail(kTimeout, "the launch goes on");
    }
    std::this_thread::sleep_for(kBetweenLooks);
  }
  Drill("the_end_of_a_kernel");
  return 0;
}

aclError aclrtMalloc(void** at, size_t size, aclrtMemMallocPolicy) {
  Process& process = ThisProcess();
  if (process.device < 0) return Fail(kNoContext, "expected a device");
  *at = process.own.Take(size);
  return *at == nullptr ? Fail(kNoMemory, "no memory is left") : 0;
}

aclError aclrtFree(void* at) {
  return ThisProcess().own.Give(at)
             ? 0
             : Fail(kInvalid, "aclrtFree: expected what aclrtMalloc gave");
}

aclError aclrtMemcpy(void* to, size_t most, const void* from, size_t count,
                     aclrtMemcpyKind kind) {
  const bool into =
      kind == ACL_MEMCPY_HOST_TO_DEVICE || kind == ACL_MEMCPY_DEVICE_TO_DEVICE;
  const bool out =
      kind == ACL_MEMCPY_DEVICE_TO_HOST || kind == ACL_MEMCPY_DEVICE_TO_DEVICE;
  if (count > most || (into ? !IsOwn(to, count) : OnDevice(to, count)) ||
      (out ? !IsOwn(from, count) : OnDevice(from, count))) {
    return Fail(kInvalid,
                "aclrtMemcpy: expected memory of its kind, allocated "
                "and large enough, got other");
  }
  std::memcpy(to, from, count);
  return 0;
}

aclError aclrtMemset(void* at, size_t most, int32_t value, size_t count) {
  if (count > most || !IsOwn(at, count)) {
    return Fail(kInvalid,
                "aclrtMemset: expected memory of the device, "
                "allocated and large enough, got other");
  }
  std::memset(at, value, count);
  return 0;
}

// Any file: the kernel is the twin's.
aclError aclrtBinaryLoadFromFile(const char* path, aclrtBinaryLoadOptions*,
                                 aclrtBinHandle* binary) {
  if (path[0] != '/' || access(path, R_OK) != 0) {
    return Fail(kNoFile, std::string("expected an absolute path, got ") + path);
  }
  *binary = &ThisProcess();
  return 0;
}

aclError aclrtBinaryUnLoad(aclrtBinHandle) { return 0; }

aclError aclrtBinaryGetFunction(const aclrtBinHandle, const char* name,
                                aclrtFuncHandle* function) {
  if (std::strcmp(name, "hpmoe_megakernel") != 0) {
    return Fail(kNoFunction, std::string("no kernel ") + name);
  }
  *function = &ThisProcess();
  return 0;
}

aclError aclrtKernelArgsInit(aclrtFuncHandle, aclrtArgsHandle* args) {
  static Args one;
  one = {};
  *args = &one;
  return 0;
}

aclError aclrtKernelArgsAppend(aclrtArgsHandle args, void* param, size_t size,
                               aclrtParamHandle*) {
  Args& one = *static_cast<Args*>(args);
  if (one.given || one.final || size != sizeof(void*)) {
    return Fail(kInvalid, "hpmoe_megakernel: expected one address");
  }
  std::memcpy(&one.value, param, size);
  one.given = true;
  return 0;
}

aclError aclrtKernelArgsFinalize(aclrtArgsHandle args) {
  static_cast<Args*>(args)->final = true;
  return 0;
}

aclError aclrtLaunchKernelWithConfig(aclrtFuncHandle, uint32_t blocks,
                                     aclrtStream, aclrtLaunchKernelCfg* config,
                                     aclrtArgsHandle args, void*) {
  Drill("aclrtLaunchKernelWithConfig");
  const Args& one = *static_cast<Args*>(args);
  if (!one.given || !one.final) {
    return Fail(kInvalid, "expected arguments that are final");
  }
  Process& process = ThisProcess();
  Seat& seat = process.board->seats[process.device];
  seat.args = reinterpret_cast<uint64_t>(one.value);
  seat.blocks = blocks;
  seat.at_once = 0;
  for (size_t i = 0; config != nullptr && i < config->numAttrs; ++i) {
    const aclrtLaunchKernelAttr& attribute = config->attrs[i];
    if (attribute.id == ACL_RT_LAUNCH_KERNEL_ATTR_SCHEM_MODE) {
      seat.at_once = attribute.value.schemMode == 1;
    }
  }
  ++seat.posted;
  return 0;
}
