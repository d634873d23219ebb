// SPDX-License-Identifier: Apache-2.0
// The Python module specagg._core: arrays to requests, requests to the engine, on a pool of threads
// and without the interpreter's lock. Nothing here depends on the instruction set.
#if __has_include(<pthread.h>)
#include <pthread.h>
#endif

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <specagg/audit/goodness_of_fit.hpp>
#include <specagg/plan/acceptance.hpp>
#include <specagg/plan/draft_length.hpp>
#include <specagg/plan/speedup.hpp>
#include <specagg/thread_pool.hpp>

#include "engine.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using specagg::token_id;

namespace {

template <class... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  std::string text;
  ((text += parts), ...);
  throw nb::value_error(text.c_str());
}
std::string text_of(std::size_t n) { return std::to_string(n); }

// ---- the pool -----------------------------------------------------------------------------------

constexpr unsigned most_threads = 1024;

// One pool for the process, made when it is first needed and never destroyed. A call that finds it
// busy works on its own thread.
struct workers {
  std::mutex busy;
  std::unique_ptr<specagg::thread_pool> pool;
  unsigned wanted = std::clamp(std::thread::hardware_concurrency(), 1u, most_threads), made_for = 0;

  template <class Body>
  void for_each(std::size_t count, Body&& body) {
    const auto range = [&](std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i) body(i);
    };
    const std::unique_lock lock(busy, std::try_to_lock);
    if (count < 2 || !lock) return range(0, count);
    if (made_for != wanted) {
      pool = std::make_unique<specagg::thread_pool>(wanted);
      made_for = wanted;
    }
    pool->for_ranges(count, 1, range);
  }
};
workers* all_workers = nullptr;
workers& shared_workers() {
  static const bool made = [] {
    all_workers = new workers;
#if __has_include(<pthread.h>)
    // The threads of a pool stay in the parent: a forked child makes a pool of its own.
    pthread_atfork(nullptr, nullptr, [] {
      const unsigned wanted = all_workers->wanted;
      all_workers = new workers;
      all_workers->wanted = wanted;
    });
#endif
    return true;
  }();
  (void)made;
  return *all_workers;
}

// ---- arguments ----------------------------------------------------------------------------------

using any_array = nb::ndarray<nb::ro>;

// What an argument views. `given` keeps the memory alive.
struct array {
  any_array given;
  std::string name;
  std::size_t ndim() const { return given.ndim(); }
  std::size_t shape(std::size_t i) const { return given.shape(i); }
  std::size_t element() const { return given.dtype().bits / 8; }
  std::string shape_text() const {
    std::string text = "[";
    for (std::size_t i = 0; i < ndim(); ++i) text += (i ? ", " : "") + text_of(shape(i));
    return text + "]";
  }
  // Bytes from one entry of dimension i to the next.
  std::ptrdiff_t stride(std::size_t i) const {
    return std::ptrdiff_t(given.stride(i)) * std::ptrdiff_t(element());
  }
  const std::byte* data() const { return static_cast<const std::byte*>(given.data()); }
  bool is(nb::dlpack::dtype_code code, int bits) const {
    return given.dtype().code == std::uint8_t(code) && given.dtype().bits == bits &&
           given.dtype().lanes == 1;
  }
};

// Why x is not read where it is.
[[noreturn]] void refuse_memory(nb::handle x, const char* name) {
  const nb::object found = nb::getattr(x, "device", nb::str("cpu"));
  const std::string device = nb::str(found).c_str();
  if (!device.starts_with("cpu"))
    refuse(name, ": is on the device ", device,
           "; specagg reads memory of the CPU: copy it there, in torch by ", name, ".cpu()");
  throw nb::type_error((std::string(name) +
                        ": expected a numpy array or a tensor on the CPU "
                        "(DLPack), in the machine's byte order and without gradient, not " +
                        nb::type_name(x.type()).c_str())
                           .c_str());
}

array array_of(nb::handle x, const char* name) {
  array a{{}, name};
  if (!nb::try_cast<any_array>(x, a.given) || a.given.device_type() != nb::device::cpu::value)
    refuse_memory(x, name);
  if (a.element() > 0 && reinterpret_cast<std::uintptr_t>(a.data()) % a.element() != 0)
    refuse(name, ": its memory is not aligned");
  return a;
}

engine::row_kind kind_of(const array& a, bool logits) {
  using enum nb::dlpack::dtype_code;
  using enum engine::row_kind;
  if (a.is(Float, 32)) return logits ? logits_f32 : probabilities_f32;
  if (a.is(Float, 64)) return logits ? logits_f64 : probabilities_f64;
  if (logits && a.is(Float, 16)) return logits_f16;
  if (logits && a.is(Bfloat, 16)) return logits_bf16;
  throw nb::type_error((a.name + (logits ? ": logits are float32, float16, bfloat16 or float64"
                                         : ": probabilities are float32 or float64"))
                           .c_str());
}

// Whether V numbers look like probabilities: none is negative, and they sum to 1 or nearly. Stops
// at the first number that says no, which of logits is one of the first few.
template <class S>
bool looks_like_probabilities(const std::byte* row, std::size_t vocabulary) {
  double total = 0;
  for (std::size_t v = 0; v < vocabulary; ++v) {
    S stored;
    std::memcpy(&stored, row + v * sizeof stored, sizeof stored);
    const double x = double(specagg::detail::number(stored));
    if (!(x >= 0) || (total += x) > 1.01) return false;
  }
  return vocabulary > 1 && total > 0.99;
}

// Warns if one of these rows is given as logits and looks like probabilities.
void warn_of_probabilities(const std::string& name, const engine::rows& all,
                           std::size_t vocabulary) {
  const auto any = [&]<class S>(S) {
    for (std::size_t i = 0; i < all.count; ++i)
      if (looks_like_probabilities<S>(all.data + std::ptrdiff_t(i) * all.stride, vocabulary))
        return true;
    return false;
  };
  using enum engine::row_kind;
  bool found = false;
  if (all.kind == logits_f32) found = any(0.0f);
  else if (all.kind == logits_f64) found = any(0.0);
  else if (all.kind == logits_f16) found = any(specagg::f16{});
  else if (all.kind == logits_bf16) found = any(specagg::bf16{});
  if (!found) return;
  const std::string text =
      name +
      ": rows without negative numbers that sum to 1, taken as logits; if they are probabilities, "
      "say rows=\"probabilities\"";
  if (PyErr_WarnEx(PyExc_UserWarning, text.c_str(), 2) != 0) throw nb::python_error();
}

