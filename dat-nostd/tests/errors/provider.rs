//! The registry (uDAPL 1.2, DAT registry). It is no part of an adapter, so its own state is compared here, and the adapter's
//! by the runner.

use crate::bench::Bench;
use crate::common::Node;
use crate::registry::{Call, Row, impossible, refused, refused_as, succeeds};
use crate::tests;
use dat_nostd::ReturnType::*;
use dat_nostd::*;

const PLACES: usize = 3;
const BLANK: ProviderInfo<'static> = ProviderInfo::new("");

/// A call on a registry that has `names` in it. If it is refused, the registry has to be as it was.
fn on(
    method: &'static str,
    names: &'static [&'static str],
    call: impl FnOnce(&mut Registry<'_, 'static>, &mut Node) -> DatResult<()> + 'static,
) -> Call {
    Call::new(method, move |adapter| {
        let mut entries = [RegistryEntry::EMPTY; PLACES];
        let mut registry = Registry::new(&mut entries);
        for name in names {
            registry.registry_add_provider(adapter, ProviderInfo::new(name)).unwrap();
        }
        let before = listed(&registry);
        let result = call(&mut registry, adapter);
        assert!(result.is_ok() || listed(&registry) == before, "the registry has changed");
        result
    })
}

/// All providers.
fn listed(registry: &Registry<'_, 'static>) -> Vec<ProviderInfo<'static>> {
    let mut count = 0;
    let _ = registry.registry_list_providers(&mut [], &mut count);
    let mut list = vec![BLANK; count];
    if count > 0 {
        registry.registry_list_providers(&mut list, &mut count).unwrap();
    }
    list
}

/// A call that has to succeed, on a registry with these names.
fn done(
    b: &mut Bench,
    method: &'static str,
    names: &'static [&'static str],
    call: impl FnOnce(&mut Registry<'_, 'static>, &mut Node) -> DatResult<()>,
) {
    let mut entries = [RegistryEntry::EMPTY; PLACES];
    let mut registry = Registry::new(&mut entries);
    for name in names {
        registry.registry_add_provider(b.a(), ProviderInfo::new(name)).unwrap();
    }
    call(&mut registry, b.a()).unwrap();
    b.succeeded.push(method);
}

const LIST: &str = "registry_list_providers";
const ADD: &str = "registry_add_provider";
const REMOVE: &str = "registry_remove_provider";

