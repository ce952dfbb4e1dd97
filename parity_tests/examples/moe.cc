// A layer in plain C++ that reads a case of `hpmoe export` and writes y, in
// float32: what a program of yours needs, and nothing else.
//
//   c++ -O2 -std=c++17 moe.cc -o moe
//   hpmoe check --command='./moe {case} {out}' --direction=forward

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

namespace {

struct Tensor {
  std::vector<int64_t> shape;
  std::vector<char> bytes;

  const float* floats() const {
    return reinterpret_cast<const float*>(bytes.data());
  }
  const int32_t* integers() const {
    return reinterpret_cast<const int32_t*>(bytes.data());
  }
};

// The numbers between `key` and the next ']'.
std::vector<int64_t> Numbers(const std::string& text, const std::string& key) {
  std::vector<int64_t> found;
  size_t at = text.find(key) + key.size();
  const size_t end = text.find(']', at);
  while (at < end) {
    size_t read = 0;
    found.push_back(std::stoll(text.substr(at, end - at), &read));
    at = text.find(',', at + read);
    at = at < end ? at + 1 : end;
  }
  return found;
}

// A .safetensors file: the header's length in 8 bytes, its JSON, then tensors.
Tensor Read(const std::string& path, const std::string& name) {
  std::ifstream file(path, std::ios::binary);
  uint64_t length = 0;
  file.read(reinterpret_cast<char*>(&length), sizeof(length));
  std::string header(length, ' ');
  file.read(header.data(), static_cast<std::streamsize>(length));
  const std::string row = header.substr(header.find('"' + name + '"'));
  const std::vector<int64_t> range = Numbers(row, "\"data_offsets\": [");
  Tensor tensor = {Numbers(row, "\"shape\": ["), {}};
  tensor.bytes.resize(range[1] - range[0]);
  file.seekg(static_cast<std::streamoff>(8 + length + range[0]));
  file.read(tensor.bytes.data(), range[1] - range[0]);
  return tensor;
}

// The value of `key = "value"` in case.toml, of the first table that has it.
std::string Said(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(key + " = ", 0) == 0) return line.substr(key.size() + 3);
  }
  return "";
}

void Write(const std::string& path, const std::string& of,
           const std::vector<int64_t>& shape, const std::vector<float>& y) {
  std::ostringstream header;
  header << "{\"__metadata__\":{\"case\":" << of
         << "},\"y\":{\"dtype\":\"F32\",\"shape\":[" << shape[0] << ','
         << shape[1] << ',' << shape[2] << "],\"data_offsets\":[0,"
         << y.size() * sizeof(float) << "]}}";
  std::string text = header.str();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof(length));
  file << text;
  file.write(reinterpret_cast<const char*>(y.data()),
             static_cast<std::streamsize>(y.size() * sizeof(float)));
}

float Activation(float gate, bool absolute) {
  return absolute ? std::fabs(gate) : gate / (1.0f + std::exp(-gate));
}

// Adds one expert's weighted answer to a token's row.
void AddExpert(const float* x, const float* w_gate_up, const float* w_down,
               int64_t width, int64_t hidden, float weight, bool absolute,
               float* y) {
  std::vector<float> gate_up(2 * hidden, 0.0f);
  for (int64_t d = 0; d < width; ++d) {
    for (int64_t f = 0; f < 2 * hidden; ++f) {
      gate_up[f] += x[d] * w_gate_up[d * 2 * hidden + f];
    }
  }
  std::vector<float> out(width, 0.0f);
  for (int64_t f = 0; f < hidden; ++f) {
    const float a = Activation(gate_up[f], absolute) * gate_up[hidden + f];
    for (int64_t d = 0; d < width; ++d) out[d] += a * w_down[f * width + d];
  }
  for (int64_t d = 0; d < width; ++d) y[d] += weight * out[d];
}

void Run(const std::string& folder, const std::string& out,
         const std::string& data, bool absolute) {
  const std::string path = folder + '/' + data + ".forward.safetensors";
  const Tensor x = Read(path, "x"), ids = Read(path, "topk_ids");
  const Tensor weights = Read(path, "topk_weights");
  const Tensor up = Read(path, "w_gate_up"), down = Read(path, "w_down");
  const int64_t width = x.shape[2], hidden = down.shape[2];
  const int64_t top_k = ids.shape[2], tokens = x.shape[0] * x.shape[1];
  std::vector<float> y(tokens * width, 0.0f);
  for (int64_t slot = 0; slot < tokens * top_k; ++slot) {
    const int64_t token = slot / top_k, expert = ids.integers()[slot];
    AddExpert(x.floats() + token * width,
              up.floats() + expert * width * 2 * hidden,
              down.floats() + expert * hidden * width, width, hidden,
              weights.floats()[slot], absolute, y.data() + token * width);
  }
  Write(out + '/' + data + ".safetensors", Said(folder + "/case.toml", "id"),
        x.shape, y);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: moe CASE OUT\n";
    return 2;
  }
  const std::string folder = argv[1], out = argv[2];
  for (const char* data : {"real", "exact", "wide"}) {
    if (!std::ifstream(folder + '/' + data + ".forward.safetensors")) continue;
    std::ifstream file(folder + "/case.toml");
    std::stringstream text;
    text << file.rdbuf();
    const std::string table = std::string("[data.") + data + "]";
    const size_t at = text.str().find(table);
    const size_t said = text.str().find("activation = ", at);
    const bool absolute =
        text.str().compare(said + 13, 10, "\"absolute\"") == 0;
    Run(folder, out, data, absolute);
  }
  return 0;
}