// The last dimension is a row, so its numbers stand side by side.
void check_row(const array& a, std::size_t vocabulary) {
  const std::size_t last = a.ndim() - 1;
  if (a.shape(last) != vocabulary)
    refuse(a.name, ": rows have ", text_of(a.shape(last)), " numbers, where those of p have ",
           text_of(vocabulary));
  if (vocabulary > 1 && a.given.size() > 0 && a.given.stride(last) != 1)
    refuse(a.name, ": the numbers of a row must be side by side in memory (last stride ",
           std::to_string(a.given.stride(last)), ")");
}

// Token ids, as int32. What does not fit becomes an id outside every vocabulary.
std::vector<token_id> ids_of(const array& a) {
  using enum nb::dlpack::dtype_code;
  if (a.ndim() != 1 && a.ndim() != 2)
    refuse(a.name, ": expected one or two dimensions, not ", text_of(a.ndim()));
  const std::size_t rows = a.ndim() == 2 ? a.shape(0) : 1, columns = a.shape(a.ndim() - 1);
  std::vector<token_id> ids(rows * columns);
  const auto fill = [&]<class I>(I) {
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t j = 0; j < columns; ++j) {
        const std::byte* at = a.data() + std::ptrdiff_t(j) * a.stride(a.ndim() - 1) +
                              (a.ndim() == 2 ? std::ptrdiff_t(i) * a.stride(0) : 0);
        I x;
        std::memcpy(&x, at, sizeof x);
        ids[i * columns + j] = x < -1 ? -2 : x > I(0x7fffffff) ? 0x7fffffff : token_id(x);
      }
  };
  if (a.is(Int, 32)) fill(std::int32_t());
  else if (a.is(Int, 64)) fill(std::int64_t());
  else throw nb::type_error((a.name + ": token ids are int32 or int64").c_str());
  return ids;
}

// A number for all requests, or an array with one for each.
template <class T>
class per_request {
 public:
  per_request(nb::handle x, const char* name, std::size_t requests) {
    if (PyLong_Check(x.ptr()) || PyFloat_Check(x.ptr())) {
      if (!nb::try_cast<T>(x, one_)) refuse(name, ": ", nb::repr(x).c_str(), " is out of range");
      return;
    }
    if (!nb::try_cast(x, many_))
      throw nb::type_error(
          (std::string(name) + ": expected a number or an array of numbers").c_str());
    if (many_.shape(0) != requests)
      refuse(name, ": ", text_of(many_.shape(0)), " values for ", text_of(requests), " requests");
    all_ = true;
  }
  T operator[](std::size_t i) const { return all_ ? many_(i) : one_; }

 private:
  T one_ = {};
  bool all_ = false;
  nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu> many_;
};

// ---- what Python sees ---------------------------------------------------------------------------

struct policy {
  engine::policy chosen;
  engine::known_policy known;
};

struct sampling {
  nb::object temperature, top_k, top_p, min_p;
};

specagg::sampling sampling_of(double temperature, std::int64_t top_k, double top_p, double min_p) {
  return {top_k < 0 ? -1.0 : temperature,  // refused: invalid_parameter
          std::uint32_t(std::clamp<std::int64_t>(top_k, 0, 0xffffffff)), top_p, min_p};
}

// The values for each request.
struct samplings {
  per_request<double> temperature;
  per_request<std::int64_t> top_k;
  per_request<double> top_p, min_p;
  samplings(const sampling& s, std::size_t requests)
      : temperature(s.temperature, "temperature", requests),
        top_k(s.top_k, "top_k", requests),
        top_p(s.top_p, "top_p", requests),
        min_p(s.min_p, "min_p", requests) {}
  specagg::sampling operator[](std::size_t i) const {
    return sampling_of(temperature[i], top_k[i], top_p[i], min_p[i]);
  }
};

struct edit_arguments {
  nb::object repetition, presence, frequency, history, mask;
};

// Masks, and penalties with their texts, of every request.
struct edits {
  per_request<double> repetition, presence, frequency;
  std::vector<std::vector<token_id>> history;
  array mask;
  bool masked = false;
  edits(const edit_arguments& e, std::size_t requests, std::size_t vocabulary)
      : repetition(e.repetition, "repetition", requests),
        presence(e.presence, "presence", requests),
        frequency(e.frequency, "frequency", requests) {
    if (!e.history.is_none()) {
      for (nb::handle text : e.history) {
        array a = array_of(text, "history");
        if (a.ndim() != 1) refuse("history: expected one text (one dimension) for each request");
        history.push_back(ids_of(a));
      }
      if (history.size() != requests)
        refuse("history: ", text_of(history.size()), " texts for ", text_of(requests), " requests");
    }
    if (e.mask.is_none()) return;
    mask = array_of(e.mask, "mask");
    if (!mask.is(nb::dlpack::dtype_code::Bool, 8) && !mask.is(nb::dlpack::dtype_code::UInt, 8))
      throw nb::type_error("mask: expected bool or uint8");
    if (mask.ndim() < 1 || mask.ndim() > 3) refuse("mask: expected [V], [B, V] or [B, rows, V]");
    check_row(mask, vocabulary);
    if (mask.ndim() > 1 && mask.shape(0) != requests)
      refuse("mask: ", text_of(mask.shape(0)), " masks for ", text_of(requests), " requests");
    masked = true;
  }
  // Of `rows` rows of request i, from row `first` on. A mask of each row has as many.
  engine::edits of(std::size_t i, std::size_t rows, std::size_t first = 0) const {
    engine::edits e;
    e.penalties = {repetition[i], presence[i], frequency[i]};
    if (!history.empty()) e.history = history[i];
    if (!masked) return e;
    e.mask = reinterpret_cast<const std::uint8_t*>(mask.data());
    if (mask.ndim() > 1) e.mask += std::ptrdiff_t(i) * mask.stride(0);
    if (mask.ndim() == 3) {
      if (mask.shape(1) < first + rows)
        refuse("mask: ", mask.shape_text(), ", where ", text_of(first + rows), " rows are needed");
      e.mask_stride = mask.stride(1);
      e.mask += std::ptrdiff_t(first) * e.mask_stride;
    }
    return e;
  }
};

