//! Providers that programs register, and what every provider is: a table of calls.

use dat_calls::layout::*;
use dat_calls::{RawHandle, for_each_call};
use dat_nostd::{LmrTriplet, RmrTriplet};
use std::ffi::c_char;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

macro_rules! provider {
    ($($wrap:ident $member:ident: $call:ident($($argument:ident: $type:ty),* $(,)?),)*) => {
        /// `struct dat_provider`.
        #[repr(C)]
        #[allow(missing_docs)]
        pub struct Provider {
            pub device_name: *const c_char,
            pub extension: Pointer,
            pub ia_open_func: unsafe extern "C" fn(*const u8, i32, *mut RawHandle, *mut RawHandle) -> u32,
            $(pub $member: unsafe extern "C" fn($($type),*) -> u32,)*
        }
    };
}

for_each_call!(provider);

const _: () = assert!(size_of::<Provider>() == 560);

// SAFETY: the table is never written, and its pointers are to a constant and to functions.
unsafe impl Sync for Provider {}

/// A provider that a program has registered under a name.
#[derive(Clone)]
pub(crate) struct Foreign {
    pub(crate) name: String,
    pub(crate) info: ProviderInfo,
    table: &'static Provider,
}

impl Foreign {
    /// # Safety
    /// `table` is a provider's table that stays until the provider is removed and every handle of it is gone.
    pub(crate) unsafe fn new(name: String, info: ProviderInfo, table: *const Provider) -> Option<Self> {
        // SAFETY: this function's contract.
        let table = unsafe { table.as_ref() }?;
        Some(Self { name, info, table })
    }

    pub(crate) fn calls(&self) -> &'static Provider {
        self.table
    }

    /// What tells tables apart.
    pub(crate) fn table(&self) -> usize {
        ptr::from_ref(self.table).addr()
    }
}

/// Whether any program has ever registered a provider of its own.
static ANY: AtomicBool = AtomicBool::new(false);
/// Their tables, by address.
static TABLES: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// From now on handles may be this provider's.
pub(crate) fn expect(foreign: &Foreign) {
    TABLES.lock().unwrap_or_else(PoisonError::into_inner).push(foreign.table());
    ANY.store(true, Ordering::Release);
}

/// No handle is this provider's any more.
pub(crate) fn forget(foreign: &Foreign) {
    let mut tables = TABLES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(place) = tables.iter().position(|table| *table == foreign.table()) {
        tables.swap_remove(place);
    }
}

/// The provider of a handle that is not ours: a pointer to an object that begins with a pointer to its table.
#[inline]
pub(crate) fn foreign(handle: RawHandle) -> Option<&'static Provider> {
    // Our handles name their kind in the top byte, where addresses of a process have nothing.
    if handle >> 56 != 0 || !ANY.load(Ordering::Relaxed) { None } else { find_foreign(handle) }
}

#[cold]
fn find_foreign(handle: RawHandle) -> Option<&'static Provider> {
    /// The first page is nobody's.
    const PAGE: u64 = 4096;
    if handle < PAGE || !handle.is_multiple_of(8) {
        return None;
    }
    // SAFETY: there are foreign providers, whose handles are pointers to such objects. A stray number that is no address cannot be told
    // from one then, as with every library of DAT.
    let table = unsafe { ptr::with_exposed_provenance::<*const Provider>(handle as usize).read() };
    if !TABLES.lock().unwrap_or_else(PoisonError::into_inner).contains(&table.addr()) {
        return None;
    }
    // SAFETY: a registered table.
    unsafe { table.as_ref() }
}
