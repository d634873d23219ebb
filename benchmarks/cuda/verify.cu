// SPDX-License-Identifier: Apache-2.0
// bench-cuda: verification on the device, and the floors beside it, in the same run.
//
// usage: bench-cuda [--json FILE] [--small] [--profile] [--soak SECONDS] [--sweep]
//        --small     a cluster of two and few repetitions, for tests/cuda/emulator and
//                    compute-sanitizer
//        --profile   verifies one batch twice, for a profiler
//        --soak      verifies the same batches again and again, and compares each result with the
//                    first
//        --sweep     how large a cluster should be (sweep.hpp)
//
// All with lossless token verification of float and bf16: nvcc takes half a minute for every other
// kernel.
#include <chrono>
#include <cstring>

#include "measure.hpp"
#include "sweep.hpp"

namespace bench {
namespace {

constexpr std::size_t vocabulary_of_llama = 128256;

timing time_of_copy(const void* data, std::size_t distance, std::size_t copies, std::size_t bytes) {
  const device_array<unsigned char> to(copies * bytes);
  stopwatch watch;
  return watch.in_a_row(copies, true, 20, [&](std::size_t c, cudaStream_t stream) {
    CHECK_CUDA(cudaMemcpyAsync(to.data() + c * bytes,
                               static_cast<const unsigned char*>(data) + c * distance, bytes,
                               cudaMemcpyDeviceToDevice, stream));
  });
}

// Lossless token verification with all that is told about it.
template <class S>
void measure(const shape& s) {
  const token_verifier verifier;
  const inputs<S, token_verifier> in(s, verifier);
  const std::size_t bytes = bytes_of_rows<S>(s, lossless{}, verifier), copies = in.copies();
  const std::size_t distance = 2 * s.requests * (s.gamma + 1) * s.vocabulary * sizeof(S);
  const auto verify = verification(in, lossless{}, verifier);
  const timing read = time_of_read(in.data(0), distance, copies, bytes);
  const timing copied = time_of_copy(in.data(0), distance, copies, bytes);
  stopwatch watch;
  const timing row = watch.in_a_row(copies, true, 50, verify),
               plain = watch.in_a_row(copies, false, 50, verify);
  const timing alone = watch.alone(copies, true, 200, verify),
               alone_plain = watch.alone(copies, false, 200, verify);
  const double accepted = in.accepted();
  // The two launches of verify(), each on its own. The rows are aligned, their size is a multiple
  // of four, no mask.
  using policies = gpu::detail::same_for_all<lossless>;
  using whole = gpu::detail::drafts<gpu::detail::padded<gpu::batch<S>>, true>;
  constexpr auto* verify_all =
      gpu::detail::verify_requests<whole, policies, token_verifier, gpu::outcome>;
  const auto rows = [&](std::size_t c) { return whole{{{in.batch(c)}, s.gamma, false}}; };
  const auto sums = [&](std::size_t c) {
    return static_cast<specagg::block_sum<float>*>(in.storage(c));
  };
  const timing first = watch.in_a_row(copies, true, 50, [&](std::size_t c, cudaStream_t stream) {
    CHECK_CUDA(gpu::detail::launch_sums(rows(c), false, sums(c), stream));
  });
  const timing second = watch.in_a_row(copies, true, 50, [&](std::size_t c, cudaStream_t stream) {
    CHECK_CUDA(gpu::detail::launch_verifier<verify_all>(s.requests, s.vocabulary, stream, rows(c),
                                                        policies{}, verifier, sums(c), in.out(c)));
  });
  const double speed = gigabytes_per_second(bytes, row.median), share = read.median / row.median;
  std::printf(
      "%-4s %4zu %3zu %8.2f %8.2f %8.2f %8.2f %9.2f %8.2f %8.2f %8.2f %7.0f %6.1f %% %6.2f %4zu\n",
      type_name<S>(), s.requests, s.gamma, row.median, plain.median, alone.median,
      alone_plain.median, first.median, second.median, read.median, copied.median, speed,
      100 * share, accepted, copies);
  std::string fields = field("type", type_name<S>());
  for (const auto& [name, number] :
       {std::pair("requests", double(s.requests)), std::pair("gamma", double(s.gamma)),
        std::pair("vocabulary", double(s.vocabulary)), std::pair("bytes", double(bytes)),
        std::pair("copies", double(copies)), std::pair("share", share),
        std::pair("accepted", accepted)})
    fields += ", " + field(name, number);
  for (const auto& [name, time] :
       {std::pair("us", row), std::pair("plain_us", plain), std::pair("alone_us", alone),
        std::pair("alone_plain_us", alone_plain), std::pair("sums_us", first),
        std::pair("verify_us", second), std::pair("read_us", read), std::pair("copy_us", copied)})
    fields += ", " + field(name, time);
  output().add("lossless", fields);
}

int run() {
  const auto& p = device().properties;
  const std::size_t v = small ? 17000 : vocabulary_of_llama;
  std::printf(
      "%s, %zu processors, L2 %zu MB; lossless token verification, V = %zu, microseconds, "
      "medians\n",
      p.name, device().processors, device().l2 >> 20, v);
  std::printf(
      "row: in a row, replayed from a graph; plain: in a row, launched; alone: one replay on an "
      "idle device,\n"
      "one launch; 1st, 2nd: the two kernels; read, copy: as many bytes read, copied; GB/s: bytes "
      "/ row;\n"
      "share: of the speed of the read; acc: accepted tokens; n: copies of the input, used in "
      "turn\n\n");
  std::printf(
      "type    B   g      row    plain    alone  (plain)       1st      2nd     read     copy    "
      "GB/s   share"
      "      acc    n\n");
  const std::vector<shape> shapes =
      small ? std::vector<shape>{{1, 2, v}, {3, 2, v}}
            : std::vector<shape>{{1, 4, v},   {8, 4, v},  {32, 4, v}, {64, 4, v},
                                 {256, 4, v}, {64, 8, v}, {64, 16, v}};
  for (const shape& s : shapes) measure<float>(s), measure<bf16>(s);
  if (!suites().empty()) {
    const shape s{small ? 2u : 64u, small ? 2u : 4u, v};
    std::printf(
        "\nevery policy, B = %zu, gamma = %zu, in a row from a graph; GB/s and share count one "
        "read of a row\n",
        s.requests, s.gamma);
    std::printf("verifier policy       type         us      GB/s    share  accepted\n");
    for (const auto& suite : suites()) suite(s);
  }
  return 0;
}

int profile() {
  const inputs<float, token_verifier> in({64, 4, vocabulary_of_llama}, token_verifier{});
  const auto verify = verification(in, lossless{}, token_verifier{});
  for (int i = 0; i < 2; ++i) verify(0, nullptr);
  CHECK_CUDA(cudaStreamSynchronize(nullptr));
  return 0;
}

// What verification of copy c wrote, as bytes.
template <class S>
std::vector<unsigned char> written(const inputs<S, token_verifier>& in, const shape& s,
                                   std::size_t c) {
  const auto out = in.out(c);
  std::vector<verdict> verdicts(s.requests);
  std::vector<emission> emissions(s.requests * (s.gamma + 1));
  CHECK_CUDA(cudaMemcpy(verdicts.data(), out.verdicts, verdicts.size() * sizeof(verdict),
                        cudaMemcpyDeviceToHost));
  CHECK_CUDA(cudaMemcpy(emissions.data(), out.emissions, emissions.size() * sizeof(emission),
                        cudaMemcpyDeviceToHost));
  std::vector<unsigned char> bytes;
  const auto add = [&](const auto& x) {
    const auto* at = reinterpret_cast<const unsigned char*>(&x);
    bytes.insert(bytes.end(), at, at + sizeof x);
  };
  for (std::size_t r = 0; r < s.requests; ++r) {
    add(verdicts[r].accepted);
    add(verdicts[r].emitted);
    add(verdicts[r].why);
    for (std::size_t i = 0; i < verdicts[r].emitted; ++i) {
      const emission& e = emissions[r * (s.gamma + 1) + i];
      add(e.token);
      add(e.from);
      add(e.why);
      add(e.log_pi);
      add(e.log_p);
    }
  }
  return bytes;
}

int soak(double seconds) {
  using clock = std::chrono::steady_clock;
  const auto end = clock::now() + std::chrono::duration<double>(seconds);
  std::size_t rounds = 0, different = 0;
  const auto repeat = [&](const shape& s, auto type) {
    const inputs<decltype(type), token_verifier> in(s, token_verifier{});
    const auto verify = verification(in, lossless{}, token_verifier{});
    std::vector<std::vector<unsigned char>> first;
    for (std::size_t k = 0; k < 20; ++k)
      for (std::size_t c = 0; c < in.copies(); ++c) {
        verify(c, nullptr);
        CHECK_CUDA(cudaStreamSynchronize(nullptr));
        if (k == 0) first.push_back(written(in, s, c));
        else different += written(in, s, c) != first[c];
        ++rounds;
      }
  };
  do {  // in clusters of eight, of four, and without
    repeat({1, 4, vocabulary_of_llama}, float());
    repeat({64, 4, vocabulary_of_llama}, bf16());
    repeat({256, 2, 32000}, float());
  } while (clock::now() < end && !small);
  std::printf("%zu batches verified again and again: %zu differ from the first time\n", rounds,
              different);
  return different > 0;
}

}  // namespace
}  // namespace bench

int main(int count, char** arguments) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  bool profile = false, sweep = false;
  double seconds = 0;
  for (int i = 1; i < count; ++i) {
    if (!std::strcmp(arguments[i], "--small")) bench::small = true;
    else if (!std::strcmp(arguments[i], "--json") && i + 1 < count)
      bench::output().open(arguments[++i]);
    else if (!std::strcmp(arguments[i], "--profile")) profile = true;
    else if (!std::strcmp(arguments[i], "--sweep")) sweep = true;
    else if (!std::strcmp(arguments[i], "--soak") && i + 1 < count)
      seconds = std::atof(arguments[++i]);
    else {
      std::fprintf(stderr,
                   "usage: bench-cuda [--json FILE] [--small] [--profile] [--soak SECONDS] "
                   "[--sweep]\n");
      return 2;
    }
  }
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "bench-cuda: there is no CUDA device\n");
    return 1;
  }
  if (profile) return bench::profile();
  if (sweep) return bench::sweep();
  return seconds > 0 ? bench::soak(seconds) : bench::run();
}