// Arrays of B requests, views of one object.
template <class T>
using view1 = nb::ndarray<nb::numpy, T, nb::ndim<1>>;
template <class T>
using view2 = nb::ndarray<nb::numpy, T, nb::ndim<2>>;

struct verified {
  std::size_t requests = 0, columns = 0;  // columns: of tokens; one less of acceptances
  std::vector<token_id> tokens;
  std::vector<std::int32_t> emitted, accepted, ended;
  std::vector<std::int8_t> origins;
  std::vector<std::uint8_t> statuses, reasons;
  std::vector<double> log_pi, log_p, of_row, of_token;

  verified(std::size_t B, std::size_t gamma)
      : requests(B),
        columns(gamma + 1),
        tokens(B * columns, specagg::no_token),
        emitted(B),
        accepted(B),
        ended(B),
        origins(B * columns, -1),
        statuses(B),
        reasons(B * columns),
        log_pi(B * columns, std::numeric_limits<double>::quiet_NaN()),
        log_p(log_pi),
        of_row(B * gamma, std::numeric_limits<double>::quiet_NaN()),
        of_token(of_row) {}

  // f(each array)
  template <class F>
  void for_each_array(F&& f) {
    f(tokens), f(emitted), f(accepted), f(ended), f(origins), f(statuses), f(reasons);
    f(log_pi), f(log_p), f(of_row), f(of_token);
  }

  void keep(std::size_t i, const specagg::verdict& v, std::span<const specagg::emission> out,
            std::span<const specagg::draft_acceptance> acceptances) {
    emitted[i] = std::int32_t(v.emitted);
    accepted[i] = std::int32_t(v.accepted);
    ended[i] = v.ended;
    statuses[i] = std::uint8_t(v.why);
    for (std::size_t j = 0; j < v.emitted; ++j) {
      const std::size_t at = i * columns + j;
      tokens[at] = out[j].token;
      origins[at] = std::int8_t(out[j].from);
      reasons[at] = std::uint8_t(out[j].why);
      log_pi[at] = out[j].log_pi;
      log_p[at] = out[j].log_p;
    }
    for (std::size_t j = 0; j < acceptances.size(); ++j) {
      of_row[i * (columns - 1) + j] = acceptances[j].of_row;
      of_token[i * (columns - 1) + j] = acceptances[j].of_token;
    }
  }
};

// one(i) for each of the first 8 of n: "[a, b]".
template <class F>
std::string listed(std::size_t n, F&& one) {
  std::string text = "[";
  for (std::size_t i = 0; i < std::min<std::size_t>(n, 8); ++i) text += (i ? ", " : "") + one(i);
  return text + (n > 8 ? ", ...]" : "]");
}
std::string status_text(std::uint8_t s) { return std::string(specagg::name(specagg::status(s))); }
// What is in a result: emitted tokens, accepted counts, and statuses.
std::string text_of(const verified& v) {
  const auto tokens = [&](std::size_t i) {
    return listed(std::size_t(v.emitted[i]),
                  [&](std::size_t j) { return std::to_string(v.tokens[i * v.columns + j]); });
  };
  return "tokens=" + listed(v.requests, tokens) +
         ", accepted=" + listed(v.requests, [&](auto i) { return std::to_string(v.accepted[i]); }) +
         ", statuses=" + listed(v.requests, [&](auto i) { return status_text(v.statuses[i]); });
}

// For pickle: sizes, and the bytes of each array.
using pickled = std::tuple<std::size_t, std::size_t, std::vector<nb::bytes>>;
template <class Result>
pickled state_of(Result& v) {
  std::vector<nb::bytes> parts;
  v.for_each_array([&](auto& x) { parts.emplace_back(x.data(), x.size() * sizeof x[0]); });
  return {v.requests, v.columns, parts};
}
template <class Result>
void set_state(Result& v, const pickled& state) {
  const auto& [B, columns, parts] = state;
  new (&v) Result(B, columns - 1);
  std::size_t k = 0;
  v.for_each_array([&](auto& x) {
    if (k == parts.size() || parts[k].size() != x.size() * sizeof x[0])
      refuse("state: was pickled by another version of specagg");
    std::memcpy(x.data(), parts[k].c_str(), parts[k].size());
    ++k;
  });
}

// ---- verify -------------------------------------------------------------------------------------

// Where the rows of each request are: [B, rows, V], or [all rows, V] one request after the other.
struct placed_rows {
  engine::rows all;  // of request 0, if there are as many for each
  std::size_t most = 0;
  std::ptrdiff_t request_stride = 0;
};

placed_rows place(const array& a, bool logits, std::size_t B, std::size_t vocabulary) {
  placed_rows r;
  r.all.kind = kind_of(a, logits);
  check_row(a, vocabulary);
  r.all.data = a.data();
  r.all.stride = a.stride(a.ndim() - 2);
  r.most = a.shape(a.ndim() - 2);
  if (a.ndim() == 3) {
    if (a.shape(0) != B)
      refuse(a.name, ": ", a.shape_text(), " has rows for ", text_of(a.shape(0)), " of ",
             text_of(B), " requests");
    r.request_stride = a.stride(0);
  }
  engine::rows first = r.all;  // the first row of each request, or of all
  first.count = r.most == 0 ? 0 : a.ndim() == 3 ? B : 1;
  first.stride = r.request_stride;
  warn_of_probabilities(a.name, first, vocabulary);
  return r;
}

