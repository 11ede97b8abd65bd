//! Providers that programs register, and what every provider is: a table of calls.

use capi_device::Cancellation;
use dat_calls::layout::*;
use dat_calls::{RawHandle, for_each_call};
use dat_nostd::{LmrTriplet, RmrTriplet};
use std::ffi::c_char;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

macro_rules! provider {
    ($($wrap:ident $member:ident: $call:ident($($argument:ident: $type:ty),* $(,)?),)*) => {
        /// `struct dat_provider`.
        #[repr(C)]
        #[allow(missing_docs)]
        pub struct Provider {
            pub device_name: *const c_char,
            pub extension: Pointer,
            pub ia_open_func: unsafe extern "C-unwind" fn(*const u8, i32, *mut RawHandle, *mut RawHandle) -> u32,
            $(pub $member: unsafe extern "C-unwind" fn($($type),*) -> u32,)*
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

/// The tables of providers that programs have registered, by address; null if there never was one.
static TABLES: AtomicPtr<Mutex<Vec<usize>>> = AtomicPtr::new(ptr::null_mut());

/// The tables, locked; `None` if there never was one.
fn tables() -> Option<MutexGuard<'static, Vec<usize>>> {
    // SAFETY: null, or a value that `expect` leaked.
    let tables = unsafe { TABLES.load(Ordering::Acquire).as_ref() }?;
    Some(tables.lock().unwrap_or_else(PoisonError::into_inner))
}

/// From now on handles may be this provider's.
pub(crate) fn expect(foreign: &Foreign) {
    if TABLES.load(Ordering::Acquire).is_null() {
        let made = Box::into_raw(Box::<Mutex<Vec<usize>>>::default());
        if TABLES.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: another thread was faster, and no other code has the address of this one.
            drop(unsafe { Box::from_raw(made) });
        }
    }
    if let Some(mut tables) = tables() {
        tables.push(foreign.table());
    }
}

/// A child process has no handles of its parent's, and a thread of the parent's may have the lock.
pub(crate) fn forget_all() {
    TABLES.store(ptr::null_mut(), Ordering::Release);
}

/// No handle is this provider's any more.
pub(crate) fn forget(foreign: &Foreign) {
    let Some(mut tables) = tables() else { return };
    if let Some(place) = tables.iter().position(|table| *table == foreign.table()) {
        tables.swap_remove(place);
    }
}

/// The provider of a handle that is not ours: a pointer to an object that begins with a pointer to its table.
///
/// # Safety
/// As [`Cancellation::restore`], except on threads whose type of cancellation is deferred.
#[inline]
pub(crate) unsafe fn foreign(handle: RawHandle) -> Option<&'static Provider> {
    // Our handles name their kind in the top byte, where addresses of a process have nothing.
    if handle >> 56 != 0 || TABLES.load(Ordering::Relaxed).is_null() {
        return None;
    }
    // SAFETY: this function's contract.
    unsafe { find_foreign(handle) }
}

/// Looks for a provider. A thread that is cancelled meanwhile would leave the tables locked.
///
/// # Safety
/// As [`foreign`].
#[cold]
unsafe fn find_foreign(handle: RawHandle) -> Option<&'static Provider> {
    // SAFETY: this function's contract. Nothing here has a destructor. A deferred cancellation
    // waits for a cancellation point, which this is not.
    let cancellation = unsafe { Cancellation::disable() };
    let found = provider_of(handle);
    // SAFETY: as above.
    unsafe { cancellation.restore() };
    found
}

#[inline(never)]
fn provider_of(handle: RawHandle) -> Option<&'static Provider> {
    /// The first page is nobody's.
    const PAGE: u64 = 4096;
    if handle < PAGE || !handle.is_multiple_of(8) {
        return None;
    }
    // SAFETY: there are foreign providers, whose handles are pointers to such objects. A stray number that is no address cannot be told
    // from one then, as with every library of DAT.
    let table = unsafe { ptr::with_exposed_provenance::<*const Provider>(handle as usize).read() };
    if !tables()?.contains(&table.addr()) {
        return None;
    }
    // SAFETY: a registered table.
    unsafe { table.as_ref() }
}
