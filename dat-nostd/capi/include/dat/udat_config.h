/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* DAT 1.2: the version that a program asks for. */
#ifndef _UDAT_CONFIG_H_
#define _UDAT_CONFIG_H_

#define DAT_VERSION_MAJOR 1
#define DAT_VERSION_MINOR 2

/* As in every DAT 1.2 header: programs ask for a provider that does not promise thread safety. This one is safe all the same. */
#undef DAT_THREADSAFE
#define DAT_THREADSAFE DAT_FALSE

#endif /* _UDAT_CONFIG_H_ */
