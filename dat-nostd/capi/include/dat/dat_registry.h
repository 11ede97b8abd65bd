/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* DAT 1.2: the registry as providers see it. */
#ifndef _DAT_REGISTRY_H_
#define _DAT_REGISTRY_H_

#if defined(_UDAT_H_)
#include <dat/udat_redirection.h>
#elif !defined(_KDAT_H_)
#error "include <dat/udat.h> before <dat/dat_registry.h>"
#endif

#ifdef __cplusplus
extern "C" {
#endif

DAT_RETURN dat_registry_add_provider(const DAT_PROVIDER *provider,
    const DAT_PROVIDER_INFO *provider_info);
DAT_RETURN dat_registry_remove_provider(const DAT_PROVIDER *provider,
    const DAT_PROVIDER_INFO *provider_info);

/* What a provider's library exports. */
#define DAT_PROVIDER_INIT_FUNC_NAME dat_provider_init
#define DAT_PROVIDER_INIT_FUNC_STR "dat_provider_init"
typedef void (*DAT_PROVIDER_INIT_FUNC)(const DAT_PROVIDER_INFO *provider_info, const char *instance_data);

#define DAT_PROVIDER_FINI_FUNC_NAME dat_provider_fini
#define DAT_PROVIDER_FINI_FUNC_STR "dat_provider_fini"
typedef void (*DAT_PROVIDER_FINI_FUNC)(const DAT_PROVIDER_INFO *provider_info);

#ifdef __cplusplus
}
#endif

#endif /* _DAT_REGISTRY_H_ */