// The rows of draft and target: of one vocabulary, both float64 or neither. q may be None. shape:
// what is expected, in words.
struct both_rows {
  array q_array, p_array;
  placed_rows q, p;
  std::size_t vocabulary = 0;
  both_rows(nb::handle q_given, nb::handle p_given, bool q_logits, bool p_logits, std::size_t B,
            std::size_t dimensions, const char* shape)
      : p_array(array_of(p_given, "p")) {
    const auto check = [&](const array& a) {
      if (a.ndim() != dimensions)
        refuse(a.name, ": ", a.shape_text(), ", where ", shape, " is expected");
    };
    check(p_array);
    vocabulary = p_array.shape(dimensions - 1);
    if (vocabulary == 0 || vocabulary > 0x7fffffff) refuse("p: rows have no numbers, or too many");
    p = place(p_array, p_logits, B, vocabulary);
    if (q_given.is_none()) return;
    q_array = array_of(q_given, "q");
    check(q_array);
    q = place(q_array, q_logits, B, vocabulary);
    if (engine::in_double(q.all.kind) != engine::in_double(p.all.kind))
      throw nb::type_error("q, p: one is float64 and the other is not; convert one of them");
  }
};

// Which random numbers decide: those of each request's seed, id (0, 1, ... unless given) and
// position.
class streams {
 public:
  per_request<std::uint64_t> seed;
  per_request<std::uint32_t> position;
  streams(nb::handle seeds, nb::handle requests, nb::handle positions, std::size_t B)
      : seed(seeds, "seed", B), position(positions, "positions", B) {
    if (!requests.is_none()) ids_.emplace(requests, "requests", B);
  }
  std::uint64_t id(std::size_t i) const { return ids_ ? (*ids_)[i] : i; }

 private:
  std::optional<per_request<std::uint64_t>> ids_;
};

// The policy of each request, from one for all or a list.
std::vector<const policy*> policies_of(nb::handle given, std::size_t B) {
  std::vector<const policy*> policies;
  if (nb::isinstance<policy>(given)) {
    policies.assign(B, nb::cast<const policy*>(given));
  } else {
    for (nb::handle one : given) policies.push_back(nb::cast<const policy*>(one));
    if (policies.size() != B)
      refuse("policy: ", text_of(policies.size()), " policies for ", text_of(B), " requests");
  }
  return policies;
}

struct verify_arguments {
  nb::handle drafts, q, p, policies;
  int verifier;
  nb::handle seeds, requests, positions;
  bool q_logits, p_logits;
  const sampling& q_sampling;
  const sampling& p_sampling;
  const edit_arguments& edit;
  nb::handle lengths, offsets;
  const std::vector<token_id>& end_of_text;
  bool bonus, acceptances;
};

