// SPDX-License-Identifier: Apache-2.0
// The model of one site of DRAGON: a model file, and a folder of text that never leaves the site.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include <specagg/backend/cpu/llama.hpp>
#include <specagg/backend/cpu/tokenizer.hpp>
#include <specagg/draft/mapped.hpp>
#include <specagg/format.hpp>
#include <specagg/sites/net/gathered.hpp>
#include <specagg/sites/documents.hpp>

#include "joined_vocabularies.hpp"
#include "llama_cpp_options.hpp"
#include "passages.hpp"
#include "unused.hpp"

namespace cli {

struct site_options {
  std::string model = {}, folder = {};  // no folder: the plain model, h = 0
  std::string vocabulary = {};  // file with the text's tokens, where they are not the model's
  std::size_t documents = 4;    // passages read side by side, at most
  std::size_t rescore = 0;      // relevance is scored again every n tokens; 0: once
  // Nats of relevance per unit of BM25. Held-out text continued by target.gguf, passages of other
  // text of its author, nats a token (64-token prompts, 64-token continuations, 61 of them):
  //   scale         0      0.1    0.3    1      best passage alone   no passage
  //   kjv           3.870  3.870  3.870  3.872  3.874                3.883
  //   shakespeare   3.962  3.962  3.962  3.963  3.966                3.962
  // Small models hardly read their documents; what there is to gain, a wide mixture gains.
  double scale = 0.1;
  std::size_t most = 512;      // tokens of text in a session
  std::size_t prefixes = 256;  // passages whose keys and values are kept
  llama_cpp_options llama_cpp = {};
};

// One session: ln p^s and h as functions of (text, length of the prompt). One thread at a time.
struct site {
  virtual ~site() = default;
  virtual std::size_t vocab_size() const = 0;
  virtual std::size_t capacity() const = 0;  // tokens of text
  virtual unsigned threads() const = 0;
  // The first `prompt` tokens of the text are its prompt (of a shorter one, all).
  virtual void begin(std::size_t prompt) = 0;
  // The rows after each of the last logits.size() / V tokens of the text, V a row: ln p^s. h: of
  // the last row. While `stop`, which another thread may set, is true, it gives up within a layer:
  // status::stopped. Unless it answers ok, logits and h may hold anything. Throws specagg::error
  // where the index cannot be read.
  virtual specagg::status see(std::span<const specagg::token_id> text, std::span<float> logits,
                              double& h, const std::atomic<bool>& stop) = 0;
};

// What the sessions of a process share. Any thread.
struct site_maker {
  virtual ~site_maker() = default;
  virtual std::size_t vocab_size() const = 0;
  virtual specagg::token_id eos() const = 0;
  virtual std::string piece(specagg::token_id token) const = 0;
  virtual std::vector<specagg::token_id> encode(const std::string& text) const = 0;
  virtual std::size_t passage_count() const = 0;
  // From the model's tokens to the text's; null where they are the same.
  virtual const specagg::vocabulary_map* map() const = 0;
  // A session for texts of up to `most` tokens. threads: as many as can be had. Throws
  // specagg::error.
  virtual std::shared_ptr<site> make(std::size_t most, unsigned threads) = 0;
};
// Throws specagg::error.
std::shared_ptr<site_maker> make_cpu_site_maker(const site_options& options);
std::shared_ptr<site_maker> make_llama_cpp_site_maker(const site_options& options);

// A model file and how sessions of it are made. Other kinds have the same members.
struct cpu_sites {
  using llama = specagg::cpu::llama;
  // A LogitSource that can be moved. What waits of all sessions is scored in one call; as many
  // calls run side by side as there are processors for.
  using source = specagg::net::gathered_source<llama>;
  using saved = std::shared_ptr<const llama>;  // its keys and values
  const std::shared_ptr<const specagg::cpu::llama_weights> weights;
  const specagg::cpu::tokenizer tokens;
  const std::shared_ptr<specagg::net::gathering<llama>> calls =
      std::make_shared<specagg::net::gathering<llama>>();

