// SPDX-License-Identifier: Apache-2.0
#include "site_model.hpp"

namespace cli {

template class site_library_of<cpu_sites>;
template class site_model_of<cpu_sites>;

}  // namespace cli
