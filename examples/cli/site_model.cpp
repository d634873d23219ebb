// SPDX-License-Identifier: Apache-2.0
#include "site_model.hpp"

#include <algorithm>

#include <specagg/format.hpp>

namespace cli {

using namespace specagg;

namespace {
// What a query is made of.
std::span<const token_id> last_of(std::span<const token_id> text) {
  return text.last(std::min(text.size(), passages::length));
}
}  // namespace

site_library::site_library(const site_options& o)
    : options(o),
      weights(std::make_shared<const cpu::llama_weights>(cpu::gguf_file::open(o.model))),
      tokens(weights->file),
      texts(o.folder.empty() ? std::nullopt : std::optional<passages>(std::in_place, o.folder, tokens)) {}

std::shared_ptr<const cpu::llama> site_library::prefix(std::uint32_t passage) {
  const std::lock_guard lock(mutex_);
  const auto it = at_.find(passage);
  if (it == at_.end()) return nullptr;
  recent_.splice(recent_.begin(), recent_, it->second);
  return it->second->second;
}

void site_library::keep(std::uint32_t passage, const cpu::llama& session) {
  ++prefixes_computed;
  // Room for what it holds, and no threads.
  auto copy = std::make_shared<cpu::llama>(weights, nullptr, session.position());
  if (copy->adopt(session) != status::ok) return;
  const std::lock_guard lock(mutex_);
  if (options.prefixes == 0 || at_.contains(passage)) return;
  if (recent_.size() == options.prefixes) at_.erase(recent_.back().first), recent_.pop_back();
  recent_.emplace_front(passage, std::move(copy));
  at_[passage] = recent_.begin();
}

site_model::site_model(std::shared_ptr<site_library> library, unsigned threads)
    : library_(std::move(library)), pool_(std::make_shared<cpu::thread_pool>(threads)) {
  const auto& o = library_->options;
  const std::size_t documents = library_->texts ? std::max<std::size_t>(o.documents, 1) : 1;
  side_by_side_ = documents >= pool_->threads();
  newline_ = tokens().encode("\n").back();
  const std::size_t room = library_->texts ? 2 + passages::length : 0;
  sources_.reserve(documents);
  for (std::size_t d = 0; d < documents; ++d)
    sources_.emplace_back(library_->weights, side_by_side_ ? nullptr : pool_, room + o.most);
  if (sources_[0].capacity() <= room)
    throw error(o.model, "", fmt::format("its context of {} tokens has no room for a passage", sources_[0].capacity()));
  capacity_ = sources_[0].capacity() - room;
}

template <class Body>
void site_model::for_each(std::size_t count, const Body& body) {
  if (!side_by_side_) return in_order{}(count, body);
  pool_->for_ranges(count, 1, [&](std::size_t begin, std::size_t end) {
    for (auto i = begin; i < end; ++i) body(i);
  });
}

// The documents of a query, read.
status site_model::retrieve(std::span<const token_id> query) {
  mixture_.reset();
  query_.assign(query.begin(), query.end());
  scored_.clear(), scores_.clear();
  if (library_->texts) ids_ = library_->texts->find(tokens().decode(query), sources_.size());
  for (auto& s : sources_) s.rollback(0);
  std::vector<std::vector<token_id>> unread(ids_.size());
  for (std::size_t d = 0; d < ids_.size(); ++d) {
    if (const auto kept = library_->prefix(ids_[d]))
      if (const status s = sources_[d].adopt(*kept); s == status::ok) continue;
    unread[d] = library_->texts->tokens(ids_[d]);
    if (tokens().bos() != no_token) unread[d].insert(unread[d].begin(), tokens().bos());
  }
  std::vector<status> why(ids_.size());
  for_each(ids_.size(), [&](std::size_t d) { why[d] = sources_[d].extend(unread[d], {}); });
  for (std::size_t d = 0; d < ids_.size(); ++d)
    if (why[d] == status::ok && !unread[d].empty()) library_->keep(ids_[d], sources_[d]);
  for (const status s : why)
    if (s != status::ok) return s;
  mixture_.emplace(std::span(sources_).first(std::max<std::size_t>(ids_.size(), 1)), rows_at_once);
  return status::ok;
}

status site_model::see(std::span<const token_id> text, std::span<float> logits, double& h,
                       const std::atomic<bool>& stop) {
  const std::size_t rows = logits.size() / vocab_size();
  if (rows > text.size() || logits.size() != rows * vocab_size()) return status::invalid_parameter;
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
  if (!ids_.empty()) {  // behind a passage there is a line's end instead of a text's begin
    if (!text_.empty() && text_.front() == tokens().bos()) text_.front() = newline_;
    else text_.insert(text_.begin(), newline_);
  }
  h_.resize(rows);
  const status s = mixture_->see(text_, relevance_, logits, h_,
                                 [&](std::size_t count, const auto& body) { for_each(count, body); });
  if (!h_.empty()) h = h_.back();
  return s;
}

// scores_: R of each document for a query, 0 for the one that is none.
void site_model::score(std::span<const token_id> query) {
  if (!scores_.empty() && std::equal(query.begin(), query.end(), scored_.begin(), scored_.end())) return;
  scores_ = ids_.empty() ? std::vector<double>(1) : library_->texts->scores(tokens().decode(query), ids_);
  for (double& r : scores_) r *= library_->options.scale;
  scored_.assign(query.begin(), query.end());
}

}  // namespace cli