  explicit cpu_sites(const site_options& o)
      : weights(std::make_shared<const specagg::cpu::llama_weights>(
            specagg::cpu::gguf_file::open(o.model))),
        tokens(weights->file) {}
  static specagg::cpu::tokenizer read_tokens(const std::string& file) {
    return specagg::cpu::tokenizer(specagg::cpu::gguf_file::open(file));
  }
  std::size_t vocab() const { return weights->vocab; }
  // pool: none means one thread.
  source make(std::size_t room, const std::shared_ptr<specagg::thread_pool>& pool) const {
    const unsigned threads = pool ? pool->threads() : 1;
    calls->allow(std::max(1u, std::thread::hardware_concurrency() / threads));
    return source(llama(weights, pool, room), calls);
  }
  // Room for what it holds, and no threads. Null: it cannot be saved.
  saved save(const source& of) const {
    auto copy = std::make_shared<llama>(weights, nullptr, of.position());
    return copy->adopt(of.source()) == specagg::status::ok ? copy : nullptr;
  }
  specagg::status restore(source& to, const saved& from) const { return to.source().adopt(*from); }
};

// Sites of a Kind over the vocabulary of another file: the model reads the text in its own tokens,
// and its rows are mapped (docs/vocabularies.md). Documents are tokens of the text, too.
template <class Kind>
struct mapped_sites {
  using tokenizer = std::remove_const_t<decltype(Kind::tokens)>;
  using encoder = specagg::cpu::inside_encoder<tokenizer>;
  struct source {
    using value_type = float;
    struct parts {
      typename Kind::source model;
      specagg::retokenising_source<typename Kind::source, encoder> reader;
      specagg::mapped_source<decltype(reader)> rows;
      parts(typename Kind::source&& m, const joined_vocabularies& joined, const tokenizer& own)
          : model(std::move(m)), reader(model, joined.no_text(own)), rows(reader, joined.map) {}
    };
    std::unique_ptr<parts> of;  // a reader knows where its model is
    std::size_t vocab_size() const { return of->rows.vocab_size(); }
    std::size_t capacity() const { return of->rows.capacity(); }
    std::size_t position() const { return of->rows.position(); }
    specagg::status extend(std::span<const specagg::token_id> more, std::span<float> logits) {
      return of->rows.extend(more, logits);
    }
    specagg::status rollback(std::size_t position) { return of->rows.rollback(position); }
    void stop_when(const std::atomic<bool>* flag) { of->model.stop_when(flag); }
  };
  struct saved_text {
    typename Kind::saved model;
    typename specagg::retokenising_source<typename Kind::source, encoder>::state text;
  };
  using saved = std::shared_ptr<const saved_text>;
  const Kind model;
  const tokenizer tokens;  // of the text
  const joined_vocabularies joined;

  explicit mapped_sites(const site_options& o)
      : model(o), tokens(Kind::read_tokens(o.vocabulary)), joined(model.tokens, tokens) {}
  std::size_t vocab() const { return tokens.size(); }
  // A text has more own tokens than tokens, or fewer: there is room for four times as many, as far
  // as the model has it.
  source make(std::size_t room, const std::shared_ptr<specagg::thread_pool>& pool) const {
    return {
        std::make_unique<typename source::parts>(model.make(4 * room, pool), joined, model.tokens)};
  }
  saved save(const source& of) const {
    auto copy = model.save(of.of->model);
    return copy ? std::make_shared<const saved_text>(
                      saved_text{std::move(copy), of.of->reader.save()})
                : nullptr;
  }
  specagg::status restore(source& to, const saved& from) const {
    const specagg::status s = model.restore(to.of->model, from->model);
    if (s == specagg::status::ok) to.of->reader.resume(from->text);
    return s;
  }
};

// Weights, index, and the keys and values of the passages last read. Any thread.
template <class Kind>
class site_library_of : public Kind {
 public:
  // Throws specagg::error.
  explicit site_library_of(const site_options& o)
      : Kind(o),
        options(o),
        texts(o.folder.empty() ? std::nullopt
                               : std::optional<passages>(std::in_place, o.folder, this->tokens)) {}

  const site_options options;
  const std::optional<passages> texts;
  const std::vector<specagg::token_id> unused = unused_tokens(this->tokens);  // never drawn

  // A session's that has read the passage: null if none is kept.
  typename Kind::saved prefix(std::uint32_t passage) {
    const std::lock_guard lock(mutex_);
    const auto it = at_.find(passage);
    if (it == at_.end()) return nullptr;
    recent_.splice(recent_.begin(), recent_, it->second);
    return it->second->second;
  }
  // Keeps a copy of one, for the one that was asked for least recently.
  void keep(std::uint32_t passage, const typename Kind::source& session) {
    ++prefixes_computed;
    auto copy = this->save(session);
    if (!copy) return;
    const std::lock_guard lock(mutex_);
    if (options.prefixes == 0 || at_.contains(passage)) return;
    if (recent_.size() == options.prefixes) {
      at_.erase(recent_.back().first);
      recent_.pop_back();
    }
    recent_.emplace_front(passage, std::move(copy));
    at_[passage] = recent_.begin();
  }
  std::atomic<std::size_t> prefixes_computed = 0;

