// Runs a program whose kernels were compiled for the twin:
//   run_program OPTION=VALUE... -- ARGUMENT...
// or tells which intrinsics it has, or how operands may overlap:
//   run_program names|overlaps

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "backend_ascend/twin/instructions/overlaps.h"
#include "backend_ascend/twin/intrinsics/intrinsic.h"
#include "backend_ascend/twin/intrinsics/program.h"
#include "backend_ascend/twin/watch/coverage.h"

namespace {

using ascend_twin::Mode;
using ascend_twin::Program;

constexpr int kFound = 3;  // the twin has something to say
constexpr int kWrongRequest = 2;

// Of NAME:VALUE,...; none where one is missing.
std::optional<ascend_twin::Rates> RatesOf(const std::string& text) {
  std::map<std::string, double> given;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) {
    const size_t at = word.find(':');
    if (at == std::string::npos) return std::nullopt;
    given[word.substr(0, at)] = std::strtod(word.c_str() + at + 1, nullptr);
  }
  ascend_twin::Rates rates;
#define HPMOE_TWIN_RATE(name)                       \
  if (given.count(#name) == 0) return std::nullopt; \
  rates.name = given[#name];
  HPMOE_TWIN_RATES(HPMOE_TWIN_RATE)
#undef HPMOE_TWIN_RATE
  return rates;
}

struct Request {
  std::string vector, cube, coverage;
};

// Whether there is such an option.
bool Take(const std::string& name, const std::string& value, Request* request,
          Program* program) {
  ascend_twin::LaunchSpec& spec = program->spec;
  const std::map<std::string, std::string*> words = {
      {"vector", &request->vector},
      {"cube", &request->cube},
      {"coverage", &request->coverage},
      {"cores", &program->cores}};
  const std::map<std::string, uint64_t*> numbers = {
      {"seed", &spec.seed}, {"max_instructions", &spec.max_instructions}};
  const std::map<std::string, bool*> switches = {
      {"auto_sync", &spec.auto_sync},     {"hazards", &spec.hazards},
      {"flags_count", &spec.flags_count}, {"drained_end", &spec.drained_end},
      {"zero_memory", &program->zeroed},  {"begins", &program->begins},
      {"slack", &program->slack},         {"strict", &spec.numerics.strict}};
  if (words.count(name) != 0) {
    *words.at(name) = value;
  } else if (numbers.count(name) != 0) {
    *numbers.at(name) = std::strtoull(value.c_str(), nullptr, 10);
  } else if (switches.count(name) != 0) {
    *switches.at(name) = value == "1";
  } else if (name == "mode") {
    spec.mode = value == "late"     ? Mode::kLate
                : value == "seeded" ? Mode::kSeeded
                                    : Mode::kInOrder;
  } else if (name == "flags") {
    for (const char* at = value.c_str(); *at != '\0';) {
      char* end;
      program->flags.push_back(static_cast<int>(std::strtol(at, &end, 10)));
      at = *end == ',' ? end + 1 : end;
    }
  } else if (name == "rates") {
    program->rates = RatesOf(value);
    return program->rates.has_value();
  } else if (name == "events") {
    return program->events.Open(value);
  } else {
    return name == "timeline" && program->timeline.Open(value);
  }
  return true;
}

// A line for each family: its number, calls, rules and page, between tabs.
void PrintOverlaps() {
  for (const ascend_twin::OverlapRule& rule : ascend_twin::kOverlapRules) {
    std::printf("%d\t%s", static_cast<int>(rule.family), rule.calls);
    for (const ascend_twin::Overlap overlap :
         {rule.one_same, rule.one_part, rule.several_same,
          rule.several_later}) {
      std::printf("\t%s", NameOf(overlap));
    }
    std::printf("\t%s\n", rule.page);
  }
}

int Say(const std::string& text) {
  std::fprintf(stderr, "%s\n", text.c_str());
  return kWrongRequest;
}

}  // namespace

int main(int count, char** arguments) {
  Program& program = ascend_twin::ThisProgram();
  program.spec.max_idle_cycles = uint64_t{1} << 30;
  // Their queues set a flag again while its wait is still to come.
  program.spec.flags_count = true;
  Request request;
  int i = 1;
  if (count == 2 && std::strcmp(arguments[1], "names") == 0) {
    for (const std::string& name : ascend_twin::IntrinsicNames()) {
      std::printf("%s\n", name.c_str());
    }
    return 0;
  }
  if (count == 2 && std::strcmp(arguments[1], "overlaps") == 0) {
    PrintOverlaps();
    return 0;
  }
  for (; i < count && std::strcmp(arguments[i], "--") != 0; ++i) {
    const std::string option = arguments[i];
    const size_t at = option.find('=');
    const std::string name = option.substr(0, at);
    const std::string value =
        at == std::string::npos ? "" : option.substr(at + 1);
    if (!Take(name, value, &request, &program)) {
      return Say(option + ": expected an option of run_program");
    }
  }
  std::string wrong = Open(request.vector.c_str(), &program.modules.vector);
  if (wrong.empty()) wrong = Open(request.cube.c_str(), &program.modules.cube);
  if (!wrong.empty()) return Say(wrong);
  using Main = int (*)(int, char**);
  const Main run =
      reinterpret_cast<Main>(dlsym(program.modules.vector.handle, "main"));
  if (run == nullptr) return Say("expected a program with main");
  std::vector<char*> rest = {arguments[0]};
  for (++i; i < count; ++i) rest.push_back(arguments[i]);
  rest.push_back(nullptr);
  const int code = run(static_cast<int>(rest.size()) - 1, rest.data());
  std::fflush(stdout);
  program.timeline.Close();
  program.events.Close();
  const std::string& to = request.coverage;
  if (!to.empty() && !ascend_twin::WriteCoverage(to)) {
    return Say(to + ": cannot be written");
  }
  for (const std::string& found : program.found) {
    std::fprintf(stderr, "twin: %s\n", found.c_str());
  }
  std::fprintf(stderr, "twin: launches: %d, errors: %zu\n", program.launches,
               program.found.size());
  return program.found.empty() ? code : kFound;
}
