// SPDX-License-Identifier: Apache-2.0
// What the bindings take of Python: arrays where they are, numbers and policies of each request,
// and the threads that work on them. Nothing here depends on the instruction set.
#pragma once
#if __has_include(<pthread.h>)
#include <pthread.h>
#endif

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <specagg/policy/policy.hpp>
#include <specagg/thread_pool.hpp>

#include "engine.hpp"

namespace python {

namespace nb = nanobind;
using namespace nb::literals;
using specagg::token_id;

template <class... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  std::string text;
  ((text += parts), ...);
  throw nb::value_error(text.c_str());
}
inline std::string text_of(std::size_t n) { return std::to_string(n); }

// ---- the pool -----------------------------------------------------------------------------------

inline constexpr unsigned most_threads = 1024;

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
inline workers* all_workers = nullptr;
inline workers& shared_workers() {
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
[[noreturn]] inline void refuse_memory(nb::handle x, const char* name) {
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

// An array whose memory does not have its values: torch negates or conjugates them when they are
// read (Tensor.imag makes such), and a mask is not in it.
inline void refuse_lazy(nb::handle x, const char* name) {
  static PyObject* const plain =
      nb::object(nb::module_::import_("numpy").attr("ndarray")).release().ptr();
  if (x.type().is(plain)) return;  // most are, and a look for what is not there takes a microsecond
  const auto has = [&](const char* one) { return PyObject_HasAttrString(x.ptr(), one) == 1; };
  if (has("hardmask") || has("get_mask"))  // of numpy.ma, of torch.masked
    refuse(name,
           ": is a masked array, and its mask would be ignored; give its data, and what is "
           "masked by mask= or by -inf");
  for (const char* bit : {"is_neg", "is_conj"})
    if (has(bit) && nb::cast<bool>(nb::getattr(x, bit)()))
      refuse(name, ": is a view that torch negates or conjugates when it is read: give ", name,
             ".resolve_neg() or ", name, ".resolve_conj()");
}

inline array array_of(nb::handle x, const char* name) {
  refuse_lazy(x, name);
  array a{{}, name};
  if (!nb::try_cast<any_array>(x, a.given) || a.given.device_type() != nb::device::cpu::value)
    refuse_memory(x, name);
  if (a.given.size() > 0 && a.data() == nullptr)
    refuse(name, ": has no memory (one of torch's fake tensors, or one of zeros)");
  if (a.element() > 0 && reinterpret_cast<std::uintptr_t>(a.data()) % a.element() != 0)
    refuse(name, ": its memory is not aligned");
  return a;
}

inline engine::row_kind kind_of(const array& a, bool logits) {
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
inline void warn_of_probabilities(const std::string& name, const engine::rows& all,
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
inline void check_row(const array& a, std::size_t vocabulary) {
  const std::size_t last = a.ndim() - 1;
  if (a.shape(last) != vocabulary)
    refuse(a.name, ": rows have ", text_of(a.shape(last)), " numbers, where those of p have ",
           text_of(vocabulary));
  if (vocabulary > 1 && a.given.size() > 0 && a.given.stride(last) != 1)
    refuse(a.name, ": the numbers of a row must be side by side in memory (last stride ",
           std::to_string(a.given.stride(last)), ")");
}

// Token ids, as int32. What does not fit becomes an id outside every vocabulary.
inline std::vector<token_id> ids_of(const array& a) {
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

// A policy, which owns what `chosen` views. Its parts, policies too, are kept alive.
struct policy {
  engine::policy chosen;
  engine::known_policy known{};
  std::vector<double> values;
  std::vector<nb::object> parts;
  std::vector<token_id> open, close;

  policy(int line, std::vector<double> parameters, std::vector<nb::object> of,
         std::vector<token_id> open_ids, std::vector<token_id> close_ids)
      : values(std::move(parameters)),
        parts(std::move(of)),
        open(std::move(open_ids)),
        close(std::move(close_ids)) {
    for (const nb::object& one : parts)
      chosen_parts_.push_back(nb::cast<const policy&>(one).chosen);
    chosen = {line, values, chosen_parts_.data(), chosen_parts_.size(), open, close};
    if (!specagg_engine_policy(line, &known) || values.size() != known.count ||
        (line == engine::phase && parts.size() != 2))
      refuse("policy: no such policy");
  }
  policy(const policy&) = delete;

  // Whether a text has a state that calls carry on.
  bool has_state() const { return known.of_text && chosen.line != engine::by_position; }
  // Whether x may be its state (policy/stateful.hpp).
  void check_state(double x, const std::string& whose = "") const {
    const bool flag = chosen.line == engine::phase;
    if (!has_state() || (flag ? x == 0 || x == 1 : x >= 0 && specagg::is_finite(x))) return;
    refuse("state: ", whose, nb::repr(nb::float_(x)).c_str(), " is no state of ", known.name,
           ": expected ", flag ? "0 or 1" : "a finite number of at least 0");
  }

 private:
  std::vector<engine::policy> chosen_parts_;
};

// As the catalogue writes it: "lossy:alpha=0.2,beta=exact".
inline std::string text_of(const policy& one) {
  std::string text = one.known.name;
  for (std::size_t k = 0; k < one.known.count; ++k) {
    const engine::parameter named = specagg_engine_parameter(one.chosen.line, k);
    const double x = one.values[k];
    const nb::object number = nb::float_(x);
    text += (k ? "," : ":") + std::string(named.name) + "=" +
            (named.word && x == named.usual ? named.word : nb::repr(number).c_str());
  }
  return text;
}

struct sampling {
  nb::object temperature, top_k, top_p, min_p;
  int order;  // of enum filter_order, for all requests
};

inline specagg::sampling sampling_of(double temperature, std::int64_t top_k, double top_p,
                                     double min_p, int order) {
  return {top_k < 0 ? -1.0 : temperature,  // refused: invalid_parameter
          std::uint32_t(std::clamp<std::int64_t>(top_k, 0, 0xffffffff)), top_p, min_p,
          specagg::filter_order(order)};
}

// The values for each request.
struct samplings {
  per_request<double> temperature;
  per_request<std::int64_t> top_k;
  per_request<double> top_p, min_p;
  int order;
  samplings(const sampling& s, std::size_t requests)
      : temperature(s.temperature, "temperature", requests),
        top_k(s.top_k, "top_k", requests),
        top_p(s.top_p, "top_p", requests),
        min_p(s.min_p, "min_p", requests),
        order(s.order) {}
  specagg::sampling operator[](std::size_t i) const {
    return sampling_of(temperature[i], top_k[i], top_p[i], min_p[i], order);
  }
};

// One byte for each token, 0 or not, of every row: bool or uint8 [V], [B, V] or [B, rows, V].
struct token_flags {
  array given;
  bool any = false;
  token_flags(nb::handle x, const char* name, std::size_t requests, std::size_t vocabulary) {
    if (x.is_none()) return;
    given = array_of(x, name);
    if (!given.is(nb::dlpack::dtype_code::Bool, 8) && !given.is(nb::dlpack::dtype_code::UInt, 8))
      throw nb::type_error((given.name + ": expected bool or uint8").c_str());
    if (given.ndim() < 1 || given.ndim() > 3)
      refuse(name, ": expected [V], [B, V] or [B, rows, V]");
    check_row(given, vocabulary);
    if (given.ndim() > 1 && given.shape(0) != requests)
      refuse(name, ": ", text_of(given.shape(0)), " masks for ", text_of(requests), " requests");
    any = true;
  }
  // Those of `rows` rows of request i, from row `first` on; and the bytes from one to the next.
  std::pair<const std::uint8_t*, std::ptrdiff_t> of(std::size_t i, std::size_t rows,
                                                    std::size_t first = 0) const {
    if (!any) return {nullptr, 0};
    auto* at = reinterpret_cast<const std::uint8_t*>(given.data());
    if (given.ndim() > 1) at += std::ptrdiff_t(i) * given.stride(0);
    if (given.ndim() < 3) return {at, 0};
    if (given.shape(1) < first + rows)
      refuse(given.name, ": ", given.shape_text(), ", where ", text_of(first + rows),
             " rows are needed");
    return {at + std::ptrdiff_t(first) * given.stride(1), given.stride(1)};
  }
};

struct edit_arguments {
  nb::object repetition, presence, frequency, history, mask;
};

// Masks, and penalties with their texts, of every request.
struct edits {
  per_request<double> repetition, presence, frequency;
  std::vector<std::vector<token_id>> history;
  token_flags mask;
  edits(const edit_arguments& e, std::size_t requests, std::size_t vocabulary)
      : repetition(e.repetition, "repetition", requests),
        presence(e.presence, "presence", requests),
        frequency(e.frequency, "frequency", requests),
        mask(e.mask, "mask", requests, vocabulary) {
    if (!e.history.is_none()) {
      for (nb::handle text : e.history) {
        array a = array_of(text, "history");
        if (a.ndim() != 1) refuse("history: expected one text (one dimension) for each request");
        history.push_back(ids_of(a));
      }
      if (history.size() != requests)
        refuse("history: ", text_of(history.size()), " texts for ", text_of(requests), " requests");
    }
  }
  // Of `rows` rows of request i, from row `first` on. A mask of each row has as many.
  engine::edits of(std::size_t i, std::size_t rows, std::size_t first = 0) const {
    engine::edits e;
    e.penalties = {repetition[i], presence[i], frequency[i]};
    if (!history.empty()) e.history = history[i];
    std::tie(e.mask, e.mask_stride) = mask.of(i, rows, first);
    return e;
  }
};

// Where the rows of each request are: [B, rows, V], or [all rows, V] one request after the other.
struct placed_rows {
  engine::rows all;  // of request 0, if there are as many for each
  std::size_t most = 0;
  std::ptrdiff_t request_stride = 0;
};

inline placed_rows place(const array& a, bool logits, std::size_t B, std::size_t vocabulary) {
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

// The bonus of each request, from the numbers of _bonus() in _verify.py: -1 none, -2 from pi, -3
// from the target's row, else a token.
inline std::vector<specagg::bonus_choice> bonuses_of(nb::handle given, std::size_t B,
                                                     std::size_t vocabulary) {
  const per_request<std::int64_t> choices(given, "bonus", B);
  std::vector<specagg::bonus_choice> bonuses(B);
  for (std::size_t i = 0; i < B; ++i) {
    const std::int64_t choice = choices[i];
    const bool known = choice >= 0 && std::size_t(choice) < vocabulary;
    if (choice == -1) bonuses[i] = false;
    else if (choice == -3) bonuses[i] = specagg::bonus_choice::target();
    else if (choice != -2) bonuses[i] = specagg::bonus_choice::given(known ? token_id(choice) : -2);
  }
  return bonuses;
}

// The policy of each request, from one for all or a list.
inline std::vector<const policy*> policies_of(nb::handle given, std::size_t B) {
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

}  // namespace python