 private:
  using kept = std::pair<std::uint32_t, typename Kind::saved>;
  std::mutex mutex_;
  std::list<kept> recent_;  // first: last asked for
  std::unordered_map<std::uint32_t, typename std::list<kept>::iterator> at_;
};

// A site. Of cpu_sites, what it answers is a function of text and prompt, not of what it was asked
// before; rows of llama.cpp depend on the calls that computed them, but with exact batches. Memory:
// for each document keys and values of 66 + options.most tokens; of four times as many where the
// model has other tokens than the text.
//
// Each of the passages found is read as "<begin> passage <newline>", and the text goes on after
// that (without the newline, with two, or with a second begin: the same likelihoods within 0.001
// nats). The query is the prompt's last 64 tokens, relevance R = scale x BM25. Every `rescore`
// tokens, R is scored anew for the last 64 tokens of the text so far; the passages stay those of
// the prompt. Where the query finds nothing, the plain model reads the text and h = 0: the passage
// of relevance 0.
template <class Kind>
class site_model_of final : public site {
 public:
  using library = site_library_of<Kind>;
  using source = typename Kind::source;
  // threads: as many as can be had. most: tokens of text, otherwise options.most. Throws
  // specagg::error.
  explicit site_model_of(std::shared_ptr<library> of, unsigned threads = 1, std::size_t most = 0)
      : library_(std::move(of)), pool_(std::make_shared<specagg::thread_pool>(threads)) {
    const auto& o = library_->options;
    const std::size_t documents = library_->texts ? std::max<std::size_t>(o.documents, 1) : 1;
    side_by_side_ = documents >= pool_->threads();
    newline_ = tokens().encode("\n").back();
    const std::size_t room = library_->texts ? 2 + passages::length : 0;
    sources_.reserve(documents);
    for (std::size_t d = 0; d < documents; ++d)
      sources_.push_back(
          library_->make(room + (most ? most : o.most), side_by_side_ ? nullptr : pool_));
    if (sources_[0].capacity() <= room)
      throw specagg::error(o.model, "",
                           fmt::format("its context of {} tokens has no room for a passage",
                                       sources_[0].capacity()));
    capacity_ = sources_[0].capacity() - room;
  }

  std::size_t vocab_size() const override { return library_->vocab(); }
  std::size_t capacity() const override { return capacity_; }
  unsigned threads() const override { return pool_->threads(); }
  const auto& tokens() const { return library_->tokens; }
  const std::vector<std::uint32_t>& documents() const { return ids_; }  // read now
  void begin(std::size_t prompt) override { prompt_ = prompt; }

  specagg::status see(std::span<const specagg::token_id> text, std::span<float> logits, double& h,
                      const std::atomic<bool>& stop) override {
    using specagg::status;
    const std::size_t rows = logits.size() / vocab_size();
    if (rows > text.size() || logits.size() != rows * vocab_size())
      return status::invalid_parameter;
    if (text.size() > capacity_) return status::context_full;
    for (auto& s : sources_) s.stop_when(&stop);
    const auto query = last_of(text.first(std::min(prompt_, text.size())));
    if (!mixture_ || !std::equal(query.begin(), query.end(), query_.begin(), query_.end()))
      if (const status s = retrieve(query); s != status::ok) return s;

    relevance_.clear();
    for (std::size_t row = 0; row < rows; ++row) {
      const std::size_t size = text.size() - rows + 1 + row, n = library_->options.rescore;
      const std::size_t again = n == 0 || size <= prompt_ ? 0 : (size - prompt_) / n * n;
      score(again == 0 ? query : last_of(text.first(prompt_ + again)));
      relevance_.insert(relevance_.end(), scores_.begin(), scores_.end());
    }

    text_.assign(text.begin(), text.end());
    if (!ids_.empty()) {  // after a passage there is a line's end instead of a text's begin
      if (!text_.empty() && text_.front() == tokens().bos()) text_.front() = newline_;
      else text_.insert(text_.begin(), newline_);
    }
    h_.resize(rows);
    const status s =
        mixture_->see(text_, relevance_, logits, h_,
                      [&](std::size_t count, const auto& body) { for_each(count, body); });
    for (std::size_t row = 0; row < rows; ++row)
      mask(logits.subspan(row * vocab_size(), vocab_size()), library_->unused);
    if (!h_.empty()) h = h_.back();
    return s;
  }

 private:
  static constexpr std::size_t rows_at_once = 8;
  // What a query is made of.
  static std::span<const specagg::token_id> last_of(std::span<const specagg::token_id> text) {
    return text.last(std::min(text.size(), passages::length));
  }
  template <class Body>
  void for_each(std::size_t count, const Body& body) {
    if (!side_by_side_) return specagg::sites::in_order{}(count, body);
    pool_->for_ranges(count, 1, [&](std::size_t begin, std::size_t end) {
      for (auto i = begin; i < end; ++i) body(i);
    });
  }

