/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* OpenFabrics' extensions of DAT 2.0. <dat2/udat.h> has them already. */
#include <dat2/udat.h>
