/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* DAT 1.2: this provider adds nothing here. */
#ifndef _UDAT_VENDOR_SPECIFIC_H_
#define _UDAT_VENDOR_SPECIFIC_H_
#endif /* _UDAT_VENDOR_SPECIFIC_H_ */
