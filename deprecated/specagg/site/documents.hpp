// SPDX-License-Identifier: Apache-2.0
// The place of sites/documents.hpp before version 0.3.
#pragma once
#include <specagg/sites/documents.hpp>

SPECAGG_MOVED("specagg: <specagg/site/documents.hpp> is <specagg/sites/documents.hpp> since 0.3")