verified verify(const verify_arguments& a) {
  const array drafts = array_of(a.drafts, "drafts");
  const std::vector<token_id> tokens = ids_of(drafts);
  const bool ragged = !a.offsets.is_none();
  if (ragged && drafts.ndim() != 1)
    refuse("drafts: with offsets they are one after the other, in one dimension, not ",
           drafts.shape_text());

  // Request i's draft: tokens[begin[i]] ..., of which there are size[i].
  std::vector<std::size_t> begin, size;
  std::size_t padded = ragged ? 0 : drafts.shape(drafts.ndim() - 1);  // the longest draft
  if (ragged) {
    const array given = array_of(a.offsets, "offsets");
    if (given.ndim() != 1 || given.shape(0) < 1)
      refuse("offsets: expected B + 1 numbers, not ", given.shape_text());
    const std::vector<token_id> offsets = ids_of(given);
    if (offsets[0] != 0 || !std::is_sorted(offsets.begin(), offsets.end()))
      refuse("offsets: must begin with 0 and must not fall");
    for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
      begin.push_back(std::size_t(offsets[i]));
      size.push_back(std::size_t(offsets[i + 1] - offsets[i]));
      padded = std::max(padded, size.back());
    }
    if (std::size_t(offsets.back()) != tokens.size())
      refuse("offsets: end at ", std::to_string(offsets.back()), ", where there are ",
             text_of(tokens.size()), " drafted tokens");
  } else {
    const std::size_t B = drafts.ndim() == 2 ? drafts.shape(0) : 1,
                      columns = drafts.shape(drafts.ndim() - 1);
    for (std::size_t i = 0; i < B; ++i) {
      begin.push_back(i * columns);
      size.push_back(columns);
    }
  }
  const std::size_t B = size.size();
  if (!a.lengths.is_none()) {
    const per_request<std::int64_t> lengths(a.lengths, "lengths", B);
    for (std::size_t i = 0; i < B; ++i) {
      const std::int64_t length = lengths[i];
      if (length < 0 || std::size_t(length) > size[i])
        refuse("lengths: ", std::to_string(length), " of request ", text_of(i),
               " is not between 0 and ", text_of(size[i]));
      size[i] = std::size_t(length);
    }
  }

  const bool flat = ragged || drafts.ndim() == 1;
  const both_rows rows_given(a.q, a.p, a.q_logits, a.p_logits, B, flat ? 2 : 3,
                             flat ? "[rows, V]" : "[B, rows, V]");
  const placed_rows &q = rows_given.q, &p = rows_given.p;
  const std::size_t V = rows_given.vocabulary;

  const std::vector<const policy*> policies = policies_of(a.policies, B);

  // Enough rows: gamma + 1 of p (gamma without a bonus), and as many of q if the policy reads it at
  // the bonus.
  std::size_t rows_of_p = 0, rows_of_q = 0;
  for (std::size_t i = 0; i < B; ++i) {
    const std::size_t need_p = size[i] + a.bonus;
    const std::size_t need_q = size[i] + (a.bonus && policies[i]->known.reads_draft);
    rows_of_p = ragged ? rows_of_p + size[i] + 1 : std::max(rows_of_p, need_p);
    rows_of_q = ragged ? rows_of_q + size[i] : std::max(rows_of_q, need_q);
  }
  const bool any_reads = std::any_of(policies.begin(), policies.end(),
                                     [](const policy* one) { return one->known.reads_draft; });
  const bool q_has_bonus = ragged ? q.most == tokens.size() + B : true;
  if (ragged) {
    if (p.most != tokens.size() + B)
      refuse("p: ", rows_given.p_array.shape_text(), ", where ", text_of(tokens.size() + B),
             " rows are expected: one for each drafted token, and a bonus row after each draft");
    if (!a.q.is_none() && q.most != tokens.size() && !q_has_bonus)
      refuse("q: ", rows_given.q_array.shape_text(), ", where ", text_of(tokens.size()),
             " rows are expected, or ", text_of(tokens.size() + B),
             " with a bonus row after each draft");
  } else if (p.most < rows_of_p) {
    refuse("p: ", text_of(p.most), " rows, where ", text_of(rows_of_p),
           " are needed: one for each drafted token, and one for the bonus (or bonus=False)");
  }
  const bool no_rows = a.q.is_none() || (ragged && !q_has_bonus);  // of q at the bonus
  if (no_rows ? a.bonus && any_reads : !ragged && q.most < rows_of_q) {
    for (std::size_t i = 0; i < B; ++i)
      if (a.bonus && policies[i]->known.reads_draft && (no_rows || q.most < size[i] + 1))
        refuse("q: the policy ", policies[i]->known.name,
               " reads the draft's row at the bonus position, too: give a row after the last "
               "drafted token, or bonus=False");
    refuse("q: ", text_of(q.most), " rows, where ", text_of(rows_of_q), " tokens are drafted");
  }

  const streams numbers(a.seeds, a.requests, a.positions, B);
  const samplings q_sampling(a.q_sampling, B), p_sampling(a.p_sampling, B);
  const edits edit(a.edit, B, V);
  std::vector<engine::edits> edited(B);
  for (std::size_t i = 0; i < B; ++i) edited[i] = edit.of(i, size[i] + a.bonus);

  verified result(B, padded);
  const std::size_t part = specagg::verify_scratch(V, padded);
  std::vector<double> scratch(B * part);
  std::vector<specagg::emission> out(B * (padded + 1));
  std::vector<specagg::draft_acceptance> acceptances(a.acceptances ? B * padded : 0);
  {
    nb::gil_scoped_release released;
    shared_workers().for_each(B, [&](std::size_t i) {
      engine::request r;
      r.drafted = {.tokens = std::span(tokens).subspan(begin[i], size[i]),
                   .start = numbers.position[i],
                   .end_of_text = std::span(a.end_of_text),
                   .bonus = a.bonus};
      r.vocabulary = V;
      const auto rows = [&](const placed_rows& from, bool with_bonus,
                            const specagg::sampling& how) {
        engine::rows mine = from.all;
        mine.sampling = how;
        mine.count = std::min(size[i] + a.bonus, from.most);
        if (from.all.data == nullptr) mine.count = size[i];  // one-hot
        else if (!ragged) mine.data += std::ptrdiff_t(i) * from.request_stride;
        else {
          mine.count = size[i] + (with_bonus && a.bonus);
          mine.data += std::ptrdiff_t(begin[i] + (with_bonus ? i : 0)) * mine.stride;
        }
        return mine;
      };
      r.q = rows(q, q_has_bonus, q_sampling[i]);
      r.p = rows(p, true, p_sampling[i]);
      r.policy = policies[i]->chosen;
      r.edits = edited[i];
      r.seed = numbers.seed[i];
      r.id = numbers.id(i);
      r.out = std::span(out).subspan(i * (padded + 1), size[i] + 1);
      if (a.acceptances)
        r.drafted.acceptances = std::span(acceptances).subspan(i * padded, size[i]);
      r.scratch = std::span(scratch).subspan(i * part, part);
      specagg::verdict v;
      specagg_python_verify(&r, engine::verifier(a.verifier), &v);
      result.keep(i, v, r.out, r.drafted.acceptances.first(a.acceptances ? r.drafted.size() : 0));
    });
  }
  return result;
}

// ---- trees --------------------------------------------------------------------------------------

// A verified batch, and for each request the accepted nodes, from the first to the last.
struct verified_trees : verified {
  std::vector<std::int32_t> paths;  // [B, columns - 1], -1 after the path
  verified_trees(std::size_t B, std::size_t depth) : verified(B, depth), paths(B * depth, -1) {}
  template <class F>
  void for_each_array(F&& f) {
    verified::for_each_array(f);
    f(paths);
  }
};

struct tree_arguments {
  nb::handle tokens, parents, q, p, policies;
  bool recursive;
  int proposed;
  nb::handle seeds, requests, positions;
  bool q_logits, p_logits;
  const sampling& q_sampling;
  const sampling& p_sampling;
  const std::vector<token_id>& end_of_text;
  bool bonus;
};