  // The documents of a query, read.
  specagg::status retrieve(std::span<const specagg::token_id> query) {
    using specagg::status;
    mixture_.reset();
    query_.assign(query.begin(), query.end());
    scored_.clear();
    scores_.clear();
    if (library_->texts) ids_ = library_->texts->find(tokens().decode(query), sources_.size());
    for (auto& s : sources_)
      if (const status why = s.rollback(0); why != status::ok) return why;
    std::vector<std::vector<specagg::token_id>> unread(ids_.size());
    for (std::size_t d = 0; d < ids_.size(); ++d) {
      if (const auto kept = library_->prefix(ids_[d]))
        if (const status s = library_->restore(sources_[d], kept); s == status::ok) continue;
      unread[d] = library_->texts->tokens(ids_[d]);
      if (tokens().bos() != specagg::no_token) unread[d].insert(unread[d].begin(), tokens().bos());
    }
    std::vector<status> why(ids_.size());
    for_each(ids_.size(), [&](std::size_t d) { why[d] = sources_[d].extend(unread[d], {}); });
    for (std::size_t d = 0; d < ids_.size(); ++d)
      if (why[d] == status::ok && !unread[d].empty()) library_->keep(ids_[d], sources_[d]);
    // a passage may have too many tokens of a model that has others than the text: left out
    std::size_t fit = 0;
    for (std::size_t d = 0; d < ids_.size(); ++d) {
      if (why[d] == status::context_full) continue;
      if (why[d] != status::ok) return why[d];
      std::swap(ids_[fit], ids_[d]);
      std::swap(sources_[fit], sources_[d]);
      ++fit;
    }
    ids_.resize(fit);
    mixture_.emplace(std::span(sources_).first(std::max<std::size_t>(ids_.size(), 1)),
                     rows_at_once);
    return status::ok;
  }
  // scores_: R of each document for a query, 0 for the one that is none.
  void score(std::span<const specagg::token_id> query) {
    if (!scores_.empty() && std::equal(query.begin(), query.end(), scored_.begin(), scored_.end()))
      return;
    scores_ = ids_.empty() ? std::vector<double>(1)
                           : library_->texts->scores(tokens().decode(query), ids_);
    for (double& r : scores_) r *= library_->options.scale;
    scored_.assign(query.begin(), query.end());
  }

  std::shared_ptr<library> library_;
  std::shared_ptr<specagg::thread_pool> pool_;
  bool side_by_side_;  // documents in parallel; else the threads share each document's matrices
  std::size_t capacity_ = 0, prompt_ = 0;
  specagg::token_id newline_;
  std::vector<source> sources_;
  std::vector<std::uint32_t> ids_;
  // of the first ids_.size() sources, or one
  std::optional<specagg::sites::document_mixture<source>> mixture_;
  // of the mixture; of scores_; as the mixture sees it
  std::vector<specagg::token_id> query_, scored_, text_;
  std::vector<double> scores_, relevance_, h_;
};

template <class Kind>
struct site_maker_of final : site_maker {
  const std::shared_ptr<site_library_of<Kind>> library;
  explicit site_maker_of(const site_options& o)
      : library(std::make_shared<site_library_of<Kind>>(o)) {}
  std::size_t vocab_size() const override { return library->vocab(); }
  specagg::token_id eos() const override { return library->tokens.eos(); }
  std::string piece(specagg::token_id token) const override { return library->tokens.piece(token); }
  std::vector<specagg::token_id> encode(const std::string& text) const override {
    return library->tokens.encode(text);
  }
  std::size_t passage_count() const override { return library->texts ? library->texts->size() : 0; }
  const specagg::vocabulary_map* map() const override {
    if constexpr (requires { library->joined; }) return &library->joined.map;
    else return nullptr;
  }
  std::shared_ptr<site> make(std::size_t most, unsigned threads) override {
    return std::make_shared<site_model_of<Kind>>(library, threads, most);
  }
};

// Sites over the text's vocabulary: mapped if that is not the model's. Throws specagg::error.
template <class Kind>
std::shared_ptr<site_maker> make_site_maker(const site_options& o) {
  if (o.vocabulary.empty() ||
      Kind::read_tokens(o.vocabulary).hash() == Kind::read_tokens(o.model).hash())
    return std::make_shared<site_maker_of<Kind>>(o);
  auto made = std::make_shared<site_maker_of<mapped_sites<Kind>>>(o);
  if (made->map()->size() == 0)
    throw specagg::error(o.model, "", "has no token in common with " + o.vocabulary);
  return made;
}

using site_library = site_library_of<cpu_sites>;
using site_model = site_model_of<cpu_sites>;
extern template class site_library_of<cpu_sites>;
extern template class site_model_of<cpu_sites>;

}  // namespace cli
