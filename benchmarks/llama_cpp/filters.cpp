// SPDX-License-Identifier: Apache-2.0
// What filters cost in llama.cpp: the nine rows of a step through its chain of samplers, to the
// token that it draws. filters FOLDER KIND...; FOLDER: written by bench-filters --export FOLDER. A
// line for each filter and kind: the median in microseconds. The order of the chain is the one that
// keeps what ours does: temperature, top-k, top-p, min-p.
#include <llama.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace {

struct filter {
  std::string name;
  float temperature = 1;
  int top_k = 0;
  float top_p = 1, min_p = 0;
};

std::vector<filter> filters_in(const std::string& folder) {
  std::vector<filter> found;
  std::ifstream file(folder + "/filters.tsv");
  for (std::string line; std::getline(file, line);) {
    const std::size_t tab = line.find('\t');
    filter f{line.substr(0, tab)};
    std::istringstream(line.substr(tab)) >> f.temperature >> f.top_k >> f.top_p >> f.min_p;
    found.push_back(f);
  }
  return found;
}
std::vector<float> rows_in(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  std::vector<float> rows(std::size_t(file.tellg()) / sizeof(float));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(rows.data()), std::streamsize(rows.size() * sizeof(float)));
  return rows;
}

double microseconds_of_step(const filter& f, const std::vector<float>& rows) {
  constexpr std::size_t n = 9;
  const std::size_t vocabulary = rows.size() / n;
  llama_sampler* const chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
  llama_sampler_chain_add(chain, llama_sampler_init_temp(f.temperature));
  if (f.top_k > 0) llama_sampler_chain_add(chain, llama_sampler_init_top_k(f.top_k));
  if (f.top_p < 1) llama_sampler_chain_add(chain, llama_sampler_init_top_p(f.top_p, 1));
  if (f.min_p > 0) llama_sampler_chain_add(chain, llama_sampler_init_min_p(f.min_p, 1));
  llama_sampler_chain_add(chain, llama_sampler_init_dist(1));
  std::vector<llama_token_data> data(vocabulary);
  std::vector<double> times;
  for (int i = 0; i < 7; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    for (std::size_t r = 0; r < n; ++r) {
      for (std::size_t v = 0; v < vocabulary; ++v)
        data[v] = {llama_token(v), rows[r * vocabulary + v], 0};
      llama_token_data_array all{data.data(), vocabulary, -1, false};
      llama_sampler_apply(chain, &all);
      if (all.selected < 0) std::exit(1);
    }
    times.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
            .count());
  }
  llama_sampler_free(chain);
  std::sort(times.begin() + 2, times.end());
  return times[4];
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 3) return 2;
  const std::string folder = arguments[1];
  for (int k = 2; k < count; ++k) {
    const std::string kind = arguments[k];
    const std::vector<float> rows = rows_in(folder + "/" + kind + ".f32");
    for (const filter& f : filters_in(folder)) {
      std::printf("%s\t%s\t%.1f\n", f.name.c_str(), kind.c_str(), microseconds_of_step(f, rows));
      std::fflush(stdout);
    }
  }
}