verified_trees verify_trees(const tree_arguments& a) {
  const array given = array_of(a.tokens, "tokens"), given_parents = array_of(a.parents, "parents");
  const std::vector<token_id> tokens = ids_of(given), above = ids_of(given_parents);
  if (given.ndim() != given_parents.ndim() || tokens.size() != above.size() ||
      given.shape(0) != given_parents.shape(0))
    refuse("parents: ", given_parents.shape_text(), ", where tokens are ", given.shape_text());
  const std::size_t B = given.ndim() == 2 ? given.shape(0) : 1, n = given.shape(given.ndim() - 1);

  // Node i + 1 follows a node before it. Padding follows the text, and is left out.
  std::vector<std::uint32_t> parents(B * n);
  std::vector<std::size_t> depths(n + 1);
  std::size_t depth = 0;
  for (std::size_t i = 0; i < B; ++i)
    for (std::size_t k = 0; k < n; ++k) {
      const token_id parent = tokens[i * n + k] == specagg::no_token ? 0 : above[i * n + k];
      if (parent < 0 || std::size_t(parent) > k)
        refuse("parents: node ", text_of(k + 1), " of request ", text_of(i), " follows node ",
               std::to_string(parent), ", where 0 to ", text_of(k), " may stand");
      parents[i * n + k] = std::uint32_t(parent);
      depths[k + 1] = depths[std::size_t(parent)] + 1;
      depth = std::max(depth, depths[k + 1]);
    }

  const bool flat = given.ndim() == 1;
  const both_rows rows_given(a.q, a.p, a.q_logits, a.p_logits, B, flat ? 2 : 3,
                             flat ? "[nodes + 1, V]" : "[B, nodes + 1, V]");
  const placed_rows &q = rows_given.q, &p = rows_given.p;
  const std::size_t V = rows_given.vocabulary;
  if (!a.q.is_none() && q.most < n + 1)
    refuse("q: ", text_of(q.most), " rows, where ", text_of(n + 1), " are needed");
  if (p.most < n + 1)
    refuse("p: ", text_of(p.most), " rows, where ", text_of(n + 1),
           " are needed: one after the text, and one after each node");
  const std::vector<const policy*> policies = policies_of(a.policies, B);
  for (const policy* one : policies)
    if (a.q.is_none() && one->known.reads_draft)
      refuse("q: the policy ", one->known.name, " reads the draft's rows");

  const streams numbers(a.seeds, a.requests, a.positions, B);
  const samplings q_sampling(a.q_sampling, B), p_sampling(a.p_sampling, B);

  verified_trees result(B, depth);
  const std::size_t part = specagg::verify_scratch(V);
  std::vector<double> scratch(B * part);
  std::vector<specagg::emission> out(B * (depth + 1));
  {
    nb::gil_scoped_release released;
    shared_workers().for_each(B, [&](std::size_t i) {
      engine::tree_request r;
      r.tree = {.tokens = std::span(tokens).subspan(i * n, n),
                .parents = std::span(parents).subspan(i * n, n),
                .start = numbers.position[i],
                .end_of_text = std::span(a.end_of_text),
                .bonus = a.bonus};
      r.vocabulary = V;
      const auto rows = [&](const placed_rows& from, const specagg::sampling& how) {
        engine::rows mine = from.all;
        mine.sampling = how;
        mine.count = n + 1;
        if (mine.data) mine.data += std::ptrdiff_t(i) * from.request_stride;
        return mine;
      };
      r.q = rows(q, q_sampling[i]);
      r.p = rows(p, p_sampling[i]);
      r.proposed = a.proposed;
      r.recursive = a.recursive;
      r.policy = policies[i]->chosen;
      r.seed = numbers.seed[i];
      r.id = numbers.id(i);
      r.out = std::span(out).subspan(i * (depth + 1), depth + 1);
      r.scratch = std::span(scratch).subspan(i * part, part);
      std::vector<std::uint32_t> path(depth + 1);
      specagg::tree_verdict v;
      specagg_python_verify_tree(&r, &v, path.data());
      result.keep(i, v, r.out, {});
      std::copy_n(path.begin(), v.accepted, result.paths.begin() + std::ptrdiff_t(i * depth));
    });
  }
  return result;
}

// Closed forms (plan/acceptance.hpp, plan/speedup.hpp, plan/draft_length.hpp).
void bind_plan(nb::module_ m) {
  namespace plan = specagg::plan;
  const auto check = [](double x, const char* name, double low, double high) {
    if (!(x >= low && x <= high)) refuse(name, ": ", std::to_string(x), " is out of range");
  };
  constexpr double most_drafted = 1e6;
  m.def(
      "expected_tokens",
      [=](double a, std::size_t gamma, bool bonus) {
        check(a, "acceptance", 0, 1);
        check(double(gamma), "gamma", 0, most_drafted);
        return plan::expected_tokens(a, gamma, bonus);
      },
      "acceptance"_a, "gamma"_a, "bonus"_a = true);
  m.def(
      "speedup",
      [=](double a, std::size_t gamma, double c, double v, bool law_reads_draft) {
        check(a, "acceptance", 0, 1);
        check(double(gamma), "gamma", 0, most_drafted);
        check(c, "c", 0, specagg::infinity);
        return plan::speculative_speedup(a, gamma, c, v, law_reads_draft);
      },
      "acceptance"_a, "gamma"_a, "c"_a, "v"_a = 1.0, "law_reads_draft"_a = false);
  m.def(
      "naive_cos_speedup",
      [=](double a, std::size_t gamma, double c, double v) {
        check(a, "acceptance", 0, 1);
        check(double(gamma), "gamma", 1, most_drafted);
        return plan::naive_cos_speedup(a, gamma, c, v);
      },
      "acceptance"_a, "gamma"_a, "c"_a, "v"_a = 1.0);
  m.def(
      "alternating_cos_speedup",
      [=](double a_q, double a_p, std::size_t gamma_q, std::size_t gamma_p, double c, double v_q,
          double v_p) {
        check(a_q, "a_q", 0, 1);
        check(a_p, "a_p", 0, 1);
        check(double(gamma_q), "gamma_q", 1, most_drafted);
        check(double(gamma_p), "gamma_p", 1, most_drafted);
        return plan::rates({a_q, a_p, gamma_q, gamma_p, c, v_q, v_p}).speedup;
      },
      "a_q"_a, "a_p"_a, "gamma_q"_a, "gamma_p"_a, "c"_a, "v_q"_a = 1.0, "v_p"_a = 1.0);
  m.def(
      "best_gamma",
      [=](const std::vector<double>& a, double c, const std::vector<double>& v, double fixed) {
        for (const double x : a) check(x, "acceptances", 0, 1);
        if (!v.empty() && v.size() < a.size() + 1) refuse("v: expected one for each gamma from 0");
        const auto best = plan::best_fixed_draft(
            a, [&](std::size_t g) { return c * double(g) + (v.empty() ? 1.0 : v[g]) + fixed; });
        return nb::make_tuple(best.gamma, best.rate);
      },
      "acceptances"_a, "c"_a, "v"_a = std::vector<double>(), "fixed"_a = 0.0);
  m.def(
      "least_coupled_acceptance",
      [=](double tv) {
        check(tv, "distance", 0, 1);
        return plan::least_coupled_acceptance(tv);
      },
      "distance"_a);
  m.def(
      "ensemble_acceptances",
      [=](double lambda, double tv) {
        check(lambda, "lambda", 0, 1);
        check(tv, "distance", 0, 1);
        const auto both = plan::ensemble_acceptance(lambda, tv);
        return nb::make_tuple(both.q, both.p);
      },
      "lambda_"_a, "distance"_a);
}

}  // namespace