pub const ROWS: &[Row] = &[
    refused_as(
        LIST,
        InvalidParameter,
        Subtype::InvalidArg1,
        "the list has no room at all; number_entries says how many there are",
        |_| {
            vec![on(LIST, &["ib0", "ib0-dat"], |registry, _| {
                let mut count = 0;
                let result = registry.registry_list_providers(&mut [], &mut count);
                assert_eq!(count, 2);
                result
            })]
        },
    ),
    refused_as(
        LIST,
        InvalidParameter,
        Subtype::InvalidArg3,
        "the list is too small; number_entries says how many there are, nothing is written",
        |_| {
            vec![on(LIST, &["ib0", "ib0-dat"], |registry, _| {
                let (mut count, mut list) = (0, [BLANK]);
                let result = registry.registry_list_providers(&mut list, &mut count);
                assert_eq!((count, list), (2, [BLANK]));
                result
            })]
        },
    ),
    impossible(
        LIST,
        InvalidParameter,
        "the list, one of its entries or the count is null",
        "references are never null",
    ),
    impossible(
        LIST,
        InternalError,
        "the static registry is missing",
        "there is no file: programs enter their adapters",
    ),
    succeeds(LIST, "every provider with its name and version", |b| {
        done(b, LIST, &["ib0", "ib0-dat"], |registry, _| {
            let (mut count, mut list) = (0, [BLANK; 5]);
            registry.registry_list_providers(&mut list, &mut count)?;
            assert_eq!(
                (count, list[0], list[1], list[2]),
                (2, ProviderInfo::new("ib0"), ProviderInfo::new("ib0-dat"), BLANK,)
            );
            assert_eq!((list[0].dapl_version_major, list[0].dapl_version_minor), (1, 2));
            Ok(())
        });
    }),
    refused(ADD, InvalidParameter, "the name is empty, too long, or not one of the provider's", |_| {
        let long: &'static str = "x".repeat(256).leak();
        ["", long, "ib1", "nonsense"]
            .map(|name| {
                on(ADD, &["ib0"], move |registry, adapter| {
                    registry.registry_add_provider(adapter, ProviderInfo::new(name))
                })
            })
            .into()
    }),
    refused(ADD, InvalidParameter, "the version is beyond the provider's, or thread-safe", |_| {
        let ours = ProviderInfo::new("ib0-dat");
        [
            ProviderInfo { dapl_version_major: 2, ..ours },
            ProviderInfo { dapl_version_major: 0, ..ours },
            ProviderInfo { dapl_version_minor: 3, ..ours },
            ProviderInfo { is_thread_safe: true, ..ours },
        ]
        .map(|info| on(ADD, &["ib0"], move |registry, adapter| registry.registry_add_provider(adapter, info)))
        .into()
    }),
    refused(ADD, ProviderAlreadyRegistered, "the name is taken", |_| {
        vec![on(ADD, &["ib0", "ib0-dat"], |registry, adapter| {
            registry.registry_add_provider(adapter, ProviderInfo::new("ib0"))
        })]
    }),
    refused(ADD, InsufficientResources, "the registry is full", |_| {
        vec![Call::new(ADD, |adapter| {
            let mut entries = [RegistryEntry::EMPTY];
            let mut registry = Registry::new(&mut entries);
            registry.registry_add_provider(adapter, ProviderInfo::new("ib0")).unwrap();
            let result = registry.registry_add_provider(adapter, ProviderInfo::new("ib0-dat"));
            assert_eq!(listed(&registry), [ProviderInfo::new("ib0")]);
            result
        })]
    }),
    succeeds(ADD, "found by name and version afterwards, a smaller minor one too", |b| {
        done(b, ADD, &["ib0"], |registry, adapter| {
            registry.registry_add_provider(adapter, ProviderInfo::new("ib0-dat"))?;
            assert_eq!(registry.find("ib0-dat", 1, 2, false), Ok(adapter.id().unwrap()));
            assert_eq!(registry.find("ib0-dat", 1, 0, false), Ok(adapter.id().unwrap()));
            let subtype = |found: DatResult<AdapterId>| found.unwrap_err().subtype().unwrap();
            assert_eq!(subtype(registry.find("ib7", 1, 2, false)), Subtype::NameNotRegistered);
            assert_eq!(subtype(registry.find("ib0", 2, 0, false)), Subtype::MajorNotFound);
            assert_eq!(subtype(registry.find("ib0", 1, 3, false)), Subtype::MinorNotFound);
            assert_eq!(subtype(registry.find("ib0", 1, 2, true)), Subtype::ThreadSafetyNotFound);
            Ok(())
        });
    }),
    succeeds(ADD, "the name can be opened, in the version that was registered", |b| {
        done(b, ADD, &["ib0"], |registry, adapter| {
            registry.registry_add_provider(
                adapter,
                ProviderInfo { dapl_version_minor: 1, ..ProviderInfo::new("ib0-dat") },
            )?;
            let refused = adapter.ia_openv("ib0-dat", 8, None, 1, 2, false).unwrap_err();
            assert_eq!(refused.subtype(), Some(Subtype::MinorNotFound));
            let (ia, _) = adapter.ia_openv("ib0-dat", 8, None, 1, 1, false)?;
            adapter.ia_close(ia, CloseFlags::Graceful)
        });
    }),
    refused(REMOVE, InvalidParameter, "it is not there, or under another name", |_| {
        ["ib0-dat", "ib1", ""]
            .map(|name| {
                on(REMOVE, &["ib0"], move |registry, adapter| {
                    registry.registry_remove_provider(adapter, &ProviderInfo::new(name))
                })
            })
            .into()
    }),
    refused(REMOVE, ProviderInUse, "an IA of it is open", |_| {
        vec![on(REMOVE, &["ib0"], |registry, adapter| {
            registry.registry_remove_provider(adapter, &ProviderInfo::new("ib0"))
        })]
    }),
    succeeds(REMOVE, "the name cannot be opened, until it is registered again", |b| {
        done(b, REMOVE, &["ib0-dat", "ib0"], |registry, adapter| {
            registry.registry_remove_provider(adapter, &ProviderInfo::new("ib0-dat"))?;
            let refused = adapter.ia_open("ib0-dat", 8, None).unwrap_err();
            assert_eq!(refused.subtype(), Some(Subtype::NameNotRegistered));
            registry.registry_add_provider(adapter, ProviderInfo::new("ib0-dat"))?;
            let (ia, _) = adapter.ia_open("ib0-dat", 8, None)?;
            adapter.ia_close(ia, CloseFlags::Graceful)
        });
    }),
    succeeds(REMOVE, "the name is free again", |b| {
        done(b, REMOVE, &["ib0-dat", "ib0"], |registry, adapter| {
            registry.registry_remove_provider(adapter, &ProviderInfo::new("ib0-dat"))?;
            assert_eq!(listed(registry), [ProviderInfo::new("ib0")]);
            registry.registry_add_provider(adapter, ProviderInfo::new("ib0-dat"))
        });
    }),
];

tests! { registry_list_providers registry_add_provider registry_remove_provider }
