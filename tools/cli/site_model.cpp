// SPDX-License-Identifier: Apache-2.0
#include "site_model.hpp"

namespace cli {

template class site_library_of<cpu_sites>;
template class site_model_of<cpu_sites>;

std::shared_ptr<site_maker> make_cpu_site_maker(const site_options& o) {
  return make_site_maker<cpu_sites>(o);
}

}  // namespace cli