NB_MODULE(_core, m) {
  bind_plan(m.def_submodule("plan"));
  m.def("isa", &specagg_python_isa);
  m.def("set_threads", [](unsigned threads) {
    if (threads < 1 || threads > most_threads)
      refuse("threads: ", text_of(threads), " is not between 1 and ", text_of(most_threads));
    workers& all = shared_workers();
    nb::gil_scoped_release released;  // a call may be at work
    const std::lock_guard lock(all.busy);
    all.wanted = threads;
  });

  nb::class_<policy>(m, "Policy")
      .def("__init__",
           [](policy* self, int line, const std::vector<double>& parameters) {
             new (self) policy{};
             self->chosen.line = line;
             if (!specagg_python_policy(line, &self->known) ||
                 parameters.size() != self->known.count)
               refuse("policy: no such policy");
             std::copy(parameters.begin(), parameters.end(), self->chosen.parameters.begin());
           })
      .def("valid", [](const policy& p) { return specagg_python_valid(&p.chosen); })
      .def_prop_ro("name", [](const policy& p) { return p.known.name; })
      .def_prop_ro("law", [](const policy& p) { return p.known.law; })
      .def_prop_ro("reads_draft", [](const policy& p) { return p.known.reads_draft; })
      .def_prop_ro("values", [](const policy& p) {
        return std::vector<double>(p.chosen.parameters.begin(),
                                   p.chosen.parameters.begin() + std::ptrdiff_t(p.known.count));
      });
  // Every policy: (name, law, reads_draft, [(parameter, low, high, usual, open, flag, word)])
  m.def("policies", [] {
    nb::list all;
    engine::known_policy r;
    for (int i = 0; specagg_python_policy(i, &r); ++i) {
      nb::list parameters;
      for (std::size_t k = 0; k < r.count; ++k) {
        const engine::parameter& one = r.parameters[k];
        parameters.append(nb::make_tuple(one.name, one.low, one.high, one.usual, one.open, one.flag,
                                         one.word ? nb::object(nb::str(one.word)) : nb::none()));
      }
      all.append(nb::make_tuple(r.name, r.law, r.reads_draft, parameters));
    }
    return all;
  });
  int statuses = 0;
  while (specagg::name(specagg::status(statuses)) != std::string_view("unknown")) ++statuses;
  m.attr("status_count") = statuses;
  m.def("status_name", [](int s) { return status_text(std::uint8_t(s)); });
  nb::list origins;
  using enum specagg::origin;
  for (const specagg::origin one : {accepted, residual, bonus})
    origins.append(std::string(specagg::name(one)));
  m.attr("origins") = origins;

  nb::class_<sampling>(m, "Sampling")
      .def(nb::init<nb::object, nb::object, nb::object, nb::object>())
      .def_ro("temperature", &sampling::temperature)
      .def_ro("top_k", &sampling::top_k)
      .def_ro("top_p", &sampling::top_p)
      .def_ro("min_p", &sampling::min_p);
  nb::class_<edit_arguments>(m, "Edits")
      .def(nb::init<nb::object, nb::object, nb::object, nb::object, nb::object>(), "repetition"_a,
           "presence"_a, "frequency"_a, "history"_a.none(), "mask"_a.none());

#define VIEW1(name, member, T)                            \
  def_prop_ro(name, [](nb::handle_t<verified> self) {     \
    verified& v = nb::cast<verified&>(self);              \
    return view1<T>(v.member.data(), {v.requests}, self); \
  })
#define VIEW2(name, member, T, columns)                            \
  def_prop_ro(name, [](nb::handle_t<verified> self) {              \
    verified& v = nb::cast<verified&>(self);                       \
    return view2<T>(v.member.data(), {v.requests, columns}, self); \
  })
  nb::class_<verified>(m, "Verified")
      .VIEW2("tokens", tokens, token_id, v.columns)
      .VIEW1("emitted", emitted, std::int32_t)
      .VIEW1("accepted", accepted, std::int32_t)
      .VIEW1("ended", ended, std::int32_t)
      .VIEW1("statuses", statuses, std::uint8_t)
      .VIEW2("origins", origins, std::int8_t, v.columns)
      .VIEW2("reasons", reasons, std::uint8_t, v.columns)
      .VIEW2("log_pi", log_pi, double, v.columns)
      .VIEW2("log_p", log_p, double, v.columns)
      .VIEW2("acceptance_of_row", of_row, double, v.columns - 1)
      .VIEW2("acceptance_of_token", of_token, double, v.columns - 1)
      .def("__len__", [](const verified& v) { return v.requests; })
      .def("__repr__", [](const verified& v) { return "Verified(" + text_of(v) + ")"; })
      .def("__getstate__", &state_of<verified>)
      .def("__setstate__", &set_state<verified>);
#undef VIEW1
#undef VIEW2
  nb::class_<verified_trees, verified>(m, "VerifiedTrees")
      .def_prop_ro("paths",
                   [](nb::handle_t<verified_trees> self) {
                     verified_trees& v = nb::cast<verified_trees&>(self);
                     return view2<std::int32_t>(v.paths.data(), {v.requests, v.columns - 1}, self);
                   })
      .def("__repr__", [](const verified_trees& v) { return "VerifiedTrees(" + text_of(v) + ")"; })
      .def("__getstate__", &state_of<verified_trees>)
      .def("__setstate__", &set_state<verified_trees>);
  m.def(
      "verify_tree",
      [](nb::handle tokens, nb::handle parents, nb::handle q, nb::handle p, nb::handle policies,
         bool recursive, int proposed, nb::handle seeds, nb::handle requests, nb::handle positions,
         bool q_logits, bool p_logits, const sampling& q_sampling, const sampling& p_sampling,
         const std::vector<token_id>& end_of_text, bool bonus) {
        return verify_trees({tokens, parents, q, p, policies, recursive, proposed, seeds, requests,
                             positions, q_logits, p_logits, q_sampling, p_sampling, end_of_text,
                             bonus});
      },
      "tokens"_a.none(), "parents"_a.none(), "q"_a.none(), "p"_a.none(), "policies"_a,
      "recursive"_a, "proposed"_a, "seeds"_a, "requests"_a.none(), "positions"_a, "q_logits"_a,
      "p_logits"_a, "q_sampling"_a, "p_sampling"_a, "end_of_text"_a, "bonus"_a);

  m.def(
      "verify",
      [](nb::handle drafts, nb::handle q, nb::handle p, nb::handle policies, int verifier,
         nb::handle seeds, nb::handle requests, nb::handle positions, bool q_logits, bool p_logits,
         const sampling& q_sampling, const sampling& p_sampling, const edit_arguments& edit,
         nb::handle lengths, nb::handle offsets, const std::vector<token_id>& end_of_text,
         bool bonus, bool acceptances) {
        return verify({drafts, q, p, policies, verifier, seeds, requests, positions, q_logits,
                       p_logits, q_sampling, p_sampling, edit, lengths, offsets, end_of_text, bonus,
                       acceptances});
      },
      "drafts"_a.none(), "q"_a.none(), "p"_a.none(), "policies"_a, "verifier"_a, "seeds"_a,
      "requests"_a.none(), "positions"_a, "q_logits"_a, "p_logits"_a, "q_sampling"_a,
      "p_sampling"_a, "edits"_a, "lengths"_a.none(), "offsets"_a.none(), "end_of_text"_a, "bonus"_a,
      "acceptances"_a);

  m.def(
      "draw",
      [](nb::handle rows, bool logits, const sampling& how, const edit_arguments& edit,
         nb::handle seeds, nb::handle requests, nb::handle positions, std::uint32_t step,
         bool coupled) {
        const array a = array_of(rows, "rows");
        if (a.ndim() != 1 && a.ndim() != 2)
          refuse("rows: ", a.shape_text(), ", where [V] or [B, V] is expected");
        const std::size_t B = a.ndim() == 2 ? a.shape(0) : 1, V = a.shape(a.ndim() - 1);
        if (V == 0 || V > 0x7fffffff) refuse("rows: have no numbers, or too many");
        const engine::row_kind kind = kind_of(a, logits);
        check_row(a, V);
        const engine::rows all{kind, a.data(), a.ndim() == 2 ? a.stride(0) : 0, B};
        warn_of_probabilities("rows", all, V);
        const streams numbers(seeds, requests, positions, B);
        const samplings sampled(how, B);
        const edits edited(edit, B, V);
        std::vector<engine::edits> edit_of(B);
        for (std::size_t i = 0; i < B; ++i) edit_of[i] = edited.of(i, 1, step);
        auto* tokens = new std::vector<token_id>(B);
        nb::capsule owner(tokens,
                          [](void* x) noexcept { delete static_cast<std::vector<token_id>*>(x); });
        const std::size_t part = specagg::verify_scratch(V);
        std::vector<double> scratch(B * part);
        {
          nb::gil_scoped_release released;
          shared_workers().for_each(B, [&](std::size_t i) {
            engine::draw d;
            d.vocabulary = V;
            d.q = {kind, all.data + std::ptrdiff_t(i) * all.stride, 0, 1, sampled[i]};
            d.edits = edit_of[i];
            d.seed = numbers.seed[i];
            d.id = numbers.id(i);
            d.start = numbers.position[i];
            d.step = step;
            d.coupled = coupled;
            d.scratch = std::span(scratch).subspan(i * part, part);
            (*tokens)[i] = specagg_python_draw(&d);
          });
        }
        return nb::ndarray<nb::numpy, token_id, nb::ndim<1>>(tokens->data(), {B}, owner);
      },
      "rows"_a.none(), "logits"_a, "sampling"_a, "edits"_a, "seeds"_a, "requests"_a.none(),
      "positions"_a, "step"_a, "coupled"_a);

  // (status, acceptance, TV(pi, p), TV(q, p), KL(pi || p)); pi is written if it is given.
  using numbers = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
  m.def("law", [](const policy& p, const numbers& q_row, const numbers& p_row, bool logits,
                  double temperature, std::int64_t top_k, double top_p, double min_p,
                  nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu> pi) {
    const std::size_t V = p_row.shape(0);
    if (q_row.shape(0) != V || pi.shape(0) != V) refuse("q, p: rows of different sizes");
    const auto rows = [&](const numbers& x) {
      return engine::rows{
          logits ? engine::row_kind::logits_f64 : engine::row_kind::probabilities_f64,
          reinterpret_cast<const std::byte*>(x.data()), 0, 1,
          sampling_of(temperature, top_k, top_p, min_p)};
    };
    const engine::pair both{V, rows(q_row), rows(p_row), specagg::no_token, p.chosen};
    warn_of_probabilities("q", both.q, V);
    warn_of_probabilities("p", both.p, V);
    engine::pair_numbers found;
    specagg::status why;
    {
      nb::gil_scoped_release released;
      why = specagg_python_law(&both, pi.data(), &found);
    }
    return nb::make_tuple(int(why), found.acceptance, found.distance_to_target, found.distance,
                          found.divergence);
  });

  m.def("audit", [](const policy& p, int verifier) {
    engine::audit a;
    {
      nb::gil_scoped_release released;
      a = engine::audited(p.chosen, engine::verifier(verifier));
    }
    return nb::make_tuple(a.worst_error, a.pairs, a.undefined, a.passed);
  });

  m.def("goodness_of_fit", [](const numbers& counts, const numbers& law, double false_alarm) {
    if (counts.shape(0) != law.shape(0)) refuse("counts, law: of different sizes");
    specagg::fit f;
    {
      nb::gil_scoped_release released;
      f = specagg::goodness_of_fit(std::span(counts.data(), counts.shape(0)),
                                   std::span(law.data(), law.shape(0)), false_alarm);
    }
    return nb::make_tuple(f.distance, f.expected_distance, f.p_value, f.passed, f.detectable);
  });
}
